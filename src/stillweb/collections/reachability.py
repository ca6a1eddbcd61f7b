"""`reachability.jsonl` of a collection: which actions from which state have an answer in the archive.

One JSON object a line, version 1, appended while the explorer goes: `state` lines for what was entered,
`action` lines for what was tried there or deliberately was not. A line that a kill has cut off is passed
over; of several lines on one thing the last one counts. The explorer goes on from it, `stillweb collections
reachability` shows it, and its replay can be checked against it (docs/explore.md).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stillweb.errors import CollectionError

__all__ = ["FILE", "VERSION", "Reach", "ReachedState", "Tried", "read_reach", "to_line"]

FILE = "reachability.jsonl"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ReachedState:
    """A state that was entered.

    Attributes:
        state: its digest (`stillweb.browser.input.controls`).
        path: the acts that lead to it from an empty tab; one "open" where it is an address.
        controls: how many there are to act on.
        mutated: whether the way to it changes the site: a POST or the like.
        note: what was odd, such as a state that was not met again.
    """

    state: str
    url: str
    path: tuple[Mapping[str, Any], ...]
    controls: int = 0
    mutated: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """An action in a state.

    Attributes:
        state: in which it is offered.
        action: as `stillweb.browser.input.walker.Act` reads it.
        told: for people.
        requests: [method, URL] of what it asked for.
        unanswered: those of them that got no answer that was recorded.
        next: state after it; "" if nobody looked.
        how: "tried"; "recorded" for a link to what is recorded; else why it was not tried.
        error: why the page did not let it happen.
    """

    state: str
    action: Mapping[str, Any]
    told: str
    requests: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    next: str = ""
    how: str = "tried"
    error: str = ""

    @property
    def answered(self) -> bool | None:
        """Whether the archive answers it; None for what was not tried."""
        return not self.unanswered if self.how in ("tried", "recorded") else None


@dataclass(slots=True)
class Reach:
    """The map.

    Attributes:
        states: by digest, in the order of their finding.
        actions: by state and action, in the order of their trying.
    """

    states: dict[str, ReachedState] = field(default_factory=dict)
    actions: dict[tuple[str, str], Tried] = field(default_factory=dict)

    def add(self, line: ReachedState | Tried) -> None:
        """Take in a line."""
        if isinstance(line, ReachedState):
            self.states[line.state] = line
        else:
            self.actions[line.state, _name(line.action)] = line

    def of(self, state: str) -> list[Tried]:
        """Return the actions of a state."""
        return [each for each in self.actions.values() if each.state == state]

    def tried(self, state: str, action: Mapping[str, Any]) -> bool:
        """Return whether an action is on the map."""
        return (state, _name(action)) in self.actions

    def summary(self) -> dict[str, Any]:
        """Return counts: states, actions by what became of them, share answered, dead ends."""
        hows = Counter(each.how for each in self.actions.values())
        judged = [each.answered for each in self.actions.values() if each.answered is not None]
        asking = [each for each in self.actions.values() if each.answered is not None and each.requests]
        ways = {each.state for each in self.actions.values() if each.answered and not each.error}
        return {
            "states": len(self.states),
            "mutated_states": sum(state.mutated for state in self.states.values()),
            "actions": len(self.actions),
            "by_how": dict(sorted(hows.items())),
            "answered": sum(judged),
            "unanswered": len(judged) - sum(judged),
            "asking": len(asking),
            "share_answered": round(sum(judged) / len(judged), 4) if judged else None,
            "dead_ends": sum(state not in ways for state in self.states),
        }


def to_line(line: ReachedState | Tried) -> str:
    """Return a line of the file."""
    kind = "state" if isinstance(line, ReachedState) else "action"
    usual = {each.name: each.default for each in fields(line)}
    told = {name: value for name, value in asdict(line).items() if value != usual[name]}
    return json.dumps({"version": VERSION, "kind": kind, **told}, ensure_ascii=False, sort_keys=True) + "\n"


def read_reach(path: Path) -> Reach:
    """Read a map; an empty one if there is no file.

    Raises:
        CollectionError: at a line that is none, but for a last one that was cut off.
    """
    reach = Reach()
    if not path.exists():
        return reach
    lines = path.read_text("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            reach.add(_read(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            if number == len(lines):
                break  # no line end: a kill came between
            raise CollectionError(
                f"line {number} is none of a reachability map: {error!r}",
                path=path,
                hint=f"rm {path}, and explore again: stillweb record explore",
            ) from error
    return reach


def _read(loaded: Mapping[str, Any]) -> ReachedState | Tried:
    if loaded["version"] != VERSION:
        raise ValueError(f"version {loaded['version']!r}, not {VERSION}")
    if loaded["kind"] == "state":
        return ReachedState(
            loaded["state"],
            loaded["url"],
            tuple(loaded["path"]),
            int(loaded.get("controls", 0)),
            bool(loaded.get("mutated", False)),
            loaded.get("note", ""),
        )
    return Tried(
        loaded["state"],
        loaded["action"],
        loaded["told"],
        _pairs(loaded.get("requests", ())),
        _pairs(loaded.get("unanswered", ())),
        loaded.get("next", ""),
        loaded.get("how", "tried"),
        loaded.get("error", ""),
    )


def _pairs(given: Iterable[Iterable[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(method), str(url)) for method, url in given)


def _name(action: Mapping[str, Any]) -> str:
    return json.dumps(action, sort_keys=True)
