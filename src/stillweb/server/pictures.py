"""Pictures by the SHA-256 of what they hold, so that answers carry references and who wants one fetches it.

The most recent ones are kept in memory, up to a number of bytes; where episodes are written down
(`--trajectories`), older ones are found there.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict

from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.errors import TaskError

__all__ = ["PictureStore"]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class PictureStore:
    """A bounded store.

    Args:
        limit: bytes in memory; one picture is kept even if it is larger.
        store: of the trajectories, if there is one.
    """

    def __init__(self, limit: int, store: ContentFiles | None = None) -> None:
        self._limit = limit
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, body: bytes) -> str:
        """Keep a picture; return its digest."""
        digest = hashlib.sha256(body).hexdigest()
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return digest
        self._kept[digest] = body
        self.bytes += len(body)
        while self.bytes > self._limit and len(self._kept) > 1:
            self.bytes -= len(self._kept.popitem(last=False)[1])
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return a picture; None if it is not known, or not any more."""
        if body := self._kept.get(digest):
            self._kept.move_to_end(digest)
            return body
        if self._store is None or not _DIGEST.fullmatch(digest):
            return None
        try:
            return self._store.get(digest, "png")
        except TaskError:
            return None
