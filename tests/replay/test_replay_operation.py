"""Operation of a server: readiness, metrics and log, and its end, with or without draining."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from small_sites import PAGES, browser, recorded

from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.format import BODIES
from stillweb.collections.pack.frames import EVENTSTREAM, WEBSOCKET, socket_key, stream_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.collections.warc.frames import Chunks, Frames, write_chunks, write_frames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.http.controlrouter import ControlResponse
from stillweb.matching.keys import request_key
from stillweb.matching.resolver import Policy
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve
from stillweb.replay.server import runtime, websocket
from stillweb.replay.server.metrics import (
    BOUNDS_MS,
    ReplayMetrics,
    ResponseCounters,
    WorkerMetrics,
    parse_metrics,
)
from stillweb.replay.server.session import Session

BIG = bytes(range(256)) * 4096 * 24  # 24 MiB


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertAuthority:
    return CertAuthority.init(tmp_path_factory.mktemp("place") / "certs")


@pytest.fixture(scope="module")
def place(ca: CertAuthority) -> Path:
    place = ca.folder.parent
    recorded(place / "collections", "shop")
    big = Collection.create(place / "collections", "big")
    with CollectionWriter(big) as writer:
        response = Response(200, "OK", (("Content-Type", "video/mp4"),), BIG)
        writer.write(Exchange(Request("GET", "http://big.example/"), response, "20260101000000"))
    reindex(big)
    ensure_sealed(big)
    return place


@contextmanager
def running(place: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `stillweb replay`; yield its URL and the program."""
    with (
        (place / "log").open("w") as log,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "stillweb", "replay", *arguments),
                *("--json", "--port", "0", "--session-ports", "any"),
            ],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        lines = []
        while (line := program.stdout.readline()) not in ("}\n", ""):
            lines.append(line)
        try:
            assert lines, (place / "log").read_text()
            yield json.loads("".join(lines) + "}")["proxy"], program
        finally:
            program.kill()


def logged(place: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (place / "log").read_text().splitlines() if line.startswith("{")]


@contextmanager
def downloading(url: str) -> Iterator[socket.socket]:
    """A client that has requested more than any buffer holds, and got its first bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.settimeout(30)
        client.connect((host, int(port)))
        client.sendall(b"GET http://big.example/ HTTP/1.1\r\nHost: big.example\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


def rest(client: socket.socket) -> bytes:
    got = bytearray()
    with suppress(ConnectionError):
        while piece := client.recv(1 << 20):
            got += piece
    return bytes(got)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_on_sigterm_answers_at_hand_go_out(place: Path, workers: str) -> None:
    log = ("--log-format", "json", "--log-level", "info")
    with running(place, "big", "--workers", workers, *log) as (url, program), downloading(url) as client:
        program.send_signal(signal.SIGTERM)
        assert rest(client).endswith(BIG)
        assert program.wait(30) == 0
    events = [(line["event"], line.get("answered")) for line in logged(place)]
    assert events[0] == ("replay serves", None)
    ends = {"1": ("replay ends", 1), "2": ("supervisor ends", 1)}
    assert events[-1] == ends[workers]
    assert "answered 1 requests: 1 exact" in (place / "log").read_text()


@pytest.mark.parametrize(("workers", "number"), [("1", signal.SIGTERM), ("2", signal.SIGINT)])
def test_a_second_signal_ends_at_once(place: Path, workers: str, number: signal.Signals) -> None:
    with running(place, "big", "--workers", workers) as (url, program), downloading(url) as client:
        program.send_signal(number)
        # It takes nothing new once it has heard the first one.
        while True:
            with socket.socket() as knock:
                if knock.connect_ex(client.getpeername()):
                    break
        assert program.poll() is None
        program.send_signal(number)
        assert program.wait(3) == 128 + number
        assert len(rest(client)) < len(BIG)


def test_workers_do_not_outlive_their_supervisor(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running(place, "shop", "--workers", "2") as (_, program):
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        assert len(children) == 2
        pidfds = [os.pidfd_open(int(child)) for child in children]
        assert len(list(tmp_path.iterdir())) == 1  # of sockets
        program.kill()
        for pidfd in pidfds:
            assert _ended(pidfd, 10)
            os.close(pidfd)
        assert not list(tmp_path.iterdir())


def _ended(pidfd: int, seconds: float) -> bool:
    import select

    return bool(select.select([pidfd], [], [], seconds)[0])


def test_pywb_has_no_workers(place: Path) -> None:
    for also in (("--backend", "pywb"), ("--on-miss", "pywb")):
        arguments = ["replay", "shop", "--workers", "2", *also, "--collections", str(place / "collections")]
        result = CliRunner().invoke(cli, arguments)
        assert (result.exit_code, "--workers" in result.output) == (2, True)


async def test_health_readiness_and_figures_of_one_server(place: Path, ca: CertAuthority) -> None:
    collections = [Collection.open(place / "collections", name) for name in ("shop", "big")]
    options = ReplayOptions(port=0, session_ports=None)
    async with (
        serve(collections, ca, options) as server,
        ReplayClient(server.url) as control_api,
        httpx.AsyncClient(trust_env=False, base_url=server.url) as web,
    ):
        assert (await web.get("/health")).json() == {"status": "ok"}
        assert (await web.get("/ready")).json() == {"ready": True, "missing": [], "refused": {}}
        session = await control_api.open_session("shop")
        async with browser(session.proxy, ca) as client:
            for path in PAGES:
                await client.get(f"https://shop.example{path}")
            await client.get("https://shop.example/none")
            assert (await control_api.session(session.id))["in_flight"] == 0
            response = await web.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(response.text)
                for sample in family.samples
            }
            assert found["stillweb_requests_total", "exact", "shop"] == len(PAGES)
            assert found["stillweb_requests_total", "miss", "shop"] == 1
            assert found["stillweb_sent_bytes_total", "shop"] == sum(map(len, PAGES.values()))
            assert found["stillweb_answer_seconds_count", "shop"] == len(PAGES) + 1
            assert found["stillweb_answer_seconds_bucket", "+Inf", "shop"] == len(PAGES) + 1
            assert (found["stillweb_sessions", "shop"], found["stillweb_sessions", "big"]) == (2, 0)
            assert found["stillweb_worker_up", "0"] == 1
            assert found["stillweb_pack_damage_total", "shop"] == 0
            assert found["process_resident_memory_bytes",] > 1e7
            assert found["stillweb_connections",] >= 2
        page = await web.get("/metrics", headers={"Origin": "https://evil.example"})
        assert page.status_code == 403


async def test_damage_that_is_found_while_serving_is_counted_and_reported_once(
    place: Path, ca: CertAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    collection = recorded(place / "collections", "damaged")
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        browser(server.url, ca) as web,
    ):
        for file in (collection.root / ".store").glob("*.bodies"):
            body = PAGES["/p3"]
            whole = file.read_bytes()
            if body in whole:
                with file.open("r+b") as segment:  # in place: the server has it mapped
                    segment.seek(whole.index(body))
                    segment.write(b"X")
        for _ in range(2):
            assert (await web.get("https://damaged.example/p3")).status_code == 500
        assert (await web.get("https://damaged.example/p4")).content == PAGES["/p4"]
        assert (await server.figures()).counters["damaged"].damaged == 2
        assert server.totals == {"fault": 2, "exact": 1}
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["pack is damaged"]


def test_damage_of_what_plays_is_an_answer_too(tmp_path: Path) -> None:
    socket_url, url = "wss://a.test/socket", "https://a.test/events"
    stream = Response(200, "OK", (("Content-Type", "text/event-stream"),), b"data: 1\n\n")
    key = stream_key(url, request_key("GET", url), "")
    timing = replace(stream, raw_body=write_chunks(Chunks()) + b"\r\n" + stream.raw_body)
    frames = Response(200, "OK", (), write_frames(Frames()))
    entries = [
        PackEntry.of("GET", url, stream),
        replace(PackEntry.of(EVENTSTREAM, url, timing), key=key),
        replace(PackEntry.of(WEBSOCKET, socket_url, frames), key=socket_key(socket_url)),
    ]
    build_pack(entries, {}, tmp_path / "pack")
    file = tmp_path / "pack" / BODIES
    content = file.read_bytes()
    assert content.count(b"event-stream: 1") == content.count(b'"type":"end"') == 1
    file.write_bytes(content.replace(b"event-stream: 1", b"event-stream: 2").replace(b'"end"', b'"END"'))
    with Pack.open(tmp_path / "pack") as pack:
        session = Session("s", "c", pack, Policy())
        answered = session.begin(Request("GET", url, (("Accept", "text/event-stream"),)))
        shaken = websocket.begin(session, Request("GET", "https://a.test/socket"))
        assert [answered.answer.status, shaken.answer.status] == [500, 500]
        session.finish(answered)
        session.finish(shaken)
        assert (session.in_flight, session.describe()["counts"]) == (0, {"fault": 2})
        assert session.counters.damaged == 2


def test_held_is_what_carries_the_mark_and_nothing_that_names_it(tmp_path: Path) -> None:
    names = (("Access-Control-Expose-Headers", "Stillweb-Miss"), ("Stillweb-Miss", "0-1"))
    build_pack([PackEntry.of("GET", "https://a.test/", Response(200, "OK", names))], {}, tmp_path / "pack")
    wishes = (("Origin", "https://b.test"), ("Access-Control-Request-Method", "GET"))
    with Pack.open(tmp_path / "pack") as pack:
        session = Session("s", "c", pack, Policy())
        session.holds_misses = True
        for request in (
            Request("GET", "https://a.test/"),
            Request(
                "OPTIONS", "https://a.test/", (*wishes, ("Access-Control-Request-Headers", "Stillweb-Miss"))
            ),
            Request("GET", "https://a.test/none"),
        ):
            session.finish(session.begin(request))
        assert (session.in_flight, session.describe()["counts"]) == (1, {"exact": 1, "synthetic": 1})
        assert session.conclude({"mark": "0-3"})
        assert session.in_flight == 0


def test_a_tally_counts_by_duration_and_adds_up() -> None:
    tally, other = ResponseCounters(), ResponseCounters()
    for ms in (0.0, BOUNDS_MS[0], BOUNDS_MS[0] + 0.001, 1e9):
        tally.add("exact", 10, ms)
    other.add("miss", 0, 0.2)
    other.damaged = 1
    tally.add_up(other)
    assert (tally.buckets[0], tally.buckets[1], tally.buckets[-1], sum(tally.buckets)) == (2, 1, 1, 5)
    assert (tally.answers, tally.bytes, tally.damaged) == ({"exact": 4, "miss": 1}, 40, 1)
    figures = ReplayMetrics({"shop": tally}, (WorkerMetrics(2, sessions={"shop": 3}),))
    assert parse_metrics(json.loads(ControlResponse(HTTPStatus.OK, figures).body)) == figures


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_log_line_has_its_facts_in_both_forms() -> None:
    said = {}
    for form in ("text", "json"):
        out = io.StringIO()
        runtime.configure_logging(form, "info", worker=3, stream=out)  # type: ignore[arg-type]
        logging.getLogger("stillweb.x").info(
            "session opened", extra={"session": "abc", "ports": [1, 2], "_foreign": 1}
        )
        logging.getLogger("stillweb.x").debug("a request")
        said[form] = out.getvalue()
    assert said["text"].endswith("INFO stillweb.x [worker 3]: session opened session=abc ports=[1, 2]\n")
    line = json.loads(said["json"])
    assert line.pop("timestamp")
    assert line == {
        "level": "INFO",
        "logger": "stillweb.x",
        "event": "session opened",
        "worker": 3,
        "session": "abc",
        "ports": [1, 2],
    }
