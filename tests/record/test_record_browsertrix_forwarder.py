"""The SOCKS5 forwarder, with real connections to a site on loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from stillweb.record.browsertrix.forwarder import forwarding
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

ESTABLISHED, FAILED = 0, 1


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A site that answers with what it received, once the client has ended."""
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


@pytest.fixture
async def port():
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def options(*rules: str) -> RecordOptions:
    return RecordOptions(resolve=parse_all(rules))


async def connect(proxy: str, host: str, port: int):
    """Connect by RFC 1928 to a host by name; return the reply's code and the streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
    writer.write(b"\x05\x01\x00")
    assert await reader.readexactly(2) == b"\x05\x00"
    writer.write(b"\x05\x01\x00\x03" + bytes([len(host)]) + host.encode() + port.to_bytes(2, "big"))
    reply = await reader.readexactly(10)
    return reply[1], reader, writer


async def test_a_host_is_reached_where_its_rule_says(port):
    async with forwarding(options(f"site.test:443=127.0.0.1:{port}")) as proxy:
        code, reader, writer = await connect(proxy, "site.test", 443)
        assert code == ESTABLISHED
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"HELLO"
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "other.invalid"])
async def test_what_no_rule_names_is_checked_as_in_our_own_engine(port, host):
    async with forwarding(options("site.test=127.0.0.1")) as proxy:
        code, reader, writer = await connect(proxy, host, port)
        assert code == FAILED
        assert await reader.read() == b""
        writer.close()


async def test_a_site_that_does_not_listen_is_a_failure_of_its_connection_only(port):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        rules = options(f"gone.test=127.0.0.1:{closed.getsockname()[1]}", f"site.test=127.0.0.1:{port}")
        async with forwarding(rules) as proxy:
            codes = []
            for host in ("gone.test", "site.test"):
                code, _, writer = await connect(proxy, host, 80)
                codes.append(code)
                writer.close()
    assert codes == [FAILED, ESTABLISHED]


async def test_open_connections_end_with_the_crawl(port):
    async with forwarding(options(f"site.test=127.0.0.1:{port}")) as proxy:
        _, reader, writer = await connect(proxy, "site.test", 80)
    assert await reader.read() == b""
    writer.close()


async def test_bytes_that_are_not_socks_are_not_answered(port):
    async with forwarding(options(f"site.test=127.0.0.1:{port}")) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_without_rules_there_is_no_forwarder():
    async with forwarding(options()) as proxy:
        assert proxy == ""
