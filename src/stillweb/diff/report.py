"""What `diff` found: a value per page and one for the collection, its gates and its exit status.

A page has scores by name. Shares (text, screenshot, ...) are 1.0 where nothing differs; counts
(misses) and the share of fuzzy answers are 0 where nothing is amiss. A **gate** is a limit that
every page must keep, not the average: one broken checkout page is one broken task. A gate is not
applied to a page that has no such score: an imported archive has no baseline to compare with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillweb.diff.metrics import Agreement, DiffLine, ResourceRow
from stillweb.diff.pixels import PixelDiff
from stillweb.errors import UsageError

REPORT_VERSION = 1

# name -> (heading, what it says). Order is the order of columns.
METRICS = {
    "status": ("status", "the document's HTTP status is the recorded one"),
    "resources": ("resources", "weighted share of resources asked for and answered as recorded"),
    "text": ("text", "F1 of the visible words"),
    "order": ("order", "share of the words that are in the same order"),
    "axtree": ("axtree", "F1 of the accessibility tree by role and name"),
    "interactive": ("controls", "the same over what can be clicked, typed into or chosen"),
    "screenshot": ("screen", "share of equal pixels (pixelmatch, threshold 0.1)"),
    "hits": ("hits", "share of requests that replay answered from the archive"),
    "misses": ("misses", "requests without an answer that the recording had answered or never saw"),
    "fuzzy": ("fuzzy", "share of requests answered by a fuzzy match"),
}
LOWER_IS_BETTER = frozenset({"misses", "fuzzy"})

# What is called good; `hits` has none, as archives made elsewhere miss what they miss.
DEFAULT_GATES: Mapping[str, float] = {
    "status": 1.0,
    "resources": 0.99,
    "text": 0.98,
    "order": 0.90,
    "axtree": 0.97,
    "interactive": 0.99,
    "screenshot": 0.99,
    "misses": 0.0,
    "fuzzy": 0.005,
}


def passes(metric: str, value: float, limit: float) -> bool:
    """Whether a score keeps its limit."""
    return value <= limit if metric in LOWER_IS_BETTER else value >= limit


def parse_gates(text: str, defaults: Mapping[str, float] = DEFAULT_GATES) -> dict[str, float]:
    """Return the gates of `text=0.98,misses=0` on top of the defaults; `none` alone switches all off.

    Raises:
        UsageError: if a name is unknown or a limit is no number.
    """
    if text.strip() == "none":
        return {}
    gates = dict(defaults)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in METRICS:
            raise UsageError(f"there is no score called {name!r}", hint=f"scores: {', '.join(METRICS)}")
        try:
            gates[name] = float(number)
        except ValueError:
            raise UsageError(
                f"the limit of {name} is no number: {number!r}", hint=f"--fail-under {name}=0.98"
            ) from None
    return gates


@dataclass(frozen=True, slots=True)
class Pictures:
    """PNG files of a page: as recorded, as replayed, and with what differs marked; b"" where absent."""

    recorded: bytes = b""
    replayed: bytes = b""
    overlay: bytes = b""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a page's requests came to in the replay."""

    asked: int
    hit: int
    miss: int
    noise: int


@dataclass(frozen=True, slots=True)
class PageDiff:
    """A page, recorded against replayed.

    Attributes:
        id: of the page in its collection.
        compared: whether the page has a baseline.
        scores: by the names of `METRICS`; only those that could be taken.
        error: why the page could not be replayed at all, "" if it could.
        notes: what a reader should know besides: not settled, sizes of pictures.
    """

    id: str
    url: str
    title: str = ""
    compared: bool = True
    recorded_status: int = 0
    replayed_status: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)
    text: tuple[DiffLine, ...] = ()
    axtree: tuple[DiffLine, ...] = ()
    resources: tuple[ResourceRow, ...] = ()
    pixels: PixelDiff | None = None
    pictures: Pictures = Pictures()
    notes: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> Counts:
        """How many requests were made, answered, missed, and swallowed as noise."""
        asked = [row for row in self.resources if row.replayed is not None]
        noise = sum(row.tier == "noise" for row in asked)
        missed = sum(row.missed for row in asked)
        return Counts(len(asked), len(asked) - noise - missed, missed, noise)

    @property
    def identical(self) -> bool:
        """Whether nothing differs: no score, no line of text, no line of the accessibility tree."""
        if self.error or self.text or self.axtree:
            return False
        return all(_loss(name, value) == 0 for name, value in self.scores.items())

    @property
    def loss(self) -> float:
        """How far the page is from identical, for sorting; 0 is identical."""
        return 100.0 * bool(self.error) + sum(_loss(name, value) for name, value in self.scores.items())

    def failures(self, gates: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names of the scores that break their limit; a page with an error breaks "status"."""
        broken = [n for n, v in self.scores.items() if n in gates and not passes(n, v, gates[n])]
        if self.error and gates and "status" not in broken:
            broken.insert(0, "status")
        return tuple(broken)

    def to_dict(self) -> dict[str, Any]:
        """Return the page as JSON values; pictures as digests."""
        counts, pixels = self.counts, self.pixels
        area = {"differing": pixels.differing, "total": pixels.total, "box": pixels.box} if pixels else None
        return {
            "id": self.id,
            "url": self.url,
            "title": self.title,
            "compared": self.compared,
            "identical": self.identical,
            "status": {"recorded": self.recorded_status, "replayed": self.replayed_status},
            "scores": {name: round(value, 6) for name, value in self.scores.items()},
            "counts": {"asked": counts.asked, "hit": counts.hit, "miss": counts.miss, "noise": counts.noise},
            "resources": [_row_dict(row) for row in self.resources if not _dull(row)],
            "text_diff": [line.kind + line.text for line in self.text],
            "axtree_diff": [line.kind + line.text for line in self.axtree],
            "pixels": area,
            "screenshots": {
                "recorded": _sha256(self.pictures.recorded),
                "replayed": _sha256(self.pictures.replayed),
            },
            "notes": list(self.notes),
            "error": self.error,
            "seconds": round(self.seconds, 3),
        }


def _loss(name: str, value: float) -> float:
    return value if name in LOWER_IS_BETTER else 1.0 - value


def _dull(row: ResourceRow) -> bool:
    return row.agreement is Agreement.AGREE and row.tier in ("", "exact", "normalised", "sequence")


def _row_dict(row: ResourceRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "url": row.url,
        "type": row.type,
        "agreement": row.agreement.value,
        "recorded": row.recorded,
        "replayed": row.replayed,
        "tier": row.tier,
        "reason": row.reason,
    }


def _sha256(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}" if raw else ""


@dataclass(frozen=True, slots=True)
class DiffReport:
    """All pages of a collection, recorded against replayed.

    Attributes:
        about: where and how it was taken: environment_id, backend, level, seed, recorded_at, made.
    """

    collection: str
    pages: tuple[PageDiff, ...]
    gates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GATES))
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failing(self) -> tuple[PageDiff, ...]:
        """The pages that break a gate."""
        return tuple(page for page in self.pages if page.failures(self.gates))

    @property
    def passed(self) -> bool:
        """Whether every page keeps every gate."""
        return not self.failing

    @property
    def exit_status(self) -> int:
        """0 if all gates hold, 1 otherwise."""
        return 0 if self.passed else 1

    def worst_first(self) -> tuple[PageDiff, ...]:
        """Return the pages by what is wrong with them: broken gates, then distance, then URL."""
        return tuple(sorted(self.pages, key=lambda p: (-bool(p.failures(self.gates)), -p.loss, p.url, p.id)))

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return (worst, mean) of a score over the pages that have it; None if none has."""
        values = [page.scores[metric] for page in self.pages if metric in page.scores]
        if not values:
            return None
        worst = max(values) if metric in LOWER_IS_BETTER else min(values)
        return worst, sum(values) / len(values)

    def summary(self) -> str:
        """Return one line: how many pages are identical, close, failing."""
        compared = [page for page in self.pages if page.compared]
        identical = sum(page.identical for page in compared)
        failing = len(self.failing)
        close = len(compared) - identical - sum(page.compared for page in self.failing)
        parts = [f"{identical} of {len(compared)} pages identical"] if compared else []
        if uncompared := len(self.pages) - len(compared):
            parts.append(f"{uncompared} without a baseline")
        if close:
            parts.append(f"{close} within the gates")
        parts.append(f"{failing} fail" if failing else "all gates passed" if self.gates else "no gates")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, worst page first."""
        spreads = {name: self.spread(name) for name in METRICS}
        return {
            "version": REPORT_VERSION,
            "collection": self.collection,
            "about": dict(self.about),
            "passed": self.passed,
            "summary": self.summary(),
            "gates": dict(self.gates),
            "scores": {n: {"worst": s[0], "mean": s[1]} for n, s in spreads.items() if s is not None},
            "failing": {page.id: list(page.failures(self.gates)) for page in self.failing},
            "pages": [page.to_dict() for page in self.worst_first()],
            "seconds": round(self.seconds, 3),
        }

    def write_json(self, path: Path) -> Path:
        """Write the report as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def write_html(self, folder: Path) -> Path:
        """Write the report as a page that needs nothing else; return the path of its `index.html`."""
        from stillweb.diff.html import write_html  # jinja2 is slow to import and not always wanted

        return write_html(self, folder)


def shown(metric: str, value: float) -> str:
    """Return a score as people read it: a count, or a percentage that never rounds up to 100."""
    if metric == "misses":
        return f"{value:.0f}"
    percent = 100 * value
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.95 <= percent < 100:
        return "99.9%"
    return f"{percent:.0f}%" if percent in (0, 100) else f"{percent:.1f}%"
