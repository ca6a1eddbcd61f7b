"""Export of a collection as WACZ 1.1.1 or HAR 1.2: the same collection gives the same bytes.

A WACZ holds

    archive/*.warc.gz                 the WARC files
    indexes/index.cdx.gz, index.idx   the CDXJ lines in gzip blocks, and the first key of each block, as in
                                      py-wacz; `wb-manager add --unpack-wacz` reads no other index
    pages/pages.jsonl                 the pages with their text, which ReplayWeb.page searches; the time of a
                                      page is that of its record, by which readers find it
    stillweb/..., stillweb,.../...    rules, proved forms, baselines, traces, tasks, certificates, licence;
                                      an import restores them
    datapackage.json                  all of these with their digests, and the manifest as `stillweb`

Members are stored, not deflated (WACZ 1.1.1 §5.1: readers seek in them), in a fixed order with the oldest
date of the ZIP format. Only members beyond 2 GiB have ZIP64 fields: wabac.js cannot read a local ZIP64 field.

A HAR holds content, entry by entry in recorded order. Bodies are decoded, as HAR demands: text in UTF-8 as
text, all else in base64. WebSocket messages are in `_webSocketMessages`, as Chrome writes them. A HAR has no
rules, baselines or manifest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

from stillweb import __version__
from stillweb.collections.importers.pagefinder import page_text
from stillweb.collections.importers.wacz import EXTRA_FOLDER, EXTRAS
from stillweb.collections.indexing import refresh_index
from stillweb.collections.layout import Collection, page_members
from stillweb.collections.pack.frames import frame_entry
from stillweb.collections.warc.frames import BINARY, TEXT, is_socket_url, read_frames
from stillweb.collections.warc.reader import gzip_member
from stillweb.collections.warc.records import iso_date
from stillweb.errors import CollectionError, UsageError
from stillweb.files import replaced
from stillweb.http.codec import decoded_body
from stillweb.model import Capture, Exchange, Headers, Page, header
from stillweb.urls import from_timestamp, wire_url

logger = logging.getLogger(__name__)

_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16
_BLOCK_LINES = 300  # as in py-wacz
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class _WaczMember:
    """A file of the WACZ: its content, or a path to it."""

    name: str
    source: Path | bytes

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def pieces(self) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            yield self.source
            return
        with self.source.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def resource(self, number: int) -> dict[str, Any]:
        """Return the member's entry in datapackage.json; its name is a slug (Data Package §3.3)."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        slug = _slug(self.name)
        name = slug if number == 0 else f"{number}-{slug}"
        return {"name": name, "path": self.name, "hash": f"sha256:{digest.hexdigest()}", "bytes": self.size}


def export(collection: Collection, target: Path, *, described: Mapping[str, Any] | None = None) -> Path:
    """Write a collection to a WACZ, or to a HAR if the name ends in `.har`; return the path.

    Args:
        described: further members of datapackage.json.

    Raises:
        UsageError: if the collection has no WARC file.
    """
    _require_archive(collection)
    refresh_index(collection)
    if target.suffix == ".har":
        return _write_har(collection, target)
    pages = list(_page_lines(collection))
    members = list(_members(collection, pages))
    package = _package(collection, members, pages) | dict(described or {})
    text = json.dumps(package, indent=2, sort_keys=True).encode("utf-8") + b"\n"
    digest = {"path": "datapackage.json", "hash": f"sha256:{hashlib.sha256(text).hexdigest()}"}
    members.append(_WaczMember("datapackage.json", text))
    members.append(
        _WaczMember("datapackage-digest.json", json.dumps(digest, indent=2).encode("utf-8") + b"\n")
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as out:
        _write_zip(out, members, zipfile.ZIP_STORED)
    return target


def write_extras(collection: Collection, out: BinaryIO) -> None:
    """Write a ZIP of what a collection has besides archive and pack; `unpack_extras` restores it."""
    members = [_WaczMember(_extra_name(name), path) for name, path in sorted(_extras(collection))]
    if (pages := collection.pages / "pages.jsonl").is_file():
        members.append(_WaczMember("pages/pages.jsonl", pages))
    _write_zip(out, members, zipfile.ZIP_DEFLATED)


def _write_zip(target: BinaryIO, members: Iterable[_WaczMember], method: int) -> None:
    with zipfile.ZipFile(target, "w", method) as archive:
        for member in members:
            info = _info(member)
            info.compress_type = method
            with archive.open(info, "w") as out:
                for piece in member.pieces():
                    out.write(piece)


def _info(member: _WaczMember) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member.name, _DATE)
    info.external_attr = _MODE
    info.create_system = 3
    info.file_size = member.size  # by which zipfile decides on ZIP64
    return info


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "-", name.rpartition("/")[2].lower())


def _require_archive(collection: Collection) -> None:
    collection.require_archive()
    if not collection.warc_files():
        hint = f"stillweb record crawl URL -c {collection.name} --append"
        raise UsageError(f"collection {collection.name!r} has no WARC file", hint=hint)


def _members(collection: Collection, pages: list[dict[str, Any]]) -> Iterator[_WaczMember]:
    for path in collection.warc_files():
        yield _WaczMember(f"archive/{path.name}", path)
    yield from _index(collection)
    if pages:
        head = {"format": "json-pages-1.0", "id": "pages", "title": "All Pages", "hasText": True}
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *pages])
        yield _WaczMember("pages/pages.jsonl", text.encode("utf-8", "backslashreplace"))
    for name, path in sorted(_extras(collection)):
        yield _WaczMember(_extra_name(name), path)


def _index(collection: Collection) -> Iterator[_WaczMember]:
    """Yield the compressed index (ZipNum): blocks of lines, and a line with the first key of each block."""
    blocks: list[bytes] = []
    keys = ['!meta 0 {"format": "cdxj-gzip-1.0", "filename": "index.cdx.gz"}']
    at = 0
    remaining = _index_lines(collection)
    while lines := list(islice(remaining, _BLOCK_LINES)):
        block = gzip_member(b"".join(lines))
        place = {"offset": at, "length": len(block), "digest": f"sha256:{hashlib.sha256(block).hexdigest()}"}
        prefix = b" ".join(lines[0].split(b" ", 2)[:2]).decode("utf-8", "surrogateescape")
        keys.append(f"{prefix} {json.dumps(place | {'filename': 'index.cdx.gz'})}")
        blocks.append(block)
        at += len(block)
    text = "".join(f"{key}\n" for key in keys).encode("utf-8", "surrogateescape")
    yield _WaczMember("indexes/index.cdx.gz", b"".join(blocks))
    yield _WaczMember("indexes/index.idx", text)


def _index_lines(collection: Collection) -> Iterator[bytes]:
    with collection.index_file.open("rb") as lines:
        for line in lines:
            if line.strip() and not line.startswith(b"!"):
                yield line if line.endswith(b"\n") else line + b"\n"


def _page_lines(collection: Collection) -> Iterator[dict[str, Any]]:
    pages = collection.page_list()
    captures: dict[str, list[Capture]] = {wire_url(page.url): [] for page in pages}
    for capture in collection.captures():
        if capture.method == "GET" and (found := captures.get(wire_url(capture.url))) is not None:
            found.append(capture)
    for number, page in enumerate(pages, start=1):
        record = _record_of(page, captures[wire_url(page.url)])
        line = page_members(replace(page, timestamp=record.timestamp) if record else page)
        line["id"] = page.id or f"page-{number}"
        if text := _text_of(collection, page, record):
            line["text"] = text
        yield line


def _record_of(page: Page, captures: list[Capture]) -> Capture | None:
    """Return the first capture of a page's URL since the page's time, else the last one before."""
    ordered = sorted(captures, key=Capture.in_time)
    since = [each for each in ordered if each.timestamp >= page.timestamp]
    return since[0] if since else ordered[-1] if ordered else None


def _text_of(collection: Collection, page: Page, capture: Capture | None) -> str:
    """Return the text of a page's baseline, else that of its HTML."""
    text = collection.baseline / page.baseline / "text.txt"
    if page.baseline and text.is_file():
        return text.read_text("utf-8", "replace")
    try:
        return page_text(collection.read_capture(capture).response) if capture else ""
    except CollectionError:
        return ""


def _extra_name(path: str) -> str:
    """Return a name one folder deep: py-wacz finds no deeper file in datapackage.json."""
    folder, _, name = f"{EXTRA_FOLDER}/{path}".rpartition("/")
    return f"{folder.replace('/', ',')}/{name}"


def _extras(collection: Collection) -> Iterator[tuple[str, Path]]:
    found = [path for path in collection.path.iterdir() if path.is_file()]
    for folder in ("baseline", "branches", "tasks", "traces"):
        found += (collection.path / folder).rglob("*")
    for path in found:
        name = path.relative_to(collection.path).as_posix()
        if path.is_file() and EXTRAS.fullmatch(name):
            yield name, path


def _package(
    collection: Collection, members: list[_WaczMember], pages: list[dict[str, Any]]
) -> dict[str, Any]:
    manifest = collection.manifest()
    seen: dict[str, int] = {}
    resources = []
    for member in members:
        slug = _slug(member.name)
        resources.append(member.resource(seen.get(slug, 0)))
        seen[slug] = seen.get(slug, 0) + 1
    package: dict[str, Any] = {
        "profile": "data-package",
        "wacz_version": "1.1.1",
        "title": collection.name,
        "software": f"stillweb/{__version__}",
        "resources": resources,
        "stillweb": manifest.to_dict(),
    }
    if manifest.created:
        package["created"] = manifest.created
    if pages:
        package["mainPageUrl"] = pages[0]["url"]
        package["mainPageDate"] = pages[0]["ts"]
    return {name: value for name, value in package.items() if value}


# --- HAR ---------------------------------------------------------------------------------------------


def _write_har(collection: Collection, target: Path) -> Path:
    """Write a collection to a HAR file, atomically; return its path.

    Captures that cannot be read are left out: `collections check` reports them.
    """
    pages = _har_pages(collection)
    creator = {"name": "stillweb", "version": __version__}
    head = {"version": "1.2", "creator": creator, "pages": [_page(*each) for each in enumerate(pages, 1)]}
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as out:
        out.write(b'{"log": ' + _json_bytes(head)[:-1] + b', "entries": [')
        for number, entry in enumerate(_entries(collection, pages)):
            out.write((b",\n" if number else b"\n") + _json_bytes(entry))
        out.write(b"\n]}}\n")
    return target


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _har_pages(collection: Collection) -> list[Page]:
    """Return the pages that have an entry, each URL once: readers of HARs refuse a page without entries."""
    recorded = {wire_url(each.url) for each in collection.captures() if each.method == "GET"}
    pages: dict[str, Page] = {}
    for page in collection.page_list():
        pages.setdefault(wire_url(page.url), page)
    return [page for url, page in pages.items() if url in recorded]


def _page(number: int, page: Page) -> dict[str, Any]:
    return {
        "startedDateTime": iso_date(page.timestamp),
        "id": _page_id(number),
        "title": page.title or page.url,
        "pageTimings": {},
    }


def _page_id(number: int) -> str:
    return f"page_{number}"


def _entries(collection: Collection, pages: list[Page]) -> Iterator[dict[str, Any]]:
    # An import takes a page's URL from the first entry that refers to it, so only that entry does.
    waiting = {wire_url(page.url): _page_id(number) for number, page in enumerate(pages, 1)}
    captures = sorted(collection.captures(), key=Capture.in_time)
    for capture in captures:
        try:
            entry = _entry(collection, capture, collection.read_capture(capture))
        except CollectionError as error:
            logger.warning("left out of the HAR: %s", error)
            continue
        if capture.method == "GET" and (page := waiting.pop(wire_url(capture.url), None)):
            entry["pageref"] = page
        yield entry


def _entry(collection: Collection, capture: Capture, exchange: Exchange) -> dict[str, Any]:
    request, response = exchange.request, exchange.response
    version = "HTTP/2" if exchange.protocol == "h2" else "HTTP/1.1"
    common = {"httpVersion": version, "cookies": [], "headersSize": -1}
    request_entry = {
        "method": request.method,
        "url": request.url,
        "headers": _fields(request.headers),
        "queryString": [
            {"name": name, "value": value} for name, value in parse_qsl(urlsplit(request.url).query, True)
        ],
        "bodySize": len(request.raw_body),
        **common,
    }
    if request.raw_body:
        content_type = header(request.headers, "content-type")
        request_entry["postData"] = {"mimeType": content_type, **_text(request.raw_body, content_type)}
    entry = {
        "startedDateTime": iso_date(exchange.timestamp),
        "time": 0,
        "request": request_entry,
        "response": {
            "status": response.status,
            "statusText": response.reason,
            "headers": _fields(response.headers),
            "content": _content(exchange),
            "redirectURL": header(response.headers, "location"),
            "bodySize": len(response.raw_body),
            **common,
        },
        "cache": {},
        "timings": {"send": 0, "wait": 0, "receive": 0},
    }
    with suppress(ValueError):  # unknown, or a name in an archive of another program
        entry["serverIPAddress"] = str(ip_address(exchange.remote_ip.strip("[]")))
    if is_socket_url(request.url):
        entry |= {"_resourceType": "websocket", "_webSocketMessages": _messages(collection, capture)}
    return entry


def _fields(headers: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers]


def _content(exchange: Exchange) -> dict[str, Any]:
    response = exchange.response
    body = decoded_body(response)
    body = response.raw_body if body is None else body
    content_type = header(response.headers, "content-type")
    return {"size": len(body), "mimeType": content_type, **_text(body, content_type)}


def _text(body: bytes, content_type: str) -> dict[str, str]:
    """Return a body as `text`; in base64 unless a reader certainly encodes the text to the same bytes."""
    charset = content_type.lower().partition("charset=")[2].strip("\"' ;")
    if charset in ("", "utf-8", "utf8"):
        try:
            return {"text": body.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"text": base64.b64encode(body).decode("ascii"), "encoding": "base64"}


def _messages(collection: Collection, capture: Capture) -> list[dict[str, Any]]:
    entry = frame_entry(collection, capture)
    start = from_timestamp(capture.timestamp)
    return [
        {
            "type": "send" if frame.sent else "receive",
            "time": (start + timedelta(milliseconds=frame.ms)).timestamp(),
            "opcode": frame.opcode,
            "data": frame.payload.decode("utf-8", "replace")
            if frame.opcode == TEXT
            else base64.b64encode(frame.payload).decode("ascii"),
        }
        for frame in (read_frames(entry.response.raw_body).frames if entry else ())
        if frame.opcode in (TEXT, BINARY)
    ]
