"""`stillweb record`: crawl sites into a collection, or record what goes through a proxy."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.cli.console import Sectioned, print_json
from stillweb.cli.options import json_option
from stillweb.cli.record.amend import amend_command
from stillweb.cli.record.browsertrix import browsertrix_options, crawl_by_browsertrix, uses_browsertrix
from stillweb.cli.record.explore import (
    EXPLORE,
    EXPLORING,
    explore_after,
    explore_command,
    explore_given,
    explore_options,
    tell_explored,
)
from stillweb.cli.record.limits import LIMIT_NAMES, CrawlProgress, limit_options, tell
from stillweb.cli.record.login import login_command, visit_given, visit_options
from stillweb.cli.record.proxy import proxy_command
from stillweb.cli.record.shared import (
    name_options,
    reach_options,
    record_options,
    refuse_without,
    scope_option,
    until_signal,
)
from stillweb.cli.record.twice import tell_twice, twice_after, twice_options
from stillweb.errors import UsageError
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions
from stillweb.record.recording import collection_to_fill


class Viewport(click.ParamType[tuple[int, int]]):
    """WIDTHxHEIGHT."""

    name = "WxH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return width and height."""
        if isinstance(value, tuple):
            return value
        width, _, height = str(value).lower().partition("x")
        if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
            self.fail(f"{value!r} is not WIDTHxHEIGHT, such as 1280x720", param, ctx)
        return int(width), int(height)


class TimeZone(click.ParamType[str]):
    """An IANA time zone name; the browser's own complaint would name each page."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, if there is such a zone."""
        try:
            return ZoneInfo(str(value)).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"{value!r} is no time zone, such as Europe/Berlin", param, ctx)


_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")  # RFC 5646, in shape


class Locale(click.ParamType[str]):
    """A language tag; the browser takes anything, and pages then throw where they read it."""

    name = "tag"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the tag, if it is one by its shape."""
        if not _LANGUAGE_TAG.fullmatch(str(value)):
            self.fail(f"{value!r} is no language tag, such as en-US", param, ctx)
        return str(value)


@click.group()
def record() -> None:
    """Record sites into a collection.

    Passwords, Authorization, cookies and tokens are written as placeholders unless --keep-secrets is given.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
    """  # noqa: D301  click reads \b itself


record.add_command(proxy_command)
record.add_command(login_command)
record.add_command(amend_command)
record.add_command(explore_command)


_SECTIONS = {
    "Which pages": (
        *("scope", "depth", "include", "exclude", "files", "sitemap", "robots"),
        *("limit", "time_limit", "size_limit", "explore", "twice", "keep_second"),
    ),
    "How pages are visited": (
        *("jobs", "delay", "rate", "page_timeout", "retries", "behaviours", "scroll_screens"),
        *("behaviour_seconds", "baseline", "viewport", "timezone", "locale", "seed"),
    ),
    "Login and secrets": (*("storage_state", "login_steps", "logged_in", "keep_secrets", "redact", "spare"),),
    "Exploring (with --explore)": EXPLORING,
    "Another engine": ("engine", "image", "docker", "docker_args", "settings", "browser_profile", "dry_run"),
    "Sites and files": ("rules", "upstream_ca", "root", "certs_dir", "warc_size", "operator"),
}


@record.command("crawl", cls=Sectioned, sections=_SECTIONS)
@click.argument("urls", nargs=-1, metavar="URL...")
@name_options
@scope_option("How far from a URL given links are followed.")
@click.option("--depth", type=click.IntRange(0), help="Links away from a URL given at most.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Pages at most.")
@click.option("--include", multiple=True, metavar="RE", help="Follow links that match only. Repeatable.")
@click.option("--exclude", multiple=True, metavar="RE", help="Do not follow links that match. Repeatable.")
@click.option(
    "--files/--no-files",
    default=False,
    show_default=True,
    help="Record files that pages link to (PDFs, archives, tables), too. They do not count towards --limit.",
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Pages at a time.")
@click.option("--viewport", type=Viewport(), default="1280x720", show_default=True)
@click.option(
    "--timezone", type=TimeZone(), default="UTC", show_default=True, help="IANA name that pages see."
)
@click.option("--locale", type=Locale(), default="en-US", show_default=True, help="Language that pages see.")
@click.option("--seed", default=0, show_default=True, help="Of the pages' random numbers.")
@click.option(
    "--baseline/--no-baseline",
    default=True,
    show_default=True,
    help="Keep what each page looked like and asked for, which `stillweb diff` compares a replay with.",
)
@limit_options
@visit_options
@EXPLORE
@explore_options
@twice_options
@browsertrix_options
@reach_options
@json_option
@click.pass_context
def crawl_command(ctx: click.Context, /, **given: Any) -> None:
    """Record pages and what they link to, each in a fresh browser with a pinned clock.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
      stillweb record crawl https://docs.test/ -c docs --resolve '*.test=127.0.0.1:8443'
      stillweb record crawl https://site.example/ -c site --time-limit 2h --robots --rate 30 --sitemap
    """  # noqa: D301  click reads \b itself
    if not given["urls"]:
        raise UsageError(
            "no URL to begin with", hint="if --sitemap took it, write --sitemap=URL, or --sitemap last"
        )
    options = CrawlOptions(
        profile=Profile(viewport=given["viewport"], locale=given["locale"], timezone=given["timezone"]),
        record=record_options(given),
        **visit_given(given),
        **{name: given[name] for name in _CRAWL_NAMES},
    )
    browsertrix = uses_browsertrix(ctx, given)
    refuse_without(ctx, "explore", EXPLORING)
    refuse_without(ctx, "twice", ("keep_second",))
    if browsertrix:
        crawl_by_browsertrix(ctx, given, options)
        return
    exploring = explore_given(options, given)
    ca = CertAuthority.load_or_init(given["certs_dir"])
    with (
        collection_to_fill(given["root"], given["name"], append=given["append"]) as collection,
        CrawlProgress() as bar,
    ):
        try:
            report = until_signal(crawl(given["urls"], collection, ca, options, bar.show, bar.stage))
        except click.Abort:
            if collection.page_list():
                bar.say("what is recorded is kept, and partial; the same with --append goes on")
            raise
    again = twice_after(collection, ca, options, given) if given["twice"] else None
    explored = explore_after(collection, ca, options, given["urls"], exploring) if exploring else None
    if given["as_json"]:
        print_json(
            asdict(report)
            | {"collection": given["name"]}
            | ({"explored": asdict(explored)} if explored else {})
            | ({"twice": asdict(again)} if again else {})
        )
    else:
        tell(report, collection)
        if again:
            tell_twice(given["name"], again)
        if explored:
            tell_explored(given["name"], explored)
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)


_CRAWL_NAMES = (
    *("scope", "depth", "limit", "include", "exclude", "files", "jobs", "seed", "baseline"),
    *LIMIT_NAMES,
)
