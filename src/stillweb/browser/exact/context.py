"""The world of a context at level EXACT: nothing comes but by leave, from the first instruction on.

Over a line of our own (`line`) every page, popup and worker of the context is met at its creation. Requests
are held and let in one by one (`answers`); frames are drawn when asked for (BeginFrame control), so that
whatever hangs on frames (observers, lazy images, scroll events) comes at rests alone; workers get the
same clock and seeds as documents. `settle` moves it on: `rest` until nothing happens by itself any more,
then the clock by a step, and so on. Who waits here waits for the browser, never for a while.

What cannot be pinned is not passed over: `flags` names it, and `info["determinism"]` shows it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stillweb.browser.cdp.connection import CdpConnection, CdpError, CdpSession
from stillweb.browser.exact.scheduler import PendingRequest, RequestScheduler, RequestStage
from stillweb.browser.exact.workers import Workers
from stillweb.errors import InfraError

if TYPE_CHECKING:
    from stillweb.browser.activity import Activity

__all__ = ["ExactContext", "Scripts"]

# Frame times lie far ahead of the machine's uptime (31 years, in ms), so that the browser never finds itself
# behind and takes the real time instead.
_FRAME_EPOCH = 1e12
_ACCOUNT_SECONDS = 1.0  # real; a request told is held within milliseconds, unless answered from memory
_BODY_SECONDS = 3.0  # real; a body that the page does not read to its end never ends
_PICTURES = 5  # frames; the first has no picture if the page has not been shown before
_OTHER_WHITE = {"r": 255, "g": 255, "b": 254, "a": 1.0}  # than the one behind a page

_LOW = ("Low", "VeryLow")  # kept back while a document's head loads (Blink's ResourceLoadScheduler)
_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:", "devtools:")


@dataclass(frozen=True, slots=True)
class Scripts:
    """What runs first: in every document that begins now; in a worker, by what tells it from others."""

    document: Callable[[], str]
    worker: Callable[[str], str]


class ExactContext:
    """Made by `open_context`; see the module.

    Attributes:
        flags: what could not be pinned, in the order in which it was first met.
        activity: is told of requests, once there is one.
        workers: of the context.
        downloads: that have begun, by the browser's names for them.
        refusals: what the browser has said of fields that it does not send.
    """

    def __init__(self, line: CdpConnection, context_id: str, scripts: Scripts, door: str) -> None:
        self.flags: list[str] = []
        self._met: dict[str, None] = {}
        self.activity: Activity | None = None
        self.downloads: set[str] = set()
        self.refusals: list[str] = []
        self.answers = RequestScheduler()
        self._line = line
        self._context_id = context_id
        self._scripts = scripts
        self.workers = Workers(scripts.worker, door, self.flag, self.answers.progress)
        self._pages: dict[str, CdpSession] = {}
        self._frame_times: dict[str, float] = {}
        self._elapsed = 0
        self._drawing: Counter[str] = Counter()  # frames under way, by page
        self._kept: dict[str, list[Callable[[], object]]] = {}  # documents that wait for those
        self._leaving: set[asyncio.Task[None]] = set()
        self._given_up: set[str] = set()  # requests that are not waited for any more
        line.claim(context_id, self._adopt)

    def close(self) -> None:
        """Let go of the context's targets."""
        self._line.release(self._context_id)

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return sum(not session.gone.is_set() for session in self._pages.values())

    def session(self, target_id: str) -> CdpSession:
        """Return the session of a page, by the identifier of its target.

        Raises:
            InfraError: if it is gone.
        """
        session = self._pages.get(target_id)
        if session is None or session.gone.is_set():
            raise InfraError("the page is closed or has crashed")
        return session

    # --- targets -----------------------------------------------------------------------------------

    def _adopt(self, session: CdpSession, target: dict[str, Any], waiting: bool) -> None:
        kind = target["type"]
        for event, heard in (
            ("Network.requestWillBeSent", partial(self._on_request, session)),
            ("Network.responseReceived", self._on_response),
            ("Network.loadingFinished", self._on_finished),
            ("Network.loadingFailed", self._on_failed),
        ):
            session.on(event, heard)
        session.on("Fetch.requestPaused", lambda event: self._on_held(session, event))
        if kind == "page":
            self._pages[target["targetId"]] = session
            self._listen_to_sockets(session)
            self._pin_page(session)
            session.on("Page.downloadWillBegin", self._on_download)
            session.post("Performance.enable")  # for `patience`
        elif kind in ("worker", "shared_worker"):
            self.workers.pin(session, target, waiting)
        listening = session.post("Network.enable")
        if kind == "shared_worker":
            listening.add_done_callback(lambda _: self._on_script_loaded(target["targetId"]))
        if kind != "worker":  # a dedicated worker's requests are held with its page's
            session.post("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        session.post(
            "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        )
        session.post("Runtime.runIfWaitingForDebugger")
        leaving = asyncio.ensure_future(self._leave(session))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, session: CdpSession) -> None:
        await session.gone.wait()
        target = session.target["targetId"]
        self._pages.pop(target, None)
        self.workers.forget(target)
        for asked in self.answers.ended_of(session):
            self._tell_ended(asked, "")

    def _pin_page(self, session: CdpSession) -> None:
        session.post("Page.enable")
        # At once: a popup's first, empty document is there already, and its opener may write into it.
        script = {"source": self._scripts.document(), "runImmediately": True}
        session.post("Page.addScriptToEvaluateOnNewDocument", script)

    def flag(self, what: str) -> None:
        """Take note of something that is not pinned."""
        self._met[what] = None
        if what not in self.flags:
            self.flags.append(what)

    def take_flags(self) -> list[str]:
        """Return what was met since the last call; what lasts is met again at each rest."""
        taken = list(self._met)
        self._met.clear()
        return taken

    # --- requests ----------------------------------------------------------------------------------

    def _on_request(self, session: CdpSession, event: dict[str, Any]) -> None:
        request = event["request"]
        kind = event.get("type", "Other").lower()
        if request["url"].startswith("data:") and kind == "document":
            self.flag("a frame's document is a data: URL, which is not held")
        if request["url"].startswith(_NO_TRAFFIC):
            return
        asked = self._sent(event["requestId"], request, kind)
        asked.asker, asked.told = self.workers.place(session.target["targetId"]), True

    def _sent(self, key: str, request: dict[str, Any], kind: str) -> PendingRequest:
        url = request["url"] + request.get("urlFragment", "")
        asked = self.answers.sent(key, request["url"], request["method"], kind, request.get("postData", ""))
        asked.late = request.get("initialPriority") in _LOW
        if self.activity:
            self.activity.began(key, url, request["method"], kind)
        return asked

    def _on_held(self, session: CdpSession, event: dict[str, Any]) -> None:
        request = event["request"]
        key = event.get("networkId") or event["requestId"]
        self._check_late(key, request["url"])
        asked = self._sent(key, request, event["resourceType"].lower())
        self.answers.held(asked, event["requestId"], session)
        # While a page is on its way to another document, the browser keeps back every command to it; so that
        # one is let in at once. A page's main frame has its target's identifier. But a frame that is being
        # drawn shall not show half of it: its layout would come early, and with it what hangs on that,
        # such as the scroll position that a history entry had.
        if asked.kind == "document" and event["frameId"] == session.target["targetId"]:
            self.answers.let(asked)
            let = partial(session.post, "Fetch.continueRequest", {"requestId": asked.hold})
            if self._drawing[session.id]:
                self._kept.setdefault(session.id, []).append(let)
            else:
                let()

    def _on_response(self, event: dict[str, Any]) -> None:
        self.answers.answered(event["requestId"])
        if event["type"] == "Document" and any(
            name.lower() == "refresh" for name in event["response"]["headers"]
        ):
            self.flag(f"{event['response']['url']} is refreshed by the real clock")
        if self.activity:
            self.activity.answered(event["requestId"], event["response"]["status"])

    def _on_finished(self, event: dict[str, Any]) -> None:
        self._check_late(event["requestId"], "an answer")
        self.answers.ended(event["requestId"])
        if self.activity:
            self.activity.ended(event["requestId"])

    def _on_failed(self, event: dict[str, Any]) -> None:
        self.answers.ended(event["requestId"])
        if self.activity:
            self.activity.ended(event["requestId"], event.get("errorText") or "failed")

    def _on_script_loaded(self, worker: str) -> None:
        """A shared worker answers: its script, requested by its page under its own name, is there.

        If it started before it could be told to tell (docs/decisions/0018-exact.md), nobody else says so.
        """
        if asked := self.answers.ended(worker):
            self._tell_ended(asked, "")

    def _give_up(self, asked: PendingRequest) -> None:
        """Wait for a request no longer: nothing is known to come of it."""
        self._given_up.add(asked.key)
        self.answers.ended(asked.key)
        self._tell_ended(asked, "")

    def _check_late(self, key: str, what: str) -> None:
        """Flag what comes after all: when it came was decided by the machine's load."""
        if key in self._given_up:
            self._given_up.discard(key)
            self.flag(f"{what} came after it had been given up")

    def _on_download(self, event: dict[str, Any]) -> None:
        """Count a download as ended: it goes on in the browser itself, of which no page is told."""
        self.downloads.add(event["guid"])
        for asked in self.answers.open:
            if asked.stage is RequestStage.LET and asked.url == event["url"]:
                self.answers.ended(asked.key)
                self._tell_ended(asked, "")

    def _tell_ended(self, asked: PendingRequest, failure: str) -> None:
        if self.activity:
            self.activity.ended(asked.key, failure)

    def _listen_to_sockets(self, session: CdpSession) -> None:
        def opened(event: dict[str, Any]) -> None:
            if self.activity:
                self.activity.socket_opened(event["requestId"], event["url"])

        def spoke(event: dict[str, Any]) -> None:
            if self.activity:
                self.activity.socket_sent(event["requestId"])

        def heard(event: dict[str, Any]) -> None:
            if self.activity:
                self.activity.socket_came(event["requestId"])

        session.on("Network.webSocketCreated", opened)
        session.on("Network.webSocketFrameSent", spoke)
        for event in ("FrameReceived", "FrameError", "Closed"):
            session.on(f"Network.webSocket{event}", heard)

    # --- coming to rest ----------------------------------------------------------------------------

    async def drain(self, idle: Callable[[], Awaitable[object]]) -> None:
        """Let in all that is held, one by one, until nothing is held, under way or about to be.

        Args:
            idle: waits until the pages have nothing to do.
        """
        before: PendingRequest | None = None
        while True:
            asked = self.answers.first_held()
            # Pictures are let in one after the other all the same, but nothing is waited for between them.
            if not (before and before.is_picture and asked and asked.is_picture):
                await self.calm(idle)
                asked = self.answers.first_held()
            before = asked
            if asked is None:
                if not await self._finish_under_way():
                    return
                continue
            await self._let(asked)

    async def calm(self, idle: Callable[[], Awaitable[object]]) -> None:
        """Wait until pages and workers have nothing to do, and each request told is accounted for."""
        begun = -1
        while begun != self.workers.begun:  # who has begun has something to say
            begun = self.workers.begun
            await idle()
            await self.workers.calm(idle)
            await self._account()

    async def until_held(self, arriving: Awaitable[object]) -> None:
        """Wait for something, but no longer than until a request is held: it may be what that waits for."""
        wanted = asyncio.ensure_future(arriving)
        while not wanted.done() and not self.answers.first_held():
            self.answers.progress.clear()
            moved = asyncio.ensure_future(self.answers.progress.wait())
            await asyncio.wait({wanted, moved}, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        wanted.cancel()

    async def _account(self) -> None:
        """Wait until of each request it is known whether it is held, and workers have begun."""
        try:
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                while self.answers.unaccounted() or self.answers.untold() or self._beginning():
                    self.answers.progress.clear()
                    await self.answers.progress.wait()
        except TimeoutError:
            for asked in self.answers.unaccounted():  # answered from the page's memory, or by nobody
                self._give_up(asked)
            for asked in self.answers.untold():
                asked.told = True
            for target in self._beginning():
                self.workers.give_up(target)

    def _beginning(self) -> list[str]:
        return self.workers.beginning({asked.url for asked in self.answers.open})

    async def _let(self, asked: PendingRequest) -> None:
        assert isinstance(asked.owner, CdpSession)
        owner = asked.owner
        self.answers.let(asked)
        try:
            await owner.send("Fetch.continueRequest", {"requestId": asked.hold})
        except CdpError:  # the page has given it up, or is gone
            self.answers.ended(asked.key)
            self._tell_ended(asked, "")
            return
        await self._wait_for(asked)

    async def _wait_for(self, asked: PendingRequest) -> None:
        while asked.stage is RequestStage.LET:
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    await asked.moved.wait()
            except TimeoutError:
                if asked.answered:
                    self._give_up(asked)

    async def _finish_under_way(self) -> bool:
        """Wait for what was let go and is not held now; return whether there was anything."""
        under_way = self.answers.under_way()
        for asked in under_way:
            await self._wait_for(asked)
        return bool(under_way) or self.answers.first_held() is not None or bool(self.answers.unaccounted())

    # --- frames and clocks -------------------------------------------------------------------------

    async def draw(self, session: CdpSession, *, picture: bool = False) -> str:
        """Draw one frame of a page; return it as base64 PNG if asked for.

        Raises:
            CdpError: if the page goes away meanwhile, or the browser does not draw.
        """
        at = max(_FRAME_EPOCH + self._elapsed, self._frame_times.get(session.id, 0.0) + 1.0)
        self._frame_times[session.id] = at
        wanted: dict[str, Any] = {"frameTimeTicks": at, "interval": 16.0}
        if picture:
            wanted["screenshot"] = {"format": "png", "optimizeForSpeed": True}
        self._drawing[session.id] += 1
        try:
            answer = await self._line.draw(session, wanted)
        finally:
            self._drawing[session.id] -= 1
            if not self._drawing[session.id]:
                for let in self._kept.pop(session.id, ()):
                    let()
        return str(answer.get("screenshotData", ""))

    async def repaint(self, session: CdpSession) -> None:
        """Have all that a page's viewport shows painted, and wait for it.

        A wheel scrolls in the compositor, which shows what other threads have painted by then, and the rest
        later: frames wait for painting only where the page itself gives the compositor something new. That is
        done here by another colour behind the page, which is taken back in the next frame.

        Raises:
            CdpError: as `draw`.
        """
        for behind in ({"color": _OTHER_WHITE}, {}):
            await session.send("Emulation.setDefaultBackgroundColorOverride", behind)
            await self.draw(session)

    async def picture(self, session: CdpSession) -> str:
        """Return what a page's viewport shows, as base64 PNG.

        Raises:
            InfraError: if the browser does not draw, or the page goes away.
        """
        for _ in range(_PICTURES):
            try:
                if picture := await self.draw(session, picture=True):
                    return picture
            except CdpError as error:
                raise InfraError(f"no screenshot: {error.message}") from error
        raise InfraError(f"the browser drew {_PICTURES} frames without a picture")

    def elapsed(self, milliseconds: int) -> None:
        """Take note of how far the clock has moved; frames are drawn for that time."""
        self._elapsed = milliseconds
