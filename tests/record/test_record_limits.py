"""How much and how fast a crawl records, and that it continues where it was stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from stillweb.cli import cli
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.options import parse_duration, parse_size
from stillweb.record.crawl.crawl import CrawlLimits, CrawlReport, Pace, crawl
from stillweb.record.crawl.scope import Scope
from stillweb.record.options import CrawlOptions
from stillweb.record.recording import collection_to_fill

HOME = "https://site.test/"
PAGES = ["", "a", "b", "c"]


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.floats(0, 5)), max_size=20),
    st.floats(0, 3),
    st.one_of(st.none(), st.floats(10, 600)),
)
def test_a_host_is_left_in_peace_for_the_delay_and_no_longer(
    visits, delay: float, rate: float | None
) -> None:
    pace, now, begun = Pace.of(delay, rate), 0.0, {}
    rest = max(delay, 60 / rate if rate else 0)
    for host, idle in visits:
        now += idle
        wait = pace.wait(host, now)
        assert 0 <= wait <= rest + 1e-9
        now += wait
        assert pace.wait(host, now) <= 1e-9
        if host in begun:
            assert now - begun[host] >= rest - 1e-9
        begun[host] = now
        pace.begin(host, now)


def test_what_a_site_asks_for_counts_if_it_is_slower() -> None:
    pace = Pace.of(1.0, None)
    pace.begin("x", 10.0)

    assert (pace.wait("x", 10.5), pace.wait("x", 10.5, 5.0), pace.wait("x", 10.5, 0.1)) == (0.5, 4.5, 0.5)
    assert pace.wait("y", 10.5, 5.0) == 0


def test_limits_are_named_as_they_were_given() -> None:
    limits = CrawlLimits(seconds=90, size=1000)

    assert limits.reached(89.9, 999) == ""
    assert limits.reached(90, 0) == "--time-limit 90"
    assert limits.reached(0, 1000) == "--size-limit 1000"
    assert (limits.left(100), CrawlLimits().left(1)) == (0.0, None)
    assert CrawlLimits().reached(1e9, 10**12) == ""


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_duration, "90", 90),
        (parse_duration, "1.5h", 5400),
        (parse_size, "2G", 2 << 30),
        (parse_size, "10KiB", 10240),
    ],
)
def test_times_and_sizes_are_written_as_people_do(parse, text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("given", [["--time-limit", "soon"], ["--size-limit", "0"], ["--sitemap", HOME]])
def test_what_is_no_limit_is_reported(tmp_path: Path, given: list[str]) -> None:
    places = ["-c", "x", "--collections", str(tmp_path), "--certs", str(tmp_path / "certs")]

    result = CliRunner().invoke(
        cli, ["record", "crawl", *([HOME] * (given[0] != "--sitemap")), *places, *given]
    )

    assert result.exit_code == 2 or "--sitemap=URL" in str(getattr(result.exception, "hint", ""))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--values", "VALUES"], "--values requires --explore"),
        (["--explore-alike", "3"], "--explore-alike requires --explore"),
        (["--read-only"], "--read-only requires --explore"),
        (["--keep-second"], "--keep-second requires --twice"),
        (["--explore", "2", "--read-only", "--destructive"], "--read-only and --destructive contradict"),
        (["--keep-secrets", "--redact", "pin"], "--redact and --keep-secrets contradict"),
        (["--redact", "Pin", "--no-redact", "pin"], "'Pin' is given to both --redact and --no-redact"),
        (["--locale", "!!"], "'!!' is not a language tag"),
    ],
)
def test_options_that_would_say_nothing_are_refused(
    tmp_path: Path, site, given: list[str], said: str
) -> None:
    (tmp_path / "values.yaml").write_text("fields: {q: [a]}")
    places = ["-c", "x", "--collections", str(tmp_path), "--certs", str(tmp_path / "certs")]
    given = [each.replace("VALUES", str(tmp_path / "values.yaml")) for each in given]

    result = CliRunner().invoke(cli, ["record", "crawl", HOME, *places, "--resolve", site.resolve, *given])

    assert said in f"{result.exception}{result.output}"
    assert site.requests == []
    assert not (tmp_path / "x").exists()


def test_values_that_are_none_are_reported_before_anything_is_recorded(tmp_path: Path, site) -> None:
    (tmp_path / "values.yaml").write_text("[a, b")
    places = ["-c", "x", "--collections", str(tmp_path), "--certs", str(tmp_path / "certs")]
    given = [*places, "--explore", "2", "--values", str(tmp_path / "values.yaml"), "--resolve", site.resolve]

    result = CliRunner().invoke(cli, ["record", "crawl", HOME, *given])

    assert isinstance(result.exception, UsageError)
    assert "values.yaml" in str(result.exception)
    assert site.requests == []
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("page", [], ["https://site.test/d/e", "https://site.test/"]),
        ("prefix", ["https://site.test/d/e"], ["https://site.test/", "http://site.test/d/e"]),
        ("host", ["http://site.test:81/"], ["https://a.site.test/"]),
        ("domain", ["https://a.site.test/"], ["https://notsite.test/", "https://test/"]),
    ],
)
def test_scopes_and_patterns(kind: str, inside: list[str], outside: list[str]) -> None:
    seed = "https://site.test/d/f"
    scope = Scope.of(kind, [seed])
    but = Scope.of(kind, [seed], include=["site"], exclude=["e$", r"a\.site", ":81"])

    assert all(scope.contains(url) for url in [seed, *inside])
    assert not any(scope.contains(url) for url in outside)
    assert but.contains(seed)
    assert not any(but.contains(url) for url in inside)


def build(site) -> None:
    links = "".join(f'<a href="/{path}">x</a>' for path in PAGES)
    for path in PAGES:
        site.page(f"/{path}", f'<link rel=stylesheet href="/s.css?{path}">{links}<p>{"x" * 1000}')
    site.page("/s.css", "", type="text/css")


async def record(folder: Path, ca, site, *, append: bool = False, **options) -> CrawlReport:
    options = {"record": site.options, "jobs": 1, "behaviors": frozenset()} | options
    with collection_to_fill(folder, "site", append=append) as collection:
        return await crawl([HOME], collection, ca, CrawlOptions(**options))


@pytest.mark.browser
@pytest.mark.parametrize(
    ("limit", "name"),
    [
        ({"limit": 2}, "--limit 2"),
        ({"size_limit": 1500}, "--size-limit 1500"),
        ({"time_limit": 0.2}, "--time-limit 0.2"),
    ],
)
async def test_a_limit_ends_a_crawl_cleanly_and_it_continues(
    tmp_path: Path, ca, site, limit: dict[str, float], name: str
) -> None:
    build(site)

    before = await record(tmp_path, ca, site, **limit)

    collection = Collection.open(tmp_path, "site")
    stopped = collection.manifest()
    state = "complete" if "limit" in limit else "partial"  # as many pages as were wanted
    assert (before.stopped, stopped.state, stopped.extra["stopped"]) == (name, state, name)
    assert 1 <= len(before.pages) < len(PAGES)
    assert check(collection) == []

    after = await record(tmp_path, ca, site, append=True)

    assert [page.url.removeprefix(HOME) for page in after.pages] == PAGES
    ended = collection.manifest()
    assert (after.stopped, ended.state, ended.extra) == ("", "complete", {})


@pytest.mark.browser
async def test_sitemap_and_robots_txt_say_what_else_is_visited_and_what_is_not(
    tmp_path: Path, ca, site
) -> None:
    build(site)
    site.page("/only-listed", "x")
    site.page("/robots.txt", "", type="text/plain")
    site.answers["/robots.txt"].body = f"User-agent: *\nDisallow: /b\nSitemap: {HOME}map.txt".encode()
    site.page("/map.txt", "", type="text/plain")
    site.answers["/map.txt"].body = f"{HOME}only-listed\n{HOME}b\nhttps://else.test/".encode()

    report = await record(tmp_path, ca, site, sitemap="", robots=True, limit=4)

    assert [page.url.removeprefix(HOME) for page in report.pages] == ["", "only-listed", "a", "c"]
    assert report.forbidden == [HOME + "b"]
    assert "/b" not in {request.path for request in site.requests}
    recorded = {capture.url for capture in Collection.open(tmp_path, "site").captures()}
    assert not {HOME + "robots.txt", HOME + "map.txt"} & recorded


@pytest.mark.browser
@pytest.mark.parametrize("moment", [2, 7])
def test_a_crawl_that_was_killed_leaves_valid_files_and_continues_to_the_same(
    tmp_path: Path, site, moment: int
) -> None:
    build(site)
    places = ["-c", "site", "--collections", str(tmp_path / "c"), "--certs", str(tmp_path / "certs")]
    reach = ["--resolve", site.resolve, "--upstream-ca", str(site.ca_file)]
    command = [sys.executable, "-m", "stillweb", "record", "crawl", HOME, *places, *reach]
    command += ["--behaviors", "none"]
    program = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(site.requests) < moment and program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    program.kill()
    program.wait()
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)  # its browser
    collection = Collection.open(tmp_path / "c", "site")
    assert collection.manifest().extra["stopped"] == "interrupted"
    for path in collection.warc_files():
        with path.open("rb") as file:
            for each in ArchiveIterator(file, check_digests="raise"):
                each.content_stream().read()

    after = CliRunner().invoke(cli, [*command[3:], "--append"])

    assert after.exit_code == 0, after.output
    assert [page.url.removeprefix(HOME) for page in collection.page_list()] == PAGES
    wanted = {HOME + path for path in PAGES} | {f"{HOME}s.css?{path}" for path in PAGES}
    assert {capture.url for capture in collection.captures()} - {HOME + "favicon.ico"} == wanted
    assert collection.manifest().state == "complete"
    assert check(collection) == []
