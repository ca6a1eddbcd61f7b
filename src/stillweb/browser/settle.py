"""Waiting until a page has settled, as one named and tested condition.

A page has settled when no request is in flight, no frame navigates, and the DOM of no frame has changed for a
quiet period. From level CLOCK on that period is virtual: `settle` moves the page's clock from one due
timer to the next. After each step the browser draws a frame and the network comes to rest. The real clock is
never read, so the virtual time granted depends on the page alone, not on the machine's load. Below CLOCK the
quiet period is real and measured inside the page. A limit on real time ends it in any case: `settled=False`
is an outcome, not an error.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb import clock
from stillweb.browser.activity import Activity
from stillweb.browser.cdp.connection import CdpError
from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.exact.context import ExactContext
from stillweb.browser.exact.scheduler import RequestLoop
from stillweb.browser.exact.workers import WorkerWaits
from stillweb.browser.profile import Level
from stillweb.browser.state import PinnedState, state_of
from stillweb.errors import InfraError

STEP = 50
"""Virtual milliseconds per step: timers run during a step, responses arrive after it."""

QUIET = 500
"""Milliseconds without change (virtual from CLOCK on) after which a page has settled."""

CAP = 10.0
"""Real seconds after which settling ends; six times as many at EXACT, where load must not matter."""

HORIZON = 3000
"""Virtual milliseconds for a page that keeps changing."""

_FRAMES = 25  # limit per rest at level EXACT, for pages whose frames request further frames without end

FrameState = dict[str, Any]

_TRAVEL_SECONDS = 30.0  # real, until a step in history has begun; a page may refuse it
_END_SECONDS = 3.0  # real, for events whose end may never be reported


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of `settle`.

    Attributes:
        settled: False if the time limit ended the wait.
        reason: one clause; names every request in flight, oldest first.
        waited: real seconds.
        virtual_ms: advance of the page's clock; 0 below level CLOCK.
    """

    settled: bool
    reason: str
    waited: float
    virtual_ms: int


async def settle(
    page: Page,
    activity: Activity,
    *,
    quiet: int = QUIET,
    cap: float = CAP,
    horizon: int = HORIZON,
) -> Settled:
    """Wait until a page has settled.

    Args:
        page: of a context opened by `open_context`.
        activity: of that context.
        quiet: milliseconds without change; virtual from CLOCK on.
        cap: real seconds at most.
        horizon: virtual milliseconds at most, from CLOCK on.

    Raises:
        InfraError: if the page is closed or has crashed, or a request of a pinned context failed for a reason
            that neither the page nor its archive caused; observations are invalid then.
    """
    state = state_of(page.context)
    if state.exact:
        cap *= 6
    activity.begin_settling()
    settling = _Settling(await PageProbe.of(page), activity, state, quiet, horizon)
    started = clock.monotonic()
    before = state.now
    try:
        async with asyncio.timeout(cap):
            if state.pinning.level.keeps_clock:
                settled, reason = await settling.by_virtual_time()
            else:
                settled, reason = await settling.by_real_time(cap)
    except RequestLoop as loop:
        settled, reason = False, str(loop)
    except TimeoutError:
        settled, reason = False, settling.still_moving(cap)
        if state.exact:
            state.exact.flag(f"settling was cut off: {reason}")
    if activity.broken and state.pinning.level is not Level.LIVE:
        raise InfraError(activity.broken, hint="reset, and try again")
    virtual = state.now - before
    return Settled(settled, reason, clock.monotonic() - started, virtual)


_ESCAPE = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}


class _Settling:
    def __init__(
        self, probe: PageProbe, activity: Activity, state: PinnedState, quiet: int, horizon: int
    ) -> None:
        self.probe = probe
        self.activity = activity
        self.state = state
        self.quiet = quiet
        self.horizon = horizon
        self._control = json.dumps(state.control)
        self._last: tuple[object, ...] = ()
        self._known: FrameState | None = None  # of the main frame, if nothing has happened since
        self._transitions = -1  # number begun or ended
        self.waits = WorkerWaits()
        self._workers_of_main: FrameState | None = None
        # Frames, except the page's main one, whose workers or messages are under way.
        self._creators: list[tuple[PageProbe, FrameInfo]] = []
        self._waits_of_page = self._waits_of_others = WorkerWaits()
        self._changes: dict[str, int] = {}  # of the documents of other pages, by loader
        self._unreported = 0  # number of pages if Playwright does not report all of them
        self._step: tuple[FrameInfo | None, int] | None = None  # first step in history, and its frame
        self._animation_left: int | None = None  # virtual ms until the next end, at level EXACT

    async def by_virtual_time(self) -> tuple[bool, str]:
        await self._begin_documents_now()
        await self._rest()
        due = await self._clock("adopt", self.state.now)
        await self._changed()
        still = spent = 0
        while still < self.quiet and spent < self.horizon:
            span = self._span(due, self.quiet - still)
            due = await self._clock("advance", self.state.now + span)
            spent += span
            await self._rest()
            if await self._changed():
                still = 0
                due = await self._clock("adopt", self.state.now)
            else:
                still += span
        await self._begin_documents_now()
        if still >= self.quiet:
            return True, f"nothing changed for {self.quiet} virtual ms"
        return False, f"still changing after {spent} virtual ms"

    async def by_real_time(self, cap: float) -> tuple[bool, str]:
        while True:
            await self._rest()
            before = (self.activity.generation, self.probe.documents)
            expression = f"eye.quiet({self.quiet}, {int(cap * 1000)})"
            await self.probe.evaluate_all(expression, await self.probe.frames())
            if before == (self.activity.generation, self.probe.documents):
                return True, f"nothing changed for {self.quiet} ms"

    def still_moving(self, cap: float) -> str:
        if pending := self.activity.in_flight:
            number = "1 request" if len(pending) == 1 else f"{len(pending)} requests"
            equal = Counter(map(str, pending))
            named = (f"{each} ({times} times)" if times > 1 else each for each, times in equal.items())
            return f"{number} in flight after {cap:g} s: " + "; ".join(named)
        return f"still changing after {cap:g} s"

    def _span(self, due: int | None, left: int) -> int:
        """Return the next step: to the next timer, within STEP and `left`."""
        if exact := self.state.exact:
            start = int(self.state.pinning.start.timestamp() * 1000)
            for arrival in (exact.connections.next_due, exact.requests.next_due):
                if arrival is not None:
                    due = min(start + arrival, due) if due is not None else start + arrival
        if self._animation_left is not None:
            end = self.state.now + self._animation_left
            due = end if due is None else min(due, end)
        if due is None:
            return left
        return min(left, max(STEP, due - self.state.now))

    async def _rest(self) -> None:
        """Wait until no request or navigation is under way and a frame has been drawn since."""
        self._known = None
        if self.state.exact:
            return await self._rest_exactly(self.state.exact)
        while True:
            generation = self.activity.generation
            await self._network()
            await self.probe.arrived(_END_SECONDS)
            try:
                await self.probe.evaluate(f"eye.barrier({_END_SECONDS * 1000:.0f})")
            except FrameGone:
                continue
            if not self.activity.in_flight and generation == self.activity.generation:
                return

    async def _rest_exactly(self, exact: ExactContext) -> None:
        """Release requests one at a time and draw a frame, until neither causes anything new."""
        exact.frames.elapsed = self.state.now - int(self.state.pinning.start.timestamp() * 1000)
        for _ in range(_FRAMES):
            await exact.drain(self)
            await self.activity.idle()  # frames of WebSockets
            if await self._wait_for_popups(exact) or await self._take_step() or await self._arrive(exact):
                continue
            await exact.until_paused(self.probe.arrived(_END_SECONDS))
            exact.requests.check_loads()
            # A document has begun to load: no frame may show half of it.
            if exact.requests.released() or exact.requests.next_paused():
                continue
            before = exact.requests.round, self.activity.generation, self.probe.documents, self._transitions
            with suppress(FrameGone, CdpError):
                await exact.frames.draw(self.probe.cdp)
            look = await self._snap_and_idle(exact)
            now = exact.requests.round, self.activity.generation, self.probe.documents, self._transitions
            if not exact.requests.open and before == now and look is not None:
                return

    async def _wait_for_popups(self, exact: ExactContext) -> bool:
        """Wait until Playwright has reported all pages of the browser; return True if any was missing."""
        context = self.probe.page.context
        before = len(context.pages)
        if exact.pages == self._unreported:  # waited for in vain
            return False
        with suppress(PlaywrightTimeout):
            while len(context.pages) < exact.pages:
                await context.wait_for_event("page", timeout=_END_SECONDS * 1000)
        self._unreported = exact.pages if len(context.pages) < exact.pages else 0
        return len(context.pages) > before

    async def _arrive(self, exact: ExactContext) -> bool:
        """Deliver what has arrived over WebSockets and event streams; return True if anything had."""
        if not await exact.arrive():
            return False
        replies: list[FrameState | None] = []
        call = f"eye.clock({self._control}, 'arrive', 0)"
        for page in self.probe.page.context.pages:
            with suppress(InfraError, FrameGone):  # closed meanwhile
                probe = await PageProbe.of(page)
                for frame in await probe.frames():
                    replies += await probe.evaluate_all(call, [frame])
        self._take_flags(replies)
        replies += await exact.workers.move("arrive", 0)
        return any(reply["given"] for reply in replies if reply)

    async def _take_step(self) -> bool:
        """Let a script take its next step in history; return True if one did."""
        if self._step is None:
            return False
        (frame, count), self._step = self._step, None
        with suppress(FrameGone):
            history = await self.probe.send("Page.getNavigationHistory")
            exists = 0 <= history["currentIndex"] + count < len(history["entries"])
            call = f"eye.clock({self._control}, 'step', 0)"
            await self.probe.travelling(
                self.probe.evaluate_all(call, [frame or (await self.probe.frames())[0]]),
                _TRAVEL_SECONDS if exists else 0.0,
            )
        return True

    async def _snap_and_idle(self, exact: ExactContext) -> FrameState | None:
        """Set animations to whole milliseconds, and wait until the page has nothing to do."""
        frames = await self.probe.frames()
        if len(frames) > 1:
            if any(await self.probe.evaluate_all(f"eye.captured({self._control})", frames)):
                return None
            await self._snapped(exact, await self.probe.evaluate_all(f"eye.snap({self.state.now})", frames))
            return await self.idle()
        try:
            reply = await self.probe.evaluate(f"eye.snapAndIdle({self._control}, {self.state.now})")
        except FrameGone:
            return None
        if reply is None:  # a view transition has begun
            return None
        await self._snapped(exact, [reply])
        has_others = len(self.probe.page.context.pages) > 1
        look = reply["look"]
        # A frame was drawn or added.
        if look is None or look["began"] or has_others or await self._idle_frames():
            await exact.frames_begun()
            return await self.idle()
        return self._seen(look)

    def _seen(self, look: FrameState | None) -> FrameState | None:
        self._known = look
        self._workers_of_main = look["workers"] if look else None
        self._note_workers([], [])
        self._transitions = look["turned"] if look else -1
        self._step = (None, look["steps"]) if look and look["steps"] else None
        self._take_flags([look])
        return look

    async def _snapped(self, exact: ExactContext, replies: Sequence[FrameState | None]) -> None:
        """Store the time to the next end of an animation; draw changed animations."""
        ends = [reply["ends"] for reply in replies if reply and reply["ends"] is not None]
        self._animation_left = min(ends, default=None)
        if any(reply["opened"] for reply in replies if reply):
            await self._close_picker(exact)
        if any(reply["refused"] for reply in replies if reply):
            await self._take_message(exact)
        if any(reply["set"] for reply in replies if reply):
            with suppress(FrameGone, CdpError):
                await exact.frames.draw(self.probe.cdp)
        self._take_flags(replies)

    async def _close_picker(self, exact: ExactContext) -> None:
        """Close the browser's open list or picker, without which no frame with a picture ends.

        The picker consumes the key, so the page gets no event.
        """
        with suppress(FrameGone, CdpError):
            await self.probe.send("Input.dispatchKeyEvent", type="rawKeyDown", **_ESCAPE)
            await exact.frames.draw(self.probe.cdp)

    async def _take_message(self, exact: ExactContext) -> None:
        """Remove the bubble about a form that the browser does not submit, and store its text."""
        answers = await self.probe.evaluate_all("eye.accept()", await self.probe.frames())
        exact.refusals += [message for message in answers if message]
        with suppress(FrameGone, CdpError):
            await exact.frames.draw(self.probe.cdp)

    async def idle(self) -> FrameState | None:
        """Wait until the context's pages have nothing to do, and have the results of other threads.

        Other pages (a popup, its opener) share requests, channels and storage with the page. Their documents
        run, too; only their timers wait.
        """
        look = await self._idle_page()
        for _ in range(_FRAMES):
            if not await self._idle_others():
                break
            look = await self._idle_page()
        return look

    async def _idle_page(self) -> FrameState | None:
        """Wait until the page has nothing to do.

        If the document navigates away, wait for the next one, which has the most to do.
        """
        look: FrameState | None = None
        for _ in range(_FRAMES):
            try:
                look = self._seen(await self.probe.evaluate(f"eye.idle({self._control})"))
                if look and look["began"] and self.state.exact:
                    await self.state.exact.frames_begun()
                    continue
                if not await self._idle_frames():
                    break
            except FrameGone:
                look = None
                await self.probe.arrived(_END_SECONDS)
                if self.state.exact:  # a document that still arrives is idle between two parts
                    await self.state.exact.finish_released()
        return look

    async def _idle_others(self) -> bool:
        """Wait until the other pages have nothing to do; return True if any had."""
        if self.state.exact:
            await self._wait_for_popups(self.state.exact)
        others = [page for page in self.probe.page.context.pages if page is not self.probe.page]
        self._waits_of_others = WorkerWaits()
        had = False
        for page in others:
            with suppress(InfraError, FrameGone):  # closed meanwhile
                had |= await self._idle_other(await PageProbe.of(page))
        if others:
            self._sum_waits()
        return had

    async def _idle_other(self, probe: PageProbe) -> bool:
        if self.state.exact:
            await self.state.exact.until_paused(probe.arrived(_END_SECONDS))
        had = False
        for frame in await probe.frames():
            (reply,) = await probe.evaluate_all(f"eye.idle({self._control}, true)", [frame])
            if reply is None:
                continue
            self._take_flags([reply])
            had |= reply["gave"] or self._changes.get(frame.loader) != reply["changes"]
            self._changes[frame.loader] = reply["changes"]
            if _is_pending(reply["workers"]):
                self._creators.append((probe, frame))
            self._waits_of_others += WorkerWaits.of([reply["workers"]])
        return had

    async def started(self) -> None:
        """Wait until a worker of a page has begun, or a message to one has arrived."""
        main = (await self.probe.frames())[:1] if _is_pending(self._workers_of_main) else []
        frames = [*((self.probe, frame) for frame in main), *self._creators]
        if not frames:
            return
        calls = [
            asyncio.ensure_future(probe.evaluate(f"eye.started({self._control})", f)) for probe, f in frames
        ]
        try:
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _idle_frames(self) -> bool:
        """Deliver pending results to the frames in order; return True if any were pending."""
        frames = (await self.probe.frames())[1:]
        if not frames:
            return False
        replies = await self.probe.evaluate_all(f"eye.waiting({self._control})", frames)
        waiting = [frame for frame, each in zip(frames, replies, strict=True) if each and each["pending"]]
        for frame in waiting:
            self._take_flags(await self.probe.evaluate_all(f"eye.idle({self._control})", [frame]))
        self._take_flags(replies)
        self._note_workers(frames, replies)
        for frame, each in zip(frames, replies, strict=True):
            if each and each["steps"] and self._step is None:
                self._step = frame, each["steps"]
        return bool(waiting)

    def _note_workers(self, frames: Sequence[FrameInfo], replies: Sequence[FrameState | None]) -> None:
        self._waits_of_page = WorkerWaits.of([self._workers_of_main, *replies])
        self._creators = [
            (self.probe, frame) for frame, each in zip(frames, replies, strict=True) if _is_pending(each)
        ]
        self._sum_waits()

    def _sum_waits(self) -> None:
        self.waits = self._waits_of_page + self._waits_of_others

    def _take_flags(self, replies: Sequence[FrameState | None]) -> None:
        for what in [what for each in replies if each for what in each.get("flags", ())]:
            if self.state.exact:
                self.state.exact.flag(what)

    async def _network(self) -> None:
        """Wait until no request is in flight, except bodies that the page does not read to their end.

        Those never end: the browser stops reading them when its buffer is full.
        """
        while True:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self.activity.idle()
                    return
            except TimeoutError:
                self.activity.give_up_responded(_END_SECONDS)

    async def _changed(self) -> bool:
        """Return True if anything has changed since the last call."""
        frames = await self.probe.frames()
        known = [self._known] if self._known and len(frames) == 1 else []
        looks = known + await self.probe.evaluate_all("eye.look()", frames[len(known) :])
        now = (
            self.activity.generation,
            self.probe.documents,
            tuple(
                (frame.id, frame.url, look and look["changes"])
                for frame, look in zip(frames, looks, strict=True)
            ),
        )
        changed = now != self._last or any(look is None or look["loading"] for look in looks)
        changed = changed or self._animation_left is not None
        self._last = now
        return changed

    async def _clock(self, command: str, time: int) -> int | None:
        """Move the clocks of all frames and workers; return when the next timer is due."""
        frames = await self.probe.frames()
        move = f"eye.clock({self._control}, {json.dumps(command)}, {time})"
        if self.state.exact and len(frames) > 1:
            # Tasks that the timers of one frame have posted come before those of the next one.
            turn = f"{move}.then(eye.afterTasks)"
            replies = [each for frame in frames for each in await self.probe.evaluate_all(turn, [frame])]
        else:
            replies = await self.probe.evaluate_all(move, frames)
        self._known = replies[0] if self.state.exact and len(frames) == 1 else None
        moved = [reply for reply in replies if reply]
        self._take_flags(moved)
        if self.state.exact:
            moved += await self.state.exact.workers.move(command, time)
        self.state.now = max([time, *(reply["now"] for reply in moved)])
        return min((reply["next"] for reply in moved if reply["next"] is not None), default=None)

    async def _begin_documents_now(self) -> None:
        """Make new documents begin at the current virtual time."""
        control = json.dumps(self.state.control + "@")
        await self.probe.begin_documents_with(
            f"dispatchEvent(new CustomEvent({control}, {{ detail: {self.state.now} }}))"
        )


def _is_pending(reply: FrameState | None) -> bool:
    return bool(reply and (reply["starting"] or reply["unread"]))
