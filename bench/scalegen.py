"""Write a large collection fast: WARCs as the recorder writes them, with bodies that hardly compress.

Everything follows from the number of a capture, so that a bench knows what it may request. In a hundred
captures two are POSTs with a JSON body and five repeat an earlier body.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.matching.keys import request_key

HOSTS = 97
FILE_SIZE = 1_000_000_000
_WORDS = 20_000  # different words of all pages, as likely as their rank is small
_MIMES = ("text/html; charset=utf-8", "image/webp", "application/json", "text/css", "font/woff2")
_HEAD = (
    "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    "Content-Type: {mime}\r\nContent-Length: {length}\r\n"
    'Cache-Control: public, max-age=600\r\nETag: "{number:x}"\r\nServer: nginx\r\nVary: Accept-Encoding\r\n'
    "Strict-Transport-Security: max-age=31536000\r\nX-Request-Id: {number:032x}\r\n\r\n"
)
_REQUESTED = (
    "{method} {target} HTTP/1.1\r\nHost: {host}\r\n"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n"
    "Accept-Language: en-US,en;q=0.9\r\nReferer: http://{host}/\r\n{more}\r\n"
)


@dataclass(frozen=True, slots=True)
class Requested:
    """The request of capture `number`."""

    method: str
    url: str
    body: bytes

    @classmethod
    def of(cls, number: int) -> Requested:
        host = f"site{number % HOSTS:02}.test"
        if number % 50 == 7:
            query = {
                "query": "query item($id: Int) { item(id: $id) { title price } }",
                "variables": {"id": number},
            }
            return cls("POST", f"http://{host}/api/graphql", json.dumps(query).encode())
        spread = number * 2654435761 % (1 << 32)
        return cls("GET", f"http://{host}/catalogue/{spread % 1000:03}/item-{number}?ref={spread:08x}", b"")

    @property
    def key(self) -> bytes:
        return request_key(self.method, self.url, "application/json" if self.body else "", self.body)

    def head(self) -> bytes:
        host, _, target = self.url.removeprefix("http://").partition("/")
        more = f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n" if self.body else ""
        return _REQUESTED.format(method=self.method, target="/" + target, host=host, more=more).encode()


def body_of(number: int, size: int) -> bytes:
    """Return the body of a capture, of `size` bytes in the mean."""
    source = random.Random(number // 20 * 20 if number % 20 == 19 else number)
    return b"<!doctype html><title>item</title>" + source.randbytes(
        source.randrange(size // 2, size * 3 // 2)
    )


def words_of(number: int, size: int) -> bytes:
    """Return a page of `size` bytes in the mean: common words are common, and one word is its own."""
    source = random.Random(number)
    count = source.randrange(size // 12, size // 4)
    words = [f"w{int(_WORDS ** source.random())}" for _ in range(count)]
    return f"<!doctype html><title>item {number}</title><p>only{number} {' '.join(words)}".encode()


def make_collection(
    root: Path, captures: int, body_bytes: int, body: Callable[[int, int], bytes] = body_of
) -> Collection:
    """Return the collection of that size, made if it does not exist, with its index."""
    collection = Collection(root, f"c{captures}-b{body_bytes}-{body.__name__}")
    if collection.index_file.exists():
        return collection
    if not collection.path.exists():
        Collection.create(root, collection.name)
    number, file = 0, 0
    while number < captures:
        path = collection.archive / f"rec-{file:05}.warc.gz"
        with path.open("wb", 1 << 20) as out:
            while number < captures and out.tell() < FILE_SIZE:
                out.writelines(_records(number, body(number, body_bytes)))
                number += 1
        file += 1
    collection.write_manifest(Manifest(name=collection.name, recorded_at="20260101000000"))
    reindex(collection)
    return collection


def _records(number: int, body: bytes) -> Iterator[bytes]:
    request = Requested.of(number)
    at = number // 40
    date = f"2026-01-{1 + at // 86400:02}T{at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}Z"
    head = _HEAD.format(mime=_MIMES[number % 5], length=len(body), number=number).encode()
    ids = [f"<urn:uuid:00000000-0000-4000-{kind:04x}-{number:012x}>" for kind in (0x8000, 0x8001)]
    for kind, block, payload in (("request", request.head(), request.body), ("response", head, body)):
        concurrent = "" if kind == "request" else f"WARC-Concurrent-To: {ids[0]}\r\n"
        fields = (
            f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: {ids[kind == 'response']}\r\n"
            f"WARC-Target-URI: {request.url}\r\nWARC-Date: {date}\r\n{concurrent}"
            f"WARC-Payload-Digest: sha256:{sha256(payload).hexdigest()}\r\n"
            f"Content-Type: application/http; msgtype={kind}\r\n"
            f"Content-Length: {len(block) + len(payload)}\r\n\r\n"
        )
        packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        yield packer.compress(b"".join((fields.encode(), block, payload, b"\r\n\r\n"))) + packer.flush()
