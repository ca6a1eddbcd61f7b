"""Import of archives into a collection: WARC, ARC, WACZ, multi-WACZ, HAR, page lists and folders of them.

A new collection is built in a temporary folder and renamed to its name; additions to an existing one are
staged there and moved at the end. A failed import leaves nothing behind. A WARC with one gzip member per
record keeps its bytes; all other files are rewritten in that form, and unreadable parts are reported by file
and offset. An import without a single capture is refused, since it would replay as an empty web.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from stillweb import clock
from stillweb.collections.branches import TEMPLATES, read_templates
from stillweb.collections.defects import NEEDS_REWRITE, Defect, Report, Severity, ignore
from stillweb.collections.importers import browsertrix, wacz
from stillweb.collections.importers.har import HarFile
from stillweb.collections.importers.pagefinder import complete_manifest, find_pages
from stillweb.collections.indexing import INDEXED, index_file, index_lines, rewrite_records
from stillweb.collections.layout import Collection, check_name, read_pages
from stillweb.collections.manifest import Manifest
from stillweb.collections.warc.cdxj import format_line, read_cdxj, write_lines
from stillweb.collections.warc.exchanges import REVISIT, without_original
from stillweb.collections.warc.frames import RecordFrames
from stillweb.collections.warc.reader import GZIP_MAGIC, first_bytes, sniff, unpack_zstd
from stillweb.collections.warc.records import WarcRecord
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError, CollectionExists, MalformedWarc, NoResponses, UsageError
from stillweb.matching.rules import Rules
from stillweb.model import Capture, Exchange, Page

Progress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes read and the total."""

_SKIPPED_ENTRIES = ("bad-entry", "no-body")
_NAMED_ENTRIES = 50
_MERGED = frozenset({"archive", "indexes", "manifest.json", "pages"})

_SUFFIX = re.compile(r"\.w?arc(\.(gz|zst))?$|\.gz$", re.IGNORECASE)


def _check_rules(path: Path) -> None:
    Rules.parse(path.read_text("utf-8", "replace"), file=path.name)


_VALIDATED = {"rules.yaml": _check_rules, TEMPLATES: read_templates}
"""Files of an export that are checked before they are restored."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """Result of importing one path.

    Attributes:
        kind: "warc", "arc", "wacz", "har", "pages", or "skipped" for other files of a folder.
        rewritten: whether its records were rewritten, one gzip member each.
    """

    path: str
    kind: str
    captures: int
    records: int
    rewritten: bool
    defects: tuple[Defect, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import."""

    name: str
    files: tuple[FileReport, ...]
    captures: int
    pages: int
    found: tuple[Defect, ...] = ()

    @property
    def defects(self) -> tuple[Defect, ...]:
        """The defects of all files, and those of the collection as a whole."""
        return (*(defect for file in self.files for defect in file.defects), *self.found)


def import_files(
    paths: Sequence[Path], root: Path, name: str, *, append: bool = False, on_progress: Progress | None = None
) -> ImportReport:
    """Import files and folders into a collection, which is new unless `append` is set.

    Raises:
        UsageError: if a path does not exist or the name is invalid.
        CollectionExists: if the collection exists and `append` is not set.
        MalformedWarc, MalformedWacz, MalformedHar: if a named file is of no supported kind, or all files
            together hold no capture.
    """
    check_name(name)
    target = Collection(root, name)
    if target.path.exists() and not append:
        hint = f"add to it with --append, or: stillweb collections rm {name} --yes"
        raise CollectionExists(f"collection {name!r} exists already in {root}", hint=hint)
    target.require_archive()
    for path in paths:
        if not path.exists():
            raise UsageError(f"no such file: {path}", hint="check the path, relative to the present folder")
    with _staging(root, name) as folder:
        stage = _Staging(folder, target, on_progress)
        files = [report for path in paths for report in stage.take(path)]
        if not stage.captures:
            raise _nothing_in(files)
        pages = stage.finish(files)
    return ImportReport(name, tuple(files), stage.captures, pages, tuple(stage.found))


@contextmanager
def _staging(root: Path, name: str) -> Iterator[Path]:
    folder = root / f".import-{name}-{clock.new_id()}"
    made = not root.exists()
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not any(root.iterdir()):
            root.rmdir()


def _nothing_in(files: list[FileReport]) -> NoResponses:
    """Return the error for an import without captures, with the first defect as a possible cause."""
    if skipped := [each for file in files for each in file.defects if each.code in _SKIPPED_ENTRIES]:
        return _no_entries(files, skipped)
    defects = [each for file in files for each in file.defects if each.severity is Severity.ERROR]
    records = sum(file.records for file in files)
    path = files[0].path if len(files) == 1 else None
    what = f"holds no response to a URL, so nothing can be replayed ({records} records read"
    if defects:
        first = defects[0]
        place = f" at offset {first.offset}" if first.offset >= 0 else ""
        what += f"; {first.what}{place}"
    return NoResponses(what + ")", path=path, hint="name an archive with response records")


def _no_entries(files: list[FileReport], skipped: list[Defect]) -> NoResponses:
    """Return the error for HAR files without a usable entry: it says why, of each entry."""
    reasons = [each.what for each in skipped[:_NAMED_ENTRIES]]
    if more := len(skipped) - len(reasons):
        reasons.append(f"and {more} more")
    what = "holds no response to a URL, so nothing can be replayed"
    what += f" ({len(skipped)} entries: {'; '.join(reasons)})"
    hint = "record content: 'Export HAR (with content)' in DevTools, record_har_content='embed' in Playwright"
    return NoResponses(what, path=files[0].path if len(files) == 1 else None, hint=hint)


class ExchangeSource(Protocol):
    """A file of a format other than WARC, as exchanges and pages."""

    def __len__(self) -> int:
        """Return the number of entries, for progress."""

    def exchanges(self, report: Report) -> Iterable[tuple[Exchange, RecordFrames | None]]:
        """Yield the exchanges in recorded order, sockets with their frames; report other entries."""

    def pages(self) -> list[Page]:
        """Return the visited pages."""


class _Staging:
    """Imports files into a temporary folder beside the target collection."""

    def __init__(self, folder: Path, target: Collection, on_progress: Progress | None) -> None:
        self.folder, self.target, self.on_progress = folder, target, on_progress
        self.collection = Collection.create(folder, target.name)
        self.unpacked = folder / "unpacked"
        self.unpacked.mkdir()
        self.names = {path.name for path in target.warc_files()} if target.archive.is_dir() else set()
        self.manifest = Manifest(name=target.name)
        self.pages: list[Page] = []
        self.lines: list[bytes] = []
        self.captures = 0
        self.artifacts = browsertrix.BrowsertrixArtifacts(self.unpacked / "artifacts")
        self.found: list[Defect] = []

    def take(self, path: Path) -> Iterator[FileReport]:
        """Import a file or every file of a folder; yield a report for each."""
        if not path.is_dir():
            yield self._take_file(path, path.name, named=True)
            return
        files = sorted(each for each in path.rglob("*") if each.is_file() and "raw" not in each.parts)
        for each in files:
            yield self._take_file(each, str(each.relative_to(path.parent)), named=False)

    def _take_file(self, path: Path, label: str, *, named: bool) -> FileReport:
        kind = kind_of(path)
        defects: list[Defect] = []
        if kind in ("warc", "arc", "zstd"):
            return self._take_warc(path, path.name, label, kind, defects)
        if kind == "wacz":
            return self._take_wacz(path, label, defects)
        if kind == "har":
            return self._take_exchanges(HarFile.open(path), kind, path, label, defects)
        if kind == "har.zip":
            unpacked = wacz.unpack_har(path, self.unpacked / f"har-{len(self.names)}")
            report = self._take_exchanges(HarFile.open(unpacked), "har", unpacked, label, defects)
            return replace(report, path=str(path))
        if kind == "pages":
            self._take_pages(path)
            return FileReport(str(path), kind, 0, 0, False, ())
        if named:
            raise _unknown(path)
        return FileReport(str(path), "skipped", 0, 0, False, ())

    def _take_warc(
        self, path: Path, name: str, label: str, kind: str, defects: list[Defect], *, rewrite: bool = False
    ) -> FileReport:
        if kind == "zstd":
            return self._take_zstd(path, name, label, defects)
        size, records = path.stat().st_size, 0
        others: Counter[str] = Counter()

        def seen(record: WarcRecord) -> None:
            nonlocal records
            records += 1
            others.update(_not_replayed(record))
            self.artifacts.see(record)
            self._progress(label, record.offset + record.length, size)

        captures = index_file(path, defects.append, seen)
        if others:
            listed = ", ".join(f"{scheme} {count}" for scheme, count in sorted(others.items()))
            what = f"responses that no HTTP client requests are not replayed ({listed})"
            defects.append(Defect(Severity.NOTICE, "not-http", str(path), -1, what))
        rewrite = rewrite or kind == "arc" or any(each.code in NEEDS_REWRITE for each in defects)
        final = self.collection.archive / self._free_name(name)
        if kind == "arc":
            what = "an ARC file: converted to WARC"
            defects.append(Defect(Severity.NOTICE, "arc", str(path), 0, what))
        if rewrite:
            rewrite_records(path, final)
        else:
            shutil.copyfile(path, final)
        self._progress(label, size, size)
        if not records:
            final.unlink()
            return FileReport(str(path), kind, 0, 0, rewrite, tuple(defects))
        if rewrite:
            self.lines += index_lines(final, ignore)
        else:
            named = ((replace(capture, source=final.name), query) for capture, query in captures)
            self.lines += [format_line(capture, query) for capture, query in named]
        self.captures += len(captures)
        return FileReport(str(path), kind, len(captures), records, rewrite, tuple(defects))

    def _take_zstd(self, path: Path, name: str, label: str, defects: list[Defect]) -> FileReport:
        unpacked = self.unpacked / "zstd.warc"
        if end := unpack_zstd(path, unpacked):
            what = f"the file breaks off within a Zstandard frame ({end})"
            defects.append(Defect(Severity.ERROR, "corrupt", str(path), -1, what))
        what = "compressed with Zstandard: converted to gzip"
        defects.append(Defect(Severity.NOTICE, "zstd", str(path), -1, what))
        if (kind := sniff(unpacked)) not in ("warc", "arc"):
            raise MalformedWarc("Zstandard, but neither WARC nor ARC in it", path=path)
        heard: list[Defect] = []
        report = self._take_warc(unpacked, name.removesuffix(".zst"), label, kind, heard, rewrite=True)
        unpacked.unlink()
        # Offsets are those of the unpacked file, which is gone.
        inside = [replace(each, file=str(path), offset=-1) for each in heard if each.code != "plain"]
        return replace(report, path=str(path), rewritten=True, defects=(*defects, *inside))

    def _take_wacz(self, path: Path, label: str, defects: list[Defect]) -> FileReport:
        captures = records = 0
        rewritten = False
        self.manifest = wacz.read_manifest(path) or self.manifest
        for found in wacz.unpack(path, self.unpacked, defects.append):
            if found.kind == "pages":
                self._take_pages(found.path)
                continue
            if found.kind == "log":
                self._take_log(found.path, found.name)
                continue
            if found.kind == "extra":
                self._take_extra(found.path, found.name, path, defects)
                continue
            heard: list[Defect] = []
            name = found.name if found.name not in self.names else f"{_stem(found.label)}-{found.name}"
            kind = sniff(found.path) or "warc"
            report = self._take_warc(found.path, name, f"{label} {found.name}", kind, heard)
            inside = (
                f"{path}!{found.label}/{found.name}" if found.label != path.name else f"{path}!{found.name}"
            )
            defects += [replace(each, file=inside) for each in report.defects]
            captures, records = captures + report.captures, records + report.records
            rewritten = rewritten or report.rewritten
            found.path.unlink()
        return FileReport(str(path), "wacz", captures, records, rewritten, tuple(defects))

    def _take_extra(self, path: Path, name: str, wacz_path: Path, defects: list[Defect]) -> None:
        """Restore a file that an export added, unless the collection has it or it is invalid."""
        staged = self.collection.path / name
        what = ""
        taken = Path(*Path(name).parts[:2]) if name.startswith("baseline/") else Path(name)
        if staged.exists() or (self.target.path / taken).exists():
            what = f"{name} is not imported: the collection has {taken}"
        elif name in _VALIDATED:
            try:
                _VALIDATED[name](path)
            except CollectionError as error:
                what = f"{name} is not imported: {error}"
        if what:
            defects.append(Defect(Severity.WARNING, "extra", str(wacz_path), -1, what))
        else:
            staged.parent.mkdir(parents=True, exist_ok=True)
            path.rename(staged)

    def _take_pages(self, path: Path) -> None:
        self.pages += read_pages(path)
        self.artifacts.read_list(path)

    def _take_log(self, path: Path, name: str) -> None:
        """Store a crawler's log beside the archive, under an unused name."""
        number, free = 1, name
        while any((each.logs / free).exists() for each in (self.collection, self.target)):
            number += 1
            free = f"{number}-{name}"
        self.collection.logs.mkdir(exist_ok=True)
        path.rename(self.collection.logs / free)

    def _take_exchanges(
        self, source: ExchangeSource, kind: str, path: Path, label: str, defects: list[Defect]
    ) -> FileReport:
        """Write the exchanges of a file that is not a WARC into WARC files."""
        total, count = len(source), 0
        before = set(self.collection.warc_files())
        with CollectionWriter(self.collection, prefix=_stem(path.name)) as writer:
            for exchange, beside in source.exchanges(defects.append):
                writer.write(exchange, beside)
                count += 1
                self._progress(label, count, total)
        for written in sorted(set(self.collection.warc_files()) - before):
            final = written.with_name(self._free_name(f"{_stem(path.name)}.warc.gz"))
            written.rename(final)
            self.lines += index_lines(final)
        self.pages += source.pages()
        self.captures += count
        return FileReport(str(path), kind, count, 2 * count, False, tuple(defects))

    def _progress(self, label: str, read: int, total: int) -> None:
        if self.on_progress:
            self.on_progress(label, read, total)

    def _free_name(self, name: str) -> str:
        """Return an unused name for `archive/`, and reserve it."""
        stem = re.sub(r"[^\w.+-]", "_", _SUFFIX.sub("", name)) or "data"
        number, free = 1, f"{stem}.warc.gz"
        while free in self.names:
            number += 1
            free = f"{stem}-{number}.warc.gz"
        self.names.add(free)
        return free

    def finish(self, files: Iterable[FileReport]) -> int:
        """Move everything into the target collection; return its number of pages."""
        stage, target = self.collection, self.target
        write_lines(stage.index_file, self.lines)
        captures = list(read_cdxj(stage.index_file))
        listed = self._http_pages()
        pages, failed = self.artifacts.split(listed)
        if not listed and not target.path.exists():
            pages = find_pages(stage, captures)
        old = target.manifest() if target.path.exists() else replace(self.manifest, name=target.name)
        before = target.page_list() if target.path.exists() else []
        known = {(page.url, page.timestamp) for page in before}
        new = [page for page in _distinct(pages) if (page.url, page.timestamp) not in known]
        pages = self._with_baselines(new)
        self.found += self._lost_revisits(captures)
        self.found += browsertrix.lacking(pages, failed, chain(captures, self._captures_before()))
        stage.write_pages([*before, *pages])
        shutil.rmtree(self.unpacked)
        manifest = replace(
            old,
            created=old.created or clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            sources=(*old.sources, *(_source(file) for file in files if file.kind != "skipped")),
        )
        manifest = self.artifacts.complete(manifest)
        manifest = replace(manifest, **complete_manifest(stage, manifest, captures))
        stage.write_manifest(manifest)
        if target.path.exists():
            self._merge()
        else:
            stage.path.rename(target.path)
        return len(target.page_list())

    def _http_pages(self) -> list[Page]:
        """Return the listed pages without those that no episode can open, such as Scoop's file: pages."""
        others = [page.url for page in self.pages if not page.url.lower().startswith(("http:", "https:"))]
        if others:
            what = (
                f"pages that no HTTP client requests are left out of the page list: {', '.join(others[:5])}"
            )
            what += f" and {len(others) - 5} more" if len(others) > 5 else ""
            self.found.append(Defect(Severity.NOTICE, "not-http", str(self.target.path), -1, what))
        return [page for page in self.pages if page.url not in others]

    def _captures_before(self) -> Iterable[Capture]:
        return self.target.captures() if self.target.path.exists() else ()

    def _lost_revisits(self, captures: list[Capture]) -> list[Defect]:
        """Report the revisits whose original is in no file of this import or of the collection."""
        if not any(each.mime == REVISIT for each in captures):
            return []
        lost = list(without_original(self.collection.archive, captures, self._captures_before()))
        if not lost:
            return []
        capture, refers = lost[0]
        what = f"revisits without their original: {len(lost)}; the first, {capture.url}, refers to {refers},"
        what += " which the collection does not have. Replay answers such URLs with a miss"
        return [Defect(Severity.WARNING, "no-original", str(self.target.archive), -1, what)]

    def _with_baselines(self, pages: list[Page]) -> list[Page]:
        """Return new pages with the baselines of their export or crawler."""
        folder = self.collection.baseline
        pages = [page if (folder / page.baseline).is_dir() else replace(page, baseline="") for page in pages]
        return list(self.artifacts.attach(pages, folder, self.target.baseline))

    def _merge(self) -> None:
        """Move staged files into the collection: files first, then the index that names them."""
        for path in self.collection.warc_files():
            path.rename(self.target.archive / path.name)
        staged = [path for path in self.collection.path.rglob("*") if path.is_file()]
        for path in staged:
            name = path.relative_to(self.collection.path)
            if name.parts[0] not in _MERGED and not (self.target.path / name).exists():
                (self.target.path / name).parent.mkdir(parents=True, exist_ok=True)
                path.rename(self.target.path / name)
        index = self.target.index_file
        old = index.read_bytes().splitlines(keepends=True) if index.exists() else []
        write_lines(index, [*old, *self.lines])
        self.target.write_pages(self.collection.page_list())
        self.target.write_manifest(self.collection.manifest())


def _not_replayed(record: WarcRecord) -> list[str]:
    """Return the scheme of a response that is not a capture."""
    url = record.target_uri
    answers = record.type in ("response", "revisit") or (
        record.type == "resource" and url.startswith("file:")
    )
    if not answers or url.lower().startswith(INDEXED):
        return []
    return [url.partition(":")[0][:20] or "no URL"]


def _distinct(pages: list[Page]) -> list[Page]:
    return list({(page.url, page.timestamp): page for page in reversed(pages)}.values())[::-1]


def _stem(name: str) -> str:
    return re.sub(r"[^\w.+-]", "_", name.rpartition(".")[0] or name)


def _source(file: FileReport) -> dict[str, object]:
    path = Path(file.path)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"name": path.name, "kind": file.kind, "sha256": digest, "bytes": path.stat().st_size}


def kind_of(path: Path) -> str:
    """Return "warc", "arc", "zstd", "wacz", "har", "har.zip" or "pages" by its content; "" for others."""
    if kind := sniff(path):
        return kind
    with path.open("rb") as file:
        head = file.read(4096)
    packed = head.startswith(GZIP_MAGIC)
    if packed and re.search(r"\.w?arc(\.gz)?$", path.name):
        return "warc"
    head = first_bytes(path)
    if head.startswith(b"PK\x03\x04"):
        return "har.zip" if wacz.is_har_zip(path) else "wacz"
    head = head.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which some HAR exporters write
    if head.lstrip()[:1] == b"{":
        if b'"json-pages' in head.splitlines()[0]:
            return "" if packed else "pages"
        return (
            "har" if path.name.endswith((".har", ".har.gz")) or re.match(rb'\s*\{\s*"log"\s*:', head) else ""
        )
    return ""


def _unknown(path: Path) -> CollectionError:
    with path.open("rb") as file:
        head = file.read(16)
    what = f"neither WARC, ARC, WACZ, HAR nor a page list: it starts with {head!r}" if head else "is empty"
    return MalformedWarc(what, path=path, hint="give an archive; docs/how-to/import.md lists the formats")
