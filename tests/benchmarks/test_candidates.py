"""Candidates and plans: goals with one answer, oracles within one part."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import shop_site

from stillweb.benchmarks.candidates import (
    SiteFacts,
    answer_evaluator,
    chain_prices,
    compare_items,
    compare_rows,
    filter_rows,
    impossible,
    open_pages,
    report_values,
)
from stillweb.benchmarks.forms import change_and_verify, press_buttons, search_words, send_forms
from stillweb.benchmarks.pages import SitePage, read_page
from stillweb.benchmarks.plan import TaskPlanner
from stillweb.benchmarks.site import SiteMap, SiteWrite
from stillweb.env import Evidence

ALL = (report_values, open_pages, compare_items, compare_rows, chain_prices, impossible)
FORMS = (send_forms, press_buttons, search_words)


@pytest.fixture
def facts(site):
    return SiteFacts(site, 7)


def reward(candidate, answer: str) -> float:
    return candidate.evaluation.score(Evidence(answer=answer)).reward


@pytest.mark.parametrize("make", [*ALL, *FORMS])
def test_every_generator_finds_tasks_in_the_shop_and_repeats_them(site, make):
    first, second = (list(make(SiteFacts(site, 7))) for _ in range(2))
    assert first
    assert first == second


@pytest.mark.parametrize("make", [report_values, compare_items, compare_rows, chain_prices, impossible])
def test_the_answer_scores_and_what_is_near_does_not(facts, make):
    for candidate in make(facts):
        assert reward(candidate, candidate.answer) == 1.0, candidate.goal
        assert candidate.wrong
        for wrong in ("", *candidate.wrong):
            assert reward(candidate, wrong) == 0.0, (candidate.goal, wrong)


def test_goals_are_sentences_that_do_not_give_the_answer_away(facts):
    for candidate in (each for make in (*ALL, *FORMS) for each in make(facts)):
        assert re.fullmatch(r"[A-Z“].*[.?]", candidate.goal), candidate.goal
        if candidate.family not in ("impossible", "compare"):
            assert not candidate.answer or candidate.answer not in candidate.goal


@pytest.mark.parametrize(
    ("value", "accepted", "refused"),
    [
        (
            "£1,250.00",
            ["£1,250.00", "1250.00", "1,250.00", "1250.00 £"],
            ["£1,250.01", "250.00", "$1,250.00"],
        ),
        ("SKU-101", ["sku-101", " SKU-101 "], ["SKU-1", "SKU-1011", ""]),
    ],
)
def test_graders_accept_spellings_of_the_value_only(value, accepted, refused):
    evaluator = answer_evaluator(value)
    assert [evaluator.score(Evidence(answer=each)).reward for each in accepted] == [1.0] * len(accepted)
    assert [evaluator.score(Evidence(answer=each)).reward for each in refused] == [0.0] * len(refused)


def test_a_question_with_two_answers_is_no_candidate():
    body = "<body><h1>Oak lamp</h1><table><tr><th>Code</th><td>{}</td></tr></table></body>"
    twice = {
        url: read_page(url, body.format(code))
        for url, code in (("https://s.test/a", "X1"), ("https://s.test/b", "X2"))
    }
    other = read_page("https://s.test/c", body.format("X3").replace("Oak lamp", "Tin lamp"))
    candidates = list(report_values(SiteFacts(SiteMap({**twice, other.url: other}), 7)))
    assert [each.answer for each in candidates] == ["X3"]


@pytest.mark.parametrize(("last", "count"), [("3.10", 0), ("4", 1)])
def test_versions_are_no_numbers(last, count):
    since = {"Roof": "3.8", "Wall": "3.9", "Door": last}
    rows = "".join(f"<tr><td>{part}</td><td>{version}</td></tr>" for part, version in since.items())
    table = f"<table><tr><th>Part</th><th>Since</th></tr>{rows}</table>"
    body = f"<body><h1>Parts</h1><h2>Parts list</h2>{table}</body>"
    page = read_page("https://s.test/a", body)
    assert len(list(compare_rows(SiteFacts(SiteMap({page.url: page}), 7)))) == count


def test_impossible_questions_name_what_no_page_has(facts):
    text = facts.site.folded_text
    for candidate in impossible(facts):
        assert candidate.slots[0].casefold().replace(" ", "") not in text


def test_forms_are_scored_by_what_they_send(facts):
    (candidate, *_) = send_forms(facts)
    pattern = candidate.evaluation.requests[0]
    assert pattern.url == (f"{shop_site.ORIGIN}/contact",)
    assert set(pattern.body) == {"name", "mail", "topic"}
    assert [act["action"] for act in candidate.acts] == ["fill", "fill", "select", "click"]
    assert candidate.neighbours[0] != candidate.acts


def planner(site, parts=None) -> TaskPlanner:
    return TaskPlanner(site, parts or dict.fromkeys(site.pages, "train"), "shop", 7, 1)


def test_a_plan_leads_from_a_start_page_by_named_links(site, facts):
    candidate = next(each for each in report_values(facts) if each.visits[0].endswith("oak-lamp"))
    plan = planner(site).plan(candidate, "t")
    assert plan
    assert plan.task.start_url == f"{shop_site.ORIGIN}/"
    assert [step["name"] for step in plan.oracle[:-1]] == ["Lamps", "Oak lamp"]
    assert plan.oracle[-1] == {"action": "terminate", "answer": candidate.answer}
    assert plan.expected[-2:] == (f"{shop_site.ORIGIN}/oak-lamp", "")
    assert plan.task.origin
    assert plan.task.origin.length == 3
    assert not any("bid" in step for step in plan.oracle)


def test_a_plan_stays_in_its_part(site, facts):
    parts = {url: "test" if "chair" in url else "train" for url in site.pages}
    plans = [planner(site, parts).plan(each, "t") for make in (*ALL, *FORMS) for each in make(facts)]
    origins = [plan.task.origin for plan in plans if plan and plan.task.origin]
    assert {origin.split for origin in origins} == {"train", "test"}
    for origin in origins:
        assert {parts[url] for url in origin.pages} == {origin.split}
    train = {url for origin in origins if origin.split == "train" for url in origin.pages}
    assert not train & {url for origin in origins if origin.split == "test" for url in origin.pages}


def table_page(url: str, rows: str, links: str = "") -> SitePage:
    head = "<tr><th>Name</th><th>Town</th></tr>"
    return read_page(url, f"<title>Staff</title><body>{links}<table>{head}{rows}</table></body>")


def test_a_link_that_filters_a_table_makes_a_task():
    rows = [
        f"<tr><td>{name}</td><td>{town}</td></tr>"
        for name, town in (("Ann", "Leeds"), ("Bob", "York"), ("Cy", "Bath"), ("Dan", "York"))
    ]
    link = '<a href="?town=York">York</a>'
    pages = [
        table_page("https://a.test/staff", "".join(rows), link),
        table_page("https://a.test/staff?town=York", rows[1] + rows[3]),
    ]
    (candidate,) = filter_rows(SiteFacts(SiteMap({page.url: page for page in pages}), 7))
    assert candidate.answer == "Bob"
    assert reward(candidate, "Bob") == 1.0
    assert reward(candidate, "Ann") == 0.0
    assert "whose “Town” is “York”" in candidate.goal
    pages[1] = table_page("https://a.test/staff?town=York", rows[0] + rows[1])
    assert list(filter_rows(SiteFacts(SiteMap({page.url: page for page in pages}), 7))) == []


def test_a_recorded_write_makes_a_task_that_reads_its_effect():
    def shop(total: str, more: str = "") -> SitePage:
        card = (
            '<article><a href="/cup">Tin cup</a> £4.00<form action="/add/1" method="post">'
            "<button>Add to basket</button></form></article>"
        )
        text = f"<title>All cups</title><body>Basket total: {total} {more}{card}</body>"
        return read_page("https://a.test/", text)

    before = shop("£0.00")
    write = SiteWrite(before.url, "https://a.test/add/1", before.url, (shop("£4.10", "Tin cup"),))
    site = SiteMap({before.url: before}, writes=(write,))
    (candidate,) = change_and_verify(SiteFacts(site, 7))
    assert candidate.goal == (
        "On the page “All cups”, add “Tin cup” to the basket. What is the basket total then? "
        "Answer with the amount."
    )
    assert (candidate.answer, candidate.acts[-1]["name"]) == ("£4.10", "Add to basket")
    other = SiteMap({before.url: before}, writes=(replace(write, after=(shop("£9.00"),)),))
    assert list(change_and_verify(SiteFacts(other, 7))) == []  # another item's basket


def test_a_recording_of_one_page_makes_tasks_that_begin_there():
    rows = "".join(
        f"<tr><td>{name}</td><td>{town}</td></tr>"
        for name, town in zip(["Ann", "Bob", "Cy"], "XYZ", strict=True)
    )
    page = table_page("https://a.test/", rows)
    site = SiteMap({page.url: page})
    plans = TaskPlanner(site, {page.url: "train"}, "a", 7, 1)
    found = [plans.plan(each, "t") for each in report_values(SiteFacts(site, 7))]
    assert [plan.task.start_url for plan in found if plan] == [page.url] * len(found)
    assert found
