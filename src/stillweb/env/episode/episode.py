"""One episode: a browser context, a proxy session, and the counts of their traffic.

`reset` creates it, and the next `reset` closes it. All state that an episode could leave behind (cookies,
storage, caches, the replay's cursors) belongs to context and session, so that closing them is sufficient.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.browser.activity import Activity, Requested
from stillweb.browser.cdp.connection import CdpError
from stillweb.browser.context import open_context
from stillweb.browser.driver import as_playwright_error, is_driver_gone
from stillweb.browser.exact.connections import ConnectionCounts
from stillweb.browser.observe.bids import Bids
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import Settled, settle
from stillweb.browser.state import state_of
from stillweb.env.episode.offpath import OffPath, session_required
from stillweb.env.episode.perturbation import EpisodeVariant
from stillweb.env.episode.tabs import Tabs, closed_itself
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.events import StepEvents
from stillweb.errors import (
    InfraError,
    PeerError,
    PortInUse,
    ReplayError,
    StillwebError,
    TaskError,
)
from stillweb.http.control import LedgerEntry
from stillweb.matching.rules import Rules
from stillweb.model import GUESSES, Tier
from stillweb.replay import OpenSession, ReplayClient, ReplayInfo
from stillweb.text import first_line

if TYPE_CHECKING:
    from stillweb.env.trajectories.log import TrajectoryLog


@asynccontextmanager
async def infra(what: str, seconds: float) -> AsyncIterator[None]:
    """Raise failures of browser and proxy, and a timeout, as `InfraError`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfraError(f"{what} did not end within {seconds:g} s") from error
    except (PlaywrightError, CdpError, PeerError, ReplayError, PortInUse, RuntimeError) as error:
        ours = as_infra_error(what, error)
        if ours is error:
            raise
        raise ours from error


def as_infra_error(what: str, error: BaseException) -> BaseException:
    """Return a failure of browser or proxy as an `InfraError`; any other exception unchanged."""
    if isinstance(error, PlaywrightError | CdpError):
        return InfraError(f"{what}: the browser failed: {first_line(error.message)}")
    if isinstance(error, PeerError | ReplayError | PortInUse):
        return InfraError(f"{what}: {error}", hint=error.hint)
    if is_driver_gone(error):
        return InfraError(f"{what}: the browser failed: its driver has ended")
    return error


LISTED = 20  # misses that `Traffic.missed` names


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one step.

    Attributes:
        source: "ledger" or "browser".
        hits: requests answered from the collection.
        misses: requests that the collection does not hold.
        noise: requests of the browser itself and beacons; they are not misses.
        missed: "METHOD URL" of the first misses.
        guesses: hits of looser tiers (guess, fuzzy, pywb), which may be responses to other requests.
        derived: hits that a template gave for values that were not recorded (`--derived`).
    """

    source: str
    requests: int = 0
    hits: int = 0
    misses: int = 0
    noise: int = 0
    missed: tuple[str, ...] = ()
    guesses: int = 0
    derived: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": list(self.missed)}


def from_ledger(entries: Iterable[LedgerEntry]) -> Traffic:
    """Count entries of a session's ledger.

    Raises:
        InfraError: if the replay could not read a capture that it holds.
    """
    requests = misses = noise = guesses = derived = 0
    missed: list[str] = []
    for entry in entries:
        requests += 1
        if entry.tier == Tier.FAULT:
            raise InfraError(f"{entry.method} {entry.url}: {entry.reason}")
        if entry.tier == Tier.MISS:
            misses += 1
            missed.append(f"{entry.method} {entry.url}")
        elif entry.tier == Tier.NOISE:
            noise += 1
        elif entry.tier in GUESSES:
            guesses += 1
        elif entry.tier == Tier.DERIVED:
            derived += 1
    hits = requests - misses - noise
    return Traffic("ledger", requests, hits, misses, noise, tuple(missed[:LISTED]), guesses, derived)


def from_events(requests: Iterable[Requested]) -> Traffic:
    """Count the requests that the browser reported."""
    count = 0
    missed: list[str] = []
    for request in requests:
        count += 1
        if request.failure or request.status >= 400:
            missed.append(f"{request.method} {request.url}")
    return Traffic("browser", count, count - len(missed), len(missed), 0, tuple(missed[:LISTED]))


logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS = 10.0  # a browser that takes longer hangs
_REJECTED = {
    "Invalid timezone": "time zone",
    "storageState": "storage state",
    "setting storage state": "storage state",
}


@lru_cache(maxsize=64)  # each reset asks; 200 rules take 0.1 s to read
def _has_clock(rules: str) -> bool:
    return Rules.parse(rules).clock is not None


@dataclass(frozen=True, slots=True)
class EpisodeReplay:
    """A replay server and its description."""

    client: ReplayClient
    info: ReplayInfo

    @property
    def has_ledger(self) -> bool:
        """Whether the server records for each request how it was answered."""
        return bool(self.info.features.get("ledger"))

    def compares_times(self, collection: str) -> bool:
        """Return True if the server finds requests of a collection by the pages' time."""
        rules = str(self.info.manifests.get(collection, {}).get("rules", ""))
        return bool(self.info.features.get("date")) and _has_clock(rules)

    async def of(self, session: OpenSession) -> EpisodeReplay:
        """Return the server with its description of the pack that a session replays.

        Raises:
            InfraError: if a newer pack has replaced that one.
        """
        if self.info.collections.get(session.collection) == session.environment_id:
            return self
        updated = EpisodeReplay(self.client, await self.client.info())  # it was sealed again meanwhile
        if updated.info.collections.get(session.collection) != session.environment_id:
            raise InfraError(f"{session.collection} was sealed again while a session opened", hint="reset")
        return updated


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Options of an episode's browser context.

    Attributes:
        storage_state: initial cookies and local storage.
        reported: whether Playwright has the events of requests, as for a HAR.
    """

    profile: Profile
    pinning: Pinning
    storage_state: Mapping[str, Any] | None = None
    variant: EpisodeVariant | None = None
    reported: bool = True


@dataclass(slots=True)
class Episode:
    """One episode.

    Attributes:
        task: None for an episode that starts at a URL.
        session: replay session of this episode only.
        tabs: the open pages.
        profile: properties of the browser that pages see.
        pinning: level, seed and initial time.
        over: True after termination, truncation or an error.
        downloads: downloads so far, as in `info`.
        off_path: cancelled navigations and masked elements.
        events: requests of the last step, and the element of its action.
        variant: perturbation of the episode, None without one.
        obeyed: tokens of injections that the agent has used.
        unrecorded: answers to unrecorded requests, as JSON; {} if such requests are misses only.
        still: True if the last wait ended with a page that had settled.
        has_times: whether requests may hold the pages' time, which the replay then needs.
    """

    id: str
    task: Task | None
    replay: EpisodeReplay
    session: OpenSession
    context: BrowserContext
    tabs: Tabs
    activity: Activity
    profile: Profile
    pinning: Pinning
    bids: Bids = field(default_factory=Bids)
    steps: int = 0
    over: bool = False
    goal: str = ""
    downloads: list[dict[str, Any]] = field(default_factory=list)
    log: TrajectoryLog | None = None
    unrecorded: dict[str, Any] = field(default_factory=dict)
    still: bool = False
    variant: EpisodeVariant | None = None
    obeyed: list[str] = field(default_factory=list)
    off_path: OffPath = field(init=False)
    events: StepEvents = field(default_factory=StepEvents)
    has_times: bool = field(init=False)
    _seen: int = 0

    def __post_init__(self) -> None:
        self.off_path = OffPath(self.replay.client, self.session)
        compared = self.replay.compares_times(self.session.collection)
        self.has_times = compared and self.pinning.level.keeps_clock

    @property
    def page(self) -> Page:
        """The active page."""
        return self.tabs.active

    @property
    def flags(self) -> list[str]:
        """Reasons so far why level EXACT does not guarantee determinism; empty at other levels."""
        exact = state_of(self.context).exact
        return list(exact.flags) if exact else []

    async def settle(self, *, ms: int = 0) -> Settled:
        """Wait until the active page has settled, or let `ms` milliseconds of its time pass.

        If the page opens another one or closes itself meanwhile, this waits for the new active page.
        """
        self.still = False
        while True:
            page = self.page
            try:
                settled = await self._settle(page, ms)
            except InfraError:
                if not await closed_itself(page):
                    raise
                await self.tabs.ensure_one()
                continue
            if self.page is page:
                self.still = settled.settled and not ms
                await self.report_date()
                return settled

    async def report_date(self) -> None:
        """Report the pages' time to a replay server that compares times of requests with it.

        Raises:
            InfraError: if the replay lost the session.
        """
        if not self.has_times:
            return
        with session_required():
            await self.replay.client.report_date(self.session.id, state_of(self.context).now)

    async def _settle(self, page: Page, ms: int) -> Settled:
        if ms:
            return await settle(page, self.activity, quiet=ms, horizon=ms)
        return await settle(page, self.activity)

    def take_flags(self) -> list[str]:
        """Return the flags (see `flags`) since the last call."""
        exact = state_of(self.context).exact
        return exact.take_flags() if exact else []

    async def traffic(self) -> Traffic:
        """Return the requests since the last call.

        Raises:
            InfraError: if one of the episode's requests never reached the replay.
        """
        if self.activity.broken:  # since the page has settled
            raise InfraError(self.activity.broken)
        if not self.replay.has_ledger:
            seen, self._seen = self._seen, len(self.activity.requests)
            self.events = replace(self.events, requests=tuple(self.activity.requests[seen:]))
            return from_events(self.activity.requests[seen:])
        with session_required():
            ledger = await self.replay.client.ledger(self.session.id, after=self._seen)
        self._seen = max([self._seen, *(entry.seq for entry in ledger.entries)])
        self.events = replace(self.events, requests=ledger.entries)
        return from_ledger(ledger.entries)

    async def close(self) -> bool:
        """Close context and session, if they exist; return False if the browser did not respond."""
        self.over = True
        self.activity.close()
        if self.log:
            await self.log.left()
        closed = await _close_context(self.context)
        await close_session(self.replay.client, self.session)
        return closed


async def open_episode(
    browser: Browser,
    replay: EpisodeReplay,
    session: OpenSession,
    task: Task | None,
    options: ContextOptions,
) -> Episode:
    """Open an episode with an empty tab. The episode owns the session; on failure the session is closed.

    Raises:
        TaskError: if the browser rejects the time zone or the storage state.
    """
    profile, pinning = options.profile, options.pinning
    async with AsyncExitStack() as undo:
        undo.push_async_callback(close_session, replay.client, session)
        undo.enter_context(_rejected_options())
        context = await made(
            open_context(
                browser,
                proxy=session.proxy,
                profile=profile,
                pinning=pinning,
                storage_state=options.storage_state or None,
                script=options.variant.script if options.variant else "",
            ),
            _close_context,
        )
        undo.push_async_callback(_close_context, context)
        episode = Episode(
            clock.new_id(),
            task,
            replay,
            session,
            context,
            Tabs(context),
            Activity(context),
            profile,
            pinning,
        )
        episode.variant = options.variant
        if (exact := state_of(context).exact) and not options.reported:
            exact.mute()
        _report_clock(context, replay, session)
        await episode.report_date()
        await context.new_page()
        undo.pop_all()
    return episode


def _report_clock(context: BrowserContext, replay: EpisodeReplay, session: OpenSession) -> None:
    """Let the replay server release frames and events by the clock of the context's pages, at EXACT."""
    exact = state_of(context).exact
    if exact is None or not replay.info.features.get("clock"):
        return

    async def report(elapsed: int) -> tuple[ConnectionCounts, int | None]:
        state = await replay.client.report_clock(session.id, elapsed)
        counts = ConnectionCounts(
            state["sockets"], state["sent"], state["received"], state["streams"], state["events"]
        )
        return counts, state["next"]

    exact.connections.server = report


@contextmanager
def _rejected_options() -> Iterator[None]:
    """Raise TaskError for context options that the browser rejects."""
    try:
        yield
    except PlaywrightError as error:
        what = next((what for sign, what in _REJECTED.items() if sign in error.message), "")
        if what:
            reason = " ".join(error.message.split("Call log:")[0].split())
            raise TaskError(f"the browser rejects the {what}: {reason}") from error
        raise


async def made(making: Coroutine[Any, Any, T], unmake: Callable[[T], Awaitable[object]]) -> T:
    """Await the creation of a resource; if cancelled meanwhile, wait for the resource and release it."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        if task.done() and not task.cancelled() and task.exception() is None:
            await unmake(task.result())
        task.cancel()
        raise


async def _close_context(context: BrowserContext) -> bool:
    """Close a context; return False if the browser did not respond in time."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            with as_playwright_error():
                await context.close()
    except TimeoutError:
        logger.warning("browser did not close a context", extra={"seconds": _CLOSE_SECONDS})
        return False
    except PlaywrightError as error:
        logger.warning("context of an episode was missing", extra={"error": error.message})
        return False
    return True


async def close_session(client: ReplayClient, session: OpenSession) -> None:
    """Close a session; a missing one is ignored."""
    try:
        await client.close_session(session.id)
    except StillwebError as error:
        logger.warning(
            "session of an episode was missing", extra={"session": session.id, "error": str(error)}
        )


def profile_of(chosen: Profile | None, manifest: Mapping[str, Any], task: Task | None) -> Profile:
    """Return the chosen or the recorded profile, with the task's viewport and time zone."""
    profile = chosen or Profile.from_dict(manifest.get("profile") or {})
    if task and task.viewport:
        profile = replace(profile, viewport=task.viewport)
    if task and task.timezone:
        profile = replace(profile, timezone=task.timezone)
    return profile
