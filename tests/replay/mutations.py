"""Recorded requests with one field changed: none of them may be answered by the request it came from.

`wrong_hits` asks a sealed collection for every change of every request: each query parameter, path segment,
leaf of the body, the method, host and port, and the structure around them (a field gone, twice, renamed,
moved). A field that a rule of the collection takes as volatile is not changed; everything else is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.pack.reader import Pack
from stillweb.matching.keys import FormBody, JsonBody, MultipartBody, is_graphql, request_key
from stillweb.matching.parts import JsonPath, Parts, Where, json_name
from stillweb.matching.rules import Rules
from stillweb.model import Request, header

_OTHER_METHOD = {"GET": "POST", "POST": "PUT", "PUT": "PATCH", "PATCH": "DELETE", "DELETE": "POST"}
_TURN = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "1234567890bcdefghijklmnopqrstuvwxyzaBCDEFGHIJKLMNOPQRSTUVWXYZA",
)


@dataclass(frozen=True, slots=True)
class Tried:
    """The number of changed requests, and those that got the answer of another request."""

    requests: int
    changes: int
    wrong: tuple[str, ...]


def wrong_hits(collection: Collection, *, spared: Rules | None = None) -> Tried:
    """Ask a sealed collection for every change of every request, under its own strict rules.

    Args:
        collection: sealed with the rules that it has.
        spared: rules whose places are not changed; by default those of the collection.
    """
    rules = read_rules(collection)
    requests = {
        _key(each.request): each.request for each in collection.exchanges() if "://" in each.request.url
    }
    changes, wrong = 0, []
    with Pack.open(collection.pack) as pack:
        for key, request in requests.items():
            for what, changed in mutations(request, rules if spared is None else spared):
                changes += 1
                if why := _why_wrong(changed, key, requests.keys(), pack, rules):
                    wrong.append(f"{what} of {request.method} {request.url}: {why}")
    return Tried(len(requests), changes, tuple(wrong))


def _why_wrong(changed: Request, original: bytes, recorded: Any, pack: Pack, rules: Rules) -> str:
    key = _key(changed)
    if key == original:
        return "the key does not see it"
    if key in recorded:
        return ""  # that request was recorded, too
    if pack.lookup(key):
        return "the pack has it, though it was not recorded"
    for alias in rules.aliases(changed):
        if not alias.guessed and pack.lookup(alias.key):
            return f"found without {', '.join(alias.names)}"
    return ""


def _key(request: Request) -> bytes:
    content_type = header(request.headers, "content-type")
    return request_key(request.method, request.url, content_type, request.raw_body)


def mutations(request: Request, rules: Rules) -> Iterator[tuple[str, Request]]:
    """Yield the request with one field changed that no strict rule takes, and what was changed."""
    taken = {name for alias in rules.aliases(request) if not alias.guessed for name in alias.names}
    parts = Parts.of(request)
    yield "method", replace(request, method=_OTHER_METHOD.get(request.method, "GET"))
    target = request.url.partition("://")[2]
    scheme = request.url.partition("://")[0]
    yield "host", replace(request, url=f"{scheme}://other.{target}")
    yield "port", replace(request, url=parts.origin + ":4430" + parts.path + _mark(parts.query))
    for what, path in _paths(parts.path, taken):
        yield what, replace(request, url=parts.origin + path + _mark(parts.query))
    for what, query in _queries(parts.query, taken):
        yield what, replace(request, url=parts.origin + parts.path + _mark(query))
    for what, raw_body in _raw_bodies(request, parts, taken):
        yield what, replace(request, raw_body=raw_body)


def _mark(query: str | None) -> str:
    return "" if query is None else f"?{query}"


def _paths(path: str, taken: set[str]) -> Iterator[tuple[str, str]]:
    segments = path.split("/")
    for number in range(1, len(segments)):
        if f"path:{number}" not in taken:
            for text in _texts(segments[number]):
                changed = [*segments[:number], text, *segments[number + 1 :]]
                yield f"path segment {number}", "/".join(changed)
    yield "path longer", path + "/more"


def _queries(query: str | None, taken: set[str]) -> Iterator[tuple[str, str | None]]:
    yield "query longer", "x=1" if not query else f"{query}&x=1"
    if not query:
        return
    fields = query.split("&")
    yield "query gone", None
    for number, field in enumerate(fields):
        name, equals, value = field.partition("=") if "=" in field else ("", "", field)
        rest = [*fields[:number]], [*fields[number + 1 :]]
        if not _takes(taken, "query", name):
            for text in _texts(value):
                yield f"query {name}", "&".join((*rest[0], f"{name}{equals}{text}", *rest[1]))
        yield f"query {name} renamed", "&".join((*rest[0], f"{name}x{equals or '='}{value}", *rest[1]))
        yield f"query {name} twice", "&".join((*rest[0], field, field, *rest[1]))
        if len(fields) > 1:
            yield f"query {name} gone", "&".join((*rest[0], *rest[1]))
    if fields != fields[::-1]:
        yield "query turned round", "&".join(fields[::-1])


def _takes(taken: set[str], where: str, name: str) -> bool:
    return f"{where}:{name}" in taken


def _texts(value: str) -> set[str]:
    """Return other values: of the same shape, longer, and none."""
    return {value.translate(_TURN), value + "0", ""} - {value}


def _raw_bodies(request: Request, parts: Parts, taken: set[str]) -> Iterator[tuple[str, bytes]]:
    raw_body = request.raw_body
    if not raw_body:
        yield "body", b"x"
        return
    yield "body gone", b""
    match parts.body:
        case JsonBody(value):
            yield from ((what, json.dumps(v).encode()) for what, v in _json_values(value, (), taken, value))
        case FormBody(fields):
            for number, (name, _) in enumerate(fields):
                pieces = [each for each in raw_body.split(b"&") if each]
                if not _takes(taken, "form", name.decode("utf-8", "replace")):
                    pieces[number] += b"0" if b"=" in pieces[number] else b"=0"
                    yield f"form {name!r}", b"&".join(pieces)
            yield "form longer", raw_body + b"&x=1"
        case MultipartBody(multiple):
            for part in multiple:
                if part.content and not _takes(taken, "multipart", part.field or ""):
                    changed = raw_body.replace(part.content, part.content + b"0", 1)
                    yield f"part {part.field}", changed
        case _:
            yield "body longer", raw_body + b"0"
            yield "body shorter", raw_body[:-1]


def _json_values(value: Any, path: JsonPath, taken: set[str], root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the root with one place under `path` changed."""
    if path == ("extensions", "clientLibrary") and is_graphql(root):
        return  # the client's own name
    if isinstance(value, dict):
        yield f"JSON {json_name(path)} longer", _put(root, path, {**value, "x": 1})
        for name, inner in value.items():
            yield from _json_values(inner, (*path, name), taken, root)
    elif isinstance(value, list):
        yield f"JSON {json_name(path)} longer", _put(root, path, [*value, 1])
        for number, inner in enumerate(value):
            yield from _json_values(inner, (*path, number), taken, root)
    elif not _takes(taken, Where.JSON, json_name(path)):
        for other in _scalars(value):
            yield f"JSON {json_name(path)}", _put(root, path, other)


def _scalars(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [*_texts(value), 1]
    if isinstance(value, bool) or value is None:
        return [not value, "x"]
    return [value + 1, str(value), -value - 1]


def _put(root: Any, path: JsonPath, value: Any) -> Any:
    if not path:
        return value
    step, *rest = path
    copy = dict(root) if isinstance(root, dict) else list(root)
    copy[step] = _put(copy[step], tuple(rest), value)  # type: ignore[index,call-overload]
    return copy
