"""Pictures by SHA-256, so that responses carry references and clients fetch only the pictures they need.

The most recent pictures are in memory, up to a number of bytes. Older ones are read from the trajectories, if
the server writes them (`--trajectories`).
"""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict

from PIL import Image

from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.errors import TaskError

_WIDTH = 480  # pixels


class PictureStore:
    """A bounded store.

    Args:
        limit: bytes in memory; one picture is kept even if it is larger.
        store: files of the trajectories.
    """

    def __init__(self, limit: int, store: ContentFiles | None = None) -> None:
        self._limit = limit
        self._store = store
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._recent)

    def put(self, body: bytes) -> str:
        digest = hashlib.sha256(body).hexdigest()
        if digest in self._recent:
            self._recent.move_to_end(digest)
            return digest
        self._recent[digest] = body
        self.bytes += len(body)
        while self.bytes > self._limit and len(self._recent) > 1:
            self.bytes -= len(self._recent.popitem(last=False)[1])
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return a picture, or None if it is unknown or was dropped."""
        if body := self._recent.get(digest):
            self._recent.move_to_end(digest)
            return body
        try:
            return self._store.get(digest, "png") if self._store else None
        except TaskError:
            return None


def thumbnail_of(picture: bytes | None) -> bytes:
    """Return a screenshot as a JPEG of 480 pixels in width, cut at the height of a 16:9 picture."""
    with Image.open(io.BytesIO(picture or b"")) as image:
        height = min(image.height, image.width * 9 // 16)
        top = image.convert("RGB").crop((0, 0, image.width, height))
        top.thumbnail((_WIDTH, _WIDTH))
    body = io.BytesIO()
    top.save(body, "JPEG", quality=75)
    return body.getvalue()
