"""Level EXACT: frames and events that the recording received over time arrive according to the page's own clock."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import (
    TEXT,
    Chunk,
    Chunks,
    ConnectionEnd,
    Frame,
    Frames,
    chunks_beside,
    frames_beside,
)
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env
from stillweb.model import Exchange, Request, Response

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AT = "20240506070809"
HOME = "https://ticker.test/"
PAGE = b"""<!doctype html><title>Ticker</title><button>ask</button><pre id=log></pre><script>
const L = (what) => { log.textContent += `${what} @${Math.round(performance.now())}\\n`; };
const a = new WebSocket('wss://ticker.test/a'), b = new WebSocket('wss://ticker.test/b'), e = new EventSource('/events');
for (const [name, socket] of [['b', b], ['a', a]]) { socket.onopen = () => L(`${name} open ${socket.readyState}`); socket.onmessage = ({ data }) => { L(`${name} ${data}`); fetch(`/data?${name}`).then(() => L(`for ${name}`)); }; }
e.addEventListener('tick', ({ data }) => L(`event ${data}`)); e.onmessage = ({ data }) => L(`plain ${data}`);
document.querySelector('button').onclick = () => { a.send('ask'); L('asks'); };
</script>"""
REST = 400


def build(root):
    collection = Collection.create(root, "ticker")
    upgrade = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
    ticks = [(5, "first"), (30, "second"), (REST + 700, "tick 1"), (REST + 1700, "tick 2")]
    a = [Frame(ms, False, TEXT, text.encode()) for ms, text in ticks]
    a.append(Frame(5000, True, TEXT, b"ask"))
    a += [Frame(ms, False, TEXT, text) for ms, text in ((5200, b"answer"), (5900, b"more"), (8000, b"later"))]
    b = [Frame(ms, False, TEXT, f"b{ms}".encode()) for ms in (1, 2, REST + 1200)]
    plain = (("Content-Type", "text/plain"),)
    with CollectionWriter(collection) as writer:
        page = (("Content-Type", "text/html"), ("Content-Length", str(len(PAGE))))
        writer.write(Exchange(Request("GET", HOME), Response(200, "OK", page, PAGE), AT))
        for name, frames in (("a", a), ("b", b)):
            url = f"wss://ticker.test/{name}"
            talk = Frames(tuple(frames), ConnectionEnd.OPEN, 9000, REST)
            writer.write(
                Exchange(Request("GET", url, upgrade), Response(101, "", upgrade), AT),
                frames_beside(url, talk),
            )
            writer.write(Exchange(Request("GET", f"{HOME}data?{name}"), Response(200, "OK", plain, b"x"), AT))
        parts = [b"data: begins\n\n", b"event: tick\ndata: 1\n\nevent: ti", b"ck\ndata: 2\n\n"]
        times = (3, REST + 300, REST + 2600)
        chunks = tuple(Chunk(ms, len(part)) for ms, part in zip(times, parts, strict=True))
        events = (("Content-Type", "text/event-stream"),)
        exchange = Exchange(Request("GET", f"{HOME}events"), Response(200, "OK", events, b"".join(parts)), AT)
        writer.write(exchange, chunks_beside(f"{HOME}events", Chunks(chunks, ConnectionEnd.OPEN, 9000, REST)))
    collection.write_manifest(Manifest(name="ticker", recorded_at=AT, seed=5))
    seal(collection)
    return collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return build(tmp_path_factory.mktemp("collections"))


@pytest.fixture(scope="module")
def exact():
    return True


async def walk(replay, browser):
    """Return the log after each step, and the flags."""
    logs, flags = [], []
    async with Env(replay.url, browser=browser, level="exact") as env:
        _, info = await env.reset(url=HOME)
        page = env._episode.page
        for action in (*["wait(500)"] * 5, "mouse_click(20, 20)", "wait(1000)", "wait(3000)", ""):
            logs.append(tuple((await page.evaluate("log.textContent")).splitlines()))
            flags += info["determinism"]["flags"]
            if action:
                *_, info = await env.step(action)
    return tuple(logs), tuple(flags)


async def test_a_ticker_ticks_by_the_clock_of_its_page(replay, browser):
    came = [
        each for _ in range(2) for each in await asyncio.gather(*(walk(replay, browser) for _ in range(3)))
    ]
    assert len(set(came)) == 1, came
    logs, flags = came[0]
    assert flags == ()
    lines = [line for line in logs[-1] if not line.startswith("for")]
    # Before the page settled: at the beginning, connection by connection.
    assert lines[:7] == [
        f"{what} @0"
        for what in ("a open 1", "a first", "a second", "b open 1", "b b1", "b b2", "plain begins")
    ]
    # Later: by their pauses after that. Effects of a message of the page come together, up to the next pause.
    assert lines[7:12] == [
        "event 1 @300",
        "a tick 1 @700",
        "b b1600 @1200",
        "a tick 2 @1700",
        "event 2 @2600",
    ]
    requested_at = int(lines[12].removeprefix("asks @"))
    assert lines[13:] == [
        f"a answer @{requested_at}",
        f"a more @{requested_at}",
        f"a later @{requested_at + 2100}",
    ]
    counts = [len(log) for log in logs]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1], "an observation shows what had arrived until then"
