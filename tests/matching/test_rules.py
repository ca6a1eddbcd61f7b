from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.matching.keys import request_key
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.rules import RuleOrigin, Rules, default_rules
from stillweb.model import Request

JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
NOW, LATER = "1700000000000", "1763000000123"


def _rules(*lines: str) -> Rules:
    return Rules.parse("version: 1\nvolatile:\n" + "".join(f"  - {{{line}}}\n" for line in lines))


def _alias(rules: Rules, request: Request, *, guessed: bool = False) -> bytes | None:
    return next((a.key for a in rules.aliases(request) if a.guessed == guessed), None)


def _get(url: str, method: str = "GET") -> Request:
    return Request(method, url)


def test_defaults_hold_without_any_rules_file():
    rules = Rules.parse("")
    one, other = (_alias(rules, _get(f"https://a.test/x?_={value}&q=1")) for value in (NOW, LATER))
    assert one == other is not None
    assert _alias(rules, _get("https://a.test/x?_=17&q=1")) is None
    assert _alias(rules, _get(f"https://a.test/x?{NOW}")) == _alias(
        rules, _get("https://a.test/x?1795455834060")
    )
    assert _alias(rules, _get("https://a.test/x?17954558")) is None
    assert Rules.parse("version: 1\ndefaults: false\n").aliases(_get(f"https://a.test/?_={NOW}")) == ()


def test_each_default_rule_names_a_shape_that_no_one_types():
    for rule in default_rules():
        assert rule.origin is RuleOrigin.DEFAULT
        assert rule.evidence
        assert rule.shape in ("milliseconds", "draw")


def test_an_alias_is_no_exact_key_and_a_guess_is_no_strict_alias():
    url = f"https://a.test/?t={NOW}"
    strict = _rules("where: query, name: t, shape: milliseconds").aliases(_get(url))
    guess = _rules("where: query, name: t, shape: milliseconds, origin: guessed").aliases(_get(url))
    assert [a.guessed for a in strict] == [False]
    assert [a.guessed for a in guess] == [True]
    assert strict[0].names == guess[0].names == ("query:t",)
    assert (
        len({strict[0].key, guess[0].key, request_key("GET", url), request_key("GET", "https://a.test/?t=")})
        == 4
    )


def test_a_guess_comes_after_the_strict_alias_and_takes_in_what_it_takes():
    rules = _rules(
        "where: query, name: t, shape: milliseconds", "where: query, name: n, shape: hex, origin: guessed"
    )
    strict, guess = rules.aliases(_get(f"https://a.test/?t={NOW}&n=0123456789ab"))
    assert (strict.names, strict.guessed) == (("query:t",), False)
    assert (guess.names, guess.guessed) == (("query:t", "query:n"), True)
    moved = rules.aliases(_get(f"https://a.test/?t={LATER}&n=ba9876543210"))
    assert moved[0].key != strict.key
    assert moved[1].key == guess.key


def test_where_both_a_guess_and_a_rule_fit_the_rule_counts():
    rules = _rules(
        "where: query, name: t, shape: digits, origin: guessed", "where: query, name: t, shape: milliseconds"
    )
    assert [a.guessed for a in rules.aliases(_get(f"https://a.test/?t={NOW}"))] == [False]


@pytest.mark.parametrize(
    "url",
    [
        f"https://a.test/?t={LATER[:-1]}",  # another shape
        "https://a.test/?t=",
        "https://a.test/?t",
        "https://a.test/",
        f"https://a.test/?T={LATER}",
        f"https://a.test/?x=1&t={LATER}",
        f"https://a.test/?t={LATER}&t={LATER}",
        f"https://a.test/?t={LATER}&",
        f"https://a.test/b?t={LATER}",
        f"https://b.test/?t={LATER}",
        f"http://a.test/?t={LATER}",
        f"https://a.test:444/?t={LATER}",
    ],
)
def test_requests_that_differ_in_anything_else(url):
    rules = _rules("where: query, name: t, shape: milliseconds")
    assert _alias(rules, _get(url)) != _alias(rules, _get(f"https://a.test/?t={NOW}"))


def test_shapes_of_one_place_are_not_merged():
    rules = _rules("where: query, name: t, shape: milliseconds", "where: query, name: t, shape: uuid")
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    assert _alias(rules, _get(f"https://a.test/?t={NOW}")) != _alias(rules, _get(f"https://a.test/?t={uuid}"))


def test_bare_query_values_path_segments_and_escapes():
    rules = _rules(
        'where: query, name: "", shape: milliseconds',
        "where: path, name: 2, shape: uuid, path: /s/*/x",
        'where: query, name: "a b", shape: token',
    )
    uuids = ("123e4567-e89b-12d3-a456-426614174000", "00000000-e89b-12d3-a456-426614174000")

    def same(template: str, *values: str) -> bool:
        one, other = (_alias(rules, _get(template.replace("*", value))) for value in values)
        return one == other is not None

    assert same("https://a.test/?*", NOW, LATER)
    assert same("https://a.test/s/*/x", *uuids)
    assert same("https://a.test/?a%20b=*", "abcdefgh%2B", "zzzzzzzz")
    assert not same("https://a.test/s/*/y", *uuids)
    assert not same("https://a.test/s/a/*/x", *uuids)


@pytest.mark.parametrize("spelled", ["?*", "?b=1&*"])
@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("0.0763206162175720", "0.7444048130996463"),
        ("7.2044048130996463e-7", "0.7444048130996463"),
        (NOW, LATER),
    ],
)
def test_random_numbers_and_times_without_a_name_are_cache_busters_on_every_site(spelled, value, other):
    def alias(text: str) -> bytes | None:
        return _alias(Rules.parse(""), _get("https://a.test/x.ejs" + spelled.replace("*", text)))

    assert alias(value) == alias(other) is not None
    assert alias(value) != _alias(Rules.parse(""), _get("https://a.test/y.ejs" + spelled.replace("*", other)))


@pytest.mark.parametrize(
    "query", ["?0.5", "?0.1234567", "?page=0.7444048130996463", "?0.7444048130996463=a", "?12345678"]
)
def test_other_numbers_are_none(query):
    assert not Rules.parse("").aliases(_get("https://a.test/x.ejs" + query))


def test_hosts_paths_and_methods():
    rules = _rules('where: query, name: t, shape: any, host: "*.a.test", path: "/api/**", method: post')
    for method, url, hit in [
        ("POST", "https://a.test/api/", True),
        ("POST", "https://X.a.test:8443/api/b/c", True),
        ("GET", "https://a.test/api/", False),
        ("POST", "https://aa.test/api/", False),
        ("POST", "https://a.test/api", False),
    ]:
        assert bool(rules.aliases(_get(f"{url}?t=", method))) == hit


def test_json_by_path():
    rules = _rules(
        "where: json, name: 'items[].ts', shape: milliseconds", 'where: json, name: "[\\"a.b\\"]", shape: hex'
    )

    def alias(value: object) -> bytes | None:
        return _alias(rules, Request("POST", "https://a.test/", JSON, json.dumps(value).encode()))

    base = alias({"items": [{"ts": int(NOW), "id": 1}], "page": 1})
    assert alias({"page": 1, "items": [{"id": 1, "ts": int(LATER)}]}) == base is not None
    others = [
        alias({"items": [{"ts": NOW, "id": 1}], "page": 1}),  # text is not a number
        alias({"items": [{"ts": int(NOW), "id": 2}], "page": 1}),
        alias({"items": [{"ts": int(NOW), "id": 1}], "page": 2}),
        alias({"items": [{"ts": int(NOW), "id": 1}, {"ts": int(NOW), "id": 1}], "page": 1}),
        alias({"items": [{"ts": 0, "id": 1}], "page": 1}),
        alias({"items": [{"ts": None, "id": 1}], "page": 1}),
        alias({"items": {"ts": int(NOW), "id": 1}, "page": 1}),
    ]
    assert base not in others
    assert alias({"a.b": "0123456789"}) == alias({"a.b": "9876543210"}) is not None
    assert alias({"a": {"b": "0123456789"}}) is None


def test_graphql_variables_but_never_the_query():
    rules = _rules("where: json, name: variables.id, shape: uuid", "where: json, name: query, shape: any")
    uuids = ("123e4567-e89b-12d3-a456-426614174000", "00000000-e89b-12d3-a456-426614174000")

    def alias(query: str, uuid: str) -> bytes | None:
        body = json.dumps({"query": query, "variables": {"id": uuid}}).encode()
        return _alias(rules, Request("POST", "https://a.test/graphql", JSON, body))

    assert alias("{ a }", uuids[0]) == alias("{ a }", uuids[1]) is not None
    assert alias("{ a }", uuids[0]) != alias("{ b }", uuids[0])


def _multipart(boundary: str, fields: dict[str, str]) -> Request:
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n{value}\r\n'
        for name, value in fields.items()
        for extra in ['; filename="a"' if name == "file" else ""]
    ]
    headers = (("Content-Type", f"multipart/form-data; boundary={boundary}"),)
    return Request("POST", "https://a.test/", headers, ("".join(lines) + f"--{boundary}--").encode())


def test_forms_and_multipart():
    rules = _rules(
        "where: form, name: csrf, shape: token",
        "where: multipart, name: csrf, shape: token",
        "where: multipart, name: file, shape: any",
    )
    form = Request("POST", "https://a.test/", FORM, b"csrf=abcdefgh&q=1")
    assert _alias(rules, form) == _alias(rules, replace(form, raw_body=b"csrf=12345678&q=1")) is not None
    assert _alias(rules, form) != _alias(rules, replace(form, raw_body=b"csrf=12345678&q=2"))
    one, other = (
        _multipart("a", {"csrf": "abcdefgh", "q": "1"}),
        _multipart("b", {"csrf": "12345678", "q": "1"}),
    )
    assert _alias(rules, one) == _alias(rules, other) is not None
    assert _alias(rules, _multipart("a", {"csrf": "abcdefgh", "q": "2"})) != _alias(rules, one)
    assert _alias(rules, _multipart("a", {"file": "abcdefgh"})) is None


def test_header_rules_are_requested_and_make_no_alias():
    rules = _rules("where: header, name: X-Nonce, shape: hex, host: a.test")
    request = Request("GET", "https://a.test/", (("x-nonce", "0123456789"),))
    assert rules.ignores(request, "x-nonce")
    assert not rules.ignores(replace(request, headers=(("x-nonce", "no"),)), "x-nonce")
    assert not rules.ignores(replace(request, url="https://b.test/"), "x-nonce")
    assert rules.aliases(request) == ()


def test_query_escapes_that_are_no_text():
    rules = _rules("where: query, name: x, shape: any")
    one, other = (
        _alias(rules, _get(f"https://a.test/?x={quote(bytes([byte]))}&y=1")) for byte in (0xFF, 0xFE)
    )
    assert one == other is not None


# -- properties -----------------------------------------------------------------------------------

_texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4)
_fields = st.lists(
    st.tuples(st.sampled_from(["q", "ts", "page", "n"]), _texts | st.sampled_from([NOW, LATER]))
)
_json = st.recursive(
    _texts | st.integers() | st.booleans() | st.none() | st.sampled_from([NOW, int(LATER), int(NOW)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ts", "id", "a.b"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_bodies = st.one_of(
    st.just(((), b"")),
    _fields.map(lambda pairs: (FORM, urlencode(pairs).encode())),
    _json.map(lambda value: (JSON, json.dumps(value).encode())),
)
_urls = st.tuples(st.lists(st.sampled_from(["a", "b", NOW]), max_size=3), _fields).map(
    lambda drawn: f"https://a.test/{'/'.join(drawn[0])}?{urlencode(drawn[1])}"
)
_requests = st.tuples(st.sampled_from(["GET", "POST"]), _urls, _bodies).map(
    lambda drawn: Request(drawn[0], drawn[1], *drawn[2])
)
EVERYWHERE = _rules(
    *(f"where: {where}, name: ts, shape: milliseconds" for where in ("query", "form", "json")),
    *(f"where: json, name: '{name}', shape: milliseconds" for name in ("[].ts", "ts[]", '["a.b"]')),
    "where: path, name: 2, shape: milliseconds",
)


def _volatile(request: Request) -> set[object]:
    """Return the leaves that the rules above are about, worked out in another way than they do."""
    names = {"ts", "[].ts", "ts[]", '["a.b"]'}
    return {
        leaf
        for leaf in Parts.of(request).leaves()
        if (leaf.name in names if leaf.where != "path" else leaf.name == "2")
        and not (leaf.where in ("query", "form") and leaf.name != "ts")
        and len(leaf.text) == 13
        and leaf.text.isascii()
        and leaf.text.isdigit()
        and leaf.text[0] == "1"
    }


@given(_requests, _requests)
def test_aliases_are_equal_exactly_for_requests_that_differ_in_volatile_values_only(one, other):
    gone = [_blanked(request) for request in (one, other)]
    aliases = [_alias(EVERYWHERE, request) for request in (one, other)]
    for request, alias in zip((one, other), aliases, strict=True):
        assert (alias is not None) == bool(_volatile(request))
    if None not in aliases:
        assert (aliases[0] == aliases[1]) == (gone[0] == gone[1])


def _blanked(request: Request) -> object:
    """Return the request as plain values with its volatile ones replaced: the slow, obvious way."""
    volatile = {(leaf.where, leaf.at) for leaf in _volatile(request)}
    parts = Parts.of(request)
    leaves = [
        (leaf.where, leaf.name, leaf.at, leaf.kind, None if (leaf.where, leaf.at) in volatile else leaf.text)
        for leaf in parts.leaves()
    ]
    body = _skeleton(json.loads(request.raw_body)) if request.headers == JSON else len(request.raw_body) == 0
    # The type of no body says nothing.
    return request.method, leaves, request.headers if request.raw_body else (), body


def _skeleton(value: object) -> object:
    if isinstance(value, dict):
        return {name: _skeleton(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_skeleton(inner) for inner in value]
    return repr(value) if value is None or isinstance(value, bool) else type(value).__name__


def _with(request: Request, leaf: Leaf, text: str) -> Request:
    """Return a request with another value in one place."""
    base, mark, query = request.url.partition("?")
    if leaf.where is Where.PATH:
        segments = base.split("/")
        segments[2 + leaf.at] = quote(text, safe="")  # "https:", "" and the host come before
        return replace(request, url="/".join(segments) + mark + query)
    if leaf.where is Where.QUERY:
        return replace(request, url=base + mark + _with_field(query, leaf.at, text))
    if leaf.where is Where.FORM:
        fields = _with_field(request.raw_body.decode(), leaf.at, text)
        return replace(request, raw_body=fields.encode())
    value = json.loads(request.raw_body)
    place, holder = list(leaf.at), [value]
    inner = holder
    for step in [0, *place[:-1]]:
        inner = inner[step]
    last = place[-1] if place else 0
    (inner if place else holder)[last] = int(text) if leaf.kind == "number" else text
    return replace(request, raw_body=json.dumps(holder[0]).encode())


def _with_field(fields: str, number: int, text: str) -> str:
    split = fields.split("&")
    name, equals, _ = split[number].rpartition("=")
    split[number] = name + equals + quote(text, safe="")
    return "&".join(split)


@given(_requests, st.integers(10**12, 2 * 10**12 - 1).map(str))
def test_changing_volatile_values_within_their_shape_changes_nothing(drawn, number):
    changed = drawn
    for leaf in _volatile(drawn):
        changed = _with(changed, leaf, number)
    assert _alias(EVERYWHERE, changed) == _alias(EVERYWHERE, drawn)


@given(_requests, st.data())
def test_changing_any_other_value_changes_the_alias(drawn, data):
    meant = [leaf for leaf in Parts.of(drawn).leaves() if leaf not in _volatile(drawn)]
    if not _volatile(drawn) or not meant:
        return
    leaf = data.draw(st.sampled_from(meant))
    text = str(int(float(leaf.text)) + 1) if leaf.kind == "number" else leaf.text + "1"
    assert _alias(EVERYWHERE, _with(drawn, leaf, text)) not in (None, _alias(EVERYWHERE, drawn))


@given(st.text(max_size=30), st.sampled_from(["GET", "\udc80"]), st.binary(max_size=30))
def test_aliases_are_total(tail, method, body):
    rules = _rules(
        *(f"where: {where}, name: x, shape: any" for where in ("query", "form", "json", "multipart"))
    )
    for scheme in ("", "https://", "https://a.test/?x="):
        rules.aliases(Request(method, scheme + tail, JSON, body))
