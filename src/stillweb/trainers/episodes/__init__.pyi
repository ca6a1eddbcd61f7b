from .client import RemoteLease, RolloutClient
from .failures import FailureHandling, FailurePolicy, JudgedSample, SampleVerdict, advantages, judge
from .source import EpisodeLease, EpisodeSource, open_source
from .start import start_of_row
from .tool import ToolEpisode, ToolOptions, ToolReply
from .turn import Turn

__all__ = [
    "EpisodeLease",
    "EpisodeSource",
    "FailureHandling",
    "FailurePolicy",
    "JudgedSample",
    "RemoteLease",
    "RolloutClient",
    "SampleVerdict",
    "ToolEpisode",
    "ToolOptions",
    "ToolReply",
    "Turn",
    "advantages",
    "judge",
    "open_source",
    "start_of_row",
]
