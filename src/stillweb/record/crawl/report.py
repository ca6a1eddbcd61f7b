"""Progress events and the final report of a crawl."""

from __future__ import annotations

from dataclasses import dataclass, field

from stillweb.model import Page


@dataclass(frozen=True, slots=True)
class CrawlEvent:
    """Progress of a crawl after one page.

    Attributes:
        error: why it could not be recorded, "" if it was.
        pages, queued, failed: numbers of recorded, waiting and failed pages.
        exchanges, body_bytes: written so far.
        per_minute: completed pages per minute of this run.
        retried: why the page was visited again, "" if it was not.
        files: number of recorded downloads.
        warnings: conditions since the last event that the user should examine.
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
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class CrawlReport:
    """Results of a crawl; the field names are those of `--json`.

    Attributes:
        seeds: seeds in wire spelling.
        pages: pages of the whole collection; those of this crawl in queue order.
        files: URLs that turned out to be downloads; recorded, but not pages.
        files_left: linked downloads that were not requested.
        failed_pages: URL -> why it could not be loaded.
        retried_pages: URL -> why its first attempt failed, whatever the outcome.
        forbidden: URLs that robots.txt forbids; not visited.
        sitemaps: URL of a sitemap or robots.txt -> its error.
        repaired: repairs to a collection whose recording was killed.
        failed_requests: URL -> why the site sent no response.
        versions: scripts and style sheets whose content changed during this crawl -> number of versions.
        notes: traffic that passed without being recorded, with counts.
        exchanges, body_bytes, captures: written; captures in the index of the whole collection.
        seconds: duration of the visits of this crawl.
        behaviors: sums of the behaviors on the pages of this crawl.
        stopped: the limit that ended the crawl early, as given; "" if none did.
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
    versions: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    exchanges: int = 0
    body_bytes: int = 0
    captures: int = 0
    seconds: float = 0.0
    behaviors: dict[str, dict[str, int]] = field(default_factory=dict)
    stopped: str = ""
