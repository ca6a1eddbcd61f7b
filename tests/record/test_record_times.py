"""Requests that hold the page's time: proved by walks at another time, and answered in later walks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stillweb import clock
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed, Sighting
from stillweb.coverage import CoverageOptions, CoverageResult, WalkRecord, measure_coverage
from stillweb.coverage.times import ShownTimes, TimedPages, prove_opened, prove_times, timed_pages, to_repeat
from stillweb.env import Env
from stillweb.matching.parts import shape_key
from stillweb.matching.rules import Rules
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve

pytestmark = pytest.mark.browser
HOME = "https://site.test/"
OPTIONS = CoverageOptions(agents=("uniform",), seeds=3, steps=8, jobs=3)

PAGE = """<link rel=icon href="data:,"><h1>Runs</h1><output></output>
<button data-hours=1>Hour</button><button data-hours=2>Two hours</button><button data-day=1>Day</button>
<button data-item=1763000000000>Item</button>
<script>
  const show = (query) => fetch('/runs?' + query).then((r) => r.ok ? r.text() : 'missing')
    .then((text) => { document.querySelector('output').textContent = text; });
  const range = (since, until) => show(`since=${since}&until=${until}`);
  const last = (hours) => range(Date.now() - hours * 3600000, Date.now());
  document.onclick = ({target: {dataset: {hours, day, item}}}) =>
    hours ? last(hours) : day ? range(1762905600000, 1762992000000) : item && show(`item=${item}`);
  last(1);
</script>"""


def build(site: Any) -> None:
    site.page("/", PAGE)
    site.page("/favicon.ico", "", status=404)
    site.answers["/runs"] = lambda request: site.reply("3 runs of the last hour")


@asynccontextmanager
async def replayed(collection: Collection, ca: Any) -> AsyncIterator[ReplayClient]:
    await asyncio.to_thread(ensure_sealed, collection)
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        yield client


async def proved(collection: Collection, ca: Any) -> tuple[CoverageResult, int]:
    recorded_at = collection.manifest().recorded_at
    async with replayed(collection, ca) as client:
        result = await measure_coverage(client, "site", [HOME], {"site.test"}, OPTIONS)
        walks = to_repeat(result, recorded_at, read_rules(collection))
        return result, await prove_times(client, collection, {"site.test"}, walks, OPTIONS)


@pytest.mark.timeout(240)
async def test_pages_that_request_the_time_prove_it_without_a_measurement(tmp_path: Path, ca: Any, site: Any):
    build(site)
    site.page("/other", "<p>requests nothing</p>")
    collection = Collection.create(tmp_path, "site")
    await crawl([f"{HOME}other", HOME], collection, ca, CrawlOptions(limit=2, record=site.options))
    timed = timed_pages(collection)
    assert timed.pages == (HOME,)
    assert len(timed.requests) == 1
    async with replayed(collection, ca) as client:
        assert await prove_opened(client, collection, {"site.test"}, timed, OPTIONS) == 2
    rules = [(rule.where, rule.name, rule.shape, rule.path) for rule in read_rules(collection).own]
    assert rules == [("query", "since", "clock", "/runs"), ("query", "until", "clock", "/runs")]
    assert timed_pages(collection) == TimedPages()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proved_site(
    tmp_path_factory: pytest.TempPathFactory, ca: Any, module_site: Any
) -> tuple[Collection, CoverageResult, int]:
    """A recording, the walks on it before it had rules, and the number of the rules that they proved."""
    build(module_site)
    collection = Collection.create(tmp_path_factory.mktemp("times"), "site")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, record=module_site.options))
    return (collection, *await proved(collection, ca))


@pytest.mark.timeout(240)
async def test_walks_at_another_time_prove_the_rules(
    proved_site: tuple[Collection, CoverageResult, int],
) -> None:
    collection, result, count = proved_site
    assert result.miss_rate().failed
    assert count == 2
    tried = {shape_key(miss.request()) for miss in result.misses()}
    assert to_repeat(result, collection.manifest().recorded_at, Rules(), tried) == []
    recorded_at = collection.manifest().recorded_at
    assert to_repeat(result, recorded_at, Rules(), is_shown=ShownTimes(collection, result.misses()).cover)
    rules = [(rule.where, rule.name, rule.shape, rule.path) for rule in read_rules(collection).own]
    assert rules == [("query", "since", "clock", "/runs"), ("query", "until", "clock", "/runs")]


async def test_a_time_that_the_page_contains_needs_no_walk(tmp_path: Path, ca: Any, site: Any) -> None:
    now = round(clock.now().timestamp() * 1000) | 1
    site.page("/", f"<form method=post action='/seen?before={now}'><button>Seen</button></form>")
    collection = Collection.create(tmp_path, "site")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, record=site.options))
    at = Sighting("s", 1, HOME, HOME)
    shown, other = (
        Missed("", "", "POST", f"{HOME}seen?before={time}", at, at, resource="document")
        for time in (now, now + 1002)
    )
    for miss, count in ((shown, 0), (other, 1)):
        result = CoverageResult("site", "", (WalkRecord("uniform", 1, HOME, misses=[miss]),))
        is_shown = ShownTimes(collection, [miss]).cover
        assert len(to_repeat(result, collection.manifest().recorded_at, Rules(), is_shown=is_shown)) == count


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", ["clock", "exact"])
async def test_the_last_hour_is_answered_later_and_no_other_range(
    proved_site: tuple[Collection, CoverageResult, int], ca: Any, level: str
) -> None:
    collection, *_ = proved_site
    misses: dict[str, int] = {}
    async with replayed(collection, ca) as client, Env(client.url, level=level) as env:
        observation, info = await env.reset(url=HOME)
        assert info["traffic"]["missed"] == []
        for name in ("Hour", "Two hours", "Day", "Item", "Hour"):
            await env.step({"action": "wait", "ms": 5000})
            bid = next(node.bid for node in observation.nodes if node.name == name)
            observation, _, _, _, info = await env.step({"action": "click", "bid": bid})
            misses[name] = info["traffic"]["misses"]
        ledger = await client.ledger(info["session"])
    assert misses == {"Hour": 0, "Two hours": 1, "Day": 1, "Item": 1}
    assert [entry.tier for entry in ledger.entries if "/runs" in entry.url] == [
        "exact", "normalised", "miss", "miss", "miss", "normalised"
    ]  # fmt: skip
    reasons = [entry.reason for entry in ledger.entries if entry.tier == "normalised"]
    assert reasons == ["time of the page: query:since, query:until"] * 2


async def test_another_client_gets_no_answer_by_time(
    proved_site: tuple[Collection, CoverageResult, int], ca: Any
) -> None:
    collection, *_ = proved_site
    async with replayed(collection, ca) as client, Env(client.url, level="network") as env:
        _, info = await env.reset(url=HOME)
        ledger = await client.ledger(info["session"])
    (runs,) = (entry for entry in ledger.entries if "/runs" in entry.url)
    assert runs.tier == "miss"
