"""Frames of the pages of one context at level EXACT: the documents that they get, and how they are drawn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from stillweb.browser.cdp.connection import CdpConnection, CdpError, CdpSession
from stillweb.errors import InfraError

# Frame times are far ahead of the machine's uptime (31 years, in ms): a browser that finds itself behind uses
# the real time instead.
_FRAME_EPOCH = 1e12
# ms between frames at one instant: an animation that began in the first of 40 still rounds to its start.
_FRAME_STEP = 0.01
_SCREENSHOT_FRAMES = 5  # the first frame has no picture if the page has not been shown before


class FrameDocuments:
    """Frames whose document is on its way, and popups that get none.

    The browser process commits a document without a request (`srcdoc`, `blob:`) at any time, so a rest waits
    for it.

    Attributes:
        loading: frames whose document has been neither requested nor begun, with their page's session.
        removed: frames that are gone.
        empty_popups: popups whose first document does not come: Playwright never reports them.
    """

    def __init__(self, flag: Callable[[str], None], progress: asyncio.Event) -> None:
        self.loading: dict[str, CdpSession] = {}
        self.removed: set[str] = set()
        self.empty_popups: set[str] = set()
        self._held: dict[str, str] = {}  # keys of documents that no page has reported, by frame
        self._keys: dict[str, str] = {}  # of those documents, by the identifier that their page reports
        self._pages: set[str] = set()  # that got a document
        self._late: set[str] = set()  # frames that are no longer awaited
        self._flag = flag
        self._progress = progress

    def follow(self, session: CdpSession) -> None:
        """Follow the frames of a page."""
        session.on("Page.frameStartedLoading", partial(self._on_started, session))
        session.on("Page.frameStoppedLoading", lambda event: self._end(event["frameId"]))
        session.on("Page.frameNavigated", partial(self._on_navigated, session))

    def forget(self, session: CdpSession) -> None:
        """Await no frame of a page that is gone."""
        for frame in [frame for frame, owner in self.loading.items() if owner is session]:
            self._end(frame)

    def _on_started(self, session: CdpSession, event: dict[str, Any]) -> None:
        if event["frameId"] != session.target["targetId"]:
            self.loading[event["frameId"]] = session

    def _on_navigated(self, session: CdpSession, event: dict[str, Any]) -> None:
        frame = event["frame"]["id"]
        self._end(frame)
        if frame in self._late:
            self._late.discard(frame)
            self._flag("the document of a frame came after it had been given up")
        if frame == session.target["targetId"]:
            self._pages.add(frame)
            self.empty_popups.discard(frame)

    def _end(self, frame: str) -> None:
        if self.loading.pop(frame, None):
            self._progress.set()

    def requested(self, frame: str) -> None:
        """Note the request of a frame's document: it is awaited from now on."""
        self.loading.pop(frame, None)
        self._late.discard(frame)

    def hold(self, event: dict[str, Any]) -> None:
        """Note a paused document; if its page could not report it, its answer has another key."""
        if not event.get("networkId"):
            self._held[event["frameId"]] = event["requestId"]

    def key_of(self, reported: str, frame: str = "") -> str:
        """Return the key of a request by the identifier that its page reports; a document has a frame."""
        if key := self._held.pop(frame, ""):
            self._keys[reported] = key
        return self._keys.get(reported, reported)

    def detached(self, frame: str) -> None:
        """Note that a frame is gone."""
        self._end(frame)
        self._late.discard(frame)
        self.removed.add(frame)

    def give_up(self) -> None:
        """Await none of the frames any longer; a document that comes then is flagged."""
        self._late.update(self.loading)
        self.loading.clear()

    def note_empty(self, target: dict[str, Any], frame: str) -> None:
        """Note an answer without a document, by its page and frame."""
        if target.get("openerId") and frame == target["targetId"] and frame not in self._pages:
            self.empty_popups.add(frame)


class DrawnFrames:
    """Draws frames of pages at the context's time.

    Attributes:
        elapsed: milliseconds that the context's clock has moved; frames are drawn for that time.
    """

    def __init__(self, connection: CdpConnection) -> None:
        self.elapsed = 0
        self._connection = connection
        self._times: dict[str, float] = {}  # of the last frame, by page
        self._drawing: Counter[str] = Counter()  # frames under way, by page
        self._waiting: dict[str, list[Callable[[], object]]] = {}  # calls that wait for those

    async def draw(self, session: CdpSession, *, picture: bool = False) -> str:
        """Draw one frame of a page; return it as base64 PNG if `picture`.

        Raises:
            CdpError: if the page ends meanwhile, or the browser does not draw.
        """
        at = max(_FRAME_EPOCH + self.elapsed, self._times.get(session.id, 0.0) + _FRAME_STEP)
        self._times[session.id] = at
        wanted: dict[str, Any] = {"frameTimeTicks": at, "interval": 16.0}
        if picture:
            wanted["screenshot"] = {"format": "png", "optimizeForSpeed": True}
        self._drawing[session.id] += 1
        try:
            result = await self._connection.draw(session, wanted)
        finally:
            self._drawing[session.id] -= 1
            if not self._drawing[session.id]:
                for call in self._waiting.pop(session.id, ()):
                    call()
        return str(result.get("screenshotData", ""))

    def run_after(self, session: CdpSession, call: Callable[[], object]) -> None:
        """Call something when no frame of a page is being drawn."""
        if self._drawing[session.id]:
            self._waiting.setdefault(session.id, []).append(call)
        else:
            call()

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
