"""A site explored by a real browser, in two goes; then it is gone, and its map is taken on the replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stillweb import clock
from stillweb.browser import launch
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.reachability import FILE, ReachabilityMap, read_reachability
from stillweb.env.reachability import check_reachability, sample_actions
from stillweb.errors import RecordError
from stillweb.model import Page
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import ExploreEvent, ExploreOptions, ExploreReport, explore
from stillweb.record.explore.values import Values
from stillweb.record.options import ScopeKind
from stillweb.record.reset import SiteReset
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = pytest.mark.browser

HOME = "https://site.test/"
SHOP = """<h1>Shop</h1>
<form action="/search"><fieldset><input name="q" aria-label="Find"><button>Search</button></fieldset></form>
<button onclick="fetch('/more').then(r => r.text()).then(t => { out.innerHTML = t })">More</button>
<div id=out></div>
<input name="s" aria-label="Suggest" oninput="fetch('/suggest?s=' + this.value)">
<a href="/item">Item</a> <a href="/logout">Log out</a> <a href="https://else.test/">Elsewhere</a>"""
ITEM = """<h1>Item</h1><form method="post" action="/basket">
<input type="hidden" name="csrf_token" value="%s"><button name="n" value="1">Add</button></form>"""


def build(site) -> None:
    site.page("/", SHOP)
    home = site.answers["/"]
    site.page("/search", "<h1>Found</h1>")
    site.page("/suggest", "<p>Perhaps</p>")
    site.page("/more", "<h2>More</h2><button>Less</button>")
    site.answers["/item"] = lambda request: replace(
        home, body=(ITEM % clock.new_id().replace("-", "")).encode()
    )
    site.page("/basket", '<h1>Basket</h1><a href="/receipt">Receipt</a>')
    site.page("/receipt", "<h1>Receipt</h1>")
    site.page("/favicon.ico", "")


async def go(collection: Collection, ca, site, budget: int) -> tuple[ExploreReport, list[ExploreEvent]]:
    events: list[ExploreEvent] = []
    values = Values({"q": ("kettle",), "s": ("Ada", "Eve")})
    options = ExploreOptions(budget, values=values, record=site.options)
    scope = Scope.of(ScopeKind.HOST, [HOME])
    return await explore(collection, ca, scope, options, events.append), events


def actions_of(reach: ReachabilityMap) -> set[tuple[str, str]]:
    return {(each.description, each.how) for each in reach.actions.values()}


@pytest.mark.timeout(600)  # some forty acts, each of which waits for a page to settle
async def test_what_an_agent_may_do_is_recorded_and_its_map_holds_in_replay(tmp_path: Path, ca, site) -> None:
    build(site)
    collection = Collection.create(tmp_path, "site")
    collection.write_pages([Page(HOME, "20240506070809")])
    first, events = await go(collection, ca, site, 1)
    assert (first.acts, first.opened, len(events)) == (1, 1, 2)
    assert [capture.url for capture in collection.captures()].count(f"{HOME}item") == 1  # opened only
    with (collection.path / FILE).open("a") as file:
        file.write('{"version": 1, "kind": "act')  # a kill came between

    second, _ = await go(collection, ca, site, 60)
    assert second.acts < 60  # nothing is left to do
    assert second.waiting == 0
    assert second.faults == []
    requests = [(each.method, each.path) for each in site.requests if each.path != "/favicon.ico"]
    paths = {path for method, path in requests if method == "GET"}
    assert {"/search?q=kettle", "/more", "/receipt"} <= paths
    assert {"/suggest?s=Ada", "/suggest?s=Eve"} <= paths  # it asks while it is typed into
    assert requests.count(("POST", "/basket")) == 1
    assert ("GET", "/logout") not in requests
    posted = requests.index(("POST", "/basket"))
    assert requests.index(("GET", "/search?q=kettle")) < posted < requests.index(("GET", "/receipt"))

    reach = read_reachability(collection.path / FILE)
    assert {
        ('click link "Log out"', "destructive"),
        ('click link "Elsewhere"', "outside of the scope"),
        ('click link "Item"', "recorded"),
        ('click button "Add"', "tried"),
        ('click button "More"', "tried"),
    } <= actions_of(reach)
    assert {state.url.removeprefix(HOME) for state in reach.states.values()} >= {
        "",
        "item",
        "basket",
        "receipt",
    }
    assert collection.manifest().state == "complete"

    site.answers.clear()  # the site is no more
    seal(collection)
    wanted = ("submit ", "click button")
    actions = [each for each in sample_actions(reach, 100) if each.description.startswith(wanted)]
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
        launch(spki=ca.spki_hashes()) as browser,
    ):
        checked = await check_reachability(client, browser, "site", reach, actions)
    assert {'click button "Add"', 'click button "More"'} <= {each.description for each in checked}
    assert [each for each in checked if not (each.holds and each.same_state and each.same_next)] == []


async def test_a_collection_without_a_page_in_scope_says_what_to_do(tmp_path: Path, ca, site) -> None:
    collection = Collection.create(tmp_path, "site")
    with pytest.raises(RecordError, match="no page in scope") as caught:
        await go(collection, ca, site, 3)
    assert "--explore" in caught.value.hint


@pytest.mark.timeout(300)
async def test_the_site_is_put_back_before_the_context_after_a_change(tmp_path: Path, ca, site) -> None:
    build(site)
    site.page("/reset", "ok")
    collection = Collection.create(tmp_path, "site")
    collection.write_pages([Page(f"{HOME}item", "20240506070809")])
    options = ExploreOptions(12, links=0, record=site.options, reset=SiteReset(reset_url=f"{HOME}reset"))
    report = await explore(collection, ca, Scope.of(ScopeKind.HOST, [HOME]), options)
    requests = [(each.method, each.path) for each in site.requests]
    assert ("POST", "/basket") in requests
    assert report.uncertain == 0
    assert requests.count(("POST", "/reset")) == report.resets
    without = replace(options, reset=SiteReset())
    collection = Collection.create(tmp_path, "other")
    collection.write_pages([Page(f"{HOME}item", "20240506070809")])
    again = await explore(collection, ca, Scope.of(ScopeKind.HOST, [HOME]), without)
    assert (again.resets, again.uncertain) == (0, report.resets)
