"""The resolver is total: any request at any pack gets a match, and the same one again."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from resolver_registry import SITE, Registry

from stillweb.matching.captures import MEANT, Entry, vary_digest
from stillweb.matching.keys import request_key
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, SessionState, resolve
from stillweb.matching.rules import Rules
from stillweb.model import Request, Tier

RULES = Rules.parse(
    """
version: 1
volatile:
  - {where: query, name: t, shape: any}
  - {where: path, name: "2", shape: any, origin: guessed}
  - {where: json, name: a, shape: any}
  - {where: header, name: rsc, shape: any}
polls:
  - {host: "*", path: "/p"}
"""
)
HITS = {Tier.EXACT, Tier.NORMALISED, Tier.SEQUENCE, Tier.FUZZY}
ODD = st.sampled_from(
    ["", "*", "http://", "https://[::1", "http://[bad]/", "//x", "a:b", "ht\x00tp://x", "\ud800"]
)
PATHS = st.sampled_from(["", "/", "/p", "/p?t=1", "/p?t=2&t=3", "/a/b?x=1", "/a/c?x=2", "/%", "/?", "?t"])
URLS = st.one_of(
    PATHS.map(SITE.__add__),
    PATHS.map("http://shop.example".__add__),
    ODD,
    st.text(max_size=12).map(SITE.__add__),
)
METHODS = st.one_of(st.sampled_from(["GET", "GET", "HEAD", "POST", "PUT", "OPTIONS"]), st.text(max_size=5))
NAMES = st.sampled_from(
    [
        *sorted(MEANT),
        "accept",
        "cookie",
        "origin",
        "range",
        "if-none-match",
        "content-type",
        "sec-fetch-mode",
        "x",
    ]
)
VALUES = st.one_of(
    st.sampled_from(
        [
            "",
            "true",
            "bytes=0-",
            "bytes=-",
            "text/html, */*;q=0",
            ";q=,,/",
            "application/json",
            "no-cors",
            "PUT",
        ]
    ),
    st.text(max_size=12),
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple)
BODIES = st.one_of(
    st.just(b""), st.sampled_from([b'{"a":1}', b'{"a":2}', b"{", b"a=1"]), st.binary(max_size=12)
)
HEADS = st.one_of(
    st.sampled_from(
        [
            b"HTTP/1.1 302 X\r\nLocation: /p\r\n",
            b"HTTP/1.1 302 X\r\nLocation: http://[bad\r\n",
            b"HTTP/1.1 206 X\r\nContent-Range: bytes 0-9/10\r\n",
            b"HTTP/1.1 206 X\r\nContent-Range: bytes 9-0/0\r\n",
        ]
    ),
    st.binary(max_size=40),
)
MIMES = st.sampled_from(["", "text/html", "application/json", "/", "x"])


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Answers of any kind, to requests of any kind."""
    made = []
    for order in range(draw(st.integers(0, 8))):
        method, url, body = draw(METHODS), draw(URLS), draw(BODIES)
        made.append(
            Entry(
                key=request_key(method, url, "application/json", body),
                method=method,
                url=url,
                timestamp="20260101000000",
                status=draw(st.sampled_from([200, 200, 204, 206, 302, 304, 404, 100, 0, 999])),
                epoch=draw(st.integers(0, 4)),
                order=order,
                head=memoryview(draw(HEADS)),
                body=memoryview(b""),
                encoding="",
                mime=draw(MIMES),
                body_sha256=draw(st.sampled_from([b"a", b"b"])),
                varies=tuple((name, vary_digest(value)) for name, value in draw(FIELDS)),
            )
        )
    return made


STATES = st.builds(
    SessionState, st.integers(0, 6), st.dictionaries(st.integers(0, 9), st.integers(0, 4), max_size=5)
)
POLICIES = st.builds(
    lambda guessed, fuzzy: Policy(default_noise(), RULES, guessed, fuzzy),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 1)),
)


@given(st.builds(Request, METHODS, URLS, FIELDS, BODIES), entries(), STATES, POLICIES)
def test_any_request_at_any_pack(
    request: Request, made: list[Entry], state: SessionState, policy: Policy
) -> None:
    registry, before = Registry(made, RULES), copy.deepcopy(state)
    match = resolve(request, registry, state, policy)
    assert state == before
    assert match == resolve(request, Registry(made, RULES), copy.deepcopy(state), policy)
    assert (match.entry >= 0) is (match.tier in HITS)
    assert match.reason or match.tier in (Tier.EXACT, Tier.NOISE)
    if match.stable:
        assert match == resolve(request, registry, SessionState(), policy)
    if match.entry >= 0:
        assert made[match.entry].status >= 200
        assert policy.fuzzy is not None or match.tier is not Tier.FUZZY
