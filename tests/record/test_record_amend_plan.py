"""The plan for misses, and the exchanges that the filter passes; no browser, no network."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillweb.collections.amends import Absent, Amend, next_version, read_amends, write_amends
from stillweb.collections.baselines import Absences
from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed, Sighting
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.errors import CollectionError, UsageError
from stillweb.matching.captures import vary_digest
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Page, Request, Response
from stillweb.record.amend.plan import FetchMethod, SealedIndex, identity, plan, read_wanted
from stillweb.record.amend.writer import NewOnlyWriter

HERE = "https://site.test"
RULES = Rules.parse("version: 1\nvolatile:\n  - {where: query, name: ts, shape: milliseconds}\n")
HTML = Response(200, "OK", (("Content-Type", "text/html"),), b"<p>")


def missed(url: str, resource: str = "empty", method: str = "GET", **more) -> Missed:
    seen = Sighting("s", 1, page=more.pop("page", ""))
    fields = more.pop("fields", (("accept", "*/*"), ("sec-fetch-dest", resource)))
    return Missed("site", "", method, url, seen, seen, fields=fields, resource=resource, **more)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    entries = [
        PackEntry.of("GET", f"{HERE}/", HTML),
        PackEntry.of("POST", f"{HERE}/api", HTML),
        replace(PackEntry.of("GET", f"{HERE}/part", HTML), varies=(("hx-request", vary_digest("true")),)),
        replace(
            PackEntry.of("GET", f"{HERE}/t?ts=1700000000001", HTML),
            aliases=tuple(a.key for a in RULES.aliases(Request("GET", f"{HERE}/t?ts=1700000000001"))),
        ),
    ]
    build_pack(entries, {}, folder / "pack")
    with Pack.open(folder / "pack") as pack:
        yield SealedIndex(pack, RULES)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (missed(f"{HERE}/a", "document"), FetchMethod.PAGE),
        (missed(f"{HERE}/a", "", fields=()), FetchMethod.PAGE),
        (missed(f"{HERE}/a", "iframe"), FetchMethod.FRAME),
        (missed(f"{HERE}/a", "image"), FetchMethod.REQUEST),
        (missed(f"{HERE}/part"), FetchMethod.REQUEST),  # recorded, for another kind of request only
        (missed(f"{HERE}/a", "document", fields=(("rsc", "1"),)), FetchMethod.REQUEST),
        (missed(f"{HERE}/v", "video", fields=(("range", "bytes=5-"),)), FetchMethod.REQUEST),
        (missed("wss://site.test/s", "websocket", "WEBSOCKET", page=f"{HERE}/"), FetchMethod.SOCKET),
        (missed(f"{HERE}/socket.io/?EIO=4&transport=polling&sid=x", page=f"{HERE}/"), FetchMethod.SOCKET),
        (missed(f"{HERE}/t?ts=12", "script"), FetchMethod.REQUEST),  # no time, so not that request
    ],
)
def test_by_which_means(known: SealedIndex, wanted: Missed, kind: FetchMethod) -> None:
    (errand,), refusals = plan([wanted], known)
    assert (errand.kind, refusals) == (kind, [])


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (missed(f"{HERE}/b", method="POST"), "--unsafe"),
        (missed(f"{HERE}/b", method="DELETE"), "--unsafe"),
        (missed("https://other.test/b"), "--scope-any"),
        (missed("wss://site.test/b", "websocket"), "proxy"),
        (missed(f"{HERE}/b", method="TRACE"), "TRACE"),
    ],
)
def test_what_is_refused_says_why(known: SealedIndex, wanted: Missed, word: str) -> None:
    errands, (refusal,) = plan([wanted], known)
    assert not errands
    assert not refusal.present
    assert word in refusal.reason


@pytest.mark.parametrize(
    ("wanted", "page"),
    [
        (missed("wss://site.test/socket", "websocket"), f"{HERE}/start"),
        (missed(f"{HERE}/api", method="POST", fields=(("origin", HERE),)), f"{HERE}/start"),
        (missed(f"{HERE}/api", fields=(("origin", "null"),)), f"{HERE}/start"),
        (missed(f"{HERE}/api", page=f"{HERE}/own"), f"{HERE}/own"),
        (missed(f"{HERE}/api", page="https://other.test/"), f"{HERE}/start"),
        (missed(f"{HERE}/api", fields=(("origin", "https://unknown.test"),)), ""),
    ],
)
def test_a_request_without_a_page_is_sent_from_one_of_its_origin(
    known: SealedIndex, wanted: Missed, page: str
) -> None:
    known.homes = {"site.test": f"{HERE}/start"}
    try:
        (task,), refusals = plan([replace(wanted, body="e30=")], known, unsafe=True)
    finally:
        known.homes = {}
    assert (task.page, refusals) == (page, [])


def test_the_home_of_a_host_is_its_first_start_page() -> None:
    pages = [
        Page(f"{HERE}/a", "20260101000000", "", "p1", seed=False),
        Page(f"{HERE}/b", "20260101000000", "", "p2"),
        Page(f"{HERE}/c", "20260101000000", "", "p3"),
        Page("https://other.test/", "20260101000000", "", "p4"),
    ]
    assert SealedIndex(None, RULES, pages).homes == {
        "site.test": f"{HERE}/b",
        "other.test": "https://other.test/",
    }


def test_a_body_that_was_not_stored_is_not_made_up(known: SealedIndex) -> None:
    wanted = missed(f"{HERE}/b", method="POST", body_size=70000, body_digest="sha256:00")
    errands, (refusal,) = plan([wanted], known, unsafe=True)
    assert not errands
    assert "70000" in refusal.reason


@pytest.mark.parametrize(
    "url",
    [f"{HERE}/", "http://site.test/", f"{HERE}/t?ts=1700000000002", "http://site.test/t?ts=1700000000003"],
)
def test_what_replay_answers_is_present(known: SealedIndex, url: str) -> None:
    errands, (refusal,) = plan([missed(url, "document")], known)
    assert not errands
    assert refusal.present


def test_equal_misses_are_one_errand_whatever_their_order(known: SealedIndex) -> None:
    fields = (("accept", "*/*"), ("hx-request", "true"))
    every = [
        missed(f"{HERE}/a", page=f"{HERE}/"),
        missed(f"{HERE}/a", "script", count=2, page=f"{HERE}/"),
        missed(f"{HERE}/a", fields=fields, page=f"{HERE}/"),
        missed(f"{HERE}/p", "document"),
    ]
    for order in permutations(every):
        errands, _ = plan(order, known)
        assert sorted(each.count for each in errands) == [1, 1, 3]
        assert [each.kind for each in errands] == [FetchMethod.PAGE, FetchMethod.REQUEST, FetchMethod.REQUEST]
        assert {each.page for each in errands} == {"", f"{HERE}/"}


NAMES = st.sampled_from(["accept", "user-agent", "cookie", "sec-fetch-dest", "referer", "origin", "priority"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["*/*", "a, */*", "x */*"]))))
def test_who_asks_is_no_part_of_what_is_requested(fields) -> None:
    request = Request("GET", f"{HERE}/x", tuple(fields))
    assert identity(request) == identity(Request("GET", f"{HERE}/x"))
    assert identity(replace(request, headers=(*fields, ("RSC", "1")))) != identity(request)


URLS = [f"{HERE}{path}" for path in ("/", "/a", "/b", "/t?ts=1700000000009", "/part", "/api")]
EXCHANGES = st.builds(
    lambda method, url, fields, status: Exchange(
        Request(method, url, fields), replace(HTML, status=status), "20260101000000"
    ),
    st.sampled_from(["GET", "HEAD", "POST"]),
    st.sampled_from([*URLS, *(url.replace("https", "http") for url in URLS)]),
    st.sampled_from([(), (("HX-Request", "true"),), (("Cookie", "a=1"),)]),
    st.sampled_from([200, 404, 503]),
)


@settings(max_examples=40)
@given(exchanges=st.lists(EXCHANGES, max_size=8))
def test_no_key_that_answers_gets_another_capture(tmp_path_factory, known, exchanges) -> None:
    collection = Collection.create(tmp_path_factory.mktemp("c"), "c")
    with NewOnlyWriter(collection, known, RULES, ()) as filter_:
        for exchange in exchanges:
            filter_.write(exchange)
    written = [collection.read_capture(each) for each in collection.captures()]
    assert filter_.added == len(written)
    requests = [(each.request.method, each.request.url) for each in written]
    assert len(requests) == len(set(requests))
    for exchange in written:
        assert not known.holds(exchange.request)
        assert exchange.response.status != 503
        assert (
            exchange.request.method == "GET"
            or exchange.response.status == 200
            or exchange.request.method == "HEAD"
        )


@pytest.mark.parametrize(("status", "written"), [(200, 1), (409, 1), (403, 0), (422, 0), (500, 0)])
def test_a_refusal_of_a_write_is_an_answer_if_the_state_of_the_resource_causes_it(
    tmp_path: Path, known, status, written
) -> None:
    collection = Collection.create(tmp_path, "c")
    with NewOnlyWriter(collection, known, RULES, ()) as writer:
        writer.write(Exchange(Request("POST", f"{HERE}/new"), replace(HTML, status=status), "20260101000000"))
    assert writer.added == written


def test_a_list_a_har_and_misses_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("# what was missed\nhttps://site.test/a\n\nsite.test/b\n")
    assert [each.url for each in read_wanted(file)] == ["https://site.test/a", "https://site.test/b"]

    wanted = missed(f"{HERE}/c", method="POST", body="YQ==", body_size=1)
    file.write_text(wanted.to_line())
    assert read_wanted(file) == [wanted]

    request = {"method": "POST", "url": f"{HERE}/d", "postData": {"mimeType": "text/plain", "text": "hi"}}
    request["headers"] = [
        {"name": "Cookie", "value": "secret"},
        {"name": "Content-Type", "value": "text/plain"},
    ]
    content = {"size": 0, "mimeType": "text/plain", "text": ""}
    answer = {"status": 200, "statusText": "OK", "httpVersion": "h2", "headers": [], "content": content}
    entry = {"startedDateTime": "2026-01-01T00:00:00Z", "request": request, "response": answer}
    file.write_text(json.dumps({"log": {"entries": [entry]}}, indent=1))
    (found,) = read_wanted(file)
    assert (found.method, found.url, found.request().raw_body) == ("POST", f"{HERE}/d", b"hi")
    assert found.fields == (("content-type", "text/plain"),)


@pytest.mark.parametrize("text", ['{"no": "miss"}', '{"method": "GET"}\n', "{"])
def test_what_is_none_of_them_is_an_error_with_its_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x"
    file.write_text(text)
    with pytest.raises(CollectionError) as caught:
        read_wanted(file)
    assert "x" in str(caught.value)
    assert "misses" in caught.value.hint


def test_a_line_that_is_no_url_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("https://site.test/\nmailto:a@b\n")
    with pytest.raises(UsageError, match="line 2"):
        read_wanted(file)


def test_what_was_requested_in_vain_explains(tmp_path: Path) -> None:
    collection = Collection.create(tmp_path, "c")
    assert Absences(collection).why("GET", f"{HERE}/x") == ""
    amend = Amend("2", "1", "20260101000000", 1, 0, 1, pages=(f"{HERE}/p",))
    absent = Absent("GET", f"{HERE}/x", "no answer within 45 s", "20260101000000", "id")
    write_amends(collection.path, [amend], [absent])
    assert read_amends(collection.path) == ([amend], [absent])
    assert "no answer within" in Absences(collection).why("GET", f"{HERE}/x")
    assert Absences(collection).why("POST", f"{HERE}/x") == ""


def test_versions_are_counted_past_those_with_names_of_their_own() -> None:
    assert next_version([]) == 1
    assert next_version(["1", "2", "before-launch", "twice"]) == 3
