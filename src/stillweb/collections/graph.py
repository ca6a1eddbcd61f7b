"""The state graph of a collection: its states, the writes between them, and which of these are uncertain.

A recording is one line of states: each recorded write leads to the next one, in the order of recording
(docs/decisions/0006-epochs-not-counters.md). The forms of `record forms` add branches, each from the start
state or from the state after other forms (docs/decisions/0026-derived-answers.md). A write is uncertain if
the site may have been changed by another browser context before it: the state that it leaves from is then not
the one that the graph shows.

`picture` draws it as one HTML page with one SVG, without scripts. The recorded line goes down on the left;
equal writes in a row are one arrow. Branches go to the right, one column for each form in a row. Dashed
arrows are uncertain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
    writes.sort(key=Capture.in_time)
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


_STEP, _BOX, _WIDTH, _GAP = 64, 48, 300, 60
_LEFT, _TOP, _LINE = 24, 24, 420  # width of the recorded line with its labels
_LABEL = 28  # height of a label between two states of the line
_FITS = 40  # characters of a box or a label

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #1d2733; background: #fff; }
h1 { font-size: 20px; margin: 0 0 4px; } p { margin: 0 0 12px; color: #4b5a6b; }
svg { font: 12px system-ui, sans-serif; } text { fill: #1d2733; } .soft { fill: #5b6b7d; }
.mono { font-family: ui-monospace, monospace; font-size: 11px; fill: #5b6b7d; }
rect { fill: #f3f6fa; stroke: #8fa1b5; } .start rect { fill: #dcebff; stroke: #2f6fd0; }
.template rect { fill: #e5f6ea; stroke: #2d9a57; } .branch rect { fill: #fff6df; stroke: #c79a1a; }
path { fill: none; stroke: #6b7c90; stroke-width: 1.5; }
.uncertain { stroke: #c4561d; stroke-dasharray: 6 4; }
.key { display: inline-block; width: 28px; height: 10px; margin: 0 6px 0 16px; border: 1px solid #8fa1b5; }
"""
_LEGEND = (
    '<p><span class="key" style="background:#f3f6fa;margin-left:0"></span>state after recorded writes'
    '<span class="key" style="background:#e5f6ea"></span>state after a form with any covered value'
    '<span class="key" style="background:#fff6df"></span>state after a form as recorded'
    '<span class="key" style="border:0;border-top:2px dashed #c4561d;height:0;vertical-align:middle"></span>'
    "another context may have changed the site before</p>"
)


@dataclass(slots=True)
class _Drawing:
    parts: list[str] = field(default_factory=list)
    width: int = 0
    height: int = 0

    def box(self, x: int, y: int, kind: str, title: str, lines: tuple[str, str]) -> None:
        self.width, self.height = max(self.width, x + _WIDTH), max(self.height, y + _BOX)
        self.parts.append(
            f'<g class="{kind}"><title>{escape(title)}</title>'
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_BOX}" rx="6"/>'
            f'<text x="{x + 10}" y="{y + 20}">{escape(_cut(lines[0]))}</text>'
            f'<text class="mono" x="{x + 10}" y="{y + 37}">{escape(_cut(lines[1]))}</text></g>'
        )

    def arrow(self, path: str, edge: StateEdge) -> None:
        mark = ' class="uncertain"' if edge.uncertain else ""
        title = f"<title>{escape(edge.uncertain)}</title>" if edge.uncertain else ""
        self.parts.append(f'<path{mark} marker-end="url(#head)" d="{path}">{title}</path>')


def picture(graph: StateGraph) -> str:
    drawing = _Drawing()
    _draw_line(drawing, graph)
    _draw_branches(drawing, graph)
    recorded = sum(each.kind == "recorded" for each in graph.edges)
    uncertain = sum(bool(each.uncertain) for each in graph.edges)
    summary = (
        f"{len(graph.states)} states, {recorded} recorded writes, {len(graph.edges) - recorded} forms, "
        f"{uncertain} uncertain"
    )
    width, height = drawing.width + _LEFT, drawing.height + _TOP
    head = '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
    head += ' orient="auto"><polygon points="0 0 8 4 0 8" fill="#6b7c90"/></marker>'
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(graph.name)}: states</title>'
        f"<style>{_STYLE}</style><h1>{escape(graph.name)}</h1><p>{summary}</p>{_LEGEND}"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(summary)}"><defs>{head}</defs>{"".join(drawing.parts)}</svg></html>\n'
    )


def _draw_line(drawing: _Drawing, graph: StateGraph) -> None:
    states = {each.id: each for each in graph.states}
    line = [each for each in graph.edges if each.kind == "recorded"]
    start = states[START]
    drawing.box(_LEFT, _TOP, "start", START, ("start", f"{start.reads} reads"))
    y = _TOP
    x = _LEFT + 24
    for (_, source), run in groupby(line, key=lambda each: (_what(each), each.source == START)):
        edges = list(run)
        first, last = edges[0], edges[-1]
        y += _STEP + _LABEL
        drawing.arrow(f"M{x} {y - _LABEL - _STEP + _BOX} V{y}" if not source else _from_start(y), first)
        times = f" \u00d7{len(edges)}" if len(edges) > 1 else ""
        drawing.parts.append(
            f'<text class="soft" x="{x + 10}" y="{y - 8}">{escape(_cut(_what(first)))}{times}</text>'
        )
        reads = sum(states[each.target].reads for each in edges)
        title = f"{first.method} {first.url}\nkey {first.key}"
        drawing.box(_LEFT, y, "recorded", title, (last.target, f"key {last.key[:12]}, {reads} reads"))


def _from_start(y: int) -> str:
    """Return the arrow from the start state to a recorded state further down, on the left of the boxes."""
    middle = _TOP + _BOX // 2
    if y < _TOP + 2 * _STEP:
        return f"M{_LEFT + 24} {_TOP + _BOX} V{y}"
    return f"M{_LEFT} {middle} H{_LEFT - 12} V{y + _BOX // 2} H{_LEFT}"


def _draw_branches(drawing: _Drawing, graph: StateGraph) -> None:
    states = {each.id: each for each in graph.states}
    after: dict[str, list[StateEdge]] = {}
    for edge in graph.edges:
        if edge.kind != "recorded":
            after.setdefault(edge.source, []).append(edge)

    def draw(edge: StateEdge, column: int, row: int) -> int:
        """Draw an edge, its state and what follows; return the next free row."""
        x, y = _LEFT + _LINE + column * (_WIDTH + _GAP), _TOP + row * _STEP
        _draw_state(drawing, edge, states[edge.target], x, y)
        end = row
        for child in after.get(edge.target, ()):
            x_out, y_in = x + _WIDTH, _TOP + end * _STEP + _BOX // 2
            bend = x_out + _GAP // 2
            drawing.arrow(f"M{x_out} {y + _BOX // 2} H{bend} V{y_in} H{x_out + _GAP}", child)
            end = draw(child, column + 1, end)
        return max(end, row + 1)

    row = 0
    for edge in after.get(START, ()):
        y = _TOP + row * _STEP + _BOX // 2
        bend = _LEFT + _LINE - _GAP // 2
        drawing.arrow(f"M{_LEFT + _WIDTH} {_TOP + _BOX // 2} H{bend} V{y} H{_LEFT + _LINE}", edge)
        row = draw(edge, 0, row)


def _draw_state(drawing: _Drawing, edge: StateEdge, state: StateNode, x: int, y: int) -> None:
    fields = ", ".join(edge.fields)
    title = f"{edge.name}\n{edge.method} {edge.url}\nkey {edge.key}\nfields: {fields or '-'}"
    second = f"key {edge.key[:12]}, {state.reads} pages" + (f", {{{fields}}}" if fields else "")
    drawing.box(x, y, edge.kind, title, (_short(edge), second))


def _short(edge: StateEdge) -> str:
    """Return the name of a form without its host."""
    host = urlsplit(edge.url)
    return edge.name.replace(f"{host.scheme}://{host.netloc}", "")


def _what(edge: StateEdge) -> str:
    return f"{edge.method} {urlsplit(edge.url).path}"


def _cut(text: str) -> str:
    return text if len(text) <= _FITS else f"{text[: _FITS - 1]}\u2026"
