from .compare.findings import Finding, FindingKind, FindingSeverity
from .compare.metrics import BodyAgreement, DiffLine, Fetch, ResourceAgreement, ResourceRow
from .compare.pixels import PixelDiff, compare_pictures
from .compare.settings import DEFAULT_GATES, METRICS, parse_gates
from .report.report import DiffReport, PageDiff, PagePictures, StepDiff, TraceDiff

__all__ = [
    "DEFAULT_GATES",
    "METRICS",
    "BodyAgreement",
    "DiffLine",
    "DiffReport",
    "Fetch",
    "Finding",
    "FindingKind",
    "FindingSeverity",
    "PageDiff",
    "PagePictures",
    "PixelDiff",
    "ResourceAgreement",
    "ResourceRow",
    "StepDiff",
    "TraceDiff",
    "compare_pictures",
    "parse_gates",
]
