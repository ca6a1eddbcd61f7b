"""Controller of one browser context at level EXACT.

The CDP connection reports every page, popup and worker of the context at its creation, before its first
instruction. Requests are paused and released one at a time (`RequestScheduler`). Frames are drawn on demand
(BeginFrame control), so that observers, lazy images and scroll events run at rests alone. Workers get the
same clock and seeds as documents. `settle` alternates between a rest, at which nothing happens spontaneously
any more, and a step of the clock. Every wait is for an event of the browser, never for a period of time.

Anything that cannot be pinned is listed in `flags`, which `info["determinism"]` shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stillweb import clock
from stillweb.browser.cdp.connection import (
    CdpConnection,
    CdpError,
    CdpSession,
    PendingResult,
)
from stillweb.browser.cdp.reports import (
    DELAYED,
    NO_TRAFFIC,
    VIOLATION,
    is_local,
    is_local_script,
    is_synchronous,
    is_worker_script,
    script_precedence,
    source_of,
)
from stillweb.browser.exact.connections import Connections
from stillweb.browser.exact.console import Console
from stillweb.browser.exact.frames import DrawnFrames, FrameDocuments
from stillweb.browser.exact.scheduler import PendingRequest, RepeatedPaths, RequestScheduler, RequestStage
from stillweb.browser.exact.workers import PageSide, Workers
from stillweb.errors import InfraError
from stillweb.urls import BLOB_URL

if TYPE_CHECKING:
    from stillweb.browser.activity import Activity

_ACCOUNT_SECONDS = 1.0  # real; a reported request is paused within milliseconds, unless served from memory
_START_SECONDS = 30.0  # real; a worker that is not blocked begins within milliseconds on an idle machine
# A worker that has evaluated its script reports it to its creator, which then sends the messages that waited.
_BEGIN_ROUNDS = 2
_BODY_SECONDS = 3.0  # real, without a part of it; a body that the page does not read to its end never ends
_RESPONSE_SECONDS = 60.0  # real, as a settle; requests of a document that was replaced may never end
_KEY_STEP = 0.1  # seconds between two events of keys at one instant; type-ahead of lists ends after 1 s
_NO_DOCUMENT = (204, 205)  # RFC 9110 §15.3.5, §15.3.6; a navigation stays where it is


@dataclass(frozen=True, slots=True)
class Scripts:
    """Sources of initial scripts: for documents that begin now, and for a worker by its name."""

    document: Callable[[], str]
    worker: Callable[[str], str]


class ExactContext:
    """Controller of one deterministic browser context; made by `open_context`.

    Attributes:
        flags: what could not be pinned, in order of first appearance.
        activity: receives the requests, if set.
        workers: of the context.
        connections: WebSockets and event streams of the context.
        console: messages of pages and workers.
        frames: of the context's pages, which are drawn on demand.
        downloads: the browser's identifiers of downloads that have begun.
        refusals: the browser's messages for form fields that it refused to submit.
        landed: URL of the context's first document, after redirects.
    """

    def __init__(self, connection: CdpConnection, context_id: str, scripts: Scripts, control: str) -> None:
        self.flags: list[str] = []
        self._new_flags: dict[str, None] = {}
        self.activity: Activity | None = None
        self.downloads: set[str] = set()
        self.refusals: list[str] = []
        self.landed = ""
        self._first_document = ""  # its request
        self.requests = RequestScheduler()
        self._connection = connection
        self.frames = DrawnFrames(connection)
        self._context_id = context_id
        self._scripts = scripts
        self.workers = Workers(
            scripts.worker, control, self.flag, self.requests.progress, self._on_script_arrived
        )
        self.connections = Connections(self.flag, lambda: self.activity)
        self.console = Console(lambda: (self.frames.elapsed, self.requests.round))
        self._pages: dict[str, CdpSession] = {}
        self._adopted_pages = 0  # so far
        self._loading_pages: set[str] = set()  # sessions of pages whose load event has not fired
        self._ending: set[asyncio.Task[None]] = set()
        self._documents = FrameDocuments(self.flag, self.requests.progress)
        self._pinning: set[PendingResult] = set()  # commands to new pages and workers
        self._given_up: set[str] = set()  # requests that are no longer awaited
        self._cancelled: set[str] = set()  # requests that ended before they were paused
        self._key_epoch = clock.now().timestamp()
        self._last_key = 0.0
        connection.claim(context_id, self._adopt, self._key_time)

    def _key_time(self) -> float:
        """Return the time of the next key of Playwright, in seconds since 1970."""
        # A list ignores a key that is older than the last one, by times that Chromium converts inexactly.
        self._last_key = max(self._key_epoch + self.frames.elapsed / 1000, self._last_key + _KEY_STEP)
        return self._last_key

    def mute(self) -> None:
        """Let Playwright have no events of requests and responses of pages that open from now on."""
        self._connection.mute(self._context_id)

    def close(self) -> None:
        """Release the context's targets."""
        self._connection.release(self._context_id)

    @property
    def pages(self) -> int:
        """Number of pages that Playwright reports: not those of popups that got no document."""
        return sum(
            not session.gone.is_set() and target not in self._documents.empty_popups
            for target, session in self._pages.items()
        )

    def session(self, target_id: str) -> CdpSession:
        """Return the session of a page, by its target.

        Raises:
            InfraError: if the page is gone.
        """
        session = self._pages.get(target_id)
        if session is None or session.gone.is_set():
            raise InfraError("the page is closed or has crashed")
        return session

    def only_page(self) -> CdpSession | None:
        """Return the session of the context's page; None if it is gone, or the context has had others."""
        here = [session for session in self._pages.values() if not session.gone.is_set()]
        return here[0] if here and self._adopted_pages == 1 else None

    # --- targets -----------------------------------------------------------------------------------

    def _adopt(self, session: CdpSession, target: dict[str, Any], waiting: bool) -> None:
        kind = target["type"]
        for event, callback in (
            ("Network.requestWillBeSent", partial(self._on_request, session)),
            ("Network.responseReceived", partial(self._on_response, session)),
            ("Network.dataReceived", self._on_data),
            ("Network.loadingFinished", self._on_finished),
            ("Network.loadingFailed", partial(self._on_failed, session)),
        ):
            session.on(event, callback)
        session.on("Fetch.requestPaused", lambda event: self._on_paused(session, event))
        self.connections.follow(session)
        number = len(self._pages)
        self.console.follow(session, lambda: max(self.workers.name(target["targetId"]), ("", number)))
        if kind == "page":
            self._pages[target["targetId"]] = session
            self._adopted_pages += 1
            self._pin_page(session)
            session.on("Page.downloadWillBegin", self._on_download)
            session.on("Page.frameNavigated", partial(self._on_navigated, session))
            session.on("Page.loadEventFired", lambda _: self._loading_pages.discard(session.id))
            session.on("Page.frameDetached", self._on_detached)
            self._documents.follow(session)
        elif kind in ("worker", "shared_worker"):
            self.workers.pin(session, target, waiting)
        listening = session.post("Network.enable")
        session.post("Network.setCacheDisabled", {"cacheDisabled": True})
        if kind == "shared_worker":
            listening.add_done_callback(lambda _: self._on_script_loaded(target["targetId"]))
        if kind != "worker":  # a dedicated worker's requests are paused by its page's session
            session.post("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
        attaching = session.post(
            "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        )
        if kind != "worker":  # that waits for every connection
            self._pin_first(session, attaching)
        session.post("Runtime.runIfWaitingForDebugger")
        ending = asyncio.ensure_future(self._end_with(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_with(self, session: CdpSession) -> None:
        await session.gone.wait()
        target = session.target["targetId"]
        self._pages.pop(target, None)
        self._loading_pages.discard(session.id)
        self.workers.forget(target)
        self.connections.left(session.id)
        self._documents.forget(session)
        for request in self.requests.open:
            if request.owner is session:
                self._end(request.key)

    def _pin_page(self, session: CdpSession) -> None:
        session.post("Page.enable")
        # Immediately: a popup's first, empty document already exists, and its opener may write into it.
        script = {"source": self._scripts.document(), "runImmediately": True}
        session.post("Page.addScriptToEvaluateOnNewDocument", script)
        session.post("Performance.enable")  # for `wait_for_slow`

    def _pin_first(self, session: CdpSession, pinned: PendingResult) -> None:
        self._pinning.add(pinned)

        def ended(_: PendingResult) -> None:
            self._pinning.discard(pinned)
            self.requests.progress.set()

        def resume(event: dict[str, Any]) -> None:
            if event["frameId"] == session.target["targetId"]:
                self._documents.hold(event)  # its page reports its answer, under another identifier
                self._on_paused(session, event, self._connection.root)
            else:
                self._connection.resume(event)

        self._connection.pin_first(session, pinned, resume)
        pinned.add_done_callback(ended)

    def flag(self, what: str) -> None:
        """List something that is not pinned."""
        what = BLOB_URL.sub(r"\1", what)
        self._new_flags[what] = None
        if what not in self.flags:
            self.flags.append(what)
            self.workers.note_flag(what)

    def take_flags(self) -> list[str]:
        """Return the flags since the last call; lasting causes are flagged again at each rest."""
        taken = list(self._new_flags)
        self._new_flags.clear()
        return taken

    # --- requests ----------------------------------------------------------------------------------

    def _on_request(self, session: CdpSession, event: dict[str, Any]) -> None:
        request = event["request"]
        kind = event.get("type", "Other").lower()
        if kind == "script" and is_worker_script(event["requestId"]):
            self.workers.requested(event["requestId"], request["url"])
            self._on_worker_script(session, event["requestId"])
        if kind == "document" and not request["url"].startswith(NO_TRAFFIC):
            self._documents.requested(event.get("frameId", ""))
            self._first_document = self._first_document or event["requestId"]
            if event["requestId"] == self._first_document:
                self.landed = request["url"]
        if request["url"].startswith("data:") and kind == "document":
            self.flag("a frame's document is a data: URL, which is not held")
        if session.target["type"] == "page" and is_local(event, kind):
            self._on_local(session, event, kind)
        if kind == "prefetch" and event["requestId"] == event["loaderId"]:  # that of a <link> has its own id
            self.flag("a document was prefetched by speculation rules, which nothing holds")
            return
        if request["url"].startswith(NO_TRAFFIC) or self._is_dropped(event, kind):
            return
        frame = event.get("frameId", "") if kind == "document" else ""
        pending = self._sent(self._documents.key_of(event["requestId"], frame), request, kind)
        pending.kind = pending.kind if pending.is_report else kind
        pending.source, pending.frame = source_of(session.target, event), frame
        if kind == "script":
            pending.precedence = script_precedence(event)
        if kind == "eventsource":
            self.connections.stream_began(session.id, event["requestId"])
        pending.requester = self.workers.name(session.target["targetId"])
        pending.requester_known = True

    def _on_local(self, session: CdpSession, event: dict[str, Any], kind: str) -> None:
        """Await what cannot be paused; flag a script that races with another one or the document."""
        if kind == "script":
            scripts = (is_local_script(each.url, each.kind) for each in self.requests.released())
            if session.id in self._loading_pages or any(scripts):
                self.flag("a script of a blob: or data: URL came beside a loading document or another one")
        pending = self.requests.sent(event["requestId"], event["request"]["url"], "GET", kind)
        pending.owner, pending.reported, pending.responded = session, True, True
        self.requests.release(pending, counts=False)

    def _sent(self, key: str, request: dict[str, Any], kind: str) -> PendingRequest:
        body = request.get("postData", "")
        pending = self.requests.sent(key, request["url"], request["method"], kind, body)
        pending.fragment = request.get("urlFragment", "")
        pending.late = request.get("initialPriority") in DELAYED
        if pending.reported:  # a redirect
            self._begin(pending)
        return pending

    def _on_worker_script(self, session: CdpSession, key: str) -> None:
        def resume(event: dict[str, Any]) -> None:
            if session.target["type"] == "worker" and not event["request"]["url"].startswith(NO_TRAFFIC):
                self._on_paused(session, event, self._connection.root)
            else:  # the session of the page pauses it, too
                self._connection.resume(event)

        if session.target["type"] == "worker":
            self.workers.reported(session.target["targetId"], key)
        self._connection.when_script_held(key, resume)

    def _is_dropped(self, event: dict[str, Any], kind: str) -> bool:
        return kind == "document" and event.get("frameId") in self._documents.removed

    def _report(self, pending: PendingRequest) -> None:
        """List a request in `Activity`.

        The request is listed at a rest, in the order of release, or as soon as it proceeds: reports come from
        several processes, in any order.
        """
        if self.activity and not pending.reported:
            pending.reported = True
            self._begin(pending)

    def _begin(self, pending: PendingRequest) -> None:
        if self.activity:
            url = pending.url + pending.fragment
            self.activity.began(pending.key, url, pending.method, pending.kind, pending.source)

    def _on_paused(
        self, session: CdpSession, event: dict[str, Any], holder: CdpSession | None = None
    ) -> None:
        """Handle a paused request of a target; `holder` is the session that paused it if not the target's."""
        request = event["request"]
        post, held = (holder or session).post, {"requestId": event["requestId"]}
        resume = partial(post, "Fetch.continueRequest", held)
        refuse = partial(post, "Fetch.failRequest", {**held, "errorReason": "Aborted"})
        frame = event["frameId"] if event["resourceType"] == "Document" else ""
        key = self._documents.key_of(event.get("networkId") or event["requestId"], "" if holder else frame)
        self._documents.requested(frame)
        if self._is_dropped(event, event["resourceType"].lower()) or key in self._cancelled:
            refuse()
            return
        self._flag_if_given_up(key, request["url"])
        pending = self._sent(key, request, event["resourceType"].lower())
        self.requests.paused(pending, event["requestId"], holder or session)
        if event["resourceType"] == VIOLATION:  # its page reports it as "Other", before or after this
            pending.kind = VIOLATION.lower()
        pending.frame = frame or pending.frame
        if is_synchronous(event):
            # Its thread is blocked, so the release is atomic for it; others wait for their own.
            self._report(pending)
            self.requests.release(pending, counts=False)
            resume()
        # While a page navigates to another document, the browser delays every command to it, so its document
        # is released immediately. A page's main frame has its target's identifier. A frame that is being
        # drawn must not show half of the new document: its layout would come early, and with it effects such
        # as the scroll position of a history entry.
        elif pending.kind == "document" and event["frameId"] == session.target["targetId"]:
            self._report(pending)
            # Requests that the page made before it leaves are reported before or after this.
            self._flag_if_beside(pending)
            pending.owner = session  # also if another one paused it: it ends with its page
            self.requests.release(pending, counts=False)
            may_load = self.requests.may_load(pending, self.frames.elapsed)
            self.frames.run_after(session, resume if may_load else refuse)

    def _flag_if_beside(self, document: PendingRequest) -> None:
        """Flag a document of a page, which is not held, beside that of another page."""
        frames = {each.frame for each in self.requests.released() if each.kind == "document"}
        if frames & self._pages.keys() - {document.frame}:
            self.flag("documents of several pages came at one time")

    def _on_detached(self, event: dict[str, Any]) -> None:
        """Drop the document request of a removed frame; whether it was made at all is a race."""
        if event.get("reason") == "swap":
            return
        self._documents.detached(event["frameId"])
        for request in self.requests.open:
            if request.frame == event["frameId"] and request.stage is not RequestStage.RELEASED:
                self.requests.ended(request.key)

    def _on_navigated(self, session: CdpSession, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == session.target["targetId"]:
            self._loading_pages.add(session.id)
            self.connections.left(session.id)
            # A key that is older than its document ends the renderer if the page then changes its URL: a
            # CHECK of SoftNavigationHeuristics compares it with the navigation, which has the real time.
            self._key_epoch = max(self._key_epoch, clock.now().timestamp() - self.frames.elapsed / 1000)

    def _on_response(self, session: CdpSession, event: dict[str, Any]) -> None:
        frame = event.get("frameId", "") if event["type"] == "Document" else ""
        key, response = self._documents.key_of(event["requestId"], frame), event["response"]
        if frame and response["status"] in _NO_DOCUMENT:
            self._documents.note_empty(session.target, frame)
        if pending := self.requests.get(key):
            self._report(pending)
        self.requests.responded(key)
        if event["type"] == "Document" and any(name.lower() == "refresh" for name in response["headers"]):
            self.flag(f"{response['url']} is refreshed by the real clock")
        if self.activity:
            self.activity.responded(key, response["status"])

    def _on_data(self, event: dict[str, Any]) -> None:
        if pending := self.requests.get(self._documents.key_of(event["requestId"])):
            pending.received += 1

    def _on_finished(self, event: dict[str, Any]) -> None:
        key = self._documents.key_of(event["requestId"])
        self._flag_if_given_up(key, "an answer")
        self._end(key)

    def _on_failed(self, session: CdpSession, event: dict[str, Any]) -> None:
        frame = session.target["targetId"] if event["type"] == "Document" else ""
        key = self._documents.key_of(event["requestId"], frame)
        request = self.requests.get(key)
        if event.get("canceled") and (request is None or request.stage is RequestStage.SENT):
            self._cancelled.add(key)  # it may still be paused
        if event.get("canceled") and request and request.stage in (RequestStage.SENT, RequestStage.PAUSED):
            request.reported = True  # whether it was sent before its cancellation is a race of two processes
            # A page that leaves does not wait for keepalive requests.
            if isinstance(request.owner, CdpSession):
                refusal = {"requestId": request.fetch_id, "errorReason": "Aborted"}
                request.owner.post("Fetch.failRequest", refusal)
        self._end(key, event.get("errorText") or "failed")

    def _on_script_loaded(self, worker: str) -> None:
        """A shared worker replies, so its script has loaded; its page requested it under the worker's id.

        If the worker started before its events were enabled (docs/decisions/0018-exact.md), no event reports
        that.
        """
        if self.requests.get(worker):
            self._end(worker)

    def _on_script_arrived(self, worker: str) -> None:
        """A worker waits before its first instruction; it reports the end of its script when it runs."""
        if request := self.requests.get(worker):
            self._report(request)
            self.requests.ended(worker)

    def _give_up(self, request: PendingRequest) -> None:
        self._given_up.add(request.key)
        self._end(request.key)

    def _flag_if_given_up(self, key: str, what: str) -> None:
        """Flag a late event of a request: its time depends on the machine's load."""
        if key in self._given_up:
            self._given_up.discard(key)
            self.flag(f"{what} came after it had been given up")

    def _on_download(self, event: dict[str, Any]) -> None:
        """End the request of a download: it continues in the browser process, which no page reports."""
        self.downloads.add(event["guid"])
        for request in self.requests.released():
            if request.url == event["url"]:
                self._end(request.key)

    def _end(self, key: str, failure: str = "") -> None:
        if request := self.requests.get(key):
            self._report(request)
        self.requests.ended(key)
        self.connections.ended(key)
        if self.activity:
            self.activity.ended(key, failure)

    # --- rests -------------------------------------------------------------------------------------

    async def drain(self, page: PageSide) -> None:
        """Release all paused requests, one at a time, until none is paused, released or about to come.

        Raises:
            RequestLoop: if the page sends requests to one path without end.
        """
        repeated = RepeatedPaths()
        self.requests.resume(self.frames.elapsed)
        while True:
            await self.calm(page)
            request = self.requests.next_paused()
            if request is None:
                if not await self.finish_released():
                    return
            elif repeated.count(request):  # a poll
                self._end(request.key)
                self.requests.postpone(request, self.frames.elapsed)
            else:
                await self._release(request)

    async def calm(self, page: PageSide) -> None:
        """Wait until page and workers have nothing to do, and each reported request is accounted for."""
        await self._calm(page)
        for request in self.requests.unreported():
            self._report(request)

    async def _calm(self, page: PageSide) -> None:
        until = clock.monotonic() + _START_SECONDS
        begun, left = self.workers.begun, 0
        while True:
            # A document that still arrives leaves its page idle between two parts.
            for request in self.requests.released():
                await self._wait_for(request)
            await page.idle()
            await self.workers.calm(page.idle)
            if await self._account() or self.requests.released():  # a document, or a local answer, has begun
                continue
            if begun != self.workers.begun:
                begun, left = self.workers.begun, _BEGIN_ROUNDS
            if left:
                left -= 1
                continue
            held = {request.key for request in self.requests.open if request.kind != "document"}
            more_begin = self.workers.will_begin(page.waits, held)
            # One at a time, and in the order of their names, when all that can begin are ready.
            if self.workers.ready and (self.workers.lost or not more_begin):
                self.workers.begin_next()
                continue
            if not self.workers.are_pending(page.waits) and not self.workers.ready:
                return
            if self.requests.next_paused() and not self.workers.unreported and not more_begin:
                return
            if clock.monotonic() > until:
                self.workers.lost = True
                self.flag(f"a worker, or a message of a shared one, did not come within {_START_SECONDS:g} s")
                return
            await self.workers.wait_for_event(page)

    async def frames_begun(self) -> None:
        """Wait until the frames that get a document without a request have it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                while self._documents.loading:
                    await self._progress()

    async def until_paused(self, waiting: Awaitable[object]) -> None:
        """Wait for something, or for a paused request, which may be what it depends on."""
        wanted = asyncio.ensure_future(waiting)
        while not wanted.done() and not self.requests.next_paused():
            self.requests.progress.clear()
            moved = asyncio.ensure_future(self.requests.progress.wait())
            await asyncio.wait({wanted, moved}, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        wanted.cancel()

    async def _account(self) -> bool:
        """Wait until workers with a script have begun, and every request is known to be paused or not.

        Return True if a frame has got a document meanwhile.
        """
        while self._pinning or self.workers.beginning({each.key for each in self.requests.open}):
            await self._progress()
        has_loaded = bool(self._documents.loading)
        try:
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                while self._documents.loading or self.requests.unaccounted() or self.requests.ambiguous():
                    await self._progress()
        except TimeoutError:
            self._documents.give_up()
            for request in self.requests.unaccounted():  # served from the page's memory, or not at all
                self._give_up(request)
            for request in self.requests.ambiguous():
                request.requester_known = True
        return has_loaded

    async def _progress(self) -> None:
        self.requests.progress.clear()
        await self.requests.progress.wait()

    async def _release(self, request: PendingRequest) -> None:
        assert isinstance(request.owner, CdpSession)
        self.requests.release(request)
        try:
            await request.owner.send("Fetch.continueRequest", {"requestId": request.fetch_id})
        except CdpError:  # the page has cancelled it, or is gone
            self._end(request.key)
            return
        await self._wait_for(request)

    async def _wait_for(self, request: PendingRequest) -> None:
        until = clock.monotonic() + _RESPONSE_SECONDS
        while request.stage is RequestStage.RELEASED:
            before = request.responded, request.received
            try:
                async with asyncio.timeout(_ACCOUNT_SECONDS if request.is_report else _BODY_SECONDS):
                    await request.moved.wait()
            except TimeoutError:
                is_silent = request.responded and before == (True, request.received)
                is_late = not request.responded and clock.monotonic() > until
                if is_late and not request.is_report:
                    self.flag(f"{request.url} got no response within {_RESPONSE_SECONDS:g} s")
                if request.is_report or is_silent or is_late:
                    self._give_up(request)

    async def finish_released(self) -> bool:
        """Wait for released requests; return True if the context had any request."""
        released = self.requests.released()
        for request in released:
            await self._wait_for(request)
        return bool(released) or self.requests.next_paused() is not None or bool(self.requests.unaccounted())

    async def arrive(self) -> bool:
        """Wait for frames of WebSockets and event streams; return True if there may be any."""
        await self.connections.arrive(self.frames.elapsed)
        return self.connections.begun
