"""Values for form fields: from files that people wrote, else a typical value for the type. Pure.

A values file is YAML:

    fields:
      q: [kettle, lamp]            # by name, id, placeholder or label, ignoring case; * and ? as in file
          names
      "*": [Ada, "7"]              # any field that takes text

A task file is accepted too (a list, or `tasks:`). Quoted words of a goal are typed into every text field, and
parameters of start URLs into the fields of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from stillweb.browser.input.controls import Control
from stillweb.errors import UsageError
from stillweb.options import Option

ANY = "*"
_TYPICAL = {
    "email": "ada@example.com",
    "number": "1",
    "range": "1",
    "tel": "5550100",
    "url": "https://site.example/",
    "date": "2024-01-15",
    "datetime-local": "2024-01-15T10:00",
    "month": "2024-01",
    "week": "2024-W03",
    "time": "10:00",
    "color": "#3366cc",
    "password": "Ada-lovelace-1815",
}
_USUAL = "test"
_FREE = frozenset(("", "text", "search", "textarea", "password"))  # types that take any text
_QUOTED = re.compile(
    "[\"'\u201c\u201e\u2018]([^\"'\u201c-\u201e\u2018\u2019\n]{1,60})[\"'\u201c\u201d\u2019]"
)
_GOALS = ("goal", "intent", "question", "instruction")


@dataclass(frozen=True, slots=True)
class Values:
    """Values by lower-case glob of a field's name."""

    by_name: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def for_field(self, control: Control) -> tuple[str, ...]:
        """Return the values for a field: those of its names, then those of any field, else a typical one."""
        kind = control.field.type if control.field else ""
        return self.named((*control.label, control.name), kind)

    def named(self, called: Iterable[str], kind: str) -> tuple[str, ...]:
        """Return at least one value for a field with these names; `kind` is its DOM type."""
        names = [name.casefold() for name in called if name]
        own = [
            value
            for glob, values in self.by_name.items()
            if glob != ANY and any(fnmatchcase(name, glob) for name in names)
            for value in values
        ]
        free = self.by_name.get(ANY, ()) if kind in _FREE else ()
        return tuple(dict.fromkeys((*own, *free))) or (_TYPICAL.get(kind, _USUAL),)


def read_values(paths: Iterable[Path]) -> Values:
    """Read value files and task files.

    Raises:
        UsageError: if a file is neither.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        try:
            loaded = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeError, RecursionError, yaml.YAMLError) as error:
            raise UsageError(f"{path} cannot be read as YAML: {error}", hint=_HINT) from error
        tasks = loaded.get("tasks") if isinstance(loaded, dict) else loaded
        if isinstance(loaded, dict) and isinstance(loaded.get("fields"), dict):
            _take_fields(found, loaded["fields"], path)
        elif isinstance(tasks, list):
            _take_tasks(found, tasks)
        else:
            raise UsageError(f"{path} has neither `fields:` nor tasks", hint=_HINT)
    return Values({name: tuple(dict.fromkeys(values)) for name, values in found.items()})


_HINT = 'write, say:  fields: {q: [kettle, lamp], "*": [Ada]}'


def _take_fields(found: dict[str, list[str]], fields: Mapping[Any, Any], path: Path) -> None:
    for name, values in fields.items():
        listed = values if isinstance(values, list) else [values]
        if not all(isinstance(value, str | int | float) for value in listed):
            raise UsageError(f"{path}: values of {name!r} are not texts", hint=_HINT)
        found.setdefault(str(name).casefold(), []).extend(map(str, listed))


def _take_tasks(found: dict[str, list[str]], tasks: Iterable[Any]) -> None:
    for task in tasks:
        if not isinstance(task, dict):
            continue
        for goal in (task[name] for name in _GOALS if isinstance(task.get(name), str)):
            found.setdefault(ANY, []).extend(_QUOTED.findall(goal))
        start = task.get("start_url")
        for name, value in parse_qsl(urlsplit(start).query) if isinstance(start, str) else ():
            found.setdefault(name.casefold(), []).append(value)


FormValues = Annotated[
    Values,
    Option(
        "YAML file of field names and values to fill forms with, or a task file. Repeatable.",
        path="existing file",
        parse=read_values,
        repeat=True,
    ),
]
"""The option `--values` of a dataclass."""
