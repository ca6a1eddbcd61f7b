"""Requests of a browser context: which are in flight, and how each one ended.

Below level EXACT they come from Playwright's events, over all pages and frames; at EXACT `ExactContext`
reports them. Requests without an end (event streams, media) and WebSockets are counted separately, since
waiting for them would never finish. Like a page, settling waits for the response head of an event stream. It
waits at most one second for a WebSocket's next frame after it was opened or the page sent one, since none may
come (docs/decisions/0016-frames.md). `data:` and `blob:` URLs are not traffic.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Page, Request, Response, WebSocket
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.browser.exact.scheduler import OF_SCRIPTS, path_of
from stillweb.browser.profile import Level
from stillweb.browser.shared_workers import SharedWorkers
from stillweb.browser.state import state_of

_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:")
_NO_TUNNEL = "net::ERR_TUNNEL_CONNECTION_FAILED"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Errors caused by the browser, the machine or the proxy, never by a page or its archive.
_NOT_THE_PAGES = (
    "net::ERR_NETWORK_CHANGED",  # an interface appeared or disappeared, as when a container starts
    "net::ERR_INTERNET_DISCONNECTED",
    "net::ERR_PROXY_CONNECTION_FAILED",
    _NO_TUNNEL,
    "net::ERR_CERT_AUTHORITY_INVALID",  # the browser does not trust the proxy's CA
    "net::ERR_INSUFFICIENT_RESOURCES",
    "net::ERR_OUT_OF_MEMORY",
)

_ENDLESS = frozenset({"media", "websocket", "ping"})
_STREAM = "eventsource"
_SOCKET = "websocket"
_FRAME_SECONDS = 1.0  # replay's frames arrive within milliseconds
_POLLS = 100  # requests of scripts to one path, each sent after an answer, that a settling awaits


Key = Hashable  # of a request or socket: Playwright's object, or CDP's identifier


@dataclass(slots=True)
class Requested:
    """A request of a page, served over the network or from the browser's cache.

    Attributes:
        url, method, resource_type: as the browser reports them ("document", "script", "xhr", ...).
        started: `clock.monotonic` seconds.
        source: the requesting frame or worker, for messages; "" if unknown.
        status: HTTP status, 0 before the response.
        failure: the browser's error text, "" without one.
        ended: whether it has finished or failed.
        finished: `clock.monotonic` seconds, 0 before its end.
        body: sha256 of its body, hex, if requested (`BodyDigests`).
    """

    url: str
    method: str
    resource_type: str
    started: float
    source: str = ""
    status: int = 0
    failure: str = ""
    ended: bool = False
    finished: float = 0.0
    body: str = ""

    def __str__(self) -> str:
        source = f" by {self.source}" if self.source else ""
        return f"{self.method} {self.url} ({self.resource_type}{source})"


class Activity:
    """The requests of a context; make it before the first page, close it at the end.

    Attributes:
        requests: all requests in order of their beginning.
        websockets: URLs of the WebSockets opened.
        generation: number of beginnings, except those of polls, and of ends of awaited requests, so far.
        broken: the first failure that neither the page nor its archive caused, "" without one.
    """

    def __init__(
        self, context: BrowserContext, on_finished: Callable[[Response, Requested], None] | None = None
    ) -> None:
        self._on_success = on_finished
        self.requests: list[Requested] = []
        self.websockets: list[str] = []
        self.generation = 0
        self.broken = ""
        self._closed = False
        self._sockets: dict[Key, str] = {}
        self._frame_came = asyncio.Event()
        self._known: dict[Key, Requested] = {}
        self._responses: dict[Request, Response] = {}
        self._pending: dict[Key, Requested] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._workers: SharedWorkers | None = None
        self._sequences: Counter[str] = Counter()  # requests of scripts, by path
        self._may_poll = state_of(context).pinning.level is not Level.LIVE
        if exact := state_of(context).exact:
            exact.activity = self
            return
        self._context = context
        self._context_id = ""
        self._workers = state_of(context).shared_workers
        self._identifying: set[asyncio.Task[None]] = set()
        if self._workers:
            self._workers.callbacks.add(self._on_shared_worker)
        context.on("request", self._on_request)
        context.on("response", self._on_response)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)
        context.on("page", self._on_page)
        for page in context.pages:
            self._on_page(page)

    @property
    def in_flight(self) -> list[Requested]:
        """Awaited requests, oldest first."""
        return list(self._pending.values())

    async def idle(self) -> None:
        await self._idle.wait()

    def give_up_responded(self, older_than: float) -> None:
        """Stop waiting for requests whose response began but did not end within so many seconds."""
        limit = clock.monotonic() - older_than
        for request, entry in list(self._pending.items()):
            if entry.status and entry.started <= limit and entry.resource_type != _SOCKET:
                self._end(request)

    def begin_settling(self) -> None:
        """Await the next `_POLLS` requests of a script that sends one after another to one path.

        A server holds a long poll open; replay answers it immediately, so that the script sends the next one.
        At level EXACT such a script has a pause instead (`RepeatedPaths`).
        """
        self._sequences.clear()

    def _is_poll(self, entry: Requested) -> bool:
        if not self._may_poll or entry.resource_type not in OF_SCRIPTS:
            return False
        path = path_of(entry.url)
        others = (each for each in self._pending.values() if path_of(each.url) == path)
        self._sequences[path] += all(each.status for each in others)
        return self._sequences[path] > _POLLS

    def clear(self) -> None:
        """Drop the requests that have ended."""
        self.requests = [each for each in self._pending.values() if each.resource_type != _SOCKET]
        self.websockets = []

    def close(self) -> None:
        """Ignore all further events.

        The listeners stay until the context is closed: removing one would cost a message to the driver.
        """
        self._closed = True
        if self._workers:
            self._workers.callbacks.discard(self._on_shared_worker)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._pending.clear()
        self._known.clear()
        self._responses.clear()
        self._idle.set()

    def _on_page(self, page: Page) -> None:
        if self._closed:
            return
        page.on("websocket", partial(self._on_websocket, page))
        # No event reports the end of a closed page's requests.
        page.on("close", self._on_page_closed)
        page.on("crash", self._on_page_closed)

    def _on_page_closed(self, page: Page) -> None:
        for request in [r for r in self._pending if isinstance(r, Request) and _page_of(r) in (page, None)]:
            self._end(request)

    def _on_websocket(self, page: Page, socket: WebSocket) -> None:
        self.socket_opened(socket, socket.url)
        socket.on("framesent", lambda _: self.socket_sent(socket))
        for event in ("framereceived", "socketerror", "close"):
            socket.on(event, lambda _: self.socket_received(socket))
        page.on("close", lambda _: self.socket_received(socket))

    def socket_opened(self, key: Key, url: str, *, waits: bool = True) -> None:
        """A WebSocket was opened; its first frame is awaited unless `waits` is False."""
        self.websockets.append(url)
        self._sockets[key] = url
        self.socket_sent(key, waits=waits)

    def socket_sent(self, key: Key, *, waits: bool = True) -> None:
        """A page sent a frame; the next frame is awaited unless `waits` is False."""
        if self._closed:
            return
        self.generation += 1
        if not waits:
            return
        entry = Requested(self._sockets.get(key, ""), "GET", _SOCKET, clock.monotonic(), status=101)
        self._wait_briefly(key, entry)

    def socket_received(self, key: Key) -> None:
        """A frame arrived, or can no longer arrive."""
        self._frame_came.set()
        self._stop_brief_wait(key)

    async def sockets_quiet(self, seconds: float, cap: float) -> bool:
        """Wait until no WebSocket has received a frame for `seconds` of real time, `cap` seconds at most.

        For live sites: several frames may answer one, each after some work of the server.

        Returns:
            Whether a frame arrived.
        """
        arrived = False
        with suppress(TimeoutError):
            async with asyncio.timeout(cap):
                while await self._frame_within(seconds):
                    arrived = True
        return arrived

    async def _frame_within(self, seconds: float) -> bool:
        self._frame_came.clear()
        try:
            await asyncio.wait_for(self._frame_came.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _wait_briefly(self, what: Key, entry: Requested) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
        self._pending[what] = entry
        self._idle.clear()
        loop = asyncio.get_running_loop()
        self._timers[what] = loop.call_later(_FRAME_SECONDS, self._stop_brief_wait, what)

    def _stop_brief_wait(self, what: Key) -> None:
        if what in self._timers:
            self._release(what)

    def began(self, key: Key, url: str, method: str, resource_type: str, source: str = "") -> None:
        """A request began; for a known key it is a repeated report, or a redirect."""
        if self._closed or url.startswith(_NO_TRAFFIC):
            return
        if (known := self._known.get(key)) and (known.url == url or not known.status):
            return
        entry = Requested(url, method, resource_type, clock.monotonic(), source)
        self.requests.append(entry)
        self._known[key] = entry
        if self._is_poll(entry):
            return
        self.generation += 1
        if resource_type == _STREAM:
            self._wait_briefly(key, entry)
        elif resource_type not in _ENDLESS:
            self._pending[key] = entry
            self._idle.clear()

    def responded(self, key: Key, status: int) -> None:
        """A response head arrived."""
        if entry := self._known.get(key):
            entry.status = status
            if entry.resource_type == _STREAM:
                self._stop_brief_wait(key)

    def ended(self, key: Key, failure: str = "") -> None:
        """A request finished, or failed with the error `failure`."""
        if (entry := self._known.get(key)) and failure:
            entry.failure = failure
            if is_ours(entry.failure, entry.url) and not self.broken:
                self.broken = f"{entry.url}: {entry.failure}"
        self._end(key)
        self._known.pop(key, None)

    def _on_request(self, request: Request) -> None:
        self.began(request, request.url, request.method, request.resource_type, _frame_of(request))

    def _on_shared_worker(self, context_id: str, url: str) -> None:
        scripts = [key for key, entry in self._pending.items() if _is_worker_script(key, entry, url)]
        if scripts:
            task = asyncio.ensure_future(self._end_worker_scripts(context_id, scripts))
            self._identifying.add(task)
            task.add_done_callback(self._identifying.discard)

    async def _end_worker_scripts(self, context_id: str, scripts: Sequence[Key]) -> None:
        """End requests for a shared worker's script, if the worker belongs to this context."""
        try:
            if not self._context_id:
                session = await self._context.new_cdp_session(self._context.pages[0])
                target = (await session.send("Target.getTargetInfo"))["targetInfo"]
                self._context_id = target["browserContextId"]
                await session.detach()
        except (PlaywrightError, IndexError):  # the page is closed, and its requests have ended with it
            return
        if context_id == self._context_id:
            for key in scripts:
                self.ended(key)

    def _on_response(self, response: Response) -> None:
        if self._closed:
            return
        request = response.request
        if self._on_success:
            self._responses[request] = response
        self.responded(request, response.status)

    def _on_finished(self, request: Request) -> None:
        entry, response = self._known.get(request), self._responses.pop(request, None)
        self.ended(request)
        if entry and response and self._on_success:
            self._on_success(response, entry)

    def _on_failed(self, request: Request) -> None:
        self._responses.pop(request, None)
        self.ended(request, request.failure or "failed")

    def _end(self, request: Key) -> None:
        if entry := self._pending.get(request) or self._known.get(request):
            entry.ended = True
            entry.finished = clock.monotonic()
        self._release(request)

    def _release(self, request: Key) -> None:
        # Other requests (beacons, media, data: URLs) end at any time, and no page waits for them.
        self.generation += request in self._pending
        if timer := self._timers.pop(request, None):
            timer.cancel()
        self._pending.pop(request, None)
        if not self._pending:
            self._idle.set()


def _is_worker_script(key: Key, entry: Requested, url: str) -> bool:
    """Return True for a script request without a response whose first URL, before redirects, is `url`."""
    if not isinstance(key, Request) or entry.resource_type != "script" or entry.status:
        return False
    while key.redirected_from:
        key = key.redirected_from
    return key.url == url


def is_ours(failure: str, url: str = "") -> bool:
    """Return True if neither the page nor its archive caused a failure."""
    if _NO_TUNNEL in failure and url and not _is_host(url):
        return False  # no certificate can be made for an invalid host name, so the tunnel fails
    return any(sign in failure for sign in _NOT_THE_PAGES)


def _is_host(url: str) -> bool:
    """Return True if a URL's host is valid (RFC 1035 limits; "_" is allowed, as in browsers)."""
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return False
    if ":" in host:
        return True
    # The browser reports hosts in ASCII (punycode); an agent may type another script.
    return not host.isascii() or (
        len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))
    )


def _page_of(request: Request) -> Page | None:
    try:
        return request.frame.page
    except PlaywrightError:  # without a frame, or of a closed page
        return None


def _frame_of(request: Request) -> str:
    try:
        return f"frame {request.frame.url}"
    except PlaywrightError:
        return ""
