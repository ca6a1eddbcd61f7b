from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillweb.browser.input.controls import Control, FormField, PageForm, PageState
from stillweb.browser.input.walker import Act
from stillweb.collections.reachability import (
    FILE,
    ReachabilityMap,
    ReachedState,
    TriedAction,
    read_reachability,
    to_line,
)
from stillweb.errors import CollectionError, UsageError
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import resume
from stillweb.record.explore.frontier import ExploreFrontier, FrontierState
from stillweb.record.explore.journal import RECORDED, WAITING, RecordedActions
from stillweb.record.explore.options import WalkOptions
from stillweb.record.explore.plan import AvoidRules, make_plan, other_fills
from stillweb.record.explore.values import Values, read_values
from stillweb.record.explore.walks import choose
from stillweb.record.htmlforms import HtmlForm, Input, LinkCandidate, form_requests
from stillweb.record.options import ScopeKind

SCOPE = Scope.of(ScopeKind.HOST, ["https://site.test/"])
SEARCH = PageForm(0, "f", "get", "https://site.test/search")
NOTHING, NO_ONE = Values(), AvoidRules()
ORDER = PageForm(1, "f", "post", "https://site.test/order")


def control(key: str, role: str = "button", name: str = "", **more) -> Control:
    return Control(
        key, more.pop("kind", key), more.pop("same", key), f"a{key}", role, name, **{"tag": role} | more
    )


def field(key: str, form: PageForm, **more) -> Control:
    form_field = FormField("text", form, required=more.pop("required", False))
    return control(key, "textbox", tag="input", field=form_field, **more)


def submit(key: str, form: PageForm, name: str = "Go") -> Control:
    return control(key, "button", name, field=FormField("submit", form, method=form.method))


def plan_of(*controls: Control, values: Values = NOTHING, avoid: AvoidRules = NO_ONE, **more):
    return make_plan(PageState("https://site.test/", "d", controls), SCOPE, values, avoid, **more)


def test_each_value_of_each_field_is_sent_once_with_what_is_required_and_posts_come_last():
    values = Values({"q": ("kettle", "lamp"), "*": ("Ada",)})
    fields = [
        field("1", ORDER, label=("who",), required=True),
        submit("2", ORDER, "Order"),
        field("3", SEARCH, label=("q",)),
        submit("4", SEARCH),
    ]
    plan = plan_of(*fields, values=values)
    sent = [offer for offer in plan.offers if offer.act.do == "submit"]
    assert [(offer.act.control, offer.act.fields) for offer in sent] == [
        ("4", (("3", "kettle"),)),
        ("4", (("3", "lamp"),)),
        ("4", (("3", "Ada"),)),
        ("2", (("1", "Ada"),)),
    ]
    assert [offer.mutates for offer in sent] == [False, False, False, True]
    last = plan.offers[-1]
    assert last.mutates
    assert {offer.act for offer in plan.offers if offer.mutates} == {Act("click", "2"), sent[-1].act}


def test_links_are_led_to_by_address_and_those_away_are_left():
    plan = plan_of(
        control("1", "link", "in", url="https://site.test/a"),
        control("2", "link", "out", url="https://else.test/"),
        control("3", "link", "script", url="https://site.test/#"),
        control("4", "link", "mail", url="mailto:ada@site.test"),
    )
    assert [link.url for link in plan.links] == ["https://site.test/a"]
    assert [(left.description, why) for left, why in plan.left] == [
        ('click link "out"', "outside of the scope")
    ]
    assert {offer.act.control for offer in plan.offers if offer.act.do == "click"} == {"3", "4"}


@pytest.mark.parametrize(
    "name",
    ["Log out", "Sign-out", "Delete item", "Unsubscribe", "Place order", "Deploy", "Abmelden"],
)
def test_what_cannot_be_undone_is_left_alone_unless_requested(name):
    wanted = plan_of(control("1", "button", name), avoid=AvoidRules.of(destructive=True))
    plan = plan_of(
        control("1", "button", name), control("2", "button", "Add to basket"), avoid=AvoidRules.of()
    )
    assert [why for _, why in plan.left] == ["destructive"]
    assert [offer.act.control for offer in plan.offers if offer.act.do == "click"] == ["2"]
    assert [offer.act.control for offer in wanted.offers if offer.act.do == "click"] == ["1"]


def test_what_a_form_with_text_is_for_is_left_alone_except_by_record_forms() -> None:
    assert AvoidRules.of().forbids('button "Publish"')
    assert not AvoidRules.of(sends=True).forbids('button "Publish"')
    assert AvoidRules.of(sends=True).forbids('button "Delete"')


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 99))
def test_of_many_alike_some_are_drawn_always_the_same(count, alike, seed):
    rows = [control(str(n), "button", "Add", kind="row") for n in range(count)]
    plan = plan_of(*rows, alike=alike, seed=seed)
    tried = [offer.act.control for offer in plan.offers if offer.act.do == "click"]
    assert len(tried) == min(count, alike)
    assert len(plan.left) == count - len(tried)
    assert plan == plan_of(*rows, alike=alike, seed=seed)


def test_lists_choose_each_option_and_what_opens_is_hovered_over_too():
    plan = plan_of(
        control("1", "combobox", "Sort", tag="select", options=("Price", "Name")),
        control("2", "button", "Menu", opens=True),
    )
    assert [offer.act for offer in plan.offers] == [
        Act("select", "1", "Price"),
        Act("select", "1", "Name"),
        Act("hover", "2"),
        Act("click", "2"),
    ]


def test_values_come_from_names_then_from_anybody_then_from_the_type(tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text('fields: {"Q": [kettle, 7], "*": [Ada]}')
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"goal": 'Find "corvid whisk"', "start_url": "https://s.test/?city=Bonn"}]))
    values = read_values([file, tasks])
    assert values.for_field(field("1", SEARCH, label=("q",))) == ("kettle", "7", "Ada", "corvid whisk")
    assert values.for_field(field("2", SEARCH, label=("city",))) == ("Bonn", "Ada", "corvid whisk")
    number = control("3", "spinbutton", field=FormField("number", SEARCH))
    assert values.for_field(number) == ("1",)
    assert Values().for_field(field("4", SEARCH)) == ("test",)


def test_what_is_requested_while_it_is_typed_is_typed_with_each_value():
    values = Values({"q": ("kettle", "lamp"), "*": ("Ada",)})
    state = PageState("https://site.test/", "d", (field("1", SEARCH, label=("q",)),))
    [first] = [each for each in make_plan(state, SCOPE, values, NO_ONE).offers if each.act.do == "fill"]
    others = other_fills(state, first, values)
    assert [first.act.value, *(each.act.value for each in others)] == ["kettle", "lamp", "Ada"]
    assert len({each.identity for each in (first, *others)}) == 3  # none is known by another
    assert other_fills(state, others[0], values) == []
    assert other_fills(PageState("https://site.test/", "d", ()), first, values) == []


@pytest.mark.parametrize("text", ["fields: [", "just a text", "fields: {q: [{a: 1}]}"])
def test_what_is_no_file_of_values_is_named(tmp_path: Path, text):
    file = tmp_path / "values.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"values\.yaml") as caught:
        read_values([file])
    assert caught.value.hint


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0.01, 1)), max_size=30))
def test_the_frontier_hands_out_each_place_once_the_heaviest_first(added):
    frontier = ExploreFrontier()
    weights: dict[str, float] = {}
    for number, weight in added:
        url = f"https://site.test/{number}"
        frontier.add(FrontierState.at(url), weight)
        weights[url] = weights.get(url, 0.0) + weight
    assert len(frontier) == len(weights)
    taken = []
    while found := frontier.take(mutated=False):
        taken.append((found[0].url, found[1]))
    assert dict(taken) == weights
    assert [weight for _, weight in taken] == sorted((weight for _, weight in taken), reverse=True)
    assert frontier.take(mutated=True) is None


def test_addresses_that_wait_are_listed_the_likeliest_first_and_stay_where_they_are():
    frontier = ExploreFrontier()
    frontier.seed(["https://site.test/a", "https://site.test/b", "https://site.test/c"])
    frontier.add(FrontierState.at("https://site.test/c"), 0.5)
    open_a = Act("open", value="https://site.test/a")
    frontier.add(FrontierState((open_a, Act("click", "menu")), state="opened"), 9.0)
    frontier.add(FrontierState.at("https://site.test/after"), 0.1)
    frontier.add(FrontierState((open_a, Act("click", "add")), mutated=True, base="d"), 9.0)
    frontier.mark(FrontierState.at("https://site.test/b"))
    frontier.note("https://site.test/after", 0.1)
    frontier.note("https://site.test/noted", 0.15)
    listed = [
        "https://site.test/c",
        "https://site.test/a",
        "https://site.test/after",
        "https://site.test/noted",
    ]
    assert addresses_of(frontier) == listed
    assert len(frontier) == 5
    frontier.take(mutated=False)  # the open menu
    frontier.take(mutated=False)
    assert addresses_of(frontier) == listed[1:]


def addresses_of(frontier: ExploreFrontier) -> list[str]:
    found: dict[str, float] = {}
    while likeliest := frontier.likeliest(found.__contains__):
        found[likeliest[0]] = likeliest[1]
    assert list(found.values()) == sorted(found.values(), reverse=True)
    return list(found)


def test_what_a_form_asks_for_by_its_address_is_reported_without_sending_it():
    values = Values({"q": ("red kettle",), "*": ("Ada~",)})
    fields = (
        Input("q", "search", required=True),
        Input("by", "hidden", "name"),
        Input("sort", "select-one", "up", options=("up", "down")),
        Input("all", "checkbox", "on"),
        Input("size", "radio", "s", on=True),
        Input("size", "radio", "l"),
        Input("", "text", "of no name"),
        Input("go", "submit", "Find", description="Find"),
    )
    found = form_requests(HtmlForm("https://site.test/find?old=1", fields), values)
    plain = "q=red+kettle&by=name&sort=up&size=s"
    assert {
        lead.url.removeprefix("https://site.test/find?") for lead in found if lead.description != "button"
    } == {
        f"{plain}&go=Find",
        "q=Ada%7E&by=name&sort=up&size=s&go=Find",
        "q=red+kettle&by=name&sort=down&size=s&go=Find",
        "q=red+kettle&by=name&sort=up&all=on&size=s&go=Find",
        "q=red+kettle&by=name&sort=up&size=l&go=Find",
    }
    # By Enter or a script no button is named.
    assert LinkCandidate(f"https://site.test/find?{plain}", "button") in found
    assert form_requests(HtmlForm("", fields), values) == []


def test_a_run_continues_with_links_that_were_only_opened_and_with_what_changes_the_site():
    reach = ReachabilityMap()
    for line in (
        ReachedState("first", "https://site.test/", (Act("open", value="https://site.test/").to_dict(),), 3),
        TriedAction(
            "first", Act("click", "1").to_dict(), "a", (("GET", "https://site.test/a"),), how=RECORDED
        ),
        TriedAction("first", Act("click", "2").to_dict(), "add", how=WAITING),
        TriedAction(
            "first", Act("click", "3").to_dict(), "b", (("GET", "https://else.test/b"),), how="outside"
        ),
        ReachedState("last", "https://site.test/z", (Act("open", value="https://site.test/z").to_dict(),), 0),
    ):
        reach.add(line)
    frontier = ExploreFrontier()
    frontier.seed(["https://site.test/"])
    resume(frontier, reach, SCOPE)
    assert addresses_of(frontier) == ["https://site.test/z", "https://site.test/a"]
    taken = frontier.take(mutated=True)
    assert taken is not None
    assert (taken[0].base, taken[0].description) == ("first", "add")
    assert list(reach.states) == ["first"]  # the last one was perhaps not through


def test_what_changes_the_site_waits_in_a_queue_of_its_own_and_what_was_taken_stays_taken():
    frontier = ExploreFrontier()
    frontier.seed(["https://site.test/"])
    order = FrontierState((Act("open", value="https://site.test/"), Act("submit", "2")), mutated=True)
    frontier.add(order, 9.0)
    assert frontier.mark(FrontierState.at("https://site.test/")) == 1.0
    frontier.add(FrontierState.at("https://site.test/"), 1.0)
    assert frontier.take(mutated=False) is None
    assert frontier.take(mutated=True) == (order, 9.0)


def test_a_control_is_known_when_it_did_the_same_on_two_pages_and_never_another_thing():
    known = RecordedActions(["https://site.test/a"])
    assert "https://site.test/a" in known
    requests = (("GET", "https://site.test/search?q=x"),)
    known.add_effect("search", "one", requests, stayed=False)
    assert known.effect("search") is None
    assert known.effect("search", proven=1) == requests
    known.add_effect("search", "one", requests, stayed=False)
    assert known.effect("search") is None
    known.add_effect("search", "two", requests, stayed=False)
    assert known.effect("search") == requests
    known.add_effect("search", "three", (), stayed=True)
    assert known.effect("search") is None


def test_an_older_map_whose_descriptions_have_another_name_is_read(tmp_path):
    action = TriedAction("s", {"do": "click", "control": "1"}, 'click link "Next"')
    line = to_line(action)
    assert '"description"' in line
    (tmp_path / "map.jsonl").write_text(line.replace('"description"', '"told"'))
    assert read_reachability(tmp_path / "map.jsonl").of("s") == [action]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
tried = st.builds(
    TriedAction, texts, st.fixed_dictionaries({"do": texts, "control": texts}), texts, pairs, pairs, texts,
    st.sampled_from(["tried", "recorded", "not come to"]), texts,
)  # fmt: skip
states = st.builds(
    ReachedState, texts, texts, st.lists(st.fixed_dictionaries({"do": texts}), max_size=2).map(tuple),
    st.integers(0, 9), st.booleans(), texts,
)  # fmt: skip


@settings(max_examples=60)
@given(lines=st.lists(st.one_of(tried, states), max_size=8), cut=st.integers(0, 40))
def test_a_map_is_read_as_it_was_written_but_for_a_line_that_was_cut_off(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("map") / FILE
    written = "".join(map(to_line, lines))
    path.write_text(written, "utf-8")
    reach = read_reachability(path)
    assert [*reach.states.values()] == list(
        {each.state: each for each in lines if isinstance(each, ReachedState)}.values()
    )
    last = {(e.state, json.dumps(e.action, sort_keys=True)): e for e in lines if isinstance(e, TriedAction)}
    assert list(reach.actions.values()) == list(last.values())
    if lines:
        tail = to_line(lines[-1])
        path.write_text(written + tail[: min(cut, len(tail) - 2)], "utf-8")
        assert read_reachability(path) == reach


def test_a_line_that_is_none_is_named_with_its_number(tmp_path: Path):
    path = tmp_path / FILE
    path.write_text(to_line(ReachedState("d", "https://site.test/", ())) + '{"version": 9}\n')
    with pytest.raises(CollectionError, match="line 2") as caught:
        read_reachability(path)
    assert caught.value.hint


# --- walks -----------------------------------------------------------------------------------------


def test_a_walk_prefers_what_was_seldom_used_and_leaves_alone_what_it_must() -> None:
    read_only = WalkOptions(1.0, mutations=False)
    controls = (
        control("1", "button", "Log out"),
        control("2", "link", "Away", url="https://other.test/"),
        submit("3", ORDER, "Order"),
        control("4", "button", "Menu", kind="menu"),
        control("5", "link", "Row", kind="row", same="row"),
    )
    state = PageState("https://site.test/", "d", controls)
    used: Counter[str] = Counter()
    offered: list[list[float]] = []

    def draw(items, weights):
        offered.append([round(each, 2) for each in weights])
        return items[-1]

    first = choose(state, SCOPE, read_only, used, draw)
    choose(state, SCOPE, read_only, used, draw)
    assert first == Act("click", "5")
    assert offered == [[1.0, 1.0], [1.0, 0.25]]
    assert choose(PageState("https://site.test/", "d", controls[:3]), SCOPE, read_only, used, draw) is None


def test_a_walk_types_words_of_the_page_and_values_of_the_user() -> None:
    state = PageState("https://site.test/", "d", (field("1", SEARCH), control("2", "link", "Kettles")))

    def draw(items, weights):
        return items[0]

    def act(values: Values) -> Act | None:
        return choose(state, SCOPE, WalkOptions(1.0, values=values), Counter(), draw)

    assert act(NOTHING) == Act("submit", fields=(("1", "Kettles"),))
    assert act(Values({"*": ("lamp",)})) == Act("submit", fields=(("1", "lamp"),))
