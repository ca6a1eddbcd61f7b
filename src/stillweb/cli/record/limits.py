"""Options of `record crawl` that say how much, how fast and by which lists, and how it tells what it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import click

from stillweb.cli.collections.commands import redacted_in_words
from stillweb.cli.console import progress
from stillweb.collections.layout import Collection
from stillweb.record.behaviors.behaviors import in_words
from stillweb.record.crawl.report import CrawlEvent, CrawlReport

__all__ = ["LIMIT_NAMES", "CrawlProgress", "limit_options", "tell"]

F = TypeVar("F", bound=Callable[..., Any])

LIMIT_NAMES = ("time_limit", "size_limit", "retries", "delay", "rate", "robots", "sitemap", "page_timeout")

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Duration(click.ParamType[float]):
    """Seconds, or a number with s, m or h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip().lower())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no time, such as 90, 30m or 2h", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class Size(click.ParamType[int]):
    """Bytes, or a number with K, M or G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:i?b)?", str(value).strip().lower())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no size, such as 500M or 2G", param, ctx)
        return round(float(match[1]) * _SIZES[match[2]])


def limit_options(command: F) -> F:
    """Add limits, politeness, and what is read besides the pages."""
    options = (
        click.option("--time-limit", type=Duration(), help="Begin no page after it: 90, 30m, 2h."),
        click.option("--size-limit", type=Size(), help="Begin no page after so much was received: 500M, 2G."),
        click.option(
            "--page-timeout",
            type=click.FloatRange(2),
            default=90.0,
            show_default=True,
            help="Seconds for one attempt at a page, all in all.",
        ),
        click.option(
            "--retries",
            type=click.IntRange(0),
            default=1,
            show_default=True,
            help="Further attempts at a page that failed.",
        ),
        click.option(
            "--delay",
            type=click.FloatRange(0),
            default=0.0,
            help="Seconds at least from one page of a host to its next.",
        ),
        click.option(
            "--rate", type=click.FloatRange(0, min_open=True), help="Pages of a host a minute at most."
        ),
        click.option("--robots", is_flag=True, help="Leave out what robots.txt forbids, and heed its delay."),
        click.option(
            "--sitemap",
            is_flag=False,
            flag_value="",
            metavar="[URL]",
            help="Queue what a sitemap lists, too; without URL (as the last option) those of the site.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class CrawlProgress:
    """The progress of a crawl, on stderr; use it as a context."""

    def __init__(self) -> None:
        self._bar = progress()
        self._task = self._bar.add_task("recording", total=None)

    def __enter__(self) -> CrawlProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def stage(self, what: str) -> None:
        """Show what is done while no page is under way."""
        self._bar.update(self._task, description=what)

    def show(self, event: CrawlEvent) -> None:
        """Show how far a crawl is."""
        through = event.pages + event.files + event.failed
        text = (
            f"{event.queued} queued, {event.failed} failed, {event.body_bytes / 1e6:.1f} MB, "
            f"{event.per_minute:.0f} pages/min"
        )
        self._bar.update(self._task, completed=through, total=through + event.queued, description=text)
        if event.error:
            again = f" (before: {event.retried})" if event.retried not in ("", event.error) else ""
            self.say(f"not recorded: {event.url}: {event.error}{again}")
        elif event.retried:
            self.say(f"recorded at another attempt: {event.url}: {event.retried}")


def tell(report: CrawlReport, collection: Collection) -> None:
    """Say what a crawl has recorded: the sums to stdout, what is missing to stderr."""
    click.echo(
        f"{collection.name}: {len(report.pages)} pages, {len(report.failed_pages)} not loaded, "
        f"{report.exchanges} exchanges, {report.body_bytes} bytes, {report.captures} captures"
    )
    if report.files:
        click.echo(f"  {len(report.files)} links to files, which are recorded and no pages")
    if report.behaviours:
        click.echo(f"  done with pages: {in_words(report.behaviours)}")
    if redacted := redacted_in_words(collection.manifest().redactions):
        click.echo(f"  {redacted}")
    _tell_missing(report)


def _tell_missing(report: CrawlReport) -> None:
    if report.stopped:
        click.echo(f"partial: ended by {report.stopped}; the same with --append goes on", err=True)
    if report.files_left:
        found = f"{len(report.files_left)} linked files are not recorded, such as {report.files_left[0]}"
        click.echo(f"  {found}; --files records them", err=True)
    if refused := [page for page in report.pages if page.status >= HTTPStatus.BAD_REQUEST]:
        first = f"such as {refused[0].url} ({refused[0].status})"
        click.echo(f"  {len(refused)} pages answered with status 400 or more, {first}", err=True)
    for line in report.repaired:
        click.echo(f"  mended: {line}", err=True)
    for what, count in report.notes.items():
        click.echo(f"  {count} x {what}", err=True)
    for url in report.forbidden:
        click.echo(f"  left out by robots.txt: {url}", err=True)
    for url, why in report.sitemaps.items():
        click.echo(f"  not read: {url}: {why}", err=True)
    for url, why in report.failed_requests.items():
        click.echo(f"  no answer: {url}: {why}", err=True)
