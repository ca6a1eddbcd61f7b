"""Cookies of recorded requests and responses (RFC 6265). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import mktime_tz, parsedate_tz

from stillweb.model import Request, header
from stillweb.urls import from_timestamp

_FIELD = re.compile(rb"(?im)^set-cookie:[^\r\n]*")
_PAIR = re.compile(rb"(?i)set-cookie:[ \t]*([^=;]+)=([^;]*)")
_END = re.compile(rb";[ \t]*(expires|max-age)[ \t]*=[ \t]*([^;]*)", re.IGNORECASE)
_AGE = re.compile(rb"-?\d+")


def cookies_sent(request: Request) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in header(request.headers, "cookie").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def cookies_set(head: bytes) -> dict[str, str]:
    return {name: value for name, value, _ in _cookies(head)}


def cookies_deleted(head: bytes, timestamp: str) -> frozenset[str]:
    """Return the names of cookies that a response of a time (14 digits UTC) deletes (RFC 6265 §5.3)."""
    return frozenset(name for name, _, field in _cookies(head) if _is_deleted(field, timestamp))


def without_ends(head: bytes, timestamp: str) -> bytes:
    """Return a head whose cookies have no end, except those that it deletes.

    Browsers end a cookie by their own clock, which has left the time of the recording behind: `Expires` of an
    old recording is past, and the browser would reject the cookie. js/time.js does the same with cookies of
    scripts.

    Args:
        timestamp: time of the recorded response, 14 digits UTC.
    """
    return _FIELD.sub(
        lambda field: field[0] if _is_deleted(field[0], timestamp) else _END.sub(b"", field[0]), head
    )


def _cookies(head: bytes) -> Iterator[tuple[str, str, bytes]]:
    for field in _FIELD.findall(head):
        if pair := _PAIR.match(field):
            yield pair[1].decode("latin-1"), pair[2].decode("latin-1"), field


def _is_deleted(field: bytes, timestamp: str) -> bool:
    ends = {name.lower(): value.strip() for name, value in _END.findall(field)}
    if _AGE.fullmatch(age := ends.get(b"max-age", b"")):
        return int(age) <= 0
    date = parsedate_tz(ends.get(b"expires", b"").decode("latin-1"))  # also of RFC 850
    try:
        return date is not None and mktime_tz(date) <= from_timestamp(timestamp).timestamp()
    except (ValueError, OverflowError):  # no such day
        return False
