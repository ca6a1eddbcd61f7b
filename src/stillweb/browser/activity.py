"""The requests of a context, as the browser tells of them: what is in flight, and what became of each.

Counted by Playwright's events, so over all pages and frames of the context. Requests that are
meant never to end (event streams, media) and WebSockets are kept apart: waiting for their end would
be waiting for ever. Waited for is what a page itself waits for: the answer to an event stream's request, and
a WebSocket's next frame after it was opened or the page sent one, but for a second at most, since it may be
that none comes (docs/decisions/0016-frames.md). `data:` and `blob:` URLs are no traffic.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Page, Request, Response, WebSocket
from playwright.async_api import Error as PlaywrightError

from stillweb import clock

_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:")
_NO_TUNNEL = "net::ERR_TUNNEL_CONNECTION_FAILED"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# What the browser, the machine or the proxy do to a request; never what a page or its archive does.
_NOT_THE_PAGES = (
    "net::ERR_NETWORK_CHANGED",  # an interface came or went, as when a container starts
    "net::ERR_INTERNET_DISCONNECTED",
    "net::ERR_PROXY_CONNECTION_FAILED",
    _NO_TUNNEL,
    "net::ERR_CERT_AUTHORITY_INVALID",  # the browser does not trust the proxy's CA
    "net::ERR_INSUFFICIENT_RESOURCES",
    "net::ERR_OUT_OF_MEMORY",
)

_ENDLESS = frozenset({"media", "websocket", "ping"})
_STREAM = "eventsource"
_FRAME_PATIENCE = 1.0  # seconds; replay's frames come in milliseconds


@dataclass(slots=True)
class Requested:
    """A request that a page made, be it answered over the wire or from the browser's own cache.

    Attributes:
        url, method, resource_type: as the browser tells them ("document", "script", "xhr", ...).
        started: `clock.monotonic` seconds.
        status: HTTP status, 0 while there is none.
        failure: the browser's error text, "" if it did not fail.
        ended: whether it is over.
    """

    url: str
    method: str
    resource_type: str
    started: float
    status: int = 0
    failure: str = ""
    ended: bool = False


class Activity:
    """The requests of a context from now on; make it before the first page, close it at the end.

    Attributes:
        requests: all of them, in the order in which they were begun.
        websockets: URLs of the WebSockets opened.
        generation: how often something began or ended.
        broken: the first request that failed by no fault of the page or its archive, and how; "" if none did.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.requests: list[Requested] = []
        self.websockets: list[str] = []
        self.generation = 0
        self.broken = ""
        self._context = context
        self._closed = False
        self._known: dict[Request, Requested] = {}
        self._pending: dict[Request | WebSocket, Requested] = {}
        self._timers: dict[Request | WebSocket, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._listeners = (
            ("request", self._on_request),
            ("response", self._on_response),
            ("requestfinished", self._on_finished),
            ("requestfailed", self._on_failed),
            ("page", self._on_page),
        )
        for event, heard in self._listeners:
            context.on(event, heard)  # type: ignore[call-overload]
        for page in context.pages:
            self._on_page(page)

    @property
    def in_flight(self) -> list[Requested]:
        """The requests that are waited for, oldest first."""
        return list(self._pending.values())

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def give_up_answered(self, older_than: float) -> None:
        """Stop waiting for requests that have an answer, but have not ended within so many seconds."""
        limit = clock.monotonic() - older_than
        for request, entry in list(self._pending.items()):
            if entry.status and entry.started <= limit and isinstance(request, Request):
                self._end(request)

    def clear(self) -> None:
        """Forget the requests that are over."""
        self.requests = [self._pending[each] for each in self._pending if isinstance(each, Request)]
        self.websockets = []

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for event, heard in self._listeners:
            self._context.remove_listener(event, heard)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._pending.clear()
        self._known.clear()
        self._idle.set()

    def _on_page(self, page: Page) -> None:
        page.on("websocket", partial(self._on_websocket, page))
        # What a closed page still waited for is never told to have ended.
        page.on("close", self._on_page_closed)
        page.on("crash", self._on_page_closed)

    def _on_page_closed(self, page: Page) -> None:
        for request in [r for r in self._pending if isinstance(r, Request) and _page_of(r) in (page, None)]:
            self._end(request)

    def _on_websocket(self, page: Page, socket: WebSocket) -> None:
        self.websockets.append(socket.url)
        self._await_frame(socket)
        socket.on("framesent", lambda _: self._await_frame(socket))
        for event in ("framereceived", "socketerror", "close"):
            socket.on(event, lambda _: self._came(socket))
        page.on("close", lambda _: self._came(socket))

    def _await_frame(self, socket: WebSocket) -> None:
        if self._closed:
            return
        self.generation += 1
        entry = Requested(socket.url, "GET", "websocket", clock.monotonic(), status=101)
        self._await_briefly(socket, entry)

    def _await_briefly(self, what: Request | WebSocket, entry: Requested) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
        self._pending[what] = entry
        self._idle.clear()
        loop = asyncio.get_running_loop()
        self._timers[what] = loop.call_later(_FRAME_PATIENCE, self._came, what)

    def _came(self, what: Request | WebSocket) -> None:
        """Wait no longer for what was waited for briefly."""
        if what in self._timers:
            self._release(what)

    def _on_request(self, request: Request) -> None:
        if request.url.startswith(_NO_TRAFFIC):
            return
        entry = Requested(request.url, request.method, request.resource_type, clock.monotonic())
        self.requests.append(entry)
        self._known[request] = entry
        self.generation += 1
        if request.resource_type == _STREAM:
            self._await_briefly(request, entry)
        elif request.resource_type not in _ENDLESS:
            self._pending[request] = entry
            self._idle.clear()

    def _on_response(self, response: Response) -> None:
        if entry := self._known.get(response.request):
            entry.status = response.status
            if entry.resource_type == _STREAM:
                self._came(response.request)

    def _on_finished(self, request: Request) -> None:
        self._end(request)
        self._known.pop(request, None)

    def _on_failed(self, request: Request) -> None:
        if entry := self._known.get(request):
            entry.failure = request.failure or "failed"
            if is_ours(entry.failure, entry.url) and not self.broken:
                self.broken = f"{entry.url}: {entry.failure}"
        self._end(request)
        self._known.pop(request, None)

    def _end(self, request: Request) -> None:
        if entry := self._pending.get(request) or self._known.get(request):
            entry.ended = True
        self._release(request)

    def _release(self, request: Request | WebSocket) -> None:
        """Wait for a request no longer."""
        self.generation += 1
        if timer := self._timers.pop(request, None):
            timer.cancel()
        self._pending.pop(request, None)
        if not self._pending:
            self._idle.set()


def is_ours(failure: str, url: str = "") -> bool:
    """Return whether a request failed by no fault of the page or its archive."""
    if _NO_TUNNEL in failure and url and not _is_host(url):
        return False  # no certificate can be made for what is no host name, so there is no tunnel either
    return any(sign in failure for sign in _NOT_THE_PAGES)


def _is_host(url: str) -> bool:
    """Return whether a URL's host is a name or an address (RFC 1035 limits; "_" is taken, as browsers do)."""
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return False
    if ":" in host:
        return True
    # The browser tells hosts in ASCII (punycode); what an agent typed may be another script.
    return not host.isascii() or (
        len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))
    )


def _page_of(request: Request) -> Page | None:
    try:
        return request.frame.page
    except PlaywrightError:  # a request without a frame, or of a page that is gone
        return None
