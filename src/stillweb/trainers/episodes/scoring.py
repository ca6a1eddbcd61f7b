"""Scores a page that another harness drives (BrowserGym, browser-use).

The adapter reads what `looks` lists from the active page, and `score` applies the task's evaluator.
Evaluators that need other pages or an external judge are refused: an episode that cannot be scored has no
reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stillweb.env import Evidence, Score, Task
from stillweb.env.tasks.evaluators import DownloadEvaluator
from stillweb.env.tasks.evidence import Evaluator, PageQuery, PageQueryResult, plain
from stillweb.env.tasks.writes import request_evidence
from stillweb.errors import TaskError
from stillweb.model import Tier
from stillweb.urls import wire_url

_HTML = "document.documentElement.outerHTML"


def check_page_suffices(task: Task, url: str = "") -> None:
    """Raise a TaskError unless the active page is enough to score a task."""
    if task.needs:
        raise TaskError(f"task {task.id} needs {', '.join(sorted(task.needs))} to be scored")
    if task.evaluation and any(isinstance(each, DownloadEvaluator) for each in _parts(task.evaluation)):
        raise TaskError(f"task {task.id} is scored by downloads, which only Env records")
    if task.evaluation and (elsewhere := [look.url for look in task.evaluation.looks(url) if look.url]):
        raise TaskError(
            f"task {task.id} is scored by another page, {elsewhere[0]}, which only Env opens",
            hint="play it with Env or stillweb serve",
        )


def _parts(evaluation: Evaluator) -> Iterator[Evaluator]:
    yield evaluation
    for part in evaluation.parts_in:
        yield from _parts(part)


def check_start(task: Task, requests: Sequence[Mapping[str, Any]]) -> None:
    """Raise a TaskError if the ledger shows that the collection does not hold the start page."""
    missed = {entry["url"] for entry in requests if entry["tier"] == Tier.MISS}
    if wire_url(task.start_url) in missed:
        raise TaskError(f"the collection does not hold the start page {task.start_url} of task {task.id}")


def looks(task: Task, url: str) -> list[tuple[PageQuery, tuple[str, ...]]]:
    """Return what to read from the active page: each look and the scripts that read it, in order.

    The value of the last script counts; exceptions of the scripts before it are ignored.
    """
    check_page_suffices(task, url)
    wanted = dict.fromkeys(task.evaluation.looks(url) if task.evaluation else ())
    return [(look, (*look.prepare, look.script or _HTML)) for look in wanted]


def reading(look: PageQuery, value: Any = None, *, threw: str = "") -> PageQueryResult:
    """Return the value of a look, or the exception of its script."""
    if threw:
        return PageQueryResult(look, threw=threw)
    return PageQueryResult(look, plain(value), bool(value))


def requests_of(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the ledger entries of a session in the form that evaluators read."""
    return request_evidence(entries, bodies=True)


def score(
    task: Task,
    answer: str,
    url: str,
    readings: Sequence[PageQueryResult],
    requests: Sequence[Mapping[str, Any]],
) -> Score:
    """Score an episode by what was read at its end.

    Raises:
        TaskError: if that is not enough, or the collection does not hold the start page.
    """
    check_start(task, requests)
    evidence = Evidence(answer=answer, url=url, readings=tuple(readings), requests=tuple(requests))
    if task.evaluation is None:
        return Score(0.0, ("nothing is scored",), evidence)
    scored = task.evaluation.score(evidence)
    return Score(scored.reward, scored.reasons, evidence)
