"""Request fields that carry secrets, and in-place replacement of their values.

A field is a name in the query, in a form, in JSON or in a multipart body, or a header field. Only the value
is replaced, in the spelling that it has there; every other byte stays. The recorder uses this to redact,
replay to recognise the real password (`SecretFields`). Pure except for `secret_fields_of` and `Placeholders`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import html
import json
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, unquote_to_bytes

from stillweb.errors import CollectionError
from stillweb.matching.parts import Where
from stillweb.matching.protobuf import PROTOBUF, field_name, replace_strings
from stillweb.matching.values import linear_regex
from stillweb.model import Request, header
from stillweb.urls import host_of

_FOLDER = ".secrets"
_VERSIONS = "versions"  # as in `collections.versions`
_HEX_LOWER, _HEX_UPPER = re.compile(r"[0-9a-f\W_]*"), re.compile(r"[0-9A-F\W_]*")
# One escape of a URL, of JSON or of HTML, or one character.
_UNIT = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|&(?:#[0-9]+|#x[0-9A-Fa-f]+|[a-zA-Z]+);|(?s:.)")
_ALNUM = frozenset(string.ascii_letters + string.digits)


def key_file(root: Path, name: str, *, of_version: bool = True) -> Path:
    """Return the path of the key of a collection's placeholders. Versions of a collection share its key.

    Args:
        of_version: whether to recognise a folder among the versions of a collection.
    """
    if of_version and root.name == _VERSIONS and (root.parent / "archive").is_dir():
        root, name = root.parent.parent, root.parent.name
    return root / _FOLDER / f"{name}.jsonl"


class Placeholders:
    """The placeholders of one collection.

    Args:
        key: 32 secret bytes.
        path: file that stores new placeholders; None to store nothing.
    """

    def __init__(self, key: bytes, path: Path | None = None) -> None:
        self._key = key
        self._path = path
        self._by_mac: dict[str, str] = {}
        self._taken: set[str] = set()

    @classmethod
    def open(cls, path: Path) -> Placeholders:
        """Read the key of a collection, or generate one, which is written with the first secret.

        Raises:
            CollectionError: if the file has another format.
        """
        found = cls.read(path)
        if found is not None:
            found._path = path
            return found
        return cls(os.urandom(32), path)

    @classmethod
    def read(cls, path: Path) -> Placeholders | None:
        """Read the key of a collection and its placeholders; None if the file is missing.

        Raises:
            CollectionError: if the file has another format.
        """
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        try:
            if not lines[0]:
                return None  # the process was killed before its first write
            made = cls(bytes.fromhex(json.loads(lines[0])["key"]))
            for line in lines[1:-1]:  # the rest after the last line end is empty, or a line cut off by a kill
                member = json.loads(line)
                made._by_mac[member["mac"]] = member["placeholder"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            hint = f"delete it; later recordings of the collection then use other placeholders: rm {path}"
            raise CollectionError(f"not a key of redactions ({error!r})", path=path, hint=hint) from None
        made._taken = set(made._by_mac.values())
        return made

    def known(self, secret: str) -> str | None:
        """Return the placeholder of a recorded secret; None for any other text."""
        return self._by_mac.get(self._mac(secret))

    def of(self, secret: str) -> str:
        """Return the placeholder of a secret; store it if it is new."""
        mac = self._mac(secret)
        if (known := self._by_mac.get(mac)) is not None:
            return known
        for attempt in range(1000):
            drawn = _drawn(secret, self._stream(secret, attempt))
            if drawn != secret and drawn not in self._taken:
                break
        self._by_mac[mac] = drawn
        self._taken.add(drawn)
        self._note(mac, drawn)
        return drawn

    def hand_on(self, placeholder: str, secret: str) -> None:
        """Let a secret that has replaced another one have the placeholder of that one."""
        mac = self._mac(secret)
        if mac not in self._by_mac:
            self._by_mac[mac] = placeholder
            self._note(mac, placeholder)

    def drew(self, text: str) -> bool:
        """Return True if a text is a placeholder itself, from a replay or an earlier run."""
        return text in self._taken

    def _mac(self, secret: str) -> str:
        return hmac.digest(self._key, b"known\0" + _bytes(secret), "sha256")[:16].hex()

    def _stream(self, secret: str, attempt: int) -> Iterator[int]:
        block = 0
        while True:
            message = b"draw %d %d\0" % (attempt, block) + _bytes(secret)
            digest = hmac.digest(self._key, message, "sha256")
            # Two bytes per draw: none of 62 characters is much more likely than another.
            yield from (digest[at] << 8 | digest[at + 1] for at in range(0, len(digest), 2))
            block += 1

    def _note(self, mac: str, placeholder: str) -> None:
        if self._path is None:
            return
        line = json.dumps({"mac": mac, "placeholder": placeholder}).encode("ascii") + b"\n"
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if not os.fstat(file).st_size:
                head = json.dumps({"version": 1, "key": self._key.hex()}).encode("ascii")
                line = head + b"\n" + line
            os.write(file, line)
        finally:
            os.close(file)


def _bytes(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogatepass")


def _drawn(secret: str, stream: Iterator[int]) -> str:
    if not _keeps_form(secret):
        letters = string.ascii_lowercase + string.digits
        return "".join(letters[next(stream) % len(letters)] for _ in _bytes(secret))
    lower = "abcdef" if _HEX_LOWER.fullmatch(secret) else string.ascii_lowercase
    upper = "ABCDEF" if _HEX_UPPER.fullmatch(secret) else string.ascii_uppercase
    classes = {**dict.fromkeys(string.ascii_lowercase, lower), **dict.fromkeys(string.ascii_uppercase, upper)}
    classes |= dict.fromkeys(string.digits, string.digits)
    return "".join(classes[c][next(stream) % len(classes[c])] if c in classes else c for c in secret)


def _keeps_form(secret: str) -> bool:
    """Return True if ASCII letters and digits make up half of a secret: then only they are replaced."""
    return sum(c in _ALNUM for c in secret) * 2 >= len(secret)


def respell(spelled: str, secret: str, placeholder: str) -> str:
    """Return a placeholder in the spelling that its secret has in some location, with the same escapes."""
    if spelled == secret or not _keeps_form(secret):
        return placeholder
    drawn = iter([c for c in placeholder if c in _ALNUM])
    return "".join(next(drawn, unit) if _meant(unit) in _ALNUM else unit for unit in _UNIT.findall(spelled))


def _meant(unit: str) -> str:
    """Return the character of an escape; "" for one that is neither letter nor digit anyway."""
    if len(unit) == 1:
        return unit
    if unit[0] == "\\":
        return chr(int(unit[2:], 16)) if unit[1] == "u" else ""
    return html.unescape(unit) if unit[0] == "&" else unquote(unit)


# As written by Go and by frameworks that embed JSON in HTML.
_MIN_CODED = 8  # bytes
# Each byte in strings of scripts, in HTML, in URLs, and in UTF-16 of both byte orders.
_ESCAPES = (
    *("\\x{:02x}", "\\x{:02X}", "\\u{:04x}", "\\u{:04X}", "&#{};", "&#x{:x};", "&#x{:X};", "&#x{:02x};"),
    *("%{:02x}", "%{:02X}", "\0{:c}", "{:c}\0"),
)
_FOR_SCRIPTS = {ord(character): f"\\u{ord(character):04x}" for character in "&<>"}


def spellings(secret: str, placeholder: str) -> dict[bytes, bytes]:
    """Return the spellings of a secret in URLs, texts, hex and base64, each with its placeholder."""
    plain, raw = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    forms = {
        secret,
        *(quote(secret, safe=safe) for safe in ("", "/", "/:=@+")),
        quote_plus(secret),
        quote(quote(secret, safe=""), safe=""),
        *(plain, plain.replace("/", "\\/")),
        *(raw, raw.translate(_FOR_SCRIPTS), plain.translate(_FOR_SCRIPTS)),
        *(html.escape(secret), html.escape(secret, quote=False)),
    }
    forms |= {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in forms}
    spelled = {_bytes(form): _bytes(respell(form, secret, placeholder)) for form in forms}
    return dict(_coded(_bytes(secret), _bytes(placeholder))) | spelled


def escaped_spellings(secret: str, placeholder: str) -> dict[bytes, bytes]:
    """Return the spellings of a secret with each byte escaped, and in UTF-16, each with its placeholder.

    They are four times as long as all others together, and rare: see `may_be_escaped`.
    """
    own, other = _bytes(secret), _bytes(placeholder)
    if not _is_coded(own, other) or not (secret.isascii() and placeholder.isascii()):
        return {}
    return {_escaped(own, escape): _escaped(other, escape) for escape in _ESCAPES}


def may_be_escaped(text: bytes) -> bool:
    """Return whether a text has so many escapes in a row that `escaped_spellings` may be in it."""
    return _escapes().search(text) is not None


@cache
def _escapes() -> Any:
    escapes = (
        rb"\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|&#x?[0-9A-Fa-f]{1,3};|%[0-9A-Fa-f]{2}|\x00[^\x00]|[^\x00]\x00"
    )
    return linear_regex(rb"(?s)(?:%s){%d}" % (escapes, _MIN_CODED))


def _is_coded(secret: bytes, placeholder: bytes) -> bool:
    return len(secret) == len(placeholder) and len(secret) >= _MIN_CODED


def _coded(secret: bytes, placeholder: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a secret of at least eight bytes in hex, and in base64 after 0, 1 and 2 bytes of other content.

    Only the characters of base64 that depend on no other byte are replaced: the first and last may stay.
    """
    if not _is_coded(secret, placeholder):
        return
    yield secret.hex().encode(), placeholder.hex().encode()
    yield secret.hex().upper().encode(), placeholder.hex().upper().encode()
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(before) + secret)[first:last], encode(bytes(before) + placeholder)[first:last]


def _escaped(text: bytes, escape: str) -> bytes:
    return b"".join(escape.format(byte).encode("ascii") for byte in text)


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
        try:
            user, colon, password = base64.b64decode(given, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon and password:
            pair = f"{user}:{replace_value(Where.HEADER, name, password)}"
            return f"{scheme} {base64.b64encode(pair.encode()).decode()}"
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


def canonical(value: str) -> str:
    """Return a cookie's value without the percent-encoding that most servers apply."""
    return unquote(value) if "%" in value else value
