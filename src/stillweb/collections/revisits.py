"""Which answers of a collection need no second copy of their body: the originals that revisits refer to.

A revisit is written for a GET that answered 200 with a body that its URL answered before (WARC 1.1 §6.7,
profile identical-payload-digest): head and request as received, and where the body lies. Of one URL
only: what another URL said is nothing that a reader of this one should have to find. Small bodies are
written again, since the fields of a revisit would take as much room.
"""

from __future__ import annotations

from http import HTTPStatus

from stillweb.collections.layout import Collection
from stillweb.collections.warcdates import iso_date
from stillweb.model import Capture, Exchange

__all__ = ["REVISIT", "Bodies", "revisit_fields"]

_IDENTICAL = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
REVISIT = "warc/revisit"
_SMALL = 1024


class Bodies:
    """The bodies that a collection has, by URL and digest, with the time of their first answer."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._first: dict[tuple[str, str], str] | None = None

    def original(self, exchange: Exchange, digest: str) -> str:
        """Return the time at which this very body was answered before, 14 digits; "" if it was not."""
        if not _repeats(exchange):
            return ""
        return self._known().get((exchange.request.url, digest), "")

    def add(self, capture: Capture) -> None:
        """Note an answer that was written with its body."""
        if capture.method == "GET" and capture.status == HTTPStatus.OK and capture.mime != REVISIT:
            self._known().setdefault((capture.url, capture.digest), capture.timestamp)

    def _known(self) -> dict[tuple[str, str], str]:
        if self._first is None:
            self._first = {}
            for capture in self._collection.captures():
                self.add(capture)
        return self._first


def _repeats(exchange: Exchange) -> bool:
    request, response = exchange.request, exchange.response
    return request.method == "GET" and response.status == HTTPStatus.OK and len(response.raw_body) >= _SMALL


def revisit_fields(url: str, timestamp: str) -> tuple[tuple[str, str], ...]:
    """Return the WARC fields by which a revisit says where its body lies."""
    return (
        ("WARC-Profile", _IDENTICAL),
        ("WARC-Refers-To-Target-URI", url),
        ("WARC-Refers-To-Date", iso_date(timestamp)),
    )
