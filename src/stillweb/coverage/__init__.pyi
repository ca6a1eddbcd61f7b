from .agents import AGENTS, WalkAgent, walk_agent
from .causes import LEFT_ALONE, MissCause, causes_of, closable_rate, url_template
from .measure import CoverageOptions, CoverageResult, StepRecord, WalkRecord, measure_coverage
from .rounds import Round, UntilReport
from .until import UntilOptions, record_until

__all__ = [
    "AGENTS",
    "LEFT_ALONE",
    "CoverageOptions",
    "CoverageResult",
    "MissCause",
    "Round",
    "StepRecord",
    "UntilOptions",
    "UntilReport",
    "WalkAgent",
    "WalkRecord",
    "causes_of",
    "closable_rate",
    "measure_coverage",
    "record_until",
    "url_template",
    "walk_agent",
]
