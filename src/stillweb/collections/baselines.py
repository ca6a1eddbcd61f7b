"""Baseline of a page: its appearance when it was recorded, in `baseline/PAGE/`.

    screenshot.png  text.txt  axtree.txt      observations
    dom.txt.gz                                its elements and their layout
    resources.json                            its requests, in order: status, sha256 of the body, times
    page.json                                 final URL, whether it settled, errors of its scripts
    origin.json                               the other program that took it, if any

Older recordings lack `dom.txt.gz`, `page.json` or digests of bodies.
A baseline of another program has any of screenshot, text and requests, with that program's meaning: text is
all text of the document, visible or not; requests are those of the page's whole visit, in no order.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillweb.collections.amends import read_absent
from stillweb.collections.limits import load_json
from stillweb.errors import CollectionError
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection


RESOURCES = "resources.json"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that a page made while it was recorded.

    Attributes:
        status: 0 without a response.
        body: sha256 of the body as the page received it, hex; "" if unknown.
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
    """Return True if the recorded status of a request (None: not recorded) explains a miss at replay."""
    return status is not None and not 0 < status < 400


def read_resources(path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests of a page's baseline.

    Raises:
        CollectionError: if the file is missing or has another format.
    """
    try:
        for each in load_json(path.read_bytes(), path=path):
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
        raise CollectionError("a file of the baseline is missing", path=path) from error
    except (ValueError, TypeError, KeyError) as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=path) from error


class Absences:
    """Requests that failed on all pages of a collection, and the absences of its amends."""

    def __init__(self, collection: Collection) -> None:
        self._seen: dict[tuple[str, str], list[int]] = {}
        for path in sorted(collection.baseline.glob(f"*/{RESOURCES}")):
            for request in read_resources(path):
                self._seen.setdefault((request.method, request.url), []).append(request.status)
        absent = read_absent(collection.path)
        self._absent = {(each.method, wire_url(each.url)): each.reason for each in absent}

    def why(self, method: str, url: str) -> str:
        """Return the explanation of a miss; "" without one."""
        statuses = self._seen.get((method, wire_url(url)), [])
        if not statuses and (reason := self._absent.get((method, wire_url(url)))):
            return f"recorded again without success: {reason}"
        if not statuses or not all(explains(status) for status in statuses):
            return ""
        return f"recorded with status {statuses[0]}" if statuses[0] else "failed when it was recorded"


SCREENSHOT, TEXT, AXTREE, DOM, PAGE = "screenshot.png", "text.txt", "axtree.txt", "dom.txt.gz", "page.json"
ORIGIN = "origin.json"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """How a page reached the state that its baseline shows.

    Attributes:
        url: final URL, "" if unknown.
        reason: why it settled, or did not.
        pending: URLs of unfinished requests; the page was recorded half-loaded if there are any.
        complaints: errors of its scripts (`stillweb.browser.observe.recorder`).
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
    """Name and version of another program that took a baseline."""

    program: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.program} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class Baseline:
    """Appearance of a page, with the path of its screenshot.

    Attributes:
        picture, text, axtree, requests: None only if another program took the baseline without them.
        dom: "" if missing.
        arrival: None if missing.
        origin: the other program; None if stillweb took the baseline.
    """

    picture: Path | None
    text: str | None
    axtree: str | None
    requests: tuple[RecordedRequest, ...] | None
    dom: str = ""
    arrival: RecordedResponse | None = None
    origin: BaselineTool | None = None


def write_baseline(
    folder: Path,
    picture: bytes,
    texts: Mapping[str, str],
    requests: Iterable[dict[str, Any]],
    arrival: RecordedResponse,
) -> None:
    """Write a baseline into a new folder.

    Args:
        picture: PNG.
        texts: "text", "axtree" and "dom".
        requests: in the format of `read_resources`.
        arrival: how the page reached its state.
    """
    members = {"version": _VERSION} | asdict(arrival)
    files = {
        SCREENSHOT: picture,
        TEXT: texts["text"].encode("utf-8"),
        AXTREE: texts["axtree"].encode("utf-8"),
        DOM: gzip.compress(texts["dom"].encode("utf-8"), 6, mtime=0),
        RESOURCES: (json.dumps(list(requests), indent=1) + "\n").encode(),
        PAGE: (json.dumps(members, indent=1) + "\n").encode(),
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
    """Write another program's artifacts of a page into a new folder; None for a missing one."""
    folder.mkdir(parents=True, exist_ok=True)
    members = {"version": _VERSION} | asdict(origin)
    (folder / ORIGIN).write_text(json.dumps(members) + "\n", "utf-8")
    if picture is not None:
        (folder / SCREENSHOT).write_bytes(picture)
    if text is not None:
        (folder / TEXT).write_bytes(text.encode("utf-8", "replace"))
    if requests is not None:
        (folder / RESOURCES).write_text(json.dumps(list(requests), indent=1) + "\n", "utf-8")


def read_baseline(folder: Path) -> Baseline:
    """Read the baseline of a page, from this version, an older one or another program.

    Raises:
        CollectionError: if a file is missing or has another format.
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
        raise CollectionError("a file of the baseline is missing", path=error.filename) from error
    except (ValueError, TypeError, KeyError, OSError, EOFError, zlib.error) as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=folder) from error


def _origin(path: Path) -> BaselineTool | None:
    try:
        members = load_json(path.read_bytes(), path=path)
    except FileNotFoundError:
        return None
    return BaselineTool(str(members["program"]), str(members.get("version", "")))


def _arrival(path: Path) -> RecordedResponse | None:
    try:
        members = load_json(path.read_bytes(), path=path)
    except FileNotFoundError:
        return None
    return RecordedResponse(
        str(members["url"]),
        bool(members["settled"]),
        str(members["reason"]),
        tuple(map(str, members["pending"])),
        tuple(map(str, members["complaints"])),
        float(members["load_ms"]),
    )
