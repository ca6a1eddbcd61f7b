"""The parts of a request that may be volatile: where each value is, and the request without some of them.

A *leaf* is one value: a query parameter, a path segment, a form field, a leaf of a JSON body, a field of a
multipart body. Rules refer to it by *name*: the parameter's name, the segment's number from 1, the JSON path
with `[]` for any element (`variables.items[].ts`). `Parts.without` returns the rest of the request and states
exactly which leaves were removed, so that it loses nothing but their values.

In a GraphQL body only the variables have leaves: query, operation and hash identify the request. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from stillweb.matching.keys import (
    Body,
    FormBody,
    JsonBody,
    MultipartBody,
    Part,
    body_digest,
    framed,
    is_graphql,
    read_body,
)
from stillweb.model import Request, header
from stillweb.urls import wire_url

_PLAIN_MEMBER = re.compile(r"[^.\[\]\"\s]+")


class Where(StrEnum):
    """Location of a value in a request."""

    QUERY = "query"
    PATH = "path"
    FORM = "form"
    JSON = "json"
    MULTIPART = "multipart"
    HEADER = "header"  # not part of a request key; see `Rules.ignores`


JsonPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a request.

    Attributes:
        at: exact position: a number, or a JSON path with numbers.
        text: the value, unescaped; a JSON number as written.
        kind: "number" for a JSON number, else "text".
    """

    where: Where
    name: str
    at: int | JsonPath
    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Parts:
    """A request split into parts. The body is parsed on first use.

    Attributes:
        origin: scheme, `://` and authority.
        host: without port.
        path: as on the wire, from its first "/".
        query: as on the wire; None if the URL has none.
    """

    method: str
    origin: str
    host: str
    path: str
    query: str | None
    request: Request = field(repr=False)

    @classmethod
    def of(cls, request: Request) -> Parts:
        scheme, separator, rest = wire_url(request.url).partition("://")
        authority, slash, target = rest.partition("/")
        path, question, query = (slash + target).partition("?")
        return cls(
            method=request.method.upper(),
            origin=scheme + separator + authority,
            host=re.sub(r":[0-9]+$", "", authority),
            path=path,
            query=query if question else None,
            request=request,
        )

    @cached_property
    def body(self) -> Body:
        return read_body(header(self.request.headers, "content-type"), self.request.raw_body)

    def leaves(self, wheres: frozenset[Where] = frozenset(Where)) -> Iterator[Leaf]:
        """Yield the leaves in some locations, always in the same order."""
        if Where.PATH in wheres:
            for number, segment in enumerate(self.path.split("/")[1:], start=1):
                yield Leaf(Where.PATH, str(number), number, unquote(segment))
        if Where.QUERY in wheres and self.query:
            for number, text in enumerate(self.query.split("&")):
                name, value = _field(text)
                yield Leaf(Where.QUERY, unquote(name), number, unquote(value))
        if wheres & {Where.FORM, Where.JSON, Where.MULTIPART}:
            yield from (leaf for leaf in _body_leaves(self.body) if leaf.where in wheres)

    def without(self, taken: Mapping[Leaf, str]) -> bytes:
        """Return the identity of the request without the values of some leaves.

        Args:
            taken: maps each removed leaf to its shape; leaf and shape stay part of the identity.
        """
        by_where: dict[Where, set[int | JsonPath]] = {where: set() for where in Where}
        places: list[bytes] = []
        for leaf, shape in taken.items():
            by_where[leaf.where].add(leaf.at)
            places += (leaf.where.encode(), json.dumps(leaf.at).encode(), leaf.kind.encode(), shape.encode())
        path = "/".join(
            "" if number in by_where[Where.PATH] else text for number, text in enumerate(self.path.split("/"))
        )
        fields = [] if self.query is None else self.query.split("&")
        query = "&".join(
            text[: len(text) - len(_field(text)[1])] if number in by_where[Where.QUERY] else text
            for number, text in enumerate(fields)
        )
        mark = "" if self.query is None else "?"
        texts = [self.method, self.origin, path, mark + query]
        body = body_digest(_body_without(self.body, by_where))
        return framed([*(text.encode("utf-8", "surrogatepass") for text in texts), body, *sorted(places)])


_VALUES = frozenset({Where.QUERY, Where.FORM, Where.JSON, Where.MULTIPART})


def shape_key(request: Request) -> bytes:
    """Return the key of a write's method, URL and field names, in 16 bytes; all values are left out."""
    parts = Parts.of(request)
    identity = parts.without(dict.fromkeys(parts.leaves(_VALUES), "any"))
    return sha256(b"shape\0" + identity).digest()[:16]


def json_name(path: JsonPath) -> str:
    """Return the spelling of a path in rules: `items[].ts`; members with unusual names as `["a.b"]`."""
    spelled = ""
    for step in path:
        if isinstance(step, int):
            spelled += "[]"
        elif _PLAIN_MEMBER.fullmatch(step):
            spelled += f".{step}" if spelled else step
        else:
            spelled += f"[{json.dumps(step)}]"
    return spelled


def _field(text: str) -> tuple[str, str]:
    """Return name and value of a query field; a bare field (`?1700000000000`) is a value without name."""
    name, equals, value = text.partition("=")
    return (name, value) if equals else ("", text)


def _body_leaves(body: Body) -> Iterator[Leaf]:
    match body:
        case FormBody(fields):
            for number, (name, value) in enumerate(fields):
                yield Leaf(
                    Where.FORM, name.decode("utf-8", "replace"), number, value.decode("utf-8", "replace")
                )
        case JsonBody(value):
            graphql = is_graphql(value)
            for path, leaf in _scalars(value, ()):
                if not graphql or "variables" in path[:2]:
                    kind = "text" if isinstance(leaf, str) else "number"
                    yield Leaf(Where.JSON, json_name(path), path, str(leaf), kind)
        case MultipartBody(parts):
            for number, part in enumerate(parts):
                if part.field is not None:
                    yield Leaf(
                        Where.MULTIPART, part.field, number, part.content.decode("utf-8", "surrogateescape")
                    )


def _scalars(value: Any, path: JsonPath) -> Iterator[tuple[JsonPath, str | int | float]]:
    """Yield strings and numbers; true, false and null are never volatile."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _scalars(value[name], (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _scalars(item, (*path, number))
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value


def _body_without(body: Body, taken: Mapping[Where, set[int | JsonPath]]) -> Body:
    match body:
        case FormBody(fields) if taken[Where.FORM]:
            return FormBody(
                tuple(
                    (name, b"" if number in taken[Where.FORM] else value)
                    for number, (name, value) in enumerate(fields)
                )
            )
        case JsonBody(value) if taken[Where.JSON]:
            return JsonBody(_json_without(value, (), taken[Where.JSON]))
        case MultipartBody(parts) if taken[Where.MULTIPART]:
            return MultipartBody(
                tuple(
                    Part(part.head, b"") if number in taken[Where.MULTIPART] else part
                    for number, part in enumerate(parts)
                )
            )
    return body


def _json_without(value: Any, path: JsonPath, taken: set[int | JsonPath]) -> Any:
    if isinstance(value, dict):
        return {name: _json_without(inner, (*path, name), taken) for name, inner in value.items()}
    if isinstance(value, list):
        return [_json_without(inner, (*path, number), taken) for number, inner in enumerate(value)]
    if path in taken:
        return "" if isinstance(value, str) else 0
    return value


# Names of CSRF tokens in Django, Rails, ASP.NET, Magento, Drupal, WordPress, DokuWiki.
_CSRF = re.compile(
    r"csrf|xsrf|sectok|nonce|authenticity_?token|requestverificationtoken|form_(key|token|build_id)|^_?token$",
    re.IGNORECASE,
)
# A member of JSON or a parameter of a link may be called nonce or token for other reasons.
_CSRF_ONLY = re.compile(
    r"(?:csrf|xsrf)[\w-]*$|authenticity_?token$|requestverificationtoken$|sectok$", re.IGNORECASE
)
_SAFE = frozenset({"GET", "HEAD"})


def is_csrf(where: Where, name: str, method: str) -> bool:
    """Return True if the name of a location is that of a page's CSRF token in a known framework."""
    if method in _SAFE or where not in (Where.FORM, Where.MULTIPART, Where.JSON):
        return False
    return names_csrf(name) if where is Where.JSON else _CSRF.search(name) is not None


def names_csrf(name: str) -> bool:
    """Return True if a name is that of a CSRF token, wherever it is."""
    return _CSRF_ONLY.search(name) is not None
