"""Connections of Engine.IO (socket.io) by long polling: one recorded conversation at a time.

The handshake's answer names the connection (`sid`), which each later poll and the WebSocket upgrade repeat. A
page opens connections in another order than the recorded visits did, and what it sends first shows which
recorded connection it needs. From there on, its polls and its upgrade get the answers of that connection. A
poll gets the next recorded answer of its connection. An answer to a message that this page has not sent is a
miss, or the recorded noop. So is a poll past the end: another answer would deliver a message twice. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from stillweb.http.codec import decode
from stillweb.model import Request

if TYPE_CHECKING:
    from stillweb.matching.captures import Candidate, Entry

PATH = re.compile(r"(?:/[^/*?\[\]]+)*/(?:socket|engine)\.io/")
_SID = re.compile(rb'\A(?:\d+:)?0\{"sid":"([^"\\]+)"')
_CLOSE, _NOOP = b"1", b"6"
_ROWS = 500  # before a connection's first poll that are searched for messages which the page has not sent
_QUERY_SID = re.compile(r"(?<=[?&]sid=)[^&#]*")
# Packets (engine.io-protocol): pong, noop and the like, and that a namespace is connected or not.
_CONTROL = re.compile(rb"(?:[136]|2(?:probe)?|4[014][^\x1e]*)(?:\x1e(?:[136]|2|4[014][^\x1e]*))*")


@lru_cache(maxsize=4096)
def is_transport(url: str) -> bool:
    """Return True for a poll or a handshake of Engine.IO."""
    if ".io/" not in url:
        return False
    parts = urlsplit(url)
    return bool(PATH.fullmatch(parts.path)) and {"EIO", "transport"} <= dict(parse_qsl(parts.query)).keys()


def sid_of(url: str) -> str:
    """Return the connection that an Engine.IO URL names; "" for the first poll, and for other URLs."""
    found = _QUERY_SID.search(url) if is_transport(url) else None
    return found[0] if found else ""


def closing(request: Request) -> str:
    """Return a reason if a request ends a connection, whose answer no page uses; else ""."""
    ends = request.method == "POST" and request.raw_body == _CLOSE and is_transport(request.url)
    return "end of a connection" if ends else ""


@dataclass(slots=True)
class _Connection:
    """A connection of a session.

    Attributes:
        sid: of the recorded connection that it continues.
        polls: rows of the answers that the page has received.
        sent: rows of the messages that the page has sent.
    """

    sid: str
    polls: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)


@dataclass(slots=True)
class PolledConnections:
    """The connections of one session, by the `sid` that its handshakes gave."""

    _open: dict[str, _Connection] = field(default_factory=dict)

    def renamed(self, url: str) -> str:
        """Return the URL under the recorded connection that the session's connection continues."""
        own = sid_of(url)
        known = self._open.get(own) if own else None
        return _QUERY_SID.sub(known.sid, url) if known and known.sid != own else url

    def continued(self, request: Request) -> Request:
        """Return a request under `renamed`."""
        url = self.renamed(request.url) if self._open else request.url
        return request if url == request.url else replace(request, url=url)

    def same(self, url: str, candidates: list[Candidate]) -> list[Candidate]:
        """Return the captures of the same recorded connection, if any of them are."""
        sid = sid_of(url)
        same = [each for each in candidates if sid_of(each.entry.url) == sid] if sid else []
        return same or candidates

    def next_poll(
        self, url: str, ordered: Sequence[Candidate], entry_of: Callable[[int], Entry]
    ) -> Candidate | str:
        """Return the answer to the next poll of a connection, or why it has none.

        Args:
            url: as the page requests it.
            ordered: polls of the recorded connection.
            entry_of: returns the capture in a row; rows are in recorded order.
        """
        known = self._open.get(own := sid_of(url), _Connection(own))
        left = [each for each in ordered if each.entry.order not in known.polls]
        if not left:
            return _noop(ordered) or f"the recorded connection has {len(ordered)} answers to polls"
        if _CONTROL.fullmatch(_body(left[0].entry)):
            return left[0]
        before = range(max(0, ordered[0].entry.order - _ROWS), left[0].entry.order)
        unsent = (row for row in before if row not in known.sent and _is_message(entry_of(row), known.sid))
        if len(before) <= 2 * _ROWS and next(unsent, None) is None:
            return left[0]
        return _noop(ordered) or "recorded after a message that the page has not sent"

    def note(self, request: Request, entry: Entry) -> bool:
        """Note that an entry was served; return True if it is a message of another connection than recorded.

        Such a message has another place in the order of recorded mutations than the session's own.
        """
        if not is_transport(request.url):
            return False
        own, recorded = sid_of(request.url), sid_of(entry.url)
        if not own:
            if found := _SID.match(_body(entry)):
                given = found[1].decode("latin-1")
                self._open[given] = _Connection(given)
            return False
        known = self._open.setdefault(own, _Connection(own))
        if request.method != "POST":
            known.polls.add(entry.order)
            return False
        if known.sid != recorded:
            known = self._open[own] = _Connection(recorded)
        known.sent.add(entry.order)
        return recorded != own


def _noop(polls: Sequence[Candidate]) -> Candidate | None:
    """Return a poll that only ends: a page may change to its WebSocket sooner or later than recorded."""
    return next((each for each in polls if _body(each.entry) == _NOOP), None)


def _is_message(entry: Entry, sid: str) -> bool:
    return entry.method == "POST" and sid_of(entry.url) == sid


def _body(entry: Entry) -> bytes:
    return decode(bytes(entry.body), entry.encoding) or b""
