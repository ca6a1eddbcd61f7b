"""The ledger while a server runs, after a session, after the server; and the file of misses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.collections.baselines import Absences
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed, Sighting, read_misses
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError, UsageError
from stillweb.http.control import LedgerEntry
from stillweb.matching.keys import request_key
from stillweb.model import Exchange, Request, Response
from stillweb.polling import poll
from stillweb.replay import (
    ReplayClient,
    ReplayOptions,
    ReplayServer,
    ensure_sealed,
    serve,
    serve_cluster,
)
from stillweb.replay.ledger.file import LedgerFile, LedgerFileReader, LedgerLine
from stillweb.replay.ledger.misses import gather_misses
from stillweb.replay.ledger.session import BODIES, BODY, ClosedSessions, SessionLedger
from stillweb.replay.ledger.source import FileSource, ServerSource, follow

SHOP = "https://shop.example"


def line(seq: int, tier: str, url: str, session: str = "s1", **more: Any) -> LedgerLine:
    entry = LedgerEntry(seq, more.pop("method", "GET"), url, 404, tier, "nothing of it", 0, 0.1, **more)
    return LedgerLine(session, "shop", "e1", entry)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pack]:
    target = tmp_path_factory.mktemp("shop") / "pack"
    page = Response(200, "OK", (("Content-Type", "text/html"),), b"<title>Shop</title>")
    entry = PackEntry(request_key("GET", f"{SHOP}/"), "GET", f"{SHOP}/", "20260101000000", page)
    build_pack([entry], {"name": "shop"}, target)
    with Pack.open(target) as pack:
        yield pack


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
async def server(pack: Pack, ca: CertAuthority, file: Path) -> AsyncIterator[ReplayServer]:
    options = ReplayOptions(port=0, session_ports=None, drain=1, ledger=file)
    async with serve({"shop": pack}, ca, options) as server:
        yield server


def browser(proxy: str, ca: CertAuthority) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=20)


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["replay", *arguments])
    assert result.exit_code == 0, result.exception
    return result.stdout


async def invoke(*arguments: str) -> str:
    return await asyncio.to_thread(output_of, *arguments)


async def test_a_closed_session_keeps_its_ledger_and_is_lost_to_who_works_with_it(
    server: ReplayServer, ca: CertAuthority
) -> None:
    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        async with browser(session.proxy, ca) as web:
            await web.get(f"{SHOP}/")
            await web.get(f"{SHOP}/none")
        await control_api.close_session(session.id)

        assert session.id not in [each["id"] for each in await control_api.sessions()]
        (closed,) = await control_api.closed_sessions()
        assert (closed["id"], closed["closed"], closed["counts"]) == (
            session.id,
            True,
            {"exact": 1, "miss": 1},
        )
        with pytest.raises(UsageError, match="is closed"):
            await control_api.ledger(session.id)
        with pytest.raises(UsageError, match="no session"):
            await control_api.session(session.id)
        with pytest.raises(UsageError):
            await control_api.reset_session(session.id)
        ledger = await control_api.ledger(session.id, closed=True)
        assert [entry.url for entry in ledger.misses] == [f"{SHOP}/none"]
        assert [
            entry.seq for entry in (await control_api.ledger(session.id, after=1, closed=True)).entries
        ] == [2]

    shown = await invoke("misses", server.url, "--json")
    assert [json.loads(each)["first"]["session"] for each in shown.splitlines()] == [session.id]


async def test_a_miss_keeps_what_asks_for_it_again_and_no_secret(
    server: ReplayServer, ca: CertAuthority, pack: Pack
) -> None:
    body = b'{"query":"{cart}"}'
    async with browser(server.url, ca) as web, ReplayClient(server.url) as control_api:
        fields = {
            "Content-Type": "application/json",
            "X-Requested-With": "XMLHttpRequest",
            "HX-Request": "true",
            "Cookie": "sid=secret",
            "Authorization": "Bearer secret",
            "X-Csrf-Token": "secret",
            "Referer": f"{SHOP}/",
        }
        await web.get(f"{SHOP}/", headers={"Sec-Fetch-Dest": "document"})
        await web.post(f"{SHOP}/graphql", content=body, headers=fields)
        hit, miss = (await control_api.ledger()).entries
        assert hit.asked is None
        assert miss.asked is not None
        assert miss.asked["body"] == b64encode(body).decode()
        assert "secret" not in json.dumps(miss.asked)
        assert {name for name, _ in miss.asked["fields"]} == {
            *("accept", "content-type", "x-requested-with", "hx-request"),
        }
    (missed,) = [
        Missed.from_dict(json.loads(each))
        for each in (await invoke("misses", server.url, "--json")).splitlines()
    ]
    assert missed.first == Sighting("default", 2, f"{SHOP}/", f"{SHOP}/")
    assert missed.request() == Request("POST", f"{SHOP}/graphql", missed.fields, body)
    assert (missed.collection, missed.environment_id) == ("shop", pack.environment_id)


def test_bodies_are_stored_up_to_a_size_and_in_all_up_to_another() -> None:
    ledger = SessionLedger()
    large = Request("POST", f"{SHOP}/", (), b"x" * (BODY + 1))
    stored = ledger.describe_request(large)
    assert "body" not in stored
    assert (stored["size"], stored["digest"]) == (BODY + 1, f"sha256:{sha256(large.raw_body).hexdigest()}")
    assert ledger.describe_request(Request("GET", f"{SHOP}/")) == {"fields": []}
    largest = Request("POST", f"{SHOP}/", (), b"x" * BODY)
    held = ["body" in ledger.describe_request(largest) for _ in range(BODIES // BODY - 1)]
    assert all(held)
    assert "body" in ledger.describe_request(Request("POST", f"{SHOP}/", (), b"x" * (BODY - 2)))
    assert "body" not in ledger.describe_request(Request("POST", f"{SHOP}/", (), b"xyz"))
    assert "body" in ledger.describe_request(Request("POST", f"{SHOP}/", (), b"xy"))


def test_closed_sessions_are_forgotten_oldest_first_but_for_the_last() -> None:
    closed = ClosedSessions(limit=50_000)
    entry = LedgerEntry(1, "GET", f"{SHOP}/", 404, "miss", "x" * 4_000, 0, 0.1)
    for name, count in (("a", 4), ("b", 4), ("c", 4), ("d", 40)):
        ledger = SessionLedger()
        for seq in range(1, count + 1):
            ledger.add(replace(entry, seq=seq))
        closed.add({"id": name}, ledger)
        known = [each["id"] for each in closed.sessions()]
        assert known == {"a": ["a"], "b": ["a", "b"], "c": ["b", "c"], "d": ["d"]}[name]
    assert closed.ledger("a") is None
    last = closed.ledger("d", after=30)
    assert last is not None
    assert (len(last.entries), last.closed) == (10, True)


def test_a_file_of_a_server_that_was_killed_within_a_line(file: Path) -> None:
    first, second, third = (line(seq, "miss", f"{SHOP}/{seq}") for seq in (1, 2, 3))
    file.write_text(first.to_json() + second.to_json()[:-30])
    source = FileSource(str(file))
    assert asyncio.run(source.new()) == [first]
    assert "ends in the middle of a line" in source.warning
    with LedgerFile(file):  # the server is started again
        pass
    with file.open("a") as later:
        later.write(third.to_json())
    assert asyncio.run(source.new()) == [third]
    assert source.warning.endswith("1 lines are not ledger entries; skipped")

    reader = LedgerFileReader(file)
    assert list(reader.read()) == [first, third]
    assert list(reader.read()) == []


def test_several_files_and_their_filters(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    blog = replace(line(1, "miss", "https://blog.example/"), collection="blog")
    file.write_text(line(1, "exact", f"{SHOP}/").to_json() + line(2, "miss", f"{SHOP}/x").to_json())
    other.write_text(blog.to_json() + line(1, "miss", f"{SHOP}/x", "s2").to_json())
    both = (str(file), str(other))

    def urls(*arguments: str) -> list[str]:
        return [json.loads(each)["url"] for each in output_of(*arguments, *both, "--json").splitlines()]

    assert urls("ledger") == [f"{SHOP}/", f"{SHOP}/x", "https://blog.example/", f"{SHOP}/x"]
    assert urls("ledger", "--tier", "exact") == [f"{SHOP}/"]
    assert urls("ledger", "--session", "s2") == [f"{SHOP}/x"]
    assert urls("misses", "--collection", "blog") == ["https://blog.example/"]
    assert urls("misses") == [f"{SHOP}/x", "https://blog.example/"]  # the one seen twice first
    printed = output_of("ledger", str(file), "--json")
    assert printed == file.read_text()  # what is printed can be read again


def test_a_source_that_is_not_there_is_said_as_such(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["replay", "misses", str(tmp_path / "no.jsonl")])
    assert isinstance(result.exception, UsageError)
    assert "no.jsonl: cannot be read" in str(result.exception)


def test_equal_misses_are_one_with_its_first_and_last_sighting() -> None:
    page = {"resource": "document"}
    found = gather_misses(
        [
            line(1, "exact", f"{SHOP}/a", **page),
            line(2, "miss", f"{SHOP}/api", referer=f"{SHOP}/"),
            line(3, "noise", f"{SHOP}/favicon.ico"),
            line(4, "miss", f"{SHOP}/once"),
            line(5, "exact", f"{SHOP}/b", **page),
            line(6, "miss", f"{SHOP}/api", referer=f"{SHOP}/b"),
            line(7, "pywb", f"{SHOP}/guessed"),
        ]
    )
    assert [(each.count, each.url) for each in found] == [(2, f"{SHOP}/api"), (1, f"{SHOP}/once")]
    assert found[0].first == Sighting("s1", 2, f"{SHOP}/", f"{SHOP}/a")
    assert found[0].last == Sighting("s1", 6, f"{SHOP}/b", f"{SHOP}/b")
    guesses = gather_misses([line(7, "pywb", f"{SHOP}/guessed"), line(8, "fuzzy", f"{SHOP}/f")], guesses=True)
    assert [each.url for each in guesses] == [f"{SHOP}/guessed", f"{SHOP}/f"]


def test_bodies_and_what_frameworks_ask_by_report_misses_apart() -> None:
    def post(seq: int, digest: str, *fields: tuple[str, str]) -> LedgerLine:
        details = {"fields": [list(field) for field in fields], "size": 1, "digest": digest}
        return line(seq, "miss", f"{SHOP}/api", method="POST", asked=details)

    lines = [post(1, "a"), post(2, "b"), post(3, "a", ("rsc", "1")), post(4, "a", ("accept-language", "de"))]
    assert [each.count for each in gather_misses(lines)] == [2, 1, 1]


def test_the_file_of_misses_has_this_form(tmp_path: Path) -> None:
    details = {
        "fields": [["accept", "*/*"], ["content-type", "application/json"]],
        "size": 2,
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "body": "e30=",
    }
    lines = [
        line(1, "exact", f"{SHOP}/", resource="document"),
        line(
            2, "miss", f"{SHOP}/api?q=ü", method="POST", resource="empty", referer=f"{SHOP}/", asked=details
        ),
    ]
    (missed,) = gather_misses(lines)
    golden = (
        '{"body":"e30=","body_digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",'
        '"body_size":2,"collection":"shop","count":1,"environment_id":"e1","explained":null,'
        '"fields":[["accept","*/*"],["content-type","application/json"]],'
        '"first":{"page":"https://shop.example/","referer":"https://shop.example/","seq":2,"session":"s1"},'
        '"last":{"page":"https://shop.example/","referer":"https://shop.example/","seq":2,"session":"s1"},'
        '"method":"POST","reason":"nothing of it","resource":"empty",'
        '"url":"https://shop.example/api?q=\\u00fc","version":1}\n'
    )
    assert missed.to_line() == golden
    file = tmp_path / "misses.jsonl"
    file.write_text(golden + "\n" + golden.replace('"version":1', '"further":2,"version":1'))
    assert list(read_misses(file)) == [missed, missed]
    assert missed.whole
    assert not replace(missed, body="").whole
    file.write_text(golden + golden.replace('"version":1', '"version":2'))
    with pytest.raises(CollectionError, match="line 2 is not a miss: version 2"):
        list(read_misses(file))


def test_what_the_recording_saw_fail_is_explained(tmp_path: Path) -> None:
    collection = Collection.create(tmp_path / "collections", "shop")
    seen = [("gone", 404, ""), ("broken", 0, "net::ERR_FAILED"), ("fine", 200, ""), ("once", 404, "")]
    for page, extra in (("p1", []), ("p2", [("once", 200, "")])):
        folder = collection.baseline / page
        folder.mkdir(parents=True)
        listed = [
            {"url": f"{SHOP}/{name}", "method": "GET", "type": "fetch", "status": status, "failed": failed}
            for name, status, failed in (*seen, *extra)
        ]
        (folder / "resources.json").write_text(json.dumps(listed))
    absences = Absences(collection)
    why = {name: absences.why("GET", f"{SHOP}/{name}") for name in ("gone", "broken", "fine", "once", "new")}
    assert why == {
        "gone": "recorded with status 404",
        "broken": "failed when it was recorded",
        "fine": "",
        "once": "",  # another page was answered
        "new": "",
    }
    assert absences.why("POST", f"{SHOP}/gone") == ""

    file = tmp_path / "ledger.jsonl"
    file.write_text(line(1, "miss", f"{SHOP}/gone").to_json() + line(2, "miss", f"{SHOP}/new").to_json())
    at = ["--collections", str(tmp_path / "collections")]
    out = tmp_path / "misses.jsonl"
    result = CliRunner().invoke(cli, ["replay", "misses", str(file), *at, "--unexplained", "--out", str(out)])
    assert result.exit_code == 0
    assert [(each.url, each.explained) for each in read_misses(out)] == [(f"{SHOP}/new", "")]
    table = CliRunner().invoke(cli, ["replay", "misses", str(file), *at]).stdout
    assert "recorded with status 404" in table
    missing = CliRunner().invoke(
        cli, ["replay", "misses", str(file), "--collections", str(tmp_path), "--unexplained"]
    )
    assert "no collection 'shop'" in str(missing.exception)


@pytest.mark.parametrize("live", [True, False])
async def test_following_reports_what_comes_of_open_closed_and_reset_sessions(
    server: ReplayServer, ca: CertAuthority, file: Path, live: bool
) -> None:
    source = ServerSource(server.url) if live else FileSource(str(file))
    following = follow([source])

    async def printed(count: int) -> list[tuple[str, int, str]]:
        async with asyncio.timeout(10):
            lines = [await anext(following) for _ in range(count)]
        return [(each.session, each.entry.seq, each.entry.url) for each in lines]

    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        async with browser(session.proxy, ca) as web:
            await web.get(f"{SHOP}/1")
            assert await printed(1) == [(session.id, 1, f"{SHOP}/1")]
            await web.get(f"{SHOP}/2")
            await web.get(f"{SHOP}/3")
            assert await printed(2) == [(session.id, 2, f"{SHOP}/2"), (session.id, 3, f"{SHOP}/3")]
            await control_api.reset_session(session.id)
            await web.get(f"{SHOP}/4")
            assert await printed(1) == [(session.id, 1, f"{SHOP}/4")]
            await web.get(f"{SHOP}/5")
        await control_api.close_session(session.id)
        assert await printed(1) == [(session.id, 2, f"{SHOP}/5")]
        async with browser(server.url, ca) as web:
            await web.get(f"{SHOP}/6")
        assert await printed(1) == [("default", 1, f"{SHOP}/6")]
    await source.aclose()


def test_the_command_follows_a_file_until_it_is_stopped(file: Path) -> None:
    file.write_text(line(1, "miss", f"{SHOP}/1").to_json())
    command = [sys.executable, "-m", "stillweb", "replay", "misses", str(file), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=file.parent) as process:
        assert process.stdout is not None
        for seq in (1, 2, 3):
            missed = Missed.from_dict(json.loads(process.stdout.readline()))
            assert (missed.url, missed.count) == (f"{SHOP}/{seq}", 1)
            with file.open("a") as growing:
                growing.write(line(seq + 1, "miss", f"{SHOP}/{seq + 1}").to_json())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


async def test_what_is_lost_with_its_worker_is_said(tmp_path: Path, ca: CertAuthority) -> None:
    collection = Collection.create(tmp_path, "shop")
    with CollectionWriter(collection) as writer:
        writer.write(Exchange(Request("GET", f"{SHOP}/"), Response(200), "20260101000000"))
    reindex(collection)
    ensure_sealed(collection)
    options = ReplayOptions(port=0, session_ports=None, drain=1)
    async with (
        serve_cluster([collection], ca, options, workers=2) as cluster,
        ReplayClient(cluster.url) as control_api,
    ):
        sessions = [await control_api.open_session() for _ in range(2)]
        source = ServerSource(cluster.url)

        async def ask(path: str) -> list[tuple[str, str]]:
            for session in sessions:
                async with browser(session.proxy, ca) as web:
                    await web.get(SHOP + path)
            return [(line.session, line.entry.url) for line in await source.new()]

        assert sorted(await ask("/1")) == sorted((each.id, f"{SHOP}/1") for each in sessions)
        lost = sessions.pop()
        worker = (await control_api.session(lost.id))["worker"]
        os.kill(cluster.workers[worker].pid, signal.SIGKILL)

        async def is_lost() -> bool:
            return any(each["id"] == lost.id and each["lost"] for each in await control_api.sessions())

        assert await poll(is_lost, timeout=30)
        assert await ask("/2") == [(sessions[0].id, f"{SHOP}/2")]
        assert lost.id in source.warning
        await source.aclose()
