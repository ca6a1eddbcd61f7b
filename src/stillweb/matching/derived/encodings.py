"""The fixed set of encodings in which a value may occur in a response.

An encoding is a change of the text (`lower`, `slug`), then a digest or up to two markups (`html` in `json`).
A date may also have another notation. Several encodings often give the same bytes for one value: "Qyv" is the
same as text and in HTML. A slot of a template therefore keeps every encoding that all recordings allow, and
refuses values on which these differ. Pure.
"""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import lru_cache, partial
from hashlib import md5, sha1, sha256
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus

PLAIN = "plain"
MEASURES = ("bytes", "chars", "lf-bytes", "lf-chars")
"""Lengths of a value that a site may show."""

_Text = Callable[[str], str]
_Change = Callable[[str], str | None]

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
_AP_MONTHS = (  # as the Associated Press writes them, and Django by default
    "Jan.", "Feb.", "March", "April", "May", "June", "July", "Aug.", "Sept.", "Oct.", "Nov.", "Dec.",
)  # fmt: skip
_NOTATIONS = {
    "date-us": "{0.month:02}/{0.day:02}/{0.year}",
    "date-us-short": "{0.month}/{0.day}/{0.year}",
    "date-slashes": "{0.day:02}/{0.month:02}/{0.year}",
    "date-dots": "{0.day:02}.{0.month:02}.{0.year}",
    "date-year": "{0.year}/{0.month:02}/{0.day:02}",
    "date-digits": "{0.year}{0.month:02}{0.day:02}",
    "date-long": "{month} {0.day}, {0.year}",
    "date-day-long": "{0.day} {month} {0.year}",
    "date-month": "{month:.3} {0.day}, {0.year}",
    "date-month-zero": "{month:.3} {0.day:02}, {0.year}",
    "date-day-month": "{0.day} {month:.3} {0.year}",
    "date-ap": "{ap} {0.day}, {0.year}",
}


def _dated(notation: str) -> _Change:
    """Return the change of an ISO date into another notation; None for any other text."""

    def write(text: str) -> str | None:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII):
            return None
        with suppress(ValueError):
            day = date.fromisoformat(text)
            return notation.format(day, month=_MONTHS[day.month - 1], ap=_AP_MONTHS[day.month - 1])
        return None

    return write


def _slug(joint: str) -> _Text:
    def slug(text: str) -> str:
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
        return re.sub(r"[^a-z0-9]+", joint, plain).strip(joint)

    return slug


def _slug_of_words(text: str, *, ascii_only: bool) -> str:
    """Return a slug as Django makes it: punctuation within words is left out."""
    plain = unicodedata.normalize("NFKD" if ascii_only else "NFKC", text)
    plain = plain.encode("ascii", "ignore").decode("ascii") if ascii_only else plain
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.lower())).strip("-_")


_CHANGES: dict[str, _Change] = {
    PLAIN: lambda text: text,
    "trim": lambda text: text.strip(),
    "lf": lambda text: text.replace("\r\n", "\n"),  # a browser sends lines with CRLF, many sites store LF
    "lower": lambda text: text.lower(),
    "upper": lambda text: text.upper(),
    # Names of pages and persons; the kinds differ in "o'neil", "USB" and the words after the first.
    "first-upper": lambda text: text[:1].upper() + text[1:],
    "capitalize": lambda text: text.capitalize(),
    "title": lambda text: text.title(),
    "words-upper": lambda text: re.sub(r"(?:^|(?<=\s))\S", lambda found: found[0].upper(), text),
    "slug": _slug("-"),
    "slug_": _slug("_"),
    "slug-words": partial(_slug_of_words, ascii_only=True),
    "slug-words-utf8": partial(_slug_of_words, ascii_only=False),
    **{name: _dated(notation) for name, notation in _NOTATIONS.items()},
}


def _html(table: dict[str, str]) -> _Text:
    # "&" comes first in each table, so that the others' own are not escaped again.
    def html(text: str) -> str:
        for char, escaped in table.items():
            text = text.replace(char, escaped)
        return text

    return html


_MIN = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _json(text: str, *, ascii_only: bool = True, slash: bool = False, html: bool = False) -> str:
    inner = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    if slash:
        inner = inner.replace("/", "\\/")
    if html:
        for char in "<>&'":
            inner = inner.replace(char, f"\\u{ord(char):04x}" if slash else f"\\u{ord(char):04X}")
    return inner


_HTML: dict[str, _Text] = {
    "html": _html(_MIN),
    "html-quot": _html(_MIN | {'"': "&quot;"}),
    "html-x27": _html(_MIN | {'"': "&quot;", "'": "&#x27;"}),
    "html-039": _html(_MIN | {'"': "&quot;", "'": "&#039;"}),
    "html-39": _html(_MIN | {'"': "&quot;", "'": "&#39;"}),
    "html-34": _html(_MIN | {'"': "&#34;", "'": "&#39;"}),
    "html-attribute": _html({"&": "&amp;", '"': "&quot;"}),
}
_URL: dict[str, _Text] = {
    "url": lambda text: quote(text, safe=""),
    "url-path": lambda text: quote(text, safe="/"),
    "url-plus": quote_plus,
    "url-form": lambda text: quote(text, safe="*-._ ").replace("~", "%7E").replace(" ", "+"),
    "url-component": lambda text: quote(text, safe="!'()*~"),
    "url-uri": lambda text: quote(text, safe="!#$&'()*+,/:;=?@~"),
}
_JSON: dict[str, _Text] = {
    "json": _json,
    "json-utf8": lambda text: _json(text, ascii_only=False),
    "json-slash": lambda text: _json(text, slash=True),
    "json-html": lambda text: _json(text, ascii_only=False, html=True),
    "json-html-ascii": lambda text: _json(text, html=True),
}


def _digest(algorithm: Callable[[bytes], Any], text: str) -> str:
    return str(algorithm(text.encode("utf-8", "surrogatepass")).hexdigest())


_BASE64: dict[str, _Text] = {
    "base64": lambda text: b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii"),
    "base64-url": lambda text: urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii"),
}
_DIGESTS: dict[str, _Text] = {
    name: partial(_digest, algorithm)
    for name, algorithm in (("md5", md5), ("sha1", sha1), ("sha256", sha256))
}
_MARKUPS = {**_HTML, **_URL, **_JSON, **_BASE64, **_DIGESTS}
# Encodings that occur inside one another: inner first.
_NESTED = (
    *product(_URL, _HTML),
    *product(_JSON, _HTML),
    *product(_HTML, _JSON),
    *product(_URL, _JSON),
    *product(_JSON, _URL),
    *((name, name) for name in (*_HTML, *_URL, *_JSON)),
)
_ORDERS: tuple[tuple[str, ...], ...] = ((), *((name,) for name in _MARKUPS), *_NESTED)

_OUTER: dict[str, tuple[str, ...]] = {
    inner: tuple(outer for first, outer in _NESTED if first == inner) for inner in _MARKUPS
}

_SHORT = 100  # characters of a value whose encodings are kept for other requests

# Most values are words and numbers, which no escape changes.
_SAFE = re.compile(r"[A-Za-z0-9_.-]*")
_ESCAPES = {**_HTML, **_URL, **_JSON}
_SAFE_ORDERS = tuple(
    "".join(f">{name}" for name in order) for order in _ORDERS if _ESCAPES.keys() >= {*order}
)
_CODES = {inner: outers for inner, outers in _OUTER.items() if inner not in _ESCAPES}

NAMES: tuple[str, ...] = tuple(">".join((change, *markups)) for change in _CHANGES for markups in _ORDERS)
"""Names of all encodings; packs refer to them by name."""


@lru_cache(maxsize=4096)  # most values are left as they are by the same changes and markups
def _names(changes: tuple[str, ...], orders: tuple[str, ...]) -> frozenset[str]:
    return frozenset(change + order for change in changes for order in orders)


class Encodings:
    """The encodings of one value, each computed on first use."""

    def __init__(self, value: str) -> None:
        self._texts: dict[str, str | None] = {}
        self._marked_up: dict[tuple[str, str], str | None] = {}
        self._by_bytes: dict[bytes, frozenset[str]] | None = None
        self._value = value

    def text(self, name: str) -> str | None:
        """Return the value under an encoding; None if it cannot be encoded, as a lone surrogate in a URL."""
        if name not in self._texts:
            inner, _, last = name.rpartition(">")
            found = self._mark_up(self.text(inner), last) if inner else _CHANGES[name](self._value)
            self._texts[name] = found
        return self._texts[name]

    def _mark_up(self, text: str | None, markup: str) -> str | None:
        if text is None:
            return None
        step = (text, markup)
        if step not in self._marked_up:  # most changes and markups leave most values as they are
            try:
                self._marked_up[step] = _MARKUPS[markup](text)
            except UnicodeError:
                self._marked_up[step] = None
        return self._marked_up[step]

    def encoded(self, name: str) -> bytes | None:
        """Return the value under an encoding as UTF-8."""
        text = self.text(name)
        return None if text is None else _utf8(text)

    def by_bytes(self) -> dict[bytes, frozenset[str]]:
        """Return all distinct, non-empty encodings of the value, with the names that give them."""
        if self._by_bytes is None:  # each page is searched for all values
            is_short = len(self._value) <= _SHORT
            self._by_bytes = _by_bytes_of(self._value) if is_short else self._all_by_bytes()
        return self._by_bytes

    def _all_by_bytes(self) -> dict[bytes, frozenset[str]]:
        changes: dict[str, list[str]] = {}
        for change in _CHANGES:
            if (text := self.text(change)) is not None:
                changes.setdefault(text, []).append(change)
        found: dict[str, frozenset[str]] = {}
        for changed, same in changes.items():
            for text, orders in self._orders(changed).items():
                names = _names(tuple(same), tuple(orders))  # shared by most values
                found[text] = found[text] | names if text in found else names
        by_bytes = {_utf8(text): names for text, names in found.items()}
        return {encoded: names for encoded, names in by_bytes.items() if encoded}

    def _orders(self, changed: str) -> dict[str, list[str]]:
        """Return all texts that markups make of a changed text, each with the ends of their names."""
        is_safe = _SAFE.fullmatch(changed) is not None
        found: dict[str, list[str]] = {changed: [*_SAFE_ORDERS] if is_safe else [""]}
        for inner, outers in _CODES.items() if is_safe else _OUTER.items():
            text = self._mark_up(changed, inner)
            if text is not None:
                found.setdefault(text, []).append(f">{inner}")
            for outer in outers:
                twice = self._mark_up(text, outer)
                if twice is not None:
                    found.setdefault(twice, []).append(f">{inner}>{outer}")
        return found

    def measure(self, name: str) -> int:
        """Return a length of the value: "bytes" or "chars", of the text as sent or with LF ("lf-bytes")."""
        unit = name.rpartition("-")[2]
        text = self._value.replace("\r\n", "\n") if name != unit else self._value
        return len(text.encode("utf-8", "surrogatepass")) if unit == "bytes" else len(text)

    def agreed(self, names: frozenset[str]) -> bytes | None:
        """Return the value under some encodings if all give the same bytes, else None."""
        agreed = self.encoded(next(iter(names)))
        if agreed:  # UTF-8 keeps different texts different
            return agreed if names <= self.by_bytes()[agreed] else None
        return agreed if all(self.text(name) == "" for name in names) else None


@lru_cache(maxsize=128)  # a site's pages have the same few values again and again
def _by_bytes_of(short: str) -> dict[bytes, frozenset[str]]:
    return Encodings(short)._all_by_bytes()


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode("utf-8")
    except UnicodeError:
        return None
