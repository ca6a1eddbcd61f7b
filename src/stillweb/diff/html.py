"""The report as one HTML file that needs nothing else: no server, no network, no other file.

Pictures are embedded as data URIs; where they come to more than `EMBED_LIMIT` bytes they are put
in a folder beside the file and linked. A pair of equal pictures is embedded once. All text of the
page under test passes jinja's autoescape: a recorded page must not be able to script its report.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from stillweb.diff.metrics import Agreement, ResourceRow
from stillweb.diff.report import LOWER_IS_BETTER, METRICS, DiffReport, PageDiff, passes, shown

EMBED_LIMIT = 20_000_000
PICTURES = "pictures"

# Columns of the overview, where there are such scores; `order` and `fuzzy` stand in each page's own list.
_COLUMNS = ("status", "resources", "text", "axtree", "interactive", "screenshot", "misses")
_UNCOMPARED_COLUMNS = ("status", "hits")


@dataclass(frozen=True, slots=True)
class Cell:
    """A score as the template shows it: `state` is "same", "near", "bad" or "none"."""

    metric: str
    heading: str
    meaning: str
    shown: str
    state: str
    limit: str = ""
    mean: str = ""


def write_html(report: DiffReport, folder: Path) -> Path:
    """Write `index.html` (and a folder of pictures where there are too many) and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = folder / PICTURES
    if pictures.is_dir():
        shutil.rmtree(pictures)  # of an earlier report in the same place
    embed = sum(len(raw) for page in report.pages for raw in _distinct(page)) <= EMBED_LIMIT
    link = _data_uri if embed else _beside(pictures)
    path = folder / "index.html"
    path.write_text(render(report, link), encoding="utf-8")
    return path


def render(report: DiffReport, link: Callable[[bytes], str]) -> str:
    """Return the page; `link` gives the address of a picture."""
    environment = Environment(
        loader=PackageLoader("stillweb.diff", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    columns = _COLUMNS if any(page.compared for page in report.pages) else _UNCOMPARED_COLUMNS
    return template.render(
        report=report,
        pages=report.worst_first(),
        tiles=[cell for name in METRICS if (cell := _tile(report, name))],
        columns=[(name, METRICS[name][0]) for name in columns],
        cells=lambda page: [_cell(report, page, name) for name in columns],
        scores=lambda page: [_cell(report, page, name) for name in METRICS if name in page.scores],
        verdict=lambda page: verdict(report, page),
        strip=lambda name: _strip(report, name),
        telling=lambda page: [row for row in page.resources if _telling(page, row)],
        agreeing=lambda page: [row for row in page.resources if not _telling(page, row)],
        picture=link,
    )


def verdict(report: DiffReport, page: PageDiff) -> str:
    """Return "bad", "near", "same", or "none" for a page with nothing to compare with."""
    if page.failures(report.gates) or page.error:
        return "bad"
    if not page.compared:
        return "none"
    return "same" if page.identical else "near"


def _distinct(page: PageDiff) -> set[bytes]:
    return {raw for raw in (page.pictures.recorded, page.pictures.replayed, page.pictures.overlay) if raw}


def _data_uri(raw: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _beside(folder: Path) -> Callable[[bytes], str]:
    folder.mkdir()

    def link(raw: bytes) -> str:
        name = f"{hashlib.sha256(raw).hexdigest()[:20]}.png"
        (folder / name).write_bytes(raw)
        return f"{PICTURES}/{name}"

    return link


def _state(report: DiffReport, metric: str, value: float) -> str:
    if metric in report.gates and not passes(metric, value, report.gates[metric]):
        return "bad"
    perfect = 0.0 if metric in LOWER_IS_BETTER else 1.0
    return "same" if value == perfect else "near"


def _cell(report: DiffReport, page: PageDiff, metric: str) -> Cell:
    heading, meaning = METRICS[metric]
    value = page.scores.get(metric)
    if metric == "status":
        code = str(page.replayed_status or "—")
        if page.compared and page.recorded_status != page.replayed_status:
            code = f"{page.recorded_status or '—'}→{code}"
        state = "none" if value is None else _state(report, metric, value)
        return Cell(metric, heading, meaning, code, "bad" if page.error else state)
    if value is None:
        return Cell(metric, heading, meaning, "—", "none")
    return Cell(metric, heading, meaning, shown(metric, value), _state(report, metric, value))


def _tile(report: DiffReport, metric: str) -> Cell | None:
    spread = report.spread(metric)
    if spread is None:
        return None
    heading, meaning = METRICS[metric]
    worst, mean = spread
    sign = "≤" if metric in LOWER_IS_BETTER else "≥"
    limit = f"{sign} {shown(metric, report.gates[metric])}" if metric in report.gates else ""
    average = f"{mean:.1f}" if metric == "misses" else shown(metric, mean)
    average = "" if mean == worst else average
    return Cell(metric, heading, meaning, shown(metric, worst), _state(report, metric, worst), limit, average)


def _strip(report: DiffReport, metric: str) -> list[tuple[int, str]]:
    """Return a bar per page, worst pages first: (height in percent, state)."""
    bars = []
    for page in report.worst_first()[:60]:
        if metric in page.scores:
            value = page.scores[metric]
            share = 1 / (1 + value) if metric in LOWER_IS_BETTER else value
            bars.append((max(8, round(100 * share)), _state(report, metric, value)))
    return bars


def _telling(page: PageDiff, row: ResourceRow) -> bool:
    """Whether a resource is worth a reader's look: it differs, was missed, or was matched loosely."""
    return row.tier in ("miss", "fuzzy", "pywb") or (page.compared and row.agreement is not Agreement.AGREE)
