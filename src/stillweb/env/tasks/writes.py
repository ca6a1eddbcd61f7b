"""Requests that an episode sent, read by structure: URL, body fields by path, GraphQL operations. Pure.

`request_evidence` reads them from the ledger, `recorded_write` from one recorded request.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.errors import TaskError
from stillweb.matching.keys import FormBody, JsonBody, MultipartBody, is_graphql, read_body
from stillweb.matching.parts import Parts, is_csrf
from stillweb.matching.values import fits
from stillweb.model import MUTATIONS, Headers, Request, header

if TYPE_CHECKING:
    from stillweb.matching.rules import Rules

_STEP = re.compile(
    r"""\.?(?:(?P<name>[^.\[\]"\s]+)|\[(?P<index>\d+)\]|(?P<every>\[\*?\])|\[(?P<text>"(?:[^"\\]|\\.)*")\])"""
)
_PART_NAME = re.compile(rb';\s*name="([^"]*)"')
_FILE_NAME = re.compile(rb'filename="([^"]*)"')
_OPERATION = re.compile(r"(?:^|})\s*(?:#[^\n]*\n\s*)*(query|mutation|subscription|\{)\s*([_A-Za-z]\w*)?")


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request of the evidence, with its decoded body.

    Attributes:
        order: position among the episode's writes, from 1; 0 for a read.
        beacon: whether no page can read its response (`sendBeacon`).
        volatile: places that the collection's rules exclude from matching, and CSRF tokens, such as
            `form:csrf_token`.
        body: None without a body; pairs of a form or multipart body; else the JSON value or the text.
    """

    method: str
    url: str
    order: int
    beacon: bool
    volatile: frozenset[str]
    body: Any

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> WriteRequest:
        """Read a request of the evidence.

        Raises:
            TaskError: if its body was too long to be stored.
        """
        body: Any = None
        if stored.get("size") and "body" not in stored:
            raise TaskError(
                f"{stored['method']} {stored['url']}: its body of {stored['size']} bytes was not stored",
                hint="bodies of at most 64 KiB can be scored",
            )
        if "body" in stored:
            body = _decoded(stored.get("content_type", ""), b64decode(stored["body"]))
        return cls(
            stored["method"],
            stored["url"],
            stored.get("order", 0),
            bool(stored.get("beacon")),
            frozenset(stored.get("volatile", ())),
            body,
        )

    @property
    def typed(self) -> bool:
        """Whether the body is JSON."""
        return not isinstance(self.body, Pairs | str | None)

    @property
    def is_write(self) -> bool:
        """Whether the request may change the site; beacons and GraphQL queries do not."""
        if self.method not in MUTATIONS or self.beacon:
            return False
        return not (self.typed and is_graphql(self.body) and set(operations(self.body)) == {"query"})

    def values(self, path: str) -> list[Any]:
        """Return all values of the body at a path."""
        if not path:
            return [] if self.body is None else [self.body]
        if not isinstance(self.body, Pairs):
            return list(_walk(self.body, _steps(path))) if self.typed else []
        if found := [value for name, value in self.body.pairs if name == path]:
            return found
        step = _STEP.match(path)  # a form field that holds JSON
        inner = [v for name, v in self.body.pairs if step and name == step["name"]] if step else []
        return [found for text in inner for found in _walk(_json_of(text), _steps(path)[1:])]

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Yield place (as in `volatile`) and path of each field of query and body."""
        for name, _ in parse_qsl(urlsplit(self.url).query, keep_blank_values=True):
            yield f"query:{name}", name
        if isinstance(self.body, Pairs):
            for name, _ in self.body.pairs:
                yield f"{self.body.where}:{name}", name
        elif self.typed:
            for place, path in _json_leaves(self.body, "", ""):
                yield f"json:{place}", path


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and texts of a form or multipart body, in order; a file is its file name."""

    where: str
    pairs: tuple[tuple[str, str], ...]


def _decoded(content_type: str, raw: bytes) -> Any:
    match read_body(content_type, raw):
        case FormBody(fields):
            return Pairs("form", tuple((_utf8(name), _utf8(value)) for name, value in fields))
        case MultipartBody(parts):
            named = [(dict(part.head).get(b"content-disposition", b""), part.content) for part in parts]
            return Pairs("multipart", tuple(_part(head, content) for head, content in named))
        case JsonBody(value):
            return value
    return _utf8(raw)


def _part(head: bytes, content: bytes) -> tuple[str, str]:
    name, file = _PART_NAME.search(head), _FILE_NAME.search(head)
    return _utf8(name[1]) if name else "", _utf8(file[1]) if file else _utf8(content)


def _utf8(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _steps(path: str) -> list[str | int | None]:
    """Return the steps of a JSON path such as `items[0].sku`; None is every element, as in `items[].sku`.

    A text that is no such path, as a form field's name may be, is one step.
    """
    steps: list[str | int | None] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None or step.end() == at:
            return [path]
        if step["index"] is not None:
            steps.append(int(step["index"]))
        else:
            steps.append(step["name"] or (json.loads(step["text"]) if step["text"] else None))
        at = step.end()
    return steps


def _walk(value: Any, steps: Sequence[str | int | None]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    inner: list[Any] = []
    if isinstance(value, list):
        inner = value if step is None else value[step : step + 1] if isinstance(step, int) else []
    elif isinstance(value, dict) and step in value:
        inner = [value[step]]
    for each in inner:
        yield from _walk(each, rest)


def _json_leaves(value: Any, place: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield each leaf's place, with `[]` for every element as rules spell it, and its exact path."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            plain = bool(re.fullmatch(r'[^.\[\]"\s]+', name))
            step = (f".{name}" if place else name) if plain else f"[{json.dumps(name)}]"
            yield from _json_leaves(inner, place + step, path + step)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _json_leaves(inner, f"{place}[]", f"{path}[{number}]")
    else:
        yield place, path


def operations(value: Any) -> Iterator[str]:
    """Yield the type of each GraphQL operation: query, mutation, subscription, or "" if it is unknown."""
    for item in value if isinstance(value, list) else [value]:
        found = _OPERATION.findall(str(item.get("query") or ""))
        named = [kind for kind, name in found if name and name == item.get("operationName")]
        kind = (named or [kind for kind, _ in found] or [""])[0]
        yield "query" if kind == "{" else kind


def operation_names(item: Mapping[str, Any]) -> set[str]:
    names = {name for _, name in _OPERATION.findall(str(item.get("query") or "")) if name}
    return {str(item["operationName"])} if item.get("operationName") else names


_LINE = ("method", "url", "status", "tier")


def request_evidence(
    entries: Iterable[Mapping[str, Any]], *, bodies: bool = False, rules: Rules | None = None
) -> tuple[dict[str, Any], ...]:
    """Return ledger entries as evidence.

    Args:
        entries: entries of a session's ledger as JSON, in the order of the requests.
        bodies: also return what `RequestEvaluator` needs.
        rules: the collection's matching rules, for the volatile fields.
    """
    requests = []
    order = 0
    for entry in entries:
        request = {name: entry[name] for name in _LINE}
        write = entry["method"] in MUTATIONS
        if write and entry["tier"] == "noise" and _is_beacon(_fields(entry)):
            request["tier"] = "miss"  # a task may request that it is sent
        if bodies:
            order += write
            request |= {"order": order if write else 0, **(_sent(entry, rules) if write else {})}
        requests.append(request)
    return tuple(requests)


def _fields(entry: Mapping[str, Any]) -> Headers:
    return tuple((str(name), str(value)) for name, value in (entry.get("asked") or {}).get("fields", ()))


def _is_beacon(headers: Headers) -> bool:
    """Whether no page can read the response: mode "no-cors", such as `sendBeacon` (Fetch §3.2.2)."""
    return header(headers, "sec-fetch-mode") == "no-cors"


def _sent(entry: Mapping[str, Any], rules: Rules | None) -> dict[str, Any]:
    """Return body, volatile places and whether it is a beacon, of a write."""
    sent = entry.get("asked") or {}
    headers = _fields(entry)
    stored: dict[str, Any] = {"content_type": header(headers, "content-type"), "beacon": _is_beacon(headers)}
    stored |= {name: sent[name] for name in ("size", "body") if name in sent}
    if redacted := sent.get("redacted"):  # with placeholders instead of secrets
        stored["body"] = redacted
    body = b64decode(stored.get("body", ""))
    request = Request(entry["method"], entry["url"], headers, body)
    aliases = rules.aliases(request) if rules else ()
    stored["volatile"] = sorted({name for alias in aliases[:1] for name in alias.names} | _tokens(request))
    return stored


def _tokens(request: Request) -> set[str]:
    """Return the places of CSRF tokens, by the names that frameworks give them."""
    return {
        f"{leaf.where}:{leaf.name}"
        for leaf in Parts.of(request).leaves()
        if is_csrf(leaf.where, leaf.name, request.method) and fits("token", leaf.text)
    }


def recorded_write(request: Request, rules: Rules) -> WriteRequest | None:
    """Return a recorded request as evaluators see it; None if it does not write."""
    if request.method not in MUTATIONS:
        return None
    sent: dict[str, Any] = {"fields": request.headers}
    if request.raw_body:
        sent |= {"size": len(request.raw_body), "body": b64encode(request.raw_body).decode("ascii")}
    entry = {"method": request.method, "url": request.url, "status": 0, "tier": "exact", "asked": sent}
    (stored,) = request_evidence([entry], bodies=True, rules=rules)
    write = WriteRequest.of(stored)
    return write if write.is_write else None
