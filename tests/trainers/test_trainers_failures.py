"""An episode without a reward never becomes one with reward 0, whatever a trainer chooses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.env.vector.rollout import Outcome
from stillweb.errors import AgentError, InfraError, TaskError, UsageError
from stillweb.trainers.episodes.failures import (
    FailureHandling,
    FailurePolicy,
    SampleVerdict,
    advantages,
    judge,
)

ENDING = [policy for policy in FailurePolicy if policy is not FailurePolicy.RETRY]
KINDS = {
    Outcome.INFRA_ERROR: InfraError,
    Outcome.TASK_ERROR: TaskError,
    Outcome.AGENT_ERROR: AgentError,
}
FAILED = [outcome for outcome in Outcome if outcome is not Outcome.OK]
failures = st.builds(
    FailureHandling,
    policy=st.sampled_from(FailurePolicy),
    attempts=st.integers(1, 5),
    after=st.sampled_from(ENDING),
)
rewards = st.floats(-1, 1).map(lambda reward: round(reward, 3))
groups = st.lists(st.one_of(st.none(), rewards), max_size=12)


@given(st.sampled_from(FAILED), failures, st.integers(1, 9), st.text(max_size=9))
def test_a_failed_episode_has_no_reward_and_no_weight(outcome, chosen, attempt, error):
    again = chosen.policy is FailurePolicy.RETRY and outcome is Outcome.INFRA_ERROR
    ends = chosen.policy if chosen.policy in ENDING else chosen.after
    if ends is FailurePolicy.RAISE and not (again and attempt < chosen.attempts):
        with pytest.raises(KINDS[outcome]):
            judge(outcome, None, chosen, attempt=attempt, error=error)
        return
    judged = judge(outcome, None, chosen, attempt=attempt, error=error)
    assert judged.reward is None
    assert judged.weight == 0.0
    assert judged.verdict is not SampleVerdict.KEEP
    assert judged.outcome is outcome
    assert (judged.verdict is SampleVerdict.AGAIN) == (again and attempt < chosen.attempts)


@given(rewards, failures, st.integers(1, 9))
def test_an_episode_that_ended_well_keeps_its_reward_under_every_policy(reward, chosen, attempt):
    judged = judge(Outcome.OK, reward, chosen, attempt=attempt)
    assert (judged.verdict, judged.reward, judged.weight) == (SampleVerdict.KEEP, reward, 1.0)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("policy", FailurePolicy)
def test_outcome_and_reward_that_contradict_each_other_are_refused(outcome, policy):
    wrong = None if outcome is Outcome.OK else 0.0
    with pytest.raises(UsageError, match="cannot have the reward"):
        judge(outcome, wrong, FailureHandling(policy))
    with pytest.raises(UsageError):
        judge(outcome, math.nan, FailureHandling(policy)) if outcome is Outcome.OK else judge(
            outcome, 1.0, FailureHandling()
        )


def test_the_other_policies_say_what_they_are_called():
    verdicts = {
        policy: judge(Outcome.INFRA_ERROR, None, FailureHandling(policy)).verdict
        for policy in FailurePolicy
        if policy is not FailurePolicy.RAISE
    }
    assert verdicts == {"mask": "mask", "none": "drop", "retry": "again"}
    assert judge(Outcome.TASK_ERROR, None, FailureHandling(FailurePolicy.RETRY)).verdict is SampleVerdict.MASK
    with pytest.raises(UsageError, match="another policy"):
        FailureHandling(FailurePolicy.RETRY, after=FailurePolicy.RETRY)


@given(groups, st.booleans())
def test_what_failed_changes_no_other_advantage(group, scale):
    known = [reward for reward in group if reward is not None]
    found = advantages(group, scale=scale)
    assert len(found) == len(group)
    assert [a for a, reward in zip(found, group, strict=True) if reward is None] == [0.0] * (
        len(group) - len(known)
    )
    assert [a for a, reward in zip(found, group, strict=True) if reward is not None] == advantages(
        known, scale=scale
    )


@given(groups)
def test_advantages_add_up_to_nothing_and_are_ordered_as_rewards(group):
    found = advantages(group)
    assert math.isclose(math.fsum(found), 0.0, abs_tol=1e-6)
    pairs = sorted((reward, a) for reward, a in zip(group, found, strict=True) if reward is not None)
    assert [a for _, a in pairs] == sorted(a for _, a in pairs)


def test_a_group_of_one_mind_teaches_nothing():
    assert advantages([0.1, None, 0.1, 0.1]) == [0.0] * 4
    assert advantages([]) == []
    assert advantages([1.0, 0.0, None]) == [1.0, -1.0, 0.0]
