"""`--on-miss pywb`: strict answers stay strict, pywb answers the misses, the ledger distinguishes both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from small_sites import announced, distrust

from stillweb.browser import Level, Pinning, Profile, launch, open_context
from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
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
from stillweb.errors import MalformedPack, ReplayUnreachable, UsageError
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayClient, ensure_sealed
from stillweb.replay.onmiss.front import Front, FrontOptions, PywbMisses
from stillweb.replay.onmiss.hermetic import Hermetic, HermeticOptions
from stillweb.replay.onmiss.loopback import Loopback, render_request

SHOP = "https://shop.example"
PAGE = b"""<!doctype html><title>Shop</title><script>
const ask = async (...what) => {
  const answer = await fetch(...what);
  return [answer.status, await answer.text()];
};
const socket = () => new Promise(done => {
  const socket = new WebSocket("wss://shop.example/live");
  socket.onopen = () => socket.send("hi");
  socket.onmessage = event => { socket.close(); done(event.data); };
  socket.onerror = () => done("failed");
});
const events = () => new Promise(done => {
  const events = new EventSource("/events");
  events.onmessage = event => { events.close(); done(event.data); };
});
const all = async () => [await ask("/api.json?_=111"), await ask("/api.json?_=987"), await ask("/none.json"),
  await ask("https://api.example/list.json?cursor=9"),
  await ask("/api.json?_=3", {method: "POST", body: "{}"})];
</script>"""
LIVE, EVENTS, EVENT = "wss://shop.example/live", f"{SHOP}/events", b"data: news\n\n"
BIG = bytes(range(256)) * 8192
JSON = (("Content-Type", "application/json"),)
RECORDED = [
    ("GET", f"{SHOP}/", PAGE, (("Content-Type", "text/html"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))),
    ("GET", f"{SHOP}/api.json?_=111", b'{"n":1}', JSON),
    ("GET", "https://api.example/list.json?cursor=1", b'{"page":1}', JSON),
    ("GET", "http://plain.example/a.json?_=1", b'{"plain":1}', JSON),
    ("GET", f"{SHOP}/big.json?_=1", BIG, JSON),
    ("GET", f"{SHOP}/cart", b"empty", ()),
    ("POST", f"{SHOP}/cart", b"added", ()),
    ("GET", f"{SHOP}/cart", b"one", ()),
    ("POST", f"{SHOP}/graphql", b'{"data":1}', JSON),
]

# The front, with every address that it connects to written down. On asyncio's own loop, as the connections
# of uvloop are not seen by Python's audit hooks.
WATCHED = """
import sys
addresses = open("connected", "a", buffering=1)
def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        print(*arguments[1][:2], file=addresses)
sys.addaudithook(watch)
sys.modules["uvloop"] = None
from stillweb.cli import main
main()
"""


@dataclass
class Running:
    """A front that runs, and what it said of itself."""

    folder: Path
    process: subprocess.Popen[str]
    facts: dict[str, Any]

    @property
    def proxy(self) -> str:
        return str(self.facts["proxy"])

    def web(self, proxy: str = "") -> httpx.Client:
        context = ssl.create_default_context(cafile=self.folder / "certs" / "ca.pem")
        return httpx.Client(proxy=proxy or self.proxy, verify=context, trust_env=False, timeout=30)

    def control(self, method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, self.proxy + path, trust_env=False, timeout=30, **more)

    @contextlib.contextmanager
    def session(self) -> Iterator[tuple[httpx.Client, Callable[[], list[dict[str, Any]]]]]:
        """A session of one's own: a client, and its ledger."""
        session = self.control("POST", "/sessions", json={}).json()
        path = f"/sessions/{session['id']}"
        with self.web(session["proxy"]) as web:
            yield web, lambda: self.control("GET", f"{path}/ledger").json()["entries"]
        assert self.control("DELETE", path).status_code == 204


def record(root: Path) -> None:
    collection = Collection.create(root, "shop")
    with CollectionWriter(collection) as writer:
        for second, (method, url, body, fields) in enumerate(RECORDED):
            request = Request(method, url, JSON, b'{"id":1}') if method == "POST" else Request(method, url)
            writer.write(Exchange(request, Response(200, "OK", fields, body), f"202601010000{second:02d}"))
        gone = Exchange(
            Request("GET", f"{SHOP}/gone.json?_=1"), Response(404, "Not Found", JSON, b"{}"), "20260101000050"
        )
        writer.write(gone)
        site = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
        talk = Frames((Frame(0, True, TEXT, b"hi"), Frame(0, False, TEXT, b"hello")), ConnectionEnd.OPEN)
        handshake = Exchange(Request("GET", LIVE, site), Response(101, "", site), "20260101000051")
        writer.write(handshake, frames_beside(LIVE, talk))
        kind = (("Content-Type", "text/event-stream"),)
        stream = Exchange(Request("GET", EVENTS), Response(200, "OK", kind, EVENT), "20260101000052")
        writer.write(stream, chunks_beside(EVENTS, Chunks((Chunk(0, len(EVENT)),), ConnectionEnd.OPEN)))
    reindex(collection)


@contextlib.contextmanager
def run(folder: Path, *arguments: str, name: str = "shop") -> Iterator[Running]:
    ports = ("--port", "0", "--session-ports", "any", "--json")
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED, "replay", name, "--on-miss", "pywb", *ports, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield Running(folder, process, announced(process.stdout))
    finally:
        # Killed without warning, it leaves nothing behind.
        left = children(process.pid) if process.poll() is None else set()
        process.kill()
        process.wait()
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    record(folder / "collections")
    return folder


@pytest.fixture(scope="module")
def front(folder: Path, pywb: Path) -> Iterator[Running]:
    with run(folder, "--ledger", "ledger.jsonl") as running:
        yield running


def seen(entries: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(entry["tier"], entry["status"], entry["reason"]) for entry in entries]


@pytest.mark.pywb
def test_what_strict_matching_has_is_passed_on_as_it_is(front: Running) -> None:
    with front.session() as (web, ledger):
        answer = web.get(f"{SHOP}/")
        assert answer.headers.raw == [
            *((b"Content-Type", b"text/html"), (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")),
            (b"Content-Length", b"%d" % len(PAGE)),
        ]
        assert answer.content == PAGE
        assert web.get(f"{SHOP}/big.json?_=1").content == BIG
        assert web.get(f"{SHOP}/gone.json?_=1").status_code == 404  # a recorded one
        assert [entry["tier"] for entry in ledger()] == ["exact"] * 3


@pytest.mark.pywb
@pytest.mark.parametrize(
    ("url", "body"),
    [
        (f"{SHOP}/api.json?_=222", b'{"n":1}'),
        ("https://api.example/list.json?cursor=77", b'{"page":1}'),
        ("http://plain.example/a.json?_=2", b'{"plain":1}'),
        (f"{SHOP}/big.json?_=2", BIG),
    ],
)
def test_what_it_misses_pywb_answers_and_the_ledger_says_so(front: Running, url: str, body: bytes) -> None:
    with front.session() as (web, ledger):
        answer = web.get(url, headers={"Origin": "https://other.example", "Accept-Datetime": "nonsense"})
        assert (answer.status_code, answer.content) == (200, body)
        assert answer.headers["access-control-allow-origin"] == "https://other.example"
        names = {name.lower() for name, _ in answer.headers.raw}
        assert not names & {b"stillweb-miss", b"memento-datetime", b"link", b"date", b"connection"}
        (entry,) = ledger()
        why = "strict: same path recorded with other query: 1; answered by pywb"
        assert seen([entry]) == [("pywb", 200, why)]
        assert entry["bytes"] == len(body)
        assert entry["asked"]["fields"]
        assert web.head(url).status_code == 200
        assert ledger()[1]["bytes"] == 0


@pytest.mark.pywb
def test_a_miss_of_both_is_the_miss_as_it_was(front: Running) -> None:
    with front.session() as (web, ledger):
        answer = web.get(f"{SHOP}/none.json", headers={"Origin": SHOP})
        assert (answer.status_code, answer.content) == (404, b"")
        assert answer.headers.raw == [
            (b"Access-Control-Allow-Origin", SHOP.encode()),
            (b"Access-Control-Allow-Credentials", b"true"),
            (b"Content-Length", b"0"),
        ]
        ((tier, status, reason),) = seen(ledger())
        assert (tier, status) == ("miss", 404)
        assert reason.endswith("; pywb has none either")


@pytest.mark.pywb
def test_pywb_is_not_requested_mutations_noise_and_what_is_made_up(front: Running) -> None:
    preflight = {"Origin": SHOP, "Access-Control-Request-Method": "DELETE"}
    with front.session() as (web, ledger):
        assert web.post(f"{SHOP}/graphql", json={"id": 2}).status_code == 404  # pywb has its closest POST
        assert web.delete(f"{SHOP}/api.json?_=5").status_code == 404
        assert web.get(f"{SHOP}/favicon.ico").status_code == 204
        assert web.options(f"{SHOP}/api.json?_=5", headers=preflight).status_code == 204
        tiers = [(tier, status) for tier, status, _ in seen(ledger())]
        assert tiers == [("miss", 404), ("miss", 404), ("noise", 204), ("synthetic", 204)]
        assert ledger()[0]["reason"].endswith("; pywb is not used for POST")


@pytest.mark.pywb
def test_mutations_move_the_session_that_made_them_and_no_other(front: Running) -> None:
    with front.session() as (one, ledger), front.session() as (other, _):
        assert one.get(f"{SHOP}/cart").content == b"empty"
        assert one.post(f"{SHOP}/cart", json={"id": 1}).content == b"added"
        assert one.get(f"{SHOP}/api.json?_=8").status_code == 200  # by pywb: moves nothing
        assert one.get(f"{SHOP}/cart").content == b"one"
        assert other.get(f"{SHOP}/cart").content == b"empty"
        assert [entry["tier"] for entry in ledger()].count("pywb") == 1


@pytest.mark.pywb
def test_sessions_by_user_name_and_their_end(front: Running) -> None:
    session = front.control("POST", "/sessions", json={"collection": "shop"}).json()
    with front.web(front.proxy.replace("//", f"//{session['id']}:x@")) as web:
        assert web.get(f"{SHOP}/api.json?_=3").status_code == 200
        assert web.get("http://plain.example/a.json?_=3").status_code == 200
    state = front.control("GET", f"/sessions/{session['id']}").json()
    assert (state["proxy"], state["counts"], state["in_flight"]) == (session["proxy"], {"pywb": 2}, 0)
    listed = {each["id"]: each for each in front.control("GET", "/sessions").json()["sessions"]}
    assert listed[session["id"]] | {"idle": 0} == state | {"idle": 0}
    with front.web(front.proxy.replace("//", "//nobody:x@")) as web:
        assert web.get("http://plain.example/").status_code == 407
        with pytest.raises(httpx.ProxyError):
            web.get(f"{SHOP}/")

    assert front.control("DELETE", f"/sessions/{session['id']}").status_code == 204
    with pytest.raises(httpx.ConnectError), front.web(session["proxy"]) as web:
        web.get(f"{SHOP}/")
    assert front.control("GET", f"/sessions/{session['id']}").status_code == 404
    assert front.control("GET", f"/sessions/{session['id']}/ledger").json()["closed"] is True


@pytest.mark.pywb
def test_session_ports_take_tls_at_once_and_requests_by_host(front: Running) -> None:
    with front.session() as (_, ledger):
        opened = front.control("GET", "/sessions").json()["sessions"][-1]
        port = int(opened["proxy"].rpartition(":")[2])
        context = ssl.create_default_context(cafile=front.folder / "certs" / "ca.pem")
        with httpx.Client(verify=context, trust_env=False) as web:
            answer = web.get(
                f"https://127.0.0.1:{port}/api.json?_=4",
                headers={"Host": "shop.example"},
                extensions={"sni_hostname": "shop.example"},
            )
            assert answer.content == b'{"n":1}'
            plain = web.get(f"http://127.0.0.1:{port}/a.json?_=1", headers={"Host": "plain.example"})
            assert plain.content == b'{"plain":1}'
        assert [entry["tier"] for entry in ledger()] == ["pywb", "exact"]


@pytest.mark.pywb
def test_an_event_stream_lasts_as_long_as_its_client(front: Running) -> None:
    with front.session() as (web, _):
        session = front.control("GET", "/sessions").json()["sessions"][-1]["id"]

        def connections() -> int:
            return int(front.control("GET", f"/sessions/{session}").json()["connections"])

        with web.stream("GET", EVENTS, headers={"Accept": "text/event-stream"}) as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == EVENT
            assert connections() == 1
        assert until(lambda: connections() == 0)


@pytest.mark.pywb
def test_the_control_api_is_that_of_the_server_behind_it(front: Running) -> None:
    info = front.control("GET", "/info").json()
    assert (info["backend"], info["features"]["on_miss"], info["features"]["strict"]) == (
        "native",
        True,
        False,
    )
    assert "stillweb_" in front.control("GET", "/metrics").text
    assert front.control("GET", "/ready").json()["ready"] is True
    assert front.control("POST", "/sessions", json={"collection": "nope"}).status_code == 404
    assert front.control("POST", "/sessions", content="{").status_code == 400
    for path in ("/sessions/default/misses", "/sessions/default/misses//", "/sessions/default/misses/?a=/"):
        assert front.control("POST", path, json={"mark": "0-1"}).status_code == 404
    assert front.control("DELETE", "/sessions/default").status_code == 409
    assert front.control("GET", "/sessions", headers={"Origin": SHOP}).status_code == 403
    with front.web() as web:
        assert web.get("http://plain.example/a.json?_=5").status_code == 200
    shown = CliRunner().invoke(cli, ["replay", "ledger", front.proxy, "--tier", "pywb", "--json"])
    assert {json.loads(line)["collection"] for line in shown.stdout.splitlines()} == {"shop"}


@pytest.mark.pywb
def test_it_connects_to_nothing_but_the_two_behind_it(front: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary, front.session() as (web, ledger):
        canary.setblocking(False)
        port = canary.getsockname()[1]
        assert web.get(f"http://127.0.0.1:{port}/").status_code == 404
        assert web.get(f"https://127.0.0.1:{port}/").status_code == 404
        assert [tier for tier, _, _ in seen(ledger())] == ["miss", "miss"]
        with pytest.raises(BlockingIOError):
            canary.accept()
    connected = {line.split()[0] for line in (front.folder / "connected").read_text().splitlines()}
    assert connected == {"127.0.0.1"}
    ports = {int(line.split()[1]) for line in (front.folder / "connected").read_text().splitlines()}
    assert port not in ports
    assert ports <= listening(children(front.process.pid)) | closed_ports(front)


def closed_ports(front: Running) -> set[int]:
    """Ports that the hermetic server had given to sessions which are closed: no process listens there now."""
    connected = (front.folder / "connected").read_text().splitlines()
    return {port for port in {int(line.split()[1]) for line in connected} if not answers(port)}


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def children(pid: int) -> set[int]:
    """A process's children, theirs too."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | children(child)
    return found


def listening(pids: set[int]) -> set[int]:
    """The ports on which processes listen."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(descriptor))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    }


@pytest.mark.pywb
@pytest.mark.shared
def test_a_real_archive(tmp_path: Path, pywb: Path, shared: Path) -> None:
    archive = shared / "archives" / "kiwix-with-redirects.warc.gz"
    root = ["--collections", str(tmp_path / "collections")]
    made = CliRunner().invoke(cli, ["collections", "import", str(archive), "-c", "kiwix", *root])
    assert made.exit_code == 0, made.output
    sheet = "https://cdnjs.cloudflare.com/ajax/libs/font-awesome/6.4.0/css/all.min.css"
    with run(tmp_path, name="kiwix") as front, front.session() as (web, ledger):
        recorded = web.get(f"{sheet}?ver=6.3")
        assert recorded.status_code == 200
        assert web.get(f"{sheet}?ver=0.1").content == recorded.content
        assert web.get(f"{sheet}.map").status_code == 404
        assert seen(ledger()) == [
            ("exact", 200, ""),
            ("pywb", 200, "strict: same path recorded with other query: 1; answered by pywb"),
            ("miss", 404, ledger()[2]["reason"]),
        ]


def until(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.pywb
def test_without_pywb_misses_stay_misses_and_a_signal_ends_all(tmp_path: Path, pywb: Path) -> None:
    record(tmp_path / "collections")
    with run(tmp_path, "--ledger", "l.jsonl") as front:
        mine = children(front.process.pid)
        with front.web() as web:
            for path in ("/", "/api.json?_=2"):
                web.get(SHOP + path)
        for pid in mine:
            if b"wayback" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        with front.session() as (web, ledger):
            assert web.get(f"{SHOP}/api.json?_=222", headers={"Origin": SHOP}).status_code == 404
            assert web.get(f"{SHOP}/api.json?_=111").content == b'{"n":1}'
            miss, hit = seen(ledger())
            assert miss[0] == "miss"
            assert "; pywb failed: " in miss[2]
            assert hit[0] == "exact"
        front.process.send_signal(signal.SIGTERM)
        assert front.process.wait(20) == 0
        assert front.process.stderr is not None
        said = front.process.stderr.read()
        assert "pywb does not answer" in said
        assert "answered 4 requests: 2 exact, 1 pywb, 1 miss" in said
        assert not any(Path(f"/proc/{pid}").exists() for pid in mine)
    lines = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert [(line["seq"], line["tier"]) for line in lines] == [
        *((1, "exact"), (2, "pywb"), (1, "miss"), (2, "exact")),
    ]


@pytest.mark.pywb
@pytest.mark.browser
async def test_a_page_gets_pywbs_answers_and_no_sign_of_where_they_come_from(front: Running) -> None:
    async with (
        ReplayClient(front.proxy) as control_api,
        launch(spki=(await control_api.info()).spki) as browser,
    ):
        session = await control_api.open_session()
        pinning = Pinning(Level.LIVE, 1, datetime(2026, 1, 1, tzinfo=UTC))
        context = await open_context(browser, proxy=session.proxy, profile=Profile(), pinning=pinning)
        page = await context.new_page()
        await page.goto(f"{SHOP}/")
        assert await page.evaluate("all()") == [
            [200, '{"n":1}'],
            [200, '{"n":1}'],
            [404, ""],
            [200, '{"page":1}'],
            [404, ""],
        ]
        heads = await page.evaluate(
            "Promise.all(['/', '/api.json?_=4', '/none.json']"
            ".map(async url => Object.fromEntries((await fetch(url)).headers)))"
        )
        assert not any(
            word in json.dumps(heads).lower() for word in ("stillweb", "pywb", "memento", "archive")
        )
        assert await page.evaluate("socket()") == "hello"
        assert await page.evaluate("events()") == "news"
        await context.close()
        counts = (await control_api.ledger(session.id)).counts
        assert (counts["pywb"], counts["miss"]) == (3, 3)
        await control_api.close_session(session.id)


# The real pywb shows none of these faults here: a stand-in for it breaks in every possible way.

ANSWERS = {
    "/500": b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno",
    "/403": b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno",
    "/garbage": b"hello\r\n\r\n",
    "/nothing": b"",
    "/cut": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
    "/cut-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "/whole": b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n",
    "/slow": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nslow\r\n0\r\n\r\n",
    "/to-the-end": b"HTTP/1.1 200 OK\r\n\r\nall of it",
}


class StandIn:
    """Answers on a port as `ANSWERS` says."""

    def __init__(self) -> None:
        self.port = 0
        self.requested = asyncio.Event()
        self.release = asyncio.Event()

    async def port_of(self, name: str) -> int:
        return self.port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        path = "/" + line.rpartition("/")[2]
        if path == "/slow":
            self.requested.set()
            await self.release.wait()
        writer.write(ANSWERS[path])
        await writer.drain()
        writer.close()


Broken = tuple[str, ReplayClient, StandIn]


@pytest.fixture
async def broken(tmp_path: Path) -> AsyncIterator[Broken]:
    record(tmp_path / "collections")
    collection = Collection.open(tmp_path / "collections", "shop")
    ensure_sealed(collection)
    ca = CertAuthority.init(tmp_path / "certs")
    stand_in = StandIn()
    hermetic = await Hermetic.start([collection], ca, HermeticOptions())
    options = FrontOptions(port=0, session_ports=None)
    pywb = PywbMisses(stand_in, ca, options.pywb_timeout)  # type: ignore[arg-type]
    front = Front(hermetic, pywb, ca, options)
    async with await asyncio.start_server(stand_in.serve, "127.0.0.1", 0) as server:
        stand_in.port = server.sockets[0].getsockname()[1]
        await front.start()
        async with ReplayClient(front.url) as control_api:
            yield front.url, control_api, stand_in
        await front.stop()
        await hermetic.stop()


async def raw(proxy: str, path: str) -> bytes:
    """Ask by hand and return all that comes."""
    port = int(proxy.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = (("Host", "plain.example"), ("Connection", "close"))
    writer.write(render_request("GET", f"http://plain.example{path}", headers))
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.transport.abort()


async def test_no_failure_of_pywb_becomes_an_answer(broken: Broken) -> None:
    proxy, control_api, _ = broken
    for path in ("/500", "/403", "/garbage", "/nothing"):
        assert (await raw(proxy, path)).startswith(b"HTTP/1.1 404 "), path
    entries = (await control_api.ledger()).entries
    assert [(entry.tier, entry.status) for entry in entries] == [("miss", 404)] * 4
    assert all("; pywb failed: " in entry.reason for entry in entries)

    for path in ("/cut", "/cut-chunks"):  # half an answer never looks whole
        got = await raw(proxy, path)
        assert not got.endswith(b"0\r\n\r\n")
        assert len(got) < 1000
    for entry in (await control_api.ledger(after=4)).entries:
        assert (entry.tier, entry.bytes) == ("pywb", 4)
        assert "which broke off" in entry.reason


async def test_answers_come_through_as_they_are_framed(broken: Broken) -> None:
    proxy, control_api, _ = broken
    assert await raw(proxy, "/whole") == ANSWERS["/whole"].replace(
        b"\r\n\r\n5", b"\r\nConnection: close\r\n\r\n5"
    )
    assert await raw(proxy, "/to-the-end") == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"
    assert [(entry.bytes, entry.status) for entry in (await control_api.ledger()).entries] == [
        (5, 200),
        (9, 200),
    ]


async def test_a_miss_is_in_flight_until_pywb_has_answered(broken: Broken) -> None:
    proxy, control_api, stand_in = broken
    for reset in (False, True):
        asking = asyncio.create_task(raw(proxy, "/slow"))
        await stand_in.requested.wait()
        before = (await control_api.ledger()).entries
        assert (await control_api.session("default"))["in_flight"] == 1
        if reset:
            await control_api.reset_session()
        stand_in.release.set()
        assert (await asking).endswith(b"0\r\n\r\n")
        assert (await control_api.session("default"))["in_flight"] == 0
        after = (await control_api.ledger()).entries
        assert [entry.tier for entry in after] == ([] if reset else [*before, "pywb"])
        stand_in.requested.clear()
        stand_in.release.clear()


async def test_a_tunnel_outlives_its_session_and_gets_nothing_more(broken: Broken) -> None:
    proxy, control_api, _ = broken
    session = await control_api.open_session()
    user = b64encode(f"{session.id}:".encode()).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
    writer.write(render_request("CONNECT", "plain.example:80", (("Proxy-Authorization", f"Basic {user}"),)))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    await control_api.close_session(session.id)
    writer.write(render_request("GET", "/whole", (("Host", "plain.example"),)))
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 407 ")
    writer.close()
    await writer.wait_closed()


async def test_who_sends_much_while_events_are_passed_on_is_cut_off(broken: Broken) -> None:
    proxy, _, _ = broken
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.rpartition(":")[2]))
    fields = (("Host", "shop.example"), ("Accept", "text/event-stream"))
    writer.write(render_request("GET", EVENTS, fields))
    assert (await reader.readuntil(EVENT)).startswith(b"HTTP/1.1 200 ")
    writer.write(bytes(1 << 20))
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 10)
    writer.transport.abort()


async def test_a_refusal_arrives_at_who_is_still_sending(broken: Broken) -> None:
    proxy, _, _ = broken
    port = int(proxy.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"nonsense\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    writer.write(bytes(1 << 20))  # were it closed, this would be answered by a reset
    await writer.drain()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.write(bytes(1 << 20))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_the_front_reports_of_a_client_that_does_not_trust_the_ca(
    broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, control_api, _ = broken
    await asyncio.to_thread(distrust, proxy)
    assert (await control_api.info()).backend == "native"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "TLS with a client failed: it does not trust the CA (stillweb certs trust)"
    ]


async def test_why_the_server_behind_does_not_start_is_said(tmp_path: Path) -> None:
    record(tmp_path / "collections")
    collection = Collection.open(tmp_path / "collections", "shop")
    ensure_sealed(collection)
    ca = CertAuthority.init(tmp_path / "certs")
    with pytest.raises(UsageError, match="cannot be written"):
        await Hermetic.start([collection], ca, HermeticOptions(ledger=tmp_path))
    (collection.pack / "manifest.json").write_text("{}")
    with pytest.raises(MalformedPack, match=r"manifest\.json.*does not match the sha256"):
        await Hermetic.start([collection], ca, HermeticOptions())


async def test_a_body_that_stalls_is_given_up() -> None:
    over = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWERS["/cut"])
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # until the other side gives up
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(stall, "127.0.0.1", 0) as server:
        connection = await Loopback.open(server.sockets[0].getsockname()[1])
        head = await connection.ask(render_request("GET", "/", (("Host", "a.example"),)))
        body = connection.body(head, "GET")
        assert await anext(body) == b"half"
        connection.read_timeout = 0.05
        with pytest.raises(ReplayUnreachable, match="TimeoutError"):
            await anext(body)
        connection.close()
        await over.wait()


async def test_no_one_there_is_said() -> None:
    with socket.socket() as no_one:
        no_one.bind(("127.0.0.1", 0))
        with pytest.raises(ReplayUnreachable, match="failed"):
            await Loopback.open(no_one.getsockname()[1])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--on-miss", "pywb", "--backend", "pywb"],
        ["--on-miss", "pywb", "--pywb-fuzzy"],
        ["--on-miss", "live"],
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["replay", "shop", *arguments, "--collections", str(tmp_path)])
    assert result.exit_code == 2
