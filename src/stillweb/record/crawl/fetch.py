"""The pages that a site's sitemaps list: sitemaps.org XML, its index files, one URL a line; plain or gzip.

Bounded: so many files, so many URLs. What is wrong with a file is told and passed over, since a crawl has
links to go by as well.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urljoin
from xml.etree.ElementTree import ParseError, iterparse

import httpx
from protego import Protego

from stillweb import __version__
from stillweb.errors import UpstreamUnreachable, UsageError
from stillweb.record.crawl.scope import page_links
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import resolve
from stillweb.urls import origin_of, wire_url

__all__ = ["Robots", "Sitemaps", "parse_sitemap"]

AGENT = "stillweb"
"""The name that robots.txt may speak of us by."""

LIMIT = 50 * 1024 * 1024
"""Bytes, unpacked: what a sitemap may have (sitemaps.org), far above the 500 KiB of RFC 9309 §2.5."""

_REDIRECTIONS = 5  # RFC 9309 §2.3.1.2
_TIMEOUT = 15.0
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer.

    Attributes:
        url: where it came from in the end.
        status: of the last answer.
        body: unpacked, also where the file itself is gzip.
    """

    url: str
    status: int
    body: bytes


class Fetcher:
    """Fetches over connections of its own; use it as an asynchronous context."""

    def __init__(self, options: RecordOptions) -> None:
        self._rules = options.resolve
        self._client = httpx.AsyncClient(
            verify=_trust(options.upstream_ca),
            trust_env=False,
            timeout=_TIMEOUT,
            headers={"User-Agent": f"{AGENT}/{__version__}", "Accept": "*/*"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, url: str) -> Fetched:
        """Fetch a file, redirections followed.

        Raises:
            UpstreamUnreachable: if there is no answer, or one without end.
        """
        try:
            for _ in range(_REDIRECTIONS + 1):
                request = self._request(wire_url(url))
                answer = await self._client.send(request, stream=True)
                try:
                    if not answer.has_redirect_location:
                        return Fetched(url, answer.status_code, _unpacked(await _read(answer)))
                    url = urljoin(url, answer.headers["location"])
                finally:
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, zlib.error) as error:
            raise UpstreamUnreachable(f"{url}: {error or type(error).__name__}") from error
        raise UpstreamUnreachable(f"{url}: more than {_REDIRECTIONS} redirections")

    def _request(self, url: str) -> httpx.Request:
        asked = httpx.URL(url)
        if asked.scheme not in ("http", "https") or not asked.host:
            raise ValueError(f"no http or https URL: {url}")
        port = asked.port or (443 if asked.scheme == "https" else 80)
        address, to_port = resolve(self._rules, asked.host, port)
        request = self._client.build_request(
            "GET", asked.copy_with(host=address, port=to_port), headers={"Host": asked.netloc.decode("ascii")}
        )
        request.extensions["sni_hostname"] = asked.host  # also the name looked for in the certificate
        return request


async def _read(answer: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _unpacked(body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(body, LIMIT)
    if unpacker.unconsumed_tail:
        raise ValueError(f"longer than {LIMIT} bytes, unpacked")
    return plain


def _trust(upstream_ca: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if upstream_ca is not None:
        try:
            context.load_verify_locations(upstream_ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"cannot read the upstream CA {upstream_ca}: {error}", hint="--upstream-ca takes a PEM file"
            ) from error
    return context


_FORBIDS_ALL = "User-agent: *\nDisallow: /"
_MOST_DELAY = 60.0  # seconds; a file may ask for any


@dataclass(slots=True)
class Robots:
    """The robots.txt of the origins met so far.

    Attributes:
        fetcher: how they are read.
        unread: origin -> why its file could not be read.
    """

    fetcher: Fetcher
    unread: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Protego] = field(default_factory=dict)

    async def allows(self, url: str) -> bool:
        """Tell whether a page may be visited."""
        rules = await self._of(url)
        return bool(rules.can_fetch(url, AGENT))

    async def delay(self, url: str) -> float:
        """Return the seconds that the site wants between two pages; 0 if it does not say."""
        asked = (await self._of(url)).crawl_delay(AGENT)
        return min(float(asked or 0), _MOST_DELAY)

    async def sitemaps(self, url: str) -> list[str]:
        """Return the sitemaps that the file of a URL's origin names."""
        return list((await self._of(url)).sitemaps)

    async def _of(self, url: str) -> Protego:
        origin = origin_of(url)
        if origin not in self._read:
            self._read[origin] = Protego.parse(await self._text(origin))
        return self._read[origin]

    async def _text(self, origin: str) -> str:
        try:
            fetched = await self.fetcher.get(f"{origin}/robots.txt")
        except UpstreamUnreachable as error:
            self.unread[origin] = str(error)
            return _FORBIDS_ALL
        if fetched.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.unread[origin] = f"status {fetched.status}"
            return _FORBIDS_ALL
        return fetched.body.decode("utf-8", "replace") if fetched.status == HTTPStatus.OK else ""


MOST_FILES = 500
MOST_PAGES = 200_000


@dataclass(slots=True)
class Sitemaps:
    """The walk through a site's sitemaps.

    Attributes:
        pages: in the order of the files.
        problems: URL of a file -> what is wrong with it.
        files: how many were read.
    """

    pages: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    files: int = 0

    async def walk(self, fetcher: Fetcher, starts: Iterable[str]) -> None:
        """Read the sitemaps given and those that they name, breadth first."""
        queue = list(dict.fromkeys(starts))
        known, pages = set(queue), dict.fromkeys(self.pages)
        for url in queue:
            if self.files >= MOST_FILES or len(pages) >= MOST_PAGES:
                self.problems[url] = f"not read: {self.files} files with {len(pages)} pages were before it"
                break
            self.files += 1
            found, more = await self._read(fetcher, url)
            pages |= dict.fromkeys(page_links((each, url) for each in found))
            for each in more:
                if (place := urljoin(url, each)) not in known:
                    known.add(place)
                    queue.append(place)
        self.pages = list(pages)[:MOST_PAGES]

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
    """Return where the sitemaps of the seeds' sites are: as robots.txt says, else /sitemap.xml."""
    found: list[str] = []
    for origin in dict.fromkeys(map(origin_of, seeds)):
        found += await robots.sitemaps(origin + "/") or [f"{origin}/sitemap.xml"]
    return found


def parse_sitemap(body: bytes) -> tuple[list[str], list[str], str]:
    """Return the pages and the further sitemaps that a file names, and what is wrong with it.

    A file that breaks off gives what stands before the break.
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
    """Yield (name of the element around it, text) of each `loc` below `url` or `sitemap`, in document order.

    Expat (2.4 and later) refuses entities that multiply.
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
