"""Export of a collection as WACZ 1.1.1: the same collection gives the same bytes.

    archive/*.warc.gz                 the WARC files
    indexes/index.cdx.gz, index.idx   the CDXJ lines in gzip blocks, and the first key of each block, as in
                                      py-wacz; `wb-manager add --unpack-wacz` reads no other index
    pages/pages.jsonl                 the pages with their text, which ReplayWeb.page searches; the time of a
                                      page is that of its record, by which readers find it
    stillweb/..., stillweb,.../...    rules, baselines, traces, tasks, certificates; an import restores them
    datapackage.json                  all of these with their digests, and the manifest as `stillweb`

Members are stored, not deflated (WACZ 1.1.1 §5.1: readers seek in them), in a fixed order with the oldest
date of the ZIP format. Only members beyond 2 GiB have ZIP64 fields: wabac.js cannot read a local ZIP64 field.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stillweb import __version__
from stillweb.collections.export_har import write_har
from stillweb.collections.importers.pagefinder import page_text
from stillweb.collections.layout import Collection, page_members
from stillweb.collections.warc.reader import gzip_member
from stillweb.errors import CollectionError, UsageError
from stillweb.model import Capture, Page
from stillweb.urls import wire_url

__all__ = ["export", "extra_path"]

_EXTRA_FOLDER = "stillweb"
_EXTRAS = re.compile(
    r"(?:rules|diff)\.yaml|amends\.json|(?:reachability|redactions)\.jsonl|certificate-[\w.-]+\.json"
    r"|tasks\.(?:yaml|json|jsonl)|(?:baseline|traces|tasks)/(?:[\w@+-][\w.@+-]*/){0,3}[\w@+-][\w.@+-]*"
)
"""Further files of a collection that travel in a WACZ, as paths relative to the collection."""

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


def export(collection: Collection, target: Path) -> Path:
    """Write a collection to a WACZ, or to a HAR if the name ends in `.har`; return the path.

    Raises:
        UsageError: if the collection has no WARC file or no index.
    """
    _require_index(collection)
    if target.suffix == ".har":
        return write_har(collection, target)
    pages = list(_page_lines(collection))
    members = list(_members(collection, pages))
    package = (
        json.dumps(_package(collection, members, pages), indent=2, sort_keys=True).encode("utf-8") + b"\n"
    )
    digest = {"path": "datapackage.json", "hash": f"sha256:{hashlib.sha256(package).hexdigest()}"}
    members.append(_WaczMember("datapackage.json", package))
    members.append(
        _WaczMember("datapackage-digest.json", json.dumps(digest, indent=2).encode("utf-8") + b"\n")
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            with archive.open(_info(member), "w") as out:
                for piece in member.pieces():
                    out.write(piece)
    part.replace(target)
    return target


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode("utf-8") + b"\n"


def _info(member: _WaczMember) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member.name, _DATE)
    info.external_attr = _MODE
    info.create_system = 3
    info.file_size = member.size  # by which zipfile decides on ZIP64
    return info


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "-", name.rpartition("/")[2].lower())


def _require_index(collection: Collection) -> None:
    collection.require_archive()
    warcs = collection.warc_files()
    if not warcs or not collection.index_file.exists():
        what = "no WARC file" if not warcs else "no index"
        hint = f"stillweb collections check {collection.name} --repair"
        raise UsageError(f"collection {collection.name!r} has {what}", hint=hint)


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
    ordered = sorted(captures, key=lambda each: (each.timestamp, each.source, each.offset))
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
    folder, _, name = f"{_EXTRA_FOLDER}/{path}".rpartition("/")
    return f"{folder.replace('/', ',')}/{name}"


def extra_path(name: str) -> str:
    """Return the path in the collection of a member that `export` added; "" for others."""
    folder, _, file = name.rpartition("/")
    top, *parts = folder.split(",")
    path = "/".join([*parts, file])
    return path if top == _EXTRA_FOLDER and "/" not in folder and _EXTRAS.fullmatch(path) else ""


def _extras(collection: Collection) -> Iterator[tuple[str, Path]]:
    found = [path for path in collection.path.iterdir() if path.is_file()]
    for folder in ("baseline", "tasks", "traces"):
        found += (collection.path / folder).rglob("*")
    for path in found:
        name = path.relative_to(collection.path).as_posix()
        if path.is_file() and _EXTRAS.fullmatch(name):
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
