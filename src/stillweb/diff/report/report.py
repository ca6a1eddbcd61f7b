"""Results of `diff`: one value per page, one for the collection, and the verdict of the gates.

A page has scores by name. Shares (text, screenshot, ...) are 1.0 if nothing differs. Counts (misses) and the
share of fuzzy matches are 0 if nothing differs. A **gate** is a limit for every page, not for the average:
one broken checkout page is one broken task. A gate does not apply to a page without that score: an imported
archive has no baseline.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillweb.diff.compare.findings import Finding, FindingSeverity
from stillweb.diff.compare.metrics import BodyAgreement, DiffLine, ResourceAgreement, ResourceRow
from stillweb.diff.compare.pixels import PixelDiff
from stillweb.diff.compare.settings import DEFAULT_GATES, LOWER_IS_BETTER, METRICS, loss, passes
from stillweb.model import Tier

if TYPE_CHECKING:
    from stillweb.diff.certify.certificate import Certificate

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class PagePictures:
    """PNG files of a page: recorded, replayed, and differences marked; None if missing.

    If both screenshots are equal byte for byte, `replayed` is the path of `recorded`.
    """

    recorded: Path | None = None
    replayed: Path | None = None
    overlay: Path | None = None


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Number of a page's requests in the replay by result; `tiers` has the number per tier."""

    requested: int
    hit: int
    miss: int
    noise: int
    tiers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageDiff:
    """Comparison of one page.

    Attributes:
        scores: scores by the names of `METRICS`; only those that could be computed.
        recorded_url, replayed_url: final URL, "" if unknown.
        findings: causes before effects.
        dom: line diff of the canonical element trees.
        console: console errors that only one side has.
        redirects: hops to the document; "-" recorded only, "+" replayed only, " " both.
        notes: remarks for the reader: not settled, different picture sizes, data that a baseline lacks.
        error: why the page could not be replayed, "" if it could.
        recorded_ms, replayed_ms: real milliseconds until the load event; 0 if unknown. Never a score.
    """

    id: str
    url: str
    title: str = ""
    compared: bool = True
    recorded_status: int = 0
    replayed_status: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)
    recorded_url: str = ""
    replayed_url: str = ""
    findings: tuple[Finding, ...] = ()
    text: tuple[DiffLine, ...] = ()
    axtree: tuple[DiffLine, ...] = ()
    dom: tuple[DiffLine, ...] = ()
    console: tuple[DiffLine, ...] = ()
    redirects: tuple[DiffLine, ...] = ()
    resources: tuple[ResourceRow, ...] = ()
    pixels: PixelDiff | None = None
    pictures: PagePictures = PagePictures()
    notes: tuple[str, ...] = ()
    error: str = ""
    recorded_ms: float = 0.0
    replayed_ms: float = 0.0
    seconds: float = 0.0

    @property
    def counts(self) -> RequestCounts:
        sent = [row for row in self.resources if row.replayed is not None]
        noise = sum(row.tier == "noise" for row in sent)
        missed = sum(row.missed for row in sent)
        tiers = dict(Counter(row.tier or "unknown" for row in sent))
        return RequestCounts(len(sent), len(sent) - noise - missed, missed, noise, tiers)

    @property
    def identical(self) -> bool:
        if self.error or self.text or self.axtree or self.dom:
            return False
        return all(loss(name, value) == 0 for name, value in self.scores.items())

    @property
    def loss(self) -> float:
        """Distance from identical (0), for sorting."""
        return 100.0 * bool(self.error) + sum(loss(name, value) for name, value in self.scores.items())

    def failures(self, gates: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names of the failed gates; a page with an error fails "status"."""
        broken = [n for n, v in self.scores.items() if n in gates and not passes(n, v, gates[n])]
        if self.error and gates and "status" not in broken:
            broken.insert(0, "status")
        return tuple(broken)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; pictures are given as digests."""
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
            "counts": {
                "asked": counts.requested,
                "hit": counts.hit,
                "miss": counts.miss,
                "noise": counts.noise,
                "tiers": dict(counts.tiers),
            },
            "resources": [_row_dict(row) for row in self.resources if not _as_recorded(row)],
            "url_at_the_end": {"recorded": self.recorded_url, "replayed": self.replayed_url},
            "findings": [finding.to_dict() for finding in self.findings],
            "redirects": [line.kind + line.text for line in self.redirects],
            "console": [line.kind + line.text for line in self.console],
            "load_ms": {"recorded": round(self.recorded_ms, 1), "replayed": round(self.replayed_ms, 1)},
            "text_diff": [line.kind + line.text for line in self.text],
            "axtree_diff": [line.kind + line.text for line in self.axtree],
            "dom_diff": [line.kind + line.text for line in self.dom],
            "pixels": area,
            "screenshots": {
                "recorded": _sha256(self.pictures.recorded),
                "replayed": _sha256(self.pictures.replayed),
            },
            "notes": list(self.notes),
            "error": self.error,
            "seconds": round(self.seconds, 3),
        }


def _as_recorded(row: ResourceRow) -> bool:
    same = row.agreement is ResourceAgreement.AGREE and row.body is not BodyAgreement.DIFFERS
    return same and row.tier in ("", "exact", "normalised", "sequence")


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
        "body": row.body.value,
        "start_ms": row.start,
        "duration_ms": row.duration,
        "weight": row.weight,
    }


def _sha256(path: Path | None) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" if path else ""


@dataclass(frozen=True, slots=True)
class StepDiff:
    """Comparison of one step of a trace.

    Attributes:
        index: index of the step; 0 is the reset.
        action: JSON text; "" for the reset.
        forms: form of observation -> whether the digests are equal; only forms that both sides have.
        recorded_status, replayed_status: status of the action: "ok", "action_failed", ...
        scores: scores by name, if the recording stored more than digests.
    """

    index: int
    action: str = ""
    forms: Mapping[str, bool] = field(default_factory=dict)
    recorded_status: str = ""
    replayed_status: str = ""
    url: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    misses: int = 0
    derived: int = 0

    @property
    def same(self) -> bool:
        status = not self.recorded_status or self.recorded_status == self.replayed_status
        return status and all(self.forms.values())


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """Comparison of a recorded action trace with its repetition in the replay.

    Attributes:
        steps: steps that the replay reached.
        recorded_reward, replayed_reward: None if the episode was not scored.
        error: why the replay ended early, "" if it did not.
    """

    name: str
    task: str = ""
    steps: tuple[StepDiff, ...] = ()
    recorded_reward: float | None = None
    replayed_reward: float | None = None
    recorded_steps: int = 0
    error: str = ""
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0

    @property
    def rewards_agree(self) -> bool | None:
        """Whether both rewards are equal; None if the recording has none."""
        if self.recorded_reward is None:
            return None
        return self.recorded_reward == self.replayed_reward

    @property
    def first_difference(self) -> int | None:
        return next((step.index for step in self.steps if not step.same), None)

    def to_dict(self) -> dict[str, Any]:
        stored = asdict(replace(self, findings=()))
        stored["findings"] = [finding.to_dict() for finding in self.findings]
        return stored | {"rewards_agree": self.rewards_agree, "first_difference": self.first_difference}


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Comparison of a collection.

    Attributes:
        about: conditions of the comparison: environment_id, backend, level, seed, recorded_at, compared_at.
        traces: comparisons of recorded action traces.
        findings: findings about the collection (pages added or removed), not about a page.
        requests: for two collections, the requests that one lacks or answers differently.
        sides: names of the two sides: ("recorded", "replayed"), or the names of two collections.
    """

    collection: str
    pages: tuple[PageDiff, ...]
    gates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GATES))
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    traces: tuple[TraceDiff, ...] = ()
    findings: tuple[Finding, ...] = ()
    requests: tuple[ResourceRow, ...] = ()
    sides: tuple[str, str] = ("recorded", "replayed")

    @property
    def derived(self) -> int:
        """Number of derived answers, which no recording holds, on pages and in traces."""
        pages = sum(page.counts.tiers.get(Tier.DERIVED.value, 0) for page in self.pages)
        return pages + sum(step.derived for trace in self.traces for step in trace.steps)

    @property
    def reward_agreement(self) -> float | None:
        """Share of the traces with a recorded reward whose replay has the same; None without such traces."""
        agree = [trace.rewards_agree for trace in self.traces if trace.rewards_agree is not None]
        return sum(agree) / len(agree) if agree else None

    def all_findings(self) -> tuple[Finding, ...]:
        """Return all findings: errors first, then those of traces, collection, and pages worst first."""
        found = [finding for trace in self.traces for finding in trace.findings]
        found += [*self.findings, *(f for page in self.worst_first() for f in page.findings)]
        order = list(FindingSeverity)
        return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))

    @property
    def failing(self) -> tuple[PageDiff, ...]:
        return tuple(page for page in self.pages if page.failures(self.gates))

    @property
    def passed(self) -> bool:
        rewards = self.reward_agreement
        if rewards is not None and rewards < self.gates.get("reward", 0.0):
            return False
        return not self.failing

    @property
    def exit_status(self) -> int:
        return 0 if self.passed else 1

    def worst_first(self) -> tuple[PageDiff, ...]:
        """Return the pages sorted by failed gates, then by loss, then by URL."""
        return tuple(sorted(self.pages, key=lambda p: (-bool(p.failures(self.gates)), -p.loss, p.url, p.id)))

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return (worst, mean) of a score over the pages that have it; None if no page has it."""
        values = [page.scores[metric] for page in self.pages if metric in page.scores]
        if not values:
            return None
        worst = max(values) if metric in LOWER_IS_BETTER else min(values)
        return worst, sum(values) / len(values)

    def summary(self) -> str:
        """Return one line with the numbers of identical, close and failing pages."""
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
        """Return JSON values, worst page first."""
        spreads = {name: self.spread(name) for name in METRICS}
        return {
            "version": REPORT_VERSION,
            "collection": self.collection,
            "about": dict(self.about),
            "passed": self.passed,
            "summary": self.summary(),
            "sides": list(self.sides),
            "reward_agreement": self.reward_agreement,
            "derived": self.derived,
            "traces": [trace.to_dict() for trace in self.traces],
            "findings": [finding.to_dict() for finding in self.all_findings()],
            "requests": [_row_dict(row) for row in self.requests],
            "gates": dict(self.gates),
            "scores": {n: {"worst": s[0], "mean": s[1]} for n, s in spreads.items() if s is not None},
            "failing": {page.id: list(page.failures(self.gates)) for page in self.failing},
            "pages": [page.to_dict() for page in self.worst_first()],
            "seconds": round(self.seconds, 3),
        }

    def write_json(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def write_html(self, folder: Path, certificate: Certificate | None = None) -> Path:
        """Write the report, with the collection's certificate if given, as a self-contained `index.html`."""
        from stillweb.diff.report.html import write_html  # jinja2 is slow to import and not always used

        return write_html(self, folder, certificate)
