"""Request keys: which requests count as the same request.

A key is 16 bytes over method, wire URL and *structural* body key. It folds nothing that a server could
distinguish; `rules` takes out volatile values, into key spaces of their own.

Pure. Packs store the keys: a change here requires a new pack version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

from stillweb.urls import wire_url

STRUCTURED = 1024 * 1024
"""Largest JSON or form body, in bytes, that is compared by structure: parsing 8 MB takes a second."""

_SIZE = 16
# Deeper JSON is keyed by its bytes: the depth at which the parser itself fails depends on the caller's stack,
# and the same body must have the same key at seal and at replay.
_MAX_DEPTH = 100
_MAX_PARTS = 100_000
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")
_BOUNDARY = re.compile(r';\s*boundary=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_PART_NAME = re.compile(rb';\s*name="([^"]*)"')
_GRAPHQL_MEMBERS = frozenset({"query", "operationName", "variables", "extensions"})
# Extensions that only name the client and its version.
_CLIENTS_NAME = frozenset({"clientLibrary"})


@dataclass(frozen=True, slots=True)
class RawBody:
    """A body without known structure."""

    content: bytes


@dataclass(frozen=True, slots=True)
class FormBody:
    """Fields of a form in order, unescaped."""

    fields: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON value, never modified in place."""

    value: Any


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart body.

    Attributes:
        head: its fields in order, names in lower case.
    """

    head: tuple[tuple[bytes, bytes], ...]
    content: bytes

    @property
    def field(self) -> str | None:
        """Name of the part's form field; None for a file and for a part without a name."""
        disposition = next((value for name, value in self.head if name == b"content-disposition"), b"")
        found = _PART_NAME.search(disposition)
        return None if found is None or b"filename" in disposition else found[1].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class MultipartBody:
    """Parts in order, without their boundary."""

    parts: tuple[Part, ...]


Body = RawBody | FormBody | JsonBody | MultipartBody


def read_body(content_type: str, raw_body: bytes) -> Body:
    """Return the structure of a request body; a `RawBody` if the structure is not certain, or is not parsed.

    JSON and forms above `STRUCTURED` bytes are not parsed. Multipart bodies always are: that takes no
    longer than hashing them, and their boundary differs in every request.

    Args:
        content_type: the whole header value, which holds the multipart boundary.
        raw_body: without transfer encoding, with content encoding.
    """
    mime = content_type.partition(";")[0].strip().lower()
    body: Body | None = None
    if not raw_body:
        pass
    elif mime.startswith("multipart/"):
        body = _multipart(content_type, raw_body)
    elif len(raw_body) > STRUCTURED:
        pass
    elif mime == "application/x-www-form-urlencoded":
        body = _form(raw_body)
    elif _may_be_json(mime, raw_body):
        body = _json(raw_body)
    return RawBody(raw_body) if body is None else body


def body_digest(body: Body) -> bytes:
    """Return the identity of a body: b"" for an empty one, else 16 bytes."""
    match body:
        case RawBody(content):
            kind, canonical = b"raw", content
            if not content:
                return b""
        case FormBody(fields):
            kind, canonical = b"form", framed(text for pair in fields for text in pair)
        case JsonBody(value):
            kind, canonical = b"json", _canonical_json(value)
        case MultipartBody(parts):
            kind, canonical = b"multipart", framed(text for part in parts for text in _canonical_part(part))
    return blake2b(canonical, digest_size=_SIZE, person=kind).digest()


def framed(texts: Iterable[bytes]) -> bytes:
    """Join texts with their lengths, so that different lists never give equal bytes."""
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)


def is_graphql(value: Any) -> bool:
    """Return whether a JSON value is a GraphQL request or a batch of them."""
    batch = value if isinstance(value, list) else [value]
    return bool(batch) and all(_is_operation(item) for item in batch)


def _may_be_json(mime: str, raw_body: bytes) -> bool:
    if mime.endswith(("/json", "+json")):
        return True
    # Pages send JSON as text/plain (or without a type, by sendBeacon) to avoid a CORS preflight.
    return mime in ("", "text/plain", "application/csp-report") and raw_body[:1] in (b"{", b"[")


def _json(raw_body: bytes) -> JsonBody | None:
    """Return a JSON value, or None if its meaning is not certain."""
    try:
        value = json.loads(
            raw_body.decode("utf-8"),
            object_pairs_hook=_members,
            parse_float=_float,
            parse_int=_int,
            parse_constant=_constant,
        )
        if raw_body.count(b"[") + raw_body.count(b"{") > _MAX_DEPTH and _deep(value):
            return None
    except (ValueError, InvalidOperation, RecursionError):
        return None
    return JsonBody(value)


def _canonical_json(value: Any) -> bytes:
    operations = _graphql(value)
    text = json.dumps(value if operations is None else operations, sort_keys=True, separators=(",", ":"))
    # No JSON text begins with a "g", so no other body can collide with an operation.
    return text.encode() if operations is None else b"graphql" + text.encode()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member names (RFC 8259 §4: receivers differ on which one counts)")
    return members


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or Decimal(text) != Decimal(repr(value)):
        raise ValueError("not exact as a double: two such numbers may differ though their doubles do not")
    return value


def _int(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
        if not level:
            return False
    return True


def _graphql(value: Any) -> list[dict[str, Any]] | None:
    """Return the operations of a GraphQL request or batch in canonical form; None for other JSON.

    Absent, null and empty operationName, variables or extensions are equal. All extensions count except the
    client's own name. Query and hash both count if both are sent: a server may answer "not found" to a hash
    alone, and the retry carries the query.
    """
    if not is_graphql(value):
        return None
    batch = value if isinstance(value, list) else [value]
    operations = [
        {
            "query": item.get("query"),
            "hash": _persisted_hash(item),
            "operationName": item.get("operationName") or None,
            "variables": item.get("variables") or None,
            **_extensions(item.get("extensions")),
        }
        for item in batch
    ]
    return [{"batch": True}, *operations] if batch is value else operations


def _extensions(value: Any) -> dict[str, Any]:
    """Return the extensions that count, as a member; an empty dict for none, as in most operations."""
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if name not in _CLIENTS_NAME} or None
    return {} if value is None else {"extensions": value}


def _is_operation(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= _GRAPHQL_MEMBERS:
        return False
    if not isinstance(value.get("operationName"), str | None):
        return False
    if not isinstance(value.get("variables"), dict | None):
        return False
    query = value.get("query")
    # A search box also posts {"query": "shoes"}: only a document with a selection set is GraphQL.
    if query is None:
        return bool(_persisted_hash(value))
    return isinstance(query, str) and "{" in query


def _persisted_hash(value: dict[str, Any]) -> str | None:
    extensions = value.get("extensions")
    persisted = extensions.get("persistedQuery") if isinstance(extensions, dict) else None
    digest = persisted.get("sha256Hash") if isinstance(persisted, dict) else None
    return digest if isinstance(digest, str) else None


def _form(raw_body: bytes) -> FormBody | None:
    """Return the fields in order, as WHATWG URL §5.1 parses them; None if it does not look like a form."""
    if not _PRINTABLE.fullmatch(raw_body):
        return None
    pairs = (field.replace(b"+", b" ").partition(b"=") for field in raw_body.split(b"&") if field)
    return FormBody(tuple((_unquoted(name), _unquoted(value)) for name, _, value in pairs))


def _unquoted(text: bytes) -> bytes:
    return unquote_to_bytes(text) if b"%" in text else text  # a form may have 100,000 fields


def _multipart(content_type: str, raw_body: bytes) -> MultipartBody | None:
    """Return heads and contents of the parts in order; None if the body does not match its boundary."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    boundary = found[2] or re.sub(r"\\(.)", r"\1", found[1] or "")
    mark = b"\r\n--" + boundary.encode("utf-8", "replace")
    if raw_body.count(mark) > _MAX_PARTS:  # keyed by its bytes, whose parts would take 20 times their size
        return None
    pieces = (b"\r\n" + raw_body).split(mark)
    # An empty FormData has no parts: "--boundary--".
    if not boundary or len(pieces) < 2 or pieces[0] or pieces[-1].rstrip(b"\r\n") != b"--":
        return None
    parts: list[Part] = []
    for part in pieces[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"\r\n"):
            return None
        parts.append(Part(_part_head(head), content))
    return MultipartBody(tuple(parts))


def _part_head(head: bytes) -> tuple[tuple[bytes, bytes], ...]:
    fields = (line.partition(b":") for line in head.split(b"\r\n") if line)
    return tuple((name.strip(b" \t").lower(), value.strip(b" \t")) for name, _, value in fields)


def _canonical_part(part: Part) -> tuple[bytes, bytes]:
    head = framed(text for field in part.head for text in field)
    return head, blake2b(part.content, digest_size=_SIZE).digest()


KEY_SIZE = 16


def request_key(method: str, url: str, content_type: str = "", raw_body: bytes = b"") -> bytes:
    """Return the 16-byte key of a request.

    HEAD has its own key; pass "GET" to find the GET's response.

    Args:
        method: in any case.
        url: absolute; it is keyed in the spelling of `wire_url`.
        content_type: the whole header value, which holds the multipart boundary.
        raw_body: without transfer encoding, with content encoding.
    """
    return key_with_body(method, url, body_key(content_type, raw_body))


def key_with_body(method: str, url: str, body: bytes) -> bytes:
    """Return the key of a request whose body has the identity `body` (`body_key`)."""
    wire = wire_url(url).encode("utf-8", "surrogatepass")
    prefix = f"{method.upper()} {len(wire)} ".encode("utf-8", "surrogatepass")
    return blake2b(prefix + wire + body, digest_size=KEY_SIZE).digest()


def body_key(content_type: str, raw_body: bytes) -> bytes:
    """Return the identity of a request body: b"" for an empty one, else 16 bytes.

    The content type says how to parse the body and is not part of its identity.
    """
    return body_digest(read_body(content_type, raw_body)) if raw_body else b""
