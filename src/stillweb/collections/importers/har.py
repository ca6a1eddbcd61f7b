"""Reader of HAR 1.2 (HTTP archives of browsers' developer tools) as exchanges and pages.

A HAR holds decoded bodies: the content encoding's header is dropped, and Content-Length is that of the
decoded body. Playwright stores bodies in files beside the HAR (`_file`) on request; Chrome stores WebSocket
messages (`_webSocketMessages`), and gives cached responses status 304 and the cached body.

An entry without its response's body, or with part of it, is not a capture: an empty 200 would be a wrong one.
Nor is an entry without its request's body, which would answer any request without one.
"""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stillweb.collections.defects import Defect, Report, Severity
from stillweb.collections.limits import load_json, unpacked_pieces
from stillweb.collections.warc.frames import (
    BINARY,
    TEXT,
    Frame,
    Frames,
    RecordFrames,
    frames_beside,
    is_socket_url,
)
from stillweb.collections.warc.reader import GZIP_MAGIC
from stillweb.collections.warc.records import clean_uri, timestamp_of
from stillweb.errors import MalformedHar
from stillweb.model import BODILESS, Exchange, Headers, Page, Request, Response, header
from stillweb.text import codec_of

_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_EMPTY = BODILESS | {101, 205}  # statuses whose entries hold no content
# Valid only for the message on the wire: HTTP/2 pseudo-fields, framing, encoding.
_DROPPED = frozenset({"content-encoding", "transfer-encoding", "content-length"})
_SHOWN = re.compile(r"html|text/plain|/pdf|/xml")
_EMPTY_GZIP = 20  # bytes: what gzip makes of nothing
_CONTAINERS = 1 << 20
_LONGEST_URL = 1 << 16  # a WARC record names it in its header; servers accept 8 kB
_NO_TIME = "19700101000000"  # of entries before the first one with a time
_FIELD_END = re.compile(r"\n(?![ \t])")  # a line that begins with a space continues the field (RFC 9112 §5.2)
_ATTACHED = re.compile(r"[\w@+-][\w.@+-]{0,199}", re.ASCII)  # file systems permit 255 bytes


@dataclass(frozen=True)
class HarFile:
    """The `log` of a HAR file, and the folder of its attached bodies."""

    path: Path
    log: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> HarFile:
        """Read a HAR file, plain or gzip.

        Raises:
            MalformedHar: if it is not JSON or lacks `log.entries`.
            LimitExceeded: if it unpacks to too much.
        """
        try:
            text = _content(path)
            members = load_json(text, path=path, containers=max(_CONTAINERS, len(text) // 8))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise MalformedHar(f"not readable as gzip ({error})", path=path) from None
        except ValueError as error:
            raise MalformedHar(f"not JSON ({error})", path=path) from None
        log = members.get("log") if isinstance(members, dict) else None
        if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
            raise MalformedHar("JSON, but without log.entries", path=path)
        return cls(path, log)

    def __len__(self) -> int:
        return len(self.log["entries"])

    def exchanges(self, report: Report) -> Iterator[tuple[Exchange, RecordFrames | None]]:
        """Yield the exchanges in the log's order, WebSockets with their messages; report other entries."""
        before = _NO_TIME
        for number, entry in enumerate(self.log["entries"]):
            try:
                found = self._exchange(entry, before)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                why = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
                what = f"entry {number} lacks what HAR 1.2 demands ({why})"
                report(Defect(Severity.ERROR, "bad-entry", str(self.path), -1, what))
                continue
            if isinstance(found, str):
                what = f"entry {number}, {str(entry['request'].get('url', ''))[:200]}: {found}"
                report(Defect(Severity.WARNING, "no-body", str(self.path), -1, what))
                continue
            before = found[0].timestamp
            if not _started(entry):
                what = (
                    f"entry {number}: startedDateTime is {entry.get('startedDateTime')!r}, taken as {before}"
                )
                report(Defect(Severity.WARNING, "bad-date", str(self.path), -1, what))
            yield found

    def pages(self) -> list[Page]:
        """Return the pages; a page's URL is that of its first HTML document, or of its first entry.

        The first entry may be the beacon of the page before, or a service of the browser. It is the page only
        if browsers show its media type.
        """
        documents: dict[str, str] = {}
        first: dict[str, str] = {}
        for entry in self.log["entries"]:
            url, page, is_html = _document(entry)
            first.setdefault(page, url)
            if is_html:
                documents.setdefault(page, url)
        first.update(documents)
        listed = self.log.get("pages")
        found = []
        for page in listed if isinstance(listed, list) else ():
            if isinstance(page, dict) and (url := first.get(str(page.get("id")), "")):
                timestamp = timestamp_of(str(page.get("startedDateTime", "")))
                found.append(
                    Page(clean_uri(url), timestamp, title=str(page.get("title", "")), id=str(page.get("id")))
                )
        return found

    def _exchange(self, entry: dict[str, Any], before: str) -> tuple[Exchange, RecordFrames | None] | str:
        """Return an entry's exchange, or why it has none; `before` is the time of one without a time."""
        request, response = entry["request"], entry["response"]
        url, status = str(request["url"]).partition("#")[0], int(response["status"])
        if why := _no_exchange(url, status):
            return why
        if status == 101:  # mitmproxy gives WebSockets https: URLs
            url = re.sub(r"^http", "ws", url)
        if error := response.get("_error"):  # Chromium received the head, but not the complete body
            return f"it failed ({error})"
        beside = None
        if is_socket_url(url):
            if status != 101 or not isinstance(entry.get("_webSocketMessages"), list):
                return f"a WebSocket ({status}) without its messages"
            beside = frames_beside(url, _frames(entry))
        body = self._body(response)
        if why := _incomplete(response, body):
            return why
        if not body and request["method"] != "HEAD" and self._had_body(response):
            return f"the response ({status}) has no body, but had one: the HAR was saved without it"
        posted = self._posted(request)
        if request["method"] != "GET" and _size(request.get("bodySize")) and not posted:
            return f"the {request['method']} has no body, but should have {request['bodySize']} bytes"
        if status == 304 and body:  # from the browser's cache
            status, response = 200, {**response, "statusText": "OK"}
        answer = _answer(response, status, body or b"")
        return _joined(entry, url, posted, answer, _started(entry) or before), beside

    def _had_body(self, response: dict[str, Any]) -> bool:
        """Return True if a response without content had a body, whose size programs state as 0.

        Firefox does so in a HAR "without response bodies", BrowserMob Proxy by default.
        """
        if int(response["status"]) in _EMPTY or _redirects(response):
            return False
        fields = {str(each["name"]).lower(): str(each["value"]) for each in response.get("headers") or ()}
        length, size = fields.get("content-length", ""), response.get("bodySize")
        if length.isascii() and length.isdecimal() and len(length) < 20:
            return int(length) > (_EMPTY_GZIP if "content-encoding" in fields else 0)
        if isinstance(size, int) and size >= 0:
            return size > _EMPTY_GZIP
        return not self._has_contents and not {"content-encoding", "transfer-encoding"}.isdisjoint(fields)

    @cached_property
    def _has_contents(self) -> bool:
        return any(
            content.get("text") or "_file" in content
            for entry in self.log["entries"]
            if isinstance(entry, dict)
            and isinstance(response := entry.get("response"), dict)
            and isinstance(content := response.get("content"), dict)
        )

    def _body(self, response: dict[str, Any]) -> bytes | None:
        content = response.get("content") or {}
        if content.get("text") is None and "_file" in content:
            return self._attached(content["_file"])
        text = content.get("text")
        if text is None:
            empty = not content.get("size") or int(response["status"]) in _EMPTY
            return b"" if empty or _redirects(response) else None
        if not isinstance(text, str):
            return None
        if content.get("encoding") == "base64":
            try:
                return base64.b64decode("".join(text.split()), validate=True)
            except ValueError:
                return None
        return _encode(text, str(content.get("mimeType") or ""))

    def _posted(self, request: dict[str, Any]) -> bytes:
        posted = request.get("postData") or {}
        text = posted.get("text")
        # OWASP ZAP and others write an empty text beside the fields of a form.
        if text is not None and not (text == "" and _size(request.get("bodySize")) and posted.get("params")):
            if posted.get("encoding") == "base64":
                return base64.b64decode(text)
            return _encode(str(text), str(posted.get("mimeType") or ""))
        if "_file" in posted:
            return self._attached(posted["_file"]) or b""
        params = [(str(each["name"]), str(each.get("value") or "")) for each in posted.get("params") or ()]
        return urlencode(params).encode("ascii")

    def _attached(self, name: object) -> bytes | None:
        """Return a body that is stored beside the HAR; no name may lead elsewhere."""
        if not isinstance(name, str) or not _ATTACHED.fullmatch(name):
            return None
        path = self.path.parent / name
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _document(entry: Any) -> tuple[str, str, bool]:
    """Return a document's URL ("" for another entry), the id of its page, and whether it is HTML."""
    try:
        request, response = entry["request"], entry["response"]
        fields, page, kind = _headers(request), str(entry.get("pageref")), entry.get("_resourceType")
        mime = str((response.get("content") or {}).get("mimeType"))
        opened = (
            request["method"] == "GET"
            and response["status"] != 204
            and not _redirects(response)
            and (kind == "document" or (not kind and _SHOWN.search(mime)))
            and header(fields, "sec-fetch-dest", "document") == "document"
            and not header(fields, "x-requested-with")
        )
        return str(request["url"]) if opened else "", page, bool(opened) and "html" in mime
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return "", "", False


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            return path.read_bytes()
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return b"".join(unpacked_pieces(unpacked, path.stat().st_size, path, "the file"))


def _no_exchange(url: str, status: int) -> str:
    if not is_socket_url(url) and not url.startswith(("http://", "https://")):
        return "not an HTTP exchange"
    if len(url) > _LONGEST_URL:
        return f"its URL has {len(url)} characters, of at most {_LONGEST_URL}"
    return "" if status >= 100 else "it was not answered"


def _incomplete(response: dict[str, Any], body: bytes | None) -> str:
    """Return why a response has no complete body; "" if it has."""
    if body is None:
        return f"the response ({response['status']}) has no body"
    if _is_cut(response, body):
        return (
            f"the response ({response['status']}) is cut: {len(body)} of {response['content']['size']} bytes"
        )
    return ""


def _answer(response: dict[str, Any], status: int, body: bytes) -> Response:
    headers = _headers(response)
    mime = str((response.get("content") or {}).get("mimeType") or "")
    if mime and body and not header(headers, "content-type"):
        headers = (*headers, ("Content-Type", mime))
    target = str(response.get("redirectURL") or "")
    if (
        target
        and 300 <= status < 400
        and target.isascii()
        and target.isprintable()
        and not header(headers, "location")
    ):
        headers = (*headers, ("Location", target))  # BrowserMob Proxy leaves out all header fields
    if status not in _EMPTY:
        headers = (*headers, ("Content-Length", str(len(body))))
    return Response(status, str(response.get("statusText") or ""), headers, body)


def _joined(entry: dict[str, Any], url: str, posted: bytes, response: Response, started: str) -> Exchange:
    request = entry["request"]
    version = str(entry["response"].get("httpVersion", "")).lower()
    return Exchange(
        Request(str(request["method"]).upper(), url, _headers(request), posted),
        response,
        started,
        remote_ip=str(entry.get("serverIPAddress") or "").strip("[]"),
        protocol="h2" if version in ("h2", "http/2", "http/2.0") else "http/1.1",
    )


def _started(entry: dict[str, Any]) -> str:
    return timestamp_of(str(entry.get("startedDateTime", "")))


def _frames(entry: dict[str, Any]) -> Frames:
    """Return the messages of a WebSocket, with times since the start of its entry."""
    start = datetime.fromisoformat(str(entry["startedDateTime"])).timestamp()
    frames = []
    for message in entry["_webSocketMessages"]:
        opcode, data = message["opcode"], str(message["data"])
        if opcode not in (TEXT, BINARY):
            continue
        payload = data.encode("utf-8", "replace") if opcode == TEXT else base64.b64decode(data)
        ms = max(0, round((float(message["time"]) - start) * 1000))
        frames.append(Frame(ms, message["type"] == "send", opcode, payload))
    return Frames(tuple(frames), end_ms=frames[-1].ms if frames else 0)


def _headers(message: dict[str, Any]) -> Headers:
    """Return the fields; browsers join those of one name, such as Set-Cookie, by line ends."""
    return tuple(
        (str(each["name"]), " ".join(value.split("\n")))
        for each in message.get("headers") or ()
        if each["name"].lower() not in _DROPPED and not each["name"].startswith(":")
        for value in _FIELD_END.split(str(each["value"]).replace("\r", ""))
    )


def _is_cut(response: dict[str, Any], body: bytes) -> bool:
    """Return True if a body is shorter than its stated `size`, in any encoding of its text."""
    content = response.get("content") or {}
    size = _size(content.get("size"))
    if content.get("text") is None or not body:
        return False  # responses to HEAD, redirects, and attached bodies
    if content.get("encoding") == "base64":
        return len(body) < size
    text = str(content["text"])
    if size + _signed(content.get("compression")) == len(body):
        return False  # mitmproxy gives the size before decoding
    if len(body) + text.count("\n") == size and "\r" not in text:
        return False  # Fiddler converts line ends
    # A byte order mark is not part of the text; only UTF-16 and UTF-32 take more bytes than UTF-8.
    return len(text.encode("utf-8", "replace")) + 3 < size and size not in _wide(text)


def _wide(text: str) -> set[int]:
    sizes = {len(text.encode(name, "replace")) for name in ("utf-16-le", "utf-32-le")}
    return sizes | {size + 2 for size in sizes} | {size + 4 for size in sizes}


def _signed(value: object) -> int:
    return value if isinstance(value, int) else 0


def _size(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _redirects(response: dict[str, Any]) -> bool:
    target = header(_headers(response), "location") or response.get("redirectURL")
    return 300 <= int(response["status"]) < 400 and bool(target)


def _encode(text: str, mime: str) -> bytes:
    """Return text in the charset of its media type, which its Content-Type states at replay."""
    charset = _CHARSET.search(mime)
    try:
        return text.encode(codec_of(charset[1]) if charset else "utf-8")
    except (LookupError, UnicodeEncodeError):
        return text.encode("utf-8", "replace")
