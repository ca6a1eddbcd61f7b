"""From a capture to its exchange: read the response's record, its request's, and a revisit's original."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from stillweb.collections import methodquery
from stillweb.collections.httpblocks import has_encoding, parse_request, parse_response
from stillweb.collections.records import clean_uri
from stillweb.collections.warcdates import timestamp_of
from stillweb.collections.warcs import WarcRecord, read_record
from stillweb.errors import MalformedWarc, MissingRecord
from stillweb.model import Capture, Exchange, Request, Response, header
from stillweb.urls import wire_url

REVISIT = "warc/revisit"
_CHECK = "stillweb collections check NAME"


class Originals:
    """The captures that revisits may refer to, by URL and time and by digest."""

    def __init__(self, captures: Iterable[Capture]) -> None:
        self._by_time: dict[tuple[str, str], Capture] = {}
        self._by_digest: dict[str, list[Capture]] = {}
        self._by_url: dict[str, list[Capture]] = {}
        for capture in captures:
            if capture.mime == REVISIT:
                continue
            self._by_time.setdefault((wire_url(capture.url), capture.timestamp), capture)
            self._by_digest.setdefault(capture.digest, []).append(capture)
            self._by_url.setdefault(wire_url(capture.url), []).append(capture)

    def find(self, revisit: Capture, record: WarcRecord) -> Capture | None:
        """Return the capture whose payload a revisit repeats (WARC 1.1 §6.7); None if it is not here."""
        url = wire_url(clean_uri(record.get("WARC-Refers-To-Target-URI")) or revisit.url)
        date = timestamp_of(record.get("WARC-Refers-To-Date"))
        if found := self._by_time.get((url, date)):
            return found
        same = [each for each in self._by_digest.get(revisit.digest, ()) if revisit.digest]
        if not same and record.get("WARC-Profile").endswith("server-not-modified"):
            same = [each for each in self._by_url.get(url, ()) if each.timestamp <= revisit.timestamp]
        same.sort(
            key=lambda each: (wire_url(each.url) != url, abs(int(each.timestamp) - int(revisit.timestamp)))
        )
        return same[0] if same else None


def read_exchange(archive: Path, capture: Capture, originals: Originals | None) -> Exchange:
    """Read the exchange of a capture; `originals` is asked for revisits only."""
    record = _read(archive, capture, capture.offset, capture.length)
    response = _response(archive, capture, record, originals)
    return Exchange(
        request=_request(archive, capture, record),
        response=response,
        timestamp=capture.timestamp,
        remote_ip=record.get("WARC-IP-Address"),
        protocol=record.get("WARC-Protocol") or "http/1.1",
    )


def _read(archive: Path, capture: Capture, offset: int, length: int) -> WarcRecord:
    path = archive / capture.source
    try:
        return read_record(path, offset, length)
    except FileNotFoundError:
        raise MissingRecord(
            f"no such file, but {capture.url} is indexed there", path=path, hint=_CHECK
        ) from None


def _request(archive: Path, capture: Capture, record: WarcRecord) -> Request:
    if capture.request_length:
        stored = _read(archive, capture, capture.request_offset, capture.request_length)
        request = parse_request(stored.block, capture.url)
        if request:
            return request
    return methodquery.undo(record.target_uri) or Request(capture.method, capture.url)


def _response(archive: Path, capture: Capture, record: WarcRecord, originals: Originals | None) -> Response:
    if record.type == "revisit":
        return _revisited(archive, capture, record, originals)
    if record.type == "resource":
        mime = record.get("Content-Type") or "application/octet-stream"
        return Response(200, "OK", (("Content-Type", mime),), record.block)
    response = parse_response(record.block)
    if response is None:
        raise MalformedWarc(
            f"the {record.type} record holds no HTTP response",
            path=archive / capture.source,
            offset=capture.offset,
            hint=_CHECK,
        )
    return response


def _revisited(archive: Path, capture: Capture, record: WarcRecord, originals: Originals | None) -> Response:
    found = originals.find(capture, record) if originals else None
    if found is None:
        uri, date = record.get("WARC-Refers-To-Target-URI"), record.get("WARC-Refers-To-Date")
        what = f"{uri or capture.digest} {date}".strip()
        raise MissingRecord(
            f"the revisit of {capture.url} refers to {what}, which is not in the collection",
            path=archive / capture.source,
            offset=capture.offset,
            hint="import the archive that holds it: stillweb collections import FILE -c NAME --append",
        )
    original = _response(archive, found, _read(archive, found, found.offset, found.length), None)
    head = parse_response(record.block)
    if head is None or head.status == 304:
        return original
    headers = head.headers
    if not has_encoding(original.raw_body, header(headers, "content-encoding")):
        headers = tuple((k, v) for k, v in headers if k.lower() != "content-encoding")
    return replace(head, headers=headers, raw_body=original.raw_body)
