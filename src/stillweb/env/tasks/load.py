"""Loader of task files; the form is recognised by the content.

    a list of objects with `env` and `eval`            WARC-Bench        formats/warcbench.py
    a list of objects with `sites` and `eval`          WebArena          formats/webarena.py
    the same, `eval` being a list                      webarena-verified formats/verified.py
    an object with `stillweb_tasks: 1` (JSON or YAML)  our own           native.py

MiniWoB++ has no file: its pages are its tasks (`tasks/miniwob.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stillweb.collections.limits import load_json
from stillweb.env.tasks.formats.warcbench import warc_bench_tasks
from stillweb.env.tasks.formats.webarena import webarena_tasks
from stillweb.env.tasks.native import native_tasks
from stillweb.env.tasks.task import Task
from stillweb.errors import TaskError


def load_tasks(
    path: Path | str, *, sites: Mapping[str, str] | None = None, collections: Mapping[str, str] | None = None
) -> list[Task]:
    """Read a task file of any of these forms.

    Args:
        path: a JSON file, or a YAML file if the name ends in .yaml or .yml.
        sites: URL for each of WebArena's placeholders: {"SHOPPING": "http://shop.example", ...}.
        collections: collection for each of WebArena's sites: {"shopping": "shop", ...}.

    Raises:
        TaskError: if the file cannot be read or an entry is wrong; the message names file and place.
        LimitExceeded: if it has too many lists and objects.
    """
    path = Path(path)
    text = _read(path)
    if path.suffix in (".yaml", ".yml"):
        return native_tasks(text, source=str(path))
    try:
        entries = load_json(text.encode(), path=path)
    except ValueError as error:
        raise TaskError(f"{path}: not JSON: {error}") from error
    if isinstance(entries, Mapping):
        return native_tasks(text, source=str(path))
    if not isinstance(entries, list):
        raise TaskError(
            f"{path}: a {type(entries).__name__} where a list of tasks is expected",
            hint="the forms of a task file: docs/reference/tasks.md",
        )
    if _is_webarena(entries):
        return webarena_tasks(entries, sites=sites or {}, collections=collections or {}, source=str(path))
    return warc_bench_tasks(entries, source=str(path))


def _is_webarena(entries: list[Any]) -> bool:
    return bool(entries) and isinstance(entries[0], Mapping) and "sites" in entries[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TaskError(f"{path}: not UTF-8: {error}") from error
