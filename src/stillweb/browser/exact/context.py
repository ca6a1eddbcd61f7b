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
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from stillweb import clock
from stillweb.browser.cdp.connection import (
    CdpConnection,
    CdpError,
    CdpSession,
    PendingResult,
    is_worker_script,
)
from stillweb.browser.exact.connections import Connections
from stillweb.browser.exact.console import Console
from stillweb.browser.exact.scheduler import PendingRequest, RequestScheduler, RequestStage
from stillweb.browser.exact.workers import Workers, WorkerWaits
from stillweb.errors import InfraError

if TYPE_CHECKING:
    from stillweb.browser.activity import Activity

# Frame times are far ahead of the machine's uptime (31 years, in ms): a browser that finds itself behind uses
# the real time instead.
_FRAME_EPOCH = 1e12
# ms between frames at one instant: an animation that began in the first of 40 still rounds to its start.
_FRAME_STEP = 0.01
_ACCOUNT_SECONDS = 1.0  # real; a reported request is paused within milliseconds, unless served from memory
_START_SECONDS = 30.0  # real; a worker that is not blocked begins within milliseconds on an idle machine
# A worker that has evaluated its script reports it to its creator, which then sends the messages that waited.
_BEGIN_ROUNDS = 2
_LOOK_SECONDS = 1.0  # real; between two checks for events that a page may not report
_BODY_SECONDS = 3.0  # real, without a part of it; a body that the page does not read to its end never ends
_LOOP = 300  # requests to one path at one instant, besides images
_SCREENSHOT_FRAMES = 5  # the first frame has no picture if the page has not been shown before

# A thread that waits for a synchronous request can do nothing else. Blink gives no asynchronous request of
# these kinds this priority (ResourceFetcher: "Synchronous requests should always be max priority").
_SYNCHRONOUS = "VeryHigh"
_SYNCHRONOUS_KINDS = frozenset({"xhr", "script", "preflight"})
# While a document's head loads, two of these are sent, and the others wait (Blink's ResourceLoadScheduler).
# Scripts and styles after a picture are "Medium".
_DELAYED = ("Medium", "Low", "VeryLow")
_VIOLATION = "CSPViolationReport"
_NO_DOCUMENT = (204, 205)  # RFC 9110 §15.3.5, §15.3.6; a navigation stays where it is
_LOCAL = ("blob:", "data:")  # not paused; answered by another process or thread
_LOCAL_KINDS = frozenset({"stylesheet", "image", "font", "xhr", "fetch"})
_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:", "devtools:")


class RequestLoop(Exception):
    """A page repeats a request without a pause; its clock cannot reach the next instant."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """Sources of initial scripts: for documents that begin now, and for a worker by its name."""

    document: Callable[[], str]
    worker: Callable[[str], str]


class PageSide(Protocol):
    """Page of a rest, as `settle` controls it.

    Attributes:
        waits: what the page's frames reported of workers at the last `idle`.
    """

    waits: WorkerWaits

    async def idle(self) -> object:
        """Wait until the page has nothing to do."""

    async def started(self) -> None:
        """Wait until a worker of the page has begun, or a message to one has arrived."""


class ExactContext:
    """Controller of one deterministic browser context; made by `open_context`.

    Attributes:
        flags: what could not be pinned, in order of first appearance.
        activity: receives the requests, if set.
        workers: of the context.
        connections: WebSockets and event streams of the context.
        console: messages of pages and workers.
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
        self._context_id = context_id
        self._scripts = scripts
        self.workers = Workers(
            scripts.worker, control, self.flag, self.requests.progress, self._on_script_arrived
        )
        self.connections = Connections(self.flag, lambda: self.activity)
        self.console = Console(lambda: (self._elapsed, self.requests.round))
        self._pages: dict[str, CdpSession] = {}
        self._adopted_pages = 0  # so far
        self._empty_popups: set[str] = set()
        self._documents: set[str] = set()  # pages that got one
        self._loading_pages: set[str] = set()  # sessions of pages whose load event has not fired
        self._frame_times: dict[str, float] = {}
        self._elapsed = 0
        self._drawing: Counter[str] = Counter()  # frames under way, by page
        self._after_frames: dict[str, list[Callable[[], object]]] = {}  # documents that wait for those
        self._ending: set[asyncio.Task[None]] = set()
        self._removed_frames: set[str] = set()
        self._pinning: set[PendingResult] = set()  # commands to new pages and workers
        self._given_up: set[str] = set()  # requests that are no longer awaited
        self._cancelled: set[str] = set()  # requests that ended before they were paused
        self._loading_frames: dict[str, CdpSession] = {}  # whose document has not been requested, nor begun
        self._late_frames: set[str] = set()  # such frames that are no longer awaited
        connection.claim(context_id, self._adopt)

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
            not session.gone.is_set() and target not in self._empty_popups
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
            ("Network.loadingFailed", self._on_failed),
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
            session.on("Page.frameStartedLoading", partial(self._on_loading, session))
            session.on("Page.frameStoppedLoading", self._on_stopped)
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
        for frame in [frame for frame, owner in self._loading_frames.items() if owner is session]:
            self._on_stopped({"frameId": frame})
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
                self._on_paused(session, event, self._connection.root)  # no other event reports it
            else:
                self._connection.resume(event)

        self._connection.pin_first(session, pinned, resume)
        pinned.add_done_callback(ended)

    def flag(self, what: str) -> None:
        """List something that is not pinned."""
        self._new_flags[what] = None
        if what not in self.flags:
            self.flags.append(what)

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
        if kind == "document" and not request["url"].startswith(_NO_TRAFFIC):
            self._request_of_frame(event.get("frameId", ""))
            self._first_document = self._first_document or event["requestId"]
            if event["requestId"] == self._first_document:
                self.landed = request["url"]
        if request["url"].startswith("data:") and kind == "document":
            self.flag("a frame's document is a data: URL, which is not held")
        if session.target["type"] == "page" and _is_local(event, kind):
            self._on_local(session, event, kind)
        if kind == "prefetch" and event["requestId"] == event["loaderId"]:  # that of a <link> has its own id
            self.flag("a document was prefetched by speculation rules, which nothing holds")
            return
        if request["url"].startswith(_NO_TRAFFIC) or self._is_dropped(event, kind):
            return
        pending = self._sent(event["requestId"], request, kind)
        pending.kind, pending.source = pending.kind if pending.is_report else kind, _source(session, event)
        pending.frame = event.get("frameId", "") if kind == "document" else ""
        if kind == "script":
            pending.precedence = _precedence(event)
        if kind == "eventsource":
            self.connections.stream_began(session.id, event["requestId"])
        pending.requester = self.workers.name(session.target["targetId"])
        pending.requester_known = True

    def _on_local(self, session: CdpSession, event: dict[str, Any], kind: str) -> None:
        """Await what cannot be paused; flag a script that races with another one or the document."""
        if kind == "script":
            scripts = (each for each in self.requests.released() if _is_local_script(each))
            if session.id in self._loading_pages or any(scripts):
                self.flag("a script of a blob: or data: URL came beside a loading document or another one")
        pending = self.requests.sent(event["requestId"], event["request"]["url"], "GET", kind)
        pending.owner, pending.reported, pending.responded = session, True, True
        self.requests.release(pending, counts=False)

    def _sent(self, key: str, request: dict[str, Any], kind: str) -> PendingRequest:
        body = request.get("postData", "")
        pending = self.requests.sent(key, request["url"], request["method"], kind, body)
        pending.fragment = request.get("urlFragment", "")
        pending.late = request.get("initialPriority") in _DELAYED
        if pending.reported:  # a redirect
            self._begin(pending)
        return pending

    def _on_worker_script(self, session: CdpSession, key: str) -> None:
        def resume(event: dict[str, Any]) -> None:
            if session.target["type"] == "worker" and not event["request"]["url"].startswith(_NO_TRAFFIC):
                self._on_paused(session, event, self._connection.root)
            else:  # the session of the page pauses it, too
                self._connection.resume(event)

        if session.target["type"] == "worker":
            self.workers.reported(session.target["targetId"], key)
        self._connection.when_script_held(key, resume)

    def _is_dropped(self, event: dict[str, Any], kind: str) -> bool:
        return kind == "document" and event.get("frameId") in self._removed_frames

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
        resume = partial((holder or session).post, "Fetch.continueRequest", {"requestId": event["requestId"]})
        key = event.get("networkId") or event["requestId"]
        if event["resourceType"] == "Document":
            self._request_of_frame(event["frameId"])
        if self._is_dropped(event, event["resourceType"].lower()) or key in self._cancelled:
            (holder or session).post(
                "Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "Aborted"}
            )
            return
        self._flag_if_given_up(key, request["url"])
        pending = self._sent(key, request, event["resourceType"].lower())
        self.requests.paused(pending, event["requestId"], holder or session)
        if event["resourceType"] == _VIOLATION:  # its page reports it as "Other", before or after this
            pending.kind = _VIOLATION.lower()
        if pending.kind == "document":
            pending.frame = event["frameId"]
        if (
            event["resourceType"].lower() in _SYNCHRONOUS_KINDS
            and request.get("initialPriority") == _SYNCHRONOUS
        ):
            # Its thread is blocked, so the release is atomic for it; other threads wait for their own
            # releases.
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
            self.requests.release(pending, counts=False)
            if self._drawing[session.id]:
                self._after_frames.setdefault(session.id, []).append(resume)
            else:
                resume()

    def _flag_if_beside(self, document: PendingRequest) -> None:
        """Flag a document of a page, which is not held, beside that of another page."""
        frames = {each.frame for each in self.requests.released() if each.kind == "document"}
        if frames & self._pages.keys() - {document.frame}:
            self.flag("documents of several pages came at one time")

    def _on_detached(self, event: dict[str, Any]) -> None:
        """Drop the document request of a removed frame; whether it was made at all is a race."""
        if event.get("reason") == "swap":
            return
        self._on_stopped(event)
        self._late_frames.discard(event["frameId"])
        self._removed_frames.add(event["frameId"])
        for request in self.requests.open:
            if request.frame == event["frameId"] and request.stage is not RequestStage.RELEASED:
                self.requests.ended(request.key)

    def _on_loading(self, session: CdpSession, event: dict[str, Any]) -> None:
        """Note a frame that gets a document, until its request is known or, without one, the document is.

        The browser process commits a document without a request (`srcdoc`, `blob:`) at any time.
        """
        if event["frameId"] != session.target["targetId"]:
            self._loading_frames[event["frameId"]] = session

    def _request_of_frame(self, frame: str) -> None:
        self._loading_frames.pop(frame, None)
        self._late_frames.discard(frame)

    def _on_stopped(self, event: dict[str, Any]) -> None:
        if self._loading_frames.pop(event["frameId"], None):
            self.requests.progress.set()

    def _on_navigated(self, session: CdpSession, event: dict[str, Any]) -> None:
        self._on_stopped({"frameId": event["frame"]["id"]})
        if event["frame"]["id"] in self._late_frames:
            self._late_frames.discard(event["frame"]["id"])
            self.flag("the document of a frame came after it had been given up")
        target = session.target["targetId"]
        if event["frame"]["id"] == target:
            self._documents.add(target)
            self._loading_pages.add(session.id)
            self.connections.left(session.id)
            self._empty_popups.discard(target)

    def _on_response(self, session: CdpSession, event: dict[str, Any]) -> None:
        key, response = event["requestId"], event["response"]
        if event["type"] == "Document" and response["status"] in _NO_DOCUMENT:
            self._note_empty(session.target, event.get("frameId", ""))
        if pending := self.requests.get(key):
            self._report(pending)
        self.requests.responded(key)
        if event["type"] == "Document" and any(name.lower() == "refresh" for name in response["headers"]):
            self.flag(f"{response['url']} is refreshed by the real clock")
        if self.activity:
            self.activity.responded(key, response["status"])

    def _on_data(self, event: dict[str, Any]) -> None:
        if pending := self.requests.get(event["requestId"]):
            pending.received += 1

    def _note_empty(self, target: dict[str, Any], frame: str) -> None:
        """Note a popup whose first document does not come: Playwright never reports it."""
        if target.get("openerId") and frame == target["targetId"] and frame not in self._documents:
            self._empty_popups.add(frame)

    def _on_finished(self, event: dict[str, Any]) -> None:
        self._flag_if_given_up(event["requestId"], "an answer")
        self._end(event["requestId"])

    def _on_failed(self, event: dict[str, Any]) -> None:
        request = self.requests.get(event["requestId"])
        if event.get("canceled") and (request is None or request.stage is RequestStage.SENT):
            self._cancelled.add(event["requestId"])  # it may still be paused
        if event.get("canceled") and request and request.stage in (RequestStage.SENT, RequestStage.PAUSED):
            request.reported = True  # whether it was sent before its cancellation is a race of two processes
            if isinstance(
                request.owner, CdpSession
            ):  # a page that leaves does not wait for keepalive requests
                request.owner.post(
                    "Fetch.failRequest", {"requestId": request.fetch_id, "errorReason": "Aborted"}
                )
        self._end(event["requestId"], event.get("errorText") or "failed")

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
        sent: Counter[str] = Counter()
        while True:
            await self.calm(page)
            request = self.requests.next_paused()
            if request is None:
                if not await self.finish_released():
                    return
                continue
            path = request.url.partition("?")[0]
            sent[path] += not request.is_image
            if sent[path] > _LOOP:
                raise RequestLoop(f"{path} was requested {_LOOP} times at one instant")
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
            # One at a time, and in the order of their names, when all that can begin are ready.
            if self.workers.ready and (self.workers.lost or not self._will_begin(page, self.workers.ready)):
                self.workers.begin_next()
                continue
            if not self._workers_pending(page) and not self.workers.ready:
                return
            if self.requests.next_paused() and not self.workers.unreported and not self._will_begin(page):
                return
            if clock.monotonic() > until:
                self.workers.lost = True
                self.flag(f"a worker, or a message of a shared one, did not come within {_START_SECONDS:g} s")
                return
            await self._wait_for_workers(page)

    def _workers_pending(self, page: PageSide) -> bool:
        """Return True if a worker is starting, or a message to another process is under way."""
        pages, workers = page.waits, self.workers.waits
        if self.workers.lost:
            return False
        messages = (pages.unread and not workers.deaf) or (workers.unread and not pages.deaf)
        return bool(pages.starting or workers.starting or messages)

    def _will_begin(self, page: PageSide, ready: int = 0) -> bool:
        """Return True if a worker begins without a request that is held, besides those that are ready."""
        starting = page.waits.starting + self.workers.waits.starting
        held = {request.key for request in self.requests.open if request.kind != "document"}
        return starting > ready + len(self.workers.loading(held))

    async def _wait_for_workers(self, page: PageSide) -> None:
        """Wait for an event of a worker; at most a second, since a replaced document never reports it."""
        self.requests.progress.clear()
        events = (page.started(), self.workers.started(), self.requests.progress.wait())
        pages, workers, progress = (asyncio.ensure_future(event) for event in events)
        wanted = {progress}
        wanted |= {pages} if page.waits.starting or page.waits.unread else set()
        wanted |= {workers} if self.workers.waits.starting or self.workers.waits.unread else set()
        await asyncio.wait(wanted, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (pages, workers, progress):
            task.cancel()
        await asyncio.gather(pages, workers, progress, return_exceptions=True)

    async def frames_begun(self) -> None:
        """Wait until the frames that get a document without a request have it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                while self._loading_frames:
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
        while self._pinning or self._beginning():
            await self._progress()
        has_loaded = bool(self._loading_frames)
        try:
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                while self._loading_frames or self.requests.unaccounted() or self.requests.ambiguous():
                    await self._progress()
        except TimeoutError:
            self._late_frames.update(self._loading_frames)
            self._loading_frames.clear()
            for request in self.requests.unaccounted():  # served from the page's memory, or not at all
                self._give_up(request)
            for request in self.requests.ambiguous():
                request.requester_known = True
        return has_loaded

    def _beginning(self) -> list[str]:
        return self.workers.beginning({request.key for request in self.requests.open})

    async def _progress(self) -> None:
        self.requests.progress.clear()
        await self.requests.progress.wait()

    async def _release(self, request: PendingRequest) -> None:
        assert isinstance(request.owner, CdpSession)
        owner = request.owner
        self.requests.release(request)
        try:
            await owner.send("Fetch.continueRequest", {"requestId": request.fetch_id})
        except CdpError:  # the page has cancelled it, or is gone
            self._end(request.key)
            return
        await self._wait_for(request)

    async def _wait_for(self, request: PendingRequest) -> None:
        while request.stage is RequestStage.RELEASED:
            before = request.responded, request.received
            try:
                async with asyncio.timeout(_ACCOUNT_SECONDS if request.is_report else _BODY_SECONDS):
                    await request.moved.wait()
            except TimeoutError:
                is_silent = before == (request.responded, request.received)
                if request.is_report or (request.responded and is_silent):
                    self._give_up(request)

    async def finish_released(self) -> bool:
        """Wait for released requests; return True if the context had any request."""
        released = self.requests.released()
        for request in released:
            await self._wait_for(request)
        return bool(released) or self.requests.next_paused() is not None or bool(self.requests.unaccounted())

    # --- frames and clocks -------------------------------------------------------------------------

    async def draw(self, session: CdpSession, *, picture: bool = False) -> str:
        """Draw one frame of a page; return it as base64 PNG if `picture`.

        Raises:
            CdpError: if the page ends meanwhile, or the browser does not draw.
        """
        at = max(_FRAME_EPOCH + self._elapsed, self._frame_times.get(session.id, 0.0) + _FRAME_STEP)
        self._frame_times[session.id] = at
        wanted: dict[str, Any] = {"frameTimeTicks": at, "interval": 16.0}
        if picture:
            wanted["screenshot"] = {"format": "png", "optimizeForSpeed": True}
        self._drawing[session.id] += 1
        try:
            result = await self._connection.draw(session, wanted)
        finally:
            self._drawing[session.id] -= 1
            if not self._drawing[session.id]:
                for resume in self._after_frames.pop(session.id, ()):
                    resume()
        return str(result.get("screenshotData", ""))

    async def repaint(self, session: CdpSession) -> None:
        """Paint everything that a page's viewport shows, and wait for it.

        A wheel scrolls in the compositor, which shows what other threads have painted so far, and the rest
        later: frames wait for painting only if the page gives the compositor something new. Here that is an
        overlay of the developer tools, which is removed before the frame.

        Raises:
            CdpError: as `draw`.
        """
        session.post("Overlay.setShowFPSCounter", {"show": True})
        await session.send("Overlay.setShowFPSCounter", {"show": False})
        await self.draw(session)

    async def screenshot(self, session: CdpSession) -> str:
        """Return a page's viewport as base64 PNG.

        Raises:
            InfraError: if the browser does not draw, or the page ends.
        """
        for _ in range(_SCREENSHOT_FRAMES):
            try:
                if picture := await self.draw(session, picture=True):
                    return picture
            except CdpError as error:
                raise InfraError(f"no screenshot: {error.message}") from error
        raise InfraError(f"the browser drew {_SCREENSHOT_FRAMES} frames without a picture")

    def set_elapsed(self, milliseconds: int) -> None:
        """Set how far the clock has moved; frames are drawn for that time."""
        self._elapsed = milliseconds

    async def arrive(self) -> bool:
        """Wait for frames of WebSockets and event streams; return True if there may be any."""
        await self.connections.arrive(self._elapsed)
        return self.connections.begun


def _precedence(event: dict[str, Any]) -> int:
    """Return the precedence of a script from its report."""
    initiator = event.get("initiator", {})
    if initiator.get("type") == "script" and "url" in initiator and "stack" not in initiator:
        return 0  # a static import names the importing module
    return 1 if event["request"].get("isLinkPreload") else 2


def _is_local(event: dict[str, Any], kind: str) -> bool:
    """Return True for a URL whose content another process or thread provides, by the report of a request."""
    url: str = event["request"]["url"]
    if kind == "script":
        by_script = event["initiator"]["type"] == "script" and not is_worker_script(event["requestId"])
        return by_script and url.startswith(_LOCAL)
    return kind in _LOCAL_KINDS and url.startswith("blob:")  # data: URLs are read immediately


def _is_local_script(request: PendingRequest) -> bool:
    return request.kind == "script" and request.url.startswith(_LOCAL)


def _source(session: CdpSession, event: dict[str, Any]) -> str:
    """Return the frame or worker that made a request, from its report."""
    target = session.target
    if target["type"] != "page":
        return f"{target['type'].replace('_', ' ')} {target['url']}"
    url = event["documentURL"]
    if url == event["request"]["url"]:  # a worker's script
        url = event.get("initiator", {}).get("url", url)
    return f"frame {url}"
