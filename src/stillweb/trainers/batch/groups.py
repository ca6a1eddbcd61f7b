"""Success by family, length and part of the tasks, with intervals and pass@k; the HTML report of a batch.

pass@k is the probability that at least one of k episodes of a task succeeds. Its estimate for a task with c
successes in n episodes is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374), and the mean over
tasks for a group. Episodes of one task are not independent: the 95 % interval comes from a bootstrap over
tasks. Where all tasks have the same value, a bootstrap has no width; the interval is then the exact one for
that number of tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from stillweb import clock
from stillweb.diff.certify.rates import rate
from stillweb.templates import write_page

if TYPE_CHECKING:
    from stillweb.trainers.batch.results import Result


_RESAMPLES = 1_000
_LENGTHS = ((1, 2), (3, 4), (5, 8), (9, 16), (17, None))


def groups_of(results: Iterable[Result], success: float) -> dict[str, list[dict[str, Any]]]:
    """Return rows for each kind of group that the tasks of some results have.

    Args:
        results: results of episodes; those without a reward are only counted.
        success: minimum reward of a success.
    """
    rows = list(results)
    names: dict[str, Callable[[Result], str]] = {
        "family": lambda row: row.family,
        "length": lambda row: _length(row.length),
        "split": lambda row: row.split,
    }
    groups = {}
    for kind, name in names.items():
        members: defaultdict[str, list[Result]] = defaultdict(list)
        for row in rows:
            members[name(row)].append(row)
        if set(members) - {""}:
            order = sorted(members, key=lambda each: (len(each.split()[0]) if kind == "length" else 0, each))
            groups[kind] = [_group(each or "none", members[each], success) for each in order]
    return groups


def _length(steps: int) -> str:
    for low, high in _LENGTHS:
        if low <= steps and (high is None or steps <= high):
            return f"{low} or more" if high is None else f"{low} to {high}"
    return ""


def _group(name: str, rows: Sequence[Result], success: float) -> dict[str, Any]:
    tasks: defaultdict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            tasks[row.task].append(row.reward >= success)
    fewest = min(map(len, tasks.values()), default=0)
    return {
        "name": name,
        "tasks": len({row.task for row in rows}),
        "episodes": len(rows),
        "scored": sum(map(len, tasks.values())),
        "steps": round(fmean(row.steps for row in rows), 2),
        "pass_at": {
            str(k): interval([pass_at(len(each), sum(each), k) for each in tasks.values()], f"{name} {k}")
            for k in (1, 2, 4, 8, 16, 32, 64)
            if k <= fewest
        },
    }


def pass_at(n: int, successes: int, k: int) -> float:
    """Return the estimate of pass@k from n episodes of a task, of which some succeeded."""
    return 1.0 - comb(n - successes, k) / comb(n, k)


def interval(values: Sequence[float], seed: str) -> dict[str, float]:
    """Return the mean of the tasks' values, and its 95 % interval."""
    mean = fmean(values)
    if len(set(values)) == 1 and values[0] in (0.0, 1.0):
        found = rate(round(sum(values)), len(values))
        low, high = found.low, found.high
    else:
        low, high = bootstrap(values, clock.seeded("bootstrap", seed))
    return {"value": round(mean, 6), "low": round(low, 6), "high": round(high, 6)}


def bootstrap(values: Sequence[float], rng: Any) -> tuple[float, float]:
    """Return the 95 % interval of a mean."""
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[round(0.025 * _RESAMPLES)], means[round(0.975 * _RESAMPLES) - 1]


def variance_of(results: Iterable[Result]) -> dict[str, Any]:
    """Return the variance of the rewards by its cause; the parts add up to the total.

    `tasks`: between the means of tasks. `agent`: between the means of a task's different action sequences
    (and page seeds). `environment`: between episodes with equal actions. `repeated` counts the sequences that
    several episodes took, `differ` those of them whose observations or rewards were not equal.
    """
    rows = [row for row in results if row.reward is not None and row.actions]
    tasks: defaultdict[str, list[Result]] = defaultdict(list)
    sequences: defaultdict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for row in rows:
        tasks[row.task].append(row)
        sequences[row.task, row.environment_id, row.level, row.seed, row.actions].append(row)
    mean = _mean(rows)
    of_task = {name: _mean(each) for name, each in tasks.items()}
    repeated = [each for each in sequences.values() if len(each) > 1]
    parts = {
        "tasks": sum(len(each) * (of_task[name] - mean) ** 2 for name, each in tasks.items()),
        "agent": sum(len(each) * (_mean(each) - of_task[each[0].task]) ** 2 for each in sequences.values()),
        "environment": sum((_reward(row) - _mean(each)) ** 2 for each in repeated for row in each),
    }
    shares = {name: round(value / len(rows), 9) if rows else 0.0 for name, value in parts.items()}
    return shares | {
        "episodes": len(rows),
        "sequences": len(sequences),
        "repeated": len(repeated),
        "differ": sum(len({(row.observed, row.reward) for row in each}) > 1 for each in repeated),
    }


def _mean(rows: Sequence[Result]) -> float:
    return fmean(map(_reward, rows)) if rows else 0.0


def _reward(row: Result) -> float:
    assert row.reward is not None
    return row.reward


def write_rollout_report(summary: Mapping[str, Any], title: str, path: Path) -> None:
    """Write the summary of a batch as one HTML page."""
    write_page(path, "stillweb.trainers.batch", "rollout.html.j2", summary=summary, title=title)
