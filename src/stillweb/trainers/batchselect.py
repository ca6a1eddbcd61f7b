"""Which tasks of a file are played."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from stillweb.env.taskvalue import Task
from stillweb.errors import UsageError

__all__ = ["select_tasks"]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBER = re.compile(r"(?:^|\.)(\d+)$")


def select_tasks(tasks: Iterable[Task], ids: Sequence[str] = (), sites: Sequence[str] = ()) -> list[Task]:
    """Return the tasks that are asked for, in the order of their file.

    Args:
        tasks: to choose from.
        ids: any of them: an id (`online.85`), a pattern (`online.*`), or a number or range (`7`, `7-12`) that
            is the id or stands behind its last point.
        sites: any of them: the name of a collection, or the host of the start page.

    Raises:
        UsageError: if one of them chooses nothing.
    """
    chosen = list(tasks)
    if sites:
        known = {name for task in chosen for name in _sites(task)}
        _refuse("site", [site for site in sites if site not in known], known)
        chosen = [task for task in chosen if _sites(task) & set(sites)]
    if ids:
        wanted = {each: {task.id for task in chosen if _matches(task.id, each)} for each in ids}
        empty = [each for each, found in wanted.items() if not found]
        _refuse("task id", empty, {task.id for task in chosen})
        named = set().union(*wanted.values())
        chosen = [task for task in chosen if task.id in named]
    return chosen


def _sites(task: Task) -> set[str]:
    return {task.collection, urlsplit(task.start_url).hostname or ""} - {""}


def _matches(task_id: str, wanted: str) -> bool:
    if task_id == wanted or fnmatchcase(task_id, wanted):
        return True
    span, number = _RANGE.fullmatch(wanted), _NUMBER.search(task_id)
    return bool(span and number) and int(span[1]) <= int(number[1]) <= int(span[2] or span[1])  # type: ignore[index]


def _refuse(what: str, unknown: Sequence[str], known: Iterable[str]) -> None:
    if not unknown:
        return
    from rapidfuzz import process as fuzzy  # slow to import, and only who errs has to wait

    close = [match[0] for match in fuzzy.extract(unknown[0], sorted(known), limit=8)]
    raise UsageError(
        f"no task has the {what} {', '.join(unknown)}",
        hint=f"there are: {', '.join(close)}" if close else "stillweb env tasks FILE lists them",
    )
