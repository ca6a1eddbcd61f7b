from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from stillweb.browser.input.controls import FormField, PageForm, controls_of, state_of_survey, state_url
from stillweb.browser.observe.survey import Survey, SurveyItem

URL = "https://site.test/list?page=2"


def survey_of(*items: SurveyItem) -> Survey:
    children: list[list[int]] = [[] for _ in items]
    for index, item in enumerate(items):
        if item.parent >= 0:
            children[item.parent].append(index)
    return Survey(tuple(items), tuple(map(tuple, children)))


def root() -> list[SurveyItem]:
    return [SurveyItem(-1, 0, "f", tag="body")]


def link(name: str, url: str, number: int, parent: int = 0, **more) -> SurveyItem:
    more = {"bid": f"a{number}", "backend_node_id": number, "acts": True} | more
    return SurveyItem(parent, 1, "f", tag="a", role="link", name=name, url=url, **more)


def button(name: str, number: int, parent: int = 0, **more) -> SurveyItem:
    more = {"bid": f"a{number}", "backend_node_id": number, "acts": True} | more
    return SurveyItem(parent, 1, "f", tag="button", role="button", name=name, **more)


words = st.text("abcdefgh ", min_size=1, max_size=8).map(str.strip).filter(bool)
links = st.lists(st.tuples(words, words.map(lambda word: f"https://site.test/{word}")), max_size=8)


@given(links)
def test_keys_are_unique_and_do_not_hang_on_bids_boxes_or_node_ids(named):
    first = [link(name, url, number) for number, (name, url) in enumerate(named)]
    again = [
        dataclasses.replace(item, bid=f"b{9 * i}", backend_node_id=70 + i, box=(1.0, i, 3.0, 4.0), ratio=0.1)
        for i, item in enumerate(first)
    ]
    one, two = (state_of_survey(URL, survey_of(*root(), *items), {}) for items in (first, again))
    keys = [control.key for control in one.controls]
    assert len(set(keys)) == len(keys) == len(named)
    assert keys == [control.key for control in two.controls]
    assert one.digest == two.digest
    assert [one.find(key).name for key in keys] == [" ".join(name.split()) for name, _ in named]


@given(links, words, st.integers(0, 8))
def test_what_is_put_in_elsewhere_moves_no_other_key(named, word, at):
    own = [link(name, url, number) for number, (name, url) in enumerate(named)]
    added = button(f"new {word}", 99)
    before = controls_of(survey_of(*root(), *own), {})
    after = controls_of(survey_of(*root(), *own[:at], added, *own[at:]), {})
    assert [c.key for c in before] == [c.key for c in after if c.bid != "a99"]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_digits_that_count_and_report_the_time_are_no_other_state(one, two):
    def state(number: int):
        heading = SurveyItem(0, 1, "f", tag="h1", role="heading", name=f"{number} messages, 12:{number % 60}")
        return state_of_survey(URL, survey_of(*root(), heading, button(f"Inbox ({number})", 1)), {})

    assert state(one).digest == state(two).digest


def test_a_control_a_heading_and_what_is_open_make_another_state():
    def digest(*items: SurveyItem, url: str = URL) -> str:
        return state_of_survey(url, survey_of(*root(), *items), {}).digest

    plain = digest(button("Menu", 1, states={"expanded": False}))
    others = {
        digest(button("Menu", 1, states={"expanded": True})),
        digest(button("Menu", 1, states={"expanded": False}), button("Delete", 2)),
        digest(
            button("Menu", 1, states={"expanded": False}),
            SurveyItem(0, 1, "f", tag="h1", role="heading", name="T"),
        ),
        digest(button("Menu", 1, states={"expanded": False}), url="https://site.test/list?page=3"),
        digest(button("Menu", 1, states={"expanded": False}), url=f"{URL}#/route"),
    }
    assert plain not in others
    assert len(others) == 5


def test_what_a_form_holds_and_advertisements_make_no_other_state():
    def digest(value: str, *, checked: bool, advert: str) -> str:
        items = [
            *root(),
            SurveyItem(
                0, 1, "f", tag="input", role="textbox", value=value, acts=True, bid="a1", backend_node_id=1
            ),
            SurveyItem(
                0, 1, "f", tag="input", role="checkbox", states={"checked": checked}, acts=True, bid="a2"
            ),
            SurveyItem(0, 1, "f", tag="div", attributes={"id": "google_ads_1"}),
            link(advert, f"https://ads.test/{advert}", 3, parent=3),
        ]
        return state_of_survey(URL, survey_of(*items), {}).digest

    assert digest("", checked=False, advert="shoes") == digest("Ada", checked=True, advert="cars")


def test_rows_of_a_table_are_of_one_kind_and_buttons_that_say_other_things_are_not():
    rows = [link(f"row {n}", f"https://site.test/item/{n}", n) for n in range(1, 4)]
    other = [button("Copy", 8), button("Print", 9), button("Day 1", 10), button("Day 2", 11)]
    kinds = [control.kind for control in controls_of(survey_of(*root(), *rows, *other), {})]
    assert len(set(kinds[:3])) == 1
    assert kinds[3] != kinds[4]
    assert kinds[5] == kinds[6]
    assert len(set(kinds)) == 4


def test_a_button_is_the_same_on_two_pages_only_if_it_sends_the_same():
    def same(action: str) -> str:
        field = FormField("submit", PageForm(0, "f", "get", action), method="get")
        (control,) = controls_of(survey_of(*root(), button("Search", 1)), {("f", 1): field})
        return control.same

    assert same("https://site.test/search") == same("https://site.test/search")
    assert same("https://site.test/search") != same("https://site.test/find")


def test_a_list_reports_its_options_and_is_one_control():
    items = [
        *root(),
        SurveyItem(
            0, 1, "f", tag="select", role="combobox", name="Sort", acts=True, bid="a1", backend_node_id=1
        ),
        SurveyItem(1, 2, "f", tag="option", role="option", name="Price", acts=True, bid="a2"),
        SurveyItem(1, 2, "f", tag="option", role="option", name="Name", acts=True, bid="a3"),
    ]
    (control,) = controls_of(survey_of(*items), {})
    assert control.options == ("Price", "Name")


@given(st.integers(1_000_000_000_000, 1_999_999_999_999), words)
def test_an_address_without_what_varies_by_itself(moment, word):
    stored = f"https://site.test/p?q={word.replace(' ', '+')}"
    assert state_url(f"{stored}&t={moment}#part") == stored
    assert state_url(f"{stored}&_={moment}") == stored
    assert state_url(f"{stored}&page=2") != stored
    assert state_url(stored) == stored
