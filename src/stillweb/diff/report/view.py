"""View model of the report page: cells, groups of findings, marked lines, bars.

Pure functions from a `DiffReport` to values that the template prints without further decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity
from stillweb.diff.compare.metrics import BodyAgreement, DiffLine, ResourceAgreement, ResourceRow
from stillweb.diff.compare.settings import COUNTS, LOWER_IS_BETTER, METRICS, passes, shown
from stillweb.diff.report.report import DiffReport, PageDiff

# Columns of the overview. Each page lists its other scores.
_COLUMNS = ("status", "resources", "text", "axtree", "interactive", "screenshot", "misses")
_UNCOMPARED_COLUMNS = ("status", "hits")
_GUESSES_AND_MISSES = ("miss", "guess", "fuzzy", "pywb")


@dataclass(frozen=True, slots=True)
class ResultCell:
    """A formatted score; `state` is "same", "near", "bad" or "none"."""

    metric: str
    heading: str
    meaning: str
    shown: str
    state: str
    limit: str = ""
    mean: str = ""


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings of one kind with the same fix."""

    kind: str
    severity: str
    explanation: str
    fix: str
    findings: tuple[Finding, ...]

    @property
    def subjects(self) -> list[tuple[str, list[Finding]]]:
        """Findings grouped by subject and explanation, most frequent first."""
        alike: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.findings:
            alike.setdefault((finding.subject, finding.explanation), []).append(finding)
        return sorted(((key[0], same) for key, same in alike.items()), key=lambda pair: -len(pair[1]))


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A line of a diff; `changed` is the part that its counterpart lacks, between the common parts."""

    kind: str
    before: str
    changed: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """A request in a waterfall: start and width of its bar in percent of the page's total time."""

    row: ResourceRow
    name: str
    left: float
    width: float
    notable: bool


def verdict(report: DiffReport, page: PageDiff) -> str:
    """Return "bad", "near", "same", or "none" for a page without a baseline."""
    if page.failures(report.gates) or page.error:
        return "bad"
    if not page.compared:
        return "none"
    return "same" if page.identical else "near"


def shares(report: DiffReport) -> list[tuple[str, str, int]]:
    """Return (state, label, number of pages) of each state that occurs, in display order."""
    words = {"bad": "fail", "near": "within the gates", "same": "identical", "none": "without a baseline"}
    states = [verdict(report, page) for page in report.pages]
    return [(state, words[state], states.count(state)) for state in words if state in states]


def columns(report: DiffReport) -> list[tuple[str, str]]:
    names = _COLUMNS if any(page.compared for page in report.pages) else _UNCOMPARED_COLUMNS
    return [(name, METRICS[name][0]) for name in names]


def cells(report: DiffReport, page: PageDiff) -> list[ResultCell]:
    return [_cell(report, page, name) for name, _ in columns(report)]


def scores(report: DiffReport, page: PageDiff) -> list[ResultCell]:
    return [_cell(report, page, name) for name in METRICS if name in page.scores]


def tiles(report: DiffReport) -> list[ResultCell]:
    """Return the worst and the mean of each score over all pages."""
    return [cell for name in METRICS if (cell := _tile(report, name))]


def strip(report: DiffReport, metric: str) -> list[tuple[int, str]]:
    """Return a bar per page, worst pages first: (height in percent, state)."""
    bars = []
    for page in report.worst_first()[:60]:
        if metric in page.scores:
            value = page.scores[metric]
            share = 1 / (1 + value) if metric in LOWER_IS_BETTER else value
            bars.append((max(8, round(100 * share)), _state(report, metric, value)))
    return bars


def groups(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Group findings by severity, kind and fix: errors first, then causes before effects."""
    severities, kinds = list(FindingSeverity), list(FindingKind)

    def key(finding: Finding) -> tuple[int, int, str]:
        return severities.index(finding.severity), kinds.index(finding.kind), finding.fix

    found = []
    for _, members in groupby(sorted(findings, key=key), key):
        alike = tuple(members)
        first = alike[0]
        found.append(
            FindingGroup(
                first.kind.value.replace("-", " "),
                first.severity.value,
                first.explanation if len({each.explanation for each in alike}) == 1 else "",
                first.fix,
                alike,
            )
        )
    return found


def marked(lines: Sequence[DiffLine]) -> list[DiffRow]:
    """Mark the changed part of each line where as many lines were added as removed."""
    found: list[DiffRow] = []
    for kind, block in groupby(lines, key=lambda line: line.kind in "-+"):
        texts = list(block)
        if not kind:
            found += [DiffRow(line.kind, line.text) for line in texts]
            continue
        minus = [line.text for line in texts if line.kind == "-"]
        plus = [line.text for line in texts if line.kind == "+"]
        if len(minus) != len(plus):
            found += [DiffRow(line.kind, line.text) for line in texts]
            continue
        pairs = [_split(a, b) for a, b in zip(minus, plus, strict=True)]
        found += [DiffRow("-", head, mine, tail) for head, mine, _, tail in pairs]
        found += [DiffRow("+", head, theirs, tail) for head, _, theirs, tail in pairs]
    return found


def waterfall(page: PageDiff) -> list[WaterfallBar]:
    """Return the requests of a page as bars, sorted by start time."""
    rows = sorted(page.resources, key=lambda row: row.start)
    whole = max((row.start + row.duration for row in rows), default=0.0)
    return [
        WaterfallBar(
            row,
            _name(row.url),
            round(100 * row.start / whole, 2) if whole else 0.0,
            max(0.6, round(100 * row.duration / whole, 2)) if whole else 0.0,
            _notable(page, row),
        )
        for row in rows
    ]


def _name(url: str) -> str:
    """Return the last path segment of a URL with its query."""
    address = url.partition("#")[0].removesuffix("/")
    path, mark, query = address.partition("?")
    name = path.rpartition("/")[2] or path
    return name + (mark + query if len(query) <= 40 else f"?{query[:39]}…" if mark else "")


def _split(one: str, other: str) -> tuple[str, str, str, str]:
    """Return (common prefix, rest of one, rest of the other, common suffix)."""
    shortest = min(len(one), len(other))
    head = next((i for i in range(shortest) if one[i] != other[i]), shortest)
    most = shortest - head
    tail = next((i for i in range(most) if one[-1 - i] != other[-1 - i]), most)
    end_one, end_other = len(one) - tail, len(other) - tail
    return one[:head], one[head:end_one], other[head:end_other], one[end_one:]


def _notable(page: PageDiff, row: ResourceRow) -> bool:
    """Return True if a resource differs, was missed, or was matched by a guess."""
    differs = row.agreement is not ResourceAgreement.AGREE or row.body is BodyAgreement.DIFFERS
    return row.tier in _GUESSES_AND_MISSES or (page.compared and differs)


def _state(report: DiffReport, metric: str, value: float) -> str:
    if metric in report.gates and not passes(metric, value, report.gates[metric]):
        return "bad"
    perfect = 0.0 if metric in LOWER_IS_BETTER else 1.0
    return "same" if value == perfect else "near"


def _cell(report: DiffReport, page: PageDiff, metric: str) -> ResultCell:
    heading, meaning = METRICS[metric]
    value = page.scores.get(metric)
    if metric == "status":
        code = str(page.replayed_status or "—")
        if page.compared and page.recorded_status != page.replayed_status:
            code = f"{page.recorded_status or '—'}→{code}"
        state = "none" if value is None else _state(report, metric, value)
        return ResultCell(metric, heading, meaning, code, "bad" if page.error else state)
    if value is None:
        return ResultCell(metric, heading, meaning, "—", "none")
    return ResultCell(metric, heading, meaning, shown(metric, value), _state(report, metric, value))


def _tile(report: DiffReport, metric: str) -> ResultCell | None:
    spread = report.spread(metric)
    if spread is None:
        return None
    heading, meaning = METRICS[metric]
    worst, mean = spread
    sign = "≤" if metric in LOWER_IS_BETTER else "≥"
    limit = f"{sign} {shown(metric, report.gates[metric])}" if metric in report.gates else ""
    average = f"{mean:.1f}" if metric in COUNTS else shown(metric, mean)
    average = "" if mean == worst else average
    return ResultCell(
        metric, heading, meaning, shown(metric, worst), _state(report, metric, worst), limit, average
    )
