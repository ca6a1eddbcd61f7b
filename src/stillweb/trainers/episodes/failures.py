"""Decides what a trainer does with an episode that has no reward.

Browser, proxy, task or agent failed, so the episode says nothing about the policy. A reward of 0 would train
the policy on infrastructure failures; therefore no function here returns one. A trainer chooses:

    mask     the sample keeps its place in the batch with weight 0: no gradient, no part in any mean
    none     the trainer gets None instead of a sample
    raise    the failure is raised as an exception that says which side failed
    retry    the episode is played again while attempts are left; then `after` applies

`judge` is pure; adapters translate its result. `advantages` leaves episodes without a reward out of mean and
deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stillweb.env import Outcome
from stillweb.errors import AgentError, InfraError, StillwebError, TaskError, UsageError


class FailurePolicy(StrEnum):
    """Treatment of an episode without a reward."""

    MASK = "mask"
    NONE = "none"
    RAISE = "raise"
    RETRY = "retry"


class SampleVerdict(StrEnum):
    """Decision about an episode."""

    KEEP = "keep"
    MASK = "mask"
    DROP = "drop"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class FailureHandling:
    """Treatment of failures.

    Attributes:
        attempts: for RETRY, including the first attempt.
        after: for RETRY, once no attempts are left, and for `task_error` and `agent_error`, which no retry
            repairs.
    """

    policy: FailurePolicy = FailurePolicy.MASK
    attempts: int = 3
    after: FailurePolicy = FailurePolicy.MASK

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.after is FailurePolicy.RETRY:
            raise UsageError("retry needs at least one attempt, and another policy after the last one")


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """The decision about an episode.

    Attributes:
        reward: None unless the verdict is KEEP.
        outcome, error: end of the episode, for the trainer's extra fields.
    """

    verdict: SampleVerdict
    reward: float | None
    outcome: Outcome
    error: str = ""

    @property
    def weight(self) -> float:
        """Weight of every token of the sample: 1 or 0."""
        return 1.0 if self.verdict is SampleVerdict.KEEP else 0.0


def judge(
    outcome: Outcome, reward: float | None, failures: FailureHandling, *, attempt: int = 1, error: str = ""
) -> JudgedSample:
    """Return whether a trainer keeps, repeats, masks or drops an episode.

    Args:
        reward: reward of the episode, if and only if the outcome is `ok`; None otherwise.
        failures: policy for episodes that failed.
        attempt: number of this attempt, from 1.
        error: message of the failure.

    Raises:
        UsageError: if outcome and reward contradict each other.
        InfraError, TaskError, AgentError: if the policy is to raise failures.
    """
    scored = reward is not None and math.isfinite(reward)
    if scored != (outcome is Outcome.OK):
        raise UsageError(f"an episode that ended as {outcome.value} cannot have the reward {reward}")
    if scored:
        return JudgedSample(SampleVerdict.KEEP, reward, outcome, error)
    policy = failures.policy
    if policy is FailurePolicy.RETRY:
        if outcome is Outcome.INFRA_ERROR and attempt < failures.attempts:
            return JudgedSample(SampleVerdict.AGAIN, None, outcome, error)
        policy = failures.after
    if policy is FailurePolicy.RAISE:
        raise error_of_outcome(outcome, error)
    verdict = SampleVerdict.DROP if policy is FailurePolicy.NONE else SampleVerdict.MASK
    return JudgedSample(verdict, None, outcome, error or outcome.value)


def error_of_outcome(outcome: Outcome, error: str) -> StillwebError:
    """Return a failed episode as an exception."""
    kinds = {Outcome.INFRA_ERROR: InfraError, Outcome.TASK_ERROR: TaskError, Outcome.AGENT_ERROR: AgentError}
    return kinds[outcome](error or f"the episode ended as {outcome.value}")


def advantages(rewards: Sequence[float | None], *, scale: bool = True) -> list[float]:
    """Return the GRPO advantages of a group's episodes.

    Episodes without a reward get 0.0 and do not change the others.

    Args:
        rewards: rewards of the group.
        scale: whether to divide by the standard deviation.
    """
    known = [reward for reward in rewards if reward is not None]
    if len(set(known)) < 2:  # equal rewards: scaling would only enlarge rounding errors
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known)) if scale else 1.0
    return [0.0 if reward is None or not spread else (reward - mean) / spread for reward in rewards]
