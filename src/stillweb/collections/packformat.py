"""The file layout of a pack, shared by its writer and its reader; docs/decisions/0003-pack-format.md.

    digest         sha256 of manifest.json, hex: the environment id
    manifest.json  canonical JSON: versions, counts, what the collection says of itself, size and
                   sha256 of the other files
    index.bin      magic, count; count rows (request key, offset in entries.bin), sorted by key, then
                   recorded order; count row numbers (u32), sorted by site, scheme, method, row
    entries.bin    magic; one record per entry, in recorded order: check, fixed fields, texts, head
    bodies.bin     magic; bodies once per sha256, in order of their first use

Index rows are of fixed size and are searched where they lie in the mmap; nothing is parsed at
open. All integers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b, sha256
from mmap import mmap

from stillweb.collections.keys import KEY_SIZE
from stillweb.urls import wire_url

VERSION = 1
DIGEST, MANIFEST, INDEX, ENTRIES, BODIES = "digest", "manifest.json", "index.bin", "entries.bin", "bodies.bin"

INDEX_HEADER = struct.Struct("<8sQ")
INDEX_ROW = struct.Struct(f"<{KEY_SIZE}sQ")
URL_ROW = struct.Struct("<I")
MAGIC = {name: b"SW" + name[:3].encode() + b"\0\0" + bytes([VERSION]) for name in (INDEX, ENTRIES, BODIES)}
# The index is digested in blocks, so that a defect can be told by its place.
BLOCK = 1 << 18

CHECK_SIZE = 8
# timestamp, order, epoch, body offset and length, status, lengths of method, mime, encoding, url and
# head, key, sha256 of the body
FIXED = struct.Struct(f"<QIIQQHHHHII{KEY_SIZE}s32s")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of entries.bin; `body_offset` is a place in bodies.bin."""

    key: bytes
    method: str
    url: str
    timestamp: str
    status: int
    mime: str
    encoding: str
    head: bytes
    body_sha256: bytes
    body_length: int
    body_offset: int = 0
    order: int = 0
    epoch: int = 0

    def pack(self) -> bytes:
        """Return the record as entries.bin holds it, behind its check."""
        texts = [
            text.encode("utf-8", "surrogatepass")
            for text in (self.method, self.mime, self.encoding, self.url)
        ]
        fixed = FIXED.pack(
            int(self.timestamp),
            self.order,
            self.epoch,
            self.body_offset,
            self.body_length,
            self.status,
            *(len(text) for text in texts),
            len(self.head),
            self.key,
            self.body_sha256,
        )
        content = b"".join((fixed, *texts, self.head))
        return check_of(content) + content

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Record:
        """Read what `pack` made; the check is the caller's to compare."""
        fixed = FIXED.unpack_from(packed, CHECK_SIZE)
        at = CHECK_SIZE + FIXED.size
        texts = []
        for length in fixed[6:10]:
            texts.append(bytes(packed[at : at + length]).decode("utf-8", "surrogatepass"))
            at += length
        method, mime, encoding, url = texts
        return cls(
            key=fixed[11],
            method=method,
            url=url,
            timestamp=f"{fixed[0]:014d}",
            status=fixed[5],
            mime=mime,
            encoding=encoding,
            head=bytes(packed[at : at + fixed[10]]),
            body_sha256=fixed[12],
            body_length=fixed[4],
            body_offset=fixed[3],
            order=fixed[1],
            epoch=fixed[2],
        )


def record_size(packed: mmap, at: int) -> int:
    """Return the size of the record at an offset, as its fixed fields tell it."""
    fixed = FIXED.unpack_from(packed, at + CHECK_SIZE)
    texts: int = sum(fixed[6:11])
    return CHECK_SIZE + FIXED.size + texts


def check_of(content: bytes) -> bytes:
    """Return the check that precedes a record in entries.bin."""
    return blake2b(content, digest_size=CHECK_SIZE).digest()


def block_digests(content: memoryview) -> list[str]:
    """Return the sha256 of each block, hex."""
    return [sha256(content[at : at + BLOCK]).hexdigest() for at in range(0, len(content), BLOCK)]


def site(url: str) -> tuple[bytes, bytes]:
    """Return host, port, path and query of a URL, and its scheme: the order of the URL table.

    The scheme comes last, so that http and https of one place stand together.
    """
    scheme, separator, rest = wire_url(url).partition("://")
    if not separator:
        scheme, rest = "", scheme
    return rest.encode("utf-8", "surrogatepass"), scheme.encode("utf-8", "surrogatepass")
