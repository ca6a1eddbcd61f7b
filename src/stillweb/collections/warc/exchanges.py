"""The exchange of a capture: the response's record, its request's record, and a revisit's original."""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from stillweb.collections.warc import methodquery
from stillweb.collections.warc.reader import read_record
from stillweb.collections.warc.records import WarcRecord, clean_uri, timestamp_of
from stillweb.errors import CollectionError, LimitExceeded, MalformedWarc, MissingRecord, StaleIndex
from stillweb.http.codec import decoded_body
from stillweb.http.messages import parse_request, parse_response
from stillweb.model import Capture, Exchange, Request, Response
from stillweb.urls import wire_url

REVISIT = "warc/revisit"
_CHECK = "stillweb collections check NAME"
_RECENT = 32 << 20  # bytes of bodies that `Originals` keeps
_ALGORITHMS = {"md5": (32, 26), "sha1": (40, 32), "sha256": (64, 52)}
"""Lengths of a digest in hex and in base32, by algorithm."""


class Originals:
    """Captures to which revisits may refer, by URL and time and by digest.

    Recent responses are kept: many revisits follow each other that refer to the same few large files.
    """

    def __init__(self, captures: Iterable[Capture]) -> None:
        self._recent: OrderedDict[tuple[Path, str, int], Response] = OrderedDict()
        self._recent_bytes = 0
        self._digests: dict[tuple[Path, str, int, str], frozenset[str]] = {}
        self._by_time: dict[tuple[str, str], list[Capture]] = {}
        self._by_digest: dict[str, list[Capture]] = {}
        self._by_url: dict[str, list[Capture]] = {}
        for capture in captures:
            if capture.mime == REVISIT:
                continue
            self._by_time.setdefault((wire_url(capture.url), capture.timestamp), []).append(capture)
            self._by_digest.setdefault(capture.digest, []).append(capture)
            self._by_url.setdefault(wire_url(capture.url), []).append(capture)

    def find(self, revisit: Capture, record: WarcRecord) -> Capture | None:
        """Return the capture whose payload a revisit repeats (WARC 1.1 §6.7); None if it is missing.

        One URL may have answered several requests in the second that a revisit names. The digest
        distinguishes them; for a 304 the request does.
        """
        url = wire_url(clean_uri(record.get("WARC-Refers-To-Target-URI")) or revisit.url)
        named = self._by_time.get((url, timestamp_of(record.get("WARC-Refers-To-Date"))), [])
        stated = record.get("WARC-Payload-Digest")
        if record.get("WARC-Profile").endswith("server-not-modified"):
            named = [each for each in named if each.method == revisit.method]
            earlier = [each for each in self._by_url.get(url, ()) if each.timestamp <= revisit.timestamp]
            same = [
                each for each in earlier if each.method == revisit.method and each.status == HTTPStatus.OK
            ]
        else:
            named = [each for each in named if not _contradict(stated, each.digest)]
            same = self._by_digest.get(stated, []) if stated else []
        named.sort(key=lambda each: (each.digest != stated, each.key != revisit.key))
        if named:
            return named[0]
        same = sorted(
            same,
            key=lambda each: (
                wire_url(each.url) != url,
                each.key != revisit.key,
                abs(int(each.timestamp) - int(revisit.timestamp)),
            ),
        )
        return same[0] if same else None

    def read(self, archive: Path, capture: Capture) -> Response:
        """Return the response of a capture that is no revisit.

        Raises:
            MissingRecord, MalformedWarc: if it cannot be read.
        """
        key = archive, capture.source, capture.offset
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        response = self._recent[key] = _response(archive, capture, _answer(archive, capture), None)
        self._recent_bytes += len(response.raw_body)
        while self._recent_bytes > _RECENT:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1].raw_body)
        return response

    def lacks_digest(self, archive: Path, capture: Capture, stated: str) -> bool:
        """Return True if a capture's payload lacks a digest that a revisit states for it.

        A digest that the capture states too is believed. Programs take digests of the payload as stored,
        without its chunks, or decoded.

        Raises:
            MissingRecord, MalformedWarc: if the capture cannot be read.
        """
        name, _, value = stated.partition(":")
        algorithm = name.lower().replace("-", "")
        if stated == capture.digest or algorithm not in _ALGORITHMS:
            return False
        if len(value.rstrip("=")) not in _ALGORITHMS[algorithm]:
            return False
        key = archive, capture.source, capture.offset, algorithm
        if key not in self._digests:
            record, response = _answer(archive, capture), self.read(archive, capture)
            try:
                decoded = decoded_body(response)
            except LimitExceeded:
                decoded = None
            self._digests[key] = frozenset(
                spelled
                for body in (record.payload, response.raw_body, decoded)
                if body is not None
                for spelled in _spellings(hashlib.new(algorithm, body).digest())
            )
        return value.rstrip("=").lower() not in self._digests[key]


def _spellings(digest: bytes) -> tuple[str, str]:
    return digest.hex(), base64.b32encode(digest).decode().rstrip("=").lower()


def without_original(
    archive: Path, captures: Sequence[Capture], more: Iterable[Capture] = ()
) -> Iterator[tuple[Capture, str]]:
    """Yield the revisits whose original is neither among the captures nor among more, and what they name."""
    originals = Originals((*captures, *more))
    for capture in captures:
        if capture.mime != REVISIT:
            continue
        try:
            record = _read(archive, capture, capture.offset, capture.length)
        except CollectionError:
            continue  # reported as a defect of the file
        if originals.find(capture, record) is None:
            yield capture, record.get("WARC-Refers-To-Target-URI") or capture.digest


def _contradict(one: str, other: str) -> bool:
    """Return True if two digests exclude equal payloads: same algorithm and spelling, different values."""
    name, _, value = one.lower().partition(":")
    other_name, _, other_value = other.lower().partition(":")
    if name.replace("-", "") != other_name.replace("-", "") or len(value) != len(other_value):
        return False
    return value != other_value


def read_exchange(archive: Path, capture: Capture, originals: Originals | None) -> Exchange:
    """Read the exchange of a capture. `originals` is used for revisits only."""
    record = _answer(archive, capture)
    response = _response(archive, capture, record, originals)
    return Exchange(
        request=_request(archive, capture, record),
        response=response,
        timestamp=capture.timestamp,
        remote_ip=record.get("WARC-IP-Address"),
        protocol=record.get("WARC-Protocol") or "http/1.1",
    )


def read_request(archive: Path, capture: Capture) -> Request:
    """Read the request of a capture."""
    if capture.method == "GET" and capture.request_length:
        stored = _read(archive, capture, capture.request_offset, capture.request_length)
        if request := parse_request(stored.block, capture.url):
            return request
    return _request(archive, capture, _answer(archive, capture))


def _read(archive: Path, capture: Capture, offset: int, length: int) -> WarcRecord:
    path = archive / capture.source
    if path.parent != archive or "\0" in capture.source:
        raise MissingRecord(f"{capture.source!r} leads out of the archive", path=archive, hint=_CHECK)
    try:
        return read_record(path, offset, length)
    except FileNotFoundError:
        raise MissingRecord(
            f"the file is missing, but the index has {capture.url} in it", path=path, hint=_CHECK
        ) from None


def _answer(archive: Path, capture: Capture) -> WarcRecord:
    """Read the record of a capture and check URL and digest: the index may belong to another file."""
    record = _read(archive, capture, capture.offset, capture.length)
    undone = methodquery.undo(record.target_uri)
    url = undone.url if undone else record.target_uri
    if wire_url(url) != wire_url(capture.url):
        what = f"the index has {capture.url} here, but the record is of {url}"
        raise StaleIndex(what, path=archive / capture.source, offset=capture.offset, hint=_CHECK)
    if capture.digest and record.payload_digest() != capture.digest:
        what = f"the index has another payload of {capture.url} here ({capture.digest})"
        raise StaleIndex(what, path=archive / capture.source, offset=capture.offset, hint=_CHECK)
    return record


def _request(archive: Path, capture: Capture, record: WarcRecord) -> Request:
    if capture.request_length:
        stored = _read(archive, capture, capture.request_offset, capture.request_length)
        request = parse_request(stored.block, capture.url)
        if request:
            return methodquery.completed(request, record.target_uri)
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
            f"the revisit of {capture.url} refers to {what}, which the collection does not have",
            path=archive / capture.source,
            offset=capture.offset,
            hint="import the archive that holds it: stillweb collections import FILE -c NAME --append",
        )
    assert originals is not None
    original = originals.read(archive, found)
    stated = record.get("WARC-Payload-Digest")
    is_confirmed = record.get("WARC-Profile").endswith("server-not-modified")
    if stated and not is_confirmed and originals.lacks_digest(archive, found, stated):
        what = f"the revisit of {capture.url} is of a payload {stated}, which {found.url} does not have"
        raise MissingRecord(what, path=archive / capture.source, offset=capture.offset)
    head = parse_response(record.block)
    if head is None and original.status != HTTPStatus.OK and wire_url(found.url) != wire_url(capture.url):
        what = f"the revisit of {capture.url} is without a head, and its payload was {found.url}'s"
        what += f" {original.status}: what was answered is not known"
        raise MissingRecord(what, path=archive / capture.source, offset=capture.offset)
    if head is None or head.status == HTTPStatus.NOT_MODIFIED:
        return original
    # A digest may be of the decoded payload; the content coding is that of the stored body.
    codings = tuple(field for field in original.headers if field[0].lower() == "content-encoding")
    if codings == tuple(field for field in head.headers if field[0].lower() == "content-encoding"):
        return replace(head, raw_body=original.raw_body)
    others = tuple(field for field in head.headers if field[0].lower() != "content-encoding")
    return replace(head, headers=(*others, *codings), raw_body=original.raw_body)
