"""From records to captures: pair responses with requests and write the index of a collection.

WARC-Concurrent-To, in either direction, names a response's request. Otherwise the request is the adjacent
record with the same target URI, preferably of the same time. An id of several different requests names none
of them. Each record is a note of a few hundred bytes here, so pairs are found anywhere in a file. Records
that answer no URL (`urn:` records, metadata, DNS) stay in the archive and out of the index.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stillweb.collections.defects import Defect, Report, Severity, ignore
from stillweb.collections.warc import methodquery
from stillweb.collections.warc.cdxj import format_line, write_lines
from stillweb.collections.warc.exchanges import REVISIT
from stillweb.collections.warc.frames import is_socket_url
from stillweb.collections.warc.reader import gzip_member, read_records
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.http.codec import LIMIT_VARIABLE, is_bomb
from stillweb.http.messages import parse_request, parse_response
from stillweb.matching.keys import request_key
from stillweb.model import Capture, Request, header
from stillweb.urls import to_timestamp, urlkey

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection

_ANSWERS = ("response", "revisit", "resource")
INDEXED = ("http:", "https:", "ws:", "wss:")
"""Schemes of captures."""
_FALLBACK_TIME = "19700101000000"


@dataclass(frozen=True, slots=True)
class _RequestSeen:
    """The fields of a request that the index needs."""

    position: int
    id: str
    concurrent_to: tuple[str, ...]
    uri: str
    timestamp: str
    method: str
    key: str
    keyed_url: str
    query: str
    offset: int
    length: int
    lacks_body: bool


@dataclass(frozen=True, slots=True)
class _ResponseSeen:
    """A capture without a request so far."""

    position: int
    id: str
    concurrent_to: tuple[str, ...]
    uri: str
    capture: Capture


def reindex(collection: Collection, report: Report | None = None) -> int:
    """Rebuild a collection's index from its archive; return the number of captures."""
    lines = (line for path in collection.warc_files() for line in index_lines(path, report or ignore))
    return write_lines(collection.index_file, lines)


def is_fresh(collection: Collection) -> bool:
    """Return True if the index is newer than every file of the archive, or nothing is to index."""
    files = collection.warc_files() if collection.archive.is_dir() else []
    if not files:
        return True
    if not collection.index_file.exists():
        return False
    made = collection.index_file.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= made for path in files)


def refresh_index(collection: Collection) -> bool:
    """Rebuild the index if it is missing or older than the archive; return True if it was."""
    if is_fresh(collection):
        return False
    reindex(collection)
    return True


def rewrite_records(path: Path, target: Path) -> int:
    """Rewrite every complete record of a file, one gzip member each; return their number."""
    count = 0
    with target.open("wb") as out:
        for record in read_records(path, ignore):
            out.write(gzip_member(serialise(record)))
            count += 1
    return count


def index_lines(path: Path, report: Report | None = None) -> list[bytes]:
    """Return the CDXJ lines of a WARC file, in its order."""
    return [format_line(capture, query) for capture, query in index_file(path, report)]


def index_file(
    path: Path, report: Report | None = None, seen: Callable[[WarcRecord], None] | None = None
) -> list[tuple[Capture, str]]:
    """Return the captures of a WARC file in its order, each with its request body as pywb indexes it.

    Args:
        report: receives its defects; without it the first error is raised.
        seen: called with every record.

    Raises:
        MalformedWarc: if the file is damaged and `report` is None.
    """
    requests: list[_RequestSeen] = []
    responses: list[_ResponseSeen] = []
    for position, record in enumerate(_exchanged(read_records(path, report), seen)):
        if record.type == "request":
            note = _note_request(position, record)
            if note:
                requests.append(note)
            continue
        capture = _note_answer(path, record, report or ignore)
        if capture:
            responses.append(
                _ResponseSeen(position, record.id, record.concurrent_to, record.target_uri, capture)
            )
    joined = []
    for answer, request, is_lost in _pair(responses, requests):
        if is_lost:
            what = f"the request of {answer.uri} is not in the file, or not known: so is its method"
            (report or ignore)(Defect(Severity.ERROR, "no-request", str(path), answer.capture.offset, what))
            continue
        if request and request.lacks_body:
            what = f"the {request.method} for {answer.uri} is stored without its body: its answer is left out"
            (report or ignore)(
                Defect(Severity.ERROR, "no-request-body", str(path), answer.capture.offset, what)
            )
            continue
        joined.append(_join(answer, request))
    return joined


def _exchanged(
    records: Iterator[WarcRecord], seen: Callable[[WarcRecord], None] | None
) -> Iterator[WarcRecord]:
    wanted = (*_ANSWERS, "request")
    for record in records:
        if seen:
            seen(record)
        if record.type in wanted and record.target_uri.lower().startswith(INDEXED):
            yield record


def _note_request(position: int, record: WarcRecord) -> _RequestSeen | None:
    stored = methodquery.undo(record.target_uri)
    url = stored.url if stored else record.target_uri
    request = parse_request(record.block, url)
    if request is None:
        return None
    request = methodquery.completed(request, record.target_uri)
    keyed_url, query = methodquery.appended(request)
    return _RequestSeen(
        position=position,
        id=record.id,
        concurrent_to=record.concurrent_to,
        uri=record.target_uri,
        timestamp=record.timestamp,
        method=request.method,
        key=key_of(request),
        keyed_url=keyed_url,
        query=query,
        offset=record.offset,
        length=record.length,
        lacks_body=_lacks_body(request),
    )


def _lacks_body(request: Request) -> bool:
    """Return True if a recorder did not store the body: the request would pass for one without a body."""
    length = header(request.headers, "content-length")
    return request.method not in ("GET", "HEAD") and not request.raw_body and length.strip("0").isdigit()


def key_of(request: Request) -> str:
    """Return a request's key, in hex."""
    content_type = header(request.headers, "content-type")
    return request_key(request.method, request.url, content_type, request.raw_body).hex()


def _note_answer(path: Path, record: WarcRecord, report: Report) -> Capture | None:
    """Return the capture of a record, as the response to a GET; None if it is not a capture."""
    mime, status, date = REVISIT, 0, ""
    if record.type == "resource":
        if record.get("Content-Type").startswith("application/warc-fields"):
            return None
        mime, status = media_type(record.get("Content-Type")), 200
    else:
        response = parse_response(record.block)
        if response is None and record.type == "response":
            what = f"the response record of {record.target_uri} holds no HTTP response"
            report(Defect(Severity.ERROR, "no-http", str(path), record.offset, what))
            return None
        if response:
            if is_bomb(response.raw_body, header(response.headers, "content-encoding")):
                what = f"the body of {record.target_uri} decodes to more than the limit ({LIMIT_VARIABLE})"
                report(Defect(Severity.ERROR, "coding-bomb", str(path), record.offset, what))
                return None
            status, date = response.status, header(response.headers, "date")
            mime = mime if record.type == "revisit" else media_type(header(response.headers, "content-type"))
    return Capture(
        urlkey=key_text(record.target_uri),
        timestamp=record.timestamp or _date_of(path, record, date, report),
        url=record.target_uri,
        method="GET",
        key="",
        status=status,
        mime=mime,
        digest=record.payload_digest(),
        source=path.name,
        offset=record.offset,
        length=record.length,
    )


def _date_of(path: Path, record: WarcRecord, http_date: str, report: Report) -> str:
    what = f"WARC-Date is {record.get('WARC-Date')!r}; taken from the HTTP response instead"
    report(Defect(Severity.WARNING, "bad-date", str(path), record.offset, what))
    try:
        return to_timestamp(parsedate_to_datetime(http_date))
    except (ValueError, TypeError):
        return _FALLBACK_TIME


def media_type(content_type: str) -> str:
    """Return a media type without parameters and spaces, as CDX fields require."""
    words = content_type.partition(";")[0].split()
    return words[0] if words else ""


def key_text(url: str) -> str:
    """Return the urlkey of a URL without spaces and line breaks; the URL itself if SURT fails.

    A WebSocket URL is its own key: SURT drops the scheme, and the page at that host and path would have the
    same.
    """
    try:
        key = url if is_socket_url(url) else urlkey(url)
    except (ValueError, TypeError, IndexError):
        key = url
    return key.replace(" ", "%20").replace("\n", "%0A").replace("\r", "%0D")


def _pair(
    responses: list[_ResponseSeen], requests: list[_RequestSeen]
) -> Iterator[tuple[_ResponseSeen, _RequestSeen | None, bool]]:
    """Yield each response with its request, and whether it has one that is not known."""
    by_id = _grouped((note.id, note) for note in requests)
    naming = _grouped((target, note) for note in requests for target in note.concurrent_to)
    named: dict[int, _RequestSeen] = {}
    ambiguous = set()
    for answer in responses:
        name = next((each for each in answer.concurrent_to if each in by_id), "")
        linked = by_id[name] if name else naming.get(answer.id, [])
        if linked:
            named[answer.position] = _nearest(linked, answer.position)
        elif linked is None:
            ambiguous.add(answer.position)
    at = {note.position: note for note in requests}
    for note in named.values():
        at.pop(note.position, None)
    # Requests of the same time first: a response without a request may be adjacent to one with its own.
    for same_time in (True, False):
        for answer in responses:
            if answer.position not in named and (found := _beside(answer, at, same_time=same_time)):
                named[answer.position] = at.pop(found.position)
    for answer in responses:
        if request := named.get(answer.position):
            yield answer, request, False
        else:
            yield answer, None, answer.position in ambiguous or _lost(answer, responses, by_id.keys())


def _grouped(notes: Iterable[tuple[str, _RequestSeen]]) -> dict[str, list[_RequestSeen] | None]:
    """Return the requests by id. Concatenated files repeat requests; None for an id of different ones."""
    found: dict[str, list[_RequestSeen] | None] = {}
    for name, note in notes:
        same = found.setdefault(name, []) if name else None
        if same and (same[0].uri, same[0].method, same[0].key) != (note.uri, note.method, note.key):
            found[name] = None
        elif same is not None:
            same.append(note)
    return found


def _nearest(notes: list[_RequestSeen], position: int) -> _RequestSeen:
    after = bisect(notes, position, key=lambda note: note.position)
    return min(notes[max(0, after - 1) : after + 1], key=lambda note: abs(note.position - position))


def _lost(answer: _ResponseSeen, responses: list[_ResponseSeen], ids: Set[str]) -> bool:
    """Return True if the request that a response names should be in the file, like those of others.

    It may have been a POST, whose response must not pass for that to a GET. Files without any of the named
    requests (Common Crawl) contain responses only; these count as responses to GETs.
    """
    return bool(answer.concurrent_to) and any(ids & set(other.concurrent_to) for other in responses)


def _beside(answer: _ResponseSeen, at: dict[int, _RequestSeen], *, same_time: bool) -> _RequestSeen | None:
    """Return the request with a response's URI in the record before or after it."""
    for position in (answer.position - 1, answer.position + 1):
        note = at.get(position)
        if note is None or note.uri != answer.uri:
            continue
        if not same_time or note.timestamp == answer.capture.timestamp:
            return note
    return None


def _join(answer: _ResponseSeen, request: _RequestSeen | None) -> tuple[Capture, str]:
    capture = answer.capture
    stored = methodquery.undo(answer.uri)
    if request:
        joined = replace(
            capture,
            urlkey=key_text(request.keyed_url),
            url=stored.url if stored else capture.url,
            method=request.method,
            key=request.key,
            request_offset=request.offset,
            request_length=request.length,
        )
        return joined, request.query
    bare = stored or Request("GET", capture.url)
    query = methodquery.appended(bare)[1] if stored else ""
    return replace(capture, url=bare.url, method=bare.method, key=key_of(bare)), query
