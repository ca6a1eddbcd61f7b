"""Limits on request bodies: size, time, and the sum of all bodies in memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.responses import fault_response

BODY_BYTES = 8 << 20
"""Maximum bytes of a request body or WebSocket message: a batch of 4,096 resets with tasks has about 8 MB."""

_TOTAL_BYTES = 16 * BODY_BYTES
_BODY_SECONDS = 30.0


class BodyLimit:
    """ASGI middleware that receives a whole body before the application gets the request.

    So a large, slow or endless body holds no lease and no queue.

    Args:
        app: the application behind it.
        limit: maximum bytes of one body.
        total: maximum bytes of all bodies in memory.
        seconds: maximum time to receive a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int = BODY_BYTES,
        total: int = _TOTAL_BYTES,
        seconds: float = _BODY_SECONDS,
    ) -> None:
        self._app = app
        self._limit = limit
        self._total = total
        self._seconds = seconds
        self._in_memory = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                declared = Headers(scope=scope).get("content-length", "")
                self._check(int(declared) if declared.isdecimal() else 0)
                async with asyncio.timeout(self._seconds):
                    last = await self._read(receive, body)
            except TimeoutError:
                text = f"the body did not arrive within {self._seconds:g} s"
                await _refuse(RequestRefused(FailureKind.TIMEOUT, text), scope, receive, send)
            except RequestRefused as refusal:
                await self._discard(receive)
                await _refuse(refusal, scope, receive, send)
            else:
                await self._app(scope, _replayed(last, body, receive), send)
        finally:
            self._in_memory -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> Message:
        """Receive a body; return the last message."""
        while (message := await receive())["type"] == "http.request":
            part = message.get("body", b"")
            self._check(len(body) + len(part), len(part))
            self._in_memory += len(part)
            body += part
            if not message.get("more_body"):
                break
        return message

    async def _discard(self, receive: Receive) -> None:
        """Read a part of the rest: a reset connection would hide the response from a sending client."""
        left = 4 * self._limit
        with suppress(TimeoutError):
            async with asyncio.timeout(min(5.0, self._seconds)):
                while left > 0 and (message := await receive()).get("more_body"):
                    left -= len(message.get("body", b""))

    def _check(self, size: int, more: int = 0) -> None:
        if size > self._limit:
            raise RequestRefused(
                FailureKind.TOO_LARGE,
                f"the body is larger than {self._limit:,} bytes",
                hint="send smaller batches",
            )
        if self._in_memory + more > self._total:
            raise RequestRefused(
                FailureKind.BUSY, "too many large bodies are in memory", hint="send the request again later"
            )


async def _refuse(refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
    response: Response = fault_response(fault_of(refusal))
    response.headers["connection"] = "close"  # the rest of the body is not read
    await response(scope, receive, send)


def _replayed(last: Message, body: bytearray, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first."""
    pending = [{**last, "body": bytes(body)}] if last["type"] == "http.request" else [last]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
