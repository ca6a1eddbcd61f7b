"""Resources of pages: what a document, its style sheets and its frames name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from stillweb.http.codec import decoded_body
from stillweb.model import HTML_TYPES, Exchange
from stillweb.record.crawl.scope import location_of
from stillweb.record.harvest.page import Resource, css_urls, parse_page

FetchResource = Callable[[str, str, str], Awaitable[Exchange | None]]
"""Fetches URL, request destination and referer; returns None for a resource that is not fetched."""


async def fetch_resources(fetch: FetchResource, resources: Iterable[Resource], referer: str) -> None:
    """Fetch the resources of a page, those that redirects lead to, and those of style sheets and frames."""
    for resource in resources:
        exchange = await fetch(resource.url, resource.destination, referer)
        if exchange is None:
            continue
        if location := location_of(exchange):
            await fetch_resources(fetch, [Resource(location, resource.destination)], referer)
        elif exchange.response.mime == "text/css":
            text = (decoded_body(exchange.response) or b"").decode("utf-8", "replace")
            await fetch_resources(fetch, css_urls(resource.url, text), resource.url)
        elif resource.destination in ("iframe", "frame") and exchange.response.mime in HTML_TYPES:
            framed = parse_page(resource.url, decoded_body(exchange.response) or b"")
            await fetch_resources(fetch, framed.resources, resource.url)
