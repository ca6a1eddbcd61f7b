"""Coverage: agents, the miss rate, causes and the report."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stillweb import clock
from stillweb.cli.coverage import print_coverage
from stillweb.cli.record.until import print_until
from stillweb.collections.branches import FormOutcome
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.misses import Missed, Sighting
from stillweb.coverage import (
    AGENTS,
    LEFT_ALONE,
    CoverageResult,
    Round,
    StepRecord,
    UntilOptions,
    UntilReport,
    WalkRecord,
    causes_of,
    closable_rate,
    until,
    url_template,
    walk_agent,
)
from stillweb.coverage.agents import WalkPolicies
from stillweb.coverage.causes import NO_FORMS, Obstacles
from stillweb.coverage.choices import Addresses, UnusedControls, fill_again, opens_view
from stillweb.coverage.measure import CoverageOptions, _Walker
from stillweb.coverage.report import CausePicture, write_report
from stillweb.coverage.rounds import HarvestShare, is_frame, live_share, needs_walks, why_over
from stillweb.errors import UsageError
from stillweb.http.control import Ledger
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.forms.wanted import OwnText
from stillweb.record.options import ScopeKind

URL = "https://site.test/"


@dataclass(frozen=True)
class Node:
    bid: str
    role: str
    name: str = ""
    depth: int = 0
    properties: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Seen:
    nodes: tuple[Node, ...]
    url: str = URL


HELD: dict[str, Any] = {"traffic": {"missed": []}}
PAGE = Seen(
    (
        *(Node("", "heading", "Blue kettles"), Node("a1", "link", "Tea"), Node("a2", "searchbox", "Find")),
        *(Node("a3", "combobox", "Sort", 1), Node("", "option", "Price", 2), Node("", "option", "Name", 2)),
        *(Node("a4", "button", "Go"), Node("a5", "button", "Off", properties=(("disabled", True),))),
    )
)


def actions(agent: str, seed: int, page: Seen = PAGE, steps: int = 60) -> list[dict[str, Any]]:
    walker = walk_agent(agent, URL, seed)
    return [dict(walker.choose(page, HELD)) for _ in range(steps)]


@pytest.mark.parametrize("agent", AGENTS)
def test_equal_seeds_walk_equally_and_others_otherwise(agent):
    assert actions(agent, 3) == actions(agent, 3)
    assert len({json.dumps(actions(agent, seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("agent", AGENTS)
def test_no_agent_acts_on_what_is_disabled_and_each_returns_from_a_page_that_is_missing(agent):
    assert all(action.get("bid") != "a5" for action in actions(agent, 1))
    walker = walk_agent(agent, URL, 1)
    gone = Seen((), "https://site.test/gone")
    assert walker.choose(gone, HELD) == {"action": "back"}
    assert walker.choose(gone, HELD) == {"action": "goto", "url": URL}
    missed = {"traffic": {"missed": [f"GET {URL}"]}}
    assert walker.choose(PAGE, missed) == {"action": "back"}


def test_the_uniform_agent_takes_every_element_and_types_what_the_page_says():
    found = actions("uniform", 1, steps=400)
    assert {action.get("bid") for action in found} >= {"a1", "a2", "a3", "a4"}
    assert {
        action["value"] for action in found if action.get("bid") == "a3" and action["action"] == "select"
    } == {
        "Price",
        "Name",
    }
    typed = {action["value"] for action in found if action["action"] == "fill"}
    assert typed <= {"Blue", "kettles", "Blue kettles", "Tea", "Find", "Sort", "Price", "Name"} | {"Off"}
    assert {"Blue", "Blue kettles"} <= typed


def test_the_form_agent_sends_what_it_has_filled():
    found = actions("forms", 2)
    after = [two for one, two in pairwise(found) if one["action"] == "fill"]
    assert {"action": "click", "bid": "a4"} in after


def test_an_unknown_agent_is_refused_with_the_names_of_the_others():
    with pytest.raises(UsageError, match="no coverage agent") as raised:
        walk_agent("nosuch", URL, 1)
    assert "uniform" in raised.value.hint
    with pytest.raises(UsageError, match="no coverage agent"):
        WalkPolicies(("uniform", "nosuch"), {})
    with pytest.raises(UsageError, match="agent-option"):
        WalkPolicies(("uniform",), {"model": "m"})


@pytest.mark.parametrize(
    ("url", "template"),
    [
        ("https://a.test/item/17/buy", "https://a.test/item/{}/buy"),
        ("https://a.test/find?q=tea&page=2", "https://a.test/find?page={}&q={}"),
        ("https://a.test/", "https://a.test/"),
        ("https://a.test/#/items/17/edit?tab=2", "https://a.test/#/items/{}/edit?tab={}"),
        ("https://a.test/#place", "https://a.test/"),
        ("https://a.test/x.ejs?0.7444048130996463", "https://a.test/x.ejs?{}"),
        ("https://a.test/doku.php?export", "https://a.test/doku.php?export"),
    ],
)
def test_templates_leave_out_what_varies(url, template):
    assert url_template(url) == template


def step(number: int, missed: tuple[str, ...] = (), **more: Any) -> StepRecord:
    given = {"requested": True, "left": False, "dead": False, **more}
    return StepRecord(number, URL, {"action": "click", "bid": "a"}, 'link "Next"', missed=missed, **given)


def result(*steps: StepRecord) -> CoverageResult:
    return CoverageResult("site", "e" * 64, (WalkRecord("uniform", 7, URL, list(steps)),))


class SlowSession:
    """A session on a replay whose second step never ends."""

    steps = 0

    async def reset(self, session: int, **_: object) -> tuple[Seen, dict[str, Any]]:
        return PAGE, {"session": "s1", **HELD}

    async def step(self, session: int, action: object) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > 1:
            await asyncio.Event().wait()
        traffic = {"missed": [], "requests": 1, "noise": 0, "misses": 0, "hits": 1}
        return PAGE, 0.0, False, False, {"session": "s1", "traffic": traffic}

    async def ledger(self, session: str, *, closed: bool) -> Ledger:
        return Ledger((), {})

    async def info(self) -> SimpleNamespace:
        return SimpleNamespace(collections={"site": "id"})


async def test_a_walk_whose_step_lasts_longer_than_the_time_keeps_the_steps_before():
    slow: Any = SlowSession()
    options = CoverageOptions(seconds=0.05)
    walker = _Walker(slow, "site", frozenset({"site.test"}), options, WalkPolicies(("uniform",), {}))
    walk = WalkRecord("uniform", 1, URL)
    async with asyncio.timeout(10):
        await walker.walk(slow, 0, walk)
    assert walker.is_over
    assert [step.number for step in walk.steps] == [1]
    assert (walk.error, walk.misses) == ("", [])


@pytest.mark.parametrize(
    ("method", "path", "walks"),
    [
        ("POST", "add", True),
        ("GET", "socket.io/?EIO=4&transport=polling&t=x", True),
        ("GET", "list?transport=bus", False),
    ],
)
def test_live_walks_record_writes_and_connections(method, path, walks):
    nowhere = Sighting("", 0)
    assert needs_walks(Missed("", "", method, URL + path, nowhere, nowhere)) == walks


def test_the_rate_is_of_steps_that_requested_and_stayed():
    found = result(
        step(1),
        step(2, ("GET https://site.test/a",), dead=True),
        step(3, requested=False),
        step(4, left=True),
    )
    assert (found.miss_rate().failed, found.miss_rate().tried) == (1, 2)
    assert found.counts() == {"steps": 4, "requested": 3, "left": 1, "missed": 1, "dead": 1}
    assert found.to_dict()["agents"]["uniform"]["missed"] == 1


def test_causes_are_grouped_with_the_command_that_closes_them():
    found = result(
        step(1, ("GET https://site.test/item/1", "GET https://site.test/item/1.json")),
        step(2, ("GET https://site.test/item/2",)),
        step(3, ("POST https://site.test/buy/2",)),
    )
    causes = causes_of(found)
    assert [(cause.steps, cause.method, cause.template) for cause in causes] == [
        (2, "GET", "https://site.test/item/{}"),
        (1, "POST", "https://site.test/buy/{}"),
    ]
    assert causes[0].command == "stillweb record harvest site"
    assert causes[0].example == ("uniform", 7, 1)
    assert any("--unsafe" in cause.command for cause in causes)


def test_a_request_that_holds_the_time_of_the_visit_is_reported_as_such():
    seen = Sighting("s", 1, page=URL)
    kind = (("content-type", "application/json"),)

    def timed(text: str) -> bool:
        body = json.dumps({"runs": {"before_": text}, "limit": 9}).encode()
        packed = b64encode(body).decode()
        miss = Missed("site", "e", "POST", f"{URL}runs/filter", seen, seen, kind, packed, len(body))
        found = result(step(1, (f"POST {URL}runs/filter",)))
        found.walks[0].misses.append(miss)
        (cause,) = causes_of(found, recorded_at="20261126113343")
        assert cause.timed == ("stillweb collections learn site --with again" in cause.command)
        assert cause.timed == Obstacles(Scope.of(ScopeKind.HOST, [URL])).why(cause).startswith("it holds the")
        return cause.timed

    assert timed("2026-11-26T11:34:12.000Z")
    assert not timed("2026-11-26T11:34:00.000Z")  # visitors choose full minutes
    assert not timed("2024-01-01T11:34:12.000Z")
    for name, is_time in (("until", True), ("_", False)):  # strict matching leaves cache-busters out
        url = f"{URL}rows?{name}=1795692852345&page=2"
        found = result(step(1, (f"GET {url}",)))
        found.walks[0].misses.append(Missed("site", "e", "GET", url, seen, seen))
        assert causes_of(found, recorded_at="20261126113343")[0].timed == is_time


def test_what_the_recorder_leaves_alone_is_reported_from_what_a_recording_can_close():
    logout = StepRecord(
        *(1, URL, {"action": "click", "bid": "a"}, 'link "Log out"'),
        **{"requested": True, "left": False, "dead": False, "missed": ("GET https://site.test/end",)},
    )
    found = result(logout, step(2), step(3, ("GET https://site.test/a",)))
    assert found.miss_rate().failed == 2
    closable = closable_rate(found, AvoidRules.of())
    assert (closable.failed, closable.tried) == (1, 2)
    assert sorted(cause.command for cause in causes_of(found)) == [LEFT_ALONE, "stillweb record harvest site"]
    assert closable_rate(found, AvoidRules.of(destructive=True)).failed == 2


@pytest.mark.parametrize(
    ("reason", "fills", "why", "command"),
    [
        ("recorded with another Authorization", True, "recorded with another Authorization", NO_FORMS),
        (
            "recorded with another Authorization",
            False,
            "recorded with another Authorization",
            "stillweb diff site",
        ),
        ("recorded with POST only", False, "", "stillweb record harvest site"),
    ],
)
def test_a_request_that_is_recorded_with_another_field_says_so(reason, fills, why, command):
    url, seen = "https://site.test/api/me", Sighting("s1", 1)
    typing = StepRecord(1, URL, {"action": "fill", "value": "ann"}, 'textbox "Name"', False, False, False)
    pressed = replace(step(2, (f"GET {url}",)), action={"action": "press"} if fills else {"action": "click"})
    miss = Missed("site", "e" * 64, "GET", url, seen, seen, reason=reason)
    walk = WalkRecord("uniform", 7, URL, [typing, pressed], [miss])
    cause = causes_of(CoverageResult("site", "e" * 64, (walk,)))[0]
    assert (cause.why, cause.command) == (why, command)
    obstacles = Obstacles(Scope.of(ScopeKind.HOST, [URL]))
    assert obstacles.why(cause) == (why or "seen in the last measurement for the first time")


def test_the_report_shows_rates_causes_and_pictures_and_escapes_what_pages_say(tmp_path):
    found = result(step(1, ("GET https://site.test/<script>alert(1)</script>",)))
    picture = CausePicture(b"png", 100, 50, (10, 5, 20, 10))
    text = write_report(found, causes_of(found), {0: picture}, tmp_path).read_text()
    assert "100.0 %" in text
    assert "<script>" not in text
    assert "left:10.0%;top:10.0%;width:20.0%" in text
    assert "default-src 'none'" in text


def test_a_measurement_without_a_requesting_step_shows_no_rate(tmp_path, capsys):
    nothing = result(step(1, requested=False))
    text = write_report(nothing, [], {}, tmp_path).read_text()
    assert "not known" in text
    assert "0.0 %</p>" not in text
    print_coverage(nothing, [])
    print_until("site", UntilReport([Round(0, {}, nothing, 9.0)], why="the time limit is over"))
    printed = capsys.readouterr().out
    assert (printed.count("not known"), "causes left" in printed) == (3, False)


def test_a_loop_leaves_time_for_replays_and_browsers_that_start_slowly(monkeypatch):
    monkeypatch.setattr(until, "monotonic", lambda: 0.0)
    loop = until._Loop(Any, Any, Any, [URL], UntilOptions(seconds=480.0), print)
    quick = (loop._to_record, loop._budget(), loop._least)
    loop._start_seconds = 50.0
    assert quick == (432.0, 216.0, 20.0)
    assert (loop._to_record, loop._budget(), loop._least) == (382.0, 382.0, 50.0)  # one pass, not two
    assert loop._why_nothing == "no walk took a step: replay and browser need 50 s to start"


def test_a_loop_keeps_as_much_time_as_its_last_measurement_took_and_a_third_more(monkeypatch):
    monkeypatch.setattr(until, "monotonic", lambda: 1560.0)
    loop = until._Loop(Any, Any, Any, [URL], UntilOptions(), print)
    loop._began, loop._walk_seconds = 0.0, 2.0
    first = loop._to_record
    loop._report.rounds += [Round(number, {}, result(), 0.0) for number in (0, 1)]
    # 240 s of 1800 are left, and 21 walks took 42 s: another pass of 185 s, not none.
    assert (first, loop._to_record) == (60.0, pytest.approx(185.4))


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time that a loop reads."""
    now = [0.0]
    monkeypatch.setattr(until, "opened_posts", lambda collection: None)
    monkeypatch.setattr(until, "monotonic", lambda: now[0])
    monkeypatch.setattr(Collection, "manifest", lambda self: Manifest("site"))
    return now


def loop_of_ten_minutes() -> Any:
    scope = Scope.of(ScopeKind.HOST, [URL])
    return until._Loop(Collection(Path(), "site"), Any, scope, [URL], UntilOptions(seconds=600.0), print)


async def test_a_first_measurement_that_ended_early_is_repeated_if_nothing_was_recorded(monkeypatch, now):
    loop = loop_of_ten_minutes()
    measured = [replace(result(step(1)), complete=False), result(step(1), step(2, (f"GET {URL}a",)))]

    async def measure(recorded):
        rounds = loop._report.rounds
        rounds.append(Round(len(rounds), {}, measured[len(rounds)], 0.0))
        return rounds[-1]

    async def record(last):
        return Counter()

    monkeypatch.setattr(loop, "_measure", measure)
    monkeypatch.setattr(loop, "_record", record)
    report = await loop.run()
    assert [each.result for each in report.rounds] == measured
    assert (report.reached, report.why) == (False, loop._why_nothing)


async def test_time_that_is_too_short_for_a_measurement_records_what_the_last_one_missed(monkeypatch, now):
    loop, budgets = loop_of_ten_minutes(), []
    missed = result(step(1, (f"GET {URL}a",)))

    async def measure(recorded):
        loop._report.rounds.append(Round(len(budgets), dict(recorded), missed, 0.0))
        loop._walk_seconds = 8.0
        return loop._report.rounds[-1]

    async def record(last):
        budgets.append(loop._to_record)
        now[0] = 500.0
        return Counter(harvest=7)

    monkeypatch.setattr(loop, "_measure", measure)
    monkeypatch.setattr(loop, "_record", record)
    report = await loop.run()
    assert (budgets, report.late, len(report.rounds)) == ([510.0, 100.0], 7, 2)
    assert report.why.startswith("100 s are left")


def test_walks_on_the_live_site_get_the_share_of_misses_that_a_live_connection_carries():
    seen = Sighting("s", 1)
    data = Missed("site", "e", "GET", f"{URL}a", seen, seen)
    handshake = Missed("site", "e", "WEBSOCKET", "wss://site.test/ws", seen, seen)
    frame = replace(handshake, body_size=9, count=2)
    assert (live_share([data, handshake, frame]), live_share([data]), live_share([])) == (0.75, 0.0, 0.0)
    assert [is_frame(each) for each in (data, handshake, frame)] == [False, False, True]


def test_limits_are_those_that_the_help_shows():
    assert (UntilOptions().miss_rate, UntilOptions().seconds) == (0.01, 1800.0)


def test_equal_misses_of_several_walks_are_one_with_the_sum_of_their_counts():
    seen = Sighting("s", 1)
    missed = Missed("site", "e", "GET", f"{URL}a", seen, seen, count=2)
    walks = tuple(WalkRecord("uniform", seed, URL, misses=[missed]) for seed in (1, 2))
    (found,) = CoverageResult("site", "e", walks).misses()
    assert found.count == 4


def test_filling_walks_use_each_control_of_a_page_template_before_they_repeat_one():
    controls = UnusedControls()
    rng = clock.seeded("test")
    pages = [Seen(PAGE.nodes, f"https://site.test/item/{number}") for number in range(40)]
    chosen = Counter(controls.choose(page, {}, URL, AvoidRules.of(), rng)[0]["bid"] for page in pages)
    assert set(chosen) == {"a1", "a2", "a3", "a4"}
    assert max(chosen.values()) - min(chosen.values()) <= 8


def test_filling_walks_take_the_controls_of_an_opened_dialog_first_and_its_options():
    controls = UnusedControls()
    rng = clock.seeded("test")
    page = tuple(Node(f"a{number}", "link", f"Page {chr(97 + number)}") for number in range(26))
    for _ in range(200):
        controls.choose(Seen(page), {}, URL, AvoidRules.of(), rng)[0]
    closed = (Node("c1", "combobox", "Size"), Node("c2", "option", "Small", 1), Node("c3", "button", "Close"))
    dialog = (Node("b1", "listbox", "Sort"), Node("b2", "option", "Name", 1), Node("b3", "button"), *closed)
    chosen = [controls.choose(Seen((*page, *dialog)), {}, URL, AvoidRules.of(), rng)[0] for _ in range(9)]
    assert {each.get("bid") for each in chosen} >= {"b1", "b2", "b3", "c1", "c3"}
    assert {"action": "click", "bid": "b2"} in chosen
    assert {"action": "select", "bid": "c1", "value": "Small"} in chosen


def test_filling_walks_use_some_of_the_controls_that_look_the_same():
    controls = UnusedControls()
    rng = clock.seeded("test")
    rows = [Node(f"a{number}", "link", f"Row {number}") for number in range(20)]
    icons = [Node(f"b{number}", "button") for number in range(8)]
    shown = Seen((*rows, *icons))
    chosen = Counter(controls.choose(shown, {}, URL, AvoidRules.of(), rng)[0]["bid"] for _ in range(20))
    assert len([bid for bid in chosen if bid.startswith("a")]) >= 2
    assert len([bid for bid in chosen if bid.startswith("b")]) >= 6


def test_filling_walks_use_a_control_again_that_needed_the_site_and_go_where_others_are_unused():
    controls, rng = UnusedControls(), clock.seeded("test")
    table = Seen((Node("a1", "columnheader", "Name"),), f"{URL}table")
    found = []
    for _ in range(40):
        action, key = controls.choose(table, {}, URL, AvoidRules.of(), rng)
        found.append(action)
        if len(found) < 3:
            controls.note_new(key)
    assert found[:3] == [{"action": "click", "bid": "a1"}] * 3
    assert all(each["action"] == "click" for each in found)
    pages = [Seen((Node("a1", "link", "Start"), Node("a2", "link", "More")), f"{URL}many"), table]
    controls.choose(pages[0], {}, URL, AvoidRules.of(), rng)
    after = [controls.choose(table, {}, URL, AvoidRules.of(), rng)[0] for _ in range(20)]
    assert after.count({"action": "goto", "url": f"{URL}many"}) == 1


def test_filling_walks_type_another_word_where_one_was_requested():
    rng = clock.seeded("test")
    page = Seen((Node("a1", "searchbox", "Find"), Node("a2", "spinbutton", "Tea"), Node("a3", "link", "Tea")))
    typed = {"action": "fill", "bid": "a1", "value": "Find"}
    assert fill_again(page, typed, rng) == {"action": "fill", "bid": "a1", "value": "Tea"}
    others = ({"action": "click", "bid": "a1"}, {**typed, "bid": "a2"}, {**typed, "bid": "gone"}, {})
    assert not any(fill_again(page, each, rng) for each in others)


def test_a_link_a_tab_and_an_address_open_a_view_and_a_button_may_write():
    page = Seen((Node("a1", "link", "Runs"), Node("a2", "tab", "Quality"), Node("a3", "button", "Send")))
    clicks = [opens_view(page, {"action": "click", "bid": f"a{number}"}) for number in (1, 2, 3, 4)]
    assert clicks == [True, True, False, False]
    assert opens_view(page, {"action": "goto", "url": URL})
    assert not opens_view(page, {"action": "press", "bid": "a1", "key": "Delete"})


def test_filling_walks_open_an_address_of_each_template_and_few_of_a_folder():
    def linking(*routes: str) -> Seen:
        nodes = (Node("", "link", "x", properties=(("url", URL + each),)) for each in routes)
        return Seen(tuple(nodes), f"{URL}#/items/1/edit")

    addresses = Addresses()
    routes = ["#/items/3/edit", "#/items/3/runs?tab=1", "#/items/4/runs?tab=2", "#place", "logout", "about"]
    addresses.note(linking(*routes), lambda url: "logout" not in url)
    opened = [addresses.open(PAGE).get("url", "") for _ in range(4)]
    assert opened == [f"{URL}#/items/3/runs?tab=1", URL, f"{URL}about", ""]
    addresses.note(linking(*(f"wiki/Page-{letter}" for letter in "abcdefghi")), lambda url: True)
    assert len([each for each in iter(lambda: addresses.open(PAGE), {})]) == 6


def test_filling_walks_click_a_link_of_the_page_before_they_load_an_address():
    def linking(bid: str, route: str) -> Seen:
        return Seen((Node(bid, "link", "x", properties=(("url", f"{URL}{route}"),)),))

    addresses = Addresses()
    for page in (linking("a1", "about"), linking("a2", "runs")):
        addresses.note(page, lambda url: True)
    assert addresses.open(linking("a9", "runs")) == {"action": "click", "bid": "a9"}
    assert addresses.open(linking("a9", "runs")) == {"action": "goto", "url": f"{URL}about"}
    assert addresses.open(linking("a9", "runs")) == {}


def test_filling_walks_leave_destructive_controls_alone_and_go_back_from_an_empty_page():
    rng = clock.seeded("test")
    page = Seen((Node("a1", "button", "Delete account"), Node("a2", "link", "Log out")))
    controls = UnusedControls()
    assert controls.choose(page, {}, URL, AvoidRules.of(), rng)[0] == {"action": "back"}
    after = controls.choose(page, {"action": "back"}, URL, AvoidRules.of(), rng)[0]
    assert after == {"action": "goto", "url": URL}


def test_each_cause_says_why_recording_has_not_closed_it():
    search = {"action": "fill", "bid": "a2", "value": "Tea"}
    filled = StepRecord(1, URL, search, 'searchbox "Find"', requested=False, left=False, dead=False)
    found = result(
        filled,
        step(2, (f"GET {URL}find?q=Tea",)),
        step(3, (f"GET {URL}a",)),
        step(4, (f"GET {URL}gone/1",)),
        step(5, (f"POST {URL}buy",)),
        step(6, ("GET https://other.test/b",)),
        step(7, ("WEBSOCKET wss://site.test/ws",)),
    )
    obstacles = Obstacles(Scope.of(ScopeKind.HOST, [URL]), {f"{URL}gone/1": "no answer"}, waiting=7)
    why = {cause.template.removeprefix(URL): obstacles.why(cause) for cause in causes_of(found)}
    assert why == {
        "find?q={}": "text that no recorded walk had typed",
        "a": "the time ended: 7 links wait, the likeliest are recorded first",
        "gone/{}": "no answer",
        "buy": "a write with values or a page state that no recorded walk had sent",
        "https://other.test/b": "outside of the scope",
        "wss://site.test/ws": ("a message over a live connection that no walk on the site had sent"),
    }
    by_template = {cause.template: cause for cause in causes_of(found)}
    assert "--unsafe" in by_template[f"{URL}buy"].command
    assert by_template["wss://site.test/ws"].command == "stillweb record until site"
    assert "--words" in by_template[f"{URL}find?q={{}}"].command


def test_a_write_with_text_of_the_visitor_names_the_templates_that_answer_it():
    filled = replace(step(1, requested=False), action={"action": "fill", "bid": "a2", "value": "Hello"})
    sent = replace(step(2, (f"POST {URL}chat",)), control='button "Send"')
    (cause,) = causes_of(result(filled, sent))
    assert cause.command == "stillweb record forms site, and replay with --derived"
    assert "--derived" in Obstacles(Scope.of(ScopeKind.HOST, [URL])).why(cause)


def test_no_templates_are_suggested_for_a_login():
    filled = replace(step(1, requested=False), action={"action": "fill", "bid": "a2", "value": "ada"})
    sent = replace(step(2, (f"POST {URL}login",)), control='button "Log in"')
    seen, kind = Sighting("", 0), (("content-type", "application/x-www-form-urlencoded"),)
    body = b"name=ada&password=x"
    miss = Missed("site", "e", "POST", f"{URL}login", seen, seen, kind, b64encode(body).decode(), len(body))
    walk = replace(result(filled, sent).walks[0], misses=[miss])
    (cause,) = causes_of(replace(result(), walks=(walk,)))
    assert cause.command.startswith("none: ")
    assert "login" in Obstacles(Scope.of(ScopeKind.HOST, [URL])).why(cause)
    own = OwnText()
    own.add([miss])
    assert not own.is_new
    note = b64encode(b"name=ada").decode()
    own.add([replace(miss, body=note, body_size=8)])
    assert own.is_new


def test_walks_that_find_little_leave_the_share_of_the_harvest_as_measured():
    share = HarvestShare()
    share.add(linked=90, missed=100)
    before = share.of_pass
    share.add(linked=0, missed=4)  # what 200 filling steps found
    assert before > 0.75 < share.of_pass
    share.add(linked=0, missed=1000)
    assert share.of_pass == pytest.approx(0.25)


def test_the_report_of_a_loop_shows_its_rounds_and_why_a_cause_is_left(tmp_path):
    found = result(step(1, ("GET https://site.test/a",)))
    cause = replace(causes_of(found)[0], why="outside of the scope")
    rounds = [Round(0, {}, found, 6.0), Round(1, {"harvest": 12, "amend": 0}, found, 90.0)]
    report = UntilReport(rounds, causes=[cause], why="the time limit of 90 s is over")
    text = write_report(found, [cause], {}, tmp_path, report).read_text()
    assert "The target is not reached: the time limit of 90 s is over." in text
    assert "12 harvest" in text
    assert "0 amend" not in text
    assert "Not answered, because: outside of the scope." in text


def test_a_loop_that_ends_says_what_its_last_measurement_lacks():
    missed, none = result(step(1, ("GET https://site.test/a",))), result()
    assert why_over(240, -1.5, missed, reached=False) == "the time limit of 240 s is over"
    assert why_over(240, 153.2, missed, reached=False).startswith("153 s are left of the time limit of 240 s")
    early = replace(missed, complete=False)
    assert why_over(240, 0, early, reached=True).endswith("within the target, but ended after 1 walks")
    assert why_over(240, 0, early, reached=False) == "the time limit of 240 s is over"
    assert why_over(240, 0, none, reached=True).endswith("no step of the last measurement requested anything")


def test_a_write_with_text_of_the_visitor_says_what_became_of_its_form():
    filled = replace(step(1, requested=False), action={"action": "fill", "bid": "a2", "value": "Hello"})
    sent = replace(step(2, (f"POST {URL}chat?room=1",)), control='button "Send"')
    (cause,) = causes_of(result(filled, sent))
    scope = Scope.of(ScopeKind.HOST, [URL])
    refused = FormOutcome(f"POST {URL}chat text", URL, "no later page holds the value")
    other = FormOutcome(f"POST {URL}chats text", URL, "")
    assert Obstacles(scope, forms=[other, refused]).why(cause).endswith(f"no template: {refused.refused}")
    assert "with --derived, texts" in Obstacles(scope, forms=[replace(refused, refused="")]).why(cause)


def test_the_report_of_a_loop_has_the_rate_with_templates_too(tmp_path):
    found = result(step(1, (f"POST {URL}chat",)), step(2))
    forms = [FormOutcome("POST /chat text", URL, ""), FormOutcome("POST /<find> q", URL, "computes <b>")]
    derived = replace(result(step(1), step(2)), derived=True)
    report = UntilReport([Round(0, {}, found, 6.0)], forms=forms, derived=derived)
    text = write_report(found, [], {}, tmp_path, report).read_text()
    assert "missed 0 of 2" in text
    assert "computes &lt;b&gt;" in text
    stored = report.to_dict()
    assert (stored["derived"]["missed"], stored["rounds"][0]["missed"]) == (0, 1)
    assert UntilReport().to_dict()["derived"] is None


def test_forms_with_own_text_are_wanted_by_their_misses_and_once():
    wanted = OwnText()
    assert not wanted.is_new
    kind = (("content-type", "application/x-www-form-urlencoded"),)
    seen = Sighting("s", 1, page=f"{URL}app")
    chat = Missed("site", "e", "POST", f"{URL}chat?room=1", seen, seen, kind, body_size=5, count=2)
    note = replace(chat, url=f"{URL}note", count=3)
    json = replace(chat, url=f"{URL}api", fields=(("content-type", "application/json"),), resource="empty")
    reads = replace(json, url=f"{URL}runs/filter", body=b64encode(b"{}").decode(), body_size=2)
    wanted.add([reads])
    assert not wanted.is_new
    wanted.add([chat, note, json, replace(chat, method="GET"), replace(chat, url=f"{URL}end", body_size=0)])
    assert wanted.is_new
    taken = wanted.take(9.0)
    assert (taken.targets, taken.script_pages) == ((f"{URL}note", f"{URL}chat"), (f"{URL}app",))
    assert taken.may_be_on(f"{URL}talk", b"<FORM action=/chat>")
    assert taken.may_be_on(f"{URL}note?id=1", b"<form method=post>")
    assert not taken.may_be_on(f"{URL}talk", b"<form action=/other>")
    wanted.add([chat])
    assert not wanted.is_new
