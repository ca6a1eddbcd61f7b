"""Hash routes (`#/settings`) are pages of their own: for the crawl, exploring, a comparison and tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.reachability import FILE, read_reachability
from stillweb.diff.compare.run import DiffOptions, diff
from stillweb.env.env import Env
from stillweb.env.tasks.task import Task
from stillweb.record.browsertrix.run import CrawlerJob, plan
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.scope import Scope, page_url
from stillweb.record.explore.explore import ExploreOptions, explore
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.urls import page_address

HOME = "https://site.test/"
APP = """<nav><a href="#/">Start</a> <a href="#/users">Users</a> <a href="#/settings">Settings</a>
<a href="#top">Top</a></nav><main id=main></main><script>
async function show() {
  const route = location.hash.slice(2) || "start";
  const text = await (await fetch("/api/" + route)).text();
  document.title = route;
  main.innerHTML = "<h1>" + route + "</h1>" + text;
}
addEventListener("hashchange", show);
show();
</script>"""


def build(site, answer) -> None:
    site.page("/", APP)
    for name, links in {"start": "", "users": '<a href="#/users/7">Ada</a>', "settings": ""}.items():
        site.answers[f"/api/{name}"] = answer(f"<p>{name}</p>{links}".encode())
    site.answers["/api/users/7"] = answer(b"<p>Ada Lovelace</p>")
    site.page("/favicon.ico", "")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://Site.test#/users", "https://site.test/#/users"),
        ("https://site.test/app?x=1#!/users", "https://site.test/app?x=1#!/users"),
        ("https://site.test/#!users", "https://site.test/#!users"),
        ("https://site.test/#section", "https://site.test/"),
        ("https://site.test/#/", "https://site.test/"),
        ("https://site.test/#", "https://site.test/"),
        ("https://site.test/#:~:text=a", "https://site.test/"),
    ],
)
def test_the_address_of_a_page_has_its_route_and_no_place_in_it(url: str, address: str) -> None:
    assert page_address(url) == address
    assert page_url(url) == address
    assert page_address(address) == address


def test_browsertrix_is_requested_to_keep_routes(tmp_path: Path) -> None:
    settings = plan(CrawlerJob(tmp_path, "app", [HOME, f"{HOME}#/users"], CrawlOptions())).yaml

    assert "url: https://site.test/#/users\n  allowHash: true" in settings
    assert settings.count("allowHash") == 1


@pytest.mark.browser
async def test_given_routes_are_recorded_compared_and_started_from(tmp_path: Path, ca, site, answer) -> None:
    build(site, answer)
    collection = Collection.create(tmp_path, "app")
    seeds = [f"{HOME}#/users", f"{HOME}#/settings", f"{HOME}#top", HOME]
    options = CrawlOptions(scope=ScopeKind.PAGE, record=site.options, behaviors=frozenset())

    report = await crawl(seeds, collection, ca, options)

    titles = {page.url: page.title for page in report.pages}
    assert titles == {f"{HOME}#/users": "users", f"{HOME}#/settings": "settings", HOME: "start"}
    assert report.failed_pages == {}

    site.answers.clear()
    seal(collection)
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        compared = await diff(collection, client, DiffOptions())
        assert {page.url: page.identical for page in compared.pages} == dict.fromkeys(titles, True)
        async with Env(server.url, "app", level="clock", observe=("text",)) as env:
            observation, info = await env.reset(task=Task("settings", "Look.", f"{HOME}#/settings"))
            assert observation.url == f"{HOME}#/settings"
            assert "settings" in (observation.text or "")
            assert info["traffic"]["missed"] == []


@pytest.mark.browser
async def test_a_crawl_follows_links_to_routes(tmp_path: Path, ca, site, answer) -> None:
    build(site, answer)
    collection = Collection.create(tmp_path, "app")

    report = await crawl([HOME], collection, ca, CrawlOptions(record=site.options, behaviors=frozenset()))

    assert [page.url for page in report.pages] == [
        HOME, f"{HOME}#/users", f"{HOME}#/settings", f"{HOME}#/users/7"
    ]  # fmt: skip
    state = json.loads((collection.path / "crawl.json").read_text())
    assert [url for url, *_ in state["queue"]] == [page.url for page in report.pages]


@pytest.mark.browser
@pytest.mark.parametrize("budget", [1, 40])
async def test_exploring_enters_routes_and_opens_those_beyond_its_budget(
    tmp_path: Path, ca, site, answer, budget
) -> None:
    build(site, answer)
    collection = Collection.create(tmp_path, "app")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, record=site.options, behaviors=frozenset()))
    before = {capture.url for capture in collection.captures()}
    assert f"{HOME}api/users" not in before

    options = ExploreOptions(budget, links=10, record=site.options)
    report = await explore(collection, ca, Scope.of(ScopeKind.HOST, [HOME]), options)

    assert report.faults == []
    recorded = {capture.url for capture in collection.captures()}
    assert {f"{HOME}api/{name}" for name in ("start", "users", "settings", "users/7")} <= recorded
    reach = read_reachability(collection.path / FILE)
    if budget > 1:
        entered = {page_address(state.url) for state in reach.states.values()}
        assert {f"{HOME}#/users", f"{HOME}#/settings", f"{HOME}#/users/7"} <= entered
