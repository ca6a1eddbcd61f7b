"""Record against replay, page by page: what differs, how much, and a report to look at."""

from stillweb.diff.metrics import Agreement, DiffLine, Fetch, ResourceRow
from stillweb.diff.pixels import PixelDiff, compare_pictures
from stillweb.diff.report import DEFAULT_GATES, METRICS, DiffReport, PageDiff, Pictures, parse_gates

__all__ = [
    "DEFAULT_GATES",
    "METRICS",
    "Agreement",
    "DiffLine",
    "DiffReport",
    "Fetch",
    "PageDiff",
    "Pictures",
    "PixelDiff",
    "ResourceRow",
    "compare_pictures",
    "parse_gates",
]
