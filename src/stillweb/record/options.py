"""What a recording can be told, as frozen values; the command line and the demo make them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from stillweb.browser.profile import Profile
from stillweb.record.behaviors.behaviors import ALL, Behavior, Budget
from stillweb.record.login.steps import Login
from stillweb.record.proxy.resolve import ResolveRule

__all__ = ["SecretsOptions"]


@dataclass(frozen=True, slots=True)
class SecretsOptions:
    """Which secrets are taken out of what is written.

    Attributes:
        keep: take out nothing; the collection then lets whoever has it log in.
        redact: further names of fields, cookies and members whose values are secrets.
        spare: names whose values are none, whatever the rules say.
        given: values known to be secret before the first request, such as those of a storage state.
    """

    keep: bool = False
    redact: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


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
        max_body: bytes; what is longer, request or answer, passes through but is noted instead of recorded.
        user: name and password that clients must give; None lets everybody in.
        secrets: what is taken out of what is written.
        warc_size: bytes at which the next WARC file is started; None for the writer's own.
        operator: who records, for the WARC files' first records.
    """

    resolve: tuple[ResolveRule, ...] = ()
    upstream_ca: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    max_body: int = 256 * MEBIBYTE
    user: tuple[str, str] | None = None
    secrets: SecretsOptions = field(default_factory=SecretsOptions)
    warc_size: int | None = None
    operator: str = ""

    def knowing(self, secrets: Iterable[str]) -> RecordOptions:
        """Return the options of a recording that knows these secrets from the first request on."""
        given = tuple(dict.fromkeys((*self.secrets.given, *secrets)))
        return replace(self, secrets=replace(self.secrets, given=given))


@dataclass(frozen=True, slots=True)
class CrawlOptions:
    """What the crawl visits and how.

    Attributes:
        scope: which links count as inside.
        depth: links away from a seed at most; None for no limit.
        limit: pages at most; None for no limit.
        time_limit: seconds after which no further page is begun; None for no limit.
        size_limit: bytes of response bodies after which none is; None for no limit.
        include: regular expressions, one of which a followed link must match (if there are any).
        exclude: regular expressions, none of which a followed link may match.
        files: whether links to files to save (PDFs, archives) are followed, too; they do not count as pages.
        jobs: pages at a time; page order and ids do not depend on it.
        seed: of the pages' random numbers.
        profile: what the browser looks like to the site.
        page_timeout: seconds for one attempt at a page, all in all; half of it for the navigation.
        retries: further attempts at a page that failed.
        delay: seconds between the beginnings of two pages of a host.
        rate: pages of a host a minute at most; None for no limit.
        robots: whether pages that robots.txt forbids are left out.
        sitemap: URL of a sitemap whose pages are queued as well; "" to look for the site's; None for none.
        login: who pages are visited as; None for nobody.
        baseline: whether what each page looked like and asked for is kept; `stillweb diff` compares with it.
        behaviours: what is done with a page after its baseline was taken.
        budget: how much of it.
        browser: the browser's executable; None to look for one.
        record: how the sites are reached.
    """

    scope: ScopeKind = ScopeKind.HOST
    depth: int | None = None
    limit: int | None = None
    time_limit: float | None = None
    size_limit: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    files: bool = False
    jobs: int = 2
    seed: int = 0
    profile: Profile = field(default_factory=Profile)
    page_timeout: float = 90.0
    retries: int = 1
    delay: float = 0.0
    rate: float | None = None
    robots: bool = False
    sitemap: str | None = None
    login: Login | None = None
    baseline: bool = True
    behaviours: frozenset[Behavior] = ALL
    budget: Budget = field(default_factory=Budget)
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)
