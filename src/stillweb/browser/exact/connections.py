"""WebSockets and event streams of a context at level EXACT: which frames and events have arrived.

The replay server reports what it has sent on the open connections, and releases what the recording received
over time by the page's clock. A rest waits until all of it has arrived; then the page gets it, connection by
connection (`js/sockets.js`). Without such a server a rest waits for the first frame, for a second at most
(`Activity`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stillweb import clock
from stillweb.browser.cdp.connection import CdpSession

if TYPE_CHECKING:
    from stillweb.browser.activity import Activity

_ARRIVE_SECONDS = 5.0  # real; frames of replay arrive within milliseconds
_LOOK_SECONDS = 0.05  # real; between two requests to the server
# Chromium's messages (WebSocketChannel, WebSocketStream).
_UNANSWERED = (
    *("Error in connection establishment", "Establishing a tunnel via proxy server failed"),
    "Connection closed before receiving a handshake response",
)
_OFTEN = 2  # equal counts in sequence, since one may be reported late


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """Counts over the open connections of a session or context.

    Attributes:
        sockets: open WebSockets.
        sent: messages that pages have sent over them.
        received: messages that pages have received over them.
        streams: open event streams.
        events: events that pages have received over them; -1 if the server cannot count them.
    """

    sockets: int = 0
    sent: int = 0
    received: int = 0
    streams: int = 0
    events: int = 0


Server = Callable[[int], Awaitable[tuple[ConnectionCounts, int | None]]]


@dataclass(slots=True)
class _Counted:
    owner: str  # id of the session of its page or worker
    sent: int = 0
    received: int = 0


class Connections:
    """WebSockets and event streams of one `ExactContext`.

    Attributes:
        server: takes the virtual ms since the start of the episode, releases what is due by then, and returns
            its counts and the time of the next release; None without a replay server that can do so.
        begun: whether the context ever had a connection.
        next_due: virtual ms since the start at which the server releases more; None if nothing waits.
    """

    def __init__(self, flag: Callable[[str], None], activity: Callable[[], Activity | None]) -> None:
        self.server: Server | None = None
        self.begun = False
        self.next_due: int | None = None
        self._flag = flag
        self._activity = activity
        self._sockets: dict[str, _Counted] = {}
        self._streams: dict[str, _Counted] = {}
        self._changed = asyncio.Event()

    @property
    def counts(self) -> ConnectionCounts:
        """The counts of the browser's side."""
        sockets = self._sockets.values()
        return ConnectionCounts(
            len(sockets),
            sum(socket.sent for socket in sockets),
            sum(socket.received for socket in sockets),
            len(self._streams),
            sum(stream.received for stream in self._streams.values()),
        )

    def follow(self, session: CdpSession) -> None:
        """Count the connections of a page or worker."""
        session.on("Network.webSocketCreated", partial(self._on_created, session.id))
        session.on("Network.webSocketFrameSent", self._on_sent)
        session.on("Network.webSocketFrameReceived", self._on_received)
        session.on("Network.webSocketFrameError", self._on_error)
        session.on("Network.webSocketClosed", self._on_closed)
        session.on("Network.eventSourceMessageReceived", self._on_event)

    def stream_began(self, owner: str, request: str) -> None:
        """An event stream was requested."""
        self.begun = True
        self._streams[request] = _Counted(owner)

    def left(self, owner: str) -> None:
        """A page has another document, or a page or worker is gone: its connections are closed."""
        for connections in (self._sockets, self._streams):
            for key in [key for key, each in connections.items() if each.owner == owner]:
                del connections[key]
        self._changed.set()

    def ended(self, request: str) -> None:
        """A request has ended, which may be an event stream."""
        if self._streams.pop(request, None) is not None:
            self._changed.set()

    async def arrive(self, elapsed: int) -> None:
        """Wait until everything that the server has sent by a virtual time has arrived."""
        self.next_due = None
        if self.server is None or not (self._sockets or self._streams):
            return
        until = clock.monotonic() + _ARRIVE_SECONDS
        equal = 0
        while equal < _OFTEN:
            self._changed.clear()
            counts, self.next_due = await self.server(elapsed)
            mine = self.counts
            if counts == (mine if counts.events >= 0 else replace(mine, events=counts.events)):
                equal += 1
                continue
            equal = 0
            if clock.monotonic() > until:
                self._flag("frames of a WebSocket or event stream did not arrive in time")
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    def _on_created(self, owner: str, event: dict[str, Any]) -> None:
        self.begun = True
        self._sockets[event["requestId"]] = _Counted(owner)
        if activity := self._activity():
            activity.socket_opened(event["requestId"], event["url"], waits=self.server is None)

    def _on_sent(self, event: dict[str, Any]) -> None:
        if socket := self._sockets.get(event["requestId"]):
            socket.sent += 1
        if activity := self._activity():
            activity.socket_sent(event["requestId"], waits=self.server is None)
        self._changed.set()

    def _on_received(self, event: dict[str, Any]) -> None:
        if socket := self._sockets.get(event["requestId"]):
            socket.received += 1
        if activity := self._activity():
            activity.socket_received(event["requestId"])
        self._changed.set()

    def _on_error(self, event: dict[str, Any]) -> None:
        # Replay answers every handshake, so this one failed on its way; to the page it looks refused.
        if self.server is not None and event["errorMessage"].startswith(_UNANSWERED):
            self._flag("a WebSocket failed before its handshake was answered")
        self._on_closed(event)

    def _on_closed(self, event: dict[str, Any]) -> None:
        self._sockets.pop(event["requestId"], None)
        if activity := self._activity():
            activity.socket_received(event["requestId"])
        self._changed.set()

    def _on_event(self, event: dict[str, Any]) -> None:
        if stream := self._streams.get(event["requestId"]):
            stream.received += 1
        self._changed.set()
