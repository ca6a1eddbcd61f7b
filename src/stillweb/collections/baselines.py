"""A page as it looked when it was recorded: the files of `baseline/PAGE/`.

    screenshot.png  text.txt  axtree.txt      what was seen
    dom.txt.gz                                its elements and where they stand
    resources.json                            its requests, in order: status, sha256 of the body, times
    page.json                                 where it arrived, whether at rest, what scripts complained of

The last of the three lines came later than the first: a baseline without them, or without digests
of bodies, is read as well, and says what it lacks.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stillweb.collections.absent import RESOURCES, RecordedRequest, read_resources
from stillweb.errors import CollectionError

__all__ = ["SCREENSHOT", "Arrival", "Baseline", "read_baseline", "write_baseline"]

SCREENSHOT, TEXT, AXTREE, DOM, PAGE = "screenshot.png", "text.txt", "axtree.txt", "dom.txt.gz", "page.json"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a page came to the state that its baseline shows.

    Attributes:
        url: where it had arrived, "" if unknown.
        settled: whether it had come to rest.
        reason: why it had, or had not.
        pending: URLs of requests that had no end yet; it was recorded half-loaded if there are any.
        complaints: of its scripts (`stillweb.browser.complaints`).
        load_ms: real milliseconds until its load event.
    """

    url: str = ""
    settled: bool = True
    reason: str = ""
    pending: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    load_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a page looked like, with the path of its picture.

    Attributes:
        dom: "" if it lacks that.
        arrival: None if it lacks that.
        lacks: names of what an older recording did not take.
    """

    picture: Path
    text: str
    axtree: str
    requests: tuple[RecordedRequest, ...]
    dom: str = ""
    arrival: Arrival | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """What an older recording did not take."""
        missing = [] if self.dom else ["dom", "layout"]
        missing += [] if any(request.body for request in self.requests) else ["bodies"]
        return tuple(missing + ([] if self.arrival else ["console", "loaded"]))


def write_baseline(
    folder: Path,
    picture: bytes,
    texts: Mapping[str, str],
    requests: Iterable[dict[str, Any]],
    arrival: Arrival,
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


def read_baseline(folder: Path) -> Baseline:
    """Read the baseline of a page, as this version or an older one wrote it.

    Raises:
        CollectionError: if a file is missing or is not what it should be.
    """
    try:
        requests = tuple(read_resources(folder / RESOURCES))
        picture = folder / SCREENSHOT
        picture.stat()
        dom = folder / DOM
        return Baseline(
            picture,
            (folder / TEXT).read_text("utf-8"),
            (folder / AXTREE).read_text("utf-8"),
            requests,
            gzip.decompress(dom.read_bytes()).decode("utf-8") if dom.exists() else "",
            _arrival(folder / PAGE),
        )
    except FileNotFoundError as error:
        raise CollectionError("the baseline lacks a file", path=error.filename) from error
    except (ValueError, TypeError, KeyError, OSError, EOFError, zlib.error) as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=folder) from error


def _arrival(path: Path) -> Arrival | None:
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Arrival(
        str(told["url"]),
        bool(told["settled"]),
        str(told["reason"]),
        tuple(map(str, told["pending"])),
        tuple(map(str, told["complaints"])),
        float(told["load_ms"]),
    )
