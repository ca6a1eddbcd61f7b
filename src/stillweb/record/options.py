"""What a recording can be told, as frozen values; the command line and the demo make them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from stillweb.browser.profile import Profile
from stillweb.record.resolve import ResolveRule

MEBIBYTE = 1 << 20


class ScopeKind(StrEnum):
    """How far from a seed the crawl may follow links."""

    PAGE = "page"  # the seeds alone
    PREFIX = "prefix"  # same origin, below the seed's folder
    HOST = "host"  # same host, http or https
    DOMAIN = "domain"  # the seed's host and every host below it


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How the recording proxy listens and reaches the sites.

    Attributes:
        resolve: where hosts are really to be found; the most specific rule wins.
        upstream_ca: PEM file of a CA that sites may use besides the system's.
        host, port: where to listen; port 0 takes a free one.
        max_body: bytes; a longer answer passes through but is noted instead of recorded.
    """

    resolve: tuple[ResolveRule, ...] = ()
    upstream_ca: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    max_body: int = 256 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class CrawlOptions:
    """What the crawl visits and how.

    Attributes:
        scope: which links count as inside.
        depth: links away from a seed at most; None for no limit.
        limit: pages at most; None for no limit.
        include: regular expressions, one of which a followed link must match (if there are any).
        exclude: regular expressions, none of which a followed link may match.
        jobs: pages at a time; page order and ids do not depend on it.
        seed: of the pages' random numbers.
        profile: what the browser looks like to the site.
        page_timeout: seconds for the navigation of one page.
        retries: further attempts at a page whose navigation failed.
        browser: the browser's executable; None to look for one.
        record: how the sites are reached.
    """

    scope: ScopeKind = ScopeKind.HOST
    depth: int | None = None
    limit: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int = 2
    seed: int = 0
    profile: Profile = field(default_factory=Profile)
    page_timeout: float = 45.0
    retries: int = 1
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)
