"""`stillweb record`: the group, and `record crawl` with `--twice` and `--engine browsertrix`."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.certs import CertAuthority
from stillweb.cli import CommandGroup
from stillweb.cli.collections.redactions import redacted_in_words
from stillweb.cli.collections.rules import print_rejected
from stillweb.cli.console import SectionedCommand, echo, print_json, until_signal
from stillweb.cli.options import certs_option, collections_option, json_option, option_names, options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.explore import (
    EXPLORING,
    explore,
    explore_after,
    explore_from,
    explore_options,
    print_explored,
)
from stillweb.cli.record.login import login, login_from, login_options
from stillweb.cli.record.shared import LISTENING, check_record_options, name_options, refuse_without
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.record.behaviors.behaviors import describe_actions
from stillweb.record.browsertrix.run import BrowsertrixCrawl, CrawlerJob, plan
from stillweb.record.browsertrix.settings import Container
from stillweb.record.crawl.crawl import crawl as crawl_pages
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.twice import TwiceReport, record_twice
from stillweb.record.explore.options import ExploreOptions
from stillweb.record.options import CrawlOptions
from stillweb.record.recording import PAGE_LIMIT, collection_to_fill


class CrawlProgress:
    """The progress of a crawl on stderr; use it as a context manager."""

    def __init__(self) -> None:
        self._bar = progress()
        self._task = self._bar.add_task("recording", total=None)

    def __enter__(self) -> CrawlProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def stage(self, description: str) -> None:
        self._bar.update(self._task, description=description)

    def show(self, event: CrawlEvent) -> None:
        """Update the bar, and print a line for a page that failed or was retried."""
        done = event.pages + event.files + event.failed
        text = (
            f"{event.queued} queued, {event.failed} failed, {event.body_bytes / 1e6:.1f} MB, "
            f"{event.per_minute:.0f} pages/min"
        )
        self._bar.update(self._task, completed=done, total=done + event.queued, description=text)
        for text in event.warnings:
            self.say(f"warning: {text}")
        if event.error:
            before = f" (before: {event.retried})" if event.retried not in ("", event.error) else ""
            self.say(f"not recorded: {event.url}: {event.error}{before}")
        elif event.retried:
            self.say(f"recorded after a retry: {event.url}: {event.retried}")


def print_crawl(report: CrawlReport, collection: Collection) -> None:
    """Print the totals of a crawl to stdout and its gaps to stderr."""
    echo(
        f"{collection.name}: {len(report.pages)} pages, {len(report.failed_pages)} not loaded, "
        f"{report.exchanges} exchanges, {report.body_bytes} bytes, {report.captures} captures"
    )
    if report.files:
        echo(f"  {len(report.files)} linked files recorded (not counted as pages)")
    if report.behaviors:
        echo(f"  page interactions: {describe_actions(report.behaviors)}")
    if redacted := redacted_in_words(collection.manifest().redactions):
        echo(f"  {redacted}")
    _print_gaps(report)


def _print_gaps(report: CrawlReport) -> None:
    if report.stopped:
        partial = "" if report.stopped.startswith(PAGE_LIMIT) else "partial: "
        echo(f"{partial}stopped by {report.stopped}; run again with --append to continue", err=True)
    if report.files_left:
        found = f"{len(report.files_left)} linked files are not recorded, such as {report.files_left[0]}"
        echo(f"  {found}; --files records them", err=True)
    if refused := [page for page in report.pages if page.status >= HTTPStatus.BAD_REQUEST]:
        first = f"such as {refused[0].url} ({refused[0].status})"
        echo(f"  {len(refused)} pages answered with status 400 or more, {first}", err=True)
    for line in report.repaired:
        echo(f"  repaired: {line}", err=True)
    for what, count in report.notes.items():
        echo(f"  {count} x {what}", err=True)
    for url, count in report.versions.items():
        echo(f"  {count} versions of {url} in this crawl", err=True)
    for url in report.forbidden:
        echo(f"  left out by robots.txt: {url}", err=True)
    for url, why in report.sitemaps.items():
        echo(f"  not read: {url}: {why}", err=True)
    for url, why in report.failed_requests.items():
        echo(f"  no answer: {url}: {why}", err=True)


BROWSERTRIX, BROWSER = "browsertrix", "browser"

# Parameters of `record crawl` that mean the same to both engines; `settings_of` translates them.
_SHARED = frozenset(
    {
        "urls", "name", "append", "scope", "depth", "limit", "include", "exclude", "jobs", "timezone",
        "locale", "time_limit", "size_limit", "page_timeout", "retries", "delay", "rate", "robots", "sitemap",
        "behaviors", "resolve", "upstream_ca", "root", "certs_dir", "as_json", "warc_size", "engine",
    }
)  # fmt: skip
_ITS_OWN = frozenset({*option_names(Container), "dry_run"})
_PROFILE = "it logs in with a browser profile: --browser-profile"
_WHY = {
    "storage_state": _PROFILE,
    "login": _PROFILE,
    "logged_in": _PROFILE,
    "viewport": "its windows are 1920x1080",
    "seed": "it does not control the pages' random numbers and clock",
    "keep_secrets": "it never redacts, so it stores all secrets",
}


def browsertrix_options(command: F) -> F:
    """Add the engine, and the options that only browsertrix has, passed on as `container`."""
    engine = click.option(
        "--engine",
        type=click.Choice([BROWSER, BROWSERTRIX]),
        default=BROWSER,
        show_default=True,
        help="Program that visits the pages: stillweb's browser, or browsertrix-crawler in a container.",
    )
    dry_run = click.option(
        "--dry-run", is_flag=True, help="[browsertrix] Print the command and the settings, and end."
    )
    return engine(options_from(Container, "container")(dry_run(command)))


def uses_browsertrix(ctx: click.Context, given: dict[str, Any]) -> bool:
    """Return whether browsertrix records.

    Raises:
        UsageError: if an option was given that the engine does not support.
    """
    chosen: bool = given["engine"] == BROWSERTRIX
    unsupported = _ITS_OWN if not chosen else frozenset(ctx.params) - _SHARED - _ITS_OWN
    for name in ctx.params:
        if name in unsupported and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in ctx.command.params if each.name == name)
            spelt = (option.secondary_opts if ctx.params[name] is False else option.opts)[0] or option.opts[0]
            if not chosen:
                raise UsageError(
                    f"{spelt} requires --engine {BROWSERTRIX}", hint=f"add --engine {BROWSERTRIX}"
                )
            why = _WHY.get(name, "it has no equivalent")
            hint = f"remove it, or record with --engine {BROWSER}; docs/how-to/browsertrix.md"
            raise UsageError(f"{spelt} is not supported by --engine {BROWSERTRIX}: {why}", hint=hint)
    return chosen


def crawl_by_browsertrix(
    ctx: click.Context, given: dict[str, Any], options: CrawlOptions, container: Container
) -> None:
    job = CrawlerJob(given["root"], given["name"], given["urls"], options, container, append=given["append"])
    if given["dry_run"]:
        planned = plan(job)
        for note in planned.notes:
            echo(f"note: {note}", err=True)
        echo(f"{shlex.join(planned.call)}\n\n# config.yaml\n{planned.yaml}", nl=False)
        return
    crawl = BrowsertrixCrawl(job)
    with CrawlProgress() as bar:
        report = asyncio.run(_run(crawl, bar))
    if given["as_json"]:
        print_json(asdict(report) | {"collection": job.name})
    else:
        print_crawl(report, Collection.open(job.root, job.name))
    if crawl.interrupted:
        raise click.Abort
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)


async def _run(crawl: BrowsertrixCrawl, bar: CrawlProgress) -> CrawlReport:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        crawl.interrupt()
        states = (
            "finishing the open pages; press Ctrl-C again to end without them",
            "ending; press Ctrl-C again to kill the container",
            "killing the container",
        )
        bar.say(states[min(crawl.interrupted, len(states)) - 1])

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await crawl.run(bar.show, bar.say)


F = TypeVar("F", bound=Callable[..., Any])


def twice_options(command: F) -> F:
    keep = click.option("--keep-second", is_flag=True, help="Keep the second recording as NAME@twice.")
    twice = click.option(
        "--twice",
        is_flag=True,
        help="Then record the same pages again with another clock and seed, and learn the volatile values.",
    )
    return twice(keep(command))


def twice_after(collection: Collection, ca: CertAuthority, options: CrawlOptions, keep: bool) -> TwiceReport:
    """Record a crawl's pages again. After Ctrl-C both recordings stay, and --append resumes the second."""
    with CrawlProgress() as bar:
        bar.say("recording the same pages again")
        try:
            return until_signal(record_twice(collection, ca, options, bar.show, keep=keep))
        except click.Abort:
            bar.say("the first recording is complete; run again with --append to continue the second")
            raise


def print_twice(name: str, twice: TwiceReport) -> None:
    learned = twice.learned
    echo(f"{name}: {len(learned.rules)} rules learned from {twice.pages} pages recorded twice")
    for rule in learned.rules:
        echo(f"  {rule.where} {rule.name or '(bare)'} of {rule.host}{rule.path}: {rule.shape}")
    print_rejected(learned)
    for url, why in twice.failed.items():
        echo(f"not recorded again: {url}: {why}", err=True)
    if twice.kept:
        echo(f"the second recording: {twice.kept}")


@click.group(
    cls=CommandGroup,
    lazy={name: f"stillweb.cli.record.{name}" for name in ("amend", "forms", "harvest", "proxy", "until")},
)
def record() -> None:
    """Record sites into a collection.

    Passwords, Authorization, cookies and tokens are stored as placeholders unless you give --keep-secrets.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
    """


record.add_command(login)
record.add_command(explore)


_SECTIONS = {
    "Pages to record": (
        *("scope", "depth", "include", "exclude", "files", "sitemap", "robots"),
        *("limit", "time_limit", "size_limit", "explore", "twice", "keep_second"),
    ),
    "Visiting pages": (
        *("jobs", "delay", "rate", "page_timeout", "retries", "behaviors", "scroll_screens"),
        *("behavior_seconds", "baseline", "viewport", "timezone", "locale", "seed"),
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


@record.command("crawl", cls=SectionedCommand, sections=_SECTIONS)
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
    """
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
    with collection_to_fill(given["root"], given["name"], append=given["append"]) as collection:
        report = _crawl(collection, ca, options, given["urls"])
    again = twice_after(collection, ca, options, given["keep_second"]) if given["twice"] else None
    explored = explore_after(collection, ca, options, given["urls"], exploring) if given["explore"] else None
    if given["as_json"]:
        more = {"explored": explored, "twice": again}
        found = {name: asdict(each) for name, each in more.items() if each}
        print_json({**asdict(report), "collection": given["name"], **found})
    else:
        print_crawl(report, collection)
        if again:
            print_twice(given["name"], again)
        if explored:
            print_explored(given["name"], explored)
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)


def _crawl(
    collection: Collection, ca: CertAuthority, options: CrawlOptions, urls: Sequence[str]
) -> CrawlReport:
    with CrawlProgress() as bar:
        try:
            return until_signal(crawl_pages(urls, collection, ca, options, bar.show, bar.stage))
        except click.Abort:
            if collection.page_list():
                bar.say("the recorded pages are stored; run again with --append to continue")
            raise
