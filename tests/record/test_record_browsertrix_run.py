"""Whole crawls by a program that behaves as browsertrix does, called as Docker is (`standin/`)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stillweb.clock import monotonic
from stillweb.collections.baselines import read_baseline
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.errors import (
    CollectionError,
    CollectionExists,
    ProgramNotFound,
    RecordError,
    StillwebError,
    UpstreamUnreachable,
    UsageError,
)
from stillweb.record.browsertrix.run import BrowsertrixCrawl, CrawlerJob, plan
from stillweb.record.browsertrix.settings import Container
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.proxy.resolve import parse_all

pytestmark = pytest.mark.shared

STANDIN = Path(__file__).with_name("standin")
SEED = "http://docs.local:8480/tutorial/index.html"
PAGES = 2


@pytest.fixture
def job(shared, tmp_path, monkeypatch):
    """Makes jobs whose Docker runs the stand-in; what `wrong` says goes to it by the environment."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN / "docker.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_RUN", str(tmp_path))
    monkeypatch.setenv("ARCHIVE", str(shared / "archives/browsertrix/docs25.wacz"))

    def make(
        name: str = "docs", *, append: bool = False, silence: float | None = None, **environment: str
    ) -> CrawlerJob:
        words = [word for key, value in environment.items() for word in ("-e", f"{key}={value}")]
        container = Container(program=str(program), arguments=tuple(words))
        options = CrawlOptions(limit=PAGES)
        return CrawlerJob(tmp_path / "collections", name, [SEED], options, container, append, silence)

    return make


def opened(job: CrawlerJob) -> Collection:
    return Collection.open(job.root, job.name)


def stored(job: CrawlerJob) -> dict[str, object]:
    """Return the parts of a collection that must not depend on how often its crawl was stopped."""
    collection = opened(job)
    return {
        "captures": sorted((each.urlkey, each.method, each.digest) for each in collection.captures()),
        "pages": [
            (page.url, page.title, page.seed, page.depth, page.status) for page in collection.page_list()
        ],
        "texts": [read_baseline(collection.baseline / p.baseline).text for p in collection.page_list()],
    }


async def test_a_crawl_becomes_a_collection_with_its_log_and_baselines(job):
    one, events, said = job(), [], []
    report = await BrowsertrixCrawl(one).run(events.append, said.append)
    collection = opened(one)
    assert check(collection) == []
    assert collection.manifest().state == "complete"
    assert [page.seed for page in collection.page_list()] == [True, False]
    assert len(report.pages) == PAGES
    assert [event.pages for event in events if event.url] == [1, 2]
    assert events[-1].body_bytes > 100_000
    logs = [path.read_text() for path in sorted(collection.logs.iterdir())]
    assert any("a line that is no JSON" in text for text in logs)
    assert sorted(path.name for path in one.root.iterdir()) == ["docs"]
    settings = yaml.safe_load((collection.path / "browsertrix/config.yaml").read_text())
    assert settings["seeds"] == [{"url": SEED}]


async def test_what_the_stand_in_says_has_the_form_of_genuine_logs(job, shared):
    def forms(lines):
        found: dict[tuple[str, str], set[str]] = {}
        for entry in map(json.loads, filter(lambda line: line.startswith("{"), lines)):
            message = re.sub(r"\d+|/\S+", "#", entry["message"])
            details = entry["details"] if isinstance(entry["details"], dict) else {}
            found.setdefault((entry["context"], message), set()).update(details)
        return found

    one = job()
    await BrowsertrixCrawl(one).run()
    [transcript] = opened(one).logs.glob("browsertrix-*.log")
    genuine = forms(
        line
        for path in sorted((shared / "archives/browsertrix/logs").glob("*[!l]"))
        for line in path.read_text().splitlines()
    )
    mine = forms(transcript.read_text().splitlines())
    assert set(mine) <= set(genuine)
    assert all(keys <= genuine[form] for form, keys in mine.items())


async def interrupted(job: CrawlerJob, times: int = 1) -> tuple[BrowsertrixCrawl, list[str]]:
    """Run a crawl and stop it when its first page is under way; again when it says that it has heard."""
    crawl = BrowsertrixCrawl(job)
    transcript = job.root / f".browsertrix-{job.name}" / "crawl.log"
    running = asyncio.create_task(crawl.run(lambda event: None))
    for number in range(times):
        word, deadline = "received..." if number else "Awaiting page load", monotonic() + 30
        while not transcript.exists() or transcript.read_text().count(word) < max(number, 1):
            assert monotonic() < deadline
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
        crawl.interrupt()
    report = await running
    return crawl, [page.url for page in report.pages]


async def test_a_stopped_crawl_is_partial_and_continues_to_the_same_end(job):
    _, first = await interrupted(job(HOLD="1"))
    assert len(first) == 1
    manifest = opened(job()).manifest()
    assert (manifest.state, manifest.extra["stopped"]) == ("partial", "a signal")
    await BrowsertrixCrawl(job(append=True)).run()
    await BrowsertrixCrawl(job("whole")).run()
    assert opened(job()).manifest().state == "complete"
    assert "stopped" not in opened(job()).manifest().extra
    assert stored(job()) == stored(job("whole"))
    assert check(opened(job())) == []


async def test_a_state_is_that_of_its_seeds_alone(job):
    await interrupted(job(HOLD="1"))
    same, other = job(append=True), replace(job(append=True), seeds=["http://docs.local:8480/"])
    assert "finished" in plan(same).yaml
    assert "finished" not in plan(other).yaml
    (opened(same).path / "browsertrix/state.yaml").write_text("state: [")
    with pytest.raises(CollectionError, match="malformed crawl state") as caught:
        plan(same)
    assert "state.yaml" in caught.value.hint


async def test_a_second_signal_costs_the_package_and_not_what_was_recorded(job):
    crawl, pages = await interrupted(job(HOLD="1", SIGNALS="2"), 2)
    assert crawl.interrupted == 2
    assert len(pages) == 1
    assert opened(job()).manifest().state == "partial"
    await BrowsertrixCrawl(job(append=True)).run()
    assert len(opened(job()).page_list()) == PAGES


async def test_a_third_signal_kills_it_and_whole_pages_are_stored(job):
    _, pages = await interrupted(job(HOLD="1", SIGNALS="99"), 3)
    assert len(pages) == 1
    assert check(opened(job())) == []
    assert opened(job()).manifest().state == "partial"


ENDS = {
    "timelimit": (None, "", "the limit of time", 1),
    "sizelimit": (None, "", "the limit of size", 1),
    "space": (RecordError, "the disk is full", "the disk is full", 1),
    "crashed": (RecordError, "its browser crashed", "its browser crashed", 1),
    "badurl": (UsageError, "No valid seeds", "", 0),
    "refusedseed": (UpstreamUnreachable, "net::ERR_CONNECTION_REFUSED", "", 0),
    "faillimit": (RecordError, "Failed threshold reached", "", 0),
    "noname": (UpstreamUnreachable, "Page Load Aborted: DNS Error", "", 0),
    "nopage": (UpstreamUnreachable, "net::ERR_CONNECTION_REFUSED", "", 0),
}


@pytest.mark.parametrize("end", ENDS)
async def test_each_end_keeps_what_was_recorded_and_says_what_happened(job, end):
    error, words, stopped, pages = ENDS[end]
    one, said = job(END=end), []
    raised: StillwebError | None = None
    try:
        await BrowsertrixCrawl(one).run(say=said.append)
    except StillwebError as caught:
        raised = caught
    assert (type(raised) if raised else None) is error
    assert words in str(raised or "")
    if pages:
        manifest = opened(one).manifest()
        assert (manifest.state, manifest.extra["stopped"]) == ("partial", stopped)
        assert len(opened(one).page_list()) == pages
        state = yaml.safe_load((opened(one).path / "browsertrix/state.yaml").read_text())
        assert len(state["state"]["finished"]) == 1
    else:
        # Only the log is left, and the message names it.
        assert [path.name for path in one.root.iterdir()] == [".browsertrix-docs.log"]
        assert said[-1].endswith(".browsertrix-docs.log")


async def test_a_crawler_that_only_waits_for_its_store_is_given_up(job):
    crawl = BrowsertrixCrawl(job(END="redis", silence=1.0))
    with pytest.raises(RecordError, match="it was killed after 1 s"):
        await crawl.run()
    assert crawl.log.pages == 0
    crawl.log.feed('{"logLevel":"warn","context":"state","message":"Waiting for redis at redis://localhost"}')
    assert crawl.log.waiting


async def cancelled(job: CrawlerJob) -> None:
    """Run a crawl and cancel it while its first page loads, so that its end is not seen."""
    seen = asyncio.Event()
    running = asyncio.create_task(BrowsertrixCrawl(job).run(lambda event: event.queued and seen.set()))
    async with asyncio.timeout(30):
        await seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_a_crawl_left_that_no_one_saw_end_is_taken_in(job):
    await cancelled(job(HOLD="1", SIGNALS="99"))
    with pytest.raises(CollectionExists, match="was interrupted"):
        await BrowsertrixCrawl(job()).run()
    said: list[str] = []
    await BrowsertrixCrawl(job(append=True)).run(say=said.append)
    assert "importing the output of an earlier crawl" in said
    assert len(opened(job()).page_list()) == PAGES


async def test_pages_that_failed_without_our_proxy_are_recorded_by_the_next_crawl(job):
    options = CrawlOptions(limit=PAGES, record=RecordOptions(resolve=parse_all(["docs.local=127.0.0.1"])))
    first = replace(job(HOLD="1", SIGNALS="99"), options=options)
    await cancelled(first)
    # The container continued without the proxy. Its last state has each page that it tried then as failed.
    other = SEED.replace("tutorial/index", "whatsnew/changelog")
    failed = json.dumps({"url": other, "seedId": 0, "depth": 1, "retry": 2})
    state = {"finished": [SEED], "queued": [], "pending": [], "failed": [failed], "errors": []}
    crawls = first.root / ".browsertrix-docs/collections/docs/crawls"
    crawls.mkdir()
    (crawls / "20260101000000-docs.yaml").write_text(yaml.safe_dump({"state": state}))
    await BrowsertrixCrawl(replace(job(append=True), options=options)).run()
    assert [page.url for page in opened(first).page_list()] == [SEED, other]
    assert opened(first).manifest().state == "complete"


@pytest.mark.parametrize(
    ("wrong", "error", "words", "hint"),
    [
        ("down", RecordError, "daemon does not respond", "systemctl start docker"),
        ("denied", RecordError, "rejects this user", "usermod"),
        ("unpullable", RecordError, "cannot be pulled: Error response from daemon", "docker pull"),
        ("busy", UsageError, "is running already", "stop"),
    ],
)
async def test_what_is_wrong_with_docker_is_reported_with_the_next_step(
    job, monkeypatch, wrong, error, words, hint
):
    monkeypatch.setenv("FAKE_DOCKER", wrong)
    with pytest.raises(error, match=re.escape(words)) as caught:
        await BrowsertrixCrawl(job()).run()
    assert hint in caught.value.hint


async def test_without_docker_the_next_step_is_another_engine(tmp_path):
    with pytest.raises(ProgramNotFound, match="not installed") as caught:
        await BrowsertrixCrawl(
            CrawlerJob(tmp_path, "x", [SEED], CrawlOptions(), Container(program="no-docker"))
        ).run()
    assert "--engine browser" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


async def test_a_collection_that_is_there_is_not_touched(job):
    await BrowsertrixCrawl(job()).run()
    before = stored(job())
    with pytest.raises(CollectionExists):
        await BrowsertrixCrawl(job()).run()
    assert stored(job()) == before
