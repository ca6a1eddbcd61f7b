"""Pictures for a page that carries them itself: each once, as small as it is without losing a pixel.

A page of a report names pictures by number; the file holds one list of data URIs, and the script
puts them in when a page is unfolded. Two files with the same bytes are one picture. WebP without
loss is a third of the size of Chromium's PNG for most pages; where it is not smaller, the PNG stays.
"""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path

from PIL import Image, UnidentifiedImageError

# Pillow's effort: 0.1 s for 1280x720; more effort takes ten times as long for 10% less.
_QUALITY, _METHOD = 50, 3
_WEBP_SIDE = 16_383  # pixels; no WebP is larger


class Shots:
    """The pictures of one page, numbered in order of first sight."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._raw: list[bytes] = []

    def number(self, path: Path | None) -> int | None:
        """Return the number of a picture; None where there is none, or its file is gone."""
        if path is None or not path.is_file():
            return None
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._raw)
            self._raw.append(raw)
        return self._numbers[digest]

    def uris(self) -> list[str]:
        """Return all pictures as data URIs, in order."""
        return [_uri(raw) for raw in self._raw]


def _uri(raw: bytes) -> str:
    smaller = _webp(raw)
    if smaller and len(smaller) < len(raw):
        return f"data:image/webp;base64,{base64.b64encode(smaller).decode()}"
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _webp(raw: bytes) -> bytes:
    """Return a picture as WebP without loss; b"" if it cannot be read or is too large for it."""
    try:
        picture = Image.open(io.BytesIO(raw)).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError):
        return b""
    if max(picture.size) > _WEBP_SIDE:
        return b""
    stream = io.BytesIO()
    picture.save(stream, "WEBP", lossless=True, quality=_QUALITY, method=_METHOD)
    return stream.getvalue()
