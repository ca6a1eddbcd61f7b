"""Clock of a session's page, which releases what the recording received over time.

At level EXACT the environment reports the virtual time of its pages at each rest (`POST /sessions/ID/clock`).
Frames and events whose recorded pause has passed are then released (docs/decisions/0016-frames.md). The reply
counts what was sent, so that the environment can wait until all of it has arrived. At other levels no time is
ever reported, and nothing is released by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stillweb.http.control import ConnectionState

T = TypeVar("T")


@dataclass(slots=True)
class MessageCounts:
    """Messages of a connection.

    Attributes:
        kind: "socket", "stream", or "" for a response that is read as a whole.
        sent: messages or events of the site; -1 if they cannot be counted.
    """

    kind: str = ""
    received: int = 0
    sent: int = 0


class Released(Generic[T]):
    """Items that wait for the page's clock, in their order.

    Their times count from the first report of the clock after they were put here.
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, T]] = []
        self._base: int | None = None

    def put(self, items: list[tuple[int, T]]) -> None:
        """Put items with their ms from now; those that wait already are dropped."""
        self._items, self._base = items, None

    def take_all(self) -> list[T]:
        items, self._items = self._items, []
        return [item for _, item in items]

    def take(self, ms: int | None) -> list[T]:
        """Return and remove the items that are due at a time of the clock."""
        if ms is None:
            return []
        base = self._base = ms if self._base is None else self._base
        count = sum(base + pause <= ms for pause, _ in self._items)
        due, self._items = self._items[:count], self._items[count:]
        return [item for _, item in due]

    @property
    def next_ms(self) -> int | None:
        """Time of the clock at which the next item is due, if known."""
        return self._base + self._items[0][0] if self._items and self._base is not None else None

    def __bool__(self) -> bool:
        return bool(self._items)


class TimedScript(Protocol):
    """Script of a connection, as the clock sees it."""

    closed: bool
    traffic: MessageCounts

    @property
    def next_ms(self) -> int | None: ...


class PageClock:
    """Connections of a session that play a script.

    Attributes:
        ms: virtual ms since the start of the episode; None until the environment reports it.
        due_ms: the same during a report, otherwise None.
    """

    def __init__(self) -> None:
        self.ms: int | None = None
        self.due_ms: int | None = None
        self._running: dict[TimedScript, Callable[[], None]] = {}

    def add(self, script: TimedScript, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when something may be due; return a function that ends this."""
        self._running[script] = wake
        return lambda: self._running.pop(script, None) and None

    def wake(self) -> None:
        for wake in tuple(self._running.values()):
            wake()

    def report(self, ms: int) -> ConnectionState:
        """Set the time, release what is due, and return what was sent so far."""
        self.ms = self.due_ms = ms
        self.wake()
        self.due_ms = None
        scripts = [script for script in self._running if not script.closed]
        sockets = [script.traffic for script in scripts if script.traffic.kind == "socket"]
        streams = [script.traffic for script in scripts if script.traffic.kind == "stream"]
        events = [stream.sent for stream in streams]
        return {
            "sockets": len(sockets),
            "sent": sum(socket.received for socket in sockets),
            "received": sum(socket.sent for socket in sockets),
            "streams": len(streams),
            "events": -1 if -1 in events else sum(events),
            "next": min((at for script in scripts if (at := script.next_ms) is not None), default=None),
        }
