"""Progress bar and printed report of `record crawl`."""

from __future__ import annotations

from http import HTTPStatus

from stillweb.cli.collections.redactions import redacted_in_words
from stillweb.cli.console import echo, progress
from stillweb.collections.layout import Collection
from stillweb.record.behaviors.behaviors import describe_actions
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.recording import PAGE_LIMIT


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
        """Print a line above the bar."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def stage(self, description: str) -> None:
        """Show the current step while no page is open."""
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
    if report.behaviours:
        echo(f"  page interactions: {describe_actions(report.behaviours)}")
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
