"""The pages that a site's sitemaps list: sitemaps.org XML, its index files, one URL a line; plain or gzip.

Bounded: so many files, so many URLs. What is wrong with a file is told and passed over, since a crawl has
links to go by as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BytesIO
from urllib.parse import urljoin
from xml.etree.ElementTree import ParseError, iterparse

from stillweb.errors import UpstreamUnreachable
from stillweb.record.fetch import Fetcher
from stillweb.record.robots import Robots
from stillweb.record.scope import page_links
from stillweb.urls import origin_of

__all__ = ["Sitemaps", "parse_sitemap"]

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
