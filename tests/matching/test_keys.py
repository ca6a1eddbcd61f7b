from __future__ import annotations

import gzip
import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.matching.keys import MultipartBody, RawBody, body_key, read_body, request_key

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_names = st.sampled_from(["a", "b", "x", "\xe9", ""])
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)


def _typed(value):
    """Return a value that is equal only for equal JSON: 1, 1.0 and true are three things."""
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    return (type(value).__name__, repr(value))


def _reversed(value):
    if isinstance(value, dict):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(inner) for inner in value] if isinstance(value, list) else value


def _key(value) -> bytes:
    return body_key(JSON, json.dumps(value).encode())


@given(_values, _values)
def test_json_keys_are_equal_exactly_for_equal_values(one, other):
    assert (_key(one) == _key(other)) == (_typed(one) == _typed(other))


@given(_values)
def test_order_of_members_and_white_space_say_nothing(value):
    assert body_key(JSON, json.dumps(_reversed(value), indent=2, ensure_ascii=False).encode()) == _key(value)


@given(st.lists(_values, min_size=2, max_size=4))
def test_order_of_arrays_counts(values):
    if _typed(values[::-1]) != _typed(values):
        assert _key(values) != _key(values[::-1])


def test_swapped_parents_differ():
    assert _key({"a": {"x": 1}, "b": {"y": 2}}) != _key({"b": {"x": 1}, "a": {"y": 2}})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        (b'{"a":NaN}', b'{"a":Infinity}'),
        (b"[0.1]", b"[0.10000000000000000001]"),
        (b"[1e400]", b"[1e401]"),
        (b"[1e99999999999999999999]", b"[1e99999999999999999998]"),
        (b"[1e-400]", b"[0.0]"),
        (b"[9007199254740993]", b"[9007199254740992]"),
        (b"[0]", b"[-0]"),
        (b"[1]", b"[1.0]"),
        (b"[1]", b'["1"]'),
        (b"[true]", b"[1]"),
        (b"{}", b"[]"),
        (b"[1", b"[1,"),
        (b"\xef\xbb\xbf[1]", b"[1]"),
        (b'{"a":"\xff"}', b'{"a":"\xfe"}'),
        (b"[" * 5000 + b"1" + b"]" * 5000, b"[" * 5000 + b"2" + b"]" * 5000),
        (b"[" + b"1" * 5000 + b"]", b"[" + b"1" * 4999 + b"2]"),
    ],
)
def test_json_that_some_server_could_report_apart(one, other):
    assert body_key(JSON, one) != body_key(JSON, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"[1.50]", b"[1.5]"),
        (b"[1e2]", b"[100.0]"),
        (b'["\\u00e9"]', '["\xe9"]'.encode()),
        (b" [1] ", b"[1]"),
    ],
)
def test_json_that_no_server_can_report_apart(one, other):
    assert body_key(JSON, one) == body_key(JSON, other)


def test_depth_at_which_json_turns_raw_is_fixed():
    def nested(depth):
        return b"[" * depth + b"]" * depth, b"[" * depth + b" " + b"]" * depth

    assert len({body_key(JSON, body) for body in nested(100)}) == 1
    assert len({body_key(JSON, body) for body in nested(101)}) == 2
    wide = b"[" + b",".join([b"[]"] * 300) + b"]"
    assert body_key(JSON, wide) == body_key(JSON, wide + b" ")


@pytest.mark.parametrize(
    "mime", ["application/json; charset=utf-8", "application/ld+json", "text/json", "text/plain", ""]
)
def test_types_under_which_pages_send_json(mime):
    assert body_key(mime, b'{"a":1,"b":2}') == body_key(JSON, b'{"b":2,"a":1}')


@pytest.mark.parametrize("mime", ["text/html", "application/octet-stream", "application/x-protobuf"])
def test_other_types_are_keyed_by_their_bytes(mime):
    assert body_key(mime, b'{"a":1,"b":2}') != body_key(mime, b'{"b":2,"a":1}')


def test_bodies_that_differ_at_their_end():
    long = b"x" * 5000
    assert len({body_key("text/plain", long + end) for end in (b"1", b"2", b"")}) == 3


def test_encoded_bodies_are_keyed_by_their_bytes():
    body = b'{"a":1,"b":2}'
    one, other = gzip.compress(body, 1, mtime=0), gzip.compress(body, 1, mtime=1)
    assert body_key(JSON, one) != body_key(JSON, other)
    assert body_key(JSON, one) == body_key("application/octet-stream", one)
    assert body_key(FORM, one) == body_key("application/octet-stream", one)


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1), st.data())
def test_forms_are_their_pairs_in_order(pairs, data):
    spelled = urlencode(pairs).encode()
    other = "&".join(f"{quote(name, safe='~*')}={quote(value, safe='~*')}" for name, value in pairs).encode()
    assert body_key(FORM, spelled) == body_key(FORM + "; charset=UTF-8", other)
    moved = data.draw(st.permutations(pairs))
    assert (body_key(FORM, urlencode(moved).encode()) == body_key(FORM, spelled)) == (list(moved) == pairs)


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"a=1&b=2", b"b=2&a=1"), (b"a=b&c=", b"a=b%26c="), (b"a=1", b"a=1&a=1"), (b"a=%2B", b"a=+")],
)
def test_forms_that_differ(one, other):
    assert body_key(FORM, one) != body_key(FORM, other)


def _multipart(boundary: str, *parts: tuple[str, bytes]) -> tuple[str, bytes]:
    mark = b"--" + boundary.encode()
    body = b"".join(
        mark + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n" for head, content in parts
    )
    return f"multipart/form-data; boundary={boundary}", body + mark + b"--\r\n"


FIELD = 'Content-Disposition: form-data; name="a"'
FILE = 'Content-Disposition: form-data; name="f"; filename="x.bin"\r\nContent-Type: application/octet-stream'


def test_only_white_space_of_fields_is_no_part_of_a_field():
    head = b'Content-Disposition:%bform-data; name="a"'
    spaced, tabbed, odd = (
        body_key("multipart/form-data; boundary=b", b"--b\r\n" + head % gap + b"\r\n\r\n1\r\n--b--\r\n")
        for gap in (b" ", b"\t ", b"\x0b")
    )
    assert spaced == tabbed  # RFC 9110 §5.5
    assert spaced != odd


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_multipart_without_its_boundary(one, other):
    first = body_key(*_multipart("----WebKitFormBoundaryAAAA", (FIELD, b"1"), (FILE, one)))
    again = body_key(*_multipart("----WebKitFormBoundaryBBBB", (FIELD, b"1"), (FILE, one)))
    changed = body_key(*_multipart("----WebKitFormBoundaryBBBB", (FIELD, b"1"), (FILE, other)))
    assert first == again
    assert (first == changed) == (one == other)


def test_an_empty_form_has_a_boundary_too():
    assert (
        body_key(*_multipart("AAAA"))
        == body_key(*_multipart("BBBB"))
        != body_key(*_multipart("A", (FIELD, b"")))
    )


def test_multipart_that_differs():
    bodies = [
        _multipart("b", (FIELD, b"1"), (FILE, b"2")),
        _multipart("b", (FILE, b"2"), (FIELD, b"1")),
        _multipart("b", (FIELD, b"1")),
        _multipart("b", (FIELD, b"1"), (FILE.replace("x.bin", "y.bin"), b"2")),
        _multipart("b", (FIELD, b"1"), (FILE.replace("octet-stream", "pdf"), b"2")),
        _multipart("b", (FIELD, b"1\r\n--bb\r\n"), (FILE, b"2")),
    ]
    assert len({body_key(*body) for body in bodies}) == len(bodies)


def test_multipart_boundary_in_quotes_and_broken_bodies():
    mime, body = _multipart("b", (FIELD, b"1"))
    assert body_key('multipart/form-data; charset=utf-8; boundary="b"', body) == body_key(mime, body)
    raw = body_key("application/octet-stream", body)
    for wrong in (
        "multipart/form-data",
        "multipart/form-data; boundary=c",
        'multipart/form-data; boundary=""',
    ):
        assert body_key(wrong, body) == raw
    assert body_key(mime, body[:-6]) == body_key("application/octet-stream", body[:-6])


def _graphql(**members) -> bytes:
    return _key(members)


QUERY = "query Item($id: ID) { item(id: $id) { name } }"


def test_graphql_that_is_the_same():
    base = _graphql(query=QUERY, operationName=None, variables={})
    assert _graphql(query=QUERY) == base
    assert _graphql(query=QUERY, operationName="", variables=None) == base
    assert _graphql(query=QUERY, extensions={"clientLibrary": {"name": "apollo", "version": "3.9"}}) == base
    assert _graphql(query=QUERY, extensions={}) == _graphql(query=QUERY, extensions=None) == base
    named = {"clientLibrary": {"name": "apollo"}}
    assert _graphql(query=QUERY, extensions={"a": 1, **named}) == _graphql(query=QUERY, extensions={"a": 1})


def test_graphql_that_differs():
    persisted = {"persistedQuery": {"version": 1, "sha256Hash": "ab"}}
    keys = [
        _graphql(query=QUERY),
        _graphql(query=QUERY + " "),
        _graphql(query=QUERY, operationName="Item"),
        _graphql(query=QUERY, variables={"id": 1}),
        _graphql(query=QUERY, variables={"id": "1"}),
        _graphql(query=QUERY, extensions=persisted),  # the retry after "PersistedQueryNotFound"
        _graphql(operationName="Item", extensions=persisted),
        _graphql(extensions=persisted),
        _graphql(extensions={"persistedQuery": {"version": 1, "sha256Hash": "cd"}}),
        _graphql(query=QUERY, extensions={"tenant": "x"}),
        _graphql(query=QUERY, extensions={"tenant": "y"}),
        _graphql(query=QUERY, extensions={"tenant": "x", **persisted}),
        _graphql(query=QUERY, extensions={"persistedQuery": {"sha256Hash": "ab"}}),
        _graphql(query=QUERY, extensions={"inner": {"clientLibrary": 1}}),
        _graphql(query=QUERY, extensions=[]),
        _graphql(query=QUERY, id=7),
        _graphql(query="shoes"),
        _graphql(query="shoes", variables={}),  # not GraphQL, so it may mean something
        _key([{"query": QUERY}]),
        _key([{"query": QUERY}, {"query": QUERY}]),
        _key([{"batch": True}, {"query": QUERY}]),
        _key({"query": QUERY, "hash": None, "operationName": None, "variables": None}),
    ]
    assert len(set(keys)) == len(keys)


def test_request_keys():
    base = request_key("GET", "https://a.test/p?q=1")
    assert len(base) == 16
    assert request_key("get", "HTTPS://A.test:443/p?q=1#there", "text/plain") == base
    others = [
        request_key("HEAD", "https://a.test/p?q=1"),
        request_key("GET", "http://a.test/p?q=1"),
        request_key("GET", "https://a.test/p?q=2"),
        request_key("GET", "https://a.test/P?q=1"),
        request_key("GET", "https://a.test/p?q=1", "", b"body"),
        request_key("DELETE", "https://a.test/p?q=1"),
        request_key("DELETE", "https://a.test/p?q=1", JSON, b"[1]"),
        request_key("PUT", "https://a.test/p?q=1", JSON, b"[1]"),
        request_key("PATCH", "https://a.test/p?q=1", JSON, b"[1]"),
    ]
    assert len({base, *others}) == len(others) + 1


def test_keys_are_stored_so_they_may_not_change():
    assert request_key("GET", "https://a.test/").hex() == "a29060bbcff9fe7dd60d16ebb0c482af"
    assert (
        request_key("POST", "https://a.test/", JSON, b'{"b":[1,2.5],"a":"\xc3\xa9"}').hex()
        == "d1c62e1d666604ac2aaf228677ffabab"
    )
    assert (
        request_key("POST", "https://a.test/", FORM, b"a=1&b=+").hex() == "da40a714883853a05ba73950714c0b6a"
    )
    assert (
        request_key("POST", "https://a.test/", JSON, json.dumps({"query": QUERY}).encode()).hex()
        == "7eca8c10088dd1d4294e017839f4d53d"
    )
    assert (
        request_key("POST", "https://a.test/", *_multipart("b", (FIELD, b"1"))).hex()
        == "bef08193a3f02a88e9b7791300c3afd0"
    )


def test_a_form_of_endless_parts_is_keyed_by_its_bytes() -> None:
    """An archive of 117 kB held a million parts, which took 900 MB."""
    part = b"--x\r\nA: 1\r\n\r\n\r\n"
    few, many = part * 1000 + b"--x--", part * 100_002 + b"--x--"
    assert isinstance(read_body("multipart/form-data; boundary=x", few), MultipartBody)
    assert read_body("multipart/form-data; boundary=x", many) == RawBody(many)
