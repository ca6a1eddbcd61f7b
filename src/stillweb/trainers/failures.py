"""What a trainer gets for an episode that has no reward.

Browser, proxy, task or agent failed, so nothing is known of how well the policy did. To count that as
reward 0 teaches the policy from our failures; so there is no way to it here. A trainer chooses:

    mask     the sample keeps its place in the batch and weighs nothing; no gradient, no part in any mean
    none     there is no sample: the trainer is given None
    raise    the failure is raised, typed by whose it is
    retry    while attempts are left the episode is played again; then `after`

`judge` decides, purely; adapters put what it says into their trainer's words. `advantages` is the part of a
group's arithmetic that is easily got wrong: what has no reward takes no part in mean and deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stillweb.env.vector.rollout import Outcome
from stillweb.errors import AgentError, InfraError, StillwebError, TaskError, UsageError

__all__ = ["FailurePolicy", "Failures", "Judged", "SampleVerdict", "advantages", "failure", "judge"]


class FailurePolicy(StrEnum):
    """What becomes of an episode without a reward."""

    MASK = "mask"
    NONE = "none"
    RAISE = "raise"
    RETRY = "retry"


class SampleVerdict(StrEnum):
    """What a trainer does with an episode."""

    KEEP = "keep"
    MASK = "mask"
    DROP = "drop"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Failures:
    """How failures are treated.

    Attributes:
        attempts: of RETRY, the first one counted.
        after: RETRY, once there are no attempts left, and for what no attempt would mend: `task_error`
            and `agent_error`.
    """

    policy: FailurePolicy = FailurePolicy.MASK
    attempts: int = 3
    after: FailurePolicy = FailurePolicy.MASK

    def __post_init__(self) -> None:
        """Check that it comes to an end.

        Raises:
            UsageError: if it does not.
        """
        if self.attempts < 1 or self.after is FailurePolicy.RETRY:
            raise UsageError("retry needs at least one attempt, and another policy after the last one")


@dataclass(frozen=True, slots=True)
class Judged:
    """What is to be done with an episode.

    Attributes:
        reward: None unless the verdict is KEEP.
        outcome, error: how it ended, for the trainer's extra fields.
    """

    verdict: SampleVerdict
    reward: float | None
    outcome: Outcome
    error: str = ""

    @property
    def weight(self) -> float:
        """What every token of the sample weighs: 1 or 0."""
        return 1.0 if self.verdict is SampleVerdict.KEEP else 0.0


def judge(
    outcome: Outcome, reward: float | None, failures: Failures, *, attempt: int = 1, error: str = ""
) -> Judged:
    """Say what becomes of an episode.

    Args:
        outcome: of the episode.
        reward: of the episode, if and only if the outcome is `ok`.
        failures: how failures are treated.
        attempt: which this was, from 1.
        error: what went wrong.

    Raises:
        UsageError: if outcome and reward contradict each other.
        InfraError, TaskError, AgentError: if failures are raised.
    """
    scored = reward is not None and math.isfinite(reward)
    if scored != (outcome is Outcome.OK):
        raise UsageError(f"an episode that ended as {outcome.value} cannot have the reward {reward}")
    if scored:
        return Judged(SampleVerdict.KEEP, reward, outcome, error)
    policy = failures.policy
    if policy is FailurePolicy.RETRY:
        if outcome is Outcome.INFRA_ERROR and attempt < failures.attempts:
            return Judged(SampleVerdict.AGAIN, None, outcome, error)
        policy = failures.after
    if policy is FailurePolicy.RAISE:
        raise failure(outcome, error)
    return Judged(
        SampleVerdict.DROP if policy is FailurePolicy.NONE else SampleVerdict.MASK,
        None,
        outcome,
        error or outcome.value,
    )


def failure(outcome: Outcome, error: str) -> StillwebError:
    """Return a failed episode as the error of whose fault it was."""
    kinds = {Outcome.INFRA_ERROR: InfraError, Outcome.TASK_ERROR: TaskError, Outcome.AGENT_ERROR: AgentError}
    return kinds[outcome](error or f"the episode ended as {outcome.value}")


def advantages(rewards: Sequence[float | None], *, scale: bool = True) -> list[float]:
    """Return the advantages of a group's episodes, as GRPO has them.

    Those without a reward get 0.0 and change nothing for the others.

    Args:
        rewards: of the group.
        scale: whether to divide by the standard deviation.
    """
    known = [reward for reward in rewards if reward is not None]
    if len(set(known)) < 2:  # they teach nothing; what rounding leaves must not be blown up
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known)) if scale else 1.0
    return [0.0 if reward is None or not spread else (reward - mean) / spread for reward in rewards]
