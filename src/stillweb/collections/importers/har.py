"""Read HAR 1.2 (HTTP archives of browsers' developer tools) as exchanges and pages.

A HAR holds bodies decoded: the content encoding's header goes, and Content-Length is that of the
decoded body. An entry without an answer's body, or with part of one, is no capture: an empty 200 would
be a wrong one. Nor is one without its request's body, which would answer any request without one.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stillweb.collections.defects import Defect, Report, Severity
from stillweb.collections.warc.records import clean_uri, timestamp_of
from stillweb.errors import MalformedHar
from stillweb.model import Exchange, Headers, Page, Request, Response, header

_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_BODILESS = frozenset({101, 204, 205, 304})
# True only of the message that was on the wire: HTTP/2 pseudo-fields, framing, encoding.
_DROPPED = frozenset({"content-encoding", "transfer-encoding", "content-length"})


def read_har(path: Path) -> dict[str, Any]:
    """Return the `log` of a HAR file.

    Raises:
        MalformedHar: if it is not JSON or lacks `log.entries`.
    """
    try:
        members = json.loads(path.read_bytes())
    except ValueError as error:
        raise MalformedHar(f"not JSON ({error})", path=path) from None
    log = members.get("log") if isinstance(members, dict) else None
    if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
        raise MalformedHar("JSON, but without log.entries", path=path)
    return log


def exchanges(path: Path, log: dict[str, Any], report: Report) -> Iterator[Exchange]:
    """Yield the exchanges of a log in its order; what is none is reported by entry number as offset."""
    for number, entry in enumerate(log["entries"]):
        try:
            exchange = _exchange(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"entry {number} lacks what HAR 1.2 demands ({type(error).__name__}: {error})"
            report(Defect(Severity.ERROR, "bad-entry", str(path), -1, what))
            continue
        if isinstance(exchange, str):
            url = str(entry["request"].get("url", ""))[:200]
            report(Defect(Severity.WARNING, "no-body", str(path), -1, f"entry {number}, {url}: {exchange}"))
            continue
        yield exchange


def pages(log: dict[str, Any]) -> list[Page]:
    """Return the pages of a log; a page's URL is that of its first entry."""
    first: dict[str, str] = {}
    for entry in log["entries"]:
        if isinstance(entry, dict) and isinstance(entry.get("request"), dict):
            first.setdefault(str(entry.get("pageref")), str(entry["request"].get("url", "")))
    found = []
    for page in log.get("pages") or ():
        if url := first.get(str(page.get("id"))):
            timestamp = timestamp_of(str(page.get("startedDateTime", "")))
            found.append(
                Page(clean_uri(url), timestamp, title=str(page.get("title", "")), id=str(page["id"]))
            )
    return found


def _exchange(entry: dict[str, Any]) -> Exchange | str:
    """Return an entry's exchange, or why there is none."""
    asked, answer = entry["request"], entry["response"]
    url, status = str(asked["url"]).partition("#")[0], int(answer["status"])
    if not url.startswith(("http://", "https://")):
        return "not an HTTP exchange"
    if not status:
        return "it was not answered"
    if error := answer.get("_error"):  # of Chromium: the head came, and the body not or not wholly
        return f"it failed ({error})"
    body = _body(answer)
    if body is None:
        return f"the answer ({status}) is without its body"
    if _is_cut(answer, body):
        return f"the answer ({status}) is cut: {len(body)} of {answer['content']['size']} bytes"
    if asked["method"] != "GET" and _size(asked.get("bodySize")) and not _posted(asked):
        return f"the {asked['method']} is without its body of {asked['bodySize']} bytes"
    request_headers = _headers(asked)
    response_headers = _headers(answer)
    mime = str((answer.get("content") or {}).get("mimeType") or "")
    if mime and body and not header(response_headers, "content-type"):
        response_headers = (*response_headers, ("Content-Type", mime))
    if status not in _BODILESS:
        response_headers = (*response_headers, ("Content-Length", str(len(body))))
    started = timestamp_of(str(entry["startedDateTime"]))
    if not started:
        raise ValueError(f"startedDateTime is {entry['startedDateTime']!r}")
    version = str(answer.get("httpVersion", "")).lower()
    return Exchange(
        Request(str(asked["method"]).upper(), url, request_headers, _posted(asked)),
        Response(status, str(answer.get("statusText") or ""), response_headers, body),
        started,
        remote_ip=str(entry.get("serverIPAddress") or "").strip("[]"),
        protocol="h2" if version in ("h2", "http/2", "http/2.0") else "http/1.1",
    )


def _headers(message: dict[str, Any]) -> Headers:
    return tuple(
        (str(each["name"]), str(each["value"]).replace("\r", "").replace("\n", ", "))
        for each in message.get("headers") or ()
        if each["name"].lower() not in _DROPPED and not each["name"].startswith(":")
    )


def _body(answer: dict[str, Any]) -> bytes | None:
    content = answer.get("content") or {}
    text = content.get("text")
    if text is None:
        empty = not content.get("size") or int(answer["status"]) in _BODILESS
        return b"" if empty or _redirects(answer) else None
    if content.get("encoding") == "base64":
        try:
            return base64.b64decode(text)
        except binascii.Error:
            return None
    return _encode(str(text), str(content.get("mimeType") or ""))


def _is_cut(answer: dict[str, Any], body: bytes) -> bool:
    """Whether a body is shorter than the `size` beside it, however its text may have been encoded."""
    content = answer.get("content") or {}
    size = _size(content.get("size"))
    if content.get("text") is None or not body:
        return False  # the answer to HEAD, and redirects
    if content.get("encoding") == "base64":
        return len(body) < size
    text = str(content["text"])
    # A byte order mark is no part of the text; only UTF-16 and UTF-32 take more bytes than UTF-8.
    return len(text.encode("utf-8", "replace")) + 3 < size and size not in _wide(text)


def _wide(text: str) -> set[int]:
    sizes = {len(text.encode(name, "replace")) for name in ("utf-16-le", "utf-32-le")}
    return sizes | {size + 2 for size in sizes} | {size + 4 for size in sizes}


def _size(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _redirects(answer: dict[str, Any]) -> bool:
    return 300 <= int(answer["status"]) < 400 and bool(header(_headers(answer), "location"))


def _encode(text: str, mime: str) -> bytes:
    """Return text in the charset of its media type: the page will be told that charset again."""
    charset = _CHARSET.search(mime)
    try:
        return text.encode(charset[1] if charset else "utf-8")
    except (LookupError, UnicodeEncodeError):
        return text.encode("utf-8", "replace")


def _posted(asked: dict[str, Any]) -> bytes:
    posted = asked.get("postData") or {}
    text = posted.get("text")
    if text is not None:
        if posted.get("encoding") == "base64":
            return base64.b64decode(text)
        return _encode(str(text), str(posted.get("mimeType") or ""))
    params = [(str(each["name"]), str(each.get("value") or "")) for each in posted.get("params") or ()]
    return urlencode(params).encode("ascii")
