"""Budget of a harvest, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from stillweb.clock import Deadline, monotonic
from stillweb.collections.misses import Missed
from stillweb.model import Request
from stillweb.options import Option
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import FormValues, Values
from stillweb.record.harvest.keeper import SharedLogin
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions

MISSES_SHARE = 0.25
"""Share of the time that misses may use; recorded pages leave it to them."""


@dataclass(frozen=True, slots=True)
class HarvestOptions:
    """How much is fetched, and how fast.

    Attributes:
        size: bytes of response bodies.
        misses: requests that a replay missed, which are sent first.
        walked: number of steps in which they were missed, 0 if it is unknown.
        shown: words that walks saw, and how often; scripts may show words that no document holds.
        writes: whether missed writes of scripts are sent at the end, with those of other rows (`writes`).
        addresses: pages that walks have seen, also without a request for their document.
        reads: POST requests that opened views sent: the same with other values reads, too.
        avoid: links that are not followed.
        login: None to harvest without a login.
        shared: its state, for the next stage of the recording.
        record: how the sites are reached.
    """

    pages: Annotated[int, Option("Fetch at most N documents.", min=1)] = 2_000
    requests: Annotated[
        int | None, Option("Send at most N requests, resources included.", min=1, default="no limit")
    ] = None
    seconds: Annotated[
        float | None, Option("Harvest for at most this many seconds.", "--time", "SECONDS", min=1)
    ] = None
    size: Annotated[
        int | None,
        Option("Stop after this many MB of response bodies.", metavar="MB", min=1, unit=1_000_000),
    ] = None
    jobs: Annotated[int, Option("Fetch N pages at a time.", min=1, max=256)] = 16
    per_host: Annotated[int, Option("Open at most N connections to one host.", min=1, max=64)] = 8
    rate: Annotated[
        float | None, Option("Send at most N requests per second to one host.", metavar="N", above=0)
    ] = None
    robots: Annotated[bool, Option("Leave out pages that robots.txt forbids, and obey its Crawl-delay.")] = (
        False
    )
    forms: Annotated[
        int, Option("Send at most N POST forms, each as its page has it. This changes the site.", min=0)
    ] = 0
    words: Annotated[
        int, Option("Send N of the site's own words in each text field of GET forms.", min=0)
    ] = 0
    misses: tuple[Missed, ...] = ()
    walked: int = 0
    shown: Mapping[str, int] = field(default_factory=dict)
    writes: bool = False
    addresses: tuple[str, ...] = ()
    reads: tuple[Request, ...] = ()
    values: FormValues = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    login: Login | None = None
    shared: SharedLogin = field(default_factory=SharedLogin)
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(slots=True)
class HarvestReport:
    """Totals of a harvest.

    Attributes:
        pages: documents fetched.
        forms: POST forms sent.
        requests: exchanges written.
        body_bytes: of their response bodies.
        waiting: URLs that the budget did not reach.
        statuses: number of documents by HTTP status.
        forbidden: number of URLs that robots.txt forbids.
        failed: URLs that gave no answer, with the reason.
        too_large: URLs whose body was longer than the limit.
        ended_by: the limit that ended the harvest, "" if nothing was left.
    """

    pages: int = 0
    forms: int = 0
    requests: int = 0
    body_bytes: int = 0
    waiting: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    forbidden: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "statuses": {str(k): v for k, v in sorted(self.statuses.items())}}


class HarvestBudget:
    """The limits of a harvest, and how much of them is used."""

    def __init__(self, options: HarvestOptions, report: HarvestReport) -> None:
        self._options = options
        self._report = report
        self._end = self._phase_end = Deadline.after(options.seconds or None)

    def limit_time(self, share: float) -> None:
        """Set the end of the next phase to a share of the time that is left."""
        left = self._end.left
        self._phase_end = Deadline.after(None if left is None else share * left)

    def leave(self, seconds: float) -> None:
        """Begin the last phase, which has at least some seconds."""
        left = self._end.left
        self._end = self._phase_end = Deadline.after(None if left is None else max(seconds, left))

    def is_late(self, after: float = 0.0) -> bool:
        """Return True from some seconds after the end of the time on."""
        return self._end.at is not None and monotonic() >= self._end.at + after

    def is_over(self) -> bool:
        """Return whether a limit is reached; the report says which."""
        options, report = self._options, self._report
        limits = {
            "--requests": options.requests is not None and report.requests >= options.requests,
            "--size": options.size is not None and report.body_bytes >= options.size,
            "--time": self._phase_end.is_over,
            "--pages": report.pages >= options.pages,  # last: after it, writes and forms may still be sent
        }
        report.ended_by = next((name for name, reached in limits.items() if reached), "")
        return bool(report.ended_by)

    def is_over_for_writes(self) -> bool:
        """Return whether a limit is reached that is not that of pages."""
        return self.is_over() and self._report.ended_by != "--pages"
