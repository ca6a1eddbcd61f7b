"""A missed WebSocket is recorded by visiting the page that opens it; recorded ones are not recorded again."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path

import pytest
import pytest_asyncio

from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed, Sighting
from stillweb.collections.pack.frames import open_frames, socket_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import TEXT
from stillweb.record.amend.amend import AmendOptions, amend
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.options import WalkOptions
from stillweb.record.explore.walks import record_walks
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import parse_all

pytestmark = pytest.mark.browser

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
HOME = "http://live.test/"


@dataclass
class LiveSite:
    port: int = 0
    sockets: tuple[str, ...] = ("/one",)
    opened: list[str] = field(default_factory=list)
    button: str = ""

    @property
    def options(self) -> RecordOptions:
        return RecordOptions(resolve=parse_all([f"live.test=127.0.0.1:{self.port}"]))

    def page(self) -> bytes:
        opens = "".join(
            f"new WebSocket('ws://live.test{path}').onmessage = (e) => {{ out.append(e.data) }};"
            for path in self.sockets
        )
        return (
            f"<!doctype html><title>live</title><p id=out></p><script>{opens}</script>{self.button}".encode()
        )

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
            if "upgrade" not in fields or fields["upgrade"].lower() != "websocket":
                body = self.page() if path == "/" else b""
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                return
            self.opened.append(path)
            accept = b64encode(sha1(fields["sec-websocket-key"].encode() + GUID).digest())
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            text = f"hello from {path}".encode()
            writer.write(bytes((0x81, len(text))) + text)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture
async def live() -> AsyncIterator[LiveSite]:
    running = LiveSite()
    async with await asyncio.start_server(running.answer, "127.0.0.1", 0) as server:
        running.port = server.sockets[0].getsockname()[1]
        yield running


def missed(url: str, page: str = HOME) -> Missed:
    seen = Sighting("", 1, page, page)
    return Missed("site", "", "GET", url, seen, seen, resource="websocket")


def sockets_of(collection: Collection) -> list[str]:
    return [capture.url for capture in collection.captures() if capture.url.startswith("ws")]


async def test_a_missed_socket_is_recorded_through_its_page(tmp_path: Path, ca, live) -> None:
    collection = Collection.create(tmp_path, "site")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, behaviors=frozenset(), record=live.options))
    assert sockets_of(collection) == ["ws://live.test/one"]
    live.sockets = ("/one", "/two")  # the site has changed, or the page opens it at another time
    live.opened.clear()
    misses = [
        missed("ws://live.test/one"),
        missed("ws://live.test/two"),
        missed("ws://live.test/three"),
        missed("ws://live.test/four", page=""),
        missed("ws://elsewhere.test/five", page=""),
    ]

    report = await amend(collection, misses, ca, AmendOptions(record=live.options, retries=0))

    outcomes = {each.url.rpartition("/")[2]: (each.outcome, each.reason) for each in report.outcomes}
    assert outcomes["one"][0] == "present"
    assert outcomes["two"] == ("recorded", "")
    assert outcomes["three"] == ("absent", "its page opened no such WebSocket")
    assert outcomes["four"] == ("absent", "its page opened no such WebSocket")  # its page is the start page
    assert outcomes["five"][0] == "refused"
    assert "the page that opens this WebSocket is unknown" in outcomes["five"][1]
    assert live.opened == ["/one", "/two"]  # one visit for all
    assert sockets_of(collection) == ["ws://live.test/one", "ws://live.test/two"]  # none a second time
    assert report.pages == []
    added = next(each for each in collection.captures() if each.url.endswith("/two"))
    assert collection.read_capture(added).response.status == 101


def frames_of(collection: Collection) -> list[set[bytes]]:
    seal(collection)
    with Pack.open(collection.pack) as pack:
        rows = pack.lookup(socket_key("ws://live.test/one"))
        talks = [open_frames(bytes(pack.entry(row).body)) for row in rows]
    return [{each.payload for each in talk.frames if each.sent and each.opcode == TEXT} for talk in talks]


async def test_walks_record_a_known_socket_again_only_for_frames_that_no_recording_holds(
    tmp_path: Path, ca, live
) -> None:
    live.button = """<script>const talk = new WebSocket('ws://live.test/one')</script>
        <button onclick="talk.send('leave')">Leave</button>"""
    live.sockets = ()
    collection = Collection.create(tmp_path, "site")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, behaviors=frozenset(), record=live.options))
    assert frames_of(collection) == [set()]
    scope = Scope.of(ScopeKind.HOST, [HOME])
    options = WalkOptions(6.0, jobs=1, record=live.options)

    first = await record_walks(collection, ca, scope, [HOME], options)
    assert first.steps
    assert frames_of(collection) == [set(), {b"leave"}]
    await record_walks(collection, ca, scope, [HOME], options)
    assert frames_of(collection) == [set(), {b"leave"}]
