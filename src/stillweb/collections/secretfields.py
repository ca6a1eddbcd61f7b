"""The fields of a request in which secrets travel, and how to exchange their values where they stand.

A `Place` is a name in the query, in a form, in JSON or in a multipart body, or a header field. Exchanged is
the value alone, in the spelling that it has there; every other byte stays. Used where a recording is
written and where a replay recognises the real password (`Disguise`). Pure but for `disguise_of`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from stillweb.collections.parts import Where
from stillweb.collections.placeholders import Placeholders, key_file, respell
from stillweb.model import Request, header
from stillweb.urls import host_of

__all__ = [
    "CREDENTIALS",
    "Disguise",
    "Exchange",
    "canonical",
    "cookie_pairs",
    "disguise_of",
    "exchange_fields",
    "exchange_json",
]

CREDENTIALS = frozenset({"authorization", "proxy-authorization"})
"""Header fields whose value is a secret whatever it looks like."""

Exchange = Callable[[Where, str, str], str]
"""Is given place, name and value, and returns what shall stand there: the value itself, or a placeholder."""

_JSON_MEMBER = re.compile(rb'("(?:[^"\\\x00-\x1f]|\\.)*")(\s*:\s*)("(?:[^"\\\x00-\x1f]|\\.)*")')
_PART_NAME = re.compile(rb';\s*name="([^"]*)"', re.IGNORECASE)
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)


def exchange_fields(request: Request, exchange: Exchange) -> Request:
    """Return a request with the values exchanged that `exchange` wants exchanged."""
    head, question, query = request.url.partition("?")
    url = head + question + _form(query, Where.QUERY, exchange) if query else request.url
    headers = tuple((name, _credentials(name, value, exchange)) for name, value in request.headers)
    body = _body(request, exchange) if request.raw_body else request.raw_body
    return replace(request, url=url, headers=headers, raw_body=body)


def _form(text: str, where: Where, exchange: Exchange) -> str:
    fields = []
    for field in text.split("&"):
        name, equals, raw = field.partition("=")
        if equals and raw:
            value = unquote_plus(raw, errors="surrogateescape")
            wanted = exchange(where, unquote_plus(name), value)
            if wanted != value:
                field = f"{name}={respell(raw, value, wanted)}"
        fields.append(field)
    return "&".join(fields)


def _credentials(name: str, value: str, exchange: Exchange) -> str:
    """Exchange what comes behind the scheme; of Basic the password alone (RFC 7617)."""
    if name.lower() not in CREDENTIALS:
        return value
    scheme, space, given = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            user, colon, password = base64.b64decode(given, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon and password:
            pair = f"{user}:{exchange(Where.HEADER, name, password)}"
            return f"{scheme} {base64.b64encode(pair.encode()).decode()}"
    if not space:
        return exchange(Where.HEADER, name, value)
    return scheme + space + exchange(Where.HEADER, name, given)


def _body(request: Request, exchange: Exchange) -> bytes:
    content_type = header(request.headers, "content-type")
    mime = content_type.partition(";")[0].strip().lower()
    raw = request.raw_body
    if mime == "application/x-www-form-urlencoded":
        text = _form(raw.decode("latin-1"), Where.FORM, exchange)
        return text.encode("latin-1", "replace")
    if mime.startswith("multipart/"):
        return _multipart(content_type, raw, exchange)
    if "json" in mime or raw.lstrip()[:1] in (b"{", b"["):
        return exchange_json(raw, exchange)
    return raw


def exchange_json(raw: bytes, exchange: Exchange) -> bytes:
    """Return a JSON text with the values of members exchanged; all else stays byte by byte."""

    def member(found: re.Match[bytes]) -> bytes:
        try:
            name, value = json.loads(found[1]), json.loads(found[3])
        except ValueError:
            return found[0]
        wanted = exchange(Where.JSON, name, value) if value else value
        if wanted == value:
            return found[0]
        spelled = found[3][1:-1].decode("utf-8", "surrogateescape")
        put = respell(spelled, value, wanted).encode("utf-8", "surrogateescape")
        return found[1] + found[2] + b'"' + put + b'"'

    return _JSON_MEMBER.sub(member, raw)


def _multipart(content_type: str, raw: bytes, exchange: Exchange) -> bytes:
    found = _BOUNDARY.search(content_type)
    if found is None:
        return raw
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    parts = raw.split(mark)
    for number, part in enumerate(parts):
        head, gap, content = part.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head)
        if not gap or name is None or b"filename" in head or not content.endswith(b"\r\n"):
            continue
        value = content[:-2].decode("utf-8", "surrogateescape")
        wanted = exchange(Where.MULTIPART, name[1].decode("utf-8", "replace"), value) if value else value
        parts[number] = head + gap + wanted.encode("utf-8", "surrogateescape") + b"\r\n"
    return mark.join(parts)


@dataclass(frozen=True)
class Disguise:
    """What a replay knows of the secrets that were recorded: enough to know them when they come again.

    Attributes:
        placeholders: with the key of the recording.
        places: where and name, to the hosts on which they were redacted.
    """

    placeholders: Placeholders
    places: Mapping[tuple[str, str], frozenset[str]]

    def __call__(self, request: Request) -> Request:
        """Return the request with recorded secrets exchanged as they were when it was recorded.

        A secret that was not recorded, such as a wrong password, stays: it has no placeholder.
        """
        host = host_of(request.url)

        def exchange(where: Where, name: str, value: str) -> str:
            if host not in self.places.get((where, name.lower()), ()):
                return value
            return self.placeholders.known(value) or value

        return exchange_fields(request, exchange)


def disguise_of(root: Path, name: str, redactions: Iterable[Mapping[str, Any]]) -> Disguise | None:
    """Return what is known of a collection's secrets; None without its key or without any.

    Raises:
        CollectionError: if the file with the key is none of ours.
    """
    path = key_file(root, name)
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    places: dict[tuple[str, str], set[str]] = {}
    for told in redactions:
        where, field = str(told.get("where", "")), str(told.get("name", ""))
        places.setdefault((where, field.lower()), set()).add(str(told.get("host", "")))
    known = _read(path, state.st_mtime_ns, state.st_size)
    if known is None:
        return None
    return Disguise(known, {place: frozenset(hosts) for place, hosts in places.items()})


@lru_cache(maxsize=32)
def _read(path: Path, _changed: int, _size: int) -> Placeholders | None:
    return Placeholders.read(path)


def cookie_pairs(value: str) -> list[tuple[str, str]]:
    """Return names and values of a `Cookie` field, as sent (RFC 6265 §4.2.1)."""
    pairs = (pair.strip().partition("=") for pair in value.split(";"))
    return [(name, text.strip('"')) for name, equals, text in pairs if equals]


def canonical(value: str) -> str:
    """Return a cookie's value without the escapes that most servers put on it."""
    return unquote(value) if "%" in value else value
