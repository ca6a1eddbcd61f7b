"""Connections of the harvest: which responses are complete, and when a connection is used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from stillweb.record.harvest.connections import BrokenResponse, ConnectionPool, ReceivedResponse, TooLarge
from stillweb.record.proxy.upstream import AddressRefused, UpstreamResolver

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Answer = Callable[[asyncio.StreamWriter, int], Awaitable[bool]]
"""Answers a request of a connection, given its number there; returns False to close the connection."""


@dataclass
class Site:
    """A server of scripted bytes: `answer` writes what follows each request."""

    answer: Answer
    port: int = 0
    connections: int = 0
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = 0
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if not await self.answer(writer, number):
                    break
                number += 1
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def scripted(*answers: bytes, keep: bool = True) -> Site:
    """Return a site that answers the requests of a connection in turn, the last answer again and again."""

    async def answer(writer: asyncio.StreamWriter, number: int) -> bool:
        writer.write(answers[min(number, len(answers) - 1)])
        await writer.drain()
        return keep

    return Site(answer)


@asynccontextmanager
async def pool_for(site: Site) -> AsyncIterator[Callable[..., Awaitable[ReceivedResponse]]]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool(UpstreamResolver((), allow_private=True), ssl.create_default_context(), 8)

    async def send(*, max_body: int = 1000, repeats: bool = True) -> ReceivedResponse:
        return await pool.send("http", "127.0.0.1", site.port, REQUEST, max_body=max_body, repeats=repeats)

    try:
        yield send
    finally:
        pool.close()
        server.close()
        await server.wait_closed()


SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (SIZED, 200, b"ab"),
        (b"HTTP/1.1 404\r\nContent-Length: 2\r\n\r\nab", 404, b"ab"),
        (CHUNKED + b"\r\n1\r\na\r\n1 ;x\r\nb\r\n0\r\nT: 1\r\n\r\n", 200, b"ab"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED, 200, b"ab"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", 304, b""),
        (SIZED.replace(b"\r\n", b"\n"), 200, b"ab"),
        (CHUNKED + b"Content-Length: 9\r\n\r\n2\r\nab\r\n0\r\n\r\n", 200, b"ab"),
    ],
)
async def test_a_complete_response_leaves_the_connection_for_the_next(answer, status, body):
    site = scripted(answer)
    async with pool_for(site) as send:
        for _ in range(2):
            received = await send()
            assert (received.status, received.body, received.address) == (status, body, "127.0.0.1")
            assert b"Link" not in dict(received.fields)
            assert b"T" not in dict(received.fields)
    assert site.connections == 1


async def test_fields_keep_their_spelling_and_order():
    site = scripted(b"HTTP/1.1 200 Fine\r\nX-b: 1 \r\nx-A:\r\nX-b: \xe9\r\nContent-Length: 0\r\n\r\n")
    async with pool_for(site) as send:
        received = await send()
    assert received.reason == "Fine"
    assert list(received.fields) == [
        (b"X-b", b"1"),
        (b"x-A", b""),
        (b"X-b", b"\xe9"),
        (b"Content-Length", b"0"),
    ]


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"]
)
async def test_a_response_without_a_length_ends_with_its_connection(head):
    site = scripted(head + b"ab", keep=False)
    async with pool_for(site) as send:
        assert (await send()).body == b"ab"
        assert (await send()).body == b"ab"
    assert site.connections == 2


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "too early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "too early"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "too early"),
        (b"", "too early"),
        (b"no HTTP at all\r\n\r\n", "not an HTTP/1.1 response"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 300_000, "head of more than"),
    ],
)
async def test_an_incomplete_response_is_an_error_and_not_repeated(answer, what):
    site = scripted(answer, keep=False)
    async with pool_for(site) as send:
        with pytest.raises(BrokenResponse, match=what):
            await send()
    assert site.requests == 1


async def test_a_closed_idle_connection_is_replaced_except_for_what_may_not_be_repeated():
    async def answer(writer: asyncio.StreamWriter, number: int) -> bool:
        if number == 0:
            writer.write(SIZED)
        return number == 0  # the second request of a connection gets no byte

    site = Site(answer)
    async with pool_for(site) as send:
        await send()
        assert (await send()).body == b"ab"
        with pytest.raises(BrokenResponse):
            await send(repeats=False)
    assert site.connections == 2


async def test_a_body_over_the_limit_is_not_received():
    site = scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 5000)
    async with pool_for(site) as send:
        with pytest.raises(TooLarge):
            await send(max_body=4000)


async def test_a_cancelled_request_gives_its_connection_up():
    seen = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, number: int) -> bool:
        seen.set()
        return True

    site = Site(answer)
    async with pool_for(site) as send:
        task = asyncio.ensure_future(send())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        site.answer = scripted(SIZED).answer
        assert (await send()).body == b"ab"
    assert site.connections == 2


async def test_private_addresses_are_refused():
    pool = ConnectionPool(UpstreamResolver(()), ssl.create_default_context(), 8)
    with pytest.raises(AddressRefused):
        await pool.send("http", "127.0.0.1", 9, REQUEST, max_body=1, repeats=True)
