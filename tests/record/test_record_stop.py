"""Recordings that are stopped, as real programs: what they leave behind is valid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from whole import whole_records

from stillweb.cli import cli
from stillweb.collections.check import check
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError
from stillweb.matching.keys import request_key
from stillweb.model import Exchange, Page, Request, Response
from stillweb.record.amend.amend import AmendOptions, amend
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import ExploreOptions, explore
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.proxy.record import record_proxy
from stillweb.record.recording import begin

pytestmark = pytest.mark.browser

HOME = "https://site.test/"


def command(kind: str, folder: Path, site, *more: str) -> list[str]:
    places = ["--collections", str(folder / "c"), "--certs", str(folder / "certs"), "-c", "site"]
    reach = ["--resolve", site.resolve, "--upstream-ca", str(site.ca_file)]
    return [sys.executable, "-m", "stillweb", "record", kind, *more, *places, *reach]


def resumed(folder: Path, site, *seeds: str) -> Result:
    """Continue a crawl in this process."""
    return CliRunner().invoke(cli, command("crawl", folder, site, *seeds, "--append")[3:])


@contextmanager
def stuck_crawl(folder: Path, site, seed: str = HOME) -> Iterator[subprocess.Popen[str]]:
    """Run a crawl until the page /slow hangs: from HOME on its third; the first two are recorded by then."""
    reached, hold = threading.Event(), threading.Event()
    site.page("/", '<a href="/a">a</a><a href="/slow">slow</a><a href="/b">b</a>')
    site.page("/a", "a")
    site.page("/b", "b")
    site.page("/slow", "", chunks=(b"<p>never ends",), hold=hold)
    slow = site.answers["/slow"]
    site.answers["/slow"] = lambda request: reached.set() or slow
    program = subprocess.Popen(
        command("crawl", folder, site, seed, "--jobs", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not reached.wait(0.1):
            assert program.poll() is None, program.communicate()
        yield program
    finally:
        hold.set()
        if program.poll() is None:
            program.kill()
        program.communicate()


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_stopped_crawl_ends_cleanly_and_says_partial(
    tmp_path: Path, site, number: int, group: bool
) -> None:
    with stuck_crawl(tmp_path, site) as program:
        if group:
            os.killpg(program.pid, number)  # as Ctrl-C at a terminal: the browser gets it, too
        else:
            program.send_signal(number)
        _, errors = program.communicate(timeout=30)

    assert program.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run again with --append to continue" in errors
    collection = Collection.open(tmp_path / "c", "site")
    assert collection.manifest().state == "partial"
    assert [page.url for page in collection.page_list()] == [HOME, HOME + "a"]
    assert check(collection) == []
    assert {HOME, HOME + "a"} <= {capture.url for capture in collection.captures()}


def test_a_killed_crawl_leaves_whole_records_and_can_go_on(tmp_path: Path, site) -> None:
    with stuck_crawl(tmp_path, site) as program:
        program.kill()
        program.communicate(timeout=30)

    collection = Collection.open(tmp_path / "c", "site")
    assert collection.manifest().state == "partial"
    # The list is written the more seldom, the longer it takes.
    assert [page.url for page in collection.page_list()] in ([HOME], [HOME, HOME + "a"])
    records = whole_records(collection)
    assert records.count("response") == records.count("request") >= 2
    assert reindex(collection) == records.count("response")

    site.page("/slow", "ends")
    after = resumed(tmp_path, site, HOME)
    assert after.exit_code == 0, after.output
    assert collection.manifest().state == "complete"
    assert [page.url.removeprefix(HOME) for page in collection.page_list()] == ["", "a", "slow", "b"]
    assert check(collection) == []


async def test_a_collection_is_recorded_by_one_at_a_time(tmp_path: Path, ca, site) -> None:
    with stuck_crawl(tmp_path, site):
        collection = Collection.open(tmp_path / "c", "site")
        archive = {path.name: path.read_bytes() for path in collection.warc_files()}
        scope, reach = Scope.of(ScopeKind.HOST, [HOME]), site.options
        others = (
            crawl([HOME], collection, ca, CrawlOptions(record=reach)),
            record_proxy(collection, ca, reach, lambda _: None, time_limit=0.1),
            explore(collection, ca, scope, ExploreOptions(1, record=reach)),
            amend(collection, [], ca, AmendOptions(record=reach)),
        )
        for other in others:
            with pytest.raises(CollectionError, match="is in use by another recording or repair"):
                await other
        for doing in (["rm", "--yes"], ["check", "--repair"]):
            result = CliRunner().invoke(
                cli, ["collections", *doing, "site", "--collections", str(tmp_path / "c")]
            )
            assert "is in use by another recording or repair" in str(result.exception)
        assert {path.name: path.read_bytes() for path in collection.warc_files()} == archive
        assert collection.manifest().state == "partial"


def test_a_page_under_way_at_a_kill_is_replayed_as_its_second_visit_saw_it(
    tmp_path: Path, site, answer
) -> None:
    visits = count(1)
    site.answers["/new"] = lambda _: answer(b"<p>visit %d</p><script src=/slow></script>" % next(visits))
    with stuck_crawl(tmp_path, site, HOME + "new") as program:
        program.kill()
        program.communicate(timeout=30)

    site.page("/slow", "")
    site.page("/other", "")
    after = resumed(tmp_path, site, HOME + "new", HOME + "other")
    assert after.exit_code == 0, after.output
    collection = Collection.open(tmp_path / "c", "site")
    pages = {page.url: page for page in collection.page_list()}
    assert pages[HOME + "new"].extra["visitedAgain"] == "the crawl was resumed"
    assert "visitedAgain" not in pages[HOME + "other"].extra
    assert sum(capture.url == HOME + "new" for capture in collection.captures()) == 2
    seal(collection)
    with Pack.open(collection.pack) as pack:
        (row,) = pack.lookup(request_key("GET", HOME + "new"))
        assert bytes(pack.entry(row).body).startswith(b"<p>visit 2</p>")
    seen = (collection.baseline / pages[HOME + "new"].baseline / "text.txt").read_text()
    assert "visit 2" in seen


def test_a_crawl_killed_when_its_first_page_was_just_listed_lists_it_once(tmp_path: Path, site) -> None:
    with stuck_crawl(tmp_path, site, HOME + "slow") as program:
        program.kill()
        program.communicate(timeout=30)
    collection = Collection.open(tmp_path / "c", "site")
    # The list is written before the state: this is what a kill between the two leaves.
    collection.write_pages(
        [Page(HOME + "slow", collection.manifest().recorded_at, id="page-0001", status=200)]
    )

    site.page("/slow", "ends")
    after = resumed(tmp_path, site, HOME + "slow")
    assert after.exit_code == 0, after.output
    assert [page.url for page in collection.page_list()] == [HOME + "slow"]


def test_a_site_that_is_down_is_an_error_with_a_hint_and_no_collection(tmp_path: Path, site) -> None:
    result = subprocess.run(
        [*command("crawl", tmp_path, site, HOME), "--resolve", "site.test=127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 1
    assert "https://site.test/ cannot be reached" in result.stderr
    assert "next: " in result.stderr
    assert list((tmp_path / "c").iterdir()) == []


def test_a_proxy_that_nothing_went_through_leaves_no_collection(tmp_path: Path, site) -> None:
    with subprocess.Popen(
        command("proxy", tmp_path, site, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None
        program.stderr.readline()
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=30)

    assert (program.returncode, errors) == (0, "")
    assert "no collection is stored" in out
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(("stopped", "state"), [("", "complete"), ("--limit 2", "partial")])
async def test_the_proxy_repairs_what_a_kill_left_and_finishes_no_crawl(
    tmp_path: Path, ca, site, stopped: str, state: str, replayed: bool
) -> None:
    collection = Collection.create(tmp_path, "site")
    manifest = begin(collection)
    collection.write_manifest(replace(manifest, extra={"stopped": stopped} if stopped else {}))
    with CollectionWriter(collection) as writer:
        for name in ("a", "b"):
            writer.write(Exchange(Request("GET", HOME + name), Response(200, "OK"), "20240506070809"))
    (warc,) = collection.warc_files()
    os.truncate(warc, warc.stat().st_size - 20)
    os.utime(
        warc, (warc.stat().st_atime, collection.index_file.stat().st_mtime + 1)
    )  # a kill leaves the index older
    if replayed:
        seal(collection)  # it makes the index anew, as a replay does
        os.utime(collection.index_file, (warc.stat().st_mtime + 1,) * 2)
    warnings: list[str] = []

    def started(recording) -> None:
        recording.on_warning.append(warnings.append)

    await record_proxy(collection, ca, site.options, started, time_limit=0.1)

    assert [each for each in check(collection) if each.severity == "error"] == []
    assert any(line.startswith("repaired: ") for line in warnings)
    assert [capture.url for capture in collection.captures()] == [HOME + "a"]
    assert collection.manifest().state == state


def test_the_proxy_records_until_ctrl_c(tmp_path: Path, site) -> None:
    site.page("/", "hi")
    with subprocess.Popen(
        command("proxy", tmp_path, site, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None
        said = program.stderr.readline()
        proxy = next(word for word in said.split() if word.startswith("http://")).rstrip(";")
        with httpx.Client(proxy=proxy, verify=False) as client:
            assert client.get(HOME).status_code == 200
        program.send_signal(signal.SIGINT)
        output, errors = program.communicate(timeout=30)

    assert program.returncode == 0, errors
    assert "1 exchanges" in output
    collection = Collection.open(tmp_path / "c", "site")
    assert collection.manifest().state == "complete"
    assert [capture.url for capture in collection.captures()] == [HOME]
    assert check(collection) == []
