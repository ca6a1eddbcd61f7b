"""Candidates and plans: goals with one answer, oracles within one part."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import shop_site

from stillweb.benchmarks.candidates import SiteFacts, answer_evaluator, is_heading, is_value
from stillweb.benchmarks.forms import change_and_verify, press_buttons, search_words, send_forms
from stillweb.benchmarks.pages import SitePage, read_page
from stillweb.benchmarks.plan import TaskPlanner
from stillweb.benchmarks.reading import (
    chain_links,
    chain_prices,
    compare_items,
    compare_rows,
    filter_rows,
    impossible,
    open_pages,
    report_pages,
    report_sections,
    report_values,
)
from stillweb.benchmarks.site import SiteMap, SiteWrite, is_document, read_site
from stillweb.env import Evidence

ALL = (report_values, report_pages, open_pages, compare_items, compare_rows, chain_prices, impossible)
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


def test_an_invented_name_has_parts_of_two_names_with_the_same_attribute():
    body = "<body><h1>{}</h1><table><tr><th>{}</th><td>{}</td></tr></table></body>"
    named = [("Piz Nair", "Height"), ("Monte Rosa", "Height"), ("Anna Berg", "Town"), ("Beat Thal", "Town")]
    pages = {
        url: read_page(url, body.format(name, attribute, f"{number} units"))
        for number, (name, attribute) in enumerate(named)
        for url in [f"https://s.test/{number}"]
    }
    for seed in range(9):
        found = {each.slots for each in impossible(SiteFacts(SiteMap(pages), seed))}
        assert found
        assert found <= {
            *(("Piz Rosa", "Height"), ("Monte Nair", "Height")),
            *(("Anna Thal", "Town"), ("Beat Berg", "Town")),
        }


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("Railing near the lamp is loose", "Crane near the gate makes noise"), 0),
        (("The Lord of the Rings", "The Wings of the Dove"), 1),
        (("Clean software", "Update kernels"), 1),
        (("DOTALL, S", "IGNORECASE, I"), 0),
    ],
)
def test_sentences_are_no_names_to_invent_from(names, count):
    body = "<body><h1>{}</h1><table><tr><th>Status</th><td>{}</td></tr></table></body>"
    pages = {f"https://s.test/{n}": read_page(f"https://s.test/{n}", body.format(n, n)) for n in names}
    assert len(list(impossible(SiteFacts(SiteMap(pages), 7)))) == count


@pytest.mark.parametrize(("first", "words"), [("1855", "year"), ("4634", "number")])
def test_years_are_early_or_late_and_not_low_or_high(first, words):
    values = {"Dom": "1858", "Ortler": "1804", "Dufour": first}
    rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in values.items())
    table = f"<table><tr><th>Summit</th><th>First ascent</th></tr>{rows}</table>"
    page = read_page("https://s.test/a", f"<body><h1>Alps</h1><h2>Summits</h2>{table}</body>")
    (candidate,) = compare_rows(SiteFacts(SiteMap({page.url: page}), 7))
    assert re.search(rf"has the \w+ {words} under", candidate.goal)


@pytest.mark.parametrize(("other", "count"), [("Alps", 0), ("Andes", 1)])
def test_a_table_of_one_of_two_pages_of_a_name_is_not_compared(other, count):
    rows = "".join(f"<tr><td>{name}</td><td>{len(name)}</td></tr>" for name in ("Dom", "Ortler", "Dufour"))
    rows = rows.replace("<td>6</td>", "<td>7</td>", 1)
    table = f"<table><tr><th>Summit</th><th>Ascents</th></tr>{rows}</table>"
    page = read_page("https://s.test/a", f"<body><h1>Alps</h1>{table}</body>")
    alike = read_page("https://s.test/b", f"<body><h1>{other}</h1></body>")
    found = list(compare_rows(SiteFacts(SiteMap({page.url: page, alike.url: alike}), 7)))
    assert [each.goal.partition(",")[0] for each in found] == ["On the page “Alps”"] * count


def test_a_field_for_a_number_gets_a_number():
    form = (
        '<form action="/join" method="post"><label>Federal Tax ID <input name="t"></label>'
        "<button>Join</button></form>"
    )
    page = read_page("https://s.test/a", f"<body><h1>Join us</h1>{form}</body>")
    for candidate in send_forms(SiteFacts(SiteMap({page.url: page}), 7)):
        assert candidate.acts[0]["value"].isdecimal()


def test_a_heading_that_is_cut_off_names_no_section():
    body = "<body><h1>All products</h1><h3>A Light in the {}</h3><h3>Tipping the Velvet</h3></body>"
    for end, count in (("Attic", 1), ("...", 0), ("…", 0)):
        page = read_page("https://s.test/a", body.format(end))
        assert len(list(report_sections(SiteFacts(SiteMap({page.url: page}), 7)))) == count


@pytest.mark.parametrize(
    ("values", "expected"), [(("3", "0", "0"), {"Lamp"}), (("0", "0"), set()), (("3", "0"), {"Lamp", "Door"})]
)
def test_no_question_has_the_value_that_most_subjects_have(values, expected):
    rows = zip(("Lamp", "Door", "Gate"), values, strict=False)
    rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows)
    table = f"<table><tr><th>Item</th><th>Reviews</th></tr>{rows}</table>"
    page = read_page("https://s.test/a", f"<body><h1>Stock list</h1>{table}</body>")
    found = report_values(SiteFacts(SiteMap({page.url: page}), 7))
    assert {each.slots[0] for each in found} == expected


def test_a_row_of_totals_is_no_row_to_compare():
    rows = {"Phones": "3", "Printers": "9", "Lamps": "4"}

    def found(rows):
        cells = "".join(f"<tr><td>{name}</td><td>{count}</td></tr>" for name, count in rows.items())
        table = f"<table><tr><th>Queue</th><th>Resolved</th></tr>{cells}</table>"
        page = read_page("https://s.test/a", f"<body><h1>Queue by status</h1>{table}</body>")
        return list(compare_rows(SiteFacts(SiteMap({page.url: page}), 7)))

    assert found(rows)
    assert not found(rows | {"Total": "16"})


def test_a_form_for_reviews_gets_titles_of_reviews():
    fields = '<input name="title" aria-label="Title"><textarea name="body" aria-label="Body"></textarea>'
    form = f'<form action="/reviews/add" method="post">{fields}<button>Save review</button></form>'
    page = read_page("https://s.test/e", f"<body><h1>Blue lamp</h1>{form}</body>")
    for candidate in send_forms(SiteFacts(SiteMap({page.url: page}), 7)):
        assert not re.search(r"“(Question|Request|Order)”", candidate.goal)


def test_no_question_is_about_a_link_beside_every_name_of_an_invented_page():
    def page(name: str) -> SitePage:
        rows = "<tr><th>Groups</th><td>Add</td></tr><tr><th>Users</th><td>Add</td></tr>"
        return read_page(f"https://s.test/{name[:3]}", f"<body><h1>{name}</h1><table>{rows}</table></body>")

    pages = [page("Select user"), page("Change group")]
    assert not list(impossible(SiteFacts(SiteMap({each.url: each for each in pages}), 7)))


def test_no_question_is_about_a_column_of_buttons():
    rows = "".join(f"<tr><td>{name}</td><td>Edit</td></tr>" for name in ("Anna", "Beat"))
    table = f"<table><tr><th>Name</th><th>Actions</th></tr>{rows}</table>"
    page = read_page("https://s.test/a", f"<body><h1>Staff list</h1>{table}</body>")
    assert list(report_values(SiteFacts(SiteMap({page.url: page}), 7))) == []


@pytest.mark.parametrize(
    ("text", "value"), [("Oak (3)", False), ("Oak (1984)", True), ("Oak(3)", True), ("3", True)]
)
def test_an_option_of_a_filter_with_its_count_is_no_value(text, value):
    assert is_value(text) is value


def test_a_heading_in_brackets_describes_no_section():
    assert not is_heading("Search in [root]")
    assert is_heading("Search in root")


@pytest.mark.parametrize("text", ["''%%for%%'' Statements", "The ``match`` Statement", "See [[playground]]"])
def test_a_heading_with_markup_that_its_page_shows_describes_no_section(text):
    assert not is_heading(text)


@pytest.mark.parametrize(
    ("text", "heading"), [("No events found", False), ("No limits", True), ("Found a company", True)]
)
def test_an_empty_list_describes_no_section(text, heading):
    assert is_heading(text) is heading


def test_an_invented_row_belongs_to_one_table():
    rows = "".join(
        f"<tr><td>{name}</td><td>{n}</td></tr>" for n, name in enumerate(("Anna Berg", "Beat Thal"))
    )
    body = (
        "<body><h1>Keys of {0}</h1><h2>Rooms of {0}</h2><table><tr><th>Name</th><th>Room</th></tr>{1}</table>"
    )
    page = read_page("https://s.test/a", body.format("the pier", rows))
    found = [each.goal for each in impossible(SiteFacts(SiteMap({page.url: page}), 7))]
    assert len(found) == 1
    part = replace(page, paginated=True)  # the other parts may have the row
    assert not list(impossible(SiteFacts(SiteMap({page.url: part}), 7)))
    assert re.search(r"page “Keys of the pier”.*“(Anna Thal|Beat Berg)”", found[0])


def test_a_search_field_that_an_icon_names_is_left_out():
    form = '<form action="/find"><input type="search" name="q" aria-label="{}"></form>'
    body = f"<body><h1>{{}}</h1>{form.format('⚲')}{form.format('Search')}</body>"
    names = ("Harbour lights", "Mountain lakes", "Copper mines")
    urls = [f"https://s.test/{name[:3]}" for name in names]
    pages = {url: read_page(url, body.format(name)) for url, name in zip(urls, names, strict=True)}
    found = list(search_words(SiteFacts(SiteMap(pages), 7)))
    assert {act["name"] for each in found for act in each.acts} == {"Search"}


def test_forms_are_scored_by_what_they_send(facts):
    (candidate, *_) = send_forms(facts)
    pattern = candidate.evaluation.requests[0]
    assert pattern.url == (f"{shop_site.ORIGIN}/contact",)
    assert set(pattern.body) == {"name", "mail", "topic"}
    assert [act["action"] for act in candidate.acts] == ["fill", "fill", "select", "click"]
    assert candidate.neighbours[0] != candidate.acts


def test_a_form_gets_different_texts_that_suit_its_page():
    area = '<label>{} <textarea name="{}"></textarea></label>'
    fields = area.format("Text", "a") + area.format("Summary:", "b")
    form = f'<form action="/save" method="post">{fields}<button>Save</button></form>'
    page = read_page("https://s.test/e", f"<body><h1>Editing Piers</h1>{form}</body>")
    found = list(send_forms(SiteFacts(SiteMap({page.url: page}), 7)))
    assert found
    for candidate in found:
        texts = [act["value"] for act in candidate.acts if act["action"] == "fill"]
        assert len(set(texts)) == 2
        assert "under “Summary”" in candidate.goal
        assert "order" not in candidate.goal


def test_the_value_that_several_rows_have_is_no_name_of_a_row():
    head = "<tr><th>Priority</th><th>Subject</th><th>Status</th></tr>"

    def page(url: str, *rows: str) -> SitePage:
        cells = "".join("<tr><td>{}</td><td>{}</td><td>{}</td></tr>".format(*row.split()) for row in rows)
        return read_page(
            url, f"<title>Faults</title><body><h2>Issues</h2><table>{head}{cells}</table></body>"
        )

    few = page("https://s.test/?high", "High Lamp New", "Low Door Open")
    most = page("https://s.test/", "High Lamp New", "Low Door Open", "Low Gate Done")
    site = SiteMap({few.url: few, most.url: most})
    assert {each.slots[0] for each in report_values(SiteFacts(site, 7))} == {"High", "Lamp", "Door", "Gate"}
    more = page("https://s.test/all", "High Lamp New", "Low Door Open", "High Wall Won")
    site = SiteMap({few.url: few, most.url: most, more.url: more})
    assert {each.slots[0] for each in report_values(SiteFacts(site, 7))} == {"Lamp", "Door", "Gate", "Wall"}


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


def test_pages_without_links_between_them_are_start_pages_of_their_own():
    body = "<body><h1>{0}</h1><table><tr><th>Code</th><td>X{0}</td></tr></table></body>"
    urls = [f"https://s.test/{number}" for number in range(3)]
    pages = {url: read_page(url, body.format(f"Lamp {url[-1]}")) for url in urls}
    site = SiteMap(pages, starts=(urls[0],))
    planner = TaskPlanner(site, dict.fromkeys(urls, "train"), "shop", 7, 3)
    plans = [planner.plan(each, "t") for each in report_values(SiteFacts(site, 7))]
    assert {plan.task.start_url for plan in plans if plan} == set(urls)


def test_a_plan_stays_in_its_part(site, facts):
    parts = {url: "test" if "chair" in url else "train" for url in site.pages}
    plans = [planner(site, parts).plan(each, "t") for make in (*ALL, *FORMS) for each in make(facts)]
    origins = [plan.task.origin for plan in plans if plan and plan.task.origin]
    assert {origin.split for origin in origins} == {"train", "test"}
    for origin in origins:
        assert {parts[url] for url in origin.pages} == {origin.split}
    train = {url for origin in origins if origin.split == "train" for url in origin.pages}
    assert not train & {url for origin in origins if origin.split == "test" for url in origin.pages}


def test_a_form_whose_page_sends_further_writes_is_proved_without_that_condition(site, facts):
    plans = planner(site)
    (candidate, *_) = send_forms(facts)
    first = plans.plan(candidate, "t")
    assert first
    assert first.task.evaluation.only
    second = plans.after(first, "oracle: reward", None)
    assert second
    assert not second.task.evaluation.only
    assert second.task.evaluation.requests == first.task.evaluation.requests
    assert plans.after(second, "oracle: reward", None) is None
    assert plans.after(first, "neighbours: reward 1", None) is None


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


def _sections(url: str, body: str, *names: str) -> SitePage:
    return read_page(
        url, f"<body><h1>{names[0]}</h1>{body}{''.join(f'<h2>{n}</h2>' for n in names[1:])}</body>"
    )


def test_each_page_gives_a_question_about_its_sections_before_one_gives_two():
    pages = [
        _sections("https://a.test/1", "", "Lamps", "Oak lamps", "Tin lamps", "Glass lamps"),
        _sections("https://a.test/2", "", "Chairs", "Oak chairs", "No chair selected!", "Tin chairs"),
        _sections("https://a.test/3", "", "Tables", "Oak tables", "Tin tables"),
    ]
    found = list(report_sections(SiteFacts(SiteMap({each.url: each for each in pages}), 7)))
    assert {each.visits[0] for each in found[:2]} == {pages[0].url, pages[2].url}
    assert [each.answer for each in found if each.visits == (pages[0].url,)] == ["Tin lamps", "Glass lamps"]
    assert len(found) == 3


@pytest.mark.parametrize("between", ['<h3><a href="/post">A post</a></h3>', "<h5>A note</h5>"])
def test_a_heading_comes_right_after_another_one_only_without_one_between(between):
    html = f"<body><h1>Lamps</h1><h2>Oak lamps</h2>{between}<h2>Tin lamps</h2><h2>Glass lamps</h2></body>"
    page = read_page("https://a.test/", html)
    assert [each.answer for each in report_sections(SiteFacts(SiteMap({page.url: page}), 7))] == [
        "Glass lamps"
    ]


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ("<h3>Sales plan</h3><h3>Tasks due</h3>", [("Sales plan", "Tasks due"), ("Visitors", "Calendar")]),
        ("<h3>Tasks due</h3>", [("Tasks due", "Visitors"), ("Visitors", "Calendar")]),
    ],
)
def test_the_first_heading_of_another_column_does_not_come_right_after_the_last_of_one(first, found):
    columns = f"<div>{first}</div><div><h3>Visitors</h3><h3>Calendar</h3></div>"
    page = read_page("https://s.test/a", f"<body><h1>Overview</h1><main>{columns}</main></body>")
    candidates = report_sections(SiteFacts(SiteMap({page.url: page}), 7))
    assert [(each.slots[1], each.answer) for each in candidates] == found


def test_a_link_to_the_page_itself_is_not_followed():
    link = '<a href="/1?view=b">{}</a>'
    pages = [
        _sections("https://a.test/1", link.format("lamps"), "Lamps", "Oak lamps", "Tin lamps"),
        _sections("https://a.test/1?view=b", link.format("lamps"), "Lamps", "Oak lamps", "Tin lamps"),
        _sections("https://a.test/3", link.format("All lamps"), "Tables", "Oak tables", "Tin tables"),
    ]
    found = list(chain_links(SiteFacts(SiteMap({each.url: each for each in pages}), 7)))
    assert [each.visits for each in found] == [("https://a.test/3", "https://a.test/1?view=b")]


def test_a_section_that_occurs_twice_is_no_wrong_answer():
    pages = [
        _sections("https://a.test/1", '<a href="/2">Staff list</a>', "Home"),
        _sections("https://a.test/2", "", "Staff", "Ann Hill", "Bob Lake", "Ann Hill"),
    ]
    (candidate,) = chain_links(SiteFacts(SiteMap({each.url: each for each in pages}), 7))
    assert candidate.answer == "Ann Hill"
    assert candidate.wrong[0] == "Bob Lake"
    assert "Ann Hill" not in candidate.wrong


def test_a_title_that_another_page_has_too_is_no_description():
    text = "A page with a few words about a lamp."
    article = read_page(
        "https://w.test/?id=lamps", f"<title>w:lamps</title><body><h1>Lamps</h1>{text}</body>"
    )
    editor = read_page("https://w.test/?id=lamps&do=edit", f"<title>w:lamps</title><body>{text} Edit</body>")
    goals = [c.goal for c in open_pages(SiteFacts(SiteMap({p.url: p for p in (article, editor)}), 7))]
    assert goals == ["Open the page “Lamps”."]


def test_questions_about_people_begin_with_who_and_terms_are_no_properties():
    pairs = {"Author": ("Ann Hill", "Bob Lake"), "Generators": ("A long text about generators. " * 9,) * 2}
    pages = {}
    for number, name in enumerate(("Oak guide", "Tin guide")):
        rows = "".join(f"<dt>{term}</dt><dd>{texts[number]}</dd>" for term, texts in pairs.items())
        page = read_page(f"https://w.test/{number}", f"<body><h1>{name}</h1><dl>{rows}</dl></body>")
        pages[page.url] = page
    facts = SiteFacts(SiteMap(pages), 7)
    goals = sorted(candidate.goal for candidate in report_values(facts))
    assert goals == [
        f"Who is the author of “{name}”? Answer “N/A” if the site does not say."
        for name in ("Oak guide", "Tin guide")
    ]
    assert not any("Generators" in candidate.goal for candidate in impossible(facts))


def test_another_start_page_replaces_one_from_which_a_walk_solved_the_task(shop):
    site = read_site(shop)
    facts = SiteFacts(site, 7)
    candidate = next(each for each in report_values(facts) if each.visits[0].endswith("oak-lamp"))
    plans = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 7, 2)
    first = plans.plan(candidate, "t")
    assert first
    second = plans.after(first, "walks: reward", None)
    assert second
    assert second.task.start_url != first.task.start_url
    assert plans.after(second, "walks: reward", None) is None
    assert plans.after(first, "oracle: reward", None) is None
    hidden = first.clicks[-1]
    other = plans.after(first, "oracle: control", hidden)
    assert other is None or hidden not in other.clicks
    assert hidden not in site.edges[hidden.page]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<!DOCTYPE html><title>Lamp</title><h1>Lamp</h1>", True),
        ("<html><title>Lamp</title>", True),
        ("<title>Lamp</title><body>", True),
        ("<li>a part of a list</li>", False),
    ],
)
def test_a_document_may_lack_optional_tags(html, expected):
    assert is_document(html) is expected


def test_a_page_that_sets_its_own_problem_is_planned_once(site, facts):
    plans = planner(site)
    plan = plans.plan(next(report_values(facts)), "t")
    game = replace(plan, task=replace(plan.task, setup=("begin({seed})",)))
    assert plans.after(game, "walks: reward", None) is None


def test_pages_to_open_are_two_clicks_away_if_they_can_be(site, facts):
    starts = (f"{shop_site.ORIGIN}/lamps", f"{shop_site.ORIGIN}/staff")
    plans = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 7, 1)
    plans.starts["train"] = starts
    for candidate in open_pages(facts):
        if candidate.visits[0].endswith("-lamp"):
            plan = plans.plan(candidate, "t")
            assert plan
            assert len(plan.clicks) == 2


def test_a_page_is_reached_under_any_of_its_urls():
    def page(path: str, body: str) -> SitePage:
        return read_page(f"https://a.test{path}", f"<body>{body}</body>")

    guide = "<h1>Guide</h1><h2>First steps</h2><h2>Last steps</h2>"
    pages = [page("/", '<h1>Home</h1><a href="/guide?v=2">Guide</a>'), page("/guide", guide)]
    pages.append(page("/guide?v=2", guide))
    site = SiteMap({each.url: each for each in pages}, starts=("https://a.test/",))
    plans = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "a", 7, 1)
    (candidate,) = (each for each in open_pages(SiteFacts(site, 7)) if "steps" in each.goal)
    plan = plans.plan(candidate, "t")
    assert plan
    assert plan.expected[0] == "https://a.test/guide?v=2"
    assert candidate.evaluation.score(Evidence(url="https://a.test/guide?v=2")).reward == 1.0


def _listing(query: str, links: str) -> SitePage:
    url = f"https://a.test/list{query}"
    return read_page(url, f"<body><h1>List</h1><p>Ordered by {query}</p>{links}</body>")


def test_start_pages_are_different_pages_under_their_shortest_urls():
    links = "".join(f'<a href="/{n}">Page {n}</a>' for n in range(6))
    pages = [_listing(query, links) for query in ("?sort=name", "", "?sort=age")]
    urls = [f"https://a.test/{n}" for n in range(6)]
    pages += [read_page(url, f"<body><h1>Page {url[-1]}</h1>{links[:80]}</body>") for url in urls]
    site = SiteMap({each.url: each for each in pages})
    plans = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "a", 7, 3)
    starts = plans.starts["train"]
    assert starts[0] == "https://a.test/list"
    assert len({site.views(url) for url in starts}) == 3


def test_a_link_of_every_page_makes_one_question():
    menu = '<a href="/team">Team</a>'
    team = "<body><h1>Team</h1><h2>Founders</h2><h2>Helpers</h2></body>"
    pages = [read_page(f"https://a.test/{n}", f"<body><h1>Page {n}</h1>{menu}</body>") for n in "abc"]
    site = SiteMap({each.url: each for each in [*pages, read_page("https://a.test/team", team)]})
    assert len({each.slots for each in chain_links(SiteFacts(site, 7))}) == 1


def test_a_table_is_named_if_its_page_has_several():
    sizes = {"Plan.pdf": 4, "Bill.pdf": 7}
    rows = "".join(f"<tr><td>{name}</td><td>{size} kB</td></tr>" for name, size in sizes.items())
    table = f"<table><tr><th>File</th><th>Size</th></tr>{rows}</table>"
    other = table.replace("Plan", "Note").replace("Bill", "List")
    page = read_page("https://a.test/", f"<body><h1>Project</h1><h3>Documents</h3>{table}</body>")
    two = read_page(page.url, f"<body><h1>Project</h1><h3>Documents</h3>{table}<h3>Drafts</h3>{other}</body>")
    alike = replace(page, url="https://a.test/b", content="other")
    places = []
    for pages in ((page,), (two,), (page, alike)):
        facts = SiteFacts(SiteMap({each.url: each for each in pages}), 7)
        places.append({re.match("[^“]*(“[^“]*”[^“,]*)*,", each.goal)[0] for each in report_values(facts)})
    first = "In the table “Documents” on the page “Project”,"
    assert places == [
        {"On the page “Project”,"},
        {first, "In the table “Drafts” on the page “Project”,"},
        {first},
    ]


def test_a_row_is_looked_up_in_the_column_of_its_own_table():
    def table(*rows: tuple[str, ...]) -> str:
        cells = [
            "".join(f"<t{'hd'[bool(n)]}>{cell}</t{'hd'[bool(n)]}>" for cell in row)
            for n, row in enumerate(rows)
        ]
        return "".join(f"<tr>{each}</tr>" for each in cells).join(("<table>", "</table>"))

    works = table(("Project", "Town"), ("New roof", "Leeds"), ("Old bridge", "York"), ("Long wall", "Bath"))
    staff = table(("Person", "Town"), ("Ann Hill", "Hull"), ("Bob Lake", "Deal"), ("Cy Wood", "Wick"))
    page = read_page("https://a.test/", f"<title>Works</title><body>{works}{staff}</body>")
    facts = SiteFacts(SiteMap({page.url: page}), 7)
    goals = [each.goal for make in (report_values, impossible) for each in make(facts)]
    columns = {"Project": "roof|bridge|wall", "Person": "Hill|Lake|Wood"}
    named = [(column, goal) for goal in goals for column in columns if f"in the column “{column}”" in goal]
    assert {column for column, _ in named} == {*columns}
    assert not [goal for column, goal in named if not re.search(columns[column], goal)]


def test_the_page_of_a_heading_that_gives_it_away_is_no_question():
    headings = "<h2>Oak for experts</h2><h2>Care and cleaning</h2>"
    page = read_page("https://a.test/", f"<title>Oak - shop</title><body><h1>Oak</h1>{headings}</body>")
    (candidate,) = report_pages(SiteFacts(SiteMap({page.url: page}), 7))
    assert "“Care and cleaning”" in candidate.goal
    assert [reward(candidate, each) for each in ("Oak", "oak - shop", "Oak tree")] == [1.0, 1.0, 0.0]
