"""WebSockets and event streams through the whole pipeline: recorded by the real proxy, sealed, replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from live_site import LiveSite, live_site, talk
from playwright.async_api import Browser
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_sockets
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from wsproto.events import CloseConnection

from stillweb.browser import Activity, Level, Pinning, Profile, launch, open_context, settle
from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.pack.frames import open_chunks, open_frames, socket_key, stream_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import ConnectionEnd, Frames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.keys import request_key
from stillweb.matching.resolver import Policy
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.proxy.running import RecordingProxy
from stillweb.replay import ReplayClient, ReplayOptions, serve

# mitmproxy 11 and what its default addons import, not us.
ECHO, TICKS, EVENTS = "ws://live.test/echo", "ws://live.test/ticks", "http://live.test/events"
SSE = {"Accept": "text/event-stream"}


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.create(tmp_path, "live")


@asynccontextmanager
async def recorded(
    collection: Collection, ca: CertAuthority, site: LiveSite
) -> AsyncIterator[RecordingProxy]:
    options = RecordOptions(resolve=parse_all([site.resolve]))
    with CollectionWriter(collection) as writer:
        async with recording_proxy(writer, ca, options) as recording:
            yield recording


@asynccontextmanager
async def replayed(
    collection: Collection, ca: CertAuthority, *, pace: str = "none", drain: float = 1
) -> AsyncIterator[ReplayClient]:
    assert seal(collection).warnings == ()
    options = ReplayOptions(port=0, session_ports=None, drain=drain, policy=Policy(pace=pace))
    with Pack.open(collection.pack) as pack:
        async with serve({"live": pack}, ca, options) as server, ReplayClient(server.url) as control_api:
            yield control_api


def sockets(collection: Collection, url: str) -> list[Frames]:
    assert check(collection) == []
    seal(collection)
    with Pack.open(collection.pack) as pack:
        return [open_frames(bytes(pack.entry(row).body)) for row in pack.lookup(socket_key(url))]


def said(frames: Frames) -> list[tuple[bool, bytes]]:
    return [(frame.sent, frame.payload) for frame in frames.frames]


async def test_a_socket_is_recorded_frame_by_frame(collection, ca) -> None:
    async with live_site() as site, recorded(collection, ca, site) as recording:
        async with talk(recording.url, ECHO, ("talk",)) as echo:
            assert (echo.status, echo.subprotocol, echo.extensions) == (101, "talk", ["permessage-deflate"])
            await echo.say("ab")
            assert await echo.hear() == "ba"
            await echo.say(b"\x00\xff")
            assert await echo.hear() == b"\xff\x00"
            await echo.close()
            assert isinstance(await echo.event(), CloseConnection)
        async with talk(recording.url, TICKS) as ticks:
            heard = [await ticks.hear() for _ in range(4)]
            last = await ticks.event()
        async with talk(recording.url, "ws://live.test/closed") as refused:
            assert refused.status == 403
        assert (recording.notes, recording.failed) == ({}, {})

    (frames,) = sockets(collection, ECHO)
    assert said(frames)[:4] == [(True, b"ab"), (False, b"ba"), (True, b"\x00\xff"), (False, b"\xff\x00")]
    assert said(frames)[4:] == [(True, b"\x03\xe8")]
    assert frames.end is ConnectionEnd.CLIENT
    times = [frame.ms for frame in frames.frames]
    assert times == sorted(times)
    (frames,) = sockets(collection, TICKS)
    assert [payload.decode() for _, payload in said(frames)[:4]] == heard
    assert isinstance(last, CloseConnection)
    assert said(frames)[4:] == [(False, (3000).to_bytes(2, "big") + b"enough")]
    assert frames.end is ConnectionEnd.SITE


async def test_what_is_open_when_the_recording_ends_is_stored(collection, ca) -> None:
    # The recording ends first, as it stands innermost.
    async with (
        live_site() as site,
        AsyncExitStack() as clients,
        recorded(collection, ca, site) as recording,
    ):
        client = await clients.enter_async_context(httpx.AsyncClient(proxy=recording.url))
        echo = await clients.enter_async_context(talk(recording.url, ECHO))
        await echo.say("ab")
        await echo.hear()
        request = client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"})
        events = await clients.enter_async_context(request)
        seen = await _until(events, "event: end")
        assert recording.in_flight == 0

    (frames,) = sockets(collection, ECHO)
    assert (said(frames), frames.end) == ([(True, b"ab"), (False, b"ba")], ConnectionEnd.OPEN)
    (end, stream) = streams(collection, last_event_id="3")[0]
    assert (end, stream.startswith(seen.encode())) == (ConnectionEnd.OPEN, True)


async def test_nothing_comes_while_a_page_is_written_down(collection, ca) -> None:
    async with (
        live_site() as site,
        recorded(collection, ca, site) as recording,
        talk(recording.url, ECHO) as echo,
    ):
        await echo.say("ab")
        assert await echo.hear() == "ba"
        with recording.at_rest([ECHO, "http://live.test/"]):
            await echo.say("cd")
            assert await echo.silent()
        assert await echo.hear() == "dc"

    (frames,) = sockets(collection, ECHO)
    assert [frame.payload for frame in frames.frames] == [b"ab", b"ba", b"cd", b"dc"]
    assert frames.rest_ms is not None
    assert frames.frames[1].ms <= frames.rest_ms <= frames.frames[2].ms


async def test_an_event_stream_is_recorded_whole_cut_by_the_page_or_ended_by_the_site(collection, ca) -> None:
    async with live_site() as site, recorded(collection, ca, site) as recording:
        async with httpx.AsyncClient(proxy=recording.url) as client:
            whole = await client.get(EVENTS, headers=SSE)
            async with client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"}) as events:
                await _until(events, "event: end")
        async with asyncio.timeout(10):
            await site.gone.wait()

    assert streams(collection) == [(ConnectionEnd.SITE, whole.content)]
    ((end, stream),) = streams(collection, last_event_id="3")
    assert (end, stream.endswith(b"event: end\ndata: -\n\n")) == (ConnectionEnd.CLIENT, True)
    captures = [capture for capture in collection.captures() if capture.url == EVENTS]
    bodies = [collection.read_capture(capture).response.raw_body for capture in captures]
    assert sorted(bodies) == sorted([whole.content, stream])


async def test_a_recorded_socket_answers_what_it_was_reported(collection, ca) -> None:
    async with live_site() as site, recorded(collection, ca, site) as recording:
        for word in ("first", "second"):
            async with talk(recording.url, ECHO, ("talk",)) as echo:
                await echo.say(f'{{"a": 1, "word": "{word}"}}')
                await echo.hear()
        async with talk(recording.url, "ws://live.test/closed"):
            pass

    async with replayed(collection, ca) as control_api:
        session = await control_api.open_session()
        for word in ("first", "second", "second"):
            async with talk(session.proxy, ECHO, ("x", "talk")) as echo:
                assert (echo.status, echo.subprotocol) == (101, "talk")
                assert echo.extensions == ["permessage-deflate"]
                await echo.say('{"a": 1, "word": "never said"}')
                assert await echo.silent()
                await echo.say(f'{{"word":"{word}","a":1}}')
                assert await echo.hear() == f'}}"{word[::-1]}" :"drow" ,1 :"a"{{'
                await echo.close()
                assert isinstance(await echo.event(), CloseConnection)
                assert await echo.event() is None
        async with talk(session.proxy, ECHO, deflate=False) as echo:
            assert echo.status == 404  # the subprotocol is not offered
        async with talk(session.proxy, "ws://live.test/closed") as closed:
            assert closed.status == 403
        async with talk(session.proxy, "ws://live.test/never") as never:
            assert never.status == 404
        ledger = await control_api.ledger(session.id)
        assert (await control_api.session(session.id))["in_flight"] == 0

    lines = [(line.method, line.status, line.tier, line.reason.partition(";")[0]) for line in ledger.entries]
    missed = ("WEBSOCKET", 0, "miss", "frame 1 of the page: not as recorded")
    assert lines[:6] == [
        ("GET", 101, "sequence", "connection 1 of 2"),
        missed,
        ("GET", 101, "sequence", "connection 2 of 2"),
        missed,
        ("GET", 101, "sequence", "past the end: the last of 2 connection again"),
        missed,
    ]
    assert [line[:3] for line in lines[6:]] == [
        ("GET", 404, "miss"), ("GET", 403, "exact"), ("GET", 404, "miss"),
    ]  # fmt: skip
    assert {line.url for line in ledger.entries} == {
        ECHO, "ws://live.test/closed", "ws://live.test/never",
    }  # fmt: skip


async def test_a_page_gets_the_connection_that_was_made_with_its_cookies(collection, ca) -> None:
    cookies = [((b"Cookie", b"visit=%d" % number),) for number in range(3)]
    async with live_site() as site, recorded(collection, ca, site) as recording:
        for number in (0, 1):
            async with talk(recording.url, ECHO, fields=cookies[number]) as echo:
                await echo.say(f"page {number}")
                await echo.hear()

    async with replayed(collection, ca) as control_api:
        for number, word in (
            (1, "page 1"),
            (0, "page 0"),
            (2, "page 1"),
        ):  # the last by turn: none has its cookies
            async with talk(control_api.url, ECHO, fields=cookies[number]) as echo:
                await echo.say(word)
                assert await echo.hear() == word[::-1]


async def test_what_is_volatile_in_a_frame_may_differ(collection, ca) -> None:
    rules = "version: 1\nvolatile:\n  - {where: json, name: at, shape: milliseconds, host: live.test}\n"
    (collection.path / "rules.yaml").write_text(rules)
    async with (
        live_site() as site,
        recorded(collection, ca, site) as recording,
        talk(recording.url, ECHO) as echo,
    ):
        await echo.say('{"at":1700000000000,"b":1}')
        answer = await echo.hear()

    async with replayed(collection, ca) as control_api:
        async with talk(control_api.url, ECHO) as echo:
            await echo.say('{"b":2,"at":1700000000001}')
            assert await echo.silent()
            await echo.say('{"b":1,"at":1800000000001}')
            assert await echo.hear() == answer
        (missed,) = (await control_api.ledger("default")).misses
        assert missed.reason == "frame 1 of the page: not as recorded"


async def test_a_server_that_ends_does_not_wait_for_what_has_no_end(collection, ca) -> None:
    async with live_site() as site, recorded(collection, ca, site) as recording:
        async with talk(recording.url, ECHO):
            pass
        async with (
            httpx.AsyncClient(proxy=recording.url) as client,
            client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"}) as events,
        ):
            await _until(events, "event: end")

    async with AsyncExitStack() as clients:
        async with replayed(collection, ca, drain=60) as control_api:
            session = await control_api.open_session()
            closed = await clients.enter_async_context(talk(session.proxy, ECHO))
            await control_api.close_session(session.id)
            assert await closed.event() is None
            session = await control_api.open_session()
            echo = await clients.enter_async_context(talk(session.proxy, ECHO))
            client = await clients.enter_async_context(httpx.AsyncClient(proxy=session.proxy))
            request = client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"})
            events = await clients.enter_async_context(request)
            await _until(events, "event: end")
            assert (await control_api.session(session.id))["in_flight"] == 0
        assert await echo.event() is None
        assert not await _stays_open(events)


@pytest.mark.parametrize("pace", ["none", "recorded"])
async def test_recorded_events_are_played_and_left_open(collection, ca, pace) -> None:
    async with live_site() as site, recorded(collection, ca, site) as recording:
        async with httpx.AsyncClient(proxy=recording.url) as client:
            whole = (await client.get(EVENTS, headers=SSE)).content
            async with client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"}) as events:
                rest = await _until(events, "event: end")
        async with talk(recording.url, TICKS) as ticks:
            heard = [await ticks.hear() for _ in range(4)]
            await ticks.event()

    async with replayed(collection, ca, pace=pace) as control_api:
        session = await control_api.open_session()
        async with httpx.AsyncClient(proxy=session.proxy, timeout=10) as client:
            assert (await client.get(EVENTS, headers=SSE)).content == whole
            async with client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"}) as events:
                assert await _until(events, "event: end") == rest
                assert await _stays_open(events)
            async with client.stream("GET", EVENTS, headers=SSE | {"Last-Event-ID": "3"}) as events:
                assert await _stays_open(events)  # past the end: no event comes twice
            async with client.stream("GET", EVENTS, headers=SSE) as events:
                assert (await _until(events, "data: event 3")).encode() in whole
                assert await _stays_open(events)
            assert (await client.get(EVENTS)).content == whole  # no EventSource: it waits for the end
        async with talk(session.proxy, TICKS) as ticks:
            assert [await ticks.hear() for _ in range(4)] == heard
            last = await ticks.event()
            assert isinstance(last, CloseConnection)
            assert (last.code, last.reason) == (3000, "enough")
        async with talk(session.proxy, TICKS) as ticks:
            assert [await ticks.hear() for _ in range(4)] == heard
            assert await ticks.silent()  # past the end it is not closed, for the page would open it for ever
        ledger = await control_api.ledger(session.id)

    assert ledger.misses == ()
    assert [line.tier for line in ledger.entries] == ["exact"] * 7


async def _until(events: httpx.Response, last: str) -> str:
    """Return an event stream up to a line and the line behind it."""
    seen: list[str] = []
    lines = _lines(events)
    async with asyncio.timeout(10):
        while not seen or seen[-1] != last:
            seen.append(await anext(lines))
    return "\n".join(seen)


def _lines(events: httpx.Response) -> AsyncIterator[str]:
    if "lines" not in events.extensions:
        events.extensions["lines"] = aiter(events.aiter_lines())
    return events.extensions["lines"]


async def _stays_open(events: httpx.Response) -> bool:
    try:
        async with asyncio.timeout(0.1):
            while await anext(_lines(events)) is not None:
                pass
    except TimeoutError:
        return True
    except (StopAsyncIteration, httpx.RemoteProtocolError):
        return False


def streams(collection: Collection, last_event_id: str = "") -> list[tuple[ConnectionEnd, bytes]]:
    """Return how the recorded connections of the event stream ended, and what they brought."""
    assert check(collection) == []
    seal(collection)
    key = stream_key(EVENTS, request_key("GET", EVENTS), last_event_id)
    with Pack.open(collection.pack) as pack:
        opened = [open_chunks(bytes(pack.entry(row).body)) for row in pack.lookup(key)]
    assert all(sum(chunk.size for chunk in chunks.chunks) == len(stream) for chunks, stream in opened)
    return [(chunks.end, stream) for chunks, stream in opened]


SHOWN = """() => [...document.querySelectorAll("ul")].map(
  (ul) => [ul.id, ...[...ul.children].map((li) => li.textContent)])"""


async def _seen(browser: Browser, proxy: str, pinning: Pinning) -> tuple[list[list[str]], bool]:
    """Return what a page of its own shows when it has settled."""
    context = await open_context(browser, proxy=proxy, profile=Profile(), pinning=pinning)
    activity = Activity(context)
    page = await context.new_page()
    await page.goto("http://live.test/")
    settled = await settle(page, activity)
    shown = await page.evaluate(SHOWN)
    activity.close()
    await context.close()
    return shown, settled.settled


@pytest.mark.browser
async def test_a_page_sees_what_was_recorded_each_time(collection, ca) -> None:
    pinning = Pinning(Level.CLOCK, 1, datetime(2026, 1, 1, tzinfo=UTC))
    async with launch(spki=ca.spki_hashes()) as browser:
        async with live_site() as site, recorded(collection, ca, site) as recording:
            shown, settled = await _seen(browser, recording.url, pinning)
            assert (settled, recording.notes) == (True, {})
        assert shown == [
            ["echo", "open talk", '}]0[:"a",1:"b"{', '}]1[:"a"{', '}]2[:"a"{'],
            ["ticks", "tick 1", "tick 2", "tick 3", "tick 4", "closed 3000 enough"],
            ["events", "1 event 1", "2 event 2", "3 event 3", "4 event 4", "5 event 5"],
            ["more", "data: x\n\ndata: y\n\n"],
        ]
        async with replayed(collection, ca) as control_api:
            for _ in range(3):
                session = await control_api.open_session()
                assert await _seen(browser, session.proxy, pinning) == (shown, True)
                ledger = await control_api.ledger(session.id)
                assert (ledger.misses, ledger.dropped) == ((), 0)
                await control_api.close_session(session.id)


SLOW = """<!doctype html><p id=out>waiting</p><script>
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.onopen = () => socket.send("begin");
socket.onmessage = ({ data }) => { if (data !== "soon") out.textContent = data; };
</script>"""


async def _slow(socket: ServerConnection) -> None:
    """Answer a frame in two parts, the second after more than `settle` waits."""
    await socket.recv()
    await socket.send("soon")
    await asyncio.sleep(1.3)
    await socket.send("done")
    await socket.wait_closed()


def _page(_: ServerConnection, request: Request) -> Response | None:
    if request.path == "/socket":
        return None
    return Response(200, "OK", Headers({"Content-Type": "text/html"}), SLOW.encode())


@pytest.mark.browser
async def test_frames_that_answer_late_belong_to_the_page(collection, ca) -> None:
    """A crawl that took the second part for an unprompted frame left the page waiting at its first visit."""
    async with serve_sockets(_slow, "127.0.0.1", 0, process_request=_page) as site:
        port = site.sockets[0].getsockname()[1]
        record = RecordOptions(resolve=parse_all([f"live.test:80=127.0.0.1:{port}"]))
        report = await crawl(["http://live.test/"], collection, ca, CrawlOptions(record=record, limit=1))
    assert report.failed_pages == {}

    async with replayed(collection, ca) as control_api, launch(spki=ca.spki_hashes()) as browser:
        session = await control_api.open_session()
        context = await open_context(
            browser,
            proxy=session.proxy,
            profile=Profile(),
            pinning=Pinning(Level.CLOCK, 1, datetime(2026, 1, 1, tzinfo=UTC)),
        )
        activity = Activity(context)
        page = await context.new_page()
        await page.goto("http://live.test/")
        await settle(page, activity)
        assert await page.inner_text("#out") == "done"
        activity.close()
        await context.close()
