"""`stillweb record crawl --engine browsertrix`: its options, and errors for unsupported ones."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.cli.console import echo, print_json, stderr
from stillweb.cli.options import option_names, options_from
from stillweb.cli.record.report import CrawlProgress, print_crawl
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.record.browsertrix.run import BrowsertrixCrawl, Job, plan
from stillweb.record.browsertrix.settings import Container
from stillweb.record.crawl.report import CrawlReport
from stillweb.record.options import CrawlOptions

__all__ = ["BROWSERTRIX", "browsertrix_options", "crawl_by_browsertrix", "uses_browsertrix"]

F = TypeVar("F", bound=Callable[..., Any])

BROWSERTRIX, BROWSER = "browsertrix", "browser"

# Parameters of `record crawl` that mean the same to both engines; `settings_of` translates them.
_SHARED = frozenset(
    {
        "urls", "name", "append", "scope", "depth", "limit", "include", "exclude", "jobs", "timezone",
        "locale", "time_limit", "size_limit", "page_timeout", "retries", "delay", "rate", "robots", "sitemap",
        "behaviours", "resolve", "upstream_ca", "root", "certs_dir", "as_json", "warc_size", "engine",
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
    """Record pages with browsertrix-crawler."""
    job = Job(given["root"], given["name"], given["urls"], options, container, append=given["append"])
    if given["dry_run"]:
        planned = plan(job)
        for note in planned.notes:
            stderr().print(f"note: {note}", markup=False, soft_wrap=True)
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
