"""Digests of bodies as a browser told them, put right when secrets were taken out of those bodies.

A baseline says by digest what each answer was, as the browser got it (`stillweb.browser.bodies`): with the
secrets. The archive holds the body without them, and a replay is to be compared with that; besides, the
digest of a short answer with a password in it would let that password be guessed. So each body that is
changed is noted with both of its digests, and those that stand in baselines are exchanged. So are the
checksums of scripts and styles in documents (`stillweb.browser.outline`), for the same reasons.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress

from stillweb.browser.outline import checksum
from stillweb.model import Response, header

__all__ = ["Digests"]

_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_DIGEST = re.compile(rb'(?<="body": ")[0-9a-f]{64}(?=")')
_CODE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1\b", re.IGNORECASE | re.DOTALL)
_CHECKSUM = re.compile(rb"(?<=\t#code )\d+ [0-9a-f]+$", re.MULTILINE)
_DECLARED = 1024  # bytes of a document in which its charset must be named


class Digests:
    """What became of the digests of bodies that were changed: once, and again when secrets came late."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}

    def note(self, response: Response, before: bytes, after: bytes) -> None:
        """Note what a body without its content coding was, and what is written."""
        for charset in ("", *_charsets(response, before)):
            with suppress(LookupError):  # no charset that is known
                was, made = _digest(before, charset), _digest(after, charset)
                if was != made:
                    self._after[was] = made
                if charset and "html" in response.mime:
                    self._after.update(_checksums(_text(before, charset), _text(after, charset)))

    def of(self, digest: str) -> str:
        """Return the digest of what is written of a body."""
        known = set()
        while digest in self._after and digest not in known:
            known.add(digest)
            digest = self._after[digest]
        return digest

    def exchange(self, resources: bytes) -> bytes:
        """Return a baseline's list of requests with the digests of what is written."""
        return _DIGEST.sub(self._exchanged, resources)

    def exchange_code(self, outline: bytes) -> bytes:
        """Return a baseline's tree of elements with the checksums of what is written."""
        return _CHECKSUM.sub(self._exchanged, outline)

    def _exchanged(self, found: re.Match[bytes]) -> bytes:
        return self.of(found[0].decode()).encode()


def _charsets(response: Response, body: bytes) -> tuple[str, ...]:
    """Return by which charsets a browser may have read a body: as it is told, or by itself."""
    places = (header(response.headers, "content-type"), body[:_DECLARED].decode("latin-1"))
    told = [found[1] for place in places if (found := _CHARSET.search(place))]
    return (*told, "utf-8-sig", "windows-1252")


def _digest(body: bytes, charset: str) -> str:
    """Return the digest of a body, or of its text in UTF-8, as browsers hand texts out."""
    if charset:
        body = _text(body, charset).encode("utf-8", "replace")
    return hashlib.sha256(body).hexdigest()


def _text(body: bytes, charset: str) -> str:
    return codecs.decode(body, charset, "replace").removeprefix("\ufeff")


def _checksums(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield both checksums of each script and style that was changed; secrets change no tags."""
    for was, made in zip(_CODE.findall(before), _CODE.findall(after), strict=False):
        if was != made:
            yield checksum(was[1]), checksum(made[1])
