"""Options of recordings; the command line generates its options from them (`stillweb.options`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from stillweb.browser.profile import Profile
from stillweb.options import Option, parse_duration, parse_size
from stillweb.record.behaviors.options import ALL, Behavior, Budget, parse_behaviors
from stillweb.record.login.steps import Login
from stillweb.record.proxy.resolve import ResolveRule, parse_all


@dataclass(frozen=True, slots=True)
class SecretsOptions:
    """Secrets that the recorder redacts.

    Attributes:
        given: values known to be secret before the first request, such as those of a storage state.
    """

    keep: Annotated[
        bool,
        Option(
            "Store passwords, Authorization, cookies and tokens unredacted: anyone with the collection can "
            "log in with them. By default the recorder stores placeholders (docs/reference/secrets.md).",
            "--keep-secrets",
        ),
    ] = False
    redact: Annotated[
        tuple[str, ...],
        Option("Redact the value of this field, cookie or JSON member too. Repeatable.", metavar="NAME"),
    ] = ()
    exempt: Annotated[
        tuple[str, ...],
        Option("Never redact the value of NAME, whatever the rules say. Repeatable.", "--no-redact", "NAME"),
    ] = ()
    given: tuple[str, ...] = ()


MEBIBYTE = 1 << 20


class ScopeKind(StrEnum):
    """How far from a seed the crawl follows links."""

    PAGE = "page"  # the seeds alone
    PREFIX = "prefix"  # same origin, below the seed's folder
    HOST = "host"  # same host, http or https
    DOMAIN = "domain"  # the seed's host and every host below it


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How the recording proxy listens, reaches the sites and writes.

    Attributes:
        user: name and password that clients must send; None if the proxy is open.
        warc_size: bytes; None for the writer's default.
    """

    resolve: Annotated[
        tuple[ResolveRule, ...],
        Option(
            "Connect to ADDR for HOST; *.NAME matches every host below NAME. The most specific rule wins. "
            "Repeatable.",
            metavar="HOST[:PORT]=ADDR[:PORT]",
            parse=parse_all,
        ),
    ] = ()
    allow_private: Annotated[
        bool,
        Option(
            "Also connect to private, loopback and link-local addresses, which a page may request to attack "
            "your network. Hosts named by --resolve are always permitted."
        ),
    ] = False
    upstream_ca: Annotated[
        Path | None,
        Option("PEM file of a CA that sites may use in addition to the system's.", path="existing file"),
    ] = None
    host: Annotated[str, Option("Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0 for a free one.", min=0, max=65535)] = 0
    max_body: Annotated[
        int,
        Option("Forward longer bodies without recording them.", metavar="MIB", min=1, unit=MEBIBYTE),
    ] = 256 * MEBIBYTE
    user: tuple[str, str] | None = None
    secrets: SecretsOptions = field(default_factory=SecretsOptions)
    warc_size: Annotated[
        int | None,
        Option(
            "Start the next WARC file at this size in megabytes.",
            default="1000",
            metavar="MB",
            min=1,
            unit=1_000_000,
        ),
    ] = None
    operator: Annotated[str, Option("Operator, for the warcinfo records.", metavar="TEXT")] = ""

    def knowing(self, secrets: Iterable[str]) -> RecordOptions:
        """Return the options with further secrets that are known from the first request on."""
        given = tuple(dict.fromkeys((*self.secrets.given, *secrets)))
        return replace(self, secrets=replace(self.secrets, given=given))


def _format_behaviors(chosen: frozenset[Behavior]) -> str:
    return "all" if chosen == ALL else ",".join(sorted(chosen)) or "none"


@dataclass(frozen=True, slots=True)
class CrawlOptions:
    """Pages that a crawl visits, and options of the visits.

    Attributes:
        depth, limit, time_limit, size_limit, rate: None for no limit.
        sitemap: "" for the site's own sitemaps; None for none.
        login: None to crawl without a login.
        browser: the browser's executable; None to search for one.
    """

    scope: Annotated[ScopeKind, Option("How far from the given URLs the crawl follows links.")] = (
        ScopeKind.HOST
    )
    depth: Annotated[int | None, Option("Follow links at most N steps away from a given URL.", min=0)] = None
    limit: Annotated[int | None, Option("Record at most N pages.", min=1)] = None
    time_limit: Annotated[
        float | None,
        Option("Start no page after this time: 90 (seconds), 30m, 2h.", metavar="TIME", parse=parse_duration),
    ] = None
    size_limit: Annotated[
        int | None,
        Option(
            "Start no page after this many bytes of response bodies: 500M, 2G.",
            metavar="SIZE",
            parse=parse_size,
        ),
    ] = None
    include: Annotated[
        tuple[str, ...],
        Option("Follow only links that match this regular expression. Repeatable.", metavar="RE"),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Option("Do not follow links that match this regular expression. Repeatable.", metavar="RE"),
    ] = ()
    files: Annotated[
        bool,
        Option(
            "Record linked files too (PDFs, archives, tables). They do not count towards --limit.",
            "--files/--no-files",
        ),
    ] = False
    jobs: Annotated[
        int, Option("Visit N pages at a time; page order and ids do not depend on it.", min=1)
    ] = 2
    seed: Annotated[int, Option("Seed of the pages' random numbers.")] = 0
    profile: Profile = field(default_factory=Profile)
    page_timeout: Annotated[
        float,
        Option("Seconds for one attempt at a page; the navigation gets half.", metavar="SECONDS", min=2),
    ] = 90.0
    retries: Annotated[int, Option("Retry a failed page up to N times.", min=0)] = 1
    delay: Annotated[
        float,
        Option("Minimum seconds between the starts of two pages of a host.", metavar="SECONDS", min=0),
    ] = 0.0
    rate: Annotated[float | None, Option("Start at most N pages of a host a minute.", above=0)] = None
    robots: Annotated[bool, Option("Leave out pages that robots.txt forbids, and obey its Crawl-delay.")] = (
        False
    )
    sitemap: Annotated[
        str | None,
        Option(
            "Queue the pages of a sitemap too. Without URL (as the last option): the site's own sitemaps.",
            metavar="[URL]",
            bare="",
        ),
    ] = None
    login: Login | None = None
    baseline: Annotated[
        bool,
        Option(
            "Store each page's appearance and requests, which `stillweb diff` compares a replay with.",
            "--baseline/--no-baseline",
        ),
    ] = True
    behaviors: Annotated[
        frozenset[Behavior],
        Option(
            f"Interactions with each page after its baseline: all, none, or a list of {','.join(Behavior)}.",
            "--behaviors",
            "LIST",
            parse=parse_behaviors,
            format=_format_behaviors,
        ),
    ] = ALL
    budget: Budget = field(default_factory=Budget)
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)
