"""One recorder at a time: a second, or a repair, would cut off what the first is writing."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stillweb.collections.manifest import (
    Manifest,
    manifest_of_pack,
    read_manifest,
    write_atomically,
    write_manifest,
)
from stillweb.collections.redactions import sum_of
from stillweb.collections.warc.cdxj import read_cdxj
from stillweb.collections.warc.exchanges import Originals, read_exchange
from stillweb.collections.warc.records import clean_uri, iso_date, timestamp_of
from stillweb.errors import CollectionError, CollectionExists, CollectionNotFound, UsageError
from stillweb.model import Capture, Exchange, Page

__all__ = ["Collection", "default_root", "list_collections", "locked", "read_pages"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PAGE_FIELDS = {"id", "url", "ts", "title", "seed", "depth", "status", "baseline"}


def default_root() -> Path:
    """Return the folder of the collections: $STILLWEB_COLLECTIONS, else `collections`."""
    return Path(os.environ.get("STILLWEB_COLLECTIONS", "collections"))


class Collection:
    """A named folder of recordings under a root."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = Path(root)
        self.name = name
        self.path = self.root / name
        self._originals: Originals | None = None

    def __repr__(self) -> str:
        return f"Collection({str(self.root)!r}, {self.name!r})"

    @property
    def archive(self) -> Path:
        """Folder of the WARC files."""
        return self.path / "archive"

    @property
    def indexes(self) -> Path:
        """Folder of the index."""
        return self.path / "indexes"

    @property
    def pages(self) -> Path:
        """Folder of the page lists."""
        return self.path / "pages"

    @property
    def baseline(self) -> Path:
        """Folder of what pages looked like."""
        return self.path / "baseline"

    @property
    def logs(self) -> Path:
        """Folder of the logs of other programs that recorded it."""
        return self.path / "logs"

    @property
    def pack(self) -> Path:
        """Folder of the sealed form."""
        return self.path / "pack"

    @property
    def index_file(self) -> Path:
        """The index, `indexes/index.cdxj`."""
        return self.indexes / "index.cdxj"

    @property
    def manifest_file(self) -> Path:
        """`manifest.json`."""
        return self.path / "manifest.json"

    @property
    def redactions_file(self) -> Path:
        """What was taken out of its records, span by span; not there where nothing was."""
        return self.path / "redactions.jsonl"

    @classmethod
    def open(cls, root: Path, name: str) -> Collection:
        """Return the collection of a name.

        Raises:
            CollectionNotFound: if there is none; the hint has the names there are, close ones first.
        """
        collection = cls(root, name)
        if not _NAME.fullmatch(name) or not _is_collection(collection.path):
            from rapidfuzz import process as fuzzy  # 80 ms that only who errs has to wait

            names = [each.name for each in list_collections(root)]
            close = [match[0] for match in fuzzy.extract(name, names, limit=8)]
            hint = (
                f"there are: {', '.join(close)}" if close else "stillweb collections import FILE... -c NAME"
            )
            raise CollectionNotFound(f"no collection {name!r} in {root}", hint=hint)
        return collection

    @classmethod
    def create(cls, root: Path, name: str) -> Collection:
        """Make the folders of a new collection.

        Raises:
            UsageError: if the name cannot be one.
            CollectionExists: if there is one of that name.
        """
        check_name(name)
        collection = cls(root, name)
        if collection.path.exists():
            hint = f"another name, --append, or: stillweb collections rm {name} --yes"
            raise CollectionExists(f"collection {name!r} is in {root} already", hint=hint)
        for folder in (collection.archive, collection.indexes, collection.pages):
            folder.mkdir(parents=True)
        return collection

    @property
    def is_only_pack(self) -> bool:
        """Whether it is a pack alone, without what that was sealed from."""
        return not self.archive.is_dir() and (self.pack / "digest").exists()

    def require_archive(self) -> None:
        """Refuse what needs the recording itself.

        Raises:
            CollectionError: if it is a pack alone.
        """
        if self.is_only_pack:
            raise CollectionError(
                "is a pack alone: what it was sealed from is not here, so it can be replayed and no more",
                path=self.path,
                hint="do it where it was recorded, then: stillweb collections push NAME URL, pull NAME URL",
            )

    def manifest(self) -> Manifest:
        """Read the manifest; where there is a pack alone, what that says of the recording."""
        if self.is_only_pack:
            return manifest_of_pack(self.pack / self.manifest_file.name, self.name)
        return read_manifest(self.manifest_file)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest atomically, with the sum of what was redacted up to now."""
        if redactions := sum_of(self.redactions_file):
            manifest = replace(manifest, redactions=redactions)
        write_manifest(self.manifest_file, manifest)

    def warc_files(self) -> list[Path]:
        """Return the files of `archive/`, sorted by name."""
        if self.is_only_pack:
            return []
        return sorted(path for path in self.archive.iterdir() if path.is_file() and path.suffix != ".part")

    def captures(self) -> Iterator[Capture]:
        """Yield the captures of the index, in its order; nothing if there is no index yet."""
        if self.index_file.exists():
            yield from read_cdxj(self.index_file)

    def count_lines(self) -> int:
        """Return the number of lines of the index: about that of the captures, at little cost."""
        if not self.index_file.exists():
            return 0
        with self.index_file.open("rb") as lines:
            return sum(1 for _ in lines)

    def read_capture(self, capture: Capture) -> Exchange:
        """Read a capture's exchange from the archive; a revisit gets its original's body.

        A response without a request counts as answer to a bare request of the capture's method.

        Raises:
            MissingRecord: if the file, the record or a revisit's original is not there.
            MalformedWarc: if the record cannot be read.
        """
        if self._originals is None and capture.mime == "warc/revisit":
            self._originals = Originals(self.captures())
        return read_exchange(self.archive, capture, self._originals)

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchange of every capture, in the index's order."""
        for capture in self.captures():
            yield self.read_capture(capture)

    def page_list(self) -> list[Page]:
        """Return the pages, those of `pages.jsonl` before those of `extraPages.jsonl`."""
        return list(self.each_page())

    def each_page(self) -> Iterator[Page]:
        """Yield the pages of `page_list`, reading no further than is asked for."""
        for name in ("pages.jsonl", "extraPages.jsonl"):
            yield from read_pages(self.pages / name)

    def write_pages(self, pages: list[Page]) -> None:
        """Write `pages.jsonl` atomically; an `extraPages.jsonl` goes, since its pages were in the list."""
        head = {"format": "json-pages-1.0", "id": "pages", "title": "All Pages"}
        lines = [json.dumps(line, ensure_ascii=False) for line in [head, *map(_page_members, pages)]]
        # Titles cut within a character are seen; a surrogate is written as JSON's escape of it.
        text = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        write_atomically(self.pages / "pages.jsonl", text)
        (self.pages / "extraPages.jsonl").unlink(missing_ok=True)


def check_name(name: str) -> None:
    """Refuse a name that is not one of a collection.

    Raises:
        UsageError: if it is not lower-case letters, digits, `.`, `_` and `-`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a collection",
            hint="use lower-case letters, digits, '.', '_' and '-', a letter or digit first",
        )


def list_collections(root: Path) -> list[Collection]:
    """Return the collections of a root, sorted by name; none if the folder is not there."""
    if not root.is_dir():
        return []
    found = (path for path in root.iterdir() if _NAME.fullmatch(path.name) and _is_collection(path))
    return [Collection(root, path.name) for path in sorted(found)]


def _is_collection(path: Path) -> bool:
    return (path / "archive").is_dir() or (path / "pack" / "digest").exists()


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages of a `pages.jsonl`; lines that are none are passed over, as WACZ readers do."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                members = json.loads(line)
            except ValueError:
                continue
            if isinstance(members, dict) and isinstance(members.get("url"), str):
                yield _page(members, seed=not path.name.endswith("extraPages.jsonl"))


def _page(members: dict[str, Any], *, seed: bool) -> Page:
    return Page(
        url=clean_uri(members["url"]),
        timestamp=timestamp_of(str(members.get("ts", ""))),
        title=str(members.get("title") or ""),
        id=str(members.get("id") or ""),
        seed=bool(members.get("seed", seed)),
        depth=_whole(members.get("depth")),
        status=_whole(members.get("status")),
        baseline=str(members.get("baseline") or ""),
        extra={
            name: value
            for name, value in members.items()
            if name not in _PAGE_FIELDS and isinstance(value, str) and name != "text"
        },
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _page_members(page: Page) -> dict[str, Any]:
    members: dict[str, Any] = {**page.extra, "id": page.id, "url": page.url, "ts": iso_date(page.timestamp)}
    members |= {"title": page.title, "seed": page.seed, "depth": page.depth}
    if page.status:
        members["status"] = page.status
    if page.baseline:
        members["baseline"] = page.baseline
    return members


@contextmanager
def locked(collection: Collection) -> Iterator[None]:
    """Keep a collection from whoever else would record into it, repair it or remove it.

    Its folder is locked, so no file is left, and it is free when this process ends, by a kill, too.

    Raises:
        CollectionError: if another holds it.
    """
    folder = os.open(collection.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectionError(
                "is being recorded by another process",
                path=collection.path,
                hint="wait for its end, or end it with Ctrl-C",
            ) from None
        except OSError:  # a file system that has no locks, such as some of the network: as it was without
            pass
        yield
    finally:
        os.close(folder)
