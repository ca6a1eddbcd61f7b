"""Request keys: when are two requests the same request.

A key is 16 bytes over method, wire URL and *structural* body key. Structural means: what no
server can tell apart is folded (the order of JSON object members, spelling of escapes, the
multipart boundary that a browser draws anew each time), and everything else is kept. A key that
folds too much makes a wrong 200, the worst bug there is, so whatever cannot be read with
certainty (invalid JSON, duplicate members, NaN, a number beyond a double, a body under a content
encoding, a form with raw bytes) is keyed by its bytes.

Pure and sans-io. The keys are stored in packs: a change here is a new pack version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

from stillweb.urls import wire_url

__all__ = ["KEY_SIZE", "body_key", "request_key"]

KEY_SIZE = 16
# Deeper JSON is keyed by its bytes: where the parser itself gives up depends on the stack beneath
# the caller, and the same body must have the same key at seal and at replay.
_MAX_DEPTH = 100
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")
_BOUNDARY = re.compile(r';\s*boundary=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_GRAPHQL_MEMBERS = frozenset({"query", "operationName", "variables", "extensions"})


def request_key(method: str, url: str, content_type: str = "", raw_body: bytes = b"") -> bytes:
    """Return the 16-byte key of a request.

    HEAD has a key of its own; who wants the GET's answer asks with "GET".

    Args:
        method: in any case.
        url: absolute; spelled as `wire_url` spells it before it is keyed.
        content_type: the whole header value, since the multipart boundary is in it.
        raw_body: without transfer encoding, with content encoding.
    """
    wire = wire_url(url).encode("utf-8", "surrogatepass")
    prefix = f"{method.upper()} {len(wire)} ".encode("utf-8", "surrogatepass")
    return blake2b(prefix + wire + body_key(content_type, raw_body), digest_size=KEY_SIZE).digest()


def body_key(content_type: str, raw_body: bytes) -> bytes:
    """Return what identifies a request body: b"" for an empty one, else 16 bytes.

    The content type says how to read the body and is no part of its identity.
    """
    if not raw_body:
        return b""
    mime = content_type.partition(";")[0].strip().lower()
    canonical: bytes | None = None
    if mime == "application/x-www-form-urlencoded":
        kind, canonical = b"form", _form(raw_body)
    elif mime.startswith("multipart/"):
        kind, canonical = b"multipart", _multipart(content_type, raw_body)
    elif _may_be_json(mime, raw_body):
        kind, canonical = b"json", _json(raw_body)
    if canonical is None:
        kind, canonical = b"raw", raw_body
    return blake2b(canonical, digest_size=KEY_SIZE, person=kind).digest()


def _may_be_json(mime: str, raw_body: bytes) -> bool:
    if mime.endswith(("/json", "+json")):
        return True
    # Pages send JSON as text/plain (or with no type, by sendBeacon) to be spared a CORS preflight.
    return mime in ("", "text/plain", "application/csp-report") and raw_body[:1] in (b"{", b"[")


def _json(raw_body: bytes) -> bytes | None:
    """Return JSON with sorted members, or None where its meaning is not certain."""
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
        operations = _graphql(value)
        text = json.dumps(value if operations is None else operations, sort_keys=True, separators=(",", ":"))
        # No JSON text begins with a "g", so that no other body can pose as an operation.
        return text.encode() if operations is None else b"graphql" + text.encode()
    except (ValueError, InvalidOperation, RecursionError):
        return None


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
    """Return the operations of a GraphQL request or batch, without what says nothing; None for other JSON.

    An absent, null or empty operationName or variables are one; of extensions only the
    persisted hash counts (clients add their version and traces). Query and hash are both kept
    where both are sent: a server may answer "not found" to a hash alone, and the retry
    carries the query.
    """
    batch = value if isinstance(value, list) else [value]
    if not batch or not all(_is_graphql(item) for item in batch):
        return None
    operations = [
        {
            "query": item.get("query"),
            "hash": _persisted_hash(item),
            "operationName": item.get("operationName") or None,
            "variables": item.get("variables") or None,
        }
        for item in batch
    ]
    return [{"batch": True}, *operations] if batch is value else operations


def _is_graphql(value: Any) -> bool:
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


def _form(raw_body: bytes) -> bytes | None:
    """Return the fields in order, as WHATWG URL §5.1 parses them; None if it does not look like a form."""
    if not _PRINTABLE.fullmatch(raw_body):
        return None
    pairs = (field.replace(b"+", b" ").partition(b"=") for field in raw_body.split(b"&") if field)
    return _framed(unquote_to_bytes(part) for name, _, value in pairs for part in (name, value))


def _multipart(content_type: str, raw_body: bytes) -> bytes | None:
    """Return heads and body digests of the parts in order; None if the body does not match its boundary."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    boundary = found[2] or re.sub(r"\\(.)", r"\1", found[1] or "")
    pieces = (b"\r\n" + raw_body).split(b"\r\n--" + boundary.encode("utf-8", "replace"))
    # No part at all is an empty FormData: "--boundary--".
    if not boundary or len(pieces) < 2 or pieces[0] or pieces[-1].rstrip(b"\r\n") != b"--":
        return None
    texts: list[bytes] = []
    for part in pieces[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"\r\n"):
            return None
        texts += (_part_head(head), blake2b(content, digest_size=KEY_SIZE).digest())
    return _framed(texts)


def _part_head(head: bytes) -> bytes:
    fields = (line.partition(b":") for line in head.split(b"\r\n") if line)
    return _framed(text for name, _, value in fields for text in (name.strip().lower(), value.strip()))


def _framed(texts: Iterable[bytes]) -> bytes:
    """Return texts with their lengths, so that no two lists run together."""
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)
