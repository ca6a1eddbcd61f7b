"""WebArena's configurations: all load, and each kind of evaluator scores as its own harness does."""

from __future__ import annotations

import json
from base64 import b64encode
from urllib.parse import urlencode

import pytest

from stillweb.env.tasks.evaluators import (
    AnswerEvaluator,
    ContentEvaluator,
    UnsupportedEvaluator,
    UrlEvaluator,
)
from stillweb.env.tasks.evidence import Evidence, Judgement, PageQueryResult, Question
from stillweb.env.tasks.formats.webarena import webarena_tasks
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import task_from_dict, task_to_dict
from stillweb.env.tasks.writes import request_evidence
from stillweb.errors import TaskError

SITES = {
    "__SHOPPING__": "http://shop.test/",
    "shopping_admin": "http://shop.test/admin",
    "REDDIT": "http://forum.test",
    "GITLAB": "http://git.test",
    "MAP": "http://map.test",
    "WIKIPEDIA": "http://wiki.test",
}


def entry(**more):
    return {
        "sites": ["shopping"],
        "task_id": 7,
        "start_url": "__SHOPPING__/lamps",
        "intent": "How much is the lamp?",
        "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "$9.85"}},
    } | more


def scored(evaluation, *, answer="", url="", readings=(), verdicts=()):
    return evaluation.score(
        Evidence(answer=answer, url=url, readings=tuple(readings), verdicts=tuple(verdicts))
    ).reward


def one(**more):
    (task,) = webarena_tasks([entry(**more)], sites=SITES, collections={"shopping": "shop"})
    return task


@pytest.mark.shared
def test_all_812_load_and_say_what_they_need(shared):
    tasks = load_tasks(shared / "tasks" / "webarena_test.raw.json", sites=SITES)
    assert len(tasks) == 812
    assert len({task.id for task in tasks}) == 812
    assert not any("__" in task.start_url for task in tasks)
    assert sum("judge" in task.needs for task in tasks) == 118
    assert sum("site_api" in task.needs for task in tasks) == 15
    assert all(task.needs <= {"judge", "site_api"} for task in tasks)
    for task in tasks:
        assert task_from_dict(json.loads(json.dumps(task_to_dict(task))), "here") == task


@pytest.mark.shared
def test_without_sites_they_load_too_and_are_never_scored(shared):
    tasks = load_tasks(shared / "tasks" / "webarena_test.raw.json")
    assert all("site_url" in task.needs for task in tasks)
    with pytest.raises(TaskError, match="no URL is given for"):
        tasks[0].evaluation.score(Evidence(answer="Quest Lumaflex\u2122 Band"))


def test_an_entry_becomes_a_task():
    task = one(start_url="__SHOPPING__/a |AND| __SHOPPING__/b")
    assert (task.id, task.goal, task.collection) == ("webarena.7", "How much is the lamp?", "shop")
    assert (task.start_url, task.tabs) == ("http://shop.test/a", ("http://shop.test/b",))


@pytest.mark.parametrize(
    "wrong",
    [
        {"eval": None},
        {"start_url": None},
        {"intent": ""},
        {"eval": {"eval_types": ["guess"]}},
        {"sites": None},
    ],
)
def test_a_bad_entry_is_named(wrong):
    with pytest.raises(TaskError, match=r"tasks\.json#1"):
        webarena_tasks([entry(), entry(**wrong)], sites=SITES, collections={}, source="tasks.json")


def test_a_missing_field_is_named():
    task = entry()
    del task["start_url"]
    with pytest.raises(TaskError, match=r"tasks\.json#0: .*: 'start_url' is missing"):
        webarena_tasks([task], sites=SITES, collections={}, source="tasks.json")


@pytest.mark.parametrize(
    ("reference", "answer", "reward"),
    [
        ({"exact_match": "$9.85"}, " '$9.85' ", 1.0),
        ({"exact_match": "Yes"}, "yes", 1.0),
        ({"exact_match": "Yes"}, "yes, sir", 0.0),
        ({"must_include": ["a b", "C"]}, "it is A B and c", 1.0),
        ({"must_include": ["a b", "d"]}, "it is a b", 0.0),
        # alone, a single sign must be a word of its own
        ({"must_include": ["0"]}, "10 reviews", 0.0),
        ({"must_include": ["0"]}, "there are 0.", 1.0),
        ({"must_include": ["0"]}, "(0)", 1.0),
        ({"must_include": ["3"]}, "3.5", 0.0),
        ({"must_include": ["0", "1"]}, "10", 1.0),
        ({"fuzzy_match": ["an hour"]}, "", 0.0),
        ({"fuzzy_match": "N/A"}, "n/a", 1.0),
    ],
)
def test_answers(reference, answer, reward):
    task = one(eval={"eval_types": ["string_match"], "reference_answers": reference, "string_note": "none"})
    assert scored(task.evaluation, answer=answer) == reward


def test_without_a_judge_what_is_fuzzy_is_an_error_and_no_reward():
    fuzzy = one(
        eval={"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["an hour"]}}
    ).evaluation
    assert fuzzy.questions("60 min") == (Question("How much is the lamp?", "60 min", "an hour"),)
    with pytest.raises(TaskError, match="needs a judge"):
        scored(fuzzy, answer="60 min")
    said = [Judgement(fuzzy.questions("60 min")[0], 0.5)]
    assert scored(fuzzy, answer="60 min", verdicts=said) == 0.5
    reasons = one(
        eval={
            "eval_types": ["string_match"],
            "reference_answers": {"fuzzy_match": "N/A"},
            "string_note": "no lamp",
        }
    ).evaluation
    assert reasons.questions("I found none")[0].kind == "unachievable"
    assert reasons.questions("N/A") == ()


@pytest.mark.parametrize(
    ("reference", "url", "reward"),
    [
        ("__SHOPPING__/cart", "http://shop.test/cart/", 1.0),
        ("__SHOPPING__/cart", "https://shop.test/cart/item", 1.0),
        ("__SHOPPING__/cart", "http://shop.test/car", 0.0),
        ("__SHOPPING__/s?q=a", "http://shop.test/s?q=a&p=2", 1.0),
        ("__SHOPPING__/s?q=a", "http://shop.test/s?q=b", 0.0),
        ("__REDDIT__/f/x |OR| __REDDIT__/f/y", "http://forum.test/f/y/1", 1.0),
    ],
)
def test_urls(reference, url, reward):
    task = one(eval={"eval_types": ["url_match"], "reference_url": reference, "url_note": "GOLD in PRED"})
    assert isinstance(task.evaluation, UrlEvaluator)
    assert scored(task.evaluation, url=url) == reward


def html(**target):
    given = {"url": "last", "locator": "", "required_contents": {"must_include": ["x"]}} | target
    return one(eval={"eval_types": ["program_html"], "program_html": [given]}).evaluation


def read(evaluation, value, url="http://shop.test/", threw=""):
    (look,) = evaluation.looks(url)
    return scored(evaluation, url=url, readings=[PageQueryResult(look, value, bool(value), threw)])


def test_contents_of_pages():
    whole = html(required_contents={"must_include": ["a |OR| b", "c &"]})
    assert read(whole, "<p>B</p>c &amp; d") == 1.0
    assert read(whole, "<p>B</p>") == 0.0
    part = html(url="__SHOPPING__/o", locator="document.title", required_contents={"exact_match": "Order"})
    (look,) = part.looks("http://shop.test/")
    assert (look.url, look.script) == ("http://shop.test/o", "() => document.title")
    assert read(part, " order") == 1.0
    assert read(part, None, threw="TypeError") == 0.0


def test_helpers_that_only_look_are_there_and_those_that_ask_the_site_are_not():
    post = html(url="func:reddit_get_post_url('__last_url__')")
    assert post.looks("http://forum.test/f/books/12/a-title?x=1")[0].url == "http://forum.test/f/books/12/"
    assert post.looks("http://forum.test/u/me")[0].url == "http://forum.test/u/me"
    role = html(locator="func:gitlab_get_project_memeber_role(__page__, 'yjlou')")
    assert isinstance(role, ContentEvaluator)
    assert '"@yjlou"' in role.locator
    for target in (
        {"url": "func:shopping_get_latest_order_url()"},
        {"locator": "func:shopping_get_sku_latest_review_author('B0')"},
        {"required_contents": {"looks_like": "x"}},
    ):
        unsupported = html(**target)
        assert isinstance(unsupported, UnsupportedEvaluator)
        with pytest.raises(TaskError, match="cannot be scored"):
            scored(unsupported)


def test_several_evaluators_multiply():
    both = one(
        eval={
            "eval_types": ["string_match", "url_match"],
            "reference_answers": {"exact_match": "a"},
            "reference_url": "__SHOPPING__",
        }
    ).evaluation
    assert [type(part) for part in both.parts] == [AnswerEvaluator, UrlEvaluator]
    assert scored(both, answer="a", url="http://shop.test/") == 1.0
    assert scored(both, answer="a", url="http://map.test/") == 0.0


# --- webarena-verified ----------------------------------------------------------------------------


REPORT = {"evaluator": "AgentResponseEvaluator", "expected": {"task_type": "mutate", "status": "SUCCESS"}}
NAVIGATE = {"evaluator": "AgentResponseEvaluator", "expected": {"task_type": "navigate", "status": "SUCCESS"}}


def expecting(**expected):
    more = {name: expected.pop(name) for name in list(expected) if name not in KNOWN}
    return {"evaluator": "NetworkEventEvaluator", "expected": expected, **more}


KNOWN = ("url", "http_method", "query_params", "post_data", "headers", "response_status")
REVIEW = {"http_method": "POST", "response_status": 302}


def verified(*events, report=REPORT):
    found = {
        "sites": ["shopping"],
        "task_id": 7,
        "start_urls": ["__SHOPPING__/lamps"],
        "intent": "Praise the lamp",
        "eval": [report, *events],
    }
    (task,) = webarena_tasks([found], sites=SITES, collections={"shopping": "shop"})
    return task


def sent(method, url, body=None):
    raw = urlencode(body).encode() if body else b""
    fields = [["content-type", "application/x-www-form-urlencoded"], ["sec-fetch-mode", "navigate"]]
    request = {"fields": fields} | ({"size": len(raw), "body": b64encode(raw).decode()} if raw else {})
    return {"method": method, "url": url, "status": 404, "tier": "miss", "asked": request}


def rewarded(evaluation, *requests, url="http://shop.test/lamps"):
    return evaluation.score(Evidence(url=url, requests=request_evidence(requests, bodies=True))).reward


def test_expected_requests_become_patterns():
    event = expecting(
        url="^__SHOPPING__/review/.*/id/[0-9]+$",
        post_data={"title": "Good lamp", "stars": ["4", "five"], "note": None},
        post_data_schema={"properties": {"title": {"type": "string"}}},
        **REVIEW,
    )
    task = verified(event)
    assert (task.id, task.collection, task.needs) == ("webarena_verified.7", "shop", frozenset())
    address = "http://shop.test/review/new/id/12"
    right = {"title": "good LAMP", "stars": "Five", "note": ""}
    assert rewarded(task.evaluation, sent("POST", address, right)) == 1.0
    for wrong in ({"title": "bad"}, {"stars": "3"}, {"note": "x"}):
        assert rewarded(task.evaluation, sent("POST", address, right | wrong)) == 0.0
    assert rewarded(task.evaluation, sent("PUT", address, right)) == 0.0
    assert rewarded(task.evaluation, sent("POST", address + "x", right)) == 0.0
    assert task_from_dict(task_to_dict(task), "x").evaluation == task.evaluation


def test_the_parameters_of_an_expected_url_count_and_the_last_page_too():
    event = expecting(url="__SHOPPING__/list?sort=price", http_method="GET", query_params={"page": ["2"]})
    evaluation = verified(event, report=NAVIGATE).evaluation
    address = "http://shop.test/list?page=2&sort=price"
    assert rewarded(evaluation, sent("GET", address), url=address) == 1.0
    assert rewarded(evaluation, sent("GET", address), url="http://shop.test/lamps") == 0.0
    other = "http://shop.test/list?page=2&sort=name"
    assert rewarded(evaluation, sent("GET", other), url=other) == 0.0


def test_a_request_that_must_not_be_sent():
    wanted = expecting(url="__SHOPPING__/cart", http_method="POST")
    never = expecting(url="__SHOPPING__/order", http_method="POST", should_not_exist=True)
    evaluation = verified(wanted, never).evaluation
    cart, order = (sent("POST", f"http://shop.test/{each}", {"a": "b"}) for each in ("cart", "order"))
    assert rewarded(evaluation, cart) == 1.0
    assert rewarded(evaluation, cart, order) == 0.0


@pytest.mark.parametrize(
    ("events", "need", "reason"),
    [
        ([], "agent_report", "only the agent's report"),
        ([expecting(url="__SHOPPING__/", headers={"referer": "x"})], "request_pattern", "reads headers"),
        ([expecting(url="__SHOPPING__/", decode_base64_query=True)], "request_pattern", "base64"),
        ([expecting(url="__SHOPPING__/", last_event_only=True)], "request_pattern", "last request only"),
        ([expecting(url="__SHOPPING__/", post_data={"^a": "b"})], "request_pattern", "name of a field"),
        ([expecting(url="__SHOPPING__/", post_data={"a": "^(?!b)$"})], "request_pattern", "no regular exp"),
        ([expecting(url="__TAXI__/")], "site_url", "TAXI"),
    ],
)
def test_what_no_pattern_expresses_is_never_scored(events, need, reason):
    task = verified(*events)
    assert task.needs == {need}
    with pytest.raises(TaskError, match=reason):
        task.evaluation.score(Evidence())


def test_the_file_of_webarena_verified_is_recognised(tmp_path):
    file = tmp_path / "webarena-verified.json"
    found = {"sites": ["shopping"], "task_id": 7, "start_urls": ["__SHOPPING__/"], "intent": "Praise"}
    file.write_text(json.dumps([found | {"eval": [REPORT]}]))
    assert load_tasks(file, sites=SITES)[0].id == "webarena_verified.7"
    file.write_text(json.dumps([found | {"eval": [{"evaluator": "NetworkEventEvaluator"}]}]))
    with pytest.raises(TaskError, match="#0: no configuration"):
        load_tasks(file, sites=SITES)
