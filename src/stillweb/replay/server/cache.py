"""What repeats: whole requests whose answer no session can change, and that answer, ready to be sent.

A browser asks the same in every episode, byte for byte. Parsing is pure, and so is what follows where
the resolver calls a match stable: equal bytes, met where a request may begin, on a connection of the
same kind, under the same pack and policy, lead to the same bytes and leave the session's state as
it was. So the bytes of the request are the key, all of them, and nothing is left out that an answer might
depend on. The session still counts and writes its ledger (docs/decisions/0014-memo.md).

Bounded by bytes, in two generations: when the young one is full it becomes the old one, and what is asked
for again moves back. That is nearly least-recently-used, for the price of a dictionary.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stillweb.http.wire import Event, RequestReceived
from stillweb.model import header

if TYPE_CHECKING:
    from stillweb.collections.pack.reader import Pack
    from stillweb.matching.resolver import Policy
    from stillweb.replay.server.session import LedgerEntry

__all__ = ["LARGEST", "NO_MEMO", "CachedResponse", "Key", "ResponseCache", "cache_of", "may_repeat"]

LARGEST = 64 * 1024
"""Bytes of request and answer beyond which they are not kept: what these cost is then their bytes."""

NO_MEMO = "STILLWEB_NO_MEMO"
"""Environment variable that switches memos off, for those who want to measure them."""

_ROOM = 8 * 1024 * 1024  # of a generation, for each pack: a server may have tens of them
_OVERHEAD = 1024  # bytes of a key and its ledger line, about

Key = tuple[str, bytes]
"""The kind of connection (`Connection.place`), and the bytes of a request."""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """An answer as it goes out, and what the ledger says of it, its number and its duration aside."""

    data: bytes
    line: LedgerEntry


class ResponseCache:
    """Answers that sessions of one pack and one policy give again.

    Attributes:
        policy: under which they were found.
    """

    def __init__(self, policy: Policy | None = None, room: int = _ROOM) -> None:
        self.policy = policy
        self._room = room
        self._size = 0
        self._young: dict[Key, CachedResponse] = {}
        self._old: dict[Key, CachedResponse] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: Key) -> CachedResponse | None:
        """Return what was kept for a request; None if nothing."""
        kept = self._young.get(key)
        if kept is None and (kept := self._old.get(key)) is not None:
            self.keep(key, kept)
        return kept

    def keep(self, key: Key, kept: CachedResponse) -> None:
        """Keep an answer, if it is not too large."""
        size = len(key[1]) + len(kept.data)
        if not self.takes(size):
            return
        size += _OVERHEAD
        if self._size + size > self._room:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = kept
        self._size += size

    def takes(self, size: int) -> bool:
        """Return whether answers of a size are kept at all."""
        return size <= LARGEST and self._room > 0


def may_repeat(event: Event) -> bool:
    """Return whether the bytes of a request, and its place, are all that says what is asked.

    They are not where credentials name the session. Not excluded: bodies, which are part of the bytes, and
    wishes for a WebSocket, of which no match is stable but what `begin` would find for any request.
    """
    return isinstance(event, RequestReceived) and not header(event.headers, "proxy-authorization")


# By pack, which is compared by identity: a newer pack of the same collection begins with nothing.
_memos: WeakKeyDictionary[Pack, list[ResponseCache]] = WeakKeyDictionary()


def cache_of(pack: Pack, policy: Policy) -> ResponseCache:
    """Return the memo that all sessions of this process with that pack and that policy share."""
    memos = _memos.setdefault(pack, [])
    for memo in memos:
        if memo.policy == policy:
            return memo
    memos.append(ResponseCache(policy, 0 if os.environ.get(NO_MEMO) else _ROOM))
    return memos[-1]
