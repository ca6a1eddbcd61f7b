from .agents import AGENTS, WalkAgent, walk_agent
from .causes import MissCause, causes_of, url_template
from .measure import CoverageOptions, CoverageResult, StepRecord, WalkRecord, measure
from .until import Round, UntilOptions, UntilReport, record_until

__all__ = [
    "AGENTS",
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
    "measure",
    "record_until",
    "url_template",
    "walk_agent",
]
