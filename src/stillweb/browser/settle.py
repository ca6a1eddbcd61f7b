"""Waiting, as one named and tested condition: a page has settled when nothing moves any more.

Nothing moves when no request is in flight, no frame is navigating, and the DOM of no frame has
changed for a while. At level CLOCK that while is virtual: `settle` moves the page's clock from
one due timer to the next, lets the browser draw a frame and the network come to rest after each
step, and never looks at the real clock, so that the time granted depends on the page alone, not
on the machine's load. At the other levels the while is real and spent inside the page. A
cap on real time ends it in any case, and says so: `settled=False` is an outcome, no error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb import clock
from stillweb.browser.activity import Activity
from stillweb.browser.cdp.connection import CdpError
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.context import PinnedState, state_of
from stillweb.browser.exact.context import ExactContext
from stillweb.browser.profile import Level
from stillweb.errors import InfraError

STEP = 50
"""Virtual milliseconds at a time: within a step timers run on, after it answers arrive."""

QUIET = 500
"""Milliseconds (virtual at CLOCK) without change that make a page settled."""

CAP = 10.0
"""Real seconds after which settling ends; at EXACT, where load must not decide, six times as many."""

HORIZON = 3000
"""Virtual milliseconds granted to a page that keeps changing."""

_FRAMES = (
    25  # drawn at one rest, at level EXACT; pages whose frames call for frames without end are not at rest
)

Look = dict[str, Any]

_PATIENCE = 3.0  # real seconds for what may never be told to have ended


@dataclass(frozen=True, slots=True)
class Settled:
    """How settling ended.

    Attributes:
        settled: whether nothing moved any more.
        reason: one clause; names what still moved.
        waited: real seconds.
        virtual_ms: how far the page's clock was moved; 0 below level CLOCK.
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
        quiet: milliseconds without change; virtual at CLOCK.
        cap: real seconds at most.
        horizon: virtual milliseconds at most, at CLOCK.

    Raises:
        InfraError: if the page is closed or has crashed, or a request of a pinned context failed by no
            fault of the page or its archive: what was seen of it is then worth nothing.
    """
    state = state_of(page.context)
    if state.world:
        cap *= 6
    settling = _Settling(await PageProbe.of(page), activity, state, quiet, horizon)
    started = clock.monotonic()
    before = state.now
    try:
        async with asyncio.timeout(cap):
            if state.pinning.level.keeps_clock:
                settled, reason = await settling.by_virtual_time()
            else:
                settled, reason = await settling.by_real_time(cap)
    except TimeoutError:
        settled, reason = False, settling.still_moving(cap)
        if state.world:
            state.world.flag(f"settling was cut off: {reason}")
    if activity.broken and state.pinning.level is not Level.LIVE:
        raise InfraError(activity.broken, hint="reset, and try again")
    virtual = state.now - before
    return Settled(settled, reason, clock.monotonic() - started, virtual)


_ESCAPE = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}


class _Settling:
    """One call of `settle`."""

    def __init__(
        self, probe: PageProbe, activity: Activity, state: PinnedState, quiet: int, horizon: int
    ) -> None:
        self.probe = probe
        self.activity = activity
        self.state = state
        self.quiet = quiet
        self.horizon = horizon
        self._door = json.dumps(state.door)
        self._last: tuple[object, ...] = ()
        self._looked: Look | None = None  # at the main frame, since which nothing has happened
        self._turned = -1  # how many transitions have begun or ended
        self._animated: int | None = None  # virtual ms until an animation ends, at level EXACT

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
            return f"{len(pending)} requests in flight after {cap:g} s, the oldest to {pending[0].url}"
        return f"still changing after {cap:g} s"

    def _span(self, due: int | None, left: int) -> int:
        """Return the next step: to the timer that is due next, but at least STEP, at most what is left."""
        if self._animated is not None:
            end = self.state.now + self._animated
            due = end if due is None else min(due, end)
        if due is None:
            return left
        return min(left, max(STEP, due - self.state.now))

    async def _rest(self) -> None:
        """Wait until requests and navigations have come to rest and a frame has been drawn since."""
        self._looked = None
        if self.state.world:
            return await self._rest_exactly(self.state.world)
        while True:
            generation = self.activity.generation
            await self._network()
            await self.probe.arrived(_PATIENCE)
            try:
                await self.probe.evaluate(f"eye.barrier({_PATIENCE * 1000:.0f})")
            except FrameGone:
                continue
            if not self.activity.in_flight and generation == self.activity.generation:
                return

    async def _rest_exactly(self, world: ExactContext) -> None:
        """Let in what is asked for, one by one, and draw a frame, until neither brings anything new."""
        world.elapsed(self.state.now - int(self.state.pinning.start.timestamp() * 1000))
        for _ in range(_FRAMES):
            await world.drain(self._idle)
            await self.activity.idle()  # frames of WebSockets
            await self._meet_popups(world)
            await world.until_held(self.probe.arrived(_PATIENCE))
            # A document has set out meanwhile: no frame shall show half of it.
            if world.answers.under_way() or world.answers.first_held():
                continue
            before = world.answers.round, self.activity.generation, self.probe.documents, self._turned
            with suppress(FrameGone, CdpError):
                await world.draw(self.probe.line)
            look = await self._snap_and_idle(world)
            now = world.answers.round, self.activity.generation, self.probe.documents, self._turned
            if not world.answers.open and before == now and look is not None:
                return

    async def _meet_popups(self, world: ExactContext) -> None:
        """Wait until Playwright knows of all pages that the browser has made."""
        context = self.probe.page.context
        with suppress(PlaywrightTimeout):
            while len(context.pages) < world.pages:
                await context.wait_for_event("page", timeout=_PATIENCE * 1000)

    async def _snap_and_idle(self, world: ExactContext) -> Look | None:
        """Have animations stand at whole milliseconds, and wait until the page has nothing to do."""
        frames = await self.probe.frames()
        if len(frames) > 1:
            await self._snapped(world, await self.probe.evaluate_all(f"eye.snap({self.state.now})", frames))
            return await self._idle()
        try:
            told = await self.probe.evaluate(f"eye.snapAndIdle({self._door}, {self.state.now})")
        except FrameGone:
            return None
        await self._snapped(world, [told])
        if told["look"] is None or await self._idle_below():  # a frame was drawn, or has come, since
            return await self._idle()
        return self._seen(told["look"])

    def _seen(self, look: Look | None) -> Look | None:
        """Take note of a look at the main frame."""
        self._looked = look
        self._turned = look["turned"] if look else -1
        self._take_flags([look])
        return look

    async def _snapped(self, world: ExactContext, told: Sequence[Look | None]) -> None:
        """Take note of when the next animation ends; draw those that were set."""
        ends = [answer["ends"] for answer in told if answer and answer["ends"] is not None]
        self._animated = min(ends, default=None)
        if any(answer["opened"] for answer in told if answer):
            await self._close_picker(world)
        if any(answer["refused"] for answer in told if answer):
            await self._take_message(world)
        if any(answer["set"] for answer in told if answer):
            with suppress(FrameGone, CdpError):
                await world.draw(self.probe.line)
        self._take_flags(told)

    async def _close_picker(self, world: ExactContext) -> None:
        """Close the list or picker that the browser has opened: no frame with a picture ends with it there.

        It takes the key, and the page hears nothing of that.
        """
        with suppress(FrameGone, CdpError):
            await self.probe.send("Input.dispatchKeyEvent", type="rawKeyDown", **_ESCAPE)
            await world.draw(self.probe.line)

    async def _take_message(self, world: ExactContext) -> None:
        """Take away the bubble that says why the browser does not send a form, and keep what it says."""
        said = await self.probe.evaluate_all("eye.accept()", await self.probe.frames())
        world.refusals += [message for message in said if message]
        with suppress(FrameGone, CdpError):
            await world.draw(self.probe.line)

    async def _idle(self) -> Look | None:
        """Wait until the page has nothing to do, and what other threads did for it has been given to it.

        Where the document that was asked goes away, the next one is asked: a page that has just arrived has
        the most to do.
        """
        look: Look | None = None
        for _ in range(_FRAMES):
            try:
                look = self._seen(await self.probe.evaluate(f"eye.idle({self._door})"))
                if not await self._idle_below():
                    break
            except FrameGone:
                look = None
                await self.probe.arrived(_PATIENCE)
        return look

    async def _idle_below(self) -> bool:
        """Give the frames what waits for them, in their order; return whether anything did."""
        frames = (await self.probe.frames())[1:]
        if not frames:
            return False
        told = await self.probe.evaluate_all(f"eye.waiting({self._door})", frames)
        waiting = [frame for frame, each in zip(frames, told, strict=True) if each and each["pending"]]
        for frame in waiting:
            self._take_flags(await self.probe.evaluate_all(f"eye.idle({self._door})", [frame]))
        self._take_flags(told)
        return bool(waiting)

    def _take_flags(self, told: Sequence[Look | None]) -> None:
        for what in [what for each in told if each for what in each.get("flags", ())]:
            if self.state.world:
                self.state.world.flag(what)

    async def _network(self) -> None:
        """Wait until no request is in flight, but for bodies that the page does not read to their end.

        Those never end: the browser stops taking them when its buffer is full.
        """
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self.activity.idle()
                    return
            except TimeoutError:
                self.activity.give_up_answered(_PATIENCE)

    async def _changed(self) -> bool:
        """Return whether anything has changed since the last call."""
        frames = await self.probe.frames()
        known = [self._looked] if self._looked and len(frames) == 1 else []
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
        changed = changed or self._animated is not None
        self._last = now
        return changed

    async def _clock(self, command: str, time: int) -> int | None:
        """Tell the clocks of all frames to move; return when the next timer is due."""
        frames = await self.probe.frames()
        move = f"eye.clock({self._door}, {json.dumps(command)}, {time})"
        told = await self.probe.evaluate_all(move, frames)
        self._looked = told[0] if self.state.world and len(frames) == 1 else None
        heard = [answer for answer in told if answer]
        self._take_flags(heard)
        if self.state.world:
            heard += await self.state.world.workers.move(command, time)
        self.state.now = max([time, *(answer["now"] for answer in heard)])
        return min((answer["next"] for answer in heard if answer["next"] is not None), default=None)

    async def _begin_documents_now(self) -> None:
        """Have new documents begin at the time that the clock shows now."""
        door = json.dumps(self.state.door + "@")
        await self.probe.begin_documents_with(
            f"dispatchEvent(new CustomEvent({door}, {{ detail: {self.state.now} }}))"
        )
