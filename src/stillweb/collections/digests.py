"""Verify WARC-Block-Digest and WARC-Payload-Digest (WARC 1.1 §5.8, §5.9) in the spellings that are found.

`sha1:` with base32 is what most write, `sha256:` with base32 or hex what others do. The payload
is meant to be the entity body, and tools differ on what that is: the block after the head, the same
without its chunks, or without its content encoding. A digest that fits one of these is right.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator

from stillweb.collections.frames import is_socket_url
from stillweb.collections.httpblocks import dechunk, decode_body, payload_start
from stillweb.collections.records import WarcRecord
from stillweb.model import header

_ALGORITHMS: dict[str, Callable[[bytes], hashlib._Hash]] = {
    "md5": hashlib.md5,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "sha384": hashlib.sha384,
    "sha512": hashlib.sha512,
}


def matches(stated: str, content: bytes) -> bool | None:
    """Whether a stated digest is that of the content; None for an algorithm we do not know."""
    name, colon, value = stated.partition(":")
    make = _ALGORITHMS.get(name.lower().replace("-", ""))
    if not colon or not make:
        return None
    digest = make(content)
    base32 = base64.b32encode(digest.digest()).decode("ascii")
    return value.lower() == digest.hexdigest() or value.upper().rstrip("=") == base32.rstrip("=")


def problems(record: WarcRecord) -> Iterator[str]:
    """Yield what is wrong with a record's digests, a clause each."""
    if matches(record.get("WARC-Block-Digest"), record.block) is False:
        yield "WARC-Block-Digest does not fit the block"
    stated = record.get("WARC-Payload-Digest")
    # A revisit's is that of its original's payload (WARC 1.1 §6.7.2).
    if not stated or record.type == "revisit" or matches(stated, b"") is None:
        return
    if not any(matches(stated, payload) for payload in _payloads(record)):
        whole = matches(stated, record.block)
        yield "WARC-Payload-Digest " + ("is the block's" if whole else "does not fit the payload")


def _payloads(record: WarcRecord) -> Iterator[bytes]:
    if record.type not in ("response", "request") or is_socket_url(record.target_uri):
        yield record.block
        return
    body = record.block[payload_start(record.block) :]
    yield body
    plain = dechunk(body)
    yield plain
    head = record.block[: len(record.block) - len(body)].decode("latin-1")
    fields = tuple(
        (k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in head.splitlines()[1:])
    )
    encoding = header(fields, "content-encoding")
    if encoding and (decoded := decode_body(plain, encoding)) is not None:
        yield decoded
