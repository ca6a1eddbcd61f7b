"""What of a flow is kept while it passes: bodies, pieces of event streams with their time, WebSocket frames.

mitmproxy calls a body with each piece and with b"" at the end. All are bounded: what is longer than the
limit passes on, and is forgotten.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stillweb import clock
from stillweb.collections.frames import BINARY, CLOSE, TEXT, Chunk, Chunks, End, Frame, Frames

__all__ = ["Body", "EventStream", "Socket"]

_NO_STATUS, _ABNORMAL = 1005, 1006  # RFC 6455 §7.4.1: never on the wire


class Body:
    """A body, up to a limit.

    Attributes:
        size: bytes that came.
        overflow: whether it was longer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.size = 0
        self.overflow = False

    def __call__(self, piece: bytes) -> bytes | tuple[()]:
        """Keep a piece and let it pass."""
        if not piece:
            # An empty DATA frame of HTTP/2. Passed on, it would become a chunk of size 0, which ends the
            # body (RFC 9112 §7.1): what follows would be taken for the next answer.
            return ()
        self.size += len(piece)
        if self.size > self._limit:
            self.overflow = True
            self._pieces.clear()
        else:
            self._pieces.append(piece)
        return piece

    def content(self) -> bytes:
        """Return what came."""
        return b"".join(self._pieces)


class EventStream(Body):
    """The body of an event stream, whose head has just come.

    Attributes:
        flow: mitmproxy's.
        rest_ms: when its page had settled; None before that.
    """

    def __init__(self, limit: int, flow: Any) -> None:
        super().__init__(limit)
        self.flow = flow
        self._began = clock.monotonic()
        self._chunks: list[Chunk] = []
        self.rest_ms: int | None = None

    def __call__(self, piece: bytes) -> bytes | tuple[()]:
        """Keep a piece and its time and let it pass."""
        if piece and not self.overflow:
            self._chunks.append(Chunk(self._now(), len(piece)))
        return super().__call__(piece)

    def _now(self) -> int:
        return round((clock.monotonic() - self._began) * 1000)

    def chunks(self, end: End) -> Chunks:
        """Return the timing of a stream that has come to an end."""
        return Chunks(tuple(self._chunks), end, self._now(), self.rest_ms)

    def rest(self) -> None:
        """Note that the page has settled."""
        self.rest_ms = self._now()


class Socket:
    """The frames of a WebSocket, whose handshake has just been answered.

    Attributes:
        flow: mitmproxy's.
        size: bytes of their payloads.
        overflow: whether they were longer than the limit.
        rest_ms: when its page had settled; None before that.
    """

    def __init__(self, limit: int, flow: Any) -> None:
        self.rest_ms: int | None = None
        self.flow = flow
        self.overflow = False
        self._open = asyncio.Event()
        self._open.set()
        self._limit = limit
        self.size = 0
        self._began = clock.monotonic()
        self._frames: list[Frame] = []

    def take(self) -> None:
        """Take the message that has just come from mitmproxy, which would keep it till the end."""
        message = self.flow.websocket.messages.pop()
        self.size += len(message.content)
        self.overflow = self.overflow or self.size > self._limit
        if self.overflow:
            self._frames.clear()
        else:
            opcode = TEXT if message.is_text else BINARY
            self._frames.append(Frame(self._now(), message.from_client, opcode, message.content))

    def _now(self) -> int:
        return round((clock.monotonic() - self._began) * 1000)

    def frames(self) -> Frames:
        """Return the frames, and how the connection ended, if it has."""
        told, now = self.flow.websocket, self._now()
        if told.timestamp_end is None:
            return Frames(tuple(self._frames), End.OPEN, now, self.rest_ms)
        by_page = bool(told.closed_by_client)
        frames = list(self._frames)
        code = told.close_code
        if code is not None and code != _ABNORMAL:
            reason = (told.close_reason or "").encode("utf-8")
            payload = b"" if code == _NO_STATUS else int(code).to_bytes(2, "big") + reason
            frames.append(Frame(now, by_page, CLOSE, payload))
        return Frames(tuple(frames), End.CLIENT if by_page else End.SITE, now, self.rest_ms)

    def rest(self) -> None:
        """Note that the page has settled, and let no frame through until `go_on`."""
        self.rest_ms = self._now()
        self._open.clear()

    def go_on(self) -> None:
        """Let frames through again."""
        self._open.set()

    async def may_pass(self) -> None:
        """Wait until frames are let through."""
        await self._open.wait()
