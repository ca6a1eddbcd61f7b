"""CDXJ index of a collection: one line per capture, `urlkey timestamp {json}`.

Lines are sorted bytewise (C locale), so that pywb and other readers can bisect. The fields are those of pywb
and cdxj-indexer, numbers as strings: url, mime, status, digest, length, offset, filename, and for requests
other than GET method and requestBody. Two fields are our own: `key` (the request key, hex) and `request`
("offset,length" of the request's record). Other readers ignore them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stillweb.errors import MalformedCdxj
from stillweb.files import replaced
from stillweb.model import Capture

_SOURCE = re.compile(rb'"filename": ?"([^"]*)"')
_OFFSET = re.compile(rb'"offset": ?"?([0-9]{1,18})')
_LOW = (1 << 64) - 1
_LAST_POSITION = (1 << 63) - 1
_STATUS = re.compile(r"[0-9]{1,9}")
_TEXT_FIELDS = ("url", "method", "key", "mime", "digest", "filename")


def format_line(capture: Capture, request_body: str = "") -> bytes:
    """Return a capture as a CDXJ line with its line end."""
    fields = {
        "url": capture.url,
        "mime": capture.mime,
        "status": str(capture.status) if capture.status else "",
        "digest": capture.digest,
        "length": str(capture.length),
        "offset": str(capture.offset),
        "filename": capture.source,
        "method": "" if capture.method == "GET" else capture.method,
        "requestBody": request_body,
        "key": capture.key,
        "request": f"{capture.request_offset},{capture.request_length}" if capture.request_length else "",
    }
    text = json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=True)
    return f"{capture.urlkey} {capture.timestamp} {text}\n".encode("utf-8", "surrogateescape")


def parse_line(line: bytes, *, path: Path | None = None, offset: int | None = None) -> Capture:
    """Parse a CDXJ line.

    Raises:
        MalformedCdxj: if the line has another format, or lacks url, filename or offset.
    """
    try:
        urlkey, timestamp, text = line.decode("utf-8", "surrogateescape").rstrip("\r\n").split(" ", 2)
        fields = json.loads(text)
        for name in _TEXT_FIELDS:
            if not isinstance(fields.get(name, ""), str):
                raise ValueError(f"{name} is not text")
        request_offset, _, request_length = str(fields.get("request", "")).partition(",")
        return Capture(
            urlkey=urlkey,
            timestamp=timestamp,
            url=fields["url"],
            method=fields.get("method", "GET"),
            key=fields.get("key", ""),
            status=_number(fields.get("status")),
            mime=fields.get("mime", ""),
            digest=fields.get("digest", ""),
            source=fields["filename"],
            offset=_position(fields["offset"]),
            length=_position(fields.get("length", 0)),
            request_offset=_position(request_offset) if request_length else -1,
            request_length=_position(request_length or 0),
        )
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise MalformedCdxj(
            f"not a CDXJ line ({error}): {line[:80]!r}",
            path=path,
            offset=offset,
            hint="stillweb collections check NAME --repair",
        ) from None


def _number(value: object) -> int:
    text = str(value or "")
    return int(text) if _STATUS.fullmatch(text) else 0


def _position(value: Any) -> int:
    position = int(value)
    if not 0 <= position <= _LAST_POSITION:
        raise ValueError(f"{position} is not a position in a file")
    return position


def read_cdxj(path: Path) -> Iterator[Capture]:
    """Yield the captures of an index file, in its order.

    Raises:
        MalformedCdxj: at the first invalid line.
    """
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.strip() and not line.startswith(b"!"):  # `!meta` lines, as in `cdxj-gzip`
                yield parse_line(line, path=path, offset=offset)
            offset += len(line)


def read_in_file_order(path: Path) -> Iterator[Capture]:
    """Yield the captures of an index file in the order of their records in the archive.

    Sequential reads suit disks and the page cache. The order comes from a pattern search in the lines, so
    callers must not depend on it. Memory: about fifty bytes per capture.

    Raises:
        MalformedCdxj: at the first invalid line.
    """
    sources: dict[bytes, int] = {}
    lines = []
    with path.open("rb") as file:
        at = 0
        for line in file:
            if line.strip() and not line.startswith(b"!"):
                source, offset = _SOURCE.search(line), _OFFSET.search(line)
                number = sources.setdefault(source[1] if source else b"", len(sources))
                lines.append(number << 128 | (int(offset[1]) if offset else 0) << 64 | at)
            at += len(line)
        lines.sort()
        for place in lines:
            at = place & _LOW
            file.seek(at)
            yield parse_line(file.readline(), path=path, offset=at)


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write an index atomically, sorted bytewise and without duplicate lines; return the number of lines."""
    ordered = sorted(set(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        file.writelines(ordered)
    return len(ordered)
