"""What a crawl tells: after each page how far it is, and at its end what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stillweb.model import Page

__all__ = ["CrawlEvent", "CrawlReport"]


@dataclass(frozen=True, slots=True)
class CrawlEvent:
    """How far a crawl is; sent after each page.

    Attributes:
        url: the page that is through.
        error: why it could not be recorded, "" if it was.
        pages, queued, failed: recorded, still to visit, and not loaded.
        exchanges, body_bytes: written so far.
        per_minute: pages through in this run, by its time so far.
        retried: why the page was tried again, "" if it was not.
        files: recorded, but no pages.
    """

    url: str
    error: str
    pages: int
    queued: int
    failed: int
    exchanges: int
    body_bytes: int
    per_minute: float = 0.0
    retried: str = ""
    files: int = 0


@dataclass(slots=True)
class CrawlReport:
    """What a crawl has recorded.

    Attributes:
        seeds: in wire spelling.
        pages: of the whole collection; those of this crawl in the order of its queue.
        files: URLs that turned out to be files to save; recorded, but no pages.
        files_left: URLs of linked files that were not asked for.
        failed_pages: URL -> why it could not be loaded.
        retried_pages: URL -> why its first attempt failed, whatever became of it then.
        forbidden: URLs that robots.txt forbids; not visited.
        sitemaps: URL of a sitemap or robots.txt -> what was wrong with it.
        repaired: what was mended of a collection whose recording had been killed.
        failed_requests: URL -> why the site gave no answer.
        notes: what passed without being recorded, with counts.
        exchanges, body_bytes, captures: written; captures in the index of the whole collection.
        seconds: that the visits of this crawl took.
        behaviours: what was done with the pages of this crawl, in sums.
        stopped: the limit that ended the crawl before its end, as it was given; "" if none did.
    """

    seeds: tuple[str, ...] = ()
    pages: list[Page] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    files_left: list[str] = field(default_factory=list)
    failed_pages: dict[str, str] = field(default_factory=dict)
    retried_pages: dict[str, str] = field(default_factory=dict)
    forbidden: list[str] = field(default_factory=list)
    sitemaps: dict[str, str] = field(default_factory=dict)
    repaired: list[str] = field(default_factory=list)
    failed_requests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    exchanges: int = 0
    body_bytes: int = 0
    captures: int = 0
    seconds: float = 0.0
    behaviours: dict[str, dict[str, int]] = field(default_factory=dict)
    stopped: str = ""
