"""The file layout of a pack, shared by writer and reader; docs/decisions/0011-pack-version-2.md.

    digest         sha256 of manifest.json, hex: the environment id
    manifest.json  canonical JSON: versions, counts, the collection's manifest, sizes of index and entries,
                   sha256 of the entries and of each block of the index
    index.bin      magic, number of entries, number of keys; fan-out: for each value of a key's leading
                   bits the position of its first key (u32); keys, sorted: high and low half and the row of
                   the entry (u64 each); offsets in entries.bin by row (u64); rows by site, scheme, method
                   (u32)
    entries.bin    magic; one record per entry, in recorded order: check, fixed fields, texts, head
    places.bin     locations of the bodies (`bodies`). Not covered by the digest, since it depends on other
                   packs in the store
    sources.json   size of each source file, to detect a stale pack. Not covered by the digest: an archive
                   with another compression is the same environment
    origins.bin    location of each row's record in the archive, so that the next seal reads only what is
                   new (`packed_origins`). Not covered by the digest either

The row of an entry is its position in recorded order; an entry has one key and any number of aliases. Keys
are uniform hashes, so the fan-out leaves about ten keys to search, for any number of keys. Bodies are
numbered in order of first use. Tables are searched in the mmap, without a Python object per entry. All
integers are little-endian, as the machine must be.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from mmap import mmap
from pathlib import Path

from stillweb.errors import MalformedPack
from stillweb.matching.captures import VARY_SIZE, Varies
from stillweb.matching.keys import KEY_SIZE
from stillweb.urls import wire_url

VERSION = 2
DIGEST, MANIFEST, INDEX, ENTRIES = "digest", "manifest.json", "index.bin", "entries.bin"
PLACES, BODIES, SOURCES, ORIGINS = "places.bin", "bodies.bin", "sources.json", "origins.bin"

INDEX_HEADER = struct.Struct("<8sQQ")
KEY_HALVES = struct.Struct(">QQ")  # big-endian, so that numbers sort like the bytes of the keys
MAGIC = {
    name: b"SW" + name[:3].encode() + b"\0\0" + bytes([VERSION]) for name in (INDEX, ENTRIES, PLACES, BODIES)
}
# A block of the index is verified when it is first read. Larger blocks are verified less often, smaller ones
# at a lower cost each: 0.2 ms.
BLOCK_BITS = 18
BLOCK = 1 << BLOCK_BITS

CHECK_SIZE = 8
# timestamp, order, epoch, status, number and length of the body, key, sha256 of the body; then lengths
FIXED = struct.Struct(f"<QIIIIQ{KEY_SIZE}s32s")
_IN_ORDER = struct.Struct("<II")  # order and epoch, known once all entries are
_ORDER_AT = CHECK_SIZE + 8
_NUMBER = struct.Struct("<I")
_NUMBER_AT = CHECK_SIZE + 20
_STATUS_AT = CHECK_SIZE + 16
_KEY_AT = CHECK_SIZE + 32
# of site, scheme, method, mime, encoding, url, varies and head, which follow in this order
LENGTHS = struct.Struct("<8I")
LENGTHS_AT = CHECK_SIZE + FIXED.size
TEXTS_AT = LENGTHS_AT + LENGTHS.size
_KEYS_A_BUCKET = 8
_ORIGINS_CHECK = 32
_SEAL_AGAIN = "seal it again: stillweb collections seal NAME"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of entries.bin; `body` is the number of its body."""

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
    body: int = 0
    order: int = 0
    epoch: int = 0
    varies: Varies = ()
    referer: bytes = b""

    def pack(self) -> bytes:
        """Serialise the record for entries.bin, with its check first."""
        place, scheme = site(self.url)
        method, mime, encoding, url = (
            text.encode("utf-8", "surrogatepass")
            for text in (self.method, self.mime, self.encoding, self.url)
        )
        spelled = b"" if url == _joined(place, scheme) else url
        texts = (place, scheme, method, mime, encoding, spelled, _pack_varies(self.varies, self.referer))
        fixed = FIXED.pack(
            int(self.timestamp),
            self.order,
            self.epoch,
            self.status,
            self.body,
            self.body_length,
            self.key,
            self.body_sha256,
        )
        content = b"".join((fixed, LENGTHS.pack(*map(len, texts), len(self.head)), *texts, self.head))
        return check_of(content) + content

    @classmethod
    def unpack(cls, packed: bytes) -> Record:
        """Parse a serialised record; the caller compares the check."""
        fixed = FIXED.unpack_from(packed, CHECK_SIZE)
        texts = []
        at = TEXTS_AT
        for length in LENGTHS.unpack_from(packed, LENGTHS_AT):
            texts.append(packed[at : at + length])
            at += length
        place, scheme, method, mime, encoding, url, fields, head = texts
        varies, referer = _unpack_varies(fields)
        return cls(
            key=fixed[6],
            method=method.decode("utf-8", "surrogatepass"),
            url=(url or _joined(place, scheme)).decode("utf-8", "surrogatepass"),
            timestamp=f"{fixed[0]:014d}",
            status=fixed[3],
            mime=mime.decode("utf-8", "surrogatepass"),
            encoding=encoding.decode("utf-8", "surrogatepass"),
            head=head,
            body_sha256=fixed[7],
            body_length=fixed[5],
            body=fixed[4],
            order=fixed[1],
            epoch=fixed[2],
            varies=varies,
            referer=referer,
        )


def _joined(place: bytes, scheme: bytes) -> bytes:
    return scheme + b"://" + place if scheme else place


def _pack_varies(varies: Varies, referer: bytes) -> bytes:
    """Serialise the fields of a recorded request; Referer has no name, as it says nothing of the response."""
    packed = [name.encode("utf-8", "surrogatepass") + b"\0" + digest for name, digest in sorted(varies)]
    return b"".join([b"\0" + referer, *packed] if referer else packed)


def _unpack_varies(packed: bytes) -> tuple[Varies, bytes]:
    varies, referer = [], b""
    at = 0
    while at < len(packed):
        end = packed.index(b"\0", at)
        name = packed[at:end].decode("utf-8", "surrogatepass")
        at = end + 1 + VARY_SIZE
        if name:
            varies.append((name, packed[end + 1 : at]))
        else:
            referer = packed[end + 1 : at]
    return tuple(varies), referer


def fanout_bits(keys: int) -> int:
    """Return the number of leading bits of the fan-out: about ten keys per bucket."""
    return max(0, (keys // _KEYS_A_BUCKET).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Offsets of the tables in index.bin."""

    bits: int
    fanout: int
    keys: int
    offsets: int
    by_url: int
    end: int

    @classmethod
    def of(cls, entries: int, keys: int) -> IndexPlan:
        bits = fanout_bits(keys)
        fanout = INDEX_HEADER.size
        at = fanout + 4 * ((1 << bits) + 1)
        at += -at % 8
        offsets = at + 24 * keys
        by_url = offsets + 8 * entries
        return cls(bits, fanout, at, offsets, by_url, by_url + 4 * entries)


def record_size(entries: mmap, at: int) -> int:
    """Return the stated size of the record at an offset."""
    texts: int = sum(LENGTHS.unpack_from(entries, at + LENGTHS_AT))
    return TEXTS_AT + texts


def site_at(entries: mmap, at: int) -> bytes:
    """Return the site of the record at an offset without comparing the check: searches read many."""
    length = LENGTHS.unpack_from(entries, at + LENGTHS_AT)[0]
    return entries[at + TEXTS_AT : at + TEXTS_AT + length]


def scheme_and_method_at(entries: mmap, at: int) -> tuple[bytes, bytes]:
    """Return scheme and method of the record at an offset without comparing the check."""
    site_length, scheme_length, method_length = LENGTHS.unpack_from(entries, at + LENGTHS_AT)[:3]
    at += TEXTS_AT + site_length
    method_at = at + scheme_length
    return entries[at:method_at], entries[method_at : method_at + method_length]


def check_of(content: bytes) -> bytes:
    """Return the check that precedes a record in entries.bin."""
    return blake2b(content, digest_size=CHECK_SIZE).digest()


def ordered(packed: bytes, order: int, epoch: int, body: int) -> bytes:
    """Return a serialised record with the fields that depend on other entries."""
    patched = bytearray(packed)
    _IN_ORDER.pack_into(patched, _ORDER_AT, order, epoch)
    _NUMBER.pack_into(patched, _NUMBER_AT, body)
    patched[:CHECK_SIZE] = check_of(bytes(patched[CHECK_SIZE:]))
    return bytes(patched)


def key_at(entries: mmap, at: int) -> bytes:
    return entries[at + _KEY_AT : at + _KEY_AT + KEY_SIZE]


def status_at(entries: mmap, at: int) -> int:
    status: int = _NUMBER.unpack_from(entries, at + _STATUS_AT)[0]
    return status


def body_sha256_at(entries: mmap, at: int) -> bytes:
    return entries[at + LENGTHS_AT - 32 : at + LENGTHS_AT]


def site(url: str) -> tuple[bytes, bytes]:
    """Return host, port, path and query of a URL, and its scheme: the sort order of the URL table.

    The scheme comes last, so that http and https of one path are adjacent.
    """
    scheme, separator, rest = wire_url(url).partition("://")
    if not separator:
        scheme, rest = "", scheme
    return rest.encode("utf-8", "surrogatepass"), scheme.encode("utf-8", "surrogatepass")


def packed_origins(environment_id: str, files: Sequence[str], origins: array[int]) -> bytes:
    """Return origins.bin: a check of the rest and the environment id, names of archive files, the origins.

    Args:
        origins: the number of the file and the offset in it, for each row; -1 twice if the row depends on
            more than its record.
    """
    names = json.dumps(files).encode()
    content = _NUMBER.pack(len(names)) + names + origins.tobytes()
    return sha256(environment_id.encode() + content).digest() + content


def unpack_origins(packed: bytes, environment_id: str) -> tuple[list[str], array[int]]:
    """Return the files and the numbers of an origins.bin; nothing if it is not that of this pack."""
    check, content = packed[:_ORIGINS_CHECK], packed[_ORIGINS_CHECK:]
    if sha256(environment_id.encode() + content).digest() != check:
        return [], array("q")
    end = _NUMBER.size + _NUMBER.unpack_from(content)[0]
    return json.loads(content[_NUMBER.size : end]), array("q", content[end:])


def malformed(message: str, path: Path, offset: int | None = None) -> MalformedPack:
    """Return the error for a pack that differs from the sealed one."""
    return MalformedPack(message, path=path, offset=offset, hint=_SEAL_AGAIN)
