"""Responses that no session can change, by the bytes of their requests, ready to be sent.

A browser sends the same requests in every episode, byte for byte. Parsing is pure, and so is everything after
it where the resolver calls a match stable. Equal bytes of a request then lead to the same response and leave
the session's state unchanged. Kind of connection, pack and policy must be equal too. So all bytes of the
request are the key. The session still counts the response and writes its ledger
(docs/decisions/0014-memo.md).

The cache is bounded by bytes, in two generations: when the young one is full it replaces the old one, and
entries that are used again move back. This approximates least-recently-used at the price of a dictionary.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stillweb.http.control import LedgerEntry
from stillweb.http.wire import Event, RequestReceived
from stillweb.model import header

if TYPE_CHECKING:
    from stillweb.collections.pack.reader import Pack
    from stillweb.matching.resolver import Policy


LARGEST = 64 * 1024
"""Largest request plus response that is cached, in bytes: the cost of larger ones is their bytes."""

NO_MEMO = "STILLWEB_NO_MEMO"
"""Environment variable that disables the cache, for measurements."""

_GENERATION = 8 * 1024 * 1024  # bytes, for each pack: a server may have tens of them
_OVERHEAD = 1024  # bytes of a key and its ledger entry, approximately

Key = tuple[str, bytes]
"""The kind of connection (`ProxyConnection.origin`), and the bytes of a request."""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A response as sent, and its ledger entry except number and duration."""

    data: bytes
    entry: LedgerEntry


class ResponseCache:
    """Responses that the sessions of one pack and one policy repeat.

    Attributes:
        policy: under which they were found.
    """

    def __init__(self, policy: Policy | None = None, limit: int = _GENERATION) -> None:
        self.policy = policy
        self._limit = limit
        self._size = 0
        self._young: dict[Key, CachedResponse] = {}
        self._old: dict[Key, CachedResponse] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: Key) -> CachedResponse | None:
        """Return the response to a request; None if it is not cached."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.add(key, found)
        return found

    def add(self, key: Key, response: CachedResponse) -> None:
        """Cache a response, if it is not too large."""
        size = len(key[1]) + len(response.data)
        if not self.accepts(size):
            return
        size += _OVERHEAD
        if self._size + size > self._limit:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = response
        self._size += size

    def accepts(self, size: int) -> bool:
        """Return whether responses of a size are cached."""
        return size <= LARGEST and self._limit > 0


def may_repeat(event: Event) -> bool:
    """Return whether the bytes of a request, and its kind of connection, determine what is requested.

    They do not where credentials name the session. Bodies are not excluded, since they are part of the
    bytes. Neither are WebSocket handshakes: their only stable matches are those that any other request
    would get.
    """
    return isinstance(event, RequestReceived) and not header(event.headers, "proxy-authorization")


# By pack, which is compared by identity: a newer pack of the same collection begins with an empty cache.
_caches: WeakKeyDictionary[Pack, list[ResponseCache]] = WeakKeyDictionary()


def cache_of(pack: Pack, policy: Policy) -> ResponseCache:
    """Return the cache that all sessions of this process with that pack and that policy share."""
    caches = _caches.setdefault(pack, [])
    for cache in caches:
        if cache.policy == policy:
            return cache
    caches.append(ResponseCache(policy, 0 if os.environ.get(NO_MEMO) else _GENERATION))
    return caches[-1]
