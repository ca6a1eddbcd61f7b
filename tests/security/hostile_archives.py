"""A corpus of hostile archives: written attacks, bombs, and mutants of small valid archives.

Each archive names the files of a working folder and the commands that read them. Everything is drawn from a
seed, so a number and a seed name an archive. `bench/hostile.py` runs all of them; tests run a part.
"""

# ruff: noqa: E501  a payload is easier to read in one line

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import brotli
import zstandard

SITE = "http://a.example"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85"
PNG = b"\x89PNG\r\n\x1a\n"

Files = Mapping[str, bytes]
Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostileArchive:
    """Files of a working folder, and the command lines that read them; `replay` requests every URL."""

    name: str
    files: Files
    commands: tuple[Command, ...]


def imported(name: str, file: str, content: bytes, **beside: bytes) -> HostileArchive:
    """Return an archive that is imported, and all that follows."""
    commands = (
        ("collections", "import", file, "-c", "a"),
        *_READ,
        ("collections", "export", "a", "-o", "out.wacz"),
    )
    return HostileArchive(name, {file: content, **beside}, commands)


def stored(name: str, files: Files) -> HostileArchive:
    """Return an archive whose files are in the collection's folder already."""
    return HostileArchive(name, {f"collections/a/{path}": content for path, content in files.items()}, _READ)


_READ: tuple[Command, ...] = (
    ("collections", "check", "a"),
    ("collections", "seal", "a"),
    ("collections", "show", "a"),
    ("collections", "show", "a", "--captures"),
    ("collections", "list"),
    ("collections", "reachability", "a"),
    ("replay",),
)

# --- valid archives ------------------------------------------------------------------------------------


def record(
    kind: str, block: bytes, uri: str = f"{SITE}/", *fields: str, date: str = "2024-01-01T00:00:00Z"
) -> bytes:
    """Return a WARC record."""
    head = [f"WARC/1.1\r\nWARC-Type: {kind}", f"WARC-Target-URI: {uri}", f"WARC-Date: {date}"]
    head += [f"WARC-Record-ID: <urn:x:{kind}:{uri}>", *fields, f"Content-Length: {len(block)}"]
    return "\r\n".join(head).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + block + b"\r\n\r\n"


def response(body: bytes, *fields: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode("utf-8") + b"\r\n\r\n" + body


def pair(path: str, body: bytes, *fields: str, posted: bytes = b"", method: str = "GET") -> list[bytes]:
    """Return the records of a request and its response."""
    uri = SITE + path
    question = f"{method} {path} HTTP/1.1\r\nHost: a.example\r\n".encode()
    if posted:
        question += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(posted)
    return [
        record("response", response(body, *fields), uri),
        record("request", question + b"\r\n" + posted, uri, f"WARC-Concurrent-To: <urn:x:response:{uri}>"),
    ]


def records() -> list[bytes]:
    """Return the records of a small site: page, style, API, WebSocket, event stream, revisit, artifacts."""
    page = b"<!doctype html><title>A</title><p>text " + b"x" * 300
    digest = "WARC-Payload-Digest: sha1:" + base64.b32encode(hashlib.sha1(b"p {}").digest()).decode()
    frames = b'{"type": "received", "ts": 1, "opcode": 1, "payloadData": "hello"}\n{"type": "end", "ts": 2, "by": "site"}\n'
    return [
        record("warcinfo", b"software: Browsertrix-Crawler 1.2.3\r\n", "urn:info"),
        *pair("/", gzip.compress(page, mtime=0), "Content-Type: text/html", "Content-Encoding: gzip"),
        record("response", response(b"p {}", "Content-Type: text/css"), SITE + "/a.css", digest),
        record(
            "revisit", b"HTTP/1.1 200 OK\r\n\r\n", SITE + "/b.css", digest,
            f"WARC-Refers-To-Target-URI: {SITE}/a.css", "WARC-Refers-To-Date: 2024-01-01T00:00:00Z",
            "WARC-Profile: http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
        ),
        *pair("/api", b'{"n": [1, 2]}', "Content-Type: application/json", posted=b'{"q": {"a": [1]}}', method="POST"),
        record("resource", b"\x00\x01", SITE + "/r.bin", "Content-Type: application/octet-stream"),
        record("request", b"GET /ws HTTP/1.1\r\nHost: a.example\r\n\r\n", "ws://a.example/ws"),
        record("response", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "ws://a.example/ws"),
        record("resource", frames, "urn:websocket:ws://a.example/ws", "Content-Type: application/jsonl"),
        *pair("/events", b"data: 1\n\n", "Content-Type: text/event-stream")[::-1],
        record("metadata", b"event-stream: 1\r\nchunk: 1 9\r\nend: 2 site\r\n", SITE + "/events", "Content-Type: application/warc-fields"),
        record("resource", png(30, 20), f"urn:view:{SITE}/", "Content-Type: image/png"),
        record("resource", json.dumps({"pageid": "p1", "urls": {SITE + "/": {"status": 200, "type": "document"}}}).encode(), f"urn:pageinfo:{SITE}/", "Content-Type: application/json"),
        record("resource", b"text of A", f"urn:text:{SITE}/", "Content-Type: text/plain"),
    ]  # fmt: skip


def warc(parts: list[bytes]) -> bytes:
    """Return a compressed WARC, a gzip member for each record."""
    return b"".join(gzip.compress(each, mtime=0) for each in parts)


def entry(path: str = "/", **response: Any) -> dict[str, Any]:
    """Return an entry of a HAR."""
    content = {"size": 4, "text": "body", "mimeType": "text/html"}
    return {
        "startedDateTime": "2024-01-01T00:00:00.000Z",
        "pageref": "p",
        "request": {"method": "GET", "url": SITE + path, "headers": [{"name": "Accept", "value": "*/*"}]},
        "response": {
            "status": 200,
            "statusText": "OK",
            "headers": [],
            "httpVersion": "h2",
            "content": content,
        }
        | response,
    }


def har() -> dict[str, Any]:
    posted = entry(
        "/post", content={"size": 3, "encoding": "base64", "text": "AAEC", "mimeType": "image/png"}
    )
    posted["request"] |= {
        "method": "POST",
        "bodySize": 2,
        "postData": {"mimeType": "text/plain", "text": "ab"},
    }
    form = entry("/form")
    form["request"] |= {
        "method": "POST",
        "postData": {"mimeType": "", "params": [{"name": "a", "value": "1"}]},
    }
    socket = entry("/ws", status=101)
    socket["request"]["url"] = "ws://a.example/ws"
    socket["_webSocketMessages"] = [{"type": "send", "time": 1704067200.5, "opcode": 1, "data": "hi"}]
    pages = [{"id": "p", "title": "A", "startedDateTime": "2024-01-01T00:00:00.000Z", "pageTimings": {}}]
    return {"log": {"version": "1.2", "pages": pages, "entries": [entry(), posted, form, socket]}}


MANIFEST: dict[str, Any] = {
    "name": "a", "version": 1, "created": "2024-01-01T00:00:00Z", "state": "complete", "recorded_at": "20240101000000",
    "seed": 1, "profile": {"viewport": [1280, 720], "locale": "en"}, "sources": [{"name": "x", "bytes": 3}], "redactions": [],
    "notes": "", "login": {"kind": "steps", "storage_state": {"cookies": [], "origins": []}},
}  # fmt: skip
PAGES: list[dict[str, Any]] = [
    {"format": "json-pages-1.0", "id": "pages"},
    {"id": "p1", "url": SITE + "/", "ts": "2024-01-01T00:00:00Z", "title": "A", "baseline": "p1", "depth": 0},
]
RULES = """version: 1
defaults: true
volatile:
  - {where: query, name: t, shape: milliseconds, host: "*.example", path: /a/**, origin: learned}
polls:
  - {host: a.example, path: /poll}
"""
AMENDS = {"version": 1, "amends": [{"version": "v1", "kept": "k", "at": "20240101000000", "recorded": 1, "absent": 0,
          "captures": 1, "pages": ["x"]}], "absent": [{"method": "GET", "url": SITE + "/no", "reason": "404", "at": "20240101000000"}]}  # fmt: skip
REACH: list[dict[str, Any]] = [
    {"version": 1, "kind": "state", "state": "s", "url": SITE + "/", "path": [], "controls": 1},
    {"version": 1, "kind": "action", "state": "s", "action": {"kind": "click"}, "description": "click", "requests": [["GET", SITE + "/"]]},
]  # fmt: skip
REDACTIONS: list[dict[str, Any]] = [
    {"kind": "cookie", "where": "request", "name": "sid", "host": "a", "spans": [[1, 2]]}
]
RESOURCES: list[dict[str, Any]] = [
    {"url": SITE + "/", "method": "GET", "type": "document", "status": 200, "failed": False}
]


def lines(members: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in members)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def wacz_members() -> dict[str, bytes]:
    """Return the members of a WACZ with everything that our own export adds."""
    archive = warc(records())
    package = {
        "profile": "data-package",
        "wacz_version": "1.1.1",
        "resources": [{"name": "a", "path": "archive/a.warc.gz", "hash": f"sha256:{hashlib.sha256(archive).hexdigest()}"}],
        "stillweb": MANIFEST,
    }  # fmt: skip
    return {
        "datapackage.json": dumped(package),
        "archive/a.warc.gz": archive,
        "pages/pages.jsonl": lines(PAGES),
        "pages/extraPages.jsonl": lines(PAGES),
        "logs/crawl.log": b"{}\n",
        "stillweb/rules.yaml": RULES.encode(),
        "stillweb/amends.json": dumped(AMENDS),
        "stillweb/reachability.jsonl": lines(REACH),
        "stillweb/redactions.jsonl": lines(REDACTIONS),
        "stillweb,baseline,p1/resources.json": dumped(RESOURCES),
        "stillweb,baseline,p1/screenshot.png": png(30, 20),
    }


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    """Return a PNG of one colour, 8 bits RGBA; `pixels` replaces the compressed rows."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    if pixels is None:
        packer = zlib.compressobj(9)
        row = b"\0" + b"\x80" * (4 * width)
        pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return PNG + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def cdxj(archive: bytes, at: int, length: int) -> dict[str, Any]:
    """Return a line of an index, as its JSON."""
    return {"url": f"{SITE}/a.css", "mime": "text/css", "status": "200", "digest": "sha1:x", "length": str(length),
            "offset": str(at), "filename": "a.warc.gz", "key": "00" * 16}  # fmt: skip


def folder() -> dict[str, bytes]:
    """Return the files of a collection."""
    members = [gzip.compress(each, mtime=0) for each in records()]
    at = sum(map(len, members[:3]))
    index = b"example,a)/a.css 20240101000000 " + dumped(cdxj(b"", at, len(members[3]))) + b"\n"
    return {
        "archive/a.warc.gz": b"".join(members),
        "indexes/index.cdxj": index,
        "manifest.json": dumped(MANIFEST),
        "pages/pages.jsonl": lines(PAGES),
        "rules.yaml": RULES.encode(),
        "amends.json": dumped(AMENDS),
        "reachability.jsonl": lines(REACH),
        "redactions.jsonl": lines(REDACTIONS),
        "baseline/p1/resources.json": dumped(RESOURCES),
    }


# --- mutation ------------------------------------------------------------------------------------------

_HUGE = "9" * 5000
# Texts rather than values: some of them `json.dumps` would not write.
_VALUES = (
    *(
        "5",
        "-1",
        "null",
        "true",
        "[]",
        "{}",
        '""',
        "1e400",
        "NaN",
        _HUGE,
        "0.5",
        '"5"',
        "18446744073709551616",
    ),
    *(
        '"\\ud800"',
        '"../../../../tmp/owned"',
        '"//"',
        '"\\u001b]0;owned\\u0007"',
        "[[]]",
        '[{"a": 5}]',
        '{"a": {}}',
    ),
    *(
        "[" * 100_000,
        '"' + "a" * 70_000 + '"',
        '"http://["',
        '"\\u0000"',
        '"99999999999999"',
        '"00000000000000"',
    ),
)
_TEXTS = (
    *(
        b"WARC/1.1\r\n",
        b"Content-Length: 99999999999\r\n",
        b"Content-Length: -1\r\n",
        b"WARC-Type: revisit\r\n",
    ),
    *(
        b"WARC-Target-URI: http://[\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: br\r\n",
        b"\r\n\r\n",
    ),
    *(
        b"\x1f\x8b\x08\0\0\0\0\0\0\3",
        b"PK\x03\x04",
        b"\0" * 40,
        b"\xff" * 8,
        b"../",
        ESCAPES.encode(),
        b"\xed\xa0\x80",
    ),
    *(b"&*anchor ", b"!!python/object/apply:os.system", b": ", b"WARC-Date: 0000\r\n", b"urn:websocket:"),
)


def mutate_bytes(draw: random.Random, content: bytes) -> bytes:
    """Change, insert, repeat or remove some bytes."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 6))):
        at, other = draw.randrange(len(changed) + 1), draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at:at] = draw.choice(_TEXTS)
            case 2:
                token = draw.choice(_TEXTS)
                changed[at : at + len(token)] = token
            case 3:
                del changed[at : at + draw.choice((1, 3, 100))]
            case 4:
                changed[at:at] = changed[other : other + draw.choice((1, 50, 3000))]
            case 5:
                del changed[max(at, len(changed) // 4) :]
    return bytes(changed)


def mutate_json(draw: random.Random, content: bytes) -> bytes:
    """Replace a value of a JSON text, or a value of one line of a JSON lines text."""
    rows = content.splitlines() or [b"{}"]
    if rows[0] in (b"{", b"["):  # one indented value
        rows = [b"".join(rows)]
    number = draw.randrange(len(rows))
    value = json.loads(rows[number])
    mark = "@@" + "replaced"
    places = list(_places(value))
    holder, key = draw.choice(places) if places and draw.random() < 0.95 else (None, None)
    if holder is None:
        rows[number] = draw.choice(_VALUES).encode()
    elif draw.random() < 0.15:
        del holder[key]
        rows[number] = json.dumps(value).encode()
    else:
        holder[key] = mark
        rows[number] = json.dumps(value).replace(f'"{mark}"', draw.choice(_VALUES)).encode()
    return b"\n".join(rows) + b"\n"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def mutate_file(draw: random.Random, path: str, content: bytes) -> bytes:
    """Change a file by its kind: values of JSON, records of a WARC before compression, or bytes."""
    if path.endswith((".json", ".jsonl", ".har")) and draw.random() < 0.8:
        return mutate_json(draw, content)
    if path.endswith(".cdxj") and draw.random() < 0.8:
        key, time, members = content.split(b" ", 2)
        return b" ".join((key, time, mutate_json(draw, members)))
    if path.endswith(".warc.gz") and draw.random() < 0.8:
        parts = records()
        number = draw.randrange(len(parts))
        parts[number] = mutate_bytes(draw, parts[number])
        return warc(parts) if draw.random() < 0.7 else gzip.compress(b"".join(parts), mtime=0)
    return mutate_bytes(draw, content)


def _mutate_one(draw: random.Random, files: Mapping[str, bytes]) -> dict[str, bytes]:
    path = draw.choice(sorted(files))
    changed = dict(files)
    if draw.random() < 0.1:
        changed[draw.choice(("//", "/", "archive/", "a/../b", "archive//a.warc.gz", "\x1b[2J", "pages"))] = (
            changed.pop(path)
        )
    else:
        changed[path] = mutate_file(draw, path, files[path])
    return changed


def mutants(seed: str, count: int, pack: Mapping[str, bytes]) -> Iterator[HostileArchive]:
    """Yield archives with one change each, in turn of each kind.

    Args:
        seed: of all draws.
        count: number of archives.
        pack: the files of a sealed pack, by path below `collections/`.
    """
    kinds: tuple[Callable[[random.Random, str], HostileArchive], ...] = (
        lambda draw, name: imported(name, "a.warc.gz", mutate_file(draw, "a.warc.gz", warc(records()))),
        lambda draw, name: imported(name, "a.warc", mutate_bytes(draw, b"".join(records()))),
        lambda draw, name: imported(name, "a.har", mutate_json(draw, dumped(har()))),
        lambda draw, name: imported(name, "a.wacz", _mutated_wacz(draw)),
        lambda draw, name: stored(name, _mutate_one(draw, folder())),
        lambda draw, name: _mutated_pack(draw, name, pack),
    )
    for number in range(count):
        draw = random.Random(f"{seed}:{number}")
        yield kinds[number % len(kinds)](draw, f"mutant-{seed}-{number}")


def _mutated_wacz(draw: random.Random) -> bytes:
    members = _mutate_one(draw, wacz_members())
    content = zipped(members, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return mutate_bytes(draw, content) if draw.random() < 0.15 else content


def _mutated_pack(draw: random.Random, name: str, files: Mapping[str, bytes]) -> HostileArchive:
    """Return a pack with a change, whose digest an attacker has made again."""
    changed = dict(files)
    path = draw.choice(sorted(files))
    if path.endswith("manifest.json") or draw.random() < 0.5:
        path = next(each for each in files if each.endswith("manifest.json"))
        changed[path] = mutate_json(draw, files[path])
    else:
        changed[path] = mutate_bytes(draw, files[path])
    sign_pack(changed)
    commands = (
        ("collections", "list"),
        ("collections", "check", "a"),
        ("collections", "show", "a"),
        ("replay",),
    )
    return HostileArchive(
        name, {f"collections/{path}": content for path, content in changed.items()}, commands
    )


def sign_pack(files: dict[str, bytes]) -> None:
    """Replace the digest of a pack's manifest."""
    digest = hashlib.sha256(files["a/pack/manifest.json"]).hexdigest()
    files["a/pack/digest"] = digest.encode() + b"\n"


# --- written attacks -----------------------------------------------------------------------------------


def attacks() -> Iterator[HostileArchive]:
    """Yield archives that were written against a reader."""
    yield from _zip_attacks()
    yield from _har_attacks()
    yield from _warc_attacks()
    yield from _length_attacks()
    yield from _revisit_attacks()
    yield from _zstd_attacks()
    yield from _arc_attacks()
    yield from _folder_attacks()
    yield from _container_attacks()
    yield from _index_attacks()


def _container_attacks() -> Iterator[HostileArchive]:
    """Yield ZIPs whose directory lies, gzip members with odd heads, and records that share ids."""
    sound = zipped(wacz_members())
    # Place, format and value in an entry of the central directory (APPNOTE.TXT §4.3.12).
    for name, place, form, value in (
        ("encrypted", 8, "<H", 1), ("deflate64", 10, "<H", 9), ("method-99", 10, "<H", 99), ("crc", 16, "<I", 1),
        ("packed-large", 20, "<I", 0x7FFFFFFF), ("packed-zero", 20, "<I", 0), ("size-small", 24, "<I", 5),
        ("size-large", 24, "<I", 0x7FFFFFFF), ("size-zip64", 24, "<I", 0xFFFFFFFF), ("all-overlap", 42, "<I", 0),
        ("beyond", 42, "<I", 0x7FFFFFF0),
    ):  # fmt: skip
        changed = bytearray(sound)
        for found in re.finditer(b"PK\x01\x02", sound):
            struct.pack_into(form, changed, found.start() + place, value)
        yield imported(f"zip-directory-{name}", "a.wacz", bytes(changed))
    yield imported("zip-prefix", "a.wacz", b"MZ" + bytes(5000) + sound)
    yield imported("zip-in-zip", "a.wacz", zipped({f"{at}.wacz": sound for at in range(20)}))
    page = record("response", response(b"page", "Content-Type: text/html"), SITE + "/g")
    raw = gzip.compress(page, mtime=0)[10:]
    for name, head in (
        ("name", b"\x08\0\0\0\0\0\3" + b"n" * (10 << 20) + b"\0"), ("extra", b"\x04\0\0\0\0\0\3\xff\xff" + bytes(65_535)),
        ("reserved", b"\xe0\0\0\0\0\0\3"), ("name-without-end", b"\x08\0\0\0\0\0\3" + b"n" * 100_000),
    ):  # fmt: skip
        yield imported(f"gzip-head-{name}", "a.warc.gz", warc(records()) + b"\x1f\x8b\x08" + head + raw)
    yield imported("gzip-empty-members", "a.warc.gz", gzip.compress(b"", mtime=0) * 50_000 + warc(records()))
    shared = [re.sub(rb"<urn:x:[^>]*>", b"<urn:x:one>", each) for each in records() * 3]
    yield imported("ids-shared", "a.warc.gz", warc(shared))
    many = [pair(f"/{at}", b"x")[::-1] for at in range(3000)]
    yield imported("ids-shared-by-thousands", "a.warc.gz", warc([re.sub(rb"<urn:x:[^>]*>", b"<urn:x:one>", each) for two in many for each in two]))  # fmt: skip
    headers = b'{"name": "a", "value": ""},' * 300_000
    text = dumped({"log": {"entries": [entry(headers=["@@"])]}}).replace(b'"@@"', headers[:-1])
    yield imported("har-fields", "a.har", text)


def _index_attacks() -> Iterator[HostileArchive]:
    """Yield collections whose index is sound CDXJ, and leads elsewhere."""
    files = folder()
    key, time, members = files["indexes/index.cdxj"].split(b" ", 2)
    line = json.loads(members)
    for number, other in enumerate((
        {"offset": "0"}, {"offset": str(int(line["offset"]) + 7)}, {"offset": "99999999"}, {"offset": str((1 << 63) - 1)},
        {"length": "1"}, {"length": "99999999"}, {"length": "0"}, {"url": SITE + "/"}, {"method": "POST"}, {"request": "0,99"},
        {"request": f"{line['offset']},{line['length']}"}, {"digest": "sha256:" + "0" * 64}, {"key": "ff" * 16}, {"status": "404"},
    )):  # fmt: skip
        rows = b" ".join((key, time, dumped(line | other))) + b"\n"
        yield stored(f"index-{number}", files | {"indexes/index.cdxj": rows * 3})


def _zip_attacks() -> Iterator[HostileArchive]:
    members = wacz_members()
    for number, name in enumerate(("//", "/", ".", "..", "../../evil.warc.gz", "archive/../../x.warc.gz", "archive//", "a" * 300 + ".wacz",
                                   "archive/" + "b" * 300 + ".warc.gz", f"archive/{ESCAPES}.warc.gz", "pages/pages.jsonl/", "archive/\ud7ff.warc.gz",
                                   "stillweb,..,../rules.yaml", "stillweb,baseline,..,x/resources.json", "archive/.warc.gz", "x.har")):  # fmt: skip
        yield imported(f"zip-name-{number}", "a.wacz", zipped({name: b"x", **members}))
        yield imported(f"zip-only-{number}", "a.wacz", zipped({name: members["archive/a.warc.gz"]}))
    for number, value in enumerate(_VALUES):
        text = b'{"resources": ' + value.encode() + b', "stillweb": ' + value.encode() + b"}"
        yield imported(f"package-{number}", "a.wacz", zipped(members | {"datapackage.json": text}))
        yield imported(
            f"package-whole-{number}", "a.wacz", zipped(members | {"datapackage.json": value.encode()})
        )
        page = (
            b'{"url": "' + SITE.encode() + b'/", "ts": %s, "title": %s, "id": %s, "depth": %s, "text": %s}\n'
        )
        yield imported(
            f"pages-{number}",
            "a.wacz",
            zipped(members | {"pages/pages.jsonl": page.replace(b"%s", value.encode())}),
        )
        for name in ("amends.json", "reachability.jsonl", "redactions.jsonl", "rules.yaml"):
            yield imported(
                f"extra-{name}-{number}", "a.wacz", zipped(members | {f"stillweb/{name}": value.encode()})
            )
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        link = zipfile.ZipInfo("archive/link.warc.gz")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    yield imported("zip-link", "a.wacz", twice.getvalue())
    yield imported(
        "zip-name-utf8", "a.wacz", zipped(members | {"\u00e9": b"x"}).replace(b"\xc3\xa9", b"\xeb\xa9")
    )


def _har_attacks() -> Iterator[HostileArchive]:
    for number, value in enumerate(_VALUES):
        raw = value.encode()
        yield imported(
            f"har-pages-{number}", "a.har", dumped(har()).replace(b'"pages": [', b'"pages": %s, "x": [' % raw)
        )
        yield imported(f"har-entries-{number}", "a.har", b'{"log": {"entries": %s}}' % raw)
        yield imported(f"har-log-{number}", "a.har", b'{"log": %s}' % raw)
        text = dumped(har()).replace(b'"status": 200', b'"status": %s' % raw)
        yield imported(f"har-status-{number}", "a.har", text)
    line = entry()
    line["response"]["headers"] = [{"name": "X\r\nSet-Cookie: a=b", "value": "1\r\nX: y"}]
    line["response"]["statusText"] = "OK\r\nX-Injected: 1"
    yield imported("har-injection", "a.har", dumped({"log": {"entries": [line]}}))
    line = entry("/" + ESCAPES)
    yield imported(
        "har-escapes", "a.har", dumped({"log": {"entries": [line], "pages": [{"id": "p", "title": ESCAPES}]}})
    )
    yield imported(
        "har-escapes-error",
        "a.har",
        dumped({"log": {"entries": [entry(ESCAPES) | {"startedDateTime": ESCAPES}]}}),
    )


def _warc_attacks() -> Iterator[HostileArchive]:
    parts = records()
    for number, fields in enumerate((("WARC-Type: \x1b[2J",), ("Content-Length: 5",), ("WARC-Refers-To-Target-URI: http://[",),
                                     ("WARC-Concurrent-To: <urn:x:response:http://a.example/>",) * 5000, ("X: " + "y" * 900_000,))):  # fmt: skip
        yield imported(
            f"warc-fields-{number}",
            "a.warc.gz",
            warc([*parts, record("response", response(b"x"), SITE + "/f", *fields)]),
        )
    for number, uri in enumerate(("http://[", "http://a.example:99999/", "http://a.example/" + ESCAPES, "//", "http://", "http:///x", "urn:websocket:",
                                  "urn:view:", "http://a.example/?__wb_method=POST&__wb_post_data=%%%", "http://a.example/" + "%" * 5000,
                                  "http://" + "a." * 4000, "http://a.example/" + "a/" * 40_000, "http://\x00/", "http://a.example/\x7f\x00", "http://xn--/",
                                  "http://" + "\u0130" * 300 + "/", "http://1.2.3.4.5.6/", "http://0x7f.1/", "ws://", "wss://[/")):  # fmt: skip
        yield imported(
            f"warc-uri-{number}",
            "a.warc.gz",
            warc(
                [
                    *parts,
                    *[
                        record(kind, response(b"<title>x</title>", "Content-Type: text/html"), uri)
                        for kind in ("response", "resource")
                    ],
                ]
            ),
        )
    for number, block in enumerate((b"", b"HTTP/1.1", b"HTTP/1.1 999999999999 X\r\n\r\n", b"HTTP/1.1 -1 X\r\n\r\n", b"HTTP/1.1 \xff\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 60_000 + b"\r\n",
                                    response(b"x", "Content-Encoding: " + "gzip, " * 3000), response(b"x" * 99, "Content-Encoding: zstd"),
                                    response(b"x", "Content-Range: bytes 0-99999999999999999999/5", status="206 Partial Content"),
                                    response(b"x", "Vary: " + "a, " * 30_000), response(b"x", "Content-Type: text/html; charset=undefined"),
                                    response(b"<title>&#99999999999999;</title>", "Content-Type: text/html; charset=idna"))):  # fmt: skip
        yield imported(
            f"warc-http-{number}",
            "a.warc.gz",
            warc([*parts, record("response", block, SITE + "/h", "Content-Type: text/html")]),
        )
    for number, value in enumerate(_VALUES):
        info = b'{"pageid": %s, "urls": %s}' % (value.encode(), value.encode())
        frames = b'{"type": "received", "ts": %s, "opcode": %s, "payloadData": %s}\n' % (
            (value.encode(),) * 3
        )
        posted = b'{"a": %s}' % value.encode()
        yield imported(
            f"warc-json-{number}",
            "a.warc.gz",
            warc([
                *(each for each in parts if b"urn:pageinfo" not in each and b"urn:websocket" not in each),
                record("resource", info, f"urn:pageinfo:{SITE}/"),
                record("resource", frames, "urn:websocket:ws://a.example/ws", "Content-Type: application/jsonl"),
                *pair("/j", value.encode(), "Content-Type: application/json", posted=posted, method="POST"),
            ]),
        )  # fmt: skip
    for number, date in enumerate(
        ("", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59+99:99", "2" * 5000, ESCAPES, "٢٠٢٤-01-01T00:00:00Z")
    ):
        yield imported(
            f"warc-date-{number}",
            "a.warc.gz",
            warc([*parts, record("response", response(b"x"), SITE + "/d", date=date)]),
        )
    for number, content in enumerate((b"", b"\x1f\x8b\x08", b"\x1f\x8b\x08" * 100_000, b"WARC/1.1\r\n" * 50_000, b"PK\x03\x04", b"PK\x05\x06" + bytes(18),
                                      b"{", b'{"log":', b"[" * 200_000, b"filedesc://x 1.1.1.1 20240101000000 text/plain 99999999\n",
                                      b"\x1f\x8b\x08\x1c\0\0\0\0\0\3" + b"\xff" * 500_000, b"http://a.example/ 1.2.3.4 20240101000000 text/html 5\n" * 9000)):  # fmt: skip
        for suffix in ("warc.gz", "wacz", "har"):
            yield imported(f"junk-{number}-{suffix}", f"a.{suffix}", content)


def _length_attacks() -> Iterator[HostileArchive]:
    """Yield lengths that are none, of records and of messages, and fields that occur twice."""
    parts = records()
    first = record("response", response(b"text", "Content-Type: text/html"), SITE + "/l")
    for number, value in enumerate((b"-1", b"0", b"1", b"999999999999999", b"9" * 40, b"0x10", b"1e3", b" 5 5", b"", b"\x00", b"\xd9\xa5", b"5\r\nContent-Length: 900")):  # fmt: skip
        outer, inner = (
            value.join(re.split(rb"(?<=Content-Length: )\d+(?=\r\n\r\n%s)" % block, first))
            for block in (b"HTTP", b"text")
        )
        yield imported(f"length-plain-{number}", "a.warc", b"".join([*parts, outer, *parts]))
        yield imported(f"length-gzip-{number}", "a.warc.gz", warc([*parts, outer]))
        yield imported(f"length-http-{number}", "a.warc", b"".join([*parts, inner]))
    chunked = ("Content-Type: text/html", "Transfer-Encoding: chunked")
    for number, body in enumerate((b"", b"0\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"f" * 15 + b"\r\nx", b"1\r\nx", b"1;" + b"a" * 200_000 + b"\r\nx\r\n0\r\n\r\n",
                                    b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n", b"0\r\n" + b"A: b\r\n" * 60_000, b"1\nx\n0\n\n", b"\x00\r\n")):  # fmt: skip
        yield imported(f"chunked-{number}", "a.warc.gz", warc([*parts, record("response", response(body, *chunked), SITE + "/c")]))  # fmt: skip
    for number, field in enumerate(("Content-Length: 2", "Content-Type: a\r\n b\tc", "Content-Encoding: gzip", "Transfer-Encoding: identity", "Location: \r", "Location: //\x00",
                                    "Set-Cookie: a=b\nX: y", "X-\x00: 1", "\x7f: 1", " : 1", ": 1", "A", "Content-Length: 1, 1", "Host: evil.example")):  # fmt: skip
        yield imported(f"twice-{number}", "a.warc.gz", warc([*parts, record("response", response(b"text", field, field), SITE + "/t")]))  # fmt: skip


def _revisit_attacks() -> Iterator[HostileArchive]:
    """Yield revisits that lead in circles, to themselves, or nowhere."""
    profile = "WARC-Profile: http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    date = "WARC-Refers-To-Date: 2024-01-01T00:00:00Z"

    def revisit(path: str, target: str, *more: str) -> bytes:
        fields = (
            profile,
            date,
            f"WARC-Refers-To-Target-URI: {SITE}{target}",
            "WARC-Payload-Digest: sha1:A",
            *more,
        )
        return record("revisit", b"HTTP/1.1 200 OK\r\n\r\n", SITE + path, *fields)

    circle = [revisit(f"/{number}", f"/{(number + 1) % 50}") for number in range(50)]
    for number, parts in enumerate((
        [revisit("/a", "/a")], [revisit("/a", "/b"), revisit("/b", "/a")], circle,
        [revisit("/a", "/" + "b" * 100_000)], [revisit("/a", "/b", "Content-Encoding: br")] * 2000,
        [revisit("/a.css", "/a.css"), *circle],
    )):  # fmt: skip
        yield imported(f"revisit-{number}", "a.warc.gz", warc([*records(), *parts]))


def _zstd_attacks() -> Iterator[HostileArchive]:
    frames = [zstandard.compress(each) for each in records()]
    packed, magic = b"".join(frames), b"\x5d\x2a\x4d\x18"
    for number, content in enumerate((
        packed, packed[:-5], packed[:5], packed + b"\x28\xb5\x2f\xfd", packed + b"junk", frames[0] * 3, magic, magic + b"\xff" * 4,
        magic + b"\x04\0\0\0abcd" + packed, magic + b"\x04\0\0\0\x28\xb5\x2f\xfd" + packed, magic + b"\0\0\0\0" + packed,
        b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + packed, packed + b"\x5f\x2a\x4d\x18\x01\0\0\0x", b"\x28\xb5\x2f\xfd\x00\xff" + bytes(40),
        zstandard.compress(packed), zstandard.compress(b"PK\x03\x04"), zstandard.compress(b""), b"\x5d\x2a\x4d\x18\x04\0\0\0",
    )):  # fmt: skip
        yield imported(f"zstd-{number}", "a.warc.zst", content)
    for number in range(30):
        draw = random.Random(f"zstd:{number}")
        yield imported(f"zstd-mutant-{number}", "a.warc.zst", mutate_bytes(draw, packed))


def _arc_attacks() -> Iterator[HostileArchive]:
    head = b"filedesc://a.arc 0.0.0.0 20110101000000 text/plain 77\n1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n\n"
    one = b"http://a.example/ 1.2.3.4 20110101000000 text/html 22\nHTTP/1.0 200 OK\r\n\r\n<p>\n"
    for number, content in enumerate((
        head, one, head + one * 50, head.replace(b" 77", b" -1") + one, head.replace(b" 77", b" 999999999") + one, head + one.replace(b" 22", b" 99999999999999"),
        head + one + b"http://x 123456789012 y " * 40_000, head + one + b"a://" * 250_000, head + one + b"a://x " + b"1" * 1_000_000,
        head + one + b"http://x " + b"123456789012 " * 70_000 + b"\n", head + one + b"\nhttp://x 1.2.3.4 201101010000 t 5" * 20_000,
        head + one.replace(b"a.example", b"\x1b]0;x\x07\x9b"), head + one.replace(b"1.2.3.4", b"\xff" * 300), *(head + one.replace(b" 22", b" 99").replace(b"OK\r\n", b"OK\r\nContent-Length: " + length + b"\r\n") for length in (b"\xb9", b"1" * 5000)), one.replace(b"20110101000000", b"9" * 18),
    )):  # fmt: skip
        yield imported(f"arc-{number}", "a.arc", content)
    for number in range(30):
        draw = random.Random(f"arc:{number}")
        yield imported(f"arc-mutant-{number}", "a.arc", mutate_bytes(draw, head + one * 5))


def _folder_attacks() -> Iterator[HostileArchive]:
    files = folder()
    for number, value in enumerate(_VALUES):
        raw = value.encode()
        for name in (
            "manifest.json",
            "amends.json",
            "reachability.jsonl",
            "redactions.jsonl",
            "baseline/p1/resources.json",
            "rules.yaml",
            "pages/pages.jsonl",
        ):
            yield stored(f"folder-{name.replace('/', '-')}-{number}", files | {name: raw})
        for member in ("version", "profile", "seed", "sources", "login", "recorded_at", "name"):
            text = dumped(MANIFEST | {member: "@@"}).replace(b'"@@"', raw)
            yield stored(f"manifest-{member}-{number}", files | {"manifest.json": text})
        for member in (
            "url",
            "status",
            "offset",
            "length",
            "filename",
            "key",
            "mime",
            "request",
            "method",
            "digest",
        ):
            key, time, members = files["indexes/index.cdxj"].split(b" ", 2)
            text = dumped(json.loads(members) | {member: "@@"}).replace(b'"@@"', raw)
            yield stored(
                f"cdxj-{member}-{number}",
                files | {"indexes/index.cdxj": b" ".join((key, time, text)) + b"\n"},
            )
    for number, text in enumerate(("version: 1\nvolatile: &a [*a]\n", "version: 1\nvolatile:\n - &x {where: *x}\n", "version: &v [*v]\n", "a: &a {<<: *a}\n",
                                   "version: 1\nvolatile: " + "[" * 5000, "!!python/object/apply:os.system [id]\n", "version: 1\nvolatile: \x1b[2J\n", "\x00", "%YAML 9.9\n---\n",
                                   "version: 1\nvolatile:\n - {where: path, name: '99999', shape: any}\n", "version: 1\npolls:\n - {host: '" + "*a" * 500 + "', path: '" + "/**a" * 2000 + "'}\n",
                                   'version: "\\ud800"\n', "version: 1\nvolatile:\n - {where: query, name: '[', shape: any, host: '[', path: '(?P<', method: '\\'}\n")):  # fmt: skip
        yield stored(f"rules-{number}", files | {"rules.yaml": text.encode("utf-8", "surrogatepass")})


# --- bombs ---------------------------------------------------------------------------------------------


def bombs(*names: str) -> Iterator[HostileArchive]:
    """Yield archives of less than 10 MB whose content is much larger; with names, only these."""
    for name, (file, make) in _BOMBS.items():
        if not names or name in names:
            yield imported(name, file, make())
    files = folder()
    yield stored("bomb-cdxj", files | {"indexes/index.cdxj": files["indexes/index.cdxj"] * 30_000})


_HTML = "Content-Type: text/html"


def _big(size: int) -> bytes:
    return record("response", response(bytes(size), _HTML))


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def _coded(coding: str, *, digest: bool = False) -> bytes:
    """Return 40 pages under content codings, each of 120 MiB, or of 1 GiB as brotli."""
    match coding:
        case "br":
            body = brotli.compress(bytes(1 << 30), quality=5, lgwin=24)
        case _:
            body = bytes(120 << 20)
            for _ in coding.split(","):
                body = _packed(body)
    fields = (_HTML, f"Content-Encoding: {coding}")
    if digest:
        uris = [f"{SITE}/{number}" for number in range(40)]
        return warc(
            [
                record("response", response(body, *fields), uri, "WARC-Payload-Digest: sha1:AAAA")
                for uri in uris
            ]
        )
    return warc([part for number in range(40) for part in pair(f"/{number}", body, *fields)])


def _wacz(changed: Mapping[str, bytes]) -> bytes:
    return zipped(wacz_members() | dict(changed))


def _wacz_by(method: int) -> bytes:
    """Return a WACZ by a method whose decoder in Python unpacks each piece as a whole."""
    return zipped(wacz_members() | {"archive/b.warc": bytes(1 << 30)}, method)


def _shot(side: int) -> bytes:
    """Return an archive with a screenshot, which packs by a factor of 1,000."""
    packer = zlib.compressobj(9)
    rows = (
        b"".join(packer.compress(bytes(1 << 20)) for _ in range(4 * side * side // (1 << 20) + 2))
        + packer.flush()
    )
    shot = record("resource", png(side, side, rows), f"urn:view:{SITE}/", "Content-Type: image/png")
    return warc([*(each for each in records() if b"urn:view" not in each), shot])


def _marks() -> bytes:
    marks = b"event-stream: 1\r\n" + b"mutation: 1 20240101000000 1\r\n" * 300_000
    stream = pair("/events2", b"data: 1\n\n", "Content-Type: text/event-stream")[::-1]
    return warc(
        [*stream, record("metadata", marks, SITE + "/events2", "Content-Type: application/warc-fields")]
    )


def _frames() -> bytes:
    frames = b'{"type": "mutation", "ts": 1, "at": "20240101000000", "number": 1}\n' * 140_000
    others = [each for each in records() if b"urn:websocket" not in each]
    return warc([*others, record("resource", frames, "urn:websocket:ws://a.example/ws")])


def _deep() -> bytes:
    deep = b'{"a":' * 200_000
    return warc(
        [*records(), *pair("/deep", deep, "Content-Type: application/json", posted=deep, method="POST")]
    )


def _revisits() -> bytes:
    refers = f"WARC-Refers-To-Target-URI: {SITE}/a.css"
    revisit = record("revisit", b"", SITE + "/q", "WARC-Payload-Digest: sha1:AAAA", refers)
    return _packed(records()[3] * 3000 + revisit * 3000)


def _har_base64() -> bytes:
    text = base64.b64encode(bytes(6 << 20)).decode()
    content = {"size": 6 << 20, "encoding": "base64", "text": text, "mimeType": "text/html"}
    return dumped({"log": {"entries": [entry(content=content)]}})


_NESTED = b"[[[]]],"


def _zstd_dictionary() -> bytes:
    """Return a file whose dictionary unpacks to 1 GiB."""
    dictionary = zstandard.compress(bytes(1 << 30))
    frames = b"".join(map(zstandard.compress, records()))
    return b"\x5d\x2a\x4d\x18" + len(dictionary).to_bytes(4, "little") + dictionary + frames


_BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "bomb-member": ("a.warc.gz", lambda: _packed(_big(250 << 20))),
    "bomb-members": ("a.warc.gz", lambda: _packed(_big(60 << 20)) * 60),
    "bomb-zstd": ("a.warc.zst", lambda: zstandard.compress(_big(1 << 30))),
    "bomb-zstd-frames": ("a.warc.zst", lambda: zstandard.compress(_big(60 << 20)) * 200),
    "bomb-zstd-dictionary": ("a.warc.zst", _zstd_dictionary),
    "bomb-nested": ("a.warc.gz", lambda: _packed(_packed(_big(60 << 20)))),
    "bomb-coding-gzip": ("a.warc.gz", lambda: _coded("gzip")),
    "bomb-coding-twice": ("a.warc.gz", lambda: _coded("gzip, gzip")),
    "bomb-coding-br": ("a.warc.gz", lambda: _coded("br")),
    "bomb-coding-digest": ("a.warc.gz", lambda: _coded("br", digest=True)),
    "bomb-zip-bzip2": ("a.wacz", lambda: _wacz_by(zipfile.ZIP_BZIP2)),
    "bomb-zip-lzma": ("a.wacz", lambda: _wacz_by(zipfile.ZIP_LZMA)),
    "bomb-wacz": (
        "a.wacz",
        lambda: _wacz({f"archive/{number}.warc": bytes(120 << 20) for number in range(20)}),
    ),
    "bomb-package": (
        "a.wacz",
        lambda: _wacz({"datapackage.json": b'{"a": [' + _NESTED * (14 << 20) + b"0]}"}),
    ),
    "bomb-pages": (
        "a.wacz",
        lambda: _wacz(
            {"pages/pages.jsonl": b'{"url": "http://a.example/", "ts": "20240101000000"}\n' * (2 << 20)}
        ),
    ),
    "bomb-pages-line": (
        "a.wacz",
        lambda: _wacz(
            {"pages/pages.jsonl": b'{"url": "http://a.example/", "x": [' + _NESTED * (10 << 20) + b"0]}\n"}
        ),
    ),
    "bomb-rules": (
        "a.wacz",
        lambda: _wacz(
            {
                "stillweb/rules.yaml": b"version: 1\nvolatile:\n"
                + b"  - {where: query, name: t, shape: any}\n" * (2 << 20)
            }
        ),
    ),
    "bomb-amends": ("a.wacz", lambda: _wacz({"stillweb/amends.json": b"[" + _NESTED * (8 << 20) + b"0]"})),
    "bomb-reachability": (
        "a.wacz",
        lambda: _wacz({"stillweb/reachability.jsonl": b"[" + _NESTED * (8 << 20) + b"0]"}),
    ),
    "bomb-har-json": ("a.har", lambda: b'{"log": {"entries": [' + _NESTED * 1_400_000 + b"0]}}"),
    "bomb-har-dicts": ("a.har", lambda: b'{"log": {"entries": [' + b'{"":{}},' * 1_200_000 + b"0]}}"),
    "bomb-har-int": (
        "a.har",
        lambda: dumped(har()).replace(b'"status": 200', b'"status": ' + b"9" * 5_000_000),
    ),
    "bomb-har-base64": ("a.har", _har_base64),
    "bomb-har-zip": (
        "a.zip",
        lambda: zipped(
            {"x.har": dumped(har()), **{f"{number}.bin": bytes(120 << 20) for number in range(20)}}
        ),
    ),
    "bomb-png-small": ("a.warc.gz", lambda: _shot(5600)),
    "bomb-png": ("a.warc.gz", lambda: _shot(12_900)),
    "bomb-deep-json": ("a.warc.gz", _deep),
    "bomb-marks": ("a.warc.gz", _marks),
    "bomb-frames": ("a.warc.gz", _frames),
    "bomb-names": ("a.wacz", lambda: _wacz({f"archive/{number}.warc": b"" for number in range(60_000)})),
    "bomb-records": (
        "a.warc.gz",
        lambda: _packed(record("response", response(b"x", _HTML), SITE + "/1") * 250_000),
    ),
    "bomb-revisits": ("a.warc.gz", _revisits),
}
