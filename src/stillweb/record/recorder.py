"""The mitmproxy addon that turns flows into exchanges, and the account that it keeps of them.

mitmproxy calls the hooks by name, one flow at a time and in our event loop. It logs and forgets
what they raise, which would be a loss that nobody sees: `_loud` keeps the first failure in
`RecordingProxy`, and the recording stops with it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stillweb.errors import RecordError
from stillweb.record.flows import exchange_of, upstream_fields
from stillweb.record.options import RecordOptions
from stillweb.record.resolve import resolve
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.collections.writer import CollectionWriter

_CLIENT_WENT_AWAY = "Client disconnected."  # mitmproxy/proxy/layers/http/_http1.py, `wait`


class RecordingProxy:
    """What a recording proxy has seen so far.

    Attributes:
        url: what to give to a browser as its proxy.
        exchanges, body_bytes: written so far; bytes of response bodies as received.
        failed: URL -> why the site did not answer; not recorded.
        aborted: URLs whose answer the browser did not wait for; not recorded.
        notes: one line for each kind of traffic that passed through without being recorded.
    """

    def __init__(self) -> None:
        self.url = ""
        self.exchanges = 0
        self.body_bytes = 0
        self.failed: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.notes: dict[str, int] = {}
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """How many requests wait for the rest of their answer; endless streams are not counted."""
        return len(self._in_flight)

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def broken(self) -> None:
        """Wait until an exchange cannot be written.

        Raises:
            RecordError: then.
        """
        await asyncio.shield(self._fault)

    def check(self) -> None:
        """Raise the error that `broken` waits for, if it has come.

        Raises:
            RecordError: if an exchange could not be written.
        """
        if self._fault.done():
            self._fault.result()

    def fail(self, error: Exception) -> None:
        """Remember the first exchange that could not be written, and why."""
        if not self._fault.done():
            failure = RecordError(
                f"an exchange could not be written: {error!r}", hint="what was recorded before is valid"
            )
            failure.__cause__ = error
            self._fault.set_exception(failure)
            self._fault.exception()  # else asyncio complains where nobody waits for it

    def note(self, what: str) -> None:
        """Count something that passed through without being recorded."""
        self.notes[what] = self.notes.get(what, 0) + 1

    def begin(self, flow_id: str) -> None:
        """Count a request as in flight."""
        self._in_flight.add(flow_id)
        self._idle.clear()

    def end(self, flow_id: str) -> None:
        """Count a request as no longer in flight."""
        self._in_flight.discard(flow_id)
        if not self._in_flight:
            self._idle.set()


Hook = Callable[["Recorder", Any], None]


def _loud(hook: Hook) -> Hook:
    """Make a hook's failure the recording's failure."""

    @functools.wraps(hook)
    def loud(self: Recorder, event: Any) -> None:
        try:
            hook(self, event)
        except Exception as error:  # noqa: BLE001  the root of what mitmproxy calls
            self.recording.fail(error)

    return loud


class Recorder:
    """The addon; its public methods are mitmproxy's hooks."""

    def __init__(self, writer: CollectionWriter, options: RecordOptions, recording: RecordingProxy) -> None:
        self._writer = writer
        self._options = options
        self.recording = recording
        self._bodies: dict[str, _Body] = {}
        self._asked_for: dict[str, tuple[str, int]] = {}

    @_loud
    def tls_clienthello(self, hello: Any) -> None:
        """Speak HTTP/1.1 with the client, whatever the site speaks."""
        client = hello.context.client
        if b"http/1.1" in (client.alpn_offers or ()):
            client.alpn = b"http/1.1"

    @_loud
    def server_connect(self, connecting: Any) -> None:
        """Send the connection to where `--resolve` says."""
        server = connecting.server
        if server.address is None:
            return
        self._asked_for[server.id] = server.address
        server.address = resolve(self._options.resolve, *server.address[:2])

    @_loud
    def server_connected(self, connecting: Any) -> None:
        """Give the connection its name back: mitmproxy finds connections to use again by it."""
        # `Server.__setattr__` forbids this on open connections, since it cannot mean a reconnect here.
        vars(connecting.server)["address"] = self._asked_for.pop(connecting.server.id)

    @_loud
    def server_connect_error(self, connecting: Any) -> None:
        """Give the connection its name back, so that errors speak of it."""
        if address := self._asked_for.pop(connecting.server.id, None):
            connecting.server.address = address

    @_loud
    def requestheaders(self, flow: Any) -> None:
        """Make the request one that is answered in full."""
        if _is_websocket(flow):
            return
        self.recording.begin(flow.id)
        flow.request.headers.fields = upstream_fields(flow.request.method, flow.request.headers.fields)

    @_loud
    def responseheaders(self, flow: Any) -> None:
        """Pass the body on as it comes, keeping what is to be written."""
        response = flow.response
        if _is_websocket(flow):
            return
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = True
            self.recording.note("event stream not recorded")
            self.recording.end(flow.id)
        else:
            body = self._bodies[flow.id] = _Body(self._options.max_body)
            response.stream = body
        if response.is_http2 and "content-length" not in response.headers and _has_body(flow):
            # Otherwise mitmproxy ends the body by closing the client's connection, TLS and all.
            response.headers["transfer-encoding"] = "chunked"

    @_loud
    def response(self, flow: Any) -> None:
        """Write a completed exchange."""
        if _is_websocket(flow):
            self.recording.note("WebSocket not recorded")
            return
        self.recording.end(flow.id)
        if flow.response.stream is True:
            return  # an event stream that ended
        body = self._bodies.pop(flow.id)
        if body.overflow:
            self.recording.note(f"longer than {self._options.max_body} bytes, not recorded")
            return
        self._write(flow, flow.response.raw_content or body.content())

    @_loud
    def error(self, flow: Any) -> None:
        """Remember why there is no answer, and let the browser see a broken connection."""
        self._bodies.pop(flow.id, None)
        self.recording.end(flow.id)
        url = wire_url(flow.request.url)
        reason = flow.error.msg
        if reason == _CLIENT_WENT_AWAY:
            self.recording.aborted.add(url)
        else:
            self.recording.failed[url] = reason
        if flow.response is None and flow.killable:
            # mitmproxy would answer with a page of its own and status 502, which no site sent.
            flow.kill()

    def _write(self, flow: Any, body: bytes) -> None:
        recording = self.recording
        self._writer.write(exchange_of(flow, body))
        recording.exchanges += 1
        recording.body_bytes += len(body)
        recording.failed.pop(wire_url(flow.request.url), None)


class _Body:
    """Keeps what passes, up to a limit; mitmproxy calls it with each piece and with b"" at the end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self.overflow = False

    def __call__(self, piece: bytes) -> bytes | tuple[()]:
        if not piece:
            # An empty DATA frame of HTTP/2. Passed on, it would become a chunk of size 0, which ends the
            # body (RFC 9112 §7.1): what follows would be taken for the next answer.
            return ()
        self._size += len(piece)
        if self._size > self._limit:
            self.overflow = True
            self._pieces.clear()
        else:
            self._pieces.append(piece)
        return piece

    def content(self) -> bytes:
        return b"".join(self._pieces)


def _is_websocket(flow: Any) -> bool:
    return bool(flow.request.headers.get("upgrade", "").lower() == "websocket")


def _has_body(flow: Any) -> bool:
    """Tell whether a response has a body at all (RFC 9112 §6.3)."""
    return flow.request.method != "HEAD" and flow.response.status_code not in (204, 304)
