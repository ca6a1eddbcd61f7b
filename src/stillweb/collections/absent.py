"""What a recording saw fail: the requests that no replay can be blamed for not answering.

Each page's baseline lists the requests that the page made (`baseline/PAGE/resources.json`), with
their status. A miss of what had failed, or had been answered with 400 or more, is *explained*; so is one of
what an amend asked for in vain (`amends`); a miss of anything else, noise aside, is not (design: the
ruling on misses). Pure but for reading files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stillweb.collections.amends import read_absent
from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError
from stillweb.urls import wire_url

__all__ = ["RESOURCES", "Absences", "RecordedRequest", "explains", "read_resources"]

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
