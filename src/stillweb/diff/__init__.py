"""Record against replay, page by page: what differs, how much, and a report to look at."""

from stillweb.diff.findings import Finding, Kind, Severity
from stillweb.diff.metrics import Agreement, BodyAgreement, DiffLine, Fetch, ResourceRow
from stillweb.diff.pixels import PixelDiff, compare_pictures
from stillweb.diff.report import DiffReport, PageDiff, Pictures, StepDiff, TraceDiff
from stillweb.diff.scores import DEFAULT_GATES, METRICS, parse_gates

__all__ = [
    "DEFAULT_GATES",
    "METRICS",
    "Agreement",
    "BodyAgreement",
    "DiffLine",
    "DiffReport",
    "Fetch",
    "Finding",
    "Kind",
    "PageDiff",
    "Pictures",
    "PixelDiff",
    "ResourceRow",
    "Severity",
    "StepDiff",
    "TraceDiff",
    "compare_pictures",
    "parse_gates",
]
