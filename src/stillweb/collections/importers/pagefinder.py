"""Detection of pages in archives without a page list, and of the recording browser's properties.

A page is an HTML response with status 200 to a GET for a document: by Sec-Fetch-Dest if the browser sent it,
and not by XMLHttpRequest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from html.parser import HTMLParser
from typing import Any

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.errors import CollectionError, LimitExceeded
from stillweb.http.codec import decode
from stillweb.model import Capture, Exchange, Page, Response, header
from stillweb.text import codec_of
from stillweb.urls import wire_url

_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MAX_PAGE = 8 << 20  # bytes; a larger page has no title in the list
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")


def recorded_order(captures: Sequence[Capture]) -> list[Capture]:
    """Return captures in recorded order, as far as the archive determines it."""
    return sorted(captures, key=lambda each: (each.timestamp, each.source, each.offset))


def find_pages(collection: Collection, captures: Sequence[Capture]) -> list[Page]:
    """Return the pages among captures in recorded order, the first capture of each URL."""
    found: dict[str, Page] = {}
    for capture in recorded_order(captures):
        if capture.mime != "text/html" or capture.status != 200 or capture.method != "GET":
            continue
        url = wire_url(capture.url)
        if url in found:
            continue
        exchange = _read(collection, capture)
        if exchange and _is_document(exchange):
            found[url] = Page(
                capture.url,
                capture.timestamp,
                title=_title(exchange),
                id=f"page-{len(found)}",
                seed=not found,
                depth=min(len(found), 1),
                status=200,
                extra={"foundBy": "stillweb: an HTML answer to a document request"},
            )
    return list(found.values())


def _read(collection: Collection, capture: Capture) -> Exchange | None:
    try:
        return collection.read_capture(capture)
    except CollectionError:
        return None


def _is_document(exchange: Exchange) -> bool:
    headers = exchange.request.headers
    if header(headers, "x-requested-with"):
        return False
    return header(headers, "sec-fetch-dest", "document") == "document"


def _title(exchange: Exchange) -> str:
    encoding = header(exchange.response.headers, "content-encoding")
    try:
        body = decode(exchange.response.raw_body, encoding, limit=_MAX_PAGE) or b""
    except LimitExceeded:
        return ""
    match = _TITLE.search(body[: 1 << 18])
    return unescape(" ".join(match[1].decode("utf-8", "replace").split())) if match else ""


class _TextExtractor(HTMLParser):
    """Collects the text of an HTML document, a line for each run between tags."""

    _HIDDEN = frozenset({"head", "noscript", "script", "style", "svg", "template"})

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self._HIDDEN

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self._HIDDEN and self._hidden > 0
        if tag == "head":  # parsers close what an author left open there
            self._hidden = 0

    def handle_data(self, data: str) -> None:
        if not self._hidden and (text := " ".join(data.split())):
            self.lines.append(text)


def page_text(response: Response) -> str:
    """Return the text of an HTML response for full-text search; "" for other responses.

    Raises:
        LimitExceeded: if the body decodes to more than the limit.
    """
    if "html" not in response.mime:
        return ""
    body = decode(response.raw_body, header(response.headers, "content-encoding")) or b""
    charset = _CHARSET.search(header(response.headers, "content-type")) or _CHARSET.search(
        body[:1024].decode("latin-1")
    )
    try:
        text = body.decode(codec_of(charset[1]) if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    extractor = _TextExtractor()
    extractor.feed(text)
    extractor.close()
    return "\n".join(extractor.lines)


def complete_manifest(
    collection: Collection, manifest: Manifest, captures: Sequence[Capture]
) -> dict[str, Any]:
    """Return the recording's properties according to its captures: `recorded_at` and members of `profile`.

    The pinned clock starts at the request for the first page: URLs made by that page contain this time.
    """
    first = _first_capture(collection, captures)
    if first is None:
        return {}
    profile = dict(manifest.profile)
    for capture in (first, *recorded_order(captures)[:50]):
        exchange = _read(collection, capture)
        agent = header(exchange.request.headers, "user-agent") if exchange else ""
        if exchange and agent:
            profile.setdefault("user_agent", agent)
            language = _LANGUAGE.match(header(exchange.request.headers, "accept-language"))
            if language:
                profile.setdefault("locale", language[0])
            break
    return {"recorded_at": manifest.recorded_at or first.timestamp, "profile": profile}


def _first_capture(collection: Collection, captures: Sequence[Capture]) -> Capture | None:
    ordered = recorded_order(captures)
    for page in collection.page_list():
        url = wire_url(page.url)
        found = next((each for each in ordered if wire_url(each.url) == url), None)
        if found:
            return found
    return ordered[0] if ordered else None
