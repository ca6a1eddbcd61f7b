"""Request fields that carry secrets, and in-place replacement of their values.

A field is a name in the query, in a form, in JSON or in a multipart body, or a header field. Only the value
is replaced, in the spelling that it has there; every other byte stays. The recorder uses this to redact,
replay to recognise the real password (`SecretFields`). Pure except for `secret_fields_of`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from stillweb.matching.parts import Where
from stillweb.matching.placeholders import Placeholders, basic_credentials, basic_token, key_file, respell
from stillweb.matching.protobuf import PROTOBUF, field_name, replace_strings
from stillweb.model import Request, header
from stillweb.urls import host_of

CREDENTIALS = frozenset({"authorization", "proxy-authorization"})
"""Header fields whose value is always a secret."""

_DOCUMENT = frozenset({"{", "[", "<"})  # characters with which JSON and XML begin

Replacement = Callable[[Where, str, str], str]
"""Maps location, name and value to the new value: the value itself, or a placeholder."""

_JSON_MEMBER = re.compile(rb'("(?:[^"\\\x00-\x1f]|\\.)*")(\s*:\s*)("(?:[^"\\\x00-\x1f]|\\.)*")')
# An entry of a list of fields, as ASP.NET, Pega and HAR write it.
_FIELD_NAME, _FIELD_VALUE = rb'"(?:name|key|field|id)"\s{0,8}:\s{0,8}', rb'"(?:value|val)"\s{0,8}:\s{0,8}'
_FIELD_NAME += rb'(?P<name>"(?:[^"\\\x00-\x1f]|\\.)*")'
_FIELD_VALUE += rb'(?P<value>"(?:[^"\\\x00-\x1f]|\\.)*")'
_NAME_FIRST = re.compile(_FIELD_NAME + rb"\s{0,8},\s{0,8}" + _FIELD_VALUE, re.IGNORECASE)
_VALUE_FIRST = re.compile(_FIELD_VALUE + rb"\s{0,8},\s{0,8}" + _FIELD_NAME, re.IGNORECASE)
# Arguments of GraphQL (October 2021 §2.9.4), plain and within a JSON string; values with escapes are left.
# White space, commas and comments may stand between all tokens (§2.1.7).
_IGNORED = rb"(?:[\s,]|#[^\n\r]{0,256}[\n\r]){0,16}"
_ESCAPED_IGNORED = rb'(?:[\s,]|\\[nrt]|#[^"\\]{0,256}\\[nr]){0,16}'
_LITERAL = re.compile(
    rb"\b([A-Za-z_][A-Za-z0-9_]{0,63})("
    + _IGNORED
    + rb":"
    + _IGNORED
    + rb'"(?:"")?)([^"\\\x00-\x1f]{1,4096})(")'
)
_ESCAPED_LITERAL = re.compile(
    rb"\b([A-Za-z_][A-Za-z0-9_]{0,63})("
    + _ESCAPED_IGNORED
    + rb":"
    + _ESCAPED_IGNORED
    + rb'\\"(?:\\"\\")?)([^"\\\x00-\x1f]{1,4096})(\\")'
)
ELEMENT = re.compile(
    rb"(<(?:[\w.-]{1,64}:)?([\w.-]{1,64})(?:\s[^<>]{0,1024})?>(?:\s{0,64}<!\[CDATA\[)?)([^<>]{1,8192}?)((?:\]\]>\s{0,64})?</)"
)
"""An XML element with text: start tag, local name, text, begin of the end tag; with what encloses CDATA."""
_XML_ATTRIBUTE = re.compile(
    rb"(\s(?:[\w.-]{1,64}:)?([\w.-]{1,64})\s{0,8}=\s{0,8}([\"']))([^<>\"']{1,8192})(?=\3)"
)
_OPERATION = re.compile(rb"\s*(?:query|mutation|subscription)\b[^\"]*\{")
_FORM_UNIT = re.compile(r"%[0-9A-Fa-f]{2}|(?s:.)")
_PART_NAME = re.compile(rb';\s*name="([^"]*)"', re.IGNORECASE)
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)


def replace_fields(request: Request, replace_value: Replacement) -> Request:
    """Return a request with the values that `replace_value` returns."""
    head, question, query = request.url.partition("?")
    url = head + question + _form(query, Where.QUERY, replace_value) if query else request.url
    headers = tuple((name, _credentials(name, value, replace_value)) for name, value in request.headers)
    body = _body(request, replace_value) if request.raw_body else request.raw_body
    return replace(request, url=url, headers=headers, raw_body=body)


def _form(text: str, where: Where, replace_value: Replacement) -> str:
    fields = []
    for field in text.split("&"):
        name, equals, raw = field.partition("=")
        if equals and raw:
            value = unquote_plus(raw, errors="surrogateescape")
            wanted = replace_value(where, unquote_plus(name), value)
            if wanted != value:
                field = f"{name}={respell(raw, value, wanted)}"
            elif value.lstrip()[:1] in _DOCUMENT or _OPERATION.match(
                value.encode("utf-8", "surrogateescape")
            ):
                field = f"{name}={_embedded(raw, replace_value)}"
        fields.append(field)
    return "&".join(fields)


def _embedded(raw: str, replace_value: Replacement) -> str:
    """Return a form's value that is a document itself, with the spelling of every other byte kept."""
    units = _FORM_UNIT.findall(raw)
    plain = b"".join(unquote_to_bytes(unit.replace("+", " ")) for unit in units)
    made = _document(plain, replace_value)
    if len(made) != len(plain) or len(units) != len(plain):
        return raw
    return "".join(
        unit if was == now else quote(bytes([now]), safe="")
        for unit, was, now in zip(units, plain, made, strict=True)
    )


def _document(raw: bytes, replace_value: Replacement) -> bytes:
    """Return JSON, XML or GraphQL with the values that `replace_value` returns; other content unchanged."""
    begin = raw.lstrip()[:1]
    if begin in (b"{", b"["):
        return _literals(_ESCAPED_LITERAL, replace_in_json(raw, replace_value), replace_value)
    if begin == b"<":
        return _elements(raw, replace_value)
    return _literals(_LITERAL, raw, replace_value) if _OPERATION.match(raw) else raw


def _credentials(name: str, value: str, replace_value: Replacement) -> str:
    """Replace the credentials after the scheme; for Basic only the password (RFC 7617)."""
    if name.lower() not in CREDENTIALS:
        return value
    scheme, space, given = value.partition(" ")
    if scheme.lower() == "basic":
        user, password = basic_credentials(given)
        if password:
            return f"{scheme} {basic_token(user, replace_value(Where.HEADER, name, password))}"
    if not space:
        return replace_value(Where.HEADER, name, value)
    return scheme + space + replace_value(Where.HEADER, name, given)


def _body(request: Request, replace_value: Replacement) -> bytes:
    content_type = header(request.headers, "content-type")
    mime = content_type.partition(";")[0].strip().lower()
    raw = request.raw_body
    if mime == "application/x-www-form-urlencoded":
        text = _form(raw.decode("latin-1"), Where.FORM, replace_value)
        return text.encode("latin-1", "replace")
    if mime.startswith("multipart/"):
        return _multipart(content_type, raw, replace_value)
    if "json" in mime or raw.lstrip()[:1] in (b"{", b"["):
        return _literals(_ESCAPED_LITERAL, replace_in_json(raw, replace_value), replace_value)
    if mime == "application/graphql":
        return _literals(_LITERAL, raw, replace_value)
    if "xml" in mime:
        return _elements(raw, replace_value)
    if mime in PROTOBUF:
        return replace_strings(
            mime, raw, lambda at, text: replace_value(Where.FORM, field_name(request.url, at), text)
        )
    return _document(raw, replace_value) if mime in ("", "text/plain") else raw


def _literals(pattern: re.Pattern[bytes], raw: bytes, replace_value: Replacement) -> bytes:
    """Return a GraphQL document with the string literals of its arguments replaced."""

    def literal(found: re.Match[bytes]) -> bytes:
        value = found[3].decode("utf-8", "surrogateescape")
        wanted = replace_value(Where.JSON, found[1].decode("ascii"), value)
        return found[1] + found[2] + wanted.encode("utf-8", "surrogateescape") + found[4]

    return pattern.sub(literal, raw)


def _elements(raw: bytes, replace_value: Replacement) -> bytes:
    """Return an XML text with the contents of elements replaced."""

    def element(found: re.Match[bytes]) -> bytes:
        spelled = found[3].decode("utf-8", "surrogateescape")
        value = html.unescape(spelled)
        wanted = replace_value(Where.FORM, found[2].decode("utf-8", "replace"), value)
        if wanted == value:
            return found[0]
        return found[1] + respell(spelled, value, wanted).encode("utf-8", "surrogateescape") + found[4]

    def attribute(found: re.Match[bytes]) -> bytes:
        spelled = found[4].decode("utf-8", "surrogateescape")
        value = html.unescape(spelled)
        wanted = replace_value(Where.FORM, found[2].decode("utf-8", "replace"), value)
        return found[1] + respell(spelled, value, wanted).encode("utf-8", "surrogateescape")

    return _XML_ATTRIBUTE.sub(attribute, ELEMENT.sub(element, raw))


def replace_in_json(raw: bytes, replace_value: Replacement) -> bytes:
    """Return a JSON text with the values of members replaced, and of `{"name": NAME, "value": VALUE}`.

    Every other byte stays.
    """

    def member(found: re.Match[bytes]) -> bytes:
        try:
            name, value = json.loads(found[1]), json.loads(found[3])
        except ValueError:
            return found[0]
        wanted = replace_value(Where.JSON, name, value) if value else value
        if wanted == value:
            return found[1] + found[2] + _json_string(found[3], value, replace_value)
        return found[1] + found[2] + _put(found[3], value, wanted)

    def entry(found: re.Match[bytes]) -> bytes:
        name, value = _listed(found)
        wanted = replace_value(Where.JSON, name, value) if value else value
        if wanted == value:
            return found[0]
        start, end = found.start("value") - found.start(), found.end("value") - found.start()
        return found[0][:start] + _put(found["value"], value, wanted) + found[0][end:]

    replaced = _JSON_MEMBER.sub(member, raw)
    return _VALUE_FIRST.sub(entry, _NAME_FIRST.sub(entry, replaced))


def listed_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the entries `{"name": NAME, "value": VALUE}` in a text."""
    raw = text.encode("utf-8", "surrogatepass") if '"value"' in text else b""
    for pattern in (_NAME_FIRST, _VALUE_FIRST):
        yield from map(_listed, pattern.finditer(raw))


def _listed(found: re.Match[bytes]) -> tuple[str, str]:
    try:
        return json.loads(found["name"]), json.loads(found["value"])
    except ValueError:
        return "", ""


def _put(spelled: bytes, value: str, wanted: str) -> bytes:
    """Return a JSON string with another value in the spelling of its own."""
    put = respell(spelled[1:-1].decode("utf-8", "surrogateescape"), value, wanted)
    return b'"' + put.encode("utf-8", "surrogateescape") + b'"'


def _json_string(spelled: bytes, value: str, replace_value: Replacement) -> bytes:
    """Return a JSON string that is a JSON or XML document itself with its values replaced."""
    if value.lstrip()[:1] not in _DOCUMENT:
        return spelled
    raw = value.encode("utf-8", "surrogatepass")
    made = _document(raw, replace_value).decode("utf-8", "surrogatepass")
    for as_ascii in (True, False):
        if json.dumps(value, ensure_ascii=as_ascii).encode("utf-8", "surrogatepass") == spelled:
            return json.dumps(made, ensure_ascii=as_ascii).encode("utf-8", "surrogatepass")
    return spelled


def _multipart(content_type: str, raw: bytes, replace_value: Replacement) -> bytes:
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
        wanted = replace_value(Where.MULTIPART, name[1].decode("utf-8", "replace"), value) if value else value
        made = wanted.encode("utf-8", "surrogateescape")
        parts[number] = head + gap + (_document(made, replace_value) if wanted == value else made) + b"\r\n"
    return mark.join(parts)


@dataclass(frozen=True)
class SecretFields:
    """The recorded secrets of a collection, as far as replay must recognise them.

    Attributes:
        placeholders: with the key of the recording.
        places: maps location and name to the hosts on which such fields were redacted.
    """

    placeholders: Placeholders
    places: Mapping[tuple[str, str], frozenset[str]]

    def __call__(self, request: Request) -> Request:
        """Return the request with recorded secrets replaced by their placeholders.

        A secret that was not recorded, such as a wrong password, stays: it has no placeholder.
        """
        host = host_of(request.url)

        def replace_value(where: Where, name: str, value: str) -> str:
            if host not in self.places.get((where, name.lower()), ()):
                return value
            return self.placeholders.known(value) or value

        return replace_fields(request, replace_value)


def secret_fields_of(root: Path, name: str, redactions: Iterable[Mapping[str, Any]]) -> SecretFields | None:
    """Return the secret fields of a collection; None without its key or without any.

    Raises:
        CollectionError: if the file with the key has another format.
    """
    path = key_file(root, name)
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    places: dict[tuple[str, str], set[str]] = {}
    for member in redactions:
        where, field = str(member.get("where", "")), str(member.get("name", ""))
        places.setdefault((where, field.lower()), set()).add(str(member.get("host", "")))
    known = _read(path, state.st_mtime_ns, state.st_size)
    if known is None:
        return None
    return SecretFields(known, {place: frozenset(hosts) for place, hosts in places.items()})


@lru_cache(maxsize=32)
def _read(path: Path, _changed: int, _size: int) -> Placeholders | None:
    return Placeholders.read(path)


def cookie_pairs(value: str) -> list[tuple[str, str]]:
    """Return names and values of a `Cookie` field as sent (RFC 6265 §4.2.1)."""
    pairs = (pair.strip().partition("=") for pair in value.split(";"))
    return [(name, text.strip('"')) for name, equals, text in pairs if equals]
