"""CDP access to one page, invisible to the page itself.

`PageProbe.of(page)` attaches once per page: a CDP session of its own, and `js/eye.js` in an isolated world of
every frame. Site isolation is off (`launch`), so that one session sees all frames. Observation and settling
use the probe; every wait ends by the caller's deadline.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self
from weakref import WeakKeyDictionary

from playwright.async_api import CDPSession, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.connection import CdpError, CdpSession
from stillweb.browser.state import state_of
from stillweb.errors import InfraError


class PlaywrightCdpSession:
    """CDP session of a page, with Playwright's `on` and `send`; results and events are plain data."""

    def __init__(self, session: CDPSession) -> None:
        self._public = session  # keeps the session alive
        self._bare: Any = getattr(session, "_impl_obj", session)
        # The wrapped `send` also takes a timeout, without a default.
        taken = inspect.signature(self._bare.send).parameters
        self._named: dict[str, Any] = {"timeout": None} if "timeout" in taken else {}
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bare.on("Inspector.targetCrashed", self._on_crash)

    @classmethod
    async def of(cls, page: Page) -> Self:
        """Open a session of a page.

        Raises:
            playwright.async_api.Error: if the page is closed or has crashed.
        """
        session = cls(await page.context.new_cdp_session(page))
        await session.send("Inspector.enable")
        return session

    async def send(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a command and return its result.

        Raises:
            playwright.async_api.Error: if it is rejected, or the page is closed or has crashed.
        """
        sending = asyncio.ensure_future(self._bare.send(method=method, params=params, **self._named))
        try:
            await asyncio.wait([sending, self._crash], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise PlaywrightError(f"{method}: the page has crashed")
            return sending.result()
        finally:
            sending.cancel()

    async def detach(self) -> None:
        await self._public.detach()

    def _on_crash(self, _: Any) -> None:
        if not self._crash.done():
            self._crash.set_result(None)

    def on(self, event: str, callback: Callable[[Any], None]) -> None:
        self._bare.on(event, callback)

    def remove_listener(self, event: str, callback: Callable[[Any], None]) -> None:
        self._bare.remove_listener(event, callback)


WORLD = "stillweb"

_CLICKABLE_LIMIT = 500
_WITHIN = ("sameDocument", "historySameDocument")  # navigations that keep the document
_TEXT_DEPTH = 3  # levels below a clickable element that are searched for its texts

_probes: WeakKeyDictionary[Page, PageProbe] = WeakKeyDictionary()


class FrameGone(Exception):
    """Raised when a frame navigates or is removed during a command to it."""


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """A frame of a page, by its CDP identifier; the main frame has no parent.

    Attributes:
        loader: CDP identifier of its document.
    """

    id: str
    parent: str
    url: str
    loader: str


class PageProbe:
    """A page's CDP session, and the isolated worlds of its frames.

    Attributes:
        documents: number of documents that its frames have begun since the probe was attached.
        known_nodes: by isolated world, the nodes that it knows by number (`listening`).
        numbered: by isolated world, the backend node ids of the nodes that it has reported, by its own
            number.
    """

    def __init__(self, page: Page, session: PlaywrightCdpSession | CdpSession) -> None:
        self.page = page
        self.documents = 0
        self._session = session
        self._main = ""  # identifier of the main frame; constant for the life of the page
        self._worlds: dict[str, int] = {}
        self._own_worlds: dict[str, int] = {}
        self.known_nodes: dict[int, set[int]] = {}
        self.numbered: dict[int, list[int]] = {}
        self._navigating: set[str] = set()
        self._arrived = asyncio.Event()
        self._arrived.set()
        self._main_arrived = asyncio.Event()
        self._main_arrived.set()
        self._main_ready = asyncio.Event()  # whether the main frame's document has its isolated world
        # Whether the page, or a frame in its history, has begun to navigate since the last `travel`.
        self._left = asyncio.Event()
        self._newer_script = ""
        self._newer_at: tuple[str, int] = ("", 0)
        self._frames: list[FrameInfo] = []  # the last result of `frames`; empty after a change
        self._moves = 0  # number of changes to the frame tree
        self._listeners: dict[int, list[int]] | None = None
        for event in _FRAME_MOVES:
            session.on(event, self._on_frames)
        for event, callback in (
            ("Runtime.executionContextCreated", self._on_world),
            ("Runtime.executionContextDestroyed", self._on_world_gone),
            ("Runtime.executionContextsCleared", self._on_worlds_cleared),
            ("Page.frameRequestedNavigation", self._on_leaving),
            ("Page.frameStartedNavigating", self._on_started),
            ("Page.navigatedWithinDocument", self._on_within),
            ("Page.frameNavigated", self._on_arrived),
            ("Page.frameStoppedLoading", self._on_stopped),
            ("Page.frameDetached", self._on_stopped),
        ):
            session.on(event, callback)

    @property
    def cdp(self) -> CdpSession:
        """The page's session on the CDP connection, at level EXACT."""
        assert isinstance(self._session, CdpSession)
        return self._session

    @classmethod
    async def of(cls, page: Page) -> PageProbe:
        """Return the probe of a page, attached on first use.

        Raises:
            InfraError: if the page is closed or has crashed.
        """
        if probe := _probes.get(page):
            return probe
        session = await _session(page)
        probe = cls(page, session)
        script = resources.files("stillweb.browser").joinpath("js", "eye.js").read_text("utf-8")
        await probe.send("Page.enable")
        await probe.send("Runtime.enable")
        await probe.send("Page.addScriptToEvaluateOnNewDocument", source=script, worldName=WORLD)
        for frame in await probe.frames():
            # A frame that navigates meanwhile gets the script with its new document.
            with suppress(FrameGone):
                made = await probe.send("Page.createIsolatedWorld", frameId=frame.id, worldName=WORLD)
                probe._worlds[frame.id] = made["executionContextId"]
                probe._note_main()
                await probe.send("Runtime.evaluate", expression=script, contextId=made["executionContextId"])
        _probes[page] = probe  # not earlier: a partly attached probe would see empty pages
        return probe

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a CDP command and return its result.

        Raises:
            FrameGone: if the frame or node of the command has gone.
            InfraError: if the page is closed, has crashed, or rejects the command.
        """
        try:
            answer: dict[str, Any] = await self._session.send(method, params)
        except (PlaywrightError, CdpError) as error:
            if any(sign in error.message for sign in _GONE):
                raise FrameGone(error.message) from error
            raise InfraError(f"{self.page.url}: {method}: {error.message}") from error
        return answer

    def hear(self, event: str, callback: Callable[[dict[str, Any]], None]) -> None:
        self._session.on(event, callback)

    @contextmanager
    def expecting(self, event: str) -> Iterator[asyncio.Future[dict[str, Any]]]:
        """Yield a future of the first CDP event of this name within the block."""
        first: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def callback(params: dict[str, Any]) -> None:
            if not first.done():
                first.set_result(params)

        self._session.on(event, callback)
        try:
            yield first
        finally:
            self._session.remove_listener(event, callback)
            first.cancel()

    async def frames(self) -> list[FrameInfo]:
        """Return the frames, parents first, in order of creation.

        Asks the browser only after a frame was added, removed or navigated; the browser reports that before
        it responds to later commands.
        """
        if self._frames:
            return list(self._frames)
        found: list[FrameInfo] = []
        moves = self._moves

        def walk(tree: dict[str, Any], parent: str) -> None:
            frame = tree["frame"]
            url = frame["url"] + frame.get("urlFragment", "")
            found.append(FrameInfo(frame["id"], parent, url, frame["loaderId"]))
            for child in tree.get("childFrames", ()):
                walk(child, frame["id"])

        walk((await self.send("Page.getFrameTree"))["frameTree"], "")
        self._main = found[0].id
        self._note_main()
        if moves == self._moves:
            self._frames = found
        return list(found)

    @contextmanager
    def looking(self) -> Iterator[dict[int, list[int]]]:
        """Yield a cache of the listeners found during this observation, by isolated world (`listening`)."""
        saved, self._listeners = self._listeners, {}
        try:
            yield self._listeners
        finally:
            self._listeners = saved

    @property
    def known_listeners(self) -> dict[int, list[int]] | None:
        """The cache of `looking`; None outside of it."""
        return self._listeners

    async def evaluate(self, expression: str, frame: FrameInfo | None = None) -> Any:
        """Evaluate an expression in a frame's isolated world (default: the main frame's), awaiting promises.

        Raises:
            FrameGone: if the frame has gone, or navigates meanwhile.
            InfraError: if the expression throws.
        """
        frame_id = frame.id if frame else self._main
        if frame_id not in self._worlds:
            raise FrameGone(frame_id)
        answer = await self.send(
            "Runtime.evaluate",
            expression=expression,
            contextId=self._worlds[frame_id],
            awaitPromise=True,
            returnByValue=True,
        )
        if thrown := answer.get("exceptionDetails"):
            text = thrown.get("exception", {}).get("description", thrown["text"])
            raise InfraError(f"{self.page.url}: {expression[:80]}: {text}")
        return answer["result"].get("value")

    async def evaluate_all(self, expression: str, frames: Sequence[FrameInfo]) -> list[Any]:
        """Evaluate an expression in several frames, in their order; None for frames that have gone.

        The commands are sent together; one renderer runs them in sequence.
        """
        answers = await asyncio.gather(
            *(self.evaluate(expression, frame) for frame in frames), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, FrameGone):
                raise answer
        return [None if isinstance(answer, BaseException) else answer for answer in answers]

    async def evaluate_numbered(self, call: Callable[[int], str], frame: FrameInfo) -> tuple[str, list[int]]:
        """Evaluate an expression that returns nodes by their numbers in a frame's isolated world.

        Args:
            call: builds the expression from the count of numbers already known; it yields the nodes beyond.

        Returns:
            The text, and the backend node ids by number.

        Raises:
            FrameGone, InfraError: as `evaluate_nodes`.
        """
        world = self.worlds(frame)[1]
        numbered = self.numbered.setdefault(world, [])
        known = len(numbered)
        text, fresh = await self.evaluate_nodes(call(known), frame)
        numbered[known:] = fresh  # some of them repeated if two calls ran concurrently
        return text, numbered

    async def evaluate_nodes(self, expression: str, frame: FrameInfo) -> tuple[str, list[int]]:
        """Evaluate an expression that yields an array of a text and DOM nodes, in one round trip.

        Returns:
            The text, and the backend node ids.

        Raises:
            FrameGone: if the frame has gone, or navigates meanwhile.
            InfraError: if the expression throws.
        """
        if frame.id not in self._worlds:
            raise FrameGone(frame.id)
        answer = await self.send(
            "Runtime.evaluate",
            expression=expression,
            contextId=self._worlds[frame.id],
            serializationOptions=_NODES_BY_ID,
        )
        if thrown := answer.get("exceptionDetails"):
            text = thrown.get("exception", {}).get("description", thrown["text"])
            raise InfraError(f"{self.page.url}: {expression[:80]}: {text}")
        first, *nodes = answer["result"]["deepSerializedValue"]["value"]
        return str(first["value"]), [node["value"]["backendNodeId"] for node in nodes]

    def worlds(self, frame: FrameInfo) -> tuple[int, int]:
        """Return the execution contexts of a frame's main world (0 without one) and of the isolated one.

        Raises:
            FrameGone: if the frame has gone.
        """
        if frame.id not in self._worlds:
            raise FrameGone(frame.id)
        return self._own_worlds.get(frame.id, 0), self._worlds[frame.id]

    async def handle(self, frame_id: str, backend_node_id: int) -> str:
        """Return the object id of a DOM node in its frame's isolated world.

        Raises:
            FrameGone: if the node or its frame has gone.
        """
        if frame_id not in self._worlds:
            raise FrameGone(frame_id)
        answer = await self.send(
            "DOM.resolveNode", backendNodeId=backend_node_id, executionContextId=self._worlds[frame_id]
        )
        return str(answer["object"]["objectId"])

    async def clickable(self, frame: FrameInfo) -> dict[int, list[int]]:
        """Return the outermost elements with a hand cursor, and the texts in each, by backend node id."""
        if frame.id not in self._worlds:
            return {}
        answer = await self.send(
            "Runtime.evaluate",
            expression=f"eye.clickable({_CLICKABLE_LIMIT})",
            contextId=self._worlds[frame.id],
            objectGroup=f"clickable-{frame.id}",
        )
        listed = await self.send(
            "Runtime.getProperties", objectId=answer["result"]["objectId"], ownProperties=True
        )
        objects = [
            entry["value"]["objectId"]
            for entry in listed["result"]
            if "objectId" in entry.get("value", {}) and entry["name"].isdigit()
        ]
        answers = await asyncio.gather(
            *(self.send("DOM.describeNode", objectId=o, depth=_TEXT_DEPTH) for o in objects)
        )
        await self.send("Runtime.releaseObjectGroup", objectGroup=f"clickable-{frame.id}")
        nodes = [answer["node"] for answer in answers]
        return {node["backendNodeId"]: list(_texts(node)) for node in nodes}

    async def begin_documents_with(self, source: str) -> None:
        """Run a script at the beginning of every new document, in place of the one given before."""
        if self._newer_at == (source, self.documents):  # a document may come with another renderer
            return
        documents = self.documents
        added, _ = await asyncio.gather(
            self.send("Page.addScriptToEvaluateOnNewDocument", source=source), self._forget_newer_script()
        )
        self._newer_script = added["identifier"]
        self._newer_at = (source, documents)

    async def _forget_newer_script(self) -> None:
        if not self._newer_script:
            return
        try:
            await self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=self._newer_script)
        except InfraError as error:
            # A script that was added while another renderer took over the page was lost with the old one.
            if "Script not found" not in str(error):
                raise

    async def arrived(self, timeout: float) -> bool:
        """Wait until no frame is navigating and the main frame can run scripts; False on timeout.

        A navigation without a document (204, a download) may report no end; therefore the timeout. Callers
        that retry after `FrameGone` wait here instead of looping.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._arrived.wait()
                await self._main_ready.wait()
        except TimeoutError:
            self._navigating.clear()
            self._arrived.set()
            self._main_arrived.set()
            return False
        return True

    async def open(self, url: str) -> str:
        """Navigate as a link without referrer would; return when the document has arrived.

        Playwright navigates as if the URL was typed: a page of another site then gets a widget of its own
        (docs/decisions/0018-exact.md).

        Returns:
            Chromium's error (`net::ERR_...`), "" on success.

        Raises:
            InfraError: if the page is closed or has crashed.
        """
        try:
            answer = await self.send("Page.navigate", url=url, transitionType="link")
        except InfraError as error:
            if _NO_URL not in str(error):
                raise
            return _NO_URL
        if failure := str(answer.get("errorText", "")):
            return failure
        events = (self._main_arrived, self.cdp.gone)
        arrived, gone = (asyncio.ensure_future(event.wait()) for event in events)
        try:
            await asyncio.wait({arrived, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrived.cancel()
            gone.cancel()
        if self.cdp.gone.is_set():
            raise InfraError(f"{self.page.url}: Page.navigate: {self.cdp.why}")
        return ""

    async def travel(self, entry: int, timeout: float) -> bool:
        """Go to an entry of the history; return once a navigation has begun or its document exists.

        The browser responds earlier, while the page still shows the old state, at rest.

        Returns:
            Whether the page itself is navigating to another document (if not, one of its frames may be).

        Raises:
            InfraError: if the page is closed or has crashed.
        """
        await self.travelling(self.send("Page.navigateToHistoryEntry", entryId=entry), timeout)
        return self._main in self._navigating

    async def travelling(self, call: Awaitable[object], timeout: float) -> None:
        """Await a call that starts a step in history, and the beginning of its navigation."""
        self._left.clear()
        await call
        with suppress(TimeoutError):  # a page may refuse to be left (beforeunload)
            async with asyncio.timeout(timeout):
                await self._left.wait()

    def _on_started(self, event: dict[str, Any]) -> None:
        kind = event.get("navigationType", "")
        # For a step in history no other event comes first; a page's step may belong to one of its frames.
        if event["frameId"] != self._main and not kind.startswith("history"):
            return
        if kind not in _WITHIN:
            self._on_leaving(event)
        self._left.set()

    def _on_within(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._main:
            self._left.set()

    def _on_world(self, event: dict[str, Any]) -> None:
        context = event["context"]
        if context["name"] == WORLD:
            self._worlds[context["auxData"]["frameId"]] = context["id"]
            self._note_main()
            self.documents += 1
        elif context["auxData"].get("isDefault"):
            self._own_worlds[context["auxData"]["frameId"]] = context["id"]

    def _on_world_gone(self, event: dict[str, Any]) -> None:
        gone = event["executionContextId"]
        self._worlds = {frame: world for frame, world in self._worlds.items() if world != gone}
        self._note_main()
        self._own_worlds = {frame: world for frame, world in self._own_worlds.items() if world != gone}
        self.known_nodes.pop(gone, None)
        self.numbered.pop(gone, None)

    def _on_worlds_cleared(self, _: dict[str, Any]) -> None:
        self._worlds.clear()
        self._note_main()
        self._own_worlds.clear()
        self.known_nodes.clear()
        self.numbered.clear()

    def _note_main(self) -> None:
        if self._main in self._worlds:
            self._main_ready.set()
        else:
            self._main_ready.clear()

    def _on_frames(self, _: dict[str, Any]) -> None:
        self._moves += 1
        self._frames = []

    def _on_leaving(self, event: dict[str, Any]) -> None:
        if event.get("disposition", "currentTab") == "currentTab":
            self._navigating.add(event["frameId"])
            self._arrived.clear()
            if event["frameId"] == self._main:
                self._main_arrived.clear()

    def _on_arrived(self, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == self._main:
            self._left.set()
        self._leave_off(event["frame"]["id"])

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self._leave_off(event["frameId"])

    def _leave_off(self, frame_id: str) -> None:
        self._navigating.discard(frame_id)
        if frame_id == self._main:
            self._main_arrived.set()
        if not self._navigating:
            self._arrived.set()


async def _session(page: Page) -> PlaywrightCdpSession | CdpSession:
    exact = state_of(page.context).exact
    if exact and (only := exact.only_page()):  # saves four calls of Playwright's driver
        return only
    try:
        session = await PlaywrightCdpSession.of(page)
        if exact is None:
            return session
        info = await session.send("Target.getTargetInfo")
        await session.detach()
    except PlaywrightError as error:
        raise InfraError(f"{page.url}: no CDP session: {error.message}") from error
    return exact.session(info["targetInfo"]["targetId"])


def _texts(node: dict[str, Any]) -> Iterator[int]:
    """Yield the text nodes in a node of CDP's DOM.Node, and its pseudo-elements, which may contain text."""
    for pseudo in node.get("pseudoElements", ()):
        yield pseudo["backendNodeId"]
    for child in node.get("children", ()):
        if child["nodeType"] == _TEXT_NODE:
            yield child["backendNodeId"]
        else:
            yield from _texts(child)


_NO_URL = "Cannot navigate to invalid URL"
_TEXT_NODE = 3  # DOM §4.4
# After each of these events a frame is new, removed, or has another URL or document.
_FRAME_MOVES = (
    "Page.frameAttached",
    "Page.frameDetached",
    "Page.frameNavigated",
    "Page.navigatedWithinDocument",
    "Page.documentOpened",
    "Runtime.executionContextsCleared",
)
# Nodes are serialised as in WebDriver BiDi (script.NodeRemoteValue), with Chromium's backendNodeId.
_NODES_BY_ID = {
    "serialization": "deep",
    "maxDepth": 1,
    "additionalParameters": {"maxNodeDepth": 0, "includeShadowTree": "none"},
}
_GONE = (
    "Cannot find context",
    "Execution context was destroyed",
    "Inspected target navigated",
    "Promise was collected",
    "No node found at given location",
    "No frame for given id",
    "Frame with the given",
    "uniqueContextId not found",
    "Could not find node",
    "No node with given id",
    "does not belong to the document",
)
