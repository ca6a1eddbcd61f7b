"""WARC 1.1 records as gzip members, built and serialised by warcio, in memory.

warcio gets a record's block as it stands. Told of an HTTP message's fields instead, it spells
those that are not ASCII anew (percent-encoded, RFC 8187), and what was recorded would no longer
be what was sent. It gets the digests as well, since those that it makes by itself are SHA-1, and
ids and dates, since those are `clock`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from io import BytesIO

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

Fields = Iterable[tuple[str, str]]


def sha256_digest(content: bytes) -> str:
    """Return a digest as our records spell it: `sha256:` and hex."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def warc_member(fields: Fields, block: bytes, content_type: str) -> bytes:
    """Return a record as one gzip member.

    Args:
        fields: WARC header fields in order, WARC-Type first; what UTF-8 cannot spell becomes `?`.
        block: what follows them, kept byte by byte.
        content_type: of the block; it and Content-Length come last.
    """
    named = [(name, value.encode("utf-8", "replace").decode("utf-8")) for name, value in fields]
    named.append(("WARC-Block-Digest", sha256_digest(block)))
    out = BytesIO()
    writer = WARCWriter(out, gzip=True, warc_version="1.1")
    record = writer.create_warc_record(
        "",  # with the URI, warcio would parse the block
        # Of a revisit warcio would write the HTTP head that it parsed, and no block: it is told another type.
        "response" if named[0][1] == "revisit" else named[0][1],
        payload=BytesIO(block),
        length=len(block),
        warc_content_type=content_type,
        warc_headers=StatusAndHeaders("", named, protocol=writer.warc_version),
    )
    writer.write_record(record)
    return out.getvalue()
