"""robots.txt and sitemaps: sitemaps.org XML, index files, or one URL a line; plain or gzip.

The number of files and of URLs is bounded. A malformed file is reported and skipped, because the crawl also
has links to follow.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urljoin
from xml.etree.ElementTree import ParseError, iterparse

import httpx

from stillweb import __version__
from stillweb.errors import UpstreamUnreachable, UsageError
from stillweb.record.crawl.scope import page_links
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.upstream import AddressRefused, UpstreamResolver
from stillweb.urls import origin_of, wire_url

if TYPE_CHECKING:
    from protego import Protego

AGENT = "stillweb"
"""User agent name that robots.txt rules may address."""

LIMIT = 50 * 1024 * 1024
"""Maximum bytes of a decompressed sitemap (sitemaps.org); far above the 500 KiB of RFC 9309 §2.5."""

_REDIRECTIONS = 5  # RFC 9309 §2.3.1.2
_TIMEOUT = 15.0
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response.

    Attributes:
        url: URL after redirects.
        body: decompressed body, also if the file itself is gzip.
    """

    url: str
    status: int
    body: bytes


class Fetcher:
    """HTTP client with its own connections; an asynchronous context manager."""

    def __init__(self, options: RecordOptions) -> None:
        self._resolver = UpstreamResolver(options.resolve, allow_private=options.allow_private)
        self._client = httpx.AsyncClient(
            verify=tls_context(options.upstream_ca),
            trust_env=False,
            timeout=_TIMEOUT,
            headers={"User-Agent": f"{AGENT}/{__version__}", "Accept": "*/*"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, url: str) -> Fetched:
        """Fetch a file and follow redirects.

        Raises:
            UpstreamUnreachable: if there is no complete response.
        """
        try:
            for _ in range(_REDIRECTIONS + 1):
                request = await self._request(wire_url(url))
                answer = await self._client.send(request, stream=True)
                try:
                    if not answer.has_redirect_location:
                        return Fetched(url, answer.status_code, _decompressed(await _read(answer)))
                    url = urljoin(url, answer.headers["location"])
                finally:
                    await answer.aclose()
        except AddressRefused as error:
            raise UpstreamUnreachable(f"{url}: {error}", hint=error.hint) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, zlib.error) as error:
            raise UpstreamUnreachable(f"{url}: {error or type(error).__name__}") from None
        raise UpstreamUnreachable(f"{url}: more than {_REDIRECTIONS} redirects")

    async def _request(self, url: str) -> httpx.Request:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"not an http or https URL: {url}")
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        address, to_port = await self._resolver.resolve(parsed.host, port)
        request = self._client.build_request(
            "GET",
            parsed.copy_with(host=address, port=to_port),
            headers={"Host": parsed.netloc.decode("ascii")},
        )
        request.extensions["sni_hostname"] = parsed.host  # also the name verified in the certificate
        return request


async def _read(answer: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _decompressed(body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(body, LIMIT)
    if unpacker.unconsumed_tail:
        raise ValueError(f"longer than {LIMIT} bytes when decompressed")
    return plain


def tls_context(upstream_ca: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if upstream_ca is not None:
        try:
            context.load_verify_locations(upstream_ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"cannot read the upstream CA {upstream_ca}: {error}", hint="--upstream-ca takes a PEM file"
            ) from error
    return context


_FORBID_ALL = "User-agent: *\nDisallow: /"
_MAX_DELAY = 60.0  # seconds; caps the delay that a file requests


@dataclass(slots=True)
class Robots:
    """The robots.txt files of the origins seen so far.

    Attributes:
        unread: origin -> why its file could not be read.
    """

    fetcher: Fetcher
    unread: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Protego] = field(default_factory=dict)

    async def allows(self, url: str) -> bool:
        """Return True if a page may be visited."""
        rules = await self._of(url)
        return bool(rules.can_fetch(url, AGENT))

    async def delay(self, url: str) -> float:
        """Return the seconds that the site wants between two pages; 0 if it states none."""
        return min(float((await self._of(url)).crawl_delay(AGENT) or 0), _MAX_DELAY)

    async def sitemaps(self, url: str) -> list[str]:
        """Return the sitemaps named in the file of a URL's origin."""
        return list((await self._of(url)).sitemaps)

    async def _of(self, url: str) -> Protego:
        origin = origin_of(url)
        if origin not in self._read:
            from protego import Protego  # of the extra stillweb[record]

            self._read[origin] = Protego.parse(await self._text(origin))
        return self._read[origin]

    async def _text(self, origin: str) -> str:
        try:
            fetched = await self.fetcher.get(f"{origin}/robots.txt")
        except UpstreamUnreachable as error:
            self.unread[origin] = str(error)
            return _FORBID_ALL
        if fetched.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.unread[origin] = f"status {fetched.status}"
            return _FORBID_ALL
        return fetched.body.decode("utf-8", "replace") if fetched.status == HTTPStatus.OK else ""


MAX_FILES = 500
MAX_PAGES = 200_000


@dataclass(slots=True)
class Sitemaps:
    """Breadth-first walk through a site's sitemaps.

    Attributes:
        pages: URLs in the order of the files.
        problems: URL of a file -> its error.
    """

    pages: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    files: int = 0

    async def walk(self, fetcher: Fetcher, starts: Iterable[str]) -> None:
        """Read the given sitemaps and those that they name, breadth first."""
        queue = list(dict.fromkeys(starts))
        known, pages = set(queue), dict.fromkeys(self.pages)
        for url in queue:
            if self.files >= MAX_FILES or len(pages) >= MAX_PAGES:
                self.problems[url] = f"not read: after the limit of {self.files} files or {len(pages)} pages"
                break
            self.files += 1
            found, more = await self._read(fetcher, url)
            pages |= dict.fromkeys(page_links((each, url) for each in found))
            for each in more:
                if (target := urljoin(url, each)) not in known:
                    known.add(target)
                    queue.append(target)
        self.pages = list(pages)[:MAX_PAGES]

    async def _read(self, fetcher: Fetcher, url: str) -> tuple[list[str], list[str]]:
        try:
            fetched = await fetcher.get(url)
        except UpstreamUnreachable as error:
            self.problems[url] = str(error)
            return [], []
        if fetched.status != HTTPStatus.OK:
            self.problems[url] = f"status {fetched.status}"
            return [], []
        pages, files, problem = parse_sitemap(fetched.body)
        if problem:
            self.problems[url] = problem
        return pages, files


async def sitemaps_of(robots: Robots, seeds: Iterable[str]) -> list[str]:
    """Return the sitemap URLs of the seeds' sites: those in robots.txt, else /sitemap.xml."""
    found: list[str] = []
    for origin in dict.fromkeys(map(origin_of, seeds)):
        found += await robots.sitemaps(origin + "/") or [f"{origin}/sitemap.xml"]
    return found


def parse_sitemap(body: bytes) -> tuple[list[str], list[str], str]:
    """Return the pages and the further sitemaps that a file names, and its error.

    A truncated file yields the entries before the break.
    """
    if not body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        lines = [line.strip() for line in body.decode("utf-8-sig", "replace").splitlines()]
        listed = [line for line in lines if line.startswith(("http://", "https://"))]
        return listed, [], "" if listed else "neither XML nor a list of URLs"
    pages: list[str] = []
    files: list[str] = []
    try:
        for parent, text in _locations(body):
            (files if parent == "sitemap" else pages).append(text)
    except ParseError as error:
        return pages, files, f"not well-formed XML: {error}"
    return pages, files, "" if pages or files else "names no page"


def _locations(body: bytes) -> Iterable[tuple[str, str]]:
    """Yield (parent element, text) of each `loc` below `url` or `sitemap`, in document order.

    Expat (2.4 and later) refuses exponential entity expansion.
    """
    path: list[str] = []
    for event, element in iterparse(BytesIO(body), ("start", "end")):
        if event == "start":
            path.append(element.tag.rpartition("}")[2])
            continue
        name = path.pop()
        if name == "loc" and path and path[-1] in ("url", "sitemap") and element.text:
            yield path[-1], element.text.strip()
        element.clear()
