"""The channel between the supervisor and a worker: messages, and connections that are passed on.

A pair of Unix sockets that preserve message boundaries (SOCK_SEQPACKET). The supervisor sends connections:
a file descriptor and the bytes that were read from it. The worker sends JSON. When one side is gone, the
other reads the end; a worker detects the death of its supervisor by it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable

_CHUNK = 64 * 1024  # bytes; a message must fit the socket's buffer
_MORE, _LAST = b"c", b"C"  # prefixes of a connection's bytes; the first message carries the descriptor


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end, on the running loop.

    Args:
        end: one of a `pair`; closed with the channel.
        on_message: takes a message of `send`.
        on_connection: takes the descriptor and the bytes of `hand_over`.
        on_closed: called when the other side is gone.

    Attributes:
        closed: set when the channel is closed.
    """

    def __init__(
        self,
        end: socket.socket,
        *,
        on_message: Callable[[bytes], None] = lambda _: None,
        on_connection: Callable[[int, bytes], None] = lambda _, __: None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        end.setblocking(False)
        self.closed = asyncio.Event()
        self._end = end
        self._on_message = on_message
        self._on_connection = on_connection
        self._on_closed = on_closed
        self._queue: deque[tuple[bytes, int]] = deque()
        self._arriving: tuple[int, bytearray] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)

    def send(self, message: bytes) -> None:
        self._queue.append((message, -1))
        self._flush()

    def hand_over(self, descriptor: int, data: bytes) -> None:
        """Send a connection and the bytes that were read from it; the descriptor stays open here.

        If the channel is closed, nothing is sent, and the client loses the connection.
        """
        if self._end.fileno() < 0:
            return
        chunks = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)] or [b""]
        for number, chunk in enumerate(chunks):
            kind = _LAST if number == len(chunks) - 1 else _MORE
            self._queue.append((kind + chunk, -1 if number else os.dup(descriptor)))
        self._flush()

    def _flush(self) -> None:
        while self._queue:
            message, descriptor = self._queue[0]
            try:
                socket.send_fds(self._end, [message], [descriptor] if descriptor >= 0 else [])
            except BlockingIOError:
                self._loop.add_writer(self._end, self._flush)
                return
            except OSError:  # the other side is gone, as `_read` will notice
                self._drop_queue()
                return
            self._queue.popleft()
            if descriptor >= 0:
                os.close(descriptor)
        self._loop.remove_writer(self._end)

    def _read(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._end, _CHUNK + 1, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self.close()
            self._on_closed()
        elif self._arriving or descriptors:
            self._arrive(message, descriptors)
        else:
            self._on_message(message)

    def _arrive(self, message: bytes, descriptors: list[int]) -> None:
        descriptor, data = self._arriving or (descriptors[0], bytearray())
        data += message[1:]
        self._arriving = (descriptor, data)
        if message[:1] == _LAST:
            self._arriving = None
            self._on_connection(descriptor, bytes(data))

    def _drop_queue(self) -> None:
        self._loop.remove_writer(self._end)
        for _, descriptor in self._queue:
            if descriptor >= 0:
                os.close(descriptor)
        self._queue.clear()

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end)
        self._drop_queue()
        if self._arriving is not None:
            os.close(self._arriving[0])
            self._arriving = None
        self._end.close()
        self.closed.set()
