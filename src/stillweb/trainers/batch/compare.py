"""Paired comparison of two rollouts: the same tasks, two agents or two versions of one.

Tasks are the pairs, since episodes of one task are not independent. The difference of success (and of reward)
is a mean over tasks. Its 95 % interval is from a bootstrap over tasks, its p-value from a sign-flip
permutation test. Tasks without a reward on one side are counted and left out: a failure of the
infrastructure is not a difference between agents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any

from stillweb import clock
from stillweb.templates import write_page
from stillweb.trainers.batch.groups import bootstrap, variance_of
from stillweb.trainers.batch.results import Result

_RESAMPLES = 10_000
_EXACT = 13  # tasks with a difference, up to which all 2^n signs are tried


def compare(before: Iterable[Result], after: Iterable[Result], *, success: float = 1.0) -> dict[str, Any]:
    """Return the paired comparison of two rollouts as JSON; differences are `after` minus `before`.

    Args:
        before: results of the first rollout.
        after: results of the second.
        success: minimum reward of a success.
    """
    sides = [_by_task(before), _by_task(after)]
    common = sorted(sides[0].keys() & sides[1].keys())
    scored = [[_scored(side[name]) for name in common] for side in sides]
    pairs = [
        _pair(name, sides[0][name][0].family, first, second, success)
        for name, first, second in zip(common, *scored, strict=True)
        if first and second
    ]
    families = sorted({pair["family"] for pair in pairs})
    return {
        "success_from": success,
        "tasks": {
            "paired": len(pairs),
            "only_before": len(sides[0].keys() - sides[1].keys()),
            "only_after": len(sides[1].keys() - sides[0].keys()),
            "without_reward": len(common) - len(pairs),
        },
        "episodes": [sum(map(len, side.values())) for side in sides],
        "all": _difference("all", pairs),
        "families": [
            _difference(family or "none", [pair for pair in pairs if pair["family"] == family])
            for family in families
        ]
        if families not in ([], [""])
        else [],
        "variance": [variance_of([row for rows in side.values() for row in rows]) for side in sides],
        "pairs": sorted(pairs, key=lambda pair: (pair["difference"], pair["task"])),
    }


def _by_task(results: Iterable[Result]) -> dict[str, list[Result]]:
    tasks: defaultdict[str, list[Result]] = defaultdict(list)
    for row in results:
        tasks[row.task].append(row)
    return tasks


def _scored(rows: Sequence[Result]) -> list[float]:
    return [row.reward for row in rows if row.reward is not None]


def _pair(
    task: str, family: str, before: Sequence[float], after: Sequence[float], success: float
) -> dict[str, Any]:
    shares = [fmean(reward >= success for reward in rewards) for rewards in (before, after)]
    return {
        "task": task,
        "family": family,
        "episodes": [len(before), len(after)],
        "success": [round(share, 6) for share in shares],
        "reward": [round(fmean(before), 6), round(fmean(after), 6)],
        "difference": round(shares[1] - shares[0], 6),
        "reward_difference": round(fmean(after) - fmean(before), 6),
    }


def _difference(name: str, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean differences over tasks, with intervals and p-values."""
    found: dict[str, Any] = {"name": name, "tasks": len(pairs)}
    if not pairs:
        return found
    for kind, field in (("success", "difference"), ("reward", "reward_difference")):
        values = [pair[field] for pair in pairs]
        low, high = bootstrap(values, clock.seeded("compare", f"{name} {kind}"))
        found[kind] = {
            "before": round(fmean(pair[kind][0] for pair in pairs), 6),
            "after": round(fmean(pair[kind][1] for pair in pairs), 6),
            "difference": round(fmean(values), 6),
            "low": round(low, 6),
            "high": round(high, 6),
            "p": round(_p(values, f"{name} {kind}"), 6),
        }
    signs = [pair["difference"] for pair in pairs]
    return found | {
        "better": sum(each > 0 for each in signs),
        "worse": sum(each < 0 for each in signs),
        "equal": sum(each == 0 for each in signs),
    }


def _p(values: Sequence[float], seed: str) -> float:
    """Return the two-sided p-value of a mean of 0, by flipping the signs of the tasks' differences."""
    changed = [abs(value) for value in values if value]
    found = abs(sum(values)) - 1e-9  # sums of rounded values
    if len(changed) <= _EXACT:
        sums = [sum(map(mul, changed, signs)) for signs in product((-1, 1), repeat=len(changed))]
        return float(sum(abs(each) >= found for each in sums) / len(sums))
    rng = clock.seeded("compare p", seed)
    drawn = (sum(value * rng.choice((-1, 1)) for value in changed) for _ in range(_RESAMPLES))
    return (1 + sum(abs(each) >= found for each in drawn)) / (1 + _RESAMPLES)


def write_comparison(comparison: Mapping[str, Any], names: Sequence[str], path: Path) -> None:
    """Write the result of `compare` as one HTML page; `names` are those of the two rollouts."""
    rows = [comparison["all"], *comparison["families"]]
    edges = [row["success"][edge] for row in rows if "success" in row for edge in ("low", "high")]
    most = max([0.05, *map(abs, edges)])
    values = {"found": comparison, "rows": rows, "names": names, "most": most}
    write_page(path, "stillweb.trainers.batch", "compare.html.j2", **values)
