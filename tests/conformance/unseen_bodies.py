"""Requests with bodies that look alike: GraphQL, long bodies, JSON, forms, uploads."""

from __future__ import annotations

from typing import Any

from unseen import BYTES, FORM, TEXT, Cases, Unseen, form, get, multipart, post, send

_cases = Cases()
_miss, _hit, _fair = _cases.miss, _cases.hit, _cases.fair
QUERY = "query Item($id: ID!) { item(id: $id) { name } }"
LONG_QUERY = "query Item($id: ID!) { item(id: $id) { " + "name price stock " * 400


def gql(variables: Any, query: str = QUERY, name: str = "Item", **more: Any) -> dict[str, Any]:
    """A GraphQL request."""
    return {"operationName": name, "query": query, "variables": variables, **more}


def persisted(digest: str) -> dict[str, Any]:
    """A GraphQL request by hash only."""
    return {
        "operationName": "Item",
        "variables": {"id": 1},
        "extensions": {"persistedQuery": {"version": 1, "sha256Hash": digest}},
    }


ONE, TWO = gql({"id": 1}), gql({"id": 2})
_miss("graphql-id", [post(ONE), post(TWO)], post(gql({"id": 999})), "item 999 was never recorded")
_miss("graphql-operation", post(ONE), post(gql({"id": 1}, name="DeleteEverything")), "it deletes, or should")
_miss("graphql-mutation", post(ONE), post(gql({"id": 1}, "mutation" + QUERY[5:])), "it changes, not reads")
_miss(
    "graphql-last-byte",
    post(gql({"id": 1}, LONG_QUERY + "a }}")),
    post(gql({"id": 1}, LONG_QUERY + "b }}")),
    "another field is requested, at the end of 6 kB",
)
_miss("graphql-field", post(ONE), post(gql({"id": 1}, QUERY.replace("name", "price"))), "price is no name")
_miss("graphql-hash", post(persisted("a" * 64)), post(persisted("b" * 64)), "the hash is the query")
_TENANTS = [post(gql({"id": 1}, extensions={"tenant": name})) for name in "xyz"]
_miss("graphql-extension", _TENANTS[:2], _TENANTS[2], "another user's item")
_miss("graphql-extension-absent", _TENANTS[0], post(ONE), "the item of no user")
_hit(
    "graphql-client",
    post(gql({"id": 1}, extensions={"clientLibrary": {"name": "a", "version": "1"}})),
    post(gql({"id": 1}, extensions={"clientLibrary": {"name": "a", "version": "2"}})),
    "a client's version is no question",
)
_miss("graphql-batch-order", post([ONE, TWO]), post([TWO, ONE]), "answers come in the order of questions")
_miss("graphql-batch-longer", post([ONE]), post([ONE, TWO]), "two answers are waited for")
_miss("graphql-batch-of-one", post(ONE), post([ONE]), "a batch is answered by a list")
_miss("graphql-moved", post(gql({"a": 1, "b": 2})), post(gql({"a": 2, "b": 1})), "values changed places")
_miss("graphql-null", post(gql({"id": 1, "after": "x"})), post(gql({"id": 1, "after": None})), "page one")
_miss("graphql-string", post(ONE), post(gql({"id": "1"})), "ids and numbers are two types")
_miss(
    "graphql-by-get",
    get("/graphql?query=%7Bitem%7D&variables=%7B%22id%22:1%7D"),
    get("/graphql?query=%7Bitem%7D&variables=%7B%22id%22:2%7D"),
    "another item",
)
_miss(
    "graphql-as-text",
    send("POST", "/graphql", b"{ item { name } }", ("Content-Type", "application/graphql")),
    send("POST", "/graphql", b"{ item { fame } }", ("Content-Type", "application/graphql")),
    "another field",
)
_hit(
    "graphql-key-order",
    [post(ONE), post(TWO)],
    post(b'{"variables": {"id": 2}, "query": "' + QUERY.encode() + b'", "operationName": "Item"}'),
    "members of an object have no order",
    right=1,
)
_miss("cursor-in-body", post({"cursor": "a", "n": 20}), post({"cursor": "b", "n": 20}), "another page")

for _size, _name in ((5_000, "5k"), (100_000, "100k"), (1_000_000, "1m")):
    _long = [{"text": "x" * _size, "end": number} for number in (1, 2, 3)]
    _miss(f"long-json-{_name}", [post(_long[0]), post(_long[1])], post(_long[2]), "they differ at the end")
    _hit(
        f"long-json-{_name}-second",
        [post(_long[0]), post(_long[1])],
        post(_long[1]),
        "its own answer",
        right=1,
    )
_miss("long-form", form("text=" + "x" * 5000 + "&end=1"), form("text=" + "x" * 5000 + "&end=2"), "the end")
_miss(
    "long-bytes",
    send("POST", "/raw", bytes(100_000) + b"1", BYTES),
    send("POST", "/raw", bytes(100_000) + b"2", BYTES),
    "they differ in the last byte",
)
_miss(
    "long-text",
    send("POST", "/raw", b"word " * 2000 + b"one", TEXT),
    send("POST", "/raw", b"word " * 2000 + b"two", TEXT),
    "they differ in the last word",
)
_miss(
    "long-put", send("PUT", "/x", b"a" * 9000, TEXT), send("PUT", "/x", b"a" * 8999 + b"b", TEXT), "the end"
)

_hit("json-key-order", post({"a": 1, "b": {"c": 2, "d": 3}}), post(b'{"b":{"d":3,"c":2},"a":1}'), "no order")
_hit("json-space", post({"a": 1}), post(b' {\n "a" :\t1 }\n'), "white space says nothing")
_hit("json-escape", post({"a": "é"}), post('{"a": "é"}'.encode()), "two spellings of one letter")
_miss(
    "json-swapped", post({"a": {"id": 1}, "b": {"id": 2}}), post({"b": {"id": 1}, "a": {"id": 2}}), "parents"
)
_miss("json-array-order", post({"ids": [1, 2]}), post({"ids": [2, 1]}), "arrays have an order")
_miss("json-array-longer", post({"ids": [1]}), post({"ids": [1, 1]}), "one more")
_miss("json-wrapped", post({"id": 1}), post({"id": [1]}), "a list of one is a list")
_miss("json-string-number", post({"id": 1}), post({"id": "1"}), "two types")
_miss("json-integer-float", post({"id": 1}), post(b'{"id": 1.0}'), "an id is no measure")
_miss("json-true-one", post({"on": 1}), post({"on": True}), "two types")
_miss("json-false-zero", post({"on": 0}), post({"on": False}), "two types")
_miss("json-null-absent", post({"a": 1, "b": None}), post({"a": 1}), "null clears, absent leaves")
_miss("json-null-empty", post({"a": None}), post({"a": ""}), "the empty text is a text")
_miss("json-null-word", post({"a": None}), post({"a": "null"}), "the word is a text")
_miss("json-empty-objects", post({"a": {}}), post({"a": []}), "two types")
_miss("json-duplicate", post({"id": 1}), post(b'{"id": 2, "id": 1}'), "servers differ on which counts")
_miss("json-duplicate-order", post(b'{"id": 1, "id": 2}'), post(b'{"id": 2, "id": 1}'), "the last one counts")
_miss("json-big", post({"id": 9007199254740992}), post({"id": 9007199254740993}), "equal only as doubles")
_miss("json-digits", post({"x": 0.1}), post(b'{"x": 0.10000000000000001}'), "equal only as doubles")
_miss("json-case", post({"name": "x"}), post({"Name": "x"}), "names have case")
_miss("json-accent", post({"q": "\u00e9"}), post({"q": "e\u0301"}), "two texts that look alike")
_miss("json-more", post({"a": 1}), post({"a": 1, "admin": True}), "one member more")
_miss("json-fewer", post({"a": 1, "dry_run": True}), post({"a": 1}), "it is no dry run")
_miss("json-leaf-list", post({"a": {"x": 1}}), post({"a": {"y": 1}}), "another name")
_miss("json-dotted", post({"a": {"b": 1}}), post({"a.b": 1}), "a dot in a name is no path")
_miss(
    "json-lines",
    send("POST", "/bulk", b'{"a":1}\n{"a":2}\n', ("Content-Type", "application/x-ndjson")),
    send("POST", "/bulk", b'{"a":2}\n{"a":1}\n', ("Content-Type", "application/x-ndjson")),
    "lines have an order",
)

_fair("form-order", form("a=1&b=2"), form("b=2&a=1"), "most servers see no difference")
_hit("form-space", form("q=a+b"), form("q=a%20b"), "two spellings of a space in a form")
_hit("form-escape", form("q=%c3%a9"), form("q=%C3%A9"), "two spellings of one byte")
_miss("form-value", form("sku=7&n=1"), form("sku=8&n=1"), "another thing is bought")
_miss("form-repeat-order", form("x=1&x=2"), form("x=2&x=1"), "the last one counts")
_miss("form-repeat", form("x=1"), form("x=1&x=1"), "two of them")
_miss("form-empty", form("a=1&b="), form("a=1"), "b is cleared, or left")
_miss("form-plus", form("q=c%2B%2B"), form("q=c++"), "a plus is no space")
_miss("form-and", form("a=1%26b=2"), form("a=1&b=2"), "one field is no two")
_miss("form-raw", form("a=%FF"), form("a=%FE"), "another byte")
_PART = ('name="f"; filename="a.txt"', "content")
_miss("upload-name", multipart(_PART), multipart(('name="f"; filename="b.txt"', "content")), "another file")
_miss("upload-content", multipart(_PART), multipart((_PART[0], "contents")), "another content")
_miss("upload-field", multipart(_PART), multipart(('name="g"; filename="a.txt"', "content")), "another field")
_miss("upload-more", multipart(_PART), multipart(_PART, _PART), "two files")
_miss(
    "upload-order",
    multipart(_PART, ('name="x"', "1")),
    multipart(('name="x"', "1"), _PART),
    "parts have an order",
)
_miss("upload-file-or-field", multipart(_PART), multipart(('name="f"', "content")), "a text is no file")
_hit("upload-boundary", multipart(_PART), multipart(_PART, boundary="----two"), "browsers draw it anew")

_miss("body-absent", post({}), send("POST", "/api", b""), "nothing was sent")
_miss("body-present", send("POST", "/api", b""), post({}), "something is sent")
_miss("form-as-text", form("a=1&b=2", "/x"), send("POST", "/x", b"a=1&b=2", TEXT), "a text has no fields")
_miss("json-as-form", post({"a": 1}, "/x"), send("POST", "/x", b'{"a": 1}', FORM), "a field of an odd name")
_miss("json-as-bytes", post({"a": 1}, "/x"), send("POST", "/x", b'{"a": 1}', BYTES), "a file is no message")

BODIES: tuple[Unseen, ...] = tuple(_cases.made)
