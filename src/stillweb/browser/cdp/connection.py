"""A line of our own to a browser, beside Playwright's: the Chrome DevTools Protocol over one WebSocket.

Level EXACT needs what Playwright's CDP sessions do not give: targets seen at their creation, before
their first instruction (pages, popups, workers), and thousands of small commands a second, which through
Playwright's driver cost several times as much. One `Line` serves all contexts of a browser; targets are
handed to whoever claimed their context, and let go at once if nobody did.

A browser has a line only if `launch` was asked for level EXACT; the port is on loopback, chosen for this
one browser.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import orjson
import websockets
from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.errors import InfraError
from stillweb.garbage import uncollected

__all__ = [
    "LOOP_SECONDS",
    "CdpConnection",
    "CdpError",
    "CdpSession",
    "free_port",
    "line_of",
    "open_line",
    "wait_long",
]

LOOP_SECONDS = 5.0
"""Of the processor, for one task of a page: the longest of large pages take one or two."""

LOOK_SECONDS = 2.0
"""Real; a command takes milliseconds, and what takes longer is looked at as often."""

_ANSWER_SECONDS = 60.0  # real; for what hangs without using the processor

Answer = asyncio.Future[dict[str, Any]]


async def wait_long(session: CdpSession, answer: Answer) -> bool:
    """Wait for an answer that has not come within `LOOK_SECONDS`; return whether there is one.

    A page that loops is ended meanwhile.
    """
    began = clock.monotonic()
    page = session.page
    ping = _ping(session)
    used = None
    while not answer.done() and clock.monotonic() - began < _ANSWER_SECONDS:
        metrics = page.post("Performance.getMetrics") if page else None
        await asyncio.wait([answer], timeout=LOOK_SECONDS)
        # Who answers something is not in a loop: the command waits for another reason.
        if page is None or metrics is None or ping.done() or not _answered(metrics):
            continue
        now = _seconds_used(metrics.result())
        used = now if used is None else used
        if now - used > LOOP_SECONDS:
            page.end(f"a script took {LOOP_SECONDS:g} s of the processor and did not end")
    return answer.done()


def _ping(session: CdpSession) -> Answer:
    """Ask for something that is answered as soon as the thread of a page or worker has finished its task."""
    return session.post("Runtime.evaluate", {"expression": "1"})


def _answered(answer: Answer) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _seconds_used(told: dict[str, Any]) -> float:
    # Of the whole renderer, since workers have threads of their own.
    return next((float(each["value"]) for each in told["metrics"] if each["name"] == "ProcessTime"), 0.0)


logger = logging.getLogger(__name__)

Heard = Callable[[dict[str, Any]], None]
Claim = Callable[["CdpSession", dict[str, Any], bool], None]

_OPEN_SECONDS = 20.0
_FRAME = "HeadlessExperimental.beginFrame"
_AUTO_ATTACH = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}

_lines: WeakKeyDictionary[Browser, CdpConnection] = WeakKeyDictionary()


class CdpError(Exception):
    """Raised when the browser refuses a command, or what it was sent to is gone."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CdpSession:
    """A target's session on a line; same `on` and `send` as Playwright's CDPSession.

    Attributes:
        id: of the session; "" is the browser's own.
        target: what CDP tells of the target.
        parent: whose target it is: a worker's page; the browser's own session for a page.
        gone: whether the target has ended, or has crashed.
        why: what ended it, once it is gone.
    """

    def __init__(
        self, line: CdpConnection, identifier: str, target: dict[str, Any], parent: CdpSession | None = None
    ) -> None:
        self.line = line
        self.id = identifier
        self.target = target
        self.parent = parent
        self.gone = asyncio.Event()
        self.why = ""
        self._heard: dict[str, list[Heard]] = {}

    @property
    def page(self) -> CdpSession | None:
        """The session of the page that it is, or belongs to; None for the browser's and shared workers'."""
        if self.target["type"] == "page":
            return self
        return self.parent.page if self.parent else None

    def end(self, why: str) -> None:
        """End a page's renderer, whatever it does; all that waits for it is told why."""
        self.why = self.why or why
        self.post("Page.crash")

    def on(self, event: str, heard: Heard) -> None:
        """Have a callback told of an event."""
        self._heard.setdefault(event, []).append(heard)

    def remove_listener(self, event: str, heard: Heard) -> None:
        """Tell a callback of an event no longer."""
        self._heard[event].remove(heard)

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            CdpError: if the browser refuses it or the target is gone.
        """
        return await self.line.send(self, method, params or {})

    def post(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Send a command now, in order with others; the answer may be awaited or left."""
        return self.line.post(self, method, params or {})

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Tell those who listen of an event."""
        for heard in tuple(self._heard.get(method, ())):
            heard(params)


class CdpConnection:
    """The connection; made by `open_line`."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.contexts = asyncio.Lock()
        """Held while a context is made, to tell which one it is."""
        self.broken = ""
        self.root = CdpSession(self, "", {"type": "browser"})
        self._socket = socket
        self._ids = 0
        self._waiting: dict[int, tuple[CdpSession, asyncio.Future[dict[str, Any]]]] = {}
        self._frames = asyncio.Lock()
        self._drawing: set[asyncio.Task[dict[str, Any]]] = set()
        self._lost: list[Callable[[], None]] = []
        self._sessions: dict[str, CdpSession] = {"": self.root}
        self._claims: dict[str, Claim] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def start(self) -> None:
        """Attach to all targets from now on."""
        await self.root.send("Target.setAutoAttach", _AUTO_ATTACH)

    def claim(self, context_id: str, claim: Claim) -> None:
        """Have the targets of a context told: their session, what they are, and whether they wait."""
        self._claims[context_id] = claim

    def release(self, context_id: str) -> None:
        """Leave the targets of a context to themselves."""
        self._claims.pop(context_id, None)

    async def browser_contexts(self) -> list[str]:
        """Return the identifiers of the browser's contexts."""
        told = await self.root.send("Target.getBrowserContexts")
        return list(told["browserContextIds"])

    async def send(self, session: CdpSession, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a command on a session and return its answer."""
        answer = self.post(session, method, params)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.shield(answer)
        except TimeoutError:
            if not await wait_long(session, answer):
                raise CdpError("no answer in time") from None
        return answer.result()

    def post(
        self, session: CdpSession, method: str, params: dict[str, Any]
    ) -> asyncio.Future[dict[str, Any]]:
        """Send a command now; return its answer to come."""
        self._ids += 1
        message: dict[str, Any] = {"id": self._ids, "method": method, "params": params}
        if session.id:
            message["sessionId"] = session.id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_taken)
        if self.broken or session.gone.is_set():
            answer.set_exception(CdpError(self.broken or session.why))
            return answer
        self._waiting[self._ids] = (session, answer)
        # websockets writes at once what fits; in order of the calls, since nothing is awaited before.
        sending = asyncio.ensure_future(self._socket.send(_written(message), text=True))
        sending.add_done_callback(_taken)
        return answer

    async def draw(self, session: CdpSession, wanted: dict[str, Any]) -> dict[str, Any]:
        """Draw a frame of a page, one at a time: two at once end the browser (docs/decisions/0018-exact.md).

        Who is cancelled meanwhile leaves the frame to be finished, and others wait for that all the same.

        Raises:
            CdpError: if the page goes away, or the browser does not draw; the line is of no use then.
        """
        await self._frames.acquire()
        drawing = asyncio.ensure_future(self._draw(session, wanted))
        self._drawing.add(drawing)
        drawing.add_done_callback(self._drawn)
        return await asyncio.shield(drawing)

    async def _draw(self, session: CdpSession, wanted: dict[str, Any]) -> dict[str, Any]:
        answer = self.post(session, _FRAME, wanted)
        await asyncio.wait([answer], timeout=LOOK_SECONDS)
        if not answer.done() and not await wait_long(session, answer):
            self._end("the browser drew no frame")
        return await answer

    def _drawn(self, drawing: asyncio.Task[dict[str, Any]]) -> None:
        self._drawing.discard(drawing)
        self._frames.release()
        _taken(drawing)

    def when_lost(self, told: Callable[[], None]) -> None:
        """Have a callback told if the line breaks before it is closed."""
        self._lost.append(told)

    async def close(self) -> None:
        """Close the connection."""
        self._lost.clear()
        self._end("the line was closed")
        if self._drawing:
            await asyncio.wait(self._drawing)
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()

    async def _read(self) -> None:
        try:
            while True:
                self._take(_read(await self._socket.recv(decode=False)))
        except websockets.ConnectionClosed:
            pass
        finally:  # whatever it was: nobody shall wait for an answer any more
            self._end("the browser is gone")

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            _, answer = self._waiting.pop(message["id"], (None, None))
            if answer is None or answer.done():
                return
            if error := message.get("error"):
                answer.set_exception(CdpError(error.get("message", "refused")))
            else:
                answer.set_result(message["result"])
            return
        session = self._sessions.get(message.get("sessionId", ""))
        if session is None:
            return
        method, params = message["method"], message["params"]
        if method == "Target.attachedToTarget":
            self._attached(params, session)
        elif method == "Target.detachedFromTarget":
            self._gone(params["sessionId"], "Target closed")
        elif method == "Inspector.targetCrashed":
            self._gone(session.id, "the page crashed")
        else:
            session.tell(method, params)

    def _attached(self, event: dict[str, Any], parent: CdpSession) -> None:
        target = event["targetInfo"]
        session = CdpSession(self, event["sessionId"], target, parent)
        self._sessions[session.id] = session
        claim = self._claims.get(target.get("browserContextId", ""))
        if claim:
            claim(session, target, event["waitingForDebugger"])
            return
        session.post("Runtime.runIfWaitingForDebugger")
        self.root.post("Target.detachFromTarget", {"sessionId": session.id})

    def _gone(self, session_id: str, why: str) -> None:
        """End a session: a crashed page's, too, since what is sent to it would wait for another renderer."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session.why = session.why or why
        session.gone.set()
        for number, (of, answer) in list(self._waiting.items()):
            if of is session:
                del self._waiting[number]
                if not answer.done():
                    answer.set_exception(CdpError(session.why))
        for child in [each for each in self._sessions.values() if each.parent is session]:
            self._gone(child.id, session.why)

    def _end(self, why: str) -> None:
        if self.broken:
            return
        self.broken = why
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(CdpError(why))
        self._waiting.clear()
        for session in self._sessions.values():
            session.why = session.why or why
            session.gone.set()
        for told in self._lost:
            told()


def line_of(browser: Browser) -> CdpConnection:
    """Return the line to a browser.

    Raises:
        InfraError: if it has none.
    """
    line = _lines.get(browser)
    if line is None:
        raise InfraError(
            "this browser was not started for level 'exact'", hint="stillweb.browser.launch(..., exact=True)"
        )
    return line


def has_line(browser: Browser) -> bool:
    """Return whether a browser was started for level EXACT."""
    return browser in _lines


def is_there(browser: Browser) -> bool:
    """Return whether a browser is connected, and its line, if it has one, whole: or it is closed soon."""
    line = _lines.get(browser)
    return browser.is_connected() and not (line and line.broken)


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def open_line(browser: Browser, port: int) -> AsyncIterator[CdpConnection]:
    """Open the line to a browser that listens on a port of the loopback interface.

    Raises:
        InfraError: if it does not.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_OPEN_SECONDS) as client:
            told = (await client.get(f"http://127.0.0.1:{port}/json/version")).json()
        connection = await websockets.connect(
            told["webSocketDebuggerUrl"],
            max_size=None,
            compression=None,
            ping_interval=None,
            proxy=None,
            open_timeout=_OPEN_SECONDS,
        )
    except (httpx.HTTPError, OSError, ValueError, KeyError, websockets.WebSocketException) as error:
        raise InfraError(f"no line to the browser: {error}", hint="stillweb env check") from error
    line = CdpConnection(connection)
    _lines[browser] = line
    closing: list[asyncio.Task[None]] = []
    # A browser without its line keeps no level; so that those who watch for its end see it, it is closed.
    line.when_lost(lambda: closing.append(asyncio.ensure_future(_close(browser))))
    try:
        await line.start()
        yield line
    finally:  # whoever still has the browser is told that its line is broken
        await line.close()
        for each in closing:
            each.cancel()
        await asyncio.gather(*closing, return_exceptions=True)


async def _close(browser: Browser) -> None:
    with suppress(PlaywrightError):
        await browser.close(reason="the line to it broke")


def _written(message: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except TypeError:  # half characters, which JavaScript has and orjson has not
        return json.dumps(message).encode()


def _read(text: bytes) -> Any:
    try:
        with uncollected():
            return orjson.loads(text)
    except ValueError:  # the same, or a number too large for it
        return json.loads(text)


def _taken(answer: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody awaits: commands to what has just gone fail, and that is no news."""
    if not answer.cancelled():
        answer.exception()
