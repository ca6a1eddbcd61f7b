"""URLs: what strict matching may fold together, and what it must keep apart."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.matching.rules import Rules
from stillweb.model import Request
from stillweb.record.amend import plan
from stillweb.urls import from_timestamp, host_of, origin_of, other_scheme, to_timestamp, urlkey, wire_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:443/a", "http://example.com:443/a"),
        ("https://example.com?x=1", "https://example.com/?x=1"),
        ("https://example.com/a#b", "https://example.com/a"),
        ("https://example.com/a?b=c#d?e", "https://example.com/a?b=c"),
        ("https://user:pass@example.com/", "https://example.com/"),
        ("https://example.com/a b", "https://example.com/a%20b"),
        (b"https://example.com/\xff\xe9".decode("utf-8", "surrogateescape"), "https://example.com/%FF%E9"),
        ("https://example.com/\ud800", "https://example.com/%3F"),
        ("https://example.com/é", "https://example.com/%C3%A9"),
        ("https://example.com/a%2fB?z=1&a=2", "https://example.com/a%2fB?z=1&a=2"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("http://example.com:/x", "http://example.com/x"),
        ("http://example.com:0080/x", "http://example.com/x"),
        ("http://example.com:²/x", "http://example.com:2/x"),
        (f"http://example.com:{'1' * 5000}/x", f"http://example.com:{'1' * 5000}/x"),
    ],
)
def test_wire_url(url: str, expected: str) -> None:
    assert wire_url(url) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/x?a=1&b=2", "https://a.example/x?b=2&a=1"),
        ("https://a.example/X", "https://a.example/x"),
        ("https://www.a.example/", "https://a.example/"),
        ("http://a.example/", "https://a.example/"),
        ("https://a.example/x", "https://a.example/x/"),
        ("https://a.example/%2F", "https://a.example//"),
    ],
)
def test_wire_url_keeps_apart_what_a_server_can_report_apart(one: str, other: str) -> None:
    assert wire_url(one) != wire_url(other)


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=40))
def test_wire_url_is_idempotent_and_ascii(path: str) -> None:
    once = wire_url("https://host.example/" + path)
    assert wire_url(once) == once
    assert once.isascii()
    assert "#" not in once


def test_urlkey_is_what_pywb_and_cdxj_indexer_write() -> None:
    assert urlkey("https://www.Example.com/A?b=1&a=2") == "com,example)/a?a=2&b=1"


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2090, 1, 1)))
def test_timestamp_round_trip(when: datetime) -> None:
    moment = when.replace(microsecond=0, tzinfo=UTC)
    assert from_timestamp(to_timestamp(moment)) == moment


@pytest.mark.parametrize(("short", "full"), [("2024", "20240101000000"), ("202402", "20240201000000")])
def test_short_timestamps_mean_their_first_moment(short: str, full: str) -> None:
    assert to_timestamp(from_timestamp(short)) == full


@pytest.mark.parametrize("bad", ["", "abc", "20", "20240", "2024010101010101", "20241301000000"])
def test_bad_timestamps(bad: str) -> None:
    with pytest.raises(ValueError, match=r"timestamp|unconverted|match format|month"):
        from_timestamp(bad)


def test_origin_and_host() -> None:
    assert origin_of("https://Example.com:443/a?b#c") == "https://example.com"
    assert origin_of("http://example.com:8080/a") == "http://example.com:8080"
    assert host_of("https://Example.com:8443/x") == "example.com"
    assert host_of("not a url") == ""
    assert host_of("http://[bad/") == ""


OTHER_SCHEMES = [
    ("http://a.example/x?y=1#z", "https://a.example/x?y=1"),
    ("https://a.example", "http://a.example/"),
    ("https://a.example:443/", "http://a.example/"),
    ("http://[::1]/", "https://[::1]/"),
    ("http://[2001:db8::80]/x", "https://[2001:db8::80]/x"),
    ("http://a.example:8080/", None),
    ("http://[::1]:8080/", None),
    ("https://a.example:80/", None),
    ("ws://a.example/", None),
    ("urn:pageinfo:x", None),
]


@pytest.mark.parametrize(("url", "expected"), OTHER_SCHEMES)
def test_the_other_scheme_of_a_url(url: str, expected: str | None) -> None:
    assert other_scheme(url) == expected


@pytest.mark.parametrize(("url", "expected"), [each for each in OTHER_SCHEMES if each[0][:2] != "ws"])
def test_amend_looks_where_replay_looks(url: str, expected: str | None) -> None:
    keys = list(plan.keys_of(Request("GET", url), Rules()))
    assert len(keys) == (1 if expected is None else 2)
