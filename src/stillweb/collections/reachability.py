"""`reachability.jsonl` of a collection: which actions in which states the archive answers.

One JSON object per line, version 1, appended while the explorer runs: a `state` line for each state entered,
an `action` line for each action tried or deliberately skipped. Readers ignore a line that a kill truncated;
the last line about a state or action counts. The explorer resumes from the file, `stillweb collections
reachability` shows it, and replay can be checked against it (docs/how-to/explore.md).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from stillweb.collections.limits import load_json
from stillweb.errors import CollectionError

FILE = "reachability.jsonl"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ReachedState:
    """A state that the explorer entered.

    Attributes:
        state: its digest (`stillweb.browser.input.controls`).
        path: actions that lead to it from an empty tab; a single "open" if it has a URL.
        controls: number of controls to act on.
        mutated: whether the path changes the site, by a POST for example.
        note: an anomaly, such as a state that could not be reached again.
    """

    state: str
    url: str
    path: tuple[Mapping[str, Any], ...]
    controls: int = 0
    mutated: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class TriedAction:
    """An action in a state.

    Attributes:
        action: in the format of `stillweb.browser.input.walker.Act`.
        description: for people, such as `click link "Next"`.
        requests: [method, URL] of its requests.
        unanswered: those without a recorded response.
        next: state after it; "" if not determined.
        how: "tried"; "recorded" for a link to a recorded page; else why it was not tried.
        error: why the page did not allow it.
    """

    state: str
    action: Mapping[str, Any]
    description: str
    requests: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    next: str = ""
    how: str = "tried"
    error: str = ""

    @property
    def answered(self) -> bool | None:
        """True if the archive answers it; None if it was not tried."""
        return not self.unanswered if self.how in ("tried", "recorded") else None


@dataclass(slots=True)
class ReachabilityMap:
    """The map of states and actions.

    Attributes:
        states: by digest, in the order of discovery.
        actions: by state and action, in the order of trials.
    """

    states: dict[str, ReachedState] = field(default_factory=dict)
    actions: dict[tuple[str, str], TriedAction] = field(default_factory=dict)

    def add(self, line: ReachedState | TriedAction) -> None:
        if isinstance(line, ReachedState):
            self.states[line.state] = line
        else:
            self.actions[line.state, _name(line.action)] = line

    def of(self, state: str) -> list[TriedAction]:
        return [each for each in self.actions.values() if each.state == state]

    def tried(self, state: str, action: Mapping[str, Any]) -> bool:
        return (state, _name(action)) in self.actions

    def summary(self) -> dict[str, Any]:
        """Return counts: states, actions by result, share answered, dead ends."""
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


def to_line(line: ReachedState | TriedAction) -> str:
    kind = "state" if isinstance(line, ReachedState) else "action"
    usual = {each.name: each.default for each in fields(line)}
    members = {name: value for name, value in asdict(line).items() if value != usual[name]}
    return (
        json.dumps({"version": VERSION, "kind": kind, **members}, ensure_ascii=False, sort_keys=True) + "\n"
    )


def read_reachability(path: Path) -> ReachabilityMap:
    """Read a map; an empty one if the file is missing.

    Raises:
        CollectionError: at an invalid line, except a truncated last one.
    """
    reach = ReachabilityMap()
    if not path.exists():
        return reach
    lines = path.read_text("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            reach.add(_read(load_json(line.encode("utf-8", "surrogatepass"), path=path)))
        except (KeyError, TypeError, ValueError) as error:
            if number == len(lines):
                break  # no line end: the process was killed while writing it
            raise CollectionError(
                f"line {number} is not part of a reachability map: {error!r}",
                path=path,
                hint=f"rm {path}, then explore again: stillweb record explore",
            ) from error
    return reach


def _read(loaded: Mapping[str, Any]) -> ReachedState | TriedAction:
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
    return TriedAction(
        loaded["state"],
        loaded["action"],
        loaded["description"] if "description" in loaded else loaded["told"],  # older maps
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
