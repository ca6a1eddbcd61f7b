"""Forks of one episode at each of its steps: which step lost the success, and the value of each state.

    forks = EpisodeForks.of(Trajectory.load(path))
    await rollout(url, forks.agent(agent), forks.tasks, folder, replace(options, episodes=8))
    forks.explain(folder.results.values(), success=1.0)

The state after step s is reached by repeating the first s actions, which replay answers identically. Each
repeated observation must have the digests of the episode; otherwise the fork ends as `agent_error` and counts
nowhere. From there an agent plays on. The value of a state is the mean reward of its forks; the value after
the last step is the episode's own reward. The difference between a value and the one before is the reward of
the step in between (a process reward). Forks are episodes of a batch: the state after step s is the task
`ID@s`.

An agent that has a method `resume` (`ResumableAgent`) learns the repeated steps; any other agent sees the
episode from the forked state on.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from stillweb.diff.certify.rates import rate
from stillweb.env import Observation, Task, Trajectory
from stillweb.env.tasks.task import task_from_dict
from stillweb.env.vector.rollout import Agent, Policy
from stillweb.errors import ForkDiverged, UsageError
from stillweb.templates import write_page
from stillweb.trainers.agents import PastStep
from stillweb.trainers.batch.results import Result

_FORKS_PER_STATE = 100_000  # numbers of the forks of a state: they seed the agents' draws
_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class EpisodeForks:
    """The states of an episode at which it can be forked.

    Attributes:
        steps: lines of the trajectory: the reset and each step.
        reward: reward of the episode; None if it has not ended with one.
    """

    task: Task
    steps: tuple[Mapping[str, Any], ...]
    reward: float | None
    header: Mapping[str, Any]

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """Return the forks of a stored episode.

        Raises:
            UsageError: if the episode has no task, no step, or no observation to verify.
        """
        header, where = trajectory.header, trajectory.path
        if not header.get("task"):
            raise UsageError(f"{where}: the episode has no task, so its forks have no reward")
        steps = trajectory.steps
        if len(steps) < 2:  # the reset and one action
            raise UsageError(f"{where}: the episode has no action, so it cannot be forked")
        if not steps[0]["digests"]:
            raise UsageError(
                f"{where}: the episode observed nothing, so its forks cannot be verified",
                hint="play it with --observe axtree",
            )
        reward = (trajectory.end or {}).get("reward")
        return cls(task_from_dict(header["task"], str(where)), steps, reward, header)

    @property
    def actions(self) -> tuple[Any, ...]:
        return tuple(step["raw"] for step in self.steps[1:])

    @property
    def states(self) -> range:
        """States at which the episode can be forked: the state after its end cannot."""
        return range(len(self.actions) + (self.reward is None))

    @property
    def tasks(self) -> list[Task]:
        """A task for each state; its identifier ends with the number of repeated steps."""
        return [replace(self.task, id=f"{self.task.id}@{state}") for state in self.states]

    @property
    def observed(self) -> tuple[str, ...]:
        return tuple(self.steps[0]["digests"])

    def agent(self, agent: Agent) -> Agent:
        """Return an agent that repeats the episode up to the state of its task, and then plays as `agent`."""

        def forked(task: Task) -> Policy:
            state = int(task.id.rpartition("@")[2])
            past: list[PastStep] = []
            policy: Policy | None = None

            async def act(observation: Observation, info: dict[str, Any]) -> Any:
                nonlocal policy
                step = info["step"]
                if step <= state:
                    self._verify(step, observation)
                if step < state:
                    past.append(PastStep(observation, info, self.actions[step]))
                    return self.actions[step]
                if policy is None:
                    policy = await _resumed(agent, self.task, past)
                number = state * _FORKS_PER_STATE + info["episode_number"]
                goal = past[0].info.get("goal", "") if past else info.get("goal", "")
                chosen = policy(observation, {"goal": goal, **info, "episode_number": number})
                return await chosen if inspect.isawaitable(chosen) else chosen

            return act

        return forked

    def _verify(self, step: int, observation: Observation) -> None:
        wanted = self.steps[step]["digests"]
        for form, digest in wanted.items():
            if observation.digests.get(form) != digest:
                found = observation.digests.get(form, "")
                raise ForkDiverged(step=step, kind=form, expected=digest, found=found)

    def explain(self, results: Iterable[Result], *, success: float = 1.0) -> dict[str, Any]:
        """Return values and success by state, and the step that lost the success, as JSON.

        Args:
            results: results of forks; those without a reward are only counted.
            success: minimum reward of a success.
        """
        by_state: defaultdict[int, list[Result]] = defaultdict(list)
        for each in results:
            by_state[int(each.task.rpartition("@")[2])].append(each)
        rows = [self._state(state, by_state[state], success) for state in self.states]
        if self.reward is not None:
            rows.append(self._end(success))
        for before, row in pairwise(rows):
            row.update(_change(before, row))
        lost = _lost_after(rows)
        forks = [each for state in self.states for each in by_state[state]]
        return {
            "task": self.task.id,
            "goal": self.header.get("goal") or self.task.goal,
            "reward": self.reward,
            "success_from": success,
            "forks": len(forks),
            "without_reward": sum(each.reward is None for each in forks),
            "steps_played": sum(each.steps for each in forks),
            "lost_after": lost,
            "verdict": _verdict(rows, lost),
            "values": [row["value"] for row in rows],
            "process_rewards": [row.get("change") for row in rows[1:]],
            "states": rows,
        }

    def _state(self, state: int, results: Sequence[Result], success: float) -> dict[str, Any]:
        rewards = [each.reward for each in results if each.reward is not None]
        successes = sum(reward >= success for reward in rewards)
        found = rate(successes, len(rewards))
        return self._named(state) | {
            "forks": len(results),
            "scored": len(rewards),
            "successes": successes,
            "success": round(found.share, 6) if rewards else None,
            "low": round(found.low, 6),
            "high": round(found.high, 6),
            "value": round(fmean(rewards), 6) if rewards else None,
        }

    def _end(self, success: float) -> dict[str, Any]:
        """Return the state after the last step: replay repeats it identically, so it has no interval."""
        assert self.reward is not None
        good = float(self.reward >= success)
        known = {"success": good, "low": good, "high": good, "value": self.reward}
        return self._named(len(self.actions)) | {"forks": 0, "scored": 0, "successes": 0, **known}

    def _named(self, state: int) -> dict[str, Any]:
        step = self.steps[state]
        action = step.get("raw")
        return {"step": state, "action": action, "status": step["status"], "url": step["url"]}


async def _resumed(agent: Agent, task: Task, past: Sequence[PastStep]) -> Policy:
    resume = getattr(agent, "resume", None)
    made = resume(task, past) if resume and past else agent(task)
    return await made if inspect.isawaitable(made) else made


# --- statistics ------------------------------------------------------------------------------------


def _change(before: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of value and success from one state to the next."""
    if before["value"] is None or row["value"] is None:
        return {"change": None}
    low, high = _difference(before, row)
    return {
        "change": round(row["value"] - before["value"], 6),
        "change_low": round(low, 6),
        "change_high": round(high, 6),
        "p": round(_p_of_drop(before, row), 6),
    }


def _difference(before: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two success rates.

    Newcombe, Statistics in Medicine 17 (1998), method 10.
    """
    p, q = row["success"], before["success"]
    low = sqrt((p - row["low"]) ** 2 + (before["high"] - q) ** 2)
    high = sqrt((row["high"] - p) ** 2 + (q - before["low"]) ** 2)
    return p - q - low, p - q + high


def _p_of_drop(before: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Return the probability of such a drop if both success rates were equal.

    Fisher's exact test, one-sided. The state after the last step is known, not sampled: with reward 0, a drop
    as large has probability 1 only if no fork of the state before succeeded.
    """
    if not row["scored"]:
        lost = row["success"] < 1 and before["successes"]
        return 0.0 if lost else 1.0
    n, m = before["scored"], row["scored"]
    good = before["successes"] + row["successes"]
    worst = max(0, good - n)
    ways = sum(comb(m, k) * comb(n, good - k) for k in range(worst, row["successes"] + 1))
    return ways / comb(n + m, good)


def _lost_after(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the first step after which no fork succeeds, if some fork of the state before it did."""
    known = [row for row in rows if row["success"] is not None]
    if not known or known[-1]["success"]:
        return None
    last = max((n for n, row in enumerate(known) if row["success"]), default=None)
    return None if last is None else int(known[last + 1]["step"])


def _verdict(rows: Sequence[Mapping[str, Any]], lost: int | None) -> str:
    known = [row for row in rows if row["success"] is not None]
    if not known:
        return "No fork has a reward"
    if lost is None:
        if known[-1]["success"]:
            return "The episode succeeded, or its last state still does"
        return "No fork succeeded, not even from the start: the agent cannot judge this episode"
    row = next(each for each in rows if each["step"] == lost)
    sure = row.get("p") is not None and row["p"] < _SIGNIFICANT
    note = "" if sure else f" (p = {row['p']:.2g}: more forks are needed)" if "p" in row else ""
    return f"Success is lost by step {lost}{note}"


# --- report ----------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _MARGIN = 1000, 260, 48


def write_why_report(explained: Mapping[str, Any], path: Path) -> None:
    """Write the success by state as one HTML page with a chart."""
    rows = [row for row in explained["states"] if row["success"] is not None]
    last = max(1, len(explained["states"]) - 1)

    def at(step: int, share: float) -> tuple[float, float]:
        x = _MARGIN + step / last * (_WIDTH - 2 * _MARGIN)
        return round(x, 1), round(_MARGIN + (1 - share) * (_HEIGHT - 2 * _MARGIN), 1)

    points = [{**row, "at": at(row["step"], row["success"])} for row in rows]
    band = [at(row["step"], row["high"]) for row in rows]
    band += [at(row["step"], row["low"]) for row in reversed(rows)]
    lost = explained["lost_after"]
    chart = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "margin": _MARGIN,
        "points": points,
        "band": band,
        "grid": [(f"{share:.0%}", at(0, share)[1]) for share in (0, 0.5, 1)],
        "ticks": [(n, at(n, 0)[0]) for n in range(0, last + 1, max(1, last // 15))],
        "lost": None if lost is None else at(lost, 0)[0],
    }
    write_page(path, "stillweb.trainers.batch", "why.html.j2", why=explained, chart=chart)
