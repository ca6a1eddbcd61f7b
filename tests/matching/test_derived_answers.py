"""Derived answers against a site that computes the real ones: equal, or a miss. Never another answer."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from hashlib import md5, sha256
from urllib.parse import quote

import pytest
from form_sites import EXISTING, Book, escape, get, post, record

from stillweb.collections.learn.proof import ProvedForm, Refusal, prove
from stillweb.matching.captures import Entry
from stillweb.matching.derived.branch import Branch, dump, load
from stillweb.matching.derived.derive import Branches, DerivedAnswers
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import Match, Request, Response, Tier
from stillweb.record.forms.sentinels import sentinels

OWN_TOKEN = Book().token
RECORDED = 0  # visit of the recorded pages, whose token a browser sends at replay


class Pages:
    """The recorded pages, as an index of a pack."""

    def __init__(self, book: Book) -> None:
        self.responses = {
            request_key("GET", get(path).url): (path, book.answer(get(path))) for path in ("/", "/about")
        }

    def lookup(self, key: bytes) -> list[int]:
        return [list(self.responses).index(key)] if key in self.responses else []

    def entry(self, row: int) -> Entry:
        path, response = list(self.responses.values())[row]
        body = response.raw_body
        place = (request_key("GET", get(path).url), "GET", get(path).url, "20261123120000", 200, 0, row)
        return Entry(*place, memoryview(b""), memoryview(body), "", response.mime, sha256(body).digest())


class Replay:
    """One session with derived answers."""

    def __init__(self, branch: Branch, make: Callable[[int], Book]) -> None:
        self.pages = Pages(make(RECORDED))
        vocabulary = Vocabulary()
        for _, response in self.pages.responses.values():
            vocabulary.add(response.raw_body.decode())
        stored = json.loads(json.dumps(dump(branch)))
        self.session = DerivedAnswers(Branches((load(stored),), vocabulary), self.pages)

    def ordinary(self, request: Request) -> Match:
        rows = self.pages.lookup(request_key("GET", request.url)) if request.method == "GET" else []
        return Match(Tier.EXACT, rows[0], stable=True) if rows else Match(Tier.MISS, reason="not recorded")

    def send(self, request: Request, epoch: int = 0) -> tuple[Match, Entry | None]:
        match = self.ordinary(request)
        found = self.session.answer(request, match, epoch)
        if found is not None:
            return found
        return match, self.pages.entry(match.entry) if match.entry >= 0 else None


def masked(text: bytes) -> bytes:
    """Return a text without the token, the one volatile part of the site."""
    return re.sub(rb"[0-9a-f]{32}(?=\")", b"", text)


def differs(given: Entry, real: Response) -> bool:
    location = dict(real.headers).get("Location", "")
    head = bytes(given.head).decode()
    stated = next((line[10:] for line in head.splitlines() if line.startswith("Location: ")), "")
    return (given.status, stated, masked(bytes(given.body))) != (real.status, location, masked(real.raw_body))


def excerpt(text: str) -> str:
    return escape(text if len(text) <= 20 else text[:19] + "\u2026")


def linked(text: str) -> str:
    return re.sub(r"\b([A-Z]{2,})\b", r"<abbr>\1</abbr>", escape(text))


def marked_up(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))


def typographic(text: str) -> str:
    return escape(
        re.sub(r'"(.+?)"', "\u201c\\1\u201d", text).replace("...", "\u2026").replace("--", "\u2013")
    )


def times(text: str) -> str:
    return re.sub(r"(\d)x(\d)", "\\1\u00d7\\2", escape(text))


def no_markup(values: Sequence[str]) -> str:
    return "no markup" if any("<" in value for value in values) else ""


def between(values: Sequence[str]) -> str:
    return "" if all(2 < len(value) <= 200 for value in values) else "too short or too long"


def unused(values: Sequence[str]) -> str:
    return "exists" if values[0].strip().casefold() in {name.casefold() for name in EXISTING} else ""


def distinct(values: Sequence[str]) -> str:
    return "both are the same" if values[0] == values[1] else ""


# name: the site, and whether its form can be proved
SITES: dict[str, tuple[dict[str, object], bool]] = {
    "html as Python writes it": ({}, True),
    "html as PHP writes it": ({"item": lambda t: escape(t).replace("&#x27;", "&#039;")}, True),
    "html in texts only": ({"item": lambda t: html.escape(t, quote=False)}, True),
    "no escapes at all": ({"item": lambda t: t}, True),
    "json": ({"api": True, "item": lambda t: t}, True),
    "html in json": ({"api": True}, True),
    "value in the address": ({"where": lambda t: quote(t, safe="")}, True),
    "slug in the address": ({"where": lambda t: re.sub(r"[^a-z0-9]+", "-", t.lower()).strip("-")}, True),
    "lower case": ({"item": lambda t: escape(t.lower())}, True),
    "title case": ({"item": lambda t: escape(t.title())}, True),
    "first letter in upper case": ({"item": lambda t: escape(t[:1].upper() + t[1:])}, True),
    "title case of names in lower case": (
        {"item": lambda t: escape(t.title() if t == t.lower() else t)},
        True,
    ),
    "names with a capital are lists": (
        {"item": lambda t: escape(t if t == t.lower() or " " not in t else t.replace(" ", "_"))},
        True,
    ),
    "sentence case": ({"item": lambda t: escape(t.capitalize())}, True),
    "each word in upper case": (
        {"item": lambda t: re.sub(r"(^|\s)\S", lambda f: f[0].upper(), escape(t))},
        True,
    ),
    "base64": ({"item": lambda t: base64.b64encode(t.encode()).decode()}, True),
    "spaces collapsed": ({"item": lambda t: escape(" ".join(t.split()))}, True),
    "line breaks": ({"item": lambda t: escape(t).replace("\r\n", "<br>")}, True),
    "excerpt in the list": ({"row": excerpt}, True),
    "excerpt everywhere": ({"item": excerpt}, True),
    "acronyms are marked": ({"item": linked}, True),
    "products are marked": ({"item": times}, True),
    "markup": ({"item": marked_up}, True),
    "typography": ({"item": typographic}, True),
    "length": ({"item": lambda t: f"{escape(t)} ({len(t)})"}, False),
    "number of words": ({"item": lambda t: f"{escape(t)} ({len(t.split())})"}, True),
    "initial": ({"item": lambda t: f"<i>{escape(t[:1])}</i> {escape(t)}"}, False),
    "digest": ({"item": lambda t: f"{escape(t)} {md5(t.encode()).hexdigest()}"}, False),
    "reversed": ({"item": lambda t: escape(t[::-1])}, False),
    "sorted list": ({"order": lambda titles: sorted(titles, key=str.casefold)}, True),
    "sorted by code point": ({"order": sorted}, True),
    "sorted backwards": ({"order": lambda titles: sorted(titles, reverse=True)}, True),
    "newest first": ({"order": lambda titles: titles[::-1]}, True),
    "no markup accepted": ({"accepts": no_markup}, True),
    "lengths are checked": ({"accepts": between}, True),
    "names are unique": ({"accepts": unused}, True),
    "fields must differ": ({"accepts": distinct}, True),
    "everything rejected": ({"accepts": lambda values: "unknown code"}, False),
}  # fmt: skip

VALUES = [
    ("Lamp", "works very well"),
    ("good", "fine"),
    ("Great product", "Would buy it again, thanks."),
    ("works very well", "Lamp"),
    ("fine", "good"),
    ("Would buy it again, thanks.", "Great product"),
    ("Lamp", "Lamp"),
    ("Lamp", "Lamp post"),
    ("Lamp post", "Lamp"),
    ("LAMP", "lamp"),
    ("Welcome", "dear all"),
    ("dear all", "Welcome"),
    ("Book", "about"),
    ("mango", "juice"),
    ("", ""),
    ("", "text"),
    ("a", "b"),
    ("x" * 10_000, "y"),
    ("word " * 60, "long"),
    ("tall", "w" * 300),
    ("<b>bold</b>", "text"),
    ("a & b", "c < d"),
    ('say "hi"', "it's fine"),
    ("&amp;", "&lt;"),
    ("'", '"'),
    ("{}", '{"a": 1}'),
    ("back\\slash", "tab\there"),
    ("\u00e4rger", "gr\u00fc\u00dfe"),
    ("\u65e5\u672c\u8a9e", "\u6587"),
    ("\U0001f600", "smile"),
    ("e\u0301", "combining"),
    ("\u0130stanbul", "\u01c6"),
    ("\ufb01x", "ligature"),
    ("FAQ", "about USB"),
    ("640x480", "pixels"),
    ("**bold**", "and more"),
    ("wait...", "a--b"),
    ("CamelCase", "iPhone"),
    (" padded ", "text"),
    ("two  spaces", "here"),
    ("first\r\nsecond", "line"),
    ("line\n", "end"),
    ("50%", "a+b=c"),
    ("12", "34"),
    ("007", "1e5"),
    ("-5", "3.14"),
    ("http://a.test/x", "www.a.test"),
    ("../..", "%2e"),
    ("null", "true"),
    ("token", "entry"),
    ("about", "book"),
    ("all", "li"),
    ("a/b", "c?d#e"),
    ("don't", "l'eau"),
    ("ok!", "why?"),
    ("Bought two lamps", "works well"),
    ("two lamps", "Works well"),
    ("See you on Monday", "It works"),
    ("see you on Monday", "it Works"),
]


@pytest.mark.parametrize("name", SITES)
def test_a_derived_answer_is_the_sites_own_or_a_miss(name: str) -> None:
    how, provable = SITES[name]

    def make(visit: int) -> Book:
        return Book(visit=visit, **how)  # type: ignore[arg-type]

    result = prove(record(make))
    if isinstance(result, Refusal):
        assert not provable, result.reason
        return
    answered = 0
    for values in VALUES:
        replay, site = Replay(result.branch, make), make(RECORDED)
        match, given = replay.send(post(values, site.token))
        real = site.answer(post(values, site.token))
        if given is None:
            continue
        answered += 1
        assert match.tier is Tier.DERIVED
        assert not differs(given, real), values
        paths = [dict(real.headers).get("Location", "/"), "/", "/about", "/"]
        for path in paths:
            _, page = replay.send(get(path))
            assert page is None or not differs(page, site.answer(get(path))), (values, path)
    assert answered or not provable


def test_common_values_are_answered() -> None:
    result = prove(record(lambda visit: Book(visit=visit)))
    assert isinstance(result, ProvedForm)
    answered = [
        values
        for values in VALUES
        if Replay(result.branch, lambda visit: Book(visit=visit)).send(post(values, Book().token))[1]
    ]
    assert ("Great product", "Would buy it again, thanks.") in answered
    assert ("good", "fine") in answered
    assert ("ok!", "why?") in answered
    assert len(answered) >= 8


@pytest.fixture(scope="module")
def branch() -> Branch:
    result = prove(record(lambda visit: Book(visit=visit)))
    assert isinstance(result, ProvedForm)
    return result.branch


@pytest.fixture
def replay(branch: Branch) -> Replay:
    return Replay(branch, lambda visit: Book(visit=visit))


NOTATIONS = {
    "us": "{0.month:02}/{0.day:02}/{0.year}",
    "short": "{0.month}/{0.day}/{0.year}",
    "German": "{0.day:02}.{0.month:02}.{0.year}",
    "month": "{0:%B} {0.day}, {0.year}",
    "month, day first": "{0.day} {0:%b} {0.year}",
    "weekday": "{0:%A}, {0:%B} {0.day}, {0.year}",  # no known notation
    "week": "{0.year}-W{0:%V}",
}


@pytest.mark.parametrize("name", NOTATIONS)
def test_a_date_is_derived_in_the_notation_of_the_site(name: str) -> None:
    def shown(text: str) -> str:
        found = re.fullmatch(r"\d{4}-\d\d-\d\d", text)
        return NOTATIONS[name].format(date.fromisoformat(text)) if found else escape(text)

    def make(visit: int) -> Book:
        return Book(visit=visit, item=shown)

    result = prove(record(make, ("text", "date")))
    assert isinstance(result, ProvedForm) is (name not in {"weekday", "week"})
    days = ["2031-09-01", "2032-02-29", "2033-01-04", "2034-12-31", "2020-01-01", "2031-02-30", "05/06/2031"]
    answered = 0
    for day in days if isinstance(result, ProvedForm) else ():
        replay, site = Replay(result.branch, make), make(RECORDED)
        given = replay.send(post(("Lamp", day), site.token))[1]
        if given is None:
            continue
        answered += 1
        site.answer(post(("Lamp", day), site.token))
        _, page = replay.send(get("/entry/1"))
        assert page is None or not differs(page, site.answer(get("/entry/1"))), day
    assert answered == (4 if isinstance(result, ProvedForm) else 0)


@pytest.mark.parametrize(
    ("kind", "typed", "covered"),
    [
        ("date", ("2031-09-01", "2043-02-01"), True),
        ("date", ("2031-09-01", "2031-08-01"), False),  # ends before all recorded ends
        ("number", ("12", "60"), True),
        ("number", ("12", "12"), False),
    ],
)
def test_two_fields_of_one_kind_have_values_of_their_own(
    kind: str, typed: tuple[str, str], covered: bool
) -> None:
    def ordered(values: Sequence[str]) -> str:
        return "" if values[0] <= values[1] else "ends before it begins"

    def make(visit: int) -> Book:
        return Book(visit=visit, accepts=ordered if kind == "date" else lambda values: "")

    result = prove(record(make, (kind, kind)))
    assert isinstance(result, ProvedForm), result
    replay, site = Replay(result.branch, make), make(RECORDED)
    match, given = replay.send(post(typed, OWN_TOKEN))
    assert (given is not None) is covered, match.reason
    if given is not None:
        site.answer(post(typed, OWN_TOKEN))
        page = replay.send(get("/entry/1"))[1]
        assert page is not None
        assert not differs(page, site.answer(get("/entry/1")))


def test_a_number_that_a_page_has_by_chance_does_not_show_that_an_entry_was_stored() -> None:
    def make(visit: int) -> Book:
        return Book(visit=visit, accepts=lambda values: "choose a unit", existing=("Welcome", "17 members"))

    result = prove(record(make, ("text", "number")))
    assert isinstance(result, Refusal)
    assert "no later page holds the value" in result.reason


def test_no_value_of_a_form_occurs_in_another_one() -> None:
    kinds = [("text", 0), ("text", 10), ("number", 0), ("number", 0), ("date", 0), ("date", 0), ("email", 0)]
    sets = list(sentinels(kinds, {"welcome"}))
    assert len(sets) > 8
    assert len(list(sentinels([("number", 0)] * 6, set()))) > 8
    assert not list(sentinels([("text", 1)] * 30, set()))
    for values in sets:
        pairs = [(a, b) for n, a in enumerate(values) for b in (*values[:n], *values[n + 1 :])]
        assert not [(one, other) for one, other in pairs if one.casefold() in other.casefold()]


TEXTS = ("Lamp", "works very well")


def test_the_whole_branch_is_derived(replay: Replay) -> None:
    tiers = [
        replay.send(request)[0].tier
        for request in (post(TEXTS, Book().token), get("/entry/1"), get("/entry/1"), get("/"))
    ]
    assert tiers == [Tier.DERIVED] * 4
    match, page = replay.send(get("/about"))
    assert (match.tier, page is None) == (Tier.EXACT, False)


def test_before_a_write_recorded_pages_are_answered_as_before(replay: Replay) -> None:
    for path in ("/", "/about", "/entry/1", "/other"):
        assert replay.session.answer(get(path), replay.ordinary(get(path)), 0) is None


FOREIGN = [md5(f"token{visit}".encode()).hexdigest() for visit in (1, 2, 3, 4, 17, 99)]  # of other visits


@pytest.mark.parametrize(
    "token",
    [
        *FOREIGN,
        "",
        "0" * 32,
        "expired",
        "<b>",
        OWN_TOKEN.upper(),
        OWN_TOKEN[:-1],
        OWN_TOKEN * 2,
        f" {OWN_TOKEN}",
    ],
)
def test_a_token_that_no_recorded_page_holds_is_a_miss(replay: Replay, token: str) -> None:
    assert replay.send(post(TEXTS, token))[1] is None


def test_a_second_write_is_a_miss(replay: Replay) -> None:
    replay.send(post(TEXTS, Book().token))
    match, given = replay.send(post(("Chair", "also works"), Book().token))
    assert given is None
    assert "written before" in match.reason


def test_after_a_recorded_write_a_form_is_a_miss(replay: Replay) -> None:
    replay.session.note_write(Request("POST", get("/order").url), Match(Tier.EXACT, 5))
    match, given = replay.send(post(TEXTS, Book().token))
    assert given is None
    assert "written before" in match.reason


def test_another_write_spoils_the_branch(replay: Replay) -> None:
    replay.send(post(TEXTS, Book().token))
    other = Request("POST", get("/order").url)
    replay.session.note_write(other, Match(Tier.EXACT, 5))
    match, page = replay.send(get("/"))
    assert page is None
    assert "/order" in match.reason


def recorded_answer(status: int, body: bytes) -> Entry:
    place = (b"", "POST", get("/rows").url, "20261123120000", status, 0, 7)
    return Entry(*place, memoryview(b""), memoryview(body), "", "application/json", b"")


@pytest.mark.parametrize(
    ("status", "body", "stands"),
    [
        (200, b'["Welcome"]', False),  # a list that is read by POST would lack the entry
        (303, b"<a>see</a>", True),
        (204, b"", True),
    ],
)
def test_what_a_recorded_post_shows_is_a_miss_after_a_derived_write(
    replay: Replay, status: int, body: bytes, stands: bool
) -> None:
    request = Request("POST", get("/rows").url, JSON_TYPE, b'{"page": 1}')
    assert replay.session.answer(request, Match(Tier.EXACT, 7), 0) is None
    replay.send(post(TEXTS, Book().token))
    answer = recorded_answer(status, body)
    replay.pages.entry = lambda row: answer  # type: ignore[method-assign]
    found = replay.session.answer(request, Match(Tier.EXACT, 7), 0)
    assert (found is None) is stands
    assert found is None or (found[1] is None and "no recording shows this" in found[0].reason)


def test_another_session_sees_nothing_of_a_write(branch: Branch) -> None:
    first, second = (Replay(branch, lambda visit: Book(visit=visit)) for _ in range(2))
    first.send(post(TEXTS, Book().token))
    match, page = second.send(get("/"))
    assert match.tier is Tier.EXACT
    assert page is not None
    assert b"Lamp" not in bytes(page.body)
    assert second.send(get("/entry/1"))[1] is None


def test_sessions_that_write_in_turns_see_their_own_text_only(branch: Branch) -> None:
    texts = [("Lamp", "works very well"), ("Chair", "Would buy it again, thanks.")]
    replays = [Replay(branch, lambda visit: Book(visit=visit)) for _ in texts]
    sites = [Book() for _ in texts]
    for replay, site, values in zip(replays, sites, texts, strict=True):
        site.answer(post(values, OWN_TOKEN))
        assert replay.send(post(values, OWN_TOKEN))[0].tier is Tier.DERIVED
    for path in ("/entry/1", "/", "/entry/1"):
        for replay, site in zip(replays, sites, strict=True):
            page = replay.send(get(path))[1]
            assert page is not None
            assert not differs(page, site.answer(get(path)))


def with_cookie(request: Request, cookie: str) -> Request:
    return replace(request, headers=(*request.headers, ("Cookie", cookie)))


def answer_with(path: str, cookie: str) -> Entry:
    head = f"HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\n".encode()
    place = (b"", "GET", get(path).url, "20261123120000", 200, 0, 0)
    return Entry(*place, memoryview(head), memoryview(b""), "", "text/html", b"")


@pytest.fixture(scope="module")
def members() -> Branch:
    """A branch whose form was sent with the cookie of a login."""
    found = record(lambda visit: Book(visit=visit))
    branches = [
        replace(
            each,
            steps=tuple(
                replace(
                    step,
                    exchange=replace(
                        step.exchange, request=with_cookie(step.exchange.request, f"a=1; sid={n}")
                    ),
                )
                for step in each.steps
            ),
        )
        for n, each in enumerate(found.branches)
    ]
    result = prove(replace(found, branches=tuple(branches)))
    assert isinstance(result, ProvedForm)
    return result.branch


ENDS = ["sid=; Max-Age=0; Path=/", "sid=deleted; expires=Thu, 01 Jan 1970 00:00:01 GMT"]


@pytest.mark.parametrize("end", ENDS)
def test_after_a_logout_a_form_is_a_miss(members: Branch, end: str) -> None:
    replay = Replay(members, lambda visit: Book(visit=visit))
    replay.session.note_visit(get("/logout"), answer_with("/logout", end))
    match, given = replay.send(with_cookie(post(TEXTS, Book().token), "a=1"))
    assert given is None
    assert "'sid' was deleted" in match.reason
    replay.session.note_visit(get("/login"), answer_with("/login", "sid=2"))
    assert replay.send(with_cookie(post(TEXTS, Book().token), "a=1; sid=2"))[0].tier is Tier.DERIVED


def test_after_a_logout_the_pages_of_a_branch_are_misses(members: Branch) -> None:
    replay = Replay(members, lambda visit: Book(visit=visit))
    assert replay.send(with_cookie(post(TEXTS, Book().token), "a=1; sid=2"))[0].tier is Tier.DERIVED
    assert replay.send(with_cookie(get("/"), "a=1; sid=2"))[0].tier is Tier.DERIVED
    replay.session.note_visit(get("/logout"), answer_with("/logout", ENDS[0]))
    assert replay.send(with_cookie(get("/"), "a=1"))[1] is None
    assert replay.send(get("/about"))[0].tier is Tier.EXACT


def test_a_cookie_that_recordings_did_not_send_may_end(members: Branch) -> None:
    replay = Replay(members, lambda visit: Book(visit=visit))
    replay.session.note_visit(get("/"), answer_with("/", "messages=; Max-Age=0"))
    assert replay.send(with_cookie(post(TEXTS, Book().token), "a=1; sid=2"))[0].tier is Tier.DERIVED


SENT = post(TEXTS, Book().token)
FORM_TYPE = (("Content-Type", "application/x-www-form-urlencoded"),)
JSON_TYPE = (("Content-Type", "application/json"),)


@pytest.mark.parametrize(
    "request_",
    [
        Request("POST", get("/").url, JSON_TYPE, b'{"title": "a", "text": "b"}'),
        Request("POST", get("/").url, FORM_TYPE, b"title=Lamp"),
        Request("PUT", get("/").url, FORM_TYPE, b"title=Lamp"),
        Request("POST", get("/?x=1").url, SENT.headers, SENT.raw_body),
        Request("POST", get("/").url, SENT.headers, SENT.raw_body + b"&more=1"),
        Request("POST", "https://other.test/", SENT.headers, SENT.raw_body),
    ],
    ids=["json", "fields missing", "method", "query", "field added", "host"],
)  # fmt: skip
def test_a_request_of_another_shape_is_a_miss(replay: Replay, request_: Request) -> None:
    assert replay.send(request_)[1] is None
