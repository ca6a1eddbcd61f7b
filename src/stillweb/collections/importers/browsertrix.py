"""Artifacts of browsertrix-crawler: screenshots, texts, lists of requests, failed pages.

Its archives hold resource records for each page, which become the page's baseline:

    urn:view:URL       PNG of the viewport     screenshot.png (without the scroll bar)
    urn:text:URL       all text of its DOM     text.txt
    urn:pageinfo:URL   its requests, JSON      resources.json

The records stay in the archive unchanged and out of the index: no request has a `urn:` URL. A page that was
crawled several times has its own artifacts for each visit: the list that names its id, and the first
screenshot and text after its start. Text may also be a member of the page list (`text: [to-pages]`).
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from stillweb.collections.baselines import BaselineTool, write_partial_baseline
from stillweb.collections.defects import Defect, Severity
from stillweb.collections.limits import load_json, open_picture
from stillweb.collections.manifest import Manifest
from stillweb.collections.warc import methodquery
from stillweb.collections.warc.records import WarcRecord, timestamp_of
from stillweb.model import Capture, Page
from stillweb.urls import wire_url

ENGINE = "browsertrix"
"""Value of a page's `recordedBy`."""

_KINDS = {"urn:view:": "view", "urn:text:": "text", "urn:pageinfo:": "pageinfo"}
_SOFTWARE = re.compile(rb"Browsertrix-Crawler ([\w.-]+)")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_VIEWPORT = 16_000_000  # pixels; a 5K screen has 14.7 million
_BAR = 15  # pixels; Chromium's scroll bar on Linux


@dataclass(frozen=True, slots=True)
class _Note:
    """A resource record of a page, its block stored in a file."""

    timestamp: str
    path: Path


@dataclass(frozen=True, slots=True)
class _PageNote:
    """Members of a page list's line that ours does not have."""

    text: str
    failed: bool


class BrowsertrixArtifacts:
    """Collects the artifacts of a browsertrix crawl during an import, and makes baselines of them.

    Args:
        folder: for blocks that are used later.

    Attributes:
        version: of the crawler, "" if it made no archive of this import.
        viewport: of its browser, from the first screenshot.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = ""
        self.viewport: tuple[int, int] | None = None
        self._notes: dict[tuple[str, str], list[_Note]] = defaultdict(list)
        self._lists: dict[str, Path] = {}
        self._page_notes: dict[tuple[str, str], _PageNote] = {}
        self._count = 0

    def see(self, record: WarcRecord) -> None:
        if record.type == "warcinfo":
            found = _SOFTWARE.search(record.block)
            self.version = self.version or (found[1].decode() if found else "")
        if record.type != "resource" or not record.target_uri.startswith("urn:"):
            return
        for prefix, kind in _KINDS.items():
            if record.target_uri.startswith(prefix):
                self._keep(kind, record.target_uri.removeprefix(prefix), record)

    def _keep(self, kind: str, url: str, record: WarcRecord) -> None:
        self._count += 1
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{self._count}.{kind}"
        path.write_bytes(record.block)
        self._notes[kind, wire_url(url)].append(_Note(record.timestamp, path))
        if kind == "pageinfo" and (page_id := _members(path).get("pageid")):
            self._lists[str(page_id)] = path

    def read_list(self, path: Path) -> None:
        """Read from a page list what `read_pages` omits: texts, and which pages failed."""
        with path.open("rb") as lines:
            for line in lines:
                try:
                    loaded = load_json(line, path=path)
                except ValueError:
                    continue
                if isinstance(loaded, dict) and isinstance(loaded.get("url"), str):
                    failed = loaded.get("loadState") == 0 and not loaded.get("status")
                    key = wire_url(loaded["url"]), timestamp_of(str(loaded.get("ts", "")))
                    self._page_notes[key] = _PageNote(str(loaded.get("text") or ""), failed)

    def split(self, pages: Sequence[Page]) -> tuple[list[Page], list[Page]]:
        """Split pages into loaded and failed ones."""
        sides: tuple[list[Page], list[Page]] = [], []
        for page in pages:
            sides[bool(self.version) and self._of(page).failed].append(page)
        return sides

    def _of(self, page: Page) -> _PageNote:
        return self._page_notes.get((wire_url(page.url), page.timestamp), _PageNote("", failed=False))

    def complete(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the version of the crawler and the viewport of its browser."""
        if not self.version:
            return manifest
        profile = dict(manifest.profile)
        if self.viewport:
            profile.setdefault("viewport", list(self.viewport))
        crawler = {"crawler": {"program": ENGINE, "version": self.version}}
        return replace(manifest, profile=profile, extra=crawler | manifest.extra)

    def attach(self, pages: Iterable[Page], baselines: Path, taken: Path) -> Iterator[Page]:
        """Yield the pages, each with the name of its new baseline, if it has one.

        Args:
            pages: of a browsertrix crawl, and others.
            taken: folder whose names are in use.
        """
        for number, page in enumerate(pages, start=1):
            if page.baseline or not self.version:
                yield page
                continue
            name = page.id if _FOLDER.fullmatch(page.id) else f"crawled-{number}"
            while (baselines / name).exists() or (taken / name).exists():
                name += "-2"
            extra = page.extra | {"recordedBy": ENGINE}
            viewport = self._write(page, baselines / name)
            if viewport:
                extra["viewport"] = "{}x{}".format(*viewport)
            found = (baselines / name).is_dir()
            yield replace(page, baseline=name if found else "", extra=extra)

    def _write(self, page: Page, folder: Path) -> tuple[int, int] | None:
        """Write a page's baseline, if it has artifacts; return the size of its screenshot."""
        view, text = self._first("view", page), self._first("text", page)
        loaded = self._lists.get(page.id) or self._first("pageinfo", page)
        words = text.read_text("utf-8", "replace") if text else self._of(page).text or None
        picture, size = self._picture(view) if view else (None, None)
        requests = list(_requests(_members(loaded))) if loaded else None
        if picture is None and words is None and requests is None:
            return None
        write_partial_baseline(folder, BaselineTool(ENGINE, self.version), picture, words, requests)
        return size

    def _first(self, kind: str, page: Page) -> Path | None:
        """Return the first record of a page after its start, else its last record."""
        notes = sorted(self._notes.get((kind, wire_url(page.url)), ()), key=lambda note: note.timestamp)
        after = [note for note in notes if note.timestamp >= page.timestamp]
        chosen = after[0] if after else notes[-1] if notes else None
        return chosen.path if chosen else None

    def _picture(self, path: Path) -> tuple[bytes | None, tuple[int, int] | None]:
        raw = path.read_bytes()
        try:
            image = open_picture(raw, pixels=_MAX_VIEWPORT)
        except ValueError:
            return None, None
        self.viewport = self.viewport or image.size
        bar = has_scroll_bar(image)
        if not bar and "A" not in image.getbands():
            return raw, image.size
        image = _on_white(image).crop((0, 0, image.width - bar * _BAR, image.height))
        stream = io.BytesIO()
        image.save(stream, "PNG", compress_level=3)
        return stream.getvalue(), image.size


def lacking(pages: Iterable[Page], failed: Iterable[Page], captures: Iterable[Capture]) -> Iterator[Defect]:
    """Yield the pages that an archive lists without usable content: failed ones, and those without a capture.

    A crawl without its responses is still a valid WACZ. A capture under the other scheme answers a page too.
    """
    answered = {_schemeless(each.url) for each in captures if each.method == "GET"}
    for page in failed:
        what = f"page {page.url} was not loaded when it was crawled; it is left out"
        yield Defect(Severity.WARNING, "page-failed", page.url, -1, what)
    for page in pages:
        if _schemeless(page.url) not in answered:
            what = f"page {page.url} has no capture"
            yield Defect(Severity.WARNING, "no-capture", page.url, -1, what)


def _schemeless(url: str) -> str:
    return wire_url(url).partition(":")[2]


def has_scroll_bar(image: Image.Image) -> bool:
    """Return True if the right edge of a screenshot is Chromium's scroll bar, which our browser never shows.

    It is a strip of one colour with a thumb and arrows in its middle.
    """
    if image.width <= 2 * _BAR:
        return False
    strip = image.crop((image.width - _BAR, 0, image.width, image.height)).convert("RGB")
    columns = [strip.crop((x, 0, x + 1, strip.height)).getcolors(strip.height) or [] for x in range(_BAR)]
    edges = [columns[x] for x in (0, 1, _BAR - 2, _BAR - 1)]
    if any(len(colours) != 1 for colours in edges) or len({colours[0][1] for colours in edges}) != 1:
        return False
    middle = sorted(columns[_BAR // 2], reverse=True)
    return len(middle) > 1 and sum(count for count, _ in middle[:2]) >= 0.97 * strip.height


def _on_white(image: Image.Image) -> Image.Image:
    """Return a picture on a white background, as a window shows pages with a transparent background."""
    if "A" not in image.getbands():
        return image.convert("RGB")
    canvas = Image.new("RGBA", image.size, "white")
    canvas.alpha_composite(image.convert("RGBA"))
    return canvas.convert("RGB")


def _members(path: Path) -> dict[str, Any]:
    try:
        loaded = load_json(path.read_bytes(), path=path)
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _requests(loaded: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a page's requests in the format of `read_resources`, with method queries parsed."""
    urls = loaded.get("urls")
    for url, about in urls.items() if isinstance(urls, dict) else ():
        if not isinstance(about, dict) or not str(url).startswith(("http:", "https:")):
            continue
        stored = methodquery.undo(str(url))
        status = about.get("status")
        status = status if isinstance(status, int) and 0 < status < 600 else 0
        yield {
            "url": wire_url(stored.url if stored else str(url)),
            "method": stored.method if stored else "GET",
            "type": str(about.get("type") or "other"),
            "status": status,
            "failed": status == 0,
        }
