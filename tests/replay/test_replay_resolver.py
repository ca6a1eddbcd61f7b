"""The resolver's choices, and that it is pure, total and strict."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolver_registry import POLICY, SITE, Registry, Visit, answer_to, entry, make_request

from stillweb.matching import keys
from stillweb.matching.captures import Entry
from stillweb.matching.resolver import SessionState, advance, resolve
from stillweb.model import Match, Request, Tier


def test_what_was_recorded_is_found_and_nothing_else() -> None:
    page = entry()
    assert answer_to(make_request(), page) == Match(Tier.EXACT, 0, stable=True)
    assert answer_to(make_request("POST"), page) == Match(Tier.MISS, reason="not recorded", stable=True)


def test_a_body_is_parsed_once_for_both_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form below the limit of parsing takes a tenth of a second, in which no other session is answered."""
    bodies = []
    read = keys.read_body
    monkeypatch.setattr(keys, "read_body", lambda *given: bodies.append(given) or read(*given))
    assert answer_to(make_request("POST", SITE + "/form", b'{"a": 1}'), entry()).tier is Tier.MISS
    assert len(bodies) == 1


GRAPHQL = {"operationName": "Item", "query": "query Item($id: ID) { item(id: $id) { name } }"}


def graphql(**members: object) -> bytes:
    return json.dumps({**GRAPHQL, **members}).encode()


LONG = "x" * 5000
RECORDED = [
    entry("POST", f"{SITE}/graphql", body=graphql(variables={"id": 1}), order=0),
    entry("POST", f"{SITE}/graphql", body=graphql(variables={"id": 2}), order=1, epoch=1),
    entry("POST", f"{SITE}/big", body=json.dumps({"q": LONG, "id": 1}).encode(), order=2, epoch=2),
    entry("POST", f"{SITE}/nest", body=b'{"a":{"x":1},"b":{"y":2}}', order=3, epoch=3),
    entry("GET", f"{SITE}/list.json?cursor=1", order=4, epoch=4),
    entry("GET", f"{SITE}/list.json?cursor=2", order=5, epoch=4),
]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/graphql", graphql(variables={"id": 999})),
        ("POST", "/graphql", graphql(operationName="DeleteEverything")),
        ("DELETE", "/graphql", b""),
        ("POST", "/big", json.dumps({"q": LONG, "id": 2}).encode()),
        ("POST", "/nest", b'{"b":{"x":1},"a":{"y":2}}'),
        ("GET", "/list.json?cursor=77", b""),
        ("GET", "/none.json", b""),
        ("PUT", "/nest", b'{"a":{"x":1},"b":{"y":2}}'),
    ],
)
def test_what_merely_looks_alike_is_a_miss(method: str, path: str, body: bytes) -> None:
    assert answer_to(make_request(method, SITE + path, body), *RECORDED).tier == Tier.MISS


@pytest.mark.parametrize("row", range(len(RECORDED)))
def test_each_of_them_is_found_by_itself(row: int) -> None:
    bodies = {
        0: graphql(variables={"id": 1}),
        1: graphql(variables={"id": 2}),
        2: json.dumps({"id": 1, "q": LONG}).encode(),  # members in another order
        3: b'{"b": {"y": 2}, "a": {"x": 1}}',
    }
    recorded = RECORDED[row]
    match = answer_to(make_request(recorded.method, recorded.url, bodies.get(row, b"")), *RECORDED)
    assert (match.tier, match.entry) == (Tier.EXACT, row)


def test_head_takes_a_recorded_head_before_the_get() -> None:
    get, head = entry(), entry("HEAD", order=1)
    assert answer_to(make_request("HEAD"), get).entry == 0
    assert answer_to(make_request("HEAD"), get, head).entry == 1
    assert answer_to(make_request(), head).tier == Tier.MISS


def test_the_other_scheme_stands_in_unless_it_leads_back() -> None:
    plain = entry(url="http://shop.example/")
    assert answer_to(make_request(), plain) == Match(Tier.EXACT, 0, "recorded over http", stable=True)
    upgrade = entry(url="http://shop.example/", status=301, fields=f"Location: {SITE}/")
    match = answer_to(make_request(), upgrade)
    assert (match.tier, match.reason) == (Tier.MISS, "recorded as a redirect to itself only")
    assert answer_to(make_request(url="http://shop.example/"), upgrade).tier == Tier.EXACT


def test_the_right_scheme_goes_first() -> None:
    entries = entry(url="http://shop.example/"), entry(order=1)
    assert answer_to(make_request(), *entries) == Match(Tier.EXACT, 1, stable=True)


@pytest.mark.parametrize("location", [f"{SITE}/", "/", "//shop.example/", "https://SHOP.example:443/#top"])
def test_a_redirect_to_itself_gives_way_to_the_page(location: str) -> None:
    turn = entry(status=302, fields=f"Set-Cookie: a=1|Location: {location}")
    page = entry(order=1)
    assert answer_to(make_request(), turn, page).entry == 1
    assert answer_to(make_request(), turn).tier == Tier.MISS


def test_a_round_trip_gives_way_to_the_page() -> None:
    away = entry(status=302, fields="Location: https://login.example/")
    back = entry(url="https://login.example/", status=302, fields=f"Location: {SITE}/", order=1)
    page = entry(order=2)
    assert answer_to(make_request(), away, back, page).entry == 2
    assert answer_to(make_request(), away, back).entry == 0


def test_a_post_that_redirects_to_its_own_page_is_no_circle() -> None:
    post = entry("POST", status=302, fields=f"Location: {SITE}/")
    assert answer_to(make_request("POST"), post).tier == Tier.EXACT
    stored = entry("POST", status=307, fields=f"Location: {SITE}/")
    assert answer_to(make_request("POST"), stored).tier == Tier.MISS


@pytest.mark.parametrize(
    ("content_range", "requested_range", "found"),
    [
        ("bytes 0-99/100", "", True),
        ("bytes 0-99/100", "bytes=5-9", True),
        ("bytes 0-49/100", "", False),
        ("bytes 0-49/100", "bytes=0-49", True),
        ("bytes 0-49/100", "bytes=10-19", True),
        ("bytes 0-49/100", "bytes=40-59", False),
        ("bytes 0-49/100", "bytes=100-", True),  # 416, whatever was recorded
        ("bytes 0-49/*", "bytes=0-49", False),
    ],
)
def test_a_part_answers_only_what_it_holds(content_range: str, requested_range: str, found: bool) -> None:
    part = entry(status=206, fields=f"Content-Range: {content_range}")
    request = make_request(Range=requested_range) if requested_range else make_request()
    assert (answer_to(request, part).tier == Tier.EXACT) is found


def test_not_modified_answers_only_a_condition() -> None:
    unmodified = entry(status=304)
    assert answer_to(make_request(), unmodified).reason == "recorded as not modified only"
    assert answer_to(make_request(If_None_Match='"v"'), unmodified).tier == Tier.EXACT
    assert answer_to(make_request(If_None_Match='"v"'), unmodified, entry(order=1)).tier == Tier.EXACT
    assert answer_to(make_request(), unmodified, entry(order=1)).entry == 1


def test_a_range_that_could_not_be_given_answers_no_other_request() -> None:
    refused = entry(status=416, fields="Content-Range: bytes */100")
    assert answer_to(make_request(), refused).reason == "recorded as a range that cannot be given only"
    assert answer_to(make_request(Range="bytes=100-"), refused).tier == Tier.EXACT
    assert answer_to(make_request(), refused, entry(order=1)).entry == 1
    assert answer_to(make_request(Range="bytes=2-3"), refused, entry(order=1)).entry == 1
    part = entry(status=206, fields="Content-Range: bytes 0-49/100", order=1)
    assert answer_to(make_request(Range="bytes=0-9"), refused, part).entry == 1
    missed = answer_to(make_request(Range="bytes=60-69"), refused, part)
    assert missed.reason == "recorded in part only, and not the requested part"


NAVIGATION = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "epoch", "row"),
    [
        (NAVIGATION, 0, 2),
        (NAVIGATION, 3, 2),
        ("application/json, text/plain, */*", 0, 1),
        ("application/json", 3, 3),
        ("text/html;q=0.1, application/json;q=x, */*;q=0", 3, 2),
        ("*/*", 0, 1),
        ("*/*", 3, 3),
        ("", 0, 1),
        ("image/*", 0, -1),
    ],
)
def test_a_page_and_its_json_under_one_url_are_reported_apart_by_accept(
    accept: str, epoch: int, row: int
) -> None:
    json_type = "application/json"
    registry = (
        entry(order=0, status=302, url=f"{SITE}/elsewhere"),
        replace(entry(order=1), mime=json_type),
        entry(order=2),
        replace(entry(order=3, epoch=2, answer=b"later"), mime=json_type),
    )
    assert answer_to(make_request(accept=accept), *registry, state=SessionState(epoch=epoch)).entry == row


def test_accept_drops_no_redirect_and_no_error() -> None:
    registry = (
        entry(status=404),
        replace(entry(order=1, epoch=1), mime="application/json"),
        entry(order=2, epoch=1),
    )
    assert answer_to(make_request(accept="application/json"), *registry).entry == 0


def test_a_preflight_is_made_and_says_whether_its_request_is_recorded() -> None:
    put = entry("PUT", body=b"{}")
    fields = {"Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
    assert answer_to(make_request("OPTIONS", **fields), put) == Match(
        Tier.SYNTHETIC, reason="preflight for PUT", stable=True
    )
    match = answer_to(make_request("OPTIONS", **{**fields, "Access_Control_Request_Method": "DELETE"}), put)
    assert match == Match(Tier.SYNTHETIC, reason="preflight for DELETE, which is not recorded", stable=True)
    assert answer_to(make_request("OPTIONS"), entry("OPTIONS")).tier == Tier.EXACT


def test_noise_is_only_what_was_not_recorded() -> None:
    beacon = "https://region1.google-analytics.com/g/collect?v=2"
    assert answer_to(make_request("POST", beacon)).tier == Tier.NOISE
    assert answer_to(make_request("POST", beacon), entry("POST", beacon)).tier == Tier.EXACT
    assert answer_to(make_request(url="https://www.google-analytics.com/analytics.js")).tier == Tier.MISS
    # The browser's own: a page's policy names an address for its reports, whatever that is called.
    match = answer_to(make_request("POST", "https://site.test/sent", Sec_Fetch_Dest="report"))
    assert (match.tier, match.reason) == (Tier.NOISE, "report of the browser")
    # No page can read the answer to `sendBeacon`, whose body differs each time.
    log = "https://site.test/log"
    assert answer_to(make_request("POST", log, body=b"2", Sec_Fetch_Mode="no-cors")).tier == Tier.NOISE
    sent = entry("POST", log, body=b"1")
    assert answer_to(make_request("POST", log, body=b"1", Sec_Fetch_Mode="no-cors"), sent).tier == Tier.EXACT
    assert answer_to(make_request("POST", log, body=b"2", Sec_Fetch_Mode="cors"), sent).tier == Tier.MISS
    assert answer_to(make_request(url=log, Sec_Fetch_Mode="no-cors"), sent).tier == Tier.MISS  # an image


# Several captures of one key.

EPOCHS = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@given(EPOCHS, st.integers(0, 7), st.randoms(use_true_random=False))
def test_reads_follow_the_epoch_whatever_the_order_of_rows(epochs: list[int], epoch: int, random) -> None:
    story = [entry(order=i, epoch=e, answer=b"%d" % e) for i, e in enumerate(sorted(epochs))]
    reached = [e for e in story if e.epoch <= epoch]
    wanted = max(e.epoch for e in reached) if reached else min(e.epoch for e in story)
    expected = next(e for e in story if e.epoch == wanted)
    shuffled = list(story)
    random.shuffle(shuffled)
    match = answer_to(make_request(), *shuffled, state=SessionState(epoch=epoch))
    assert shuffled[match.entry] is expected


@given(st.integers(1, 5), st.integers(1, 9))
def test_a_mutation_takes_its_recordings_in_turn_and_repeats_the_last(count: int, times: int) -> None:
    story = [entry("POST", body=b"{}", order=i, epoch=2 * i, answer=b"%d" % i) for i in range(count)]
    registry, state, chosen = Registry(story), SessionState(), []
    for turn in range(times):
        match = resolve(make_request("POST", body=b"{}"), registry, state, POLICY)
        assert ("past the end" in match.reason) is (turn >= count)
        assert match.tier == (Tier.EXACT if count == 1 else Tier.SEQUENCE)
        advance(state, make_request("POST"), match, story[match.entry])
        chosen.append(match.entry)
        assert state.epoch == 2 * match.entry + 1
    assert chosen == [min(turn, count - 1) for turn in range(times)]


class Whole(Registry):
    """A registry that never leaves out captures that say the same."""

    def distinct(self, key: bytes) -> Sequence[int]:
        return self.lookup(key)


_CAPTURE = st.fixed_dictionaries(
    {
        "status": st.sampled_from([200, 200, 200, 302, 404, 503]),
        "fields": st.sampled_from(["", "Date: a", "Date: b", "Age: 1", "ETag: x", "Location: /away"]),
        "answer": st.sampled_from([b"one", b"one", b"two"]),
        "mime": st.sampled_from(["text/html", "text/html", "application/json"]),
        "varies": st.sampled_from([{}, {}, {"cookie": "a"}, {"cookie": "b"}, {"hx-request": "true"}]),
        "epoch": st.integers(0, 2),
    }
)


@given(
    st.lists(_CAPTURE, min_size=1, max_size=24),
    st.sampled_from(["GET", "GET", "POST"]),
    st.dictionaries(
        st.sampled_from(["cookie", "hx_request", "accept"]), st.sampled_from(["a", "true", "text/html"])
    ),
    st.integers(0, 2),
)
def test_leaving_out_what_says_the_same_changes_no_answer(captures, method, fields, epoch) -> None:
    story = sorted(captures, key=lambda each: each["epoch"])
    entries = [entry(method, order=i, **each) for i, each in enumerate(story)]
    short, whole = Registry(entries), Whole(entries)
    one, other = SessionState(epoch=epoch), SessionState(epoch=epoch)
    request = make_request(method, **fields)
    for _ in range(3):
        match = resolve(request, short, one, POLICY)
        assert match == resolve(request, whole, other, POLICY)
        if match.entry >= 0:
            advance(one, request, match, entries[match.entry])
            advance(other, request, match, entries[match.entry])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_site_that_was_too_busy_once_is_not_so_for_all(status: int) -> None:
    busy, page = entry(status=status, answer=b"busy"), entry(order=1, answer=b"page")
    match = answer_to(make_request(), busy, page)
    assert (match.entry, match.stable) == (1, True)
    assert answer_to(make_request(), busy).entry == 0
    # A page recorded for others goes before what is none; who has posted sees what was recorded then.
    bobs = entry(order=1, answer=b"page", varies={"cookie": "b"})
    mine = replace(busy, varies=entry(varies={"cookie": "a"}).varies)
    assert answer_to(make_request(cookie="a"), mine, bobs).entry == 1
    other = entry(order=1, answer=b"page", varies={"user-agent": "b"})
    assert answer_to(make_request(User_Agent="a"), busy, other).entry == 1
    later = replace(busy, order=2, epoch=1)
    assert answer_to(make_request(), page, later, state=SessionState(epoch=1)).entry == 1
    assert answer_to(make_request("POST"), entry("POST", status=status), entry("POST", order=1)).entry == 0


# Versions of one URL, by the visit that recorded them.

CODE = f"{SITE}/start.js"


def code(version: int, page: str, order: int, epoch: int = 0) -> Entry:
    answer = b"version %d" % version
    return entry(url=CODE, order=order, epoch=epoch, answer=answer, referer=page and SITE + page)


def code_of(page: str, destination: str = "script") -> Request:
    return make_request(url=CODE, Referer=SITE + page, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest=destination)


def test_a_page_gets_the_version_of_its_own_visit() -> None:
    pages = [entry(url=f"{SITE}/{name}", order=2 * at) for at, name in enumerate("abc")]
    versions = [code(at, f"/{name}", 2 * at + 1) for at, name in enumerate("abc")]
    registry = Registry([each for pair in zip(pages, versions, strict=True) for each in pair])
    for at, name in enumerate("abc"):
        match = resolve(code_of(f"/{name}"), registry, SessionState(), POLICY)
        assert (match.entry, match.tier, match.stable) == (2 * at + 1, Tier.SEQUENCE, False)
    assert match.reason == "visit: recording 3 of 3, of this page"
    assert resolve(code_of("/d"), registry, SessionState(), POLICY).entry == 1


def test_of_two_visits_to_a_page_the_one_counts_whose_document_was_received() -> None:
    one, two = entry(url=f"{SITE}/a"), entry(url=f"{SITE}/a", order=2, epoch=1, answer=b"later")
    session = Visit(Registry([one, code(1, "/a", 1), two, code(2, "/a", 3, epoch=1)]))
    load = make_request(url=f"{SITE}/a", Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document")
    assert session.bodies(load, code_of("/a")) == [b"answer", b"version 1"]
    session.state.epoch = 1
    assert session.bodies(load, code_of("/a")) == [b"later", b"version 2"]


def test_data_follows_the_mutations_of_the_session_and_code_its_page() -> None:
    page, other = entry(url=f"{SITE}/a"), entry(url=f"{SITE}/b", order=2, epoch=1)
    registry = Registry([page, code(1, "/a", 1), other, code(2, "/b", 3, epoch=1)])
    for epoch, destination, row in [(0, "empty", 1), (1, "empty", 3), (1, "script", 1)]:
        state = SessionState(epoch=epoch)
        assert resolve(code_of("/a", destination), registry, state, POLICY).entry == row


def test_heads_alone_are_no_versions() -> None:
    same = [replace(code(1, page, at), head=memoryview(b"%d" % at)) for at, page in enumerate(["/a", "/b"])]
    assert answer_to(code_of("/b"), *same) == Match(Tier.EXACT, 0, stable=True)


def test_many_captures_of_one_answer_are_one() -> None:
    entries = [entry(order=i, epoch=i, fields=f"Date: {i}") for i in range(200)]
    registry = Registry(entries)
    assert registry.distinct(entries[0].key) == (0,)
    assert resolve(make_request(), registry, SessionState(), POLICY) == Match(Tier.EXACT, 0, stable=True)


def test_stable_matches_change_nothing() -> None:
    state = SessionState(epoch=3)
    match = answer_to(make_request(), entry(epoch=1), state=state)
    advance(state, make_request(), match, entry(epoch=1))
    assert state == SessionState(epoch=3)


# For any request at all.

ODD_URLS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "*", "/", "http://", "https://[::1", "http://[bad]/", "ws://a/", "//x", "a:b", "ht\x00tp://x"]
    ),
    st.text(max_size=20).map(lambda path: f"{SITE}/{path}"),
    st.just(f"{SITE}/"),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["Range", "Origin", "Access-Control-Request-Method", "Content-Type", "If-None-Match", "Host"]
        ),
        st.one_of(st.text(max_size=20), st.sampled_from(["bytes=0-", "application/json", "PUT"])),
    ),
    max_size=4,
).map(tuple)
LIBRARY = [
    *RECORDED,
    entry(order=9, epoch=4),
    entry(order=10, epoch=4, status=302, fields="Location: http://[bad"),
    entry(order=11, epoch=5, status=206, fields="Content-Range: rubbish"),
    entry("OPTIONS", order=12),
    entry(url="http://shop.example/http", status=301, fields=f"Location: {SITE}/http"),
]


@given(
    st.builds(
        Request,
        st.one_of(st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "get"]), st.text(max_size=8)),
        ODD_URLS,
        HEADERS,
        st.one_of(st.just(b""), st.binary(max_size=30)),
    ),
    st.integers(0, 9),
)
def test_pure_and_total(request: Request, epoch: int) -> None:
    registry, state = Registry(LIBRARY), SessionState(epoch=epoch)
    before = copy.deepcopy(state)
    match = resolve(request, registry, state, POLICY)
    assert state == before
    assert match == resolve(request, Registry(LIBRARY), copy.deepcopy(before), POLICY)
    assert (match.entry >= 0) is (match.tier in (Tier.EXACT, Tier.SEQUENCE))
    assert match.tier == Tier.EXACT or match.reason
