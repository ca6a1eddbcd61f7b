"""CDP connection to a browser, beside Playwright's on the same pipe.

Level EXACT needs two things that Playwright's CDP sessions do not offer. Targets (pages, popups, workers)
must be reported at their creation, before their first instruction. And it sends thousands of small commands a
second, which cost several times as much through Playwright's driver. One `CdpConnection` serves all contexts
of a browser. Each target goes to the owner of its context, and is detached immediately if the context has
none.

A browser has such a connection only if `launch` requested level EXACT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.browser.cdp.reports import is_worker_script
from stillweb.errors import InfraError

if TYPE_CHECKING:
    from stillweb.browser.cdp.pipe import BrowserPipe

LOOP_SECONDS = 5.0
"""Processor seconds for one task of a page; the longest tasks of large pages take one or two."""

LOOK_SECONDS = 2.0
"""Real seconds between two checks of a command that has no result yet; commands take milliseconds."""

_RESULT_SECONDS = 60.0  # real seconds, for a command that hangs without using the processor

PendingResult = asyncio.Future[dict[str, Any]]


async def wait_for_slow(session: CdpSession, result: PendingResult) -> bool:
    """Wait for a result that did not arrive within `LOOK_SECONDS`; return True if it arrived.

    Crashes a page whose script loops.
    """
    began = clock.monotonic()
    page = session.page
    ping = _ping(session)
    used = None
    while not result.done() and clock.monotonic() - began < _RESULT_SECONDS:
        metrics = page.post("Performance.getMetrics") if page else None
        await asyncio.wait([result], timeout=LOOK_SECONDS)
        # A session that responds is not in a loop: the command waits for another reason.
        if page is None or metrics is None or ping.done() or not _succeeded(metrics):
            continue
        now = _seconds_used(metrics.result())
        used = now if used is None else used
        if now - used > LOOP_SECONDS:
            page.end(f"a script took {LOOP_SECONDS:g} s of the processor and did not end")
    return result.done()


def _ping(session: CdpSession) -> PendingResult:
    return session.post("Runtime.evaluate", {"expression": "1"})


def _succeeded(result: PendingResult) -> bool:
    return result.done() and not result.cancelled() and result.exception() is None


def _seconds_used(metrics: dict[str, Any]) -> float:
    # Time of the whole renderer, since workers have threads of their own.
    return next((float(each["value"]) for each in metrics["metrics"] if each["name"] == "ProcessTime"), 0.0)


logger = logging.getLogger(__name__)

EventCallback = Callable[[dict[str, Any]], None]
Claim = Callable[["CdpSession", dict[str, Any], bool], None]

_OWN_IDS = 1 << 30  # of our commands: CDP has 32-bit integers, and Playwright counts from 1
_REPORT_SECONDS = 1.0  # real; a worker's script that no session reports is not held any longer
_FRAME = "HeadlessExperimental.beginFrame"
_DOCUMENT, _WORKER_SCRIPT = "Document", "Other"  # CDP resource types at the browser's own session
_AUTO_ATTACH = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}

_connections: WeakKeyDictionary[Browser, CdpConnection] = WeakKeyDictionary()


class CdpError(Exception):
    """Raised when the browser rejects a command, or the command's target has ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CdpSession:
    """CDP session of a target, with `on` and `send` as in Playwright's CDPSession.

    Attributes:
        parent: session of a worker's page; of a page, the browser's own session.
        gone: set when the target has ended or crashed.
    """

    def __init__(
        self,
        connection: CdpConnection,
        identifier: str,
        target: dict[str, Any],
        parent: CdpSession | None = None,
    ) -> None:
        self.connection = connection
        self.id = identifier
        self.target = target
        self.parent = parent
        self.gone = asyncio.Event()
        self.why = ""
        self._callbacks: dict[str, list[EventCallback]] = {}

    @property
    def page(self) -> CdpSession | None:
        """Session of the page that this session is or belongs to; None for the browser and shared workers."""
        if self.target["type"] == "page":
            return self
        return self.parent.page if self.parent else None

    def end(self, why: str) -> None:
        """Crash a page's renderer, whatever it runs; all pending commands fail with `why`."""
        self.why = self.why or why
        self.post("Page.crash")

    def on(self, event: str, callback: EventCallback) -> None:
        self._callbacks.setdefault(event, []).append(callback)

    def remove_listener(self, event: str, callback: EventCallback) -> None:
        self._callbacks[event].remove(callback)

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            CdpError: if the browser rejects it or the target has ended.
        """
        return await self.connection.send(self, method, params or {})

    def post(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Send a command now, in order with others; the caller may await the result or ignore it."""
        return self.connection.post(self, method, params or {})

    def dispatch(self, method: str, params: dict[str, Any]) -> None:
        for callback in tuple(self._callbacks.get(method, ())):
            callback(params)


class CdpConnection:
    """CDP connection of one browser; see `connect_browser`."""

    def __init__(self, pipe: BrowserPipe) -> None:
        self.contexts = asyncio.Lock()
        """Held while a context is made, to identify it."""
        self.broken = ""
        self.root = CdpSession(self, "", {"type": "browser"})
        self._pipe = pipe
        self._ids = _OWN_IDS
        self._waiting: dict[int, tuple[CdpSession, asyncio.Future[dict[str, Any]]]] = {}
        self._frames = asyncio.Lock()
        self._drawing: set[asyncio.Task[dict[str, Any]]] = set()
        self._lost: list[Callable[[], None]] = []
        self._sessions: dict[str, CdpSession] = {"": self.root}
        self._claims: dict[str, Claim] = {}
        self._pinning: dict[str, tuple[PendingResult, EventCallback]] = {}  # by target, see `pin_first`
        self._held: dict[str, dict[str, Any]] = {}  # scripts of workers, by request
        self._wanted: dict[str, EventCallback] = {}
        self._key_times: dict[str, Callable[[], float]] = {}  # of claimed contexts
        self._foreign: dict[str, str] = {}  # Playwright's sessions of their targets -> context
        self._muted: set[str] = set()  # contexts
        pipe.take = self._take
        pipe.is_foreign = lambda session: session not in self._sessions
        pipe.answer = self._answer
        pipe.adapt = self._adapt
        pipe.lost = lambda: self._end("the browser is gone")

    async def start(self) -> None:
        """Attach to all targets from now on, by a session beside Playwright's."""
        attached = await self.root.send("Target.attachToBrowserTarget")
        self.root.id = attached["sessionId"]
        self._sessions = {self.root.id: self.root}
        self.root.on("Fetch.requestPaused", self._on_paused)
        patterns = [{"urlPattern": "*", "resourceType": kind} for kind in (_DOCUMENT, _WORKER_SCRIPT)]
        await self.root.send("Fetch.enable", {"patterns": patterns})
        await self.root.send("Target.setAutoAttach", _AUTO_ATTACH)

    def pin_first(self, session: CdpSession, pinned: PendingResult, resume: EventCallback) -> None:
        """Hold the document of a new page, or the script of a worker, until a command has its result.

        Playwright lets popups and shared workers run, and may do so before our commands have arrived. The
        browser itself must answer the command, since the page of a held document may not.

        Args:
            pinned: result of the command.
            resume: called with the `Fetch.requestPaused` event of what was held, and must let it proceed.
        """
        target = session.target["targetId"]
        self._pinning[target] = pinned, resume
        pinned.add_done_callback(lambda _: self._pinning.pop(target, None))

    def when_script_held(self, request: str, callback: EventCallback) -> None:
        """Call back with the `Fetch.requestPaused` event of a worker's script; the callback resumes it.

        The session of a page pauses the scripts of its workers, but not those of workers that these make.
        """
        if event := self._held.pop(request, None):
            callback(event)
        else:
            self._wanted[request] = callback

    def resume(self, event: dict[str, Any]) -> None:
        """Let a request proceed that was held at the browser's own session."""
        self.root.post("Fetch.continueRequest", {"requestId": event["requestId"]})

    def _on_paused(self, event: dict[str, Any]) -> None:
        # A page's target has the identifier of its main frame, a worker's the one of its script's request.
        script = event["resourceType"] == _WORKER_SCRIPT
        target = event.get("networkId", "") if script else event["frameId"]
        if target in self._pinning:
            pinned, resume = self._pinning[target]
            pinned.add_done_callback(lambda _: resume(event))
        elif script and target in self._wanted:
            self._wanted.pop(target)(event)
        elif script and is_worker_script(target):  # the report of the request has not arrived
            self._held[target] = event
            asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._resume_unreported, target)
        else:
            self.resume(event)

    def _resume_unreported(self, request: str) -> None:
        if event := self._held.pop(request, None):
            self.resume(event)

    def claim(self, context_id: str, claim: Claim, key_time: Callable[[], float]) -> None:
        """Call back for each target of a context: session, info, whether it waits for the debugger.

        Args:
            key_time: returns the time of the next key that Playwright presses there, in seconds since 1970.
        """
        self._claims[context_id] = claim
        self._key_times[context_id] = key_time

    def mute(self, context_id: str) -> None:
        """Report no requests and responses of a context's future targets to Playwright.

        A page's traffic then has half as many events; each costs renderer, browser and driver time.
        """
        self._muted.add(context_id)

    def release(self, context_id: str) -> None:
        self._claims.pop(context_id, None)
        self._key_times.pop(context_id, None)
        self._muted.discard(context_id)
        self._foreign = {session: of for session, of in self._foreign.items() if of != context_id}

    async def browser_contexts(self) -> list[str]:
        reply = await self.root.send("Target.getBrowserContexts")
        return list(reply["browserContextIds"])

    async def send(self, session: CdpSession, method: str, params: dict[str, Any]) -> dict[str, Any]:
        result = self.post(session, method, params)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.shield(result)
        except TimeoutError:
            if not await wait_for_slow(session, result):
                raise CdpError("no result in time") from None
        return result.result()

    def post(
        self, session: CdpSession, method: str, params: dict[str, Any]
    ) -> asyncio.Future[dict[str, Any]]:
        self._ids += 1
        message: dict[str, Any] = {"id": self._ids, "method": method, "params": params}
        if session.id:
            message["sessionId"] = session.id
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        result.add_done_callback(_ignore_error)
        if self.broken or session.gone.is_set():
            result.set_exception(CdpError(self.broken or session.why))
            return result
        self._waiting[self._ids] = (session, result)
        self._pipe.post(message)
        return result

    async def draw(self, session: CdpSession, wanted: dict[str, Any]) -> dict[str, Any]:
        """Draw a frame of a page.

        One at a time: two simultaneous frames end the browser (docs/decisions/0018-exact.md). A cancelled
        call leaves its frame to be finished, and other calls still wait for it.

        Raises:
            CdpError: if the page ends, or the browser does not draw; the connection is unusable then.
        """
        await self._frames.acquire()
        drawing = asyncio.ensure_future(self._draw(session, wanted))
        self._drawing.add(drawing)
        drawing.add_done_callback(self._frame_drawn)
        return await asyncio.shield(drawing)

    async def _draw(self, session: CdpSession, wanted: dict[str, Any]) -> dict[str, Any]:
        result = self.post(session, _FRAME, wanted)
        await asyncio.wait([result], timeout=LOOK_SECONDS)
        if not result.done() and not await wait_for_slow(session, result):
            self._end("the browser drew no frame")
        return await result

    def _frame_drawn(self, drawing: asyncio.Task[dict[str, Any]]) -> None:
        self._drawing.discard(drawing)
        self._frames.release()
        _ignore_error(drawing)

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call back if the connection breaks before it is closed."""
        self._lost.append(callback)

    async def close(self) -> None:
        self._lost.clear()
        if not self.broken:
            self._pipe.post(
                {"id": _OWN_IDS, "method": "Target.detachFromTarget", "params": {"sessionId": self.root.id}}
            )
        self._end("the connection was closed")
        if self._drawing:
            await asyncio.wait(self._drawing)

    def _take(self, message: dict[str, Any]) -> bool:
        """Take a message of the browser; return False if it is for Playwright."""
        if "id" in message:
            if message["id"] < _OWN_IDS:
                return False
            self._finish(message)
            return True
        session = self._sessions.get(message.get("sessionId", ""))
        if session is None or not session.id:
            self._note_foreign(message)
            return False
        self._dispatch(session, message["method"], message["params"])
        return True

    def _note_foreign(self, message: dict[str, Any]) -> None:
        if message["method"] == "Target.attachedToTarget":
            context = message["params"]["targetInfo"].get("browserContextId", "")
            if context in self._claims:
                self._foreign[message["params"]["sessionId"]] = context

    def _answer(self, command: dict[str, Any]) -> dict[str, Any] | None:
        session = command.get("sessionId", "")
        is_muted = self._foreign.get(session) in self._muted
        if command["method"] != "Network.enable" or not is_muted:
            return None
        return {"id": command["id"], "sessionId": session, "result": {}}

    def _adapt(self, command: dict[str, Any]) -> dict[str, Any]:
        """Give a key of Playwright the time of its page: a list's type-ahead ends 1 s after the last key."""
        key_time = self._key_times.get(self._foreign.get(command.get("sessionId", ""), ""))
        if key_time and command["method"] == "Input.dispatchKeyEvent":
            command["params"]["timestamp"] = key_time()
        return command

    def _finish(self, message: dict[str, Any]) -> None:
        _, result = self._waiting.pop(message["id"], (None, None))
        if result is not None and not result.done():
            if error := message.get("error"):
                result.set_exception(CdpError(error.get("message", "refused")))
            else:
                result.set_result(message["result"])

    def _dispatch(self, session: CdpSession, method: str, params: dict[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            self._attached(params, session)
        elif method == "Target.detachedFromTarget":
            self._gone(params["sessionId"], "Target closed")
        elif method == "Inspector.targetCrashed":
            self._gone(session.id, "the page crashed")
        else:
            session.dispatch(method, params)

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
        """End a session: also a crashed page's, since its commands would wait for another renderer."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session.why = session.why or why
        session.gone.set()
        for number, (of, result) in list(self._waiting.items()):
            if of is session:
                del self._waiting[number]
                if not result.done():
                    result.set_exception(CdpError(session.why))
        for child in [each for each in self._sessions.values() if each.parent is session]:
            self._gone(child.id, session.why)

    def _end(self, why: str) -> None:
        if self.broken:
            return
        self.broken = why
        for _, result in self._waiting.values():
            if not result.done():
                result.set_exception(CdpError(why))
        self._waiting.clear()
        for session in self._sessions.values():
            session.why = session.why or why
            session.gone.set()
        for callback in self._lost:
            callback()


def connection_of(browser: Browser) -> CdpConnection:
    """Return the connection of a browser.

    Raises:
        InfraError: if it has none.
    """
    connection = _connections.get(browser)
    if connection is None:
        raise InfraError(
            "this browser was not started for level 'exact'", hint="stillweb.browser.launch(..., exact=True)"
        )
    return connection


def has_connection(browser: Browser) -> bool:
    """Return True if a browser was launched for level EXACT."""
    return browser in _connections


def is_connected(browser: Browser) -> bool:
    """Return True if Playwright's connection and, at level EXACT, the CDP connection are both open."""
    connection = _connections.get(browser)
    return browser.is_connected() and not (connection and connection.broken)


@asynccontextmanager
async def connect_browser(browser: Browser, pipe: BrowserPipe) -> AsyncIterator[CdpConnection]:
    """Use the pipe of a browser beside Playwright.

    Raises:
        InfraError: if the browser is gone.
    """
    connection = CdpConnection(pipe)
    _connections[browser] = connection
    closing: list[asyncio.Task[None]] = []
    # Without this connection the browser guarantees no level; closing it informs those that watch for its
    # end.
    connection.when_lost(lambda: closing.append(asyncio.ensure_future(_close(browser))))
    try:
        try:
            await connection.start()
        except CdpError as error:
            raise InfraError(f"no CDP connection to the browser: {error}", hint="stillweb doctor") from error
        yield connection
    finally:  # other holders of the browser get an error for the closed connection
        await connection.close()
        for each in closing:
            each.cancel()
        await asyncio.gather(*closing, return_exceptions=True)


async def _close(browser: Browser) -> None:
    with suppress(PlaywrightError):
        await browser.close(reason="the CDP connection broke")


def _ignore_error(result: asyncio.Future[Any]) -> None:
    """Retrieve an exception that no caller awaits: commands to a target that has just ended fail."""
    if not result.cancelled():
        result.exception()
