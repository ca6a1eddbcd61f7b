from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillweb.collections.layout import Collection
from stillweb.collections.learn.guards import GIVEN
from stillweb.collections.learn.rules import (
    ANOTHER_TIME,
    LearnResult,
    learn,
    learn_within,
    merge,
    read_rules,
    write_rules,
)
from stillweb.collections.manifest import Manifest
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.rules import Rule, RuleOrigin, Rules
from stillweb.model import Exchange, Request, Response

AT, LATER = "20260101120000", "20260102120000"
T1, T2 = 1767268811, 1767355217  # shortly after those, not on a whole minute
UUIDS = ("123e4567-e89b-42d3-a456-426614174000", "9b2f0c1e-0d3a-4f6e-8b21-77d0a1c9e5f4")
JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
HTML = (("Content-Type", "text/html"),)


def answer(body: str = "ok", status: int = 200, headers=HTML) -> Response:
    return Response(status, "OK", headers, body.encode())


def get(url: str, body: str = "ok") -> tuple[Request, Response]:
    return Request("GET", "https://a.test" + url), answer(body)


def post(url: str, headers, body: bytes, said: str = "ok") -> tuple[Request, Response]:
    return Request("POST", "https://a.test" + url, headers, body), answer(said)


@pytest.fixture
def recorded(tmp_path):
    def record(name: str, story, at: str = AT) -> Collection:
        collection = Collection.create(tmp_path, name)
        collection.write_manifest(Manifest(name=name, recorded_at=at))
        with CollectionWriter(collection) as writer:
            for request, response in story:
                writer.write(Exchange(request, response, at))
        return collection

    return record


@pytest.fixture
def twice(recorded):
    def compare(first, second):
        return learn(recorded("one", first), recorded("two", second, LATER))

    return compare


def places(learned) -> list[tuple[str, str, str, str]]:
    return [(rule.where, rule.name, rule.path, rule.shape) for rule in learned.rules]


def whys(learned) -> set[str]:
    return {each.why for each in learned.rejected}


# -- what is learned ------------------------------------------------------------------------------


def test_times_draws_and_tokens_of_every_kind_of_place(twice):
    def story(time: int, uuid: str, token: str, draw: str):
        multipart = (("Content-Type", "multipart/form-data; boundary=b"),)
        part = f'--b\r\nContent-Disposition: form-data; name="nonce"\r\n\r\n{token}\r\n--b--'.encode()
        graphql = {"query": "{ a }", "variables": {"requestId": uuid, "n": 3}}
        return [
            get("/"),
            get(f"/ping?q=1&t={time}000"),
            get(f"/pixel?{time}"),
            get(f"/random?r={draw}"),
            get(f"/s/{uuid}/info"),
            post("/login", FORM, f"user=me&csrf={token}".encode(), "welcome"),
            post("/rpc", JSON, json.dumps({"items": [{"ts": time, "id": 7}], "page": 1}).encode()),
            post("/graphql", JSON, json.dumps(graphql).encode()),
            post("/upload", multipart, part),
        ]

    learned = twice(
        story(T1, UUIDS[0], "k3Jx90aQ77bz", "0.8444218515250481"),
        story(T2, UUIDS[1], "Zp81mm4Kd2Tq", "0.7579544029403025"),
    )
    assert sorted(places(learned)) == [
        ("form", "csrf", "/login", "token"),
        ("json", "items[].ts", "/rpc", "seconds"),
        ("json", "variables.requestId", "/graphql", "uuid"),
        ("multipart", "nonce", "/upload", "token"),
        ("path", "2", "/s/*/info", "uuid"),
        ("query", "", "/pixel", "seconds"),
        ("query", "r", "/random", "decimal"),
        ("query", "t", "/ping", "milliseconds"),
    ]
    assert {rule.origin for rule in learned.rules} == {RuleOrigin.LEARNED}
    assert (learned.requests, learned.unmatched, learned.pairs) == ((9, 9), (8, 8), 8)
    assert learned.rejected == ()


def last_hours(end: int, hours: int = 1) -> tuple[Request, Response]:
    return get(f"/runs?since={end - hours * 3600}&until={end}")


def test_a_range_is_compared_by_its_size_and_not_dropped(recorded):
    one, two = recorded("one", [last_hours(T1)]), recorded("two", [last_hours(T2)], LATER)
    learned = learn(one, two)
    assert places(learned) == [("query", "since", "/runs", "clock"), ("query", "until", "/runs", "clock")]
    rules = merge(read_rules(one), learned)
    assert rules.aliases(last_hours(T1)[0]) == ()
    keys = [rules.clock_alias(last_hours(T1 + 5, hours)[0]) for hours in (1, 2)]
    recorded_key = rules.clock_alias(last_hours(T1)[0])
    assert [key.key == recorded_key.key for key in keys if key and recorded_key] == [True, False]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (get(f"/runs?since={T1 - 3600}"), get(f"/runs?since={T2 - 3600}")),
        (last_hours(T1, 1), last_hours(T2, 2)),
        (last_hours(T1 - 3600, 1), last_hours(T2 - 3600, 1)),
    ],
)
def test_a_range_without_the_present_or_of_another_size_gives_no_rule(twice, first, second):
    learned = twice([first], [second])
    assert learned.rules == ()
    assert whys(learned) == {ANOTHER_TIME}


def test_what_was_learned_answers_the_other_recording(recorded):
    one = recorded("one", [get(f"/ping?q=1&t={T1}")])
    two = recorded("two", [get(f"/ping?q=1&t={T2}")], LATER)
    rules = merge(read_rules(one), learn(one, two))
    aliases = [rules.aliases(next(each.exchanges()).request) for each in (one, two)]
    assert aliases[0] == aliases[1] != ()


def test_one_name_on_many_paths_becomes_a_rule_of_the_host(twice):
    paths = ("/a", "/b", "/c")
    learned = twice([get(f"{p}?t={T1}") for p in paths], [get(f"{p}?t={T2}") for p in paths])
    assert places(learned) == [("query", "t", "**", "seconds")]
    assert learned.rules[0].host == "a.test"


def test_a_path_that_speaks_against_it_keeps_a_rule_from_the_rest_of_the_host(twice):
    meant = [get("/archive?t=1767268877")]  # the same time in both
    paths = ("/a", "/b", "/c")
    learned = twice([get(f"{p}?t={T1}") for p in paths] + meant, [get(f"{p}?t={T2}") for p in paths] + meant)
    assert [path for _, _, path, _ in places(learned)] == list(paths)


def test_what_may_name_a_thing_is_learned_path_by_path(twice):
    paths = ("/a", "/b", "/c")
    learned = twice(*([get(f"{p}?r={uuid}") for p in paths] for uuid in UUIDS))
    assert [path for _, _, path, _ in places(learned)] == list(paths)


def test_a_csrf_token_of_many_forms_becomes_one_rule(twice):
    def story(token: str):
        return [post(path, FORM, f"_token={token}".encode()) for path in ("/a", "/b", "/c")]

    learned = twice(story("k3Jx90aQ77bz"), story("Zp81mm4Kd2Tq"))
    assert places(learned) == [("form", "_token", "**", "token")]


def test_the_pair_that_differs_least_is_the_pair(twice):
    names = ("ab12cd34ef56", "99aa88bb77cc")
    first = [get(f"/{name}.js?t={T1}", f"body {name}") for name in names]
    second = [get(f"/{name}.js?t={T2}", f"body {name}") for name in reversed(names)]
    assert {(where, name) for where, name, _, _ in places(twice(first, second))} == {("query", "t")}


def test_header_that_never_agrees_and_fields_of_answers(twice):
    def story(token: str):
        request = Request("GET", "https://a.test/api", (("X-CSRFToken", token), ("X-App", "shop")))
        fields = (("Content-Type", "text/html"), ("Set-Cookie", f"s={token}"))
        return [(request, answer("ok", headers=fields))]

    learned = twice(story("k3Jx90aQ77bz"), story("Zp81mm4Kd2Tq"))
    assert places(learned) == [("header", "x-csrftoken", "**", "token")]
    assert learned.response_headers == (("set-cookie", 1),)


# -- what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (get("/list?page=3"), get("/list?page=4")),
        (get("/list?page=12345"), get("/list?page=12346")),
        (get("/search?q=kettle"), get("/search?q=teapot")),
        (get("/p/red-shoes"), get("/p/blue-shoes")),
        (get("/p/1234567"), get("/p/7654321")),
        (get("/calendar?day=1767312000"), get("/calendar?day=1767398400")),  # midnights
        (get("/calendar?from=2026-01-01T09:00:00Z"), get("/calendar?from=2026-01-02T09:00:00Z")),
        (get("/log?until=1500000011"), get("/log?until=1500000022")),  # years ago
        (get("/map?lat=0.127758"), get("/map?lat=0.127759")),
        (post("/api", JSON, b'{"page": 3}'), post("/api", JSON, b'{"page": 4}')),
        (get(f"/x?t={T1}"), get(f"/y?t={T2}")),
        (get(f"/x?t={T1}"), get(f"/x?u={T2}")),
        (get(f"/x?t={T1}"), get(f"/x?t={T2}&more=1")),
        (get(f"/x?t={T1}"), (get(f"/x?t={T2}")[0], answer("no", 404))),
        (get(f"/x?t={T1}"), (get(f"/x?t={T2}")[0], answer("{}", 200, JSON))),
        (get(f"/x?t={T1}"), (replace(get(f"/x?t={T2}")[0], method="POST"), answer())),
    ],
)
def test_requests_that_are_no_pair(twice, first, second):
    learned = twice([first], [second])
    assert (learned.rules, learned.rejected) == ((), ())


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (get("/item?id=ab12cd34ef", "kettle"), get("/item?id=99xx88yy77", "teapot"), "responses differ"),
        (
            get("/i?id=ab12cd34ef", "<ab12cd34ef>"),
            get("/i?id=99xx88yy77", "<99xx88yy77>"),
            "response repeats it",
        ),
        (get("/item?id=10023456"), get("/item?id=10023499"), "only 1 of them"),
    ],
)
def test_values_that_may_name_a_thing(twice, first, second, why):
    learned = twice([first], [second])
    assert learned.rules == ()
    assert any(why in each for each in whys(learned))


def test_a_digest_that_one_of_two_recordings_shares_names_a_file(twice):
    first = [get("/app.ab12cd34.js"), get("/a?v=ab12cd34ef")]
    second = [get("/app.ab12cd34.js"), get("/a?v=99xx88yy77"), get("/b?v=ab12cd34ef")]
    learned = twice(first, second)
    assert learned.rules == ()
    assert whys(learned) == {"both recordings share a value of it"}


CURSORS = ("Y3Vyc29yOjE3NjcyNjg4MTE=", "Y3Vyc29yOjE3NjczNTUyMTc=")


@pytest.mark.parametrize(
    ("link", "query"),
    [
        ('{"next": %s}', "/feed?before=%s"),
        ('<a href="/feed?before=%s">', "/feed?before=%s"),
        ('{"next": "\\u003d%s\\u0026"}', "/feed?before=%s"),
        ("/feed%%3Fbefore%%3D%s", "/feed?before=%s"),
    ],
)
@pytest.mark.parametrize("values", [(str(T1), str(T2)), CURSORS, UUIDS])
def test_where_a_list_continues_is_not_volatile(twice, link, query, values):
    """It is near the visit if the list is fresh, and a rule would answer for every other page of the list."""
    one, two = ([get("/feed", link % value), get(query % value.replace("=", "%3D"))] for value in values)
    learned = twice(one, two)
    assert (learned.rules, whys(learned)) == ((), {GIVEN})


def test_where_a_list_continues_in_a_graphql_body(twice):
    def story(cursor: str):
        variables = {"query": "{ items }", "variables": {"after": cursor}}
        return [get("/", f'"endCursor":"{cursor}"'), post("/g", JSON, json.dumps(variables).encode())]

    learned = twice(*map(story, CURSORS))
    assert (learned.rules, whys(learned)) == ((), {GIVEN})


def test_a_csrf_token_is_volatile_though_every_page_reports_it(twice):
    def story(token: str, when: str):
        said = f'<input name="csrf_token" value="{token}"> {when}'
        body = f"csrf_token={token}&text=hello&ref={token}".encode()
        return [get("/edit", said), post("/edit", FORM, body, f"saved {said}")]

    one = story("8997643ef27b81ac2eefde624ed63da0", "2026/01/01 12:00")
    two = story("ba30a64a77d02a9c6f6b4d1cc5355803", "2026/01/02 17:31")
    learned = twice(one, two)
    assert places(learned) == [("form", "csrf_token", "/edit", "hex")]
    assert [(each.name, each.why) for each in learned.rejected] == [("ref", GIVEN)]


def test_what_chooses_among_the_answers_of_one_recording_is_not_volatile(twice):
    first = [get("/i?id=ab12cd34ef", "same"), get("/i?id=77aa66bb55", "other")]
    second = [get("/i?id=99xx88yy77", "same"), get("/i?id=11zz22ww33", "other")]
    learned = twice(first, second)
    assert learned.rules == ()
    assert any("selects among" in why or "responses differ" in why for why in whys(learned))


def test_what_defaults_and_manual_rules_take_is_not_learned_again(recorded):
    one = recorded("one", [get(f"/x?_={T1}000&t={T1}")])
    two = recorded("two", [get(f"/x?_={T2}000&t={T2}")], LATER)
    assert places(learn(one, two)) == [("query", "t", "/x", "seconds")]
    (one.path / "rules.yaml").write_text("version: 1\nvolatile: [{where: query, name: t, shape: seconds}]\n")
    assert learn(one, two).rules == ()
    (one.path / "rules.yaml").write_text("version: 1\ndefaults: false\n")
    assert [name for _, name, _, _ in places(learn(one, two))] == ["_", "t"]


def test_a_persisted_query_is_never_volatile(twice):
    def operation(digest: str) -> bytes:
        return json.dumps({"extensions": {"persistedQuery": {"version": 1, "sha256Hash": digest}}}).encode()

    learned = twice([post("/g", JSON, operation("ab" * 32))], [post("/g", JSON, operation("cd" * 32))])
    assert (learned.rules, learned.rejected) == ((), ())


_meant = st.integers(0, 9_999_999).map(str) | st.sampled_from(
    ["kettle", "red-shoes", "2026-01-01", "en-US", "v1.2.3", "Kitchen", "a@b.test", "1767268800", ""]
)
_requested = st.lists(
    st.tuples(st.sampled_from(["/list", "/p/x", "/search"]), st.sampled_from(["page", "q", "id"]), _meant),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(_requested, _requested)
def test_words_and_short_numbers_are_never_learned_however_often_they_differ(tmp_path_factory, first, second):
    root = tmp_path_factory.mktemp("meant")
    recordings = []
    for name, urls, at in (("one", first, AT), ("two", second, LATER)):
        collection = Collection.create(root, name)
        with CollectionWriter(collection) as writer:
            for path, parameter, value in urls:
                request, response = get(f"{path}?{parameter}={value}")
                writer.write(Exchange(request, response, at))
        recordings.append(collection)
    learned = learn(*recordings)
    assert (learned.rules, learned.rejected, learned.pairs) == ((), (), 0)
    assert learn_within(recordings[0]).rules == ()


# -- within one recording -------------------------------------------------------------------------


def test_guesses_from_one_recording(recorded):
    story = [
        get("/"),
        get(f"/once?t={T1}"),
        get(f"/poll?n=k3Jx90aQ77bz&x={T1 + 5}"),
        get(f"/poll?n=Zp81mm4Kd2Tq&x={T1 + 9}"),
        get("/list?page=1", "one"),
        get("/list?page=2", "two"),
        get(f"/old?t={T1 - 90000}"),
    ]
    learned = learn_within(recorded("one", story))
    assert places(learned) == [
        ("query", "n", "/poll", "token"),
        ("query", "t", "/once", "seconds"),
        ("query", "x", "/poll", "seconds"),
    ]
    assert {rule.origin for rule in learned.rules} == {RuleOrigin.GUESSED}


def test_what_an_answer_reported_is_not_guessed(recorded):
    learned = learn_within(recorded("one", [get("/", f'<img src="/pixel?{T1}">'), get(f"/pixel?{T1}")]))
    assert learned.rules == ()
    assert whys(learned) == {GIVEN}


def test_a_token_in_requests_that_differ_otherwise_is_not_guessed(recorded):
    story = [
        get("/a?s=k3Jx90aQ77bz"),
        get("/a?s=Zp81mm4Kd2Tq"),
        get("/b?s=k3Jx90aQ77bz"),
    ]
    assert learn_within(recorded("one", story)).rules == ()


# -- the file -------------------------------------------------------------------------------------


def test_learning_again_writes_the_same_bytes_and_keeps_manual_rules(recorded):
    one = recorded("one", [get(f"/x?t={T1}"), get("/y?r=0.8444218515250481")])
    two = recorded("two", [get(f"/x?t={T2}"), get("/y?r=0.7579544029403025")], LATER)
    (one.path / "rules.yaml").write_text(
        "version: 1\n"
        "polls: [{host: a.test, path: /status}]\n"
        "volatile:\n"
        "- {where: form, name: mine, shape: any}\n"
        "- {where: query, name: z, shape: hex, origin: guessed}\n"
    )
    texts = []
    for _ in range(2):
        write_rules(one, merge(read_rules(one), learn(one, two)))
        texts.append((one.path / "rules.yaml").read_bytes())
    assert texts[0] == texts[1]
    rules = read_rules(one)
    assert [(rule.name, rule.origin) for rule in rules.own] == [
        ("mine", "manual"), ("t", "learned"), ("r", "learned"), ("z", "guessed"),
    ]  # fmt: skip
    assert rules.polls("https://a.test/status")
    write_rules(one, merge(rules, learn_within(one)))
    assert [r.origin for r in read_rules(one).own if r.name == "t"] == [RuleOrigin.LEARNED]


def test_a_guess_gives_way_to_what_is_learned(recorded):
    one = recorded("one", [get(f"/x?t={T1}")])
    two = recorded("two", [get(f"/x?t={T2}")], LATER)
    write_rules(one, merge(read_rules(one), learn_within(one)))
    assert [rule.origin for rule in read_rules(one).own] == [RuleOrigin.GUESSED]
    write_rules(one, merge(read_rules(one), learn(one, two)))
    assert [rule.origin for rule in read_rules(one).own] == [RuleOrigin.LEARNED]


def test_merging_keeps_the_defaults_as_they_were():
    rules = Rules.parse("version: 1\ndefaults: false\nvolatile: [{where: query, name: t, shape: hex}]\n")
    assert not merge(rules, LearnResult(())).defaults
    assert Rules.parse(merge(Rules.parse(""), LearnResult(())).dump()) == Rules.parse("")


def test_a_rule_says_what_it_rests_on(twice):
    (rule,) = twice([get(f"/x?t={T1}")], [get(f"/x?t={T2}")]).rules
    assert isinstance(rule, Rule)
    assert rule.evidence == "two recordings: 1 pairs differ on 1 paths; time"
