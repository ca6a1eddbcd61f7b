"""Loader of WARC-Bench's task lists, as its harness reads them (sanjari-orb/warc-bench, `subtask_benchmark`).

`env.data_path` names the archive, and `env.timestamp` (a protobuf timestamp) the initial time of the page's
clock. Only the first of `eval.evaluate_scripts` is used. The harness's browser has the time zone of its
machine: the tasks were recorded in UTC, except for those whose script names another zone. The viewport of the
recordings is 1280x720.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.errors import TaskError


def warc_bench_tasks(entries: Iterable[Any], *, source: str = "warc-bench") -> list[Task]:
    """Read the entries of a WARC-Bench list as tasks.

    In merged lists several tasks have the same id; the second and later ones get the suffix `~2`, `~3`.

    Raises:
        TaskError: naming source and index of the first entry that is wrong.
    """
    seen: Counter[str] = Counter()
    tasks = []
    for index, entry in enumerate(entries):
        where = f"{source}#{index}"
        tasks.append(_task(_FieldReader(entry, where), where, seen))
    return tasks


_KINDS = {
    "js_matcher": EvalKind.JS,
    "string_matcher": EvalKind.STRING,
    "json_matcher": EvalKind.JSON,
    "url_matcher": EvalKind.URL,
}
_VIEWPORT = (1280, 720)
# Chromium's names of zones in `String(new Date())`, as far as the tasks contain them.
_ZONES = {
    "(Pacific Daylight Time)": "America/Los_Angeles",
    "(Pacific Standard Time)": "America/Los_Angeles",
}


class _FieldReader:
    """Reader of a JSON object's fields; its errors name place and field."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise TaskError(f"{where}: {type(value).__name__} where an object is expected")
        self._value = value
        self._where = where

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{self._where}: {name!r} must be a text that is not empty, it is {value!r}")
        return value

    def object(self, name: str) -> _FieldReader:
        if name not in self._value:
            raise TaskError(
                f"{self._where}: {name!r} is missing", hint="the form of a task: docs/reference/tasks.md"
            )
        return _FieldReader(self._value[name], f"{self._where}: {name}")

    def first(self, name: str) -> _FieldReader:
        value = self._value.get(name)
        if not isinstance(value, list) or not value:
            raise TaskError(f"{self._where}: {name!r} must be a list that is not empty, it is {value!r}")
        return _FieldReader(value[0], f"{self._where}: {name}[0]")

    def timestamp(self, name: str) -> datetime | None:
        value = self._value.get(name)
        if value is None:
            return None
        seconds = value.get("seconds") if isinstance(value, Mapping) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TaskError(f"{self._where}: {name!r} must have the seconds since 1970, it is {value!r}")
        try:
            return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, ValueError, OSError) as error:
            raise TaskError(f"{self._where}: {name!r} is not a time: {error}") from error


def _task(entry: _FieldReader, where: str, seen: Counter[str]) -> Task:
    env, evaluation = entry.object("env"), entry.object("eval")
    kind = evaluation.text("eval_type")
    if kind not in _KINDS:
        raise TaskError(f"{where}: eval_type {kind!r} is none of {', '.join(_KINDS)}")
    script = evaluation.first("evaluate_scripts").text("script")
    if kind == "json_matcher":
        _check_json(script, where)
    start_url = env.text("start_url")
    if "://" not in start_url:
        raise TaskError(f"{where}: start_url {start_url!r} is not an absolute URL")
    task_id = entry.text("task_id")
    seen[task_id] += 1
    return Task(
        id=task_id if seen[task_id] == 1 else f"{task_id}~{seen[task_id]}",
        goal=entry.text("goal"),
        start_url=start_url,
        collection=PurePosixPath(env.text("data_path")).stem,
        evaluation=Evaluation(_KINDS[kind], script),
        start=env.timestamp("timestamp"),
        timezone=next((zone for name, zone in _ZONES.items() if name in script), "UTC"),
        viewport=_VIEWPORT,
        source=where,
    )


def _check_json(text: str, where: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise TaskError(f"{where}: the expected JSON is none: {error}") from error
