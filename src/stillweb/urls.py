"""URLs in archives: SURT urlkeys, 14-digit timestamps, and wire URLs.

Two spellings must not be mixed. The **urlkey** (SURT, made by the Internet Archive's `surt` library, as pywb
and cdxj-indexer make it) folds case, drops `www.` and sorts the query; it indexes archives. The **wire URL**
keeps everything that a server could distinguish; strict replay matches on it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

BLOB_URL = re.compile(
    r"(blob:(?:null|[^\s\"'<>/]*//[^\s\"'<>/]*)/)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
"""A blob URL in a text; without its group, the UUID, which differs each time."""


class BlobNumbers:
    """Numbers for the UUIDs of blob URLs, in the order of their appearance in texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def write(self, text: str) -> str:
        """Return a text with a number in place of each UUID."""
        return BLOB_URL.sub(self._numbered, text) if "blob:" in text else text

    def _numbered(self, found: re.Match[str]) -> str:
        return f"{found[1]}{self._numbers.setdefault(found[0], len(self._numbers) + 1)}"


_OTHER_SCHEME = {"http": "https", "https": "http"}
_PORT = re.compile(r"[^/?]*:[0-9]+(?:[/?]|$)")
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443"}
# RFC 3986 §2: everything outside these is percent-encoded on the wire (as browsers do, WHATWG URL §1.3).
_NOT_ON_THE_WIRE = re.compile(r"[^\x21\x23-\x3b\x3d\x3f-\x7e]")
_TIMESTAMP = re.compile(r"\d{4,14}")


@lru_cache(maxsize=8192)
def urlkey(url: str) -> str:
    """Return the SURT key of a URL: `https://www.Example.com/A?b=1` gives `com,example)/a?b=1`."""
    from surt import surt  # imports tldextract and requests, which a replay server does not need

    return str(surt(url))


@lru_cache(maxsize=1024)  # a request needs its wire URL for its key, for comparison and for noise
def wire_url(url: str) -> str:
    """Return the absolute URL as a browser would send it, without fragment.

    Scheme and host are in lower case, the default port is dropped, and an empty path becomes `/`. Characters
    that a request line cannot contain are percent-encoded. Path, query order and existing escapes stay
    unchanged, since a server may distinguish them.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    scheme = scheme.lower()
    rest = rest.partition("#")[0]
    cut = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    authority = authority.rpartition("@")[2].lower()
    host, colon, port = authority.rpartition(":")
    # No int(): isdigit() also accepts strings that int() refuses, such as "²" and thousands of digits.
    if colon and (port == "" or (port.isdigit() and port.lstrip("0") == _DEFAULT_PORTS.get(scheme))):
        authority = host
    if not authority.isascii():
        authority = _idna(authority)
    if not path.startswith("/"):
        path = "/" + path
    return f"{scheme}://{authority}{_NOT_ON_THE_WIRE.sub(_escaped, path)}"


def page_address(url: str) -> str:
    """Return the wire URL of a page, with its hash route (`#/users`, `#!users`) but without another fragment.

    Applications with hash routes show a different page for each route. Any other fragment names a place in a
    page. The empty route `#/` is the page without a route.
    """
    address, (_, _, fragment) = wire_url(url), url.partition("#")
    is_route = fragment.startswith(("/", "!")) and fragment.strip("/!")
    return f"{address}#{_NOT_ON_THE_WIRE.sub(_escaped, fragment)}" if is_route else address


def _escaped(found: re.Match[str]) -> str:
    # U+DC80 to U+DCFF stand for bytes of an archive's target URI that were not UTF-8 (PEP 383).
    errors = "surrogateescape" if "\udc80" <= found[0] <= "\udcff" else "replace"
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", errors))


def _idna(authority: str) -> str:
    try:
        return authority.encode("idna").decode("ascii")
    except UnicodeError:
        return authority


@lru_cache(maxsize=8192)  # a harvest needs it for each link, and for the seeds of its scope beside it
def host_of(url: str) -> str:
    """Return the host name of a URL, in lower case, without port; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def origin_of(url: str) -> str:
    """Return scheme, host and non-default port of a URL, as the `Origin` header spells it."""
    scheme, _, rest = wire_url(url).partition("://")
    return f"{scheme}://{re.split(r'[/?]', rest, maxsplit=1)[0]}"


def other_scheme(url: str) -> str | None:
    """Return the wire URL under the other of http and https; None for other schemes and for URLs with a port.

    Browsers upgrade http URLs to https. With a port, the other scheme would name another server.
    """
    scheme, separator, rest = wire_url(url).partition("://")
    other = _OTHER_SCHEME.get(scheme)
    return f"{other}://{rest}" if separator and other and not _PORT.match(rest) else None


def to_timestamp(when: datetime) -> str:
    """Return the 14-digit UTC timestamp of CDX: `20240131235959`."""
    return when.astimezone(UTC).strftime("%Y%m%d%H%M%S")


def from_timestamp(timestamp: str) -> datetime:
    """Return the UTC time of a timestamp of 4 to 14 digits; absent digits take their smallest value.

    Raises:
        ValueError: if it is not a timestamp.
    """
    if not _TIMESTAMP.fullmatch(timestamp) or len(timestamp) % 2:
        raise ValueError(f"not a timestamp of 4 to 14 digits: {timestamp!r}")
    padded = timestamp + "0101000000"[len(timestamp) - 4 :]
    month, day, hour, minute, second = (int(padded[start : start + 2]) for start in range(4, 14, 2))
    return datetime(int(padded[:4]), month, day, hour, minute, second, tzinfo=UTC)
