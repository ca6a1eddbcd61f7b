"""Digests of bodies that need not be asked for again: pages of a site share most of what they embed.

A browser is asked for each body, since only it knows what it made of the bytes.
Where all answers to a URL were the same so far, byte for byte, it made the same of them: what it said once
holds for each. A text that is not ASCII is asked for each time, since its charset may be that of the document
around it.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from stillweb.browser.activity import Requested
from stillweb.model import Exchange, header
from stillweb.urls import wire_url

__all__ = ["SameBodies", "mark_of"]

_NOT_THE_SAME = b""
_NO_TEXT = frozenset(("image", "font"))


class SameBodies:
    """What came of the requests that went through a recording proxy, as far as it was always the same.

    An answer that is under way may differ from those before it, and the browser may be through with it first.
    """

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        self._marks: dict[str, bytes] = {}
        self._digests: dict[tuple[str, str], str] = {}

    def begin(self, url: str) -> None:
        """A request has been made."""
        self._under_way[url] += 1

    def end(self, url: str, mark: bytes = _NOT_THE_SAME) -> None:
        """It is over; `mark` tells its answer from others, and is left out where there was no whole one."""
        self._under_way[url] -= 1
        if not self._under_way[url]:
            del self._under_way[url]
        if self._marks.setdefault(url, mark) != mark:
            self._marks[url] = _NOT_THE_SAME

    def recall(self, entry: Requested) -> str:
        """Return what the browser's digest of an answer would be, "" if that is not certain."""
        url = wire_url(entry.url)
        return self._digests.get((url, entry.resource_type), "") if self._is_same(url) else ""

    def learn(self, entry: Requested, body: bytes) -> None:
        """Remember the digest of what a browser gave for a body."""
        url = wire_url(entry.url)
        if self._is_same(url) and (entry.resource_type in _NO_TEXT or body.isascii()):
            self._digests[url, entry.resource_type] = entry.body

    def _is_same(self, url: str) -> bool:
        return bool(self._marks.get(url)) and url not in self._under_way


def mark_of(exchange: Exchange) -> bytes:
    """Return what tells an answer from others to its URL: all that a browser makes a text from."""
    request, response = exchange.request, exchange.response
    told = (header(response.headers, name) for name in ("content-type", "content-encoding"))
    made = hashlib.sha256("\n".join((request.method, str(response.status), *told)).encode("utf-8", "replace"))
    made.update(b"\n" + response.raw_body)
    return made.digest()
