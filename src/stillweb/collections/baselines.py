"""A page as it looked when it was recorded: the files of `baseline/PAGE/`.

    screenshot.png  text.txt  axtree.txt      what was seen
    dom.txt.gz                                its elements and where they stand
    resources.json                            its requests, in order: status, sha256 of the body, times
    page.json                                 where it arrived, whether at rest, what scripts complained of
    origin.json                               which other program took it, if one did

The last of the first three lines came later than the first: a baseline without them, or without digests
of bodies, is read as well, and says what it lacks. What another program took may be any of screenshot,
text and requests, in its own manner: text is every text of the document, shown or not; requests are those of
the page's whole visit, in no order.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stillweb.collections.amends import read_absent
from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError
from stillweb.urls import wire_url

__all__ = [
    "RESOURCES",
    "SCREENSHOT",
    "Absences",
    "Baseline",
    "BaselineTool",
    "RecordedRequest",
    "RecordedResponse",
    "explains",
    "read_baseline",
    "read_resources",
    "write_baseline",
    "write_partial_baseline",
]

RESOURCES = "resources.json"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that a page made while it was recorded.

    Attributes:
        status: 0 if no answer came.
        body: sha256 of the body as the page got it, hex; "" if unknown.
        start, duration: milliseconds since the page's first request; 0 if unknown.
    """

    url: str
    method: str
    type: str
    status: int
    body: str = ""
    start: float = 0.0
    duration: float = 0.0


def explains(status: int | None) -> bool:
    """Return whether what a recording saw of a request (None: nothing) explains that replay has no answer."""
    return status is not None and not 0 < status < 400


def read_resources(path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests of a page's baseline.

    Raises:
        CollectionError: if the file is missing or is no such list.
    """
    try:
        for each in json.loads(path.read_bytes()):
            status = 0 if each["failed"] else int(each["status"])
            yield RecordedRequest(
                wire_url(str(each["url"])),
                str(each["method"]),
                str(each["type"]),
                status,
                str(each.get("body", "")),
                float(each.get("start", 0.0)),
                float(each.get("duration", 0.0)),
            )
    except FileNotFoundError as error:
        raise CollectionError("the baseline lacks a file", path=path) from error
    except (ValueError, TypeError, KeyError) as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=path) from error


class Absences:
    """What all pages of a collection saw fail and nowhere saw answered, and what amends asked for in vain."""

    def __init__(self, collection: Collection) -> None:
        self._seen: dict[tuple[str, str], list[int]] = {}
        for path in sorted(collection.baseline.glob(f"*/{RESOURCES}")):
            for request in read_resources(path):
                self._seen.setdefault((request.method, request.url), []).append(request.status)
        absent = read_absent(collection.path)
        self._absent = {(each.method, wire_url(each.url)): each.reason for each in absent}

    def why(self, method: str, url: str) -> str:
        """Return what explains a miss; "" if nothing does."""
        statuses = self._seen.get((method, wire_url(url)), [])
        if not statuses and (reason := self._absent.get((method, wire_url(url)))):
            return f"asked for again in vain: {reason}"
        if not statuses or not all(explains(status) for status in statuses):
            return ""
        return f"recorded with status {statuses[0]}" if statuses[0] else "failed when it was recorded"


SCREENSHOT, TEXT, AXTREE, DOM, PAGE = "screenshot.png", "text.txt", "axtree.txt", "dom.txt.gz", "page.json"
ORIGIN = "origin.json"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """How a page came to the state that its baseline shows.

    Attributes:
        url: where it had arrived, "" if unknown.
        settled: whether it had come to rest.
        reason: why it had, or had not.
        pending: URLs of requests that had no end yet; it was recorded half-loaded if there are any.
        complaints: of its scripts (`stillweb.browser.observe.recorder`).
        load_ms: real milliseconds until its load event.
    """

    url: str = ""
    settled: bool = True
    reason: str = ""
    pending: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    load_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BaselineTool:
    """The program that took a baseline, where it was not ours: its name and version."""

    program: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.program} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a page looked like, with the path of its picture.

    Attributes:
        picture, text, axtree, requests: None only of an origin that does not take these.
        dom: "" if it lacks that.
        arrival: None if it lacks that.
        origin: None if it is ours.
        lacks: names of what an older recording did not take.
    """

    picture: Path | None
    text: str | None
    axtree: str | None
    requests: tuple[RecordedRequest, ...] | None
    dom: str = ""
    arrival: RecordedResponse | None = None
    origin: BaselineTool | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """What an older recording did not take."""
        missing = [] if self.dom else ["dom", "layout"]
        missing += [] if any(request.body for request in self.requests or ()) else ["bodies"]
        return tuple(missing + ([] if self.arrival else ["console", "loaded"]))


def write_baseline(
    folder: Path,
    picture: bytes,
    texts: Mapping[str, str],
    requests: Iterable[dict[str, Any]],
    arrival: RecordedResponse,
) -> None:
    """Write a baseline into a folder, which is made.

    Args:
        folder: of the page.
        picture: PNG.
        texts: "text", "axtree" and "dom".
        requests: as `read_resources` reads them.
        arrival: how the page came to it.
    """
    told = {"version": _VERSION} | asdict(arrival)
    files = {
        SCREENSHOT: picture,
        TEXT: texts["text"].encode("utf-8"),
        AXTREE: texts["axtree"].encode("utf-8"),
        DOM: gzip.compress(texts["dom"].encode("utf-8"), 6, mtime=0),
        RESOURCES: (json.dumps(list(requests), indent=1) + "\n").encode(),
        PAGE: (json.dumps(told, indent=1) + "\n").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_partial_baseline(
    folder: Path,
    origin: BaselineTool,
    picture: bytes | None,
    text: str | None,
    requests: Iterable[dict[str, Any]] | None,
) -> None:
    """Write what another program kept of a page into a folder, which is made; None where it kept none."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"version": _VERSION} | asdict(origin)
    (folder / ORIGIN).write_text(json.dumps(told) + "\n", "utf-8")
    if picture is not None:
        (folder / SCREENSHOT).write_bytes(picture)
    if text is not None:
        (folder / TEXT).write_bytes(text.encode("utf-8", "replace"))
    if requests is not None:
        (folder / RESOURCES).write_text(json.dumps(list(requests), indent=1) + "\n", "utf-8")


def read_baseline(folder: Path) -> Baseline:
    """Read the baseline of a page, as this version, an older one or another program took it.

    Raises:
        CollectionError: if a file is missing or is not what it should be.
    """
    try:
        origin = _origin(folder / ORIGIN)

        def taken(name: str) -> Path | None:
            path = folder / name
            return None if origin and not path.exists() else path

        text, axtree, resources = taken(TEXT), taken(AXTREE), taken(RESOURCES)
        requests = tuple(read_resources(resources)) if resources else None
        picture = taken(SCREENSHOT)
        if picture:
            picture.stat()
        dom = folder / DOM
        return Baseline(
            picture,
            text.read_text("utf-8") if text else None,
            axtree.read_text("utf-8") if axtree else None,
            requests,
            gzip.decompress(dom.read_bytes()).decode("utf-8") if dom.exists() else "",
            _arrival(folder / PAGE),
            origin,
        )
    except FileNotFoundError as error:
        raise CollectionError("the baseline lacks a file", path=error.filename) from error
    except (ValueError, TypeError, KeyError, OSError, EOFError, zlib.error) as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=folder) from error


def _origin(path: Path) -> BaselineTool | None:
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return BaselineTool(str(told["program"]), str(told.get("version", "")))


def _arrival(path: Path) -> RecordedResponse | None:
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return RecordedResponse(
        str(told["url"]),
        bool(told["settled"]),
        str(told["reason"]),
        tuple(map(str, told["pending"])),
        tuple(map(str, told["complaints"])),
        float(told["load_ms"]),
    )
