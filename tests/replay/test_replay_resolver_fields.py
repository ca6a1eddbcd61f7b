"""The captures that answer a request, by its fields."""

from __future__ import annotations

import pytest
from resolver_registry import answer_to, entry, make_request

from stillweb.matching.captures import MEANT
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, SessionState
from stillweb.matching.rules import Rules
from stillweb.model import Match, Request, Tier

RULES = Rules.parse(
    """
version: 1
volatile:
  - {where: header, name: X-Trace, shape: hex}
  - {where: header, name: Authorization, shape: any, host: open.example}
"""
)


def ruled(request: Request, *entries) -> Match:
    return answer_to(request, *entries, policy=Policy(default_noise(), RULES))


def test_a_field_that_the_page_sets_bears_meaning() -> None:
    part = entry(varies={"hx-request": "true"}, order=0)
    page = entry(varies={"hx-request": ""}, order=1)
    assert answer_to(make_request(HX_Request="true"), part, page).entry == 0
    assert answer_to(make_request(), part, page).entry == 1
    assert answer_to(make_request(), part).reason == "recorded with another hx-request"
    missed = answer_to(make_request(HX_Request="true"), page)
    assert (missed.tier, missed.reason, missed.stable) == (
        Tier.MISS,
        "recorded with another HX-Request",
        True,
    )


@pytest.mark.parametrize(
    "name",
    ["user-agent", "origin", "referer", "accept-language", "cookie", "sec-ch-ua", "sec-fetch-dest", "dnt"],
)
def test_a_field_of_the_browsers_own_is_a_preference(name: str) -> None:
    one, two = (
        entry(varies={name: value}, order=n, answer=value.encode()) for n, value in enumerate(["one", "two"])
    )
    assert answer_to(make_request(**{name: "two"}), one, two).entry == 1
    assert answer_to(make_request(**{name: "three"}), one, two).entry == 0
    assert answer_to(make_request(), one).tier == Tier.EXACT


def test_what_one_capture_varies_by_the_others_did_not_have() -> None:
    full = entry(order=0, answer=b"full")
    part = entry(order=1, answer=b"part", varies={"x-part": "1"})
    assert answer_to(make_request(X_Part="1"), full, part).entry == 1
    assert answer_to(make_request(), full, part).entry == 0
    assert answer_to(make_request(X_Part="2"), full, part).entry == 0


def test_what_a_page_set_is_preferred_where_vary_is_silent() -> None:
    fields = [{"?x-action": "list"}, {"?x-action": "delete"}, None]
    three = [entry(order=n, epoch=n, answer=b"%d" % n, varies=each) for n, each in enumerate(fields)]
    for epoch in range(3):
        state = SessionState(epoch=epoch)
        assert answer_to(make_request(X_Action="list"), *three, state=state).entry == 0
        assert answer_to(make_request(X_Action="delete"), *three, state=state).entry == 1
        assert answer_to(make_request(), *three, state=state).entry == 2
        # It is unknown whose this is: the epoch decides, as without the field.
        assert answer_to(make_request(X_Action="show"), *three[:2], state=state).entry == min(epoch, 1)
    # It is no ground to refuse what the server says does not depend on it.
    assert answer_to(make_request(X_Action="delete"), three[0]).tier == Tier.EXACT


def test_what_a_page_set_goes_before_what_browsers_set() -> None:
    listed = entry(order=0, varies={"?x-action": "list", "user-agent": "a"}, mime="application/json")
    page = entry(order=1, varies={"user-agent": "b"}, answer=b"page")
    fields = {"user_agent": "b", "accept": "text/html, */*;q=0.1"}
    assert answer_to(make_request(X_Action="list", **fields), listed, page).entry == 0
    assert answer_to(make_request(**fields), listed, page).entry == 1


def test_a_preferred_field_may_be_called_volatile() -> None:
    one, two = (entry(order=n, answer=b"%d" % n, varies={"?x-trace": f"{n:016x}"}) for n in range(2))
    assert answer_to(make_request(X_Trace=f"{1:016x}"), one, two).entry == 1
    assert ruled(make_request(X_Trace=f"{1:016x}"), one, two).entry == 0


@pytest.mark.parametrize(("recorded", "sent"), [("a=1", "a=2"), ("", "a=1"), ("a=1", "")])
def test_another_cookie_than_recorded_is_on_the_ledger(recorded: str, sent: str) -> None:
    match = answer_to(make_request(**({"Cookie": sent} if sent else {})), entry(varies={"cookie": recorded}))
    assert (match.tier, match.reason) == (Tier.EXACT, "other Cookie than recorded (Vary: Cookie)")
    same = answer_to(make_request(Cookie=recorded), entry(varies={"cookie": recorded}))
    assert (same.tier, same.reason) == (Tier.EXACT, "")


def test_cookies_do_not_overrule_what_the_session_has_posted() -> None:
    before = entry(varies={"cookie": "a=1"}, order=0, answer=b"empty")
    after = entry(varies={"cookie": "a=2"}, order=1, epoch=1, answer=b"one thing")
    assert answer_to(make_request(cookie="a=1"), before, after, state=SessionState(epoch=1)).entry == 1
    assert answer_to(make_request(cookie="a=2"), before, after).entry == 0


@pytest.mark.parametrize(
    ("recorded", "sent", "reason"),
    [
        ("Bearer a", "Bearer a", ""),
        ("Bearer a", "Bearer b", "recorded with another Authorization"),
        ("Bearer a", "", "recorded with another authorization"),
        (None, "Bearer a", "recorded without Authorization"),
        ("", "Bearer a", "recorded with another Authorization"),  # Vary: Authorization, and none was sent
        (None, "", ""),
    ],
)
def test_who_requested_must_be_who_asks(recorded: str | None, sent: str, reason: str) -> None:
    varies = None if recorded is None else {"authorization": recorded}
    match = answer_to(make_request(**({"Authorization": sent} if sent else {})), entry(varies=varies))
    assert (match.tier, match.reason) == (Tier.MISS if reason else Tier.EXACT, reason)


@pytest.mark.parametrize("name", sorted(MEANT))
def test_some_fields_bear_meaning_though_vary_is_silent(name: str) -> None:
    assert answer_to(make_request(**{name: "1"}), entry()).reason == f"recorded without {name}"
    assert answer_to(make_request(), entry(varies={name: "1"})).tier == Tier.MISS
    assert answer_to(make_request(**{name: "2"}), entry(varies={name: "1"})).tier == Tier.MISS
    assert answer_to(make_request(**{name: "1"}), entry(varies={name: "1"})).tier == Tier.EXACT
    assert answer_to(make_request(**{name: ""}), entry()).tier == Tier.EXACT


def test_the_answer_to_an_unknown_visitor_stands_beside_that_to_a_known_one() -> None:
    shut = entry(status=401, order=0)
    open_ = entry(order=1, varies={"authorization": "Basic eA=="})
    assert answer_to(make_request(), shut, open_).entry == 0
    assert answer_to(make_request(Authorization="Basic eA=="), shut, open_).entry == 1
    assert answer_to(make_request(Authorization="Basic eQ=="), shut, open_).tier == Tier.MISS


def test_a_rule_may_call_a_field_volatile() -> None:
    traced = entry(varies={"x-trace": "0123456789abcdef"})
    assert ruled(make_request(X_Trace="fedcba9876543210"), traced).tier == Tier.EXACT
    assert ruled(make_request(X_Trace="not hex"), traced).tier == Tier.MISS
    assert answer_to(make_request(X_Trace="fedcba9876543210"), traced).tier == Tier.MISS
    url = "https://open.example/"
    known = entry(url=url, varies={"authorization": "Bearer old"})
    assert ruled(make_request(url=url, Authorization="Bearer new"), known).tier == Tier.EXACT
    assert ruled(make_request(url=url, Authorization="Bearer new"), entry(url=url)).tier == Tier.EXACT


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        ("application/json", False),
        ("text/html;q=0, */*", False),
        ("application/json, */*;q=0.1", True),
        ("text/*", True),
        ("", True),
        ("text/html,application/xhtml+xml;q=0.9", True),
    ],
)
def test_a_capture_answers_only_who_takes_its_media_type(accept: str, found: bool) -> None:
    for page in (entry(), entry(varies={"accept": "text/html, */*"})):
        match = answer_to(make_request(accept=accept), page)
        assert (match.tier == Tier.EXACT) is found
        assert found or match.reason == "recorded as text/html, which this request does not accept"
    # The server gave it to every client that requested so, or it is no answer to the request.
    assert answer_to(make_request(accept=accept), entry(varies={"accept": accept})).tier == Tier.EXACT
    assert answer_to(make_request(accept=accept), entry(status=404)).tier == Tier.EXACT
    assert answer_to(make_request(accept=accept), entry(mime="")).tier == Tier.EXACT


@pytest.mark.parametrize(("port", "found"), [("", True), (":443", False), (":8080", False)])
def test_the_other_scheme_stands_in_at_no_port_of_its_own(port: str, found: bool) -> None:
    page = entry(url=f"https://shop.example{port}/:80")
    assert (answer_to(make_request(url=f"http://shop.example{port}/:80"), page).tier == Tier.EXACT) is found


def test_of_one_media_type_the_accept_that_was_recorded_is_preferred() -> None:
    versions = [
        entry(
            varies={"accept": f"application/vnd.v{n}+json"}, order=n, mime="application/json", status=206 + n
        )
        for n in (1, 2)
    ]
    assert answer_to(make_request(accept="application/vnd.v2+json"), *versions).entry == 1
