"""Volatile parts, polls, likeness, and what every session gets alike."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resolver_registry import POLICY, SITE, Registry, Visit, answer_to, entry, make_request

from stillweb.matching.captures import Entry
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, SessionState, resolve
from stillweb.matching.rules import Rules
from stillweb.model import Match, Request, Tier

POLL = f"{SITE}/poll"
BUSTED = f"{SITE}/feed?_="
T1, T2, T3, T4 = (f"17000000000{n}" for n in range(10, 50, 10))
RULES = Rules.parse(
    """
version: 1
volatile:
  - {where: query, name: t, shape: milliseconds, origin: guessed}
  - {where: header, name: X-Trace, shape: hex}
  - {where: header, name: Authorization, shape: any, host: open.example}
polls:
  - {host: shop.example, path: /poll}
"""
)
RULED = Policy(default_noise(), RULES)


def ruled(request: Request, *entries, **policy) -> Match:
    return answer_to(request, *entries, policy=Policy(default_noise(), RULES, **policy))


# Volatile parts.


def test_a_volatile_part_is_looked_at_only_where_nothing_is_exact() -> None:
    entries = entry(url=BUSTED + T1, order=0, answer=b"1"), entry(url=BUSTED + T2, order=1, answer=b"2")
    assert ruled(make_request(url=BUSTED + T2), *entries) == Match(Tier.EXACT, 1, stable=True)
    found = ruled(make_request(url=BUSTED + T3), *entries)
    assert (found.tier, found.entry) == (Tier.SEQUENCE, 0)
    assert found.reason == "volatile: query:_; epoch 0: of epoch 0; recording 1 of 2"
    alone = ruled(make_request(url=BUSTED + T3), entries[0])
    assert alone == Match(Tier.NORMALISED, 0, "volatile: query:_", stable=True)
    assert ruled(make_request(url=BUSTED + "77"), *entries).tier == Tier.MISS
    other_scheme = ruled(make_request(url=BUSTED.replace("https", "http") + T3), entries[0])
    assert (other_scheme.tier, other_scheme.reason) == (
        Tier.NORMALISED,
        "recorded over https; volatile: query:_",
    )
    assert ruled(make_request("HEAD", BUSTED + T3), entries[0]).tier == Tier.NORMALISED


def test_a_guess_needs_leave() -> None:
    page = entry(url=f"{SITE}/?t={T1}")
    missed = ruled(make_request(url=f"{SITE}/?t={T2}"), page)
    assert missed.reason == "only a guess would find it: guessed volatile: query:t"
    assert (missed.tier, missed.stable) == (Tier.MISS, True)
    assert ruled(make_request(url=f"{SITE}/?t=2"), page, guessed=True).tier == Tier.MISS
    found = ruled(make_request(url=f"{SITE}/?t={T2}"), page, guessed=True)
    assert (found.tier, found.reason) == (Tier.NORMALISED, "guessed volatile: query:t")


def test_captures_that_differ_in_volatile_parts_only_come_in_turn() -> None:
    story = [entry(url=BUSTED + t, order=n, answer=b"%d" % n) for n, t in enumerate([T1, T2, T3])]
    story.append(entry("POST", order=3))
    story.append(entry(url=BUSTED + T4, order=4, epoch=1, answer=b"posted"))
    visit = Visit(Registry(story, RULES), RULED)
    unseen = make_request(url=BUSTED + "1700000000999")
    assert visit.bodies(*[unseen] * 4) == [b"0", b"1", b"2", b"2"]
    assert "past the end: the last of 3 recordings again" in visit.ask(unseen).reason
    visit.ask(make_request("POST"))
    assert visit.bodies(unseen, unseen) == [b"posted", b"posted"]


# Polls.


def test_a_declared_poll_continues_within_its_epoch_and_repeats_its_last() -> None:
    story = [entry(url=POLL, order=n, answer=b"%d" % n) for n in range(3)]
    story.append(entry("POST", order=3))
    story += [entry(url=POLL, order=n, epoch=1, answer=b"%d" % n) for n in (4, 5)]
    visit = Visit(Registry(story, RULES), RULED)
    assert visit.bodies(*[make_request(url=POLL)] * 4) == [b"0", b"1", b"2", b"2"]
    assert visit.ask(make_request(url=POLL)).tier == Tier.SEQUENCE
    visit.ask(make_request("POST"))
    assert visit.bodies(*[make_request(url=POLL)] * 3) == [b"4", b"5", b"5"]
    visit.state = SessionState()
    assert visit.bodies(make_request(url=POLL)) == [b"0"]


def test_a_head_does_not_take_the_turn_of_a_get() -> None:
    polled = Visit(Registry([entry(url=POLL, order=n, answer=b"%d" % n) for n in range(3)], RULES), RULED)
    head, get = make_request("HEAD", POLL), make_request(url=POLL)
    assert polled.bodies(head, get, head, head, get, get) == [b"0", b"0", b"1", b"1", b"1", b"2"]
    busted = [entry(url=BUSTED + time, order=n, answer=b"%d" % n) for n, time in enumerate((T1, T2))]
    counted = Visit(Registry(busted, RULES), RULED)
    assert counted.bodies(make_request("HEAD", BUSTED + T3), make_request(url=BUSTED + T4)) == [b"0", b"0"]
    own = Visit(Registry([entry("HEAD", POLL, order=n, answer=b"%d" % n) for n in range(2)], RULES), RULED)
    assert own.bodies(head, head) == [b"0", b"1"]


def test_a_poll_that_is_not_declared_stays() -> None:
    registry = Registry([entry(url=POLL, order=n, answer=b"%d" % n) for n in range(3)])
    assert Visit(registry).bodies(*[make_request(url=POLL)] * 3) == [b"0", b"0", b"0"]


def test_reported_apart_is_only_what_differs() -> None:
    dated = [entry(order=n, epoch=n, fields=f"Date: {n}|Age: {n}|ETag: x") for n in range(3)]
    assert answer_to(make_request(), *dated) == Match(Tier.EXACT, 0, stable=True)
    cookies = [entry(order=n, epoch=n, fields=f"Set-Cookie: a={n}") for n in range(2)]
    assert answer_to(make_request(), *cookies).tier == Tier.SEQUENCE
    same_epoch = [entry(order=n, answer=b"%d" % n) for n in range(2)]
    assert answer_to(make_request(), *same_epoch) == Match(Tier.EXACT, 0, stable=True)


# Likeness.

CURSOR = f"{SITE}/list?sort=name&cursor="


def test_likeness_is_off_unless_requested() -> None:
    page = entry(url=CURSOR + "abcd1")
    assert answer_to(make_request(url=CURSOR + "abcd2"), page).tier == Tier.MISS
    found = ruled(make_request(url=CURSOR + "abcd2"), page, fuzzy=0.9)
    assert (found.tier, found.entry, found.stable) == (Tier.FUZZY, 0, True)
    assert found.reason == f"scores 0.93 with {CURSOR}abcd1 (cursor 0.80)"
    below = ruled(make_request(url=CURSOR + "zzzz9"), page, fuzzy=0.9)
    assert below.tier == Tier.MISS
    assert f"closest of all scores 0.67, under 0.9: {CURSOR}abcd1" in below.reason


def test_of_equally_alike_requests_the_first_recorded_counts() -> None:
    one, two = entry(url=CURSOR + "b", order=0), entry(url=CURSOR + "a", order=1)
    assert ruled(make_request(url=CURSOR + "c"), one, two, fuzzy=0).entry == 0
    assert ruled(make_request(url=CURSOR + "c"), two, one, fuzzy=0).entry == 1


@pytest.mark.parametrize(
    "request_",
    [
        make_request("POST", CURSOR + "b", b'{"n":2}'),  # another body
        make_request("POST", CURSOR + "b"),  # a mutation is in its query
        make_request("DELETE", CURSOR + "b"),
        make_request("OPTIONS", CURSOR + "b"),
        make_request(url=f"{SITE}/lists?cursor=a"),  # another path
        make_request(url="https://shop.test/list?sort=name&cursor=a"),  # another site
        make_request(url=CURSOR + "b", Authorization="Bearer x"),
    ],
)
def test_nothing_else_is_alike(request_: Request) -> None:
    registry = [
        entry(url=CURSOR + "a"),
        entry("POST", CURSOR + "a", body=b'{"n":1}', order=1),
        entry("POST", CURSOR + "a", order=2),
        entry("DELETE", CURSOR + "a", order=3),
        entry("OPTIONS", CURSOR + "a", order=4),
    ]
    assert ruled(request_, *registry, fuzzy=0).tier == Tier.MISS


def test_a_mutation_is_like_another_with_the_same_body() -> None:
    posted = entry("POST", CURSOR + "a", body=b'{"n":1}')
    assert ruled(make_request("POST", CURSOR + "b", b'{"n": 1}'), posted, fuzzy=0).tier == Tier.FUZZY


# A method that a URL does not allow.

REFUSED = entry("POST", PAGE_OF_FORM := f"{SITE}/login.html", status=405, body=b'{"user":"a"}')


def test_a_refused_method_is_refused_whatever_the_body() -> None:
    match = ruled(make_request("POST", PAGE_OF_FORM, b'{"user":"own text"}'), REFUSED)
    assert (match.tier, match.entry, match.stable) == (Tier.NORMALISED, 0, True)
    assert "not allowed" in match.reason


def test_a_method_is_refused_over_each_version_of_http() -> None:
    again = entry("POST", PAGE_OF_FORM, status=405, body=b'{"user":"b"}', order=1)
    again = replace(again, head=memoryview(b"HTTP/1.1 405 Method Not Allowed\r\nserver: x\r\n"))
    match = ruled(make_request("POST", PAGE_OF_FORM, b'{"user":"own text"}'), REFUSED, again)
    assert (match.tier, match.entry) == (Tier.NORMALISED, 0)


@pytest.mark.parametrize(
    ("request_", "other"),
    [
        (make_request("PUT", PAGE_OF_FORM, b"1"), []),
        (make_request("POST", f"{PAGE_OF_FORM}?step=2", b"1"), []),
        (make_request("POST", PAGE_OF_FORM, b"1"), [entry("POST", PAGE_OF_FORM, body=b"2", order=1)]),
        (
            make_request("POST", PAGE_OF_FORM, b"1"),
            [entry("POST", PAGE_OF_FORM, status=405, answer=b"other", order=1)],
        ),
        (make_request("POST", PAGE_OF_FORM, b"1", Authorization="Bearer x"), []),
    ],
)
def test_what_a_refused_method_does_not_show_is_a_miss(request_: Request, other: list[Entry]) -> None:
    assert ruled(request_, REFUSED, *other).tier == Tier.MISS


def test_another_refusal_shows_nothing_about_other_bodies() -> None:
    denied = entry("POST", PAGE_OF_FORM, status=403, body=b"2")
    assert ruled(make_request("POST", PAGE_OF_FORM, b"1"), denied).tier == Tier.MISS


@given(st.text(max_size=8), st.text(max_size=8), st.floats(0, 1))
def test_likeness_is_a_number_between_its_bounds(one: str, other: str, floor: float) -> None:
    url = f"{SITE}/list?a="
    match = ruled(make_request(url=url + one), entry(url=url + other), fuzzy=floor)
    if match.tier == Tier.FUZZY:
        assert floor - 0.005 <= float(match.reason.split()[1]) <= 1
    else:
        assert match.tier in (Tier.EXACT, Tier.MISS)


# Any story, any session.

PAGE, GUESSED = f"{SITE}/", f"{SITE}/?t="
URLS = st.sampled_from([PAGE, PAGE, POLL, BUSTED + T1, BUSTED + T2, GUESSED + T1])
OTHERS = st.sampled_from(
    [BUSTED + T3, GUESSED + T2, f"{SITE}/none", "http://shop.example/poll", f"{PAGE}?t=1"]
)
# Most requests are plain, so that stories come back to the same keys.
FIELDS = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from(
        [{"hx-request": "true"}, {"cookie": "a=1"}, {"accept": "text/html"}, {"authorization": "x"}]
    ),
)
EPISODE = st.tuples(st.sampled_from(["GET", "GET", "GET", "POST", "HEAD"]), URLS, FIELDS, st.integers(0, 3))
REQUESTED = st.tuples(
    st.sampled_from(["GET", "GET", "GET", "POST", "HEAD", "PUT"]), st.one_of(URLS, URLS, OTHERS), FIELDS
)
POLICIES = st.builds(
    lambda guessed, fuzzy: Policy(default_noise(), RULES, guessed, fuzzy),
    st.booleans(),
    st.sampled_from([None, 0.0, 0.6]),
)


def story_of(episodes) -> Registry:
    entries, epoch = [], 0
    for order, (method, url, fields, answer) in enumerate(episodes):
        made = entry(method, url, order=order, epoch=epoch, answer=b"%d" % answer, varies=fields)
        entries.append(made)
        epoch += method == "POST"
    return Registry(entries, RULES)


def request_of(wanted) -> Request:
    method, url, fields = wanted
    return make_request(method, url, **fields)


STORIES = st.lists(EPISODE, min_size=2, max_size=16).map(story_of)


@given(STORIES, REQUESTED.map(request_of), POLICIES, st.data())
def test_stable_is_what_any_session_gets(registry: Registry, request: Request, policy: Policy, data) -> None:
    used = st.dictionaries(st.integers(0, 15), st.integers(0, 3), max_size=6)
    states = st.lists(st.builds(SessionState, st.integers(0, 6), used), min_size=1, max_size=5)
    matches = [resolve(request, registry, state, policy) for state in data.draw(states)]
    assert len({match.stable for match in matches}) == 1
    if matches[0].stable:
        assert len(set(matches)) == 1
        assert matches[0].tier is not Tier.SEQUENCE
    elif request.method in ("GET", "HEAD"):
        every = [
            resolve(request, registry, SessionState(epoch, uses), policy).entry
            for epoch in range(17)
            for uses in ({}, {order: 1 for order in range(16)})
        ]
        assert len(set(every)) > 1


@given(STORIES, REQUESTED.map(request_of), POLICIES, st.integers(0, 6))
def test_pure_deterministic_and_never_across_methods_or_sites(
    registry: Registry, request: Request, policy: Policy, epoch: int
) -> None:
    state = SessionState(epoch, {0: 1, 1: 2})
    before = copy.deepcopy(state)
    match = resolve(request, registry, state, policy)
    assert state == before
    assert match == resolve(request, Registry(registry.entries, RULES), copy.deepcopy(state), policy)
    if match.entry >= 0:
        found = registry.entry(match.entry)
        assert found.method == request.method or (request.method, found.method) == ("HEAD", "GET")
        assert (
            found.url.partition("://")[2].partition("?")[0]
            == request.url.partition("://")[2].partition("?")[0]
        )


@given(STORIES, POLICIES, st.lists(REQUESTED.map(request_of), min_size=1, max_size=8), st.integers(0, 2**32))
@settings(max_examples=settings.default.max_examples // 4)
def test_sessions_at_once_get_what_each_alone_gets(
    registry: Registry, policy: Policy, pool: list[Request], seed: int
) -> None:
    dice = random.Random(seed)
    wanted = [dice.choices(pool, k=dice.randrange(8)) for _ in range(64)]
    alone = []
    for requests in wanted:
        visit = Visit(registry, policy)
        alone.append([visit.ask(request) for request in requests])
        visit.state = SessionState()  # what reset does
        assert [visit.ask(request) for request in requests] == alone[-1]
    turns = [place for place, requests in enumerate(wanted) for _ in requests]
    dice.shuffle(turns)
    visits = [Visit(registry, policy) for _ in wanted]
    left = [iter(requests) for requests in wanted]
    together: list[list[Match]] = [[] for _ in wanted]
    for place in turns:
        together[place].append(visits[place].ask(next(left[place])))
    assert together == alone


@pytest.mark.parametrize("policy", [POLICY, RULED], ids=["bare", "ruled"])
def test_an_empty_pack_misses_everything(policy: Policy) -> None:
    for method in ("GET", "HEAD", "POST", "OPTIONS", "BREW", ""):
        assert answer_to(make_request(method), policy=policy).tier == Tier.MISS
