"""Detection of pages in archives without a page list, and of the recording browser's properties.

A page is an HTML response with status 200 to a GET for a document: by Sec-Fetch-Dest if the browser sent it,
and not by XMLHttpRequest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Any

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.errors import CollectionError, LimitExceeded
from stillweb.http.codec import decode, decoded_body
from stillweb.model import Capture, Exchange, Page, Response, header
from stillweb.text import codec_of
from stillweb.urls import wire_url

_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MAX_PAGE = 8 << 20  # bytes; a larger page has no title in the list
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
# HTML Standard §13.2.5; a quote has a meaning after "=" only. Possessive, so that nothing is read twice.
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+>""")
_MARKUP = re.compile(r"<[a-zA-Z/!?]")
_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
_HIDDEN = frozenset({"head", "noscript", "svg", "template"})
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")


def find_pages(collection: Collection, captures: Sequence[Capture]) -> list[Page]:
    """Return the pages among captures in recorded order, the first capture of each URL."""
    found: dict[str, Page] = {}
    for capture in sorted(captures, key=Capture.in_time):
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


def _text_runs(html: str) -> Iterator[str]:
    """Yield the text between the tags of a document, without elements that a page does not show.

    Time is linear in the length, whatever the document holds. `html.parser` needs 38 s for 50 kB of unclosed
    tags, and parsers that build a tree (Lexbor) are quadratic in the depth of nested elements.
    """
    position, hidden = 0, 0
    while markup := _MARKUP.search(html, position):
        start = markup.start()
        if not hidden:
            yield html[position:start]
        tag = _TAG.match(html, start)
        if tag is None:
            end, begin = ("-->", start + 2) if html.startswith("<!--", start) else (">", start)
            position = _after(html, end, begin)
            continue
        closes, name, position = tag[1], tag[2].lower(), tag.end()
        if name in _RAW and not closes:
            raw_end = _RAW[name].search(html, position)
            position = raw_end.start() if raw_end else len(html)
        elif closes and name == "head":  # parsers close what an author left open there
            hidden = 0
        elif name in _HIDDEN:
            hidden = max(0, hidden - 1) if closes else hidden + 1
    if not hidden:
        yield html[position:]


def _after(text: str, end: str, start: int) -> int:
    """Return the position after `end`; that of the end of the text if it is missing, as in browsers."""
    found = text.find(end, start)
    return len(text) if found < 0 else found + len(end)


def page_text(response: Response) -> str:
    """Return the text of an HTML response for full-text search; "" for other responses.

    Raises:
        LimitExceeded: if the body decodes to more than the limit.
    """
    if "html" not in response.mime:
        return ""
    body = decoded_body(response) or b""
    charset = _CHARSET.search(header(response.headers, "content-type")) or _CHARSET.search(
        body[:1024].decode("latin-1")
    )
    try:
        text = body.decode(codec_of(charset[1]) if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    lines = (" ".join(unescape(run).split()) for run in _text_runs(text))
    return "\n".join(line for line in lines if line)


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
    for capture in (first, *sorted(captures, key=Capture.in_time)[:50]):
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
    ordered = sorted(captures, key=Capture.in_time)
    for page in collection.page_list():
        url = wire_url(page.url)
        found = next((each for each in ordered if wire_url(each.url) == url), None)
        if found:
            return found
    return ordered[0] if ordered else None
