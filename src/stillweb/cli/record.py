"""`stillweb record`: crawl sites into a collection, or record what goes through a proxy."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, progress, stderr
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.record.crawl import CrawlEvent, CrawlReport, crawl
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy import RecordingProxy
from stillweb.record.recording import collection_to_fill, record_by_proxy
from stillweb.record.resolve import parse_all

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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


def name_options(command: F) -> F:
    """Add which collection to write."""
    append = click.option(
        "--append", is_flag=True, help="Add to the collection, and go on with a crawl that was stopped."
    )
    name = click.option("-c", "--collection", "name", required=True, help="Name of the collection.")
    return name(append(command))


def reach_options(command: F) -> F:
    """Add how to find the sites, and where collections and certificates are."""
    resolve = click.option(
        "--resolve",
        "rules",
        multiple=True,
        metavar="HOST[:PORT]=ADDR[:PORT]",
        help="Where a host really is; *.NAME is every host below it. Repeatable.",
    )
    upstream_ca = click.option(
        "--upstream-ca",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="PEM file of a CA that the sites use besides the system's.",
    )
    return resolve(upstream_ca(collections_option(certs_option(command))))


@click.group()
def record() -> None:
    """Record sites into a collection.

    Cookies, tokens and passwords that are sent are recorded too: nothing is redacted yet.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
    """  # noqa: D301  click reads \b itself


@record.command("crawl")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@name_options
@click.option(
    "--scope",
    type=click.Choice([kind.value for kind in ScopeKind]),
    default=ScopeKind.HOST.value,
    show_default=True,
    help="How far from a URL given links are followed.",
)
@click.option("--depth", type=click.IntRange(0), help="Links away from a URL given at most.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Pages at most.")
@click.option("--include", multiple=True, metavar="RE", help="Follow links that match only. Repeatable.")
@click.option("--exclude", multiple=True, metavar="RE", help="Do not follow links that match. Repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Pages at a time.")
@click.option("--viewport", type=Viewport(), default="1280x720", show_default=True)
@click.option(
    "--timezone", type=TimeZone(), default="UTC", show_default=True, help="IANA name that pages see."
)
@click.option("--locale", default="en-US", show_default=True, help="Language that pages see.")
@click.option("--seed", default=0, show_default=True, help="Of the pages' random numbers.")
@click.option(
    "--page-timeout",
    type=click.FloatRange(1),
    default=45.0,
    show_default=True,
    help="Seconds for the navigation of a page.",
)
@reach_options
@json_option
@click.pass_context
def crawl_command(ctx: click.Context, /, **given: Any) -> None:
    """Record pages and what they link to, each in a fresh browser with a pinned clock.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
      stillweb record crawl https://docs.test/ -c docs --resolve '*.test=127.0.0.1:8443'
    """  # noqa: D301  click reads \b itself
    options = CrawlOptions(
        profile=Profile(viewport=given["viewport"], locale=given["locale"], timezone=given["timezone"]),
        record=_record_options(given),
        **{name: given[name] for name in _CRAWL_NAMES},
    )
    ca = CertAuthority.load_or_init(given["certs_dir"])
    with (
        collection_to_fill(given["root"], given["name"], append=given["append"]) as collection,
        progress() as bar,
    ):
        task = bar.add_task("recording", total=None)

        def show(event: CrawlEvent) -> None:
            through = event.pages + event.failed
            text = f"{event.queued} queued, {event.failed} failed, {event.body_bytes / 1e6:.1f} MB"
            bar.update(task, completed=through, total=through + event.queued, description=text)
            if event.error:
                bar.console.print(f"not recorded: {event.url}: {event.error}", markup=False)

        try:
            report = _until_signal(crawl(given["urls"], collection, ca, options, show))
        except click.Abort:
            if collection.page_list():
                bar.console.print("what is recorded is kept; the same with --append goes on", markup=False)
            raise
    _tell(report, given["name"], as_json=given["as_json"])
    if any(url in report.failed_pages for url in report.seeds):
        ctx.exit(1)


@record.command("proxy")
@name_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@reach_options
def proxy_command(**given: Any) -> None:
    """Record whatever goes through a proxy, until Ctrl-C.

    The client must trust the CA: see `stillweb certs trust`.

    \b
    Example:
      stillweb record proxy -c site --port 8080
      curl --proxy http://127.0.0.1:8080 --cacert certs/ca.pem https://site.example/
    """  # noqa: D301  click reads \b itself
    ca = CertAuthority.load_or_init(given["certs_dir"])
    console = stderr()
    seen: list[RecordingProxy] = []

    def started(recording: RecordingProxy) -> None:
        seen.append(recording)
        console.print(f"recording into {given['name']} by the proxy {recording.url}; Ctrl-C ends it")

    options = _record_options(given)
    with collection_to_fill(given["root"], given["name"], append=given["append"]) as collection:
        _until_signal(_until_cancelled(record_by_proxy(collection, ca, options, started)))
    for recording in seen:
        kept = "" if recording.exchanges or given["append"] else "; nothing to keep"
        click.echo(f"{given['name']}: {recording.exchanges} exchanges, {recording.body_bytes} bytes{kept}")


_CRAWL_NAMES = ("scope", "depth", "limit", "include", "exclude", "jobs", "seed", "page_timeout")


def _record_options(given: dict[str, Any]) -> RecordOptions:
    if logging.getLogger().level >= logging.WARNING:
        # It warns of every site that does not answer, which is in our report.
        logging.getLogger("mitmproxy").setLevel(logging.ERROR)
        # What keeps it from listening is in our error; stopped while it starts, it logs an empty one.
        logging.getLogger("mitmproxy.addons.proxyserver").setLevel(logging.CRITICAL)
    return RecordOptions(
        resolve=parse_all(given["rules"]),
        upstream_ca=given["upstream_ca"],
        host=given.get("host", "127.0.0.1"),
        port=given.get("port", 0),
    )


def _tell(report: CrawlReport, name: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report) | {"collection": name})
        return
    click.echo(
        f"{name}: {len(report.pages)} pages, {len(report.failed_pages)} not loaded, "
        f"{report.exchanges} exchanges, {report.body_bytes} bytes, {report.captures} captures"
    )
    for what, count in report.notes.items():
        click.echo(f"  {count} x {what}", err=True)
    for url, why in report.failed_requests.items():
        click.echo(f"  no answer: {url}: {why}", err=True)


async def _until_cancelled(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine for which Ctrl-C is the end, not an interruption."""
    with suppress(asyncio.CancelledError):
        await main


def _until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; SIGINT and SIGTERM cancel it once, so that it can end cleanly.

    Raises:
        Abort: if it was cancelled; the command line then ends with status 130.
    """

    async def under_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the program at once
            if task is not None:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(under_signals())
    except asyncio.CancelledError:
        raise click.Abort from None
