"""Placeholders of recorded secrets: texts of the same length and form, in every spelling of their secret.

A placeholder is drawn from a keyed digest (HMAC-SHA-256) of its secret. The key is stored beside the
collections and not in one. Pure except for the file of `Placeholders`.
"""

from __future__ import annotations

import base64
import hmac
import html
import json
import os
import re
import string
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from stillweb.errors import CollectionError
from stillweb.matching.values import linear_regex

_FOLDER = ".secrets"
_VERSIONS = "versions"  # as in `collections.versions`
_HEX_LOWER, _HEX_UPPER = re.compile(r"[0-9a-f\W_]*"), re.compile(r"[0-9A-F\W_]*")
# One escape of a URL, of JSON or of HTML, or one character.
_UNIT = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|&(?:#[0-9]+|#x[0-9A-Fa-f]+|[a-zA-Z]+);|(?s:.)")
# Pages that decode a placeholder need its escapes of what is neither letter nor digit, once or more.
_LETTER = re.compile("[A-Za-z0-9]")
_ESCAPE_OR_LETTER = re.compile(
    r"%(?:25)*(?!3\d|[46][1-9A-Fa-f]|[57][\dAa])[\dA-Fa-f]{2}|[A-Za-z0-9]", re.ASCII
)
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
        drawn = self._credentials(secret) or self._other(secret)
        self._by_mac[mac] = drawn
        self._taken.add(drawn)
        self._note(mac, drawn)
        return drawn

    def _credentials(self, secret: str) -> str:
        """Return the placeholder of a Basic token; "" for another secret.

        A page may read it in a cookie and send it in `Authorization`, where only the password is replaced.
        """
        name, password = basic_credentials(secret)
        return basic_token(name, self.of(password)) if password else ""

    def _other(self, secret: str) -> str:
        for attempt in range(1000):
            drawn = _drawn(secret, self._stream(secret, attempt))
            if drawn != secret and drawn not in self._taken:
                break
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


def basic_credentials(token: str) -> tuple[str, str]:
    """Return the name and password of a Basic token (RFC 7617 §2); both are "" for another text."""
    try:
        pair = base64.b64decode(token, validate=True).decode("utf-8")
    except ValueError:  # binascii.Error and UnicodeDecodeError
        return "", ""
    name, _, password = pair.partition(":")
    return (name, password) if password and pair.isprintable() else ("", "")


def basic_token(name: str, password: str) -> str:
    return base64.b64encode(f"{name}:{password}".encode()).decode("ascii")


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

    def other(found: re.Match[str]) -> str:
        known = classes.get(found[0])
        return known[next(stream) % len(known)] if known else found[0]

    return (_LETTER if _is_mostly_escaped(secret) else _ESCAPE_OR_LETTER).sub(other, secret)


def _is_mostly_escaped(secret: str) -> bool:
    """Return True if fewer than half of a secret's characters would be replaced if its escapes stayed."""
    return 2 * sum(len(found[0]) == 1 for found in _ESCAPE_OR_LETTER.finditer(secret)) < len(secret)


def _keeps_form(secret: str) -> bool:
    """Return True if ASCII letters and digits make up half of a secret: then only they are replaced."""
    return sum(c in _ALNUM for c in secret) * 2 >= len(secret)


def respell(spelled: str, secret: str, placeholder: str) -> str:
    """Return a placeholder in the spelling that its secret has in some location, with the same escapes."""
    if spelled == secret or not _keeps_form(secret):
        return placeholder
    for spell in _spell_functions():
        if spell(secret) == spelled:
            return spell(placeholder)
    drawn = iter([c for c in placeholder if c in _ALNUM])
    return "".join(next(drawn, unit) if _meant(unit) in _ALNUM else unit for unit in _UNIT.findall(spelled))


def _meant(unit: str) -> str:
    """Return the character of an escape; "" for one that is neither letter nor digit anyway."""
    if len(unit) == 1:
        return unit
    if unit[0] == "\\":
        return chr(int(unit[2:], 16)) if unit[1] == "u" else ""
    return html.unescape(unit) if unit[0] == "&" else unquote(unit)


_MIN_CODED = 8  # bytes
# Each byte in strings of scripts, in HTML, in URLs, and in UTF-16 of both byte orders.
_ESCAPES = (
    *("\\x{:02x}", "\\x{:02X}", "\\u{:04x}", "\\u{:04X}", "&#{};", "&#x{:x};", "&#x{:X};", "&#x{:02x};"),
    *("%{:02x}", "%{:02X}", "\0{:c}", "{:c}\0"),
)
# As written by Go and by frameworks that embed JSON in HTML.
_FOR_SCRIPTS = {ord(character): f"\\u{ord(character):04x}" for character in "&<>"}


@cache
def _spell_functions() -> tuple[Callable[[str], str], ...]:
    """Return the ways to write a text in URLs, HTML and JSON, character by character."""

    def lower(spell: Callable[[str], str], text: str) -> str:
        return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), spell(text))

    safe = (partial(quote, safe=safe) for safe in ("", "/", "/:=@+"))
    in_urls: tuple[Callable[[str], str], ...] = (
        str,
        *safe,
        quote_plus,
        lambda text: quote(quote(text, safe=""), safe=""),
    )
    return (
        *in_urls,
        *(partial(lower, spell) for spell in in_urls),
        *(_json, lambda text: _json(text).replace("/", "\\/")),
        *(
            _raw,
            lambda text: _raw(text).translate(_FOR_SCRIPTS),
            lambda text: _json(text).translate(_FOR_SCRIPTS),
        ),
        *(html.escape, partial(html.escape, quote=False)),
    )


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _raw(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def spellings(secret: str, placeholder: str) -> dict[bytes, bytes]:
    """Return the spellings of a secret in URLs, texts, hex and base64, each with its placeholder."""
    spelled = {_bytes(spell(secret)): _bytes(spell(placeholder)) for spell in _spell_functions()}
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
