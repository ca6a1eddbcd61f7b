from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.warc.frames import RecordFrames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import PortInUse, RecordError, UsageError
from stillweb.model import Capture, Exchange, header
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.proxy.running import RecordingProxy

# mitmproxy 11 and what its default addons import, not us.


@asynccontextmanager
async def recorded(
    collection: Collection, ca: CertAuthority, options: RecordOptions
) -> AsyncIterator[tuple[httpx.AsyncClient, RecordingProxy]]:
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options) as recording,
            httpx.AsyncClient(proxy=recording.url, verify=trusted, timeout=20) as client,
        ):
            yield client, recording


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.create(tmp_path / "collections", "site")


def written(collection: Collection) -> dict[str, Exchange]:
    assert check(collection) == []
    return {capture.url: collection.read_capture(capture) for capture in collection.captures()}


async def test_an_answer_is_written_as_received(collection, ca, site) -> None:
    zipped = gzip.compress(b"hello" * 100, mtime=0)
    site.page("/", "hi", headers=(("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Odd", "caf\xe9")))
    site.answers["/zipped"] = replace(
        site.answers["/"], chunks=(zipped[:10], zipped[10:]), headers=(("Content-Encoding", "gzip"),)
    )

    async with recorded(collection, ca, site.options) as (client, recording):
        first = await client.get("https://site.test/")
        second = await client.get(
            "https://site.test/zipped?q=%C3%A4", headers={"Accept-Encoding": "gzip, dcb"}
        )

    assert first.status_code == 200
    assert second.content == b"hello" * 100
    exchanges = written(collection)
    plain, packed = exchanges["https://site.test/"], exchanges["https://site.test/zipped?q=%C3%A4"]
    assert [value for name, value in plain.response.headers if name == "Set-Cookie"] == ["a=1", "b=2"]
    assert header(plain.response.headers, "x-odd") == "caf\xe9"
    assert plain.response.reason == "OK"
    assert plain.remote_ip == "127.0.0.1"
    assert packed.response.raw_body == zipped
    assert header(packed.response.headers, "transfer-encoding") == ""
    assert header(packed.request.headers, "accept-encoding") == "gzip"
    assert (recording.exchanges, recording.in_flight, recording.failed) == (2, 0, {})


async def test_requests_are_made_to_be_answered_in_full(collection, ca, site) -> None:
    site.page("/", "hi")

    async with recorded(collection, ca, site.options) as (client, _):
        await client.get("https://site.test/", headers={"If-None-Match": '"x"', "Range": "bytes=0-"})
        await client.post("https://site.test/", content=b"a=1", headers={"If-Match": '"x"'})

    read, write = site.requests
    assert "if-none-match" not in read.headers
    assert "range" not in read.headers
    assert read.headers["host"] == "site.test"
    assert write.headers["if-match"] == '"x"'
    assert [(c.method, c.status) for c in collection.captures()] == [("GET", 200), ("POST", 200)]
    posted = next(collection.read_capture(c) for c in collection.captures() if c.method == "POST")
    assert posted.request.raw_body == b"a=1"


async def test_a_site_of_an_unknown_ca_is_refused_and_remembered(collection, ca, site) -> None:
    site.page("/", "hi")
    untrusting = replace(site.options, upstream_ca=None)

    async with recorded(collection, ca, untrusting) as (client, recording):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("https://site.test/")

    assert "ertificate" in recording.failed["https://site.test/"]
    assert written(collection) == {}
    assert site.requests == []


async def test_the_name_in_the_certificate_must_be_the_one_requested(collection, ca, site) -> None:
    async with recorded(collection, ca, site.options) as (client, recording):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("https://other.test/")

    assert "ertificate" in recording.failed["https://other.test/"]
    assert site.requests == []


async def test_a_site_that_is_down_is_remembered_and_not_written(collection, ca) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = RecordOptions(resolve=parse_all([f"*=127.0.0.1:{port}"]))

    async with recorded(collection, ca, options) as (client, recording):
        for url in ("https://site.test/x", "http://site.test/y"):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url)

    assert set(recording.failed) == {"https://site.test/x", "http://site.test/y"}
    assert all("refused" in why or "Connect" in why for why in recording.failed.values())
    assert written(collection) == {}


async def test_connections_to_the_site_are_used_again(collection, ca, site) -> None:
    site.page("/", "hi")
    requested_on: list[int] = []
    site.answers["/port"] = lambda request: requested_on.append(threading.get_ident()) or site.answers["/"]

    async with recorded(collection, ca, site.options) as (client, _):
        for _ in range(5):
            await client.get("https://site.test/port")

    assert len(requested_on) == 5
    assert len(set(requested_on)) == 1  # the site has a thread for each connection


async def test_an_event_stream_passes_as_it_comes_and_is_written(collection, ca, site) -> None:
    hold = threading.Event()
    site.page("/events", "", type="text/event-stream", chunks=(b"data: 1\n\n", b"data: 2\n\n"), hold=hold)

    async with (
        recorded(collection, ca, site.options) as (client, recording),
        client.stream("GET", "https://site.test/events") as response,
    ):
        events = response.aiter_raw()
        assert await anext(events) == b"data: 1\n\n"
        assert recording.in_flight == 0
        hold.set()
        assert await anext(events) == b"data: 2\n\n"

    assert recording.notes == {}
    assert written(collection)["https://site.test/events"].response.raw_body == b"data: 1\n\ndata: 2\n\n"


async def test_an_answer_that_is_too_long_passes_and_is_noted(collection, ca, site) -> None:
    site.page("/long", "x" * 50_000)
    site.page("/short", "x")

    async with recorded(collection, ca, replace(site.options, max_body=10_000)) as (client, recording):
        assert len((await client.get("https://site.test/long")).content) > 50_000
        await client.get("https://site.test/short")

    assert list(written(collection)) == ["https://site.test/short"]
    assert sum(recording.notes.values()) == 1


async def test_an_answer_that_the_client_leaves_is_not_written(collection, ca, site) -> None:
    hold = threading.Event()
    site.page("/slow", "", chunks=(b"one", b"two"), hold=hold)

    async with recorded(collection, ca, site.options) as (client, recording):
        async with client.stream("GET", "https://site.test/slow") as response:
            assert await anext(response.aiter_raw()) == b"one"
            assert recording.in_flight == 1
        async with asyncio.timeout(10):
            await recording.idle()
        hold.set()

    assert recording.aborted == {"https://site.test/slow"}
    assert recording.failed == {}
    assert written(collection) == {}


async def test_a_head_and_an_empty_answer_are_exchanges_too(collection, ca, site) -> None:
    site.page("/", "hi")
    site.page("/gone", "", status=404)

    async with recorded(collection, ca, site.options) as (client, _):
        await client.head("https://site.test/")
        await client.get("https://site.test/gone")

    assert sorted((c.method, c.status) for c in collection.captures()) == [("GET", 404), ("HEAD", 200)]


async def test_an_exchange_that_cannot_be_written_stops_the_recording(collection, ca, site) -> None:
    site.page("/", "hi")

    async with recorded(collection, ca, site.options) as (client, recording):
        recording.check()
        collection.archive.rmdir()
        collection.archive.write_text("in the way")
        await client.get("https://site.test/")
        with pytest.raises(RecordError, match="could not be written"):
            await recording.broken()
        with pytest.raises(RecordError):
            recording.check()
    collection.archive.unlink()


async def test_no_failure_of_ours_is_swallowed(collection, ca, site) -> None:
    class Broken(CollectionWriter):
        def write(
            self, exchange: Exchange, beside: RecordFrames | None = None, redactions: Any = ()
        ) -> Capture:
            raise KeyError("a mistake")

    site.page("/", "hi")
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with (
        recording_proxy(Broken(collection), ca, site.options) as recording,
        httpx.AsyncClient(proxy=recording.url, verify=trusted) as client,
    ):
        await client.get("https://site.test/")
        with pytest.raises(RecordError, match="a mistake"):
            recording.check()


async def test_a_port_that_is_taken_is_reported(collection, ca, site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = replace(site.options, port=taken.getsockname()[1])
        with pytest.raises(PortInUse):
            async with recorded(collection, ca, options):
                pass


async def test_an_upstream_ca_that_is_none_is_reported(collection, ca, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for name in ("no.pem", "missing.pem"):
        with pytest.raises(UsageError, match=name):
            async with recorded(collection, ca, RecordOptions(upstream_ca=tmp_path / name)):
                pass


class Http2Site(asyncio.Protocol):
    """Answers every request in HTTP/2, with empty DATA frames before, within and after the body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.h2.initiate_connection()
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                path = dict(event.headers)[b":path"]
                self.h2.send_headers(event.stream_id, [(":status", "200"), ("content-type", "text/plain")])
                for piece in (b"", path[:1], b"", path[1:]):
                    self.h2.send_data(event.stream_id, piece)
                self.h2.send_data(event.stream_id, b"", end_stream=True)
        self.transport.write(self.h2.data_to_send())


async def test_http2_is_written_the_usual_way_and_keeps_its_connection(
    collection, ca, tmp_path: Path
) -> None:
    site_ca = CertAuthority.init(tmp_path / "site-ca")
    context = site_ca.server_context("site.test")
    context.set_alpn_protocols(["h2"])
    server = await asyncio.get_running_loop().create_server(Http2Site, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    options = RecordOptions(
        resolve=parse_all([f"*=127.0.0.1:{port}"]), upstream_ca=tmp_path / "site-ca" / "ca.pem"
    )
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with server:
        with CollectionWriter(collection) as writer:
            async with (
                recording_proxy(writer, ca, options) as recording,
                httpx.AsyncClient(proxy=recording.url, verify=trusted, http2=True) as client,
            ):
                for path in ("/one", "/", "/three"):
                    response = await client.get("https://site.test" + path)
                    assert (response.http_version, response.text) == ("HTTP/1.1", path)

    exchange = written(collection)["https://site.test/one"]
    assert exchange.protocol == "h2"
    assert (exchange.response.status, exchange.response.reason) == (200, "OK")
    assert exchange.response.headers == (("content-type", "text/plain"),)
    assert exchange.response.raw_body == b"/one"
