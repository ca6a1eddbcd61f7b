"""The state graph of a collection: its states, the writes between them, and which of these are uncertain.

A recording is one line of states: each recorded write leads to the next one, in the order of recording
(docs/decisions/0006-epochs-not-counters.md). The forms of `record forms` add branches, each from the start
state or from the state after other forms (docs/decisions/0026-derived-answers.md). A write is uncertain if
the site may have been changed by another browser context before it: the state that it leaves from is then not
the one that the graph shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.collections.branches import read_forms
from stillweb.collections.layout import Collection
from stillweb.matching.derived.branch import Branch
from stillweb.model import MUTATIONS, Capture
from stillweb.urls import to_timestamp

START = "start"
_RESETS = "resets.txt"
_NOT_RESET = "the site was not put back before it, so that another context may have changed the site"


@dataclass(frozen=True, slots=True)
class StateNode:
    """A state of the site.

    Attributes:
        id: `start`, `recorded N` after N recorded writes, or the names of the forms that lead to it.
        kind: `start`, `recorded` or `branch`.
        reads: captures of reads in the state, or pages of a branch.
    """

    id: str
    kind: str
    reads: int


@dataclass(frozen=True, slots=True)
class StateEdge:
    """A write between two states.

    Attributes:
        key: structural request key, hex; of a form's template, the identity without values.
        kind: `recorded`, `branch` (as recorded) or `template` (for other values too).
        fields: free fields of a template.
        uncertain: why its first state may be another one, "" if it is certain.
    """

    source: str
    target: str
    key: str
    method: str
    url: str
    kind: str
    name: str = ""
    fields: tuple[str, ...] = ()
    uncertain: str = ""


@dataclass(frozen=True, slots=True)
class StateGraph:
    """States and writes of a collection, in recorded order."""

    name: str
    states: tuple[StateNode, ...]
    edges: tuple[StateEdge, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as JSON."""
        return {
            "collection": self.name,
            "states": [asdict(each) for each in self.states],
            "edges": [asdict(each) for each in self.edges],
        }


def note_reset(collection: Collection) -> None:
    """Note that the site was put back now; a later write starts from its first state."""
    with _resets(collection).open("a", encoding="ascii") as file:
        file.write(f"{to_timestamp(clock.now())}\n")


def graph_of(collection: Collection) -> StateGraph:
    """Return the state graph of a collection.

    Raises:
        CollectionError: if its branches cannot be read.
    """
    resets = _resets(collection)
    times = resets.read_text("ascii").split() if resets.exists() else []
    states, edges = _line(collection.captures(), times)
    forms = read_forms(collection)
    branches = _branches(forms.branches, uncertain="" if forms.reset else _NOT_RESET) if forms else ([], [])
    return StateGraph(collection.name, (*states, *branches[0]), (*edges, *branches[1]))


def _resets(collection: Collection) -> Path:
    return collection.path / _RESETS


def _line(captures: Iterable[Capture], resets: Sequence[str]) -> tuple[list[StateNode], list[StateEdge]]:
    """Return the start state, the recorded states, and the writes between them."""
    writes: list[Capture] = []
    reads: list[str] = []
    for capture in captures:
        if capture.method in MUTATIONS:
            writes.append(capture)
        else:
            reads.append(capture.timestamp)
    writes.sort(key=lambda each: (each.timestamp, each.source, each.offset))
    reads.sort()
    states, edges = [], []
    at = taken = 0
    for number in range(len(writes) + 1):
        until = writes[number].timestamp if number < len(writes) else None
        while at < len(reads) and (until is None or reads[at] < until):
            at += 1
        states.append(StateNode(_recorded(number), "recorded" if number else START, at - taken))
        taken = at
    for number, write in enumerate(writes):
        before = writes[number - 1].timestamp if number else ""
        is_first = not number or any(before <= each <= write.timestamp for each in resets)
        edges.append(
            StateEdge(
                START if is_first else _recorded(number),
                _recorded(number + 1),
                write.key,
                write.method,
                write.url,
                "recorded",
                uncertain="" if is_first else _NOT_RESET,
            )
        )
    return states, edges


def _recorded(number: int) -> str:
    return f"recorded {number}" if number else START


def _branches(branches: Sequence[Branch], *, uncertain: str) -> tuple[list[StateNode], list[StateEdge]]:
    ordered = sorted((each for each in branches if not each.searches), key=lambda each: len(each.path))
    states = [StateNode(" then ".join(each.path), "branch", len(each.reads)) for each in ordered]
    edges = [
        StateEdge(
            " then ".join(each.after) or START,
            " then ".join(each.path),
            sha256(bytes.fromhex(each.write.identity)).hexdigest()[:32],
            each.write.method,
            each.write.url,
            "template" if each.fields else "branch",
            each.name,
            tuple(field.name for field in each.fields[each.own :]),
            uncertain,
        )
        for each in ordered
    ]
    return states, edges
