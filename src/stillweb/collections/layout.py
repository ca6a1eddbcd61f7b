"""Collections on disk: a folder of archives, index, pages, baselines and pack, with a lock.

    NAME/manifest.json  archive/*.warc.gz  indexes/index.cdxj  pages/pages.jsonl  baseline/PAGE/  pack/
    NAME/rules.yaml     redactions.jsonl   amends.json         versions/          logs/           traces/

Only one process may record into a collection or repair it: a second one would truncate the record that the
first is writing.
"""

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

from stillweb.collections.limits import load_json
from stillweb.collections.manifest import Manifest, manifest_of_pack, read_manifest, write_manifest
from stillweb.collections.redactions import sum_of
from stillweb.collections.warc.cdxj import read_cdxj
from stillweb.collections.warc.exchanges import Originals, read_exchange, read_request
from stillweb.collections.warc.records import clean_uri, iso_date, timestamp_of
from stillweb.errors import CollectionError, CollectionExists, CollectionNotFound, UsageError
from stillweb.files import write_atomically
from stillweb.model import Capture, Exchange, Page, Request

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PAGE_FIELDS = {"id", "url", "ts", "title", "seed", "depth", "status", "baseline"}


class Collection:
    """A named folder of recordings under a root."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = Path(root)
        self.name = name
        self.path = self.root / name
        self._originals: Originals | None = None
        self._originals_of = (0, 0)  # time and size of the index that they were read from

    def __repr__(self) -> str:
        return f"Collection({str(self.root)!r}, {self.name!r})"

    @property
    def archive(self) -> Path:
        return self.path / "archive"

    @property
    def indexes(self) -> Path:
        return self.path / "indexes"

    @property
    def pages(self) -> Path:
        return self.path / "pages"

    @property
    def baseline(self) -> Path:
        return self.path / "baseline"

    @property
    def logs(self) -> Path:
        """Folder of the logs of other recorders."""
        return self.path / "logs"

    @property
    def pack(self) -> Path:
        return self.path / "pack"

    @property
    def index_file(self) -> Path:
        return self.indexes / "index.cdxj"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def redactions_file(self) -> Path:
        """Spans removed from its records; missing if nothing was redacted."""
        return self.path / "redactions.jsonl"

    @classmethod
    def open(cls, root: Path, name: str) -> Collection:
        """Return the collection of a name.

        Raises:
            CollectionNotFound: if it does not exist; the hint lists existing names, similar ones first.
        """
        collection = cls(root, name)
        if not _NAME.fullmatch(name) or not _is_collection(collection.path):
            from rapidfuzz import process as fuzzy  # takes 80 ms to import, needed only for the hint

            names = [each.name for each in list_collections(root)]
            close = [match[0] for match in fuzzy.extract(name, names, limit=8)]
            new = f"stillweb record crawl URL -c {name}, or: stillweb collections import FILE... -c {name}"
            hint = f"use one of: {', '.join(close)}" if close else new
            raise CollectionNotFound(f"no collection {name!r} in {root}", hint=hint)
        return collection

    @classmethod
    def create(cls, root: Path, name: str) -> Collection:
        """Create the folders of a new collection.

        Raises:
            UsageError: if the name is invalid.
            CollectionExists: if the name is taken.
        """
        check_name(name)
        collection = cls(root, name)
        if collection.path.exists():
            hint = f"use another name, --append, or: stillweb collections rm {name} --yes"
            raise CollectionExists(f"collection {name!r} exists already in {root}", hint=hint)
        collection.make_folders()
        return collection

    def make_folders(self) -> None:
        """Create the folders of a recording."""
        for folder in (self.archive, self.indexes, self.pages):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_only_pack(self) -> bool:
        """True if the collection consists of a pack without the recording that it was sealed from."""
        return not self.archive.is_dir() and (self.pack / "digest").exists()

    def require_archive(self) -> None:
        """Raise unless the recording itself is here.

        Raises:
            CollectionError: if the collection consists of a pack only.
        """
        if self.is_only_pack:
            raise CollectionError(
                "consists of a pack only: without its recording it can be replayed, but nothing else",
                path=self.path,
                hint="run it where it was recorded, then: stillweb collections push NAME URL, pull NAME URL",
            )

    def manifest(self) -> Manifest:
        """Read the manifest; for a pack alone, the pack's copy of it."""
        if self.is_only_pack:
            return manifest_of_pack(self.pack / self.manifest_file.name, self.name)
        return read_manifest(self.manifest_file)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest atomically, with the current sum of redactions."""
        if redactions := sum_of(self.redactions_file):
            manifest = replace(manifest, redactions=redactions)
        write_manifest(self.manifest_file, manifest)

    def warc_files(self) -> list[Path]:
        if self.is_only_pack:
            return []
        return sorted(path for path in self.archive.iterdir() if path.is_file() and path.suffix != ".part")

    def captures(self) -> Iterator[Capture]:
        """Yield the captures of the index, in its order; nothing without an index."""
        if self.index_file.exists():
            yield from read_cdxj(self.index_file)

    def count_lines(self) -> int:
        """Return the number of lines of the index, which is a cheap estimate of the number of captures."""
        if not self.index_file.exists():
            return 0
        with self.index_file.open("rb") as lines:
            return sum(1 for _ in lines)

    def read_capture(self, capture: Capture) -> Exchange:
        """Read a capture's exchange from the archive; a revisit gets its original's body.

        A response without a request counts as the response to a bare request with the capture's method.

        Raises:
            MissingRecord: if the file, the record or a revisit's original is missing.
            MalformedWarc: if the record cannot be read.
        """
        if capture.mime == "warc/revisit":
            self._read_originals()
        return read_exchange(self.archive, capture, self._originals)

    def read_request(self, capture: Capture) -> Request:
        """Read a capture's request; its answer, which may be long, is left unread if the method is GET.

        Raises:
            MissingRecord, MalformedWarc: as `read_capture`.
        """
        return read_request(self.archive, capture)

    def _read_originals(self) -> None:
        """Read the originals of revisits again when the index has changed: a recorder may be running."""
        if not self.index_file.exists():
            return
        status = self.index_file.stat()
        index = (status.st_mtime_ns, status.st_size)
        if self._originals is None or index != self._originals_of:
            self._originals, self._originals_of = Originals(self.captures()), index

    def exchanges(self) -> Iterator[Exchange]:
        for capture in self.captures():
            yield self.read_capture(capture)

    def page_list(self) -> list[Page]:
        """Return the pages, those of `pages.jsonl` before those of `extraPages.jsonl`."""
        return list(self.each_page())

    def each_page(self) -> Iterator[Page]:
        """Yield the pages of `page_list` lazily."""
        for name in ("pages.jsonl", "extraPages.jsonl"):
            yield from read_pages(self.pages / name)

    def write_pages(self, pages: list[Page]) -> None:
        """Write `pages.jsonl` atomically; remove `extraPages.jsonl`, whose pages were in the list."""
        head = {"format": "json-pages-1.0", "id": "pages", "title": "All Pages"}
        lines = [json.dumps(line, ensure_ascii=False) for line in [head, *map(page_members, pages)]]
        # Some titles end within a character; a lone surrogate is written as its JSON escape.
        text = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        write_atomically(self.pages / "pages.jsonl", text)
        (self.pages / "extraPages.jsonl").unlink(missing_ok=True)


def check_name(name: str) -> None:
    """Raise if a name is invalid.

    Raises:
        UsageError: if it is not lower-case letters, digits, `.`, `_` and `-`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid collection name",
            hint="use lower-case letters, digits, '.', '_' and '-', a letter or digit first",
        )


def list_collections(root: Path) -> list[Collection]:
    """Return the collections of a root, sorted by name; none if the folder is missing."""
    if not root.is_dir():
        return []
    found = (path for path in root.iterdir() if _NAME.fullmatch(path.name) and _is_collection(path))
    return [Collection(root, path.name) for path in sorted(found)]


def _is_collection(path: Path) -> bool:
    return (path / "archive").is_dir() or (path / "pack" / "digest").exists()


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages of a `pages.jsonl`; invalid lines are ignored, as in WACZ readers."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                members = load_json(line, path=path)
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


def page_members(page: Page) -> dict[str, Any]:
    """Return a page as a line of `pages.jsonl`."""
    members: dict[str, Any] = {**page.extra, "id": page.id, "url": page.url, "ts": iso_date(page.timestamp)}
    members |= {"title": page.title, "seed": page.seed, "depth": page.depth}
    if page.status:
        members["status"] = page.status
    if page.baseline:
        members["baseline"] = page.baseline
    return members


@contextmanager
def locked(collection: Collection) -> Iterator[None]:
    """Lock a collection against other processes that record into it, repair or remove it.

    The lock is on the folder, so it leaves no file, and it ends with the process, even after a kill.

    Raises:
        CollectionError: if another process holds the lock.
    """
    folder = os.open(collection.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectionError(
                "is in use by another recording or repair",
                path=collection.path,
                hint="wait for it to finish, or stop it with Ctrl-C",
            ) from None
        except OSError:  # some network file systems have no locks: continue without one
            pass
        yield
    finally:
        os.close(folder)
