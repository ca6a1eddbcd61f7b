"""Values that writer, reader and sealing of packs share."""

from __future__ import annotations

from dataclasses import dataclass

from stillweb.matching.captures import Varies
from stillweb.matching.keys import request_key
from stillweb.model import Response


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One response for a pack; recorded order is (timestamp, source, offset).

    Attributes:
        key: `request_key` of the request.
        url: of the request, as recorded.
        timestamp: 14 digits UTC.
        response: complete; never a 304 or a revisit.
        source, offset: where it was archived.
        aliases: further keys of 16 bytes under which the entry is found.
        varies: lower-case names of the request fields that the response depends on, each with `vary_digest`
            of the recorded request's value.
        referer: `vary_digest` of the recorded Referer, b"" without one and for navigations.
    """

    key: bytes
    method: str
    url: str
    timestamp: str
    response: Response
    source: str = ""
    offset: int = 0
    aliases: tuple[bytes, ...] = ()
    varies: Varies = ()
    referer: bytes = b""

    @classmethod
    def of(cls, method: str, url: str, response: Response, timestamp: str = "20260101000000") -> PackEntry:
        """Return the entry of a request without body."""
        return cls(request_key(method, url), method, url, timestamp, response)


@dataclass(frozen=True, slots=True)
class PackInfo:
    """Result of `build_pack` or `seal`; `bytes` is the size of the digested files and the bodies."""

    environment_id: str
    entries: int
    bodies: int
    bytes: int
    warnings: tuple[str, ...] = ()
