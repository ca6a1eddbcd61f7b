"""The requests of a context, as the browser tells of them: what is in flight, and what became of each.

Counted by Playwright's events, so over all pages and frames of the context; at level EXACT the context's
`world` tells of them, and Playwright is not asked. Requests that are meant never to end (event streams,
media) and WebSockets are kept apart: waiting for their end would be waiting for ever. Waited for is what a
page itself waits for: the answer to an event stream's request, and a WebSocket's next frame after it was
opened or the page sent one, but for a second at most, since it may be that none comes
(docs/decisions/0016-frames.md). `data:` and `blob:` URLs are no traffic.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Page, Request, Response, WebSocket
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.browser.context import state_of

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
_SOCKET = "websocket"
_FRAME_PATIENCE = 1.0  # seconds; replay's frames come in milliseconds


Key = Hashable  # what tells requests and sockets apart: Playwright's objects, or the browser's identifiers


@dataclass(slots=True)
class Requested:
    """A request that a page made, be it answered over the wire or from the browser's own cache.

    Attributes:
        url, method, resource_type: as the browser tells them ("document", "script", "xhr", ...).
        started: `clock.monotonic` seconds.
        status: HTTP status, 0 while there is none.
        failure: the browser's error text, "" if it did not fail.
        ended: whether it is over.
        finished: `clock.monotonic` seconds, 0 while it is not over.
        body: sha256 of its body, hex, where somebody asked for it (`BodyDigests`).
    """

    url: str
    method: str
    resource_type: str
    started: float
    status: int = 0
    failure: str = ""
    ended: bool = False
    finished: float = 0.0
    body: str = ""


class Activity:
    """The requests of a context from now on; make it before the first page, close it at the end.

    Args:
        context: whose requests.
        on_finished: told of the answer to each request that ended well.

    Attributes:
        requests: all of them, in the order in which they were begun.
        websockets: URLs of the WebSockets opened.
        generation: how often something began or ended.
        broken: the first request that failed by no fault of the page or its archive, and how; "" if none did.
    """

    def __init__(
        self, context: BrowserContext, on_finished: Callable[[Response, Requested], None] | None = None
    ) -> None:
        self._told = on_finished
        self.requests: list[Requested] = []
        self.websockets: list[str] = []
        self.generation = 0
        self.broken = ""
        self._closed = False
        self._sockets: dict[Key, str] = {}
        self._known: dict[Key, Requested] = {}
        self._answers: dict[Request, Response] = {}
        self._pending: dict[Key, Requested] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        if world := state_of(context).world:
            world.activity = self
            return
        context.on("request", self._on_request)
        context.on("response", self._on_response)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)
        context.on("page", self._on_page)
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
            if entry.status and entry.started <= limit and entry.resource_type != _SOCKET:
                self._end(request)

    def clear(self) -> None:
        """Forget the requests that are over."""
        self.requests = [each for each in self._pending.values() if each.resource_type != _SOCKET]
        self.websockets = []

    def close(self) -> None:
        """Take no note of anything any more.

        The listeners stay until the context is closed, which comes next: to take one away is a message to
        the browser's driver.
        """
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._pending.clear()
        self._known.clear()
        self._answers.clear()
        self._idle.set()

    def _on_page(self, page: Page) -> None:
        if self._closed:
            return
        page.on("websocket", partial(self._on_websocket, page))
        # What a closed page still waited for is never told to have ended.
        page.on("close", self._on_page_closed)
        page.on("crash", self._on_page_closed)

    def _on_page_closed(self, page: Page) -> None:
        for request in [r for r in self._pending if isinstance(r, Request) and _page_of(r) in (page, None)]:
            self._end(request)

    def _on_websocket(self, page: Page, socket: WebSocket) -> None:
        self.socket_opened(socket, socket.url)
        socket.on("framesent", lambda _: self.socket_sent(socket))
        for event in ("framereceived", "socketerror", "close"):
            socket.on(event, lambda _: self._came(socket))
        page.on("close", lambda _: self._came(socket))

    def socket_opened(self, key: Key, url: str) -> None:
        """A WebSocket has been opened: the page waits for its first frame."""
        self.websockets.append(url)
        self._sockets[key] = url
        self.socket_sent(key)

    def socket_sent(self, key: Key) -> None:
        """A page has sent a frame: it waits for the answer."""
        if self._closed:
            return
        self.generation += 1
        entry = Requested(self._sockets.get(key, ""), "GET", _SOCKET, clock.monotonic(), status=101)
        self._await_briefly(key, entry)

    def socket_came(self, key: Key) -> None:
        """A frame has come, or will not come any more."""
        self._came(key)

    def _await_briefly(self, what: Key, entry: Requested) -> None:
        if timer := self._timers.pop(what, None):
            timer.cancel()
        self._pending[what] = entry
        self._idle.clear()
        loop = asyncio.get_running_loop()
        self._timers[what] = loop.call_later(_FRAME_PATIENCE, self._came, what)

    def _came(self, what: Key) -> None:
        """Wait no longer for what was waited for briefly."""
        if what in self._timers:
            self._release(what)

    def began(self, key: Key, url: str, method: str, resource_type: str) -> None:
        """A request has been made; told again for one that is known, it is the same, or its redirection."""
        if self._closed or url.startswith(_NO_TRAFFIC):
            return
        if (known := self._known.get(key)) and (known.url == url or not known.status):
            return
        entry = Requested(url, method, resource_type, clock.monotonic())
        self.requests.append(entry)
        self._known[key] = entry
        self.generation += 1
        if resource_type == _STREAM:
            self._await_briefly(key, entry)
        elif resource_type not in _ENDLESS:
            self._pending[key] = entry
            self._idle.clear()

    def answered(self, key: Key, status: int) -> None:
        """The head of an answer has come."""
        if entry := self._known.get(key):
            entry.status = status
            if entry.resource_type == _STREAM:
                self._came(key)

    def ended(self, key: Key, failure: str = "") -> None:
        """A request is over; `failure` says how it failed."""
        if (entry := self._known.get(key)) and failure:
            entry.failure = failure
            if is_ours(entry.failure, entry.url) and not self.broken:
                self.broken = f"{entry.url}: {entry.failure}"
        self._end(key)
        self._known.pop(key, None)

    def _on_request(self, request: Request) -> None:
        self.began(request, request.url, request.method, request.resource_type)

    def _on_response(self, response: Response) -> None:
        if self._closed:
            return
        request = response.request
        if self._told:
            self._answers[request] = response
        self.answered(request, response.status)

    def _on_finished(self, request: Request) -> None:
        entry, answer = self._known.get(request), self._answers.pop(request, None)
        self.ended(request)
        if entry and answer and self._told:
            self._told(answer, entry)

    def _on_failed(self, request: Request) -> None:
        self._answers.pop(request, None)
        self.ended(request, request.failure or "failed")

    def _end(self, request: Key) -> None:
        if entry := self._pending.get(request) or self._known.get(request):
            entry.ended = True
            entry.finished = clock.monotonic()
        self._release(request)

    def _release(self, request: Key) -> None:
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
