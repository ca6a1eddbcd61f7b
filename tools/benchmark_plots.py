"""Draw a bar chart of the main table of benchmark pages; with --check, fail if one is stale.

The values are those of the table, so picture and table cannot differ.
"""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PAGES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
_WIDTH, _LABELS, _VALUES, _BAR, _GAP = 760, 270, 70, 14, 10
_COLOURS = ("#2b6cb0", "#dd8a1b", "#8a8f98", "#3c8d5a")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Plot:
    """A chart of one table.

    Attributes:
        page: name of the page, and of the picture.
        title: heading of the chart, with the unit.
        columns: columns of the table, by their headings; a bar for each.
        series: names of the bars, if a cell of a single column has several numbers, or other names.
        labels: number of first columns that name a row.
        log: whether the axis is logarithmic.
        rows: number of rows that are drawn, from the first.
        across: whether the bars of a row compare its columns, so that columns are the labels.
    """

    page: str
    title: str
    columns: tuple[str, ...]
    series: tuple[str, ...] = ()
    labels: int = 1
    log: bool = False
    rows: int = 99
    across: bool = False


PLOTS = (
    Plot("coverage", "Steps that missed, in % of the steps that requested something", ("miss rate",)),
    Plot("determinism", "ms of a step by sessions, median", ("1 session", "8", "32", "32, loaded"), log=True),
    Plot("env", "Seconds", ("reset, s", "step, s"), log=True),
    Plot("made-tasks", "Candidates planned, before and after", ("planned before", "planned"), log=True),
    Plot("observations", "ms of an observation, median", ("page: median", "viewport: median")),
    Plot("record", "Pages a minute, one at a time", ("pages/min",)),
    Plot(
        "replay",
        "CPU time of an answer, µs",
        ("CPU time of each, µs",),
        ("native", "nginx", "pywb"),
        log=True,
    ),
    Plot("solver", "Tasks, and tasks solved twice the same", ("tasks", "the same twice, digest by digest")),
    Plot("why", "Forks until the step is found", ("forks",)),
    Plot(
        "wrong-answers",
        "Wrong, of 174",
        ("native", "pywb, as stillweb starts it", "pywb with its own rules"),
        rows=1,
        across=True,
    ),
)


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a page: the cells of the heading, then those of the rows."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        yield [rows[0], *rows[2:]]


def values(plot: Plot, text: str) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the label and the values of each row of the first table that has the columns of a plot."""
    heading, *rows = next(table for table in tables(text) if set(plot.columns) <= set(table[0]))
    at = [heading.index(name) for name in plot.columns]
    for row in rows[: plot.rows]:
        cells = [row[index] if index < len(row) else "" for index in at]
        cells = re.split(r",\s+", cells[0]) if len(cells) < len(plot.series) else cells
        found = [number(cell) for cell in cells]
        if plot.across:
            yield from ((name, [value]) for name, value in zip(plot.columns, found, strict=True))
        elif any(value is not None for value in found):
            yield ", ".join(_plain(cell) for cell in row[: plot.labels]), found


def number(cell: str) -> float | None:
    """Return the first number of a cell, of a range its end."""
    found = _NUMBER.findall(cell.partition("(")[0] or cell)
    return float(found[-1 if " to " in cell else 0].replace(",", "")) if found else None


def _plain(cell: str) -> str:
    return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", cell)


def draw(plot: Plot, rows: Sequence[tuple[str, list[float | None]]]) -> str:
    """Return a chart of horizontal bars as SVG, readable on a light and on a dark page."""
    known = [value for _, found in rows for value in found if value]
    most, least = max(known), min(known) / 2

    def width(value: float) -> float:
        share = math.log(value / least) / math.log(most / least) if plot.log else value / most
        return max(share, 0.0) * (_WIDTH - _LABELS - _VALUES)

    names = plot.series or plot.columns
    parts = [
        f'<text x="0" y="16" font-size="14">{escape(plot.title)}{", logarithmic" if plot.log else ""}</text>'
    ]
    y = 30
    if len(names) > 1 and not plot.across:
        x = _LABELS
        for name, colour in zip(names, _COLOURS, strict=False):
            parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{x + 17}" y="{y + 10}">{escape(name)}</text>')
            x += 36 + 7 * len(name)
        y += 24
    for label, found in rows:
        middle = y + len(found) * _BAR / 2 + 4
        shown = label if len(label) < 44 else label[:42] + "…"
        parts.append(f'<text x="{_LABELS - 8}" y="{middle:g}" text-anchor="end">{escape(shown)}</text>')
        for value, colour in zip(found, _COLOURS, strict=False):
            if value is not None:
                long = width(value) if value else 0.0
                at = f'x="{_LABELS}" y="{y + 1}" width="{long:.1f}" height="{_BAR - 2}"'
                parts.append(f'<rect {at} fill="{colour}"/>')
                parts.append(
                    f'<text x="{_LABELS + long + 5:.1f}" y="{y + 11}" font-size="11">{value:,g}</text>'
                )
            y += _BAR
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def main() -> int:
    stale = []
    for plot in PLOTS:
        page = (PAGES / f"{plot.page}.md").read_text("utf-8")
        picture = PAGES / f"{plot.page}.svg"
        drawn = draw(plot, list(values(plot, page)))
        if f"]({picture.name})" not in page:
            stale.append(f"{plot.page}.md does not show {picture.name}")
        if "--check" not in sys.argv:
            picture.write_text(drawn, "utf-8")
        elif not picture.exists() or picture.read_text("utf-8") != drawn:
            stale.append(f"{picture.name} differs from its table: run make docs")
    print("\n".join(stale), end="\n" if stale else "")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
