"""The hosts that a replay server answers itself.

`AboutPage` is http://stillweb.internal/: served collections, and how to trust the CA. The proxy's own port
serves it to the default session only, so no episode can open it.

`SearchHost` is the search engine of replayed episodes, http://search.stillweb.internal/, off unless it is
requested. It searches the pages of the session's collection (`collections/search.py`). The index is built
before the server listens and stays the same until it ends, so equal queries get equal bytes. Its answers were
never recorded: their tier is `synthetic`.

All text from collections is escaped, and the pages have no script.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from importlib.resources import files
from itertools import islice
from string import Template
from urllib.parse import parse_qs, urlsplit

from stillweb.certs import CertAuthority
from stillweb.certs.trust import CERTIFICATE_TYPE, INTERNAL_HOST, certificate_file
from stillweb.collections.search import SearchHit, find, open_index
from stillweb.errors import UsageError
from stillweb.http.wire import simple_head
from stillweb.model import Headers, Request
from stillweb.replay.server.answer import PreparedResponse
from stillweb.replay.server.registry import PackRegistry

_LISTED = 200  # pages of a collection
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_READS = ("GET", "HEAD")


class AboutPage:
    """The responses of stillweb's own host.

    Args:
        registries: served packs by collection; the first is the default.
    """

    def __init__(self, registries: Mapping[str, PackRegistry], ca: CertAuthority) -> None:
        self._registries = registries
        self._ca = ca

    def respond(self, request: Request) -> PreparedResponse | None:
        """Return the response to a request for stillweb's own host; None for any other host."""
        if INTERNAL_HOST not in request.url:  # cheap, since this runs for every request
            return None
        parts = urlsplit(request.url)
        if parts.hostname != INTERNAL_HOST:
            return None
        if request.method in _READS:
            if certificate := certificate_file(self._ca.cert_pem, parts.path):
                name = parts.path.removeprefix("/")
                disposition = ("Content-Disposition", f'attachment; filename="{name}"')
                return internal_response(request, 200, certificate, CERTIFICATE_TYPE, (disposition,))
            if parts.path in ("", "/"):
                policy = ("Content-Security-Policy", _POLICY)
                return internal_response(request, 200, self._page(), "text/html; charset=utf-8", (policy,))
        return internal_response(request, 404, b"", "text/plain")

    def _page(self) -> bytes:
        page = Template(files("stillweb.replay.server").joinpath("about.html").read_text("utf-8"))
        shown = [_described(each, i == 0) for i, each in enumerate(self._registries.values())]
        text = page.substitute(collections="\n".join(shown), fingerprint=escape(self._ca.fingerprint))
        return text.encode("utf-8", "replace")


def _described(registry: PackRegistry, default: bool) -> str:
    pack = registry.current.pack
    facts = f"{pack.manifest['entries']} answers, environment <code>{escape(pack.environment_id[:16])}</code>"
    note = "" if default else "<p>Not the default collection: clients reach it through a session.</p>"
    pages = registry.collection.each_page() if registry.collection else iter(())
    links = "\n".join(_link(page.url, page.title) for page in islice(pages, _LISTED))
    return f"<h2>{escape(registry.name)}</h2>\n<p>{facts}</p>\n{note}<ul>\n{links}\n</ul>"


def _link(url: str, title: str) -> str:
    shown = escape(title or url)
    if not url.startswith(("http://", "https://")):
        return f"<li>{shown}</li>"
    return f'<li><a href="{escape(url)}">{shown}</a> <code>{escape(url)}</code></li>'


def internal_response(
    request: Request, status: int, body: bytes, media_type: str, fields: Headers = ()
) -> PreparedResponse:
    """Return a response that no collection holds."""
    head = simple_head(status, (("Content-Type", media_type), ("Cache-Control", "no-store"), *fields))
    head += b"Content-Length: %d\r\n" % len(body)
    return PreparedResponse(status, head, b"" if request.method == "HEAD" else body)


SEARCH_HOST = f"search.{INTERNAL_HOST}"
"""Host name of the search engine."""

_RESULTS = 20
_PAGES = 512  # in memory, of 10 kB each
_PATHS = ("", "/", "/search")
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }}</style>
</head>
<body><h1>Search</h1>
<form action="/search" role="search"><input type="search" name="q" value="{query}" aria-label="Search words">
<button>Search</button></form>
{body}
</body></html>
"""


class SearchHost:
    """The responses of the search engine.

    Args:
        registries: served packs by collection; those without an archive find nothing.
    """

    def __init__(self, registries: Mapping[str, PackRegistry]) -> None:
        self._indexes: dict[str, sqlite3.Connection] = {}
        for name, registry in registries.items():
            if registry.collection is not None:
                self._indexes[name] = open_index(registry.collection)
        # The index does not change, and episodes of one task send equal queries.
        self._page = lru_cache(_PAGES)(self._search_page)

    def respond(self, collection: str, request: Request) -> PreparedResponse | None:
        """Return the response to a request for the search engine; None for any other host."""
        if SEARCH_HOST not in request.url:  # cheap, since this runs for every request
            return None
        parts = urlsplit(request.url)
        if parts.hostname != SEARCH_HOST:
            return None
        if request.method not in _READS or parts.path not in _PATHS:
            return internal_response(request, 404, b"", "text/plain")
        query = " ".join(parse_qs(parts.query).get("q", [])).strip()
        page = self._page(collection, query).encode("utf-8", "replace")
        return internal_response(request, 200, page, "text/html; charset=utf-8")

    def _search_page(self, collection: str, query: str) -> str:
        body = self._results(collection, query) if query else "<p>Search the pages of this collection.</p>"
        title = f"{query} - Search" if query else "Search"
        return _PAGE.format(title=escape(title), query=escape(query), body=body)

    def _results(self, collection: str, query: str) -> str:
        index = self._indexes.get(collection)
        try:
            hits = find(index, query, _RESULTS) if index else []
        except UsageError:  # the query has no word
            hits = []
        if not hits:
            return f"<p>No page holds all words of <b>{escape(query)}</b>.</p>"
        return "<ol>\n" + "\n".join(map(_item, hits)) + "\n</ol>"


def _item(hit: SearchHit) -> str:
    title, url = escape(hit.title or hit.url), escape(hit.url)
    link = f'<a href="{url}">{title}</a>' if hit.url.startswith(("http://", "https://")) else title
    return f"<li>{link}<br><cite>{url}</cite><p>{escape(hit.snippet)}</p></li>"
