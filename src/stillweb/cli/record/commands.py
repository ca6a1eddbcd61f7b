"""`stillweb record`: crawl sites into a collection, or record the traffic through a proxy."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from stillweb.certs import CertAuthority
from stillweb.cli import LazyGroup
from stillweb.cli.console import Sectioned, print_json, until_signal
from stillweb.cli.options import certs_option, collections_option, json_option, option_names, options_from
from stillweb.cli.record.browsertrix import (
    BROWSERTRIX,
    browsertrix_options,
    crawl_by_browsertrix,
    uses_browsertrix,
)
from stillweb.cli.record.explore import (
    EXPLORING,
    explore,
    explore_after,
    explore_from,
    explore_options,
    print_explored,
)
from stillweb.cli.record.login import login, login_from, login_options
from stillweb.cli.record.report import CrawlProgress, print_crawl
from stillweb.cli.record.shared import LISTENING, check_record_options, name_options, refuse_without
from stillweb.cli.record.twice import print_twice, twice_after, twice_options
from stillweb.errors import UsageError
from stillweb.record.browsertrix.settings import Container
from stillweb.record.crawl.crawl import crawl as crawl_pages
from stillweb.record.explore.options import ExploreOptions
from stillweb.record.options import CrawlOptions
from stillweb.record.recording import collection_to_fill


@click.group(
    cls=LazyGroup,
    lazy={name: f"stillweb.cli.record.{name}" for name in ("amend", "harvest", "proxy", "until")},
)
def record() -> None:
    """Record sites into a collection.

    Passwords, Authorization, cookies and tokens are stored as placeholders unless you give --keep-secrets.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
    """  # noqa: D301  click reads \b itself


record.add_command(login)
record.add_command(explore)


_SECTIONS = {
    "Pages to record": (
        *("scope", "depth", "include", "exclude", "files", "sitemap", "robots"),
        *("limit", "time_limit", "size_limit", "explore", "twice", "keep_second"),
    ),
    "Visiting pages": (
        *("jobs", "delay", "rate", "page_timeout", "retries", "behaviours", "scroll_screens"),
        *("behaviour_seconds", "baseline", "viewport", "timezone", "locale", "seed"),
    ),
    "Login and secrets": ("storage_state", "login", "logged_in", "keep_secrets", "redact", "no_redact"),
    "Exploring (with --explore)": EXPLORING,
    "Another engine": ("engine", *option_names(Container), "dry_run"),
    "Sites and files": (
        "resolve",
        "allow_private",
        "upstream_ca",
        "root",
        "certs_dir",
        "warc_size",
        "operator",
    ),
}


@record.command("crawl", cls=Sectioned, sections=_SECTIONS)
@click.argument("urls", nargs=-1, metavar="URL...")
@name_options
@options_from(CrawlOptions(limit=100), without=LISTENING)
@login_options
@click.option(
    "--explore",
    type=click.IntRange(1),
    metavar="BUDGET",
    help="Then explore the recorded pages as an agent would, with at most BUDGET actions "
    "(docs/how-to/explore.md).",
)
@explore_options
@twice_options
@browsertrix_options
@collections_option
@certs_option
@json_option
@click.pass_context
def crawl(
    ctx: click.Context,
    /,
    options: CrawlOptions,
    exploring: ExploreOptions,
    container: Container,
    **given: Any,
) -> None:
    """Record pages and the pages that they link to, each in a fresh browser context with a pinned clock.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
      stillweb record crawl https://docs.test/ -c docs --resolve '*.test=127.0.0.1:8443'
      stillweb record crawl https://site.example/ -c site --time-limit 2h --robots --rate 30 --sitemap
    """  # noqa: D301  click reads \b itself
    if not given["urls"]:
        raise UsageError(
            "no URL to start from", hint="if --sitemap consumed it, write --sitemap=URL, or --sitemap last"
        )
    check_record_options(options.record, extra="" if given["engine"] == BROWSERTRIX else "record")
    options = replace(options, login=login_from(given))
    browsertrix = uses_browsertrix(ctx, given)
    refuse_without(ctx, "explore", EXPLORING)
    refuse_without(ctx, "twice", ("keep_second",))
    if browsertrix:
        crawl_by_browsertrix(ctx, given, options, container)
        return
    reach = {"budget": given["explore"], "record": options.record, "login": options.login}
    exploring = explore_from(exploring, given["explore_skip"], **reach)
    ca = CertAuthority.load_or_init(given["certs_dir"])
    with (
        collection_to_fill(given["root"], given["name"], append=given["append"]) as collection,
        CrawlProgress() as bar,
    ):
        try:
            report = until_signal(crawl_pages(given["urls"], collection, ca, options, bar.show, bar.stage))
        except click.Abort:
            if collection.page_list():
                bar.say("the recorded pages are stored; run again with --append to continue")
            raise
    again = twice_after(collection, ca, options, given["keep_second"]) if given["twice"] else None
    explored = explore_after(collection, ca, options, given["urls"], exploring) if given["explore"] else None
    if given["as_json"]:
        print_json(
            asdict(report)
            | {"collection": given["name"]}
            | ({"explored": asdict(explored)} if explored else {})
            | ({"twice": asdict(again)} if again else {})
        )
    else:
        print_crawl(report, collection)
        if again:
            print_twice(given["name"], again)
        if explored:
            print_explored(given["name"], explored)
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)
