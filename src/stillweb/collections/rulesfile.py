"""The file format of rules: YAML, version 1, read with line numbers and written in one fixed form.

    version: 1
    defaults: true            # stillweb's own rules hold too; true if left out
    volatile:
      - {where: query, name: ts, shape: milliseconds, host: shop.test, path: "/api/*", origin: learned}
    polls:
      - {host: shop.test, path: /api/status}

Every value is text as it stands in the file, so that a parameter named `no` or `1e3` needs no quotes. What
the members mean is in `rules`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from stillweb.errors import CollectionError

__all__ = ["Lines", "Loaded", "Members", "parse"]

VERSION = "1"
_HINT = "docs/volatility.md says what a rule looks like"
_BARE = re.compile(r"[A-Za-z0-9_/.][A-Za-z0-9_/.-]*")
_SECTIONS = ("version", "defaults", "volatile", "polls")
_KNOWN = {
    "volatile": frozenset({"where", "name", "shape", "host", "path", "method", "origin", "evidence"}),
    "polls": frozenset({"host", "path", "query"}),
}


@dataclass(frozen=True, slots=True)
class _Place:
    file: str | os.PathLike[str]
    line: int

    def error(self, what: str) -> CollectionError:
        return CollectionError(f"line {self.line}: {what}", path=self.file, hint=_HINT)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of one rule, as texts; errors name the line."""

    values: Mapping[str, str]
    place: _Place

    def error(self, name: str, what: str) -> CollectionError:
        """Return an error that names the line of the rule and one of its members."""
        return self.place.error(f"{name} {what}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a member.

        Raises:
            CollectionError: if it is not there and has no default.
        """
        value = self.values.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        return value

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return a member that must be one of some words."""
        value = self.text(name, default)
        if value not in choices:
            raise self.error(name, f"is {value!r}, not one of {', '.join(choices)}")
        return value


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file says, not yet understood."""

    volatile: tuple[Members, ...] = ()
    polls: tuple[Members, ...] = ()
    defaults: bool = True


def parse(text: str, file: str | os.PathLike[str]) -> Loaded:
    """Read the text of a rules file; an empty one has no rules.

    Raises:
        CollectionError: if it is not of this format, with file and line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _Place(file, line).error(f"not YAML ({error.problem})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise _Place(file, 1).error(f"not YAML ({error})") from None
    if root is None:
        return Loaded()
    top = _mapping(root, file, frozenset(_SECTIONS))
    version = _scalar(top["version"], file) if "version" in top else "none"
    if version != VERSION:
        raise _Place(file, 1).error(f"version is {version}, this stillweb reads {VERSION}")
    defaults = _scalar(top["defaults"], file) if "defaults" in top else "true"
    if defaults not in ("true", "false"):
        raise _at(top["defaults"], file).error(f"defaults is {defaults!r}, not true or false")
    volatile, polls = (_rules(top.get(name), file, _KNOWN[name]) for name in ("volatile", "polls"))
    return Loaded(volatile, polls, defaults == "true")


def _rules(
    node: yaml.Node | None, file: str | os.PathLike[str], known: frozenset[str]
) -> tuple[Members, ...]:
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null")):
        return ()
    if not isinstance(node, yaml.SequenceNode):
        raise _at(node, file).error("not a list of rules")
    found = []
    for item in node.value:
        members = {name: _scalar(value, file) for name, value in _mapping(item, file, known).items()}
        found.append(Members(members, _at(item, file)))
    return tuple(found)


def _mapping(node: yaml.Node, file: str | os.PathLike[str], known: frozenset[str]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _at(node, file).error("not a mapping of names to values")
    members: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _scalar(key, file)
        if name not in known or name in members:
            what = "is there twice" if name in members else f"is not one of {', '.join(sorted(known))}"
            raise _at(key, file).error(f"{name!r} {what}")
        members[name] = value
    return members


def _scalar(node: yaml.Node, file: str | os.PathLike[str]) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _at(node, file).error("a list or mapping where a text is due")
    return str(node.value)


def _at(node: yaml.Node, file: str | os.PathLike[str]) -> _Place:
    return _Place(file, node.start_mark.line + 1)


class Lines:
    """The lines of a rules file that is being written."""

    def __init__(self, *, defaults: bool) -> None:
        self._lines = [f"version: {VERSION}"]
        if not defaults:
            self._lines.append("defaults: false")

    def section(self, name: str, rules: Iterable[Mapping[str, str]]) -> None:
        """Add a list of rules, one on a line; nothing if there are none."""
        lines = [
            "  - {" + ", ".join(f"{key}: {_spelled(value)}" for key, value in members.items()) + "}"
            for members in rules
        ]
        if lines:
            self._lines += [f"{name}:", *lines]

    def text(self) -> str:
        """Return the whole file."""
        return "\n".join(self._lines) + "\n"


def _spelled(text: str) -> str:
    if _BARE.fullmatch(text):
        return text
    # YAML reads JSON's escapes, but not its surrogate pairs as one character.
    return '"' + "".join(char if ord(char) > 0xFFFF else json.dumps(char)[1:-1] for char in text) + '"'
