"""`stillweb monitor`: the state of a rollout server in a terminal, as the page at its root shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING

import click
import httpx

from stillweb.cli.console import echo, print_json, stdout
from stillweb.cli.options import json_option, key_options
from stillweb.errors import PeerError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from stillweb.server.monitor.status import SessionStatus, Status

_COLOURS = {"N": "dim", "W": "yellow", "F": "green", "X": "red"}  # of session letters; running: blue
_RETRY_SECONDS = 1.0
_SILENT_SECONDS = 30.0  # the server sends an event every 5 s


@click.command("monitor")
@click.argument("url", metavar="URL")
@key_options("api", "the server requires")
@click.option("--once", is_flag=True, help="Print the state once and end.")
@json_option
def monitor(url: str, api_keys: Mapping[str, str], once: bool, as_json: bool) -> None:
    """Show the state of a rollout server: sessions, queues, rates, failures and misses.

    Each session is a letter. N is free and W starts an episode. 0 to 9 is the number of steps of a running
    episode (9 also for more). F has ended, X has failed. The page at URL shows the same with screenshots.

    \b
    Example:
      stillweb monitor http://127.0.0.1:7000
      stillweb monitor http://127.0.0.1:7000 --once --json
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is not the URL of a server", hint="such as http://127.0.0.1:7000")
    url, api_key = url.rstrip("/"), next(iter(api_keys.values()), "")
    if not (once or as_json):
        asyncio.run(_watch(url, api_key))
        return
    status = asyncio.run(_fetch_status(url, api_key))
    if as_json:
        print_json(status.model_dump())
    else:
        stdout().print(StatusView(status, url))


class StatusView:
    """A status, drawn by rich to fit the terminal."""

    def __init__(self, status: Status, url: str, note: str = "") -> None:
        self._status = status
        self._url = url
        self._note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the rows, most important first."""
        from rich.columns import Columns
        from rich.text import Text

        status = self._status
        busy = sum(session.letter != "N" for session in status.sessions)
        head = Text.assemble(
            ("stillweb serve ", "bold"),
            (self._note or status.state, "red" if self._note else "green"),
            f"  {self._url}  level {status.level}  {busy} of {len(status.sessions)} sessions leased",
        )
        yield head
        yield Text.assemble(*_figures(status))
        yield Text()
        yield _letters(status.sessions, max(10, options.max_width))
        yield Text()
        yield Columns([_queues(status), _failures(status)], padding=(0, 4))
        if busy:
            yield _running(status.sessions, _lines(console, status))
        if status.misses:
            yield _misses(status)


def _figures(status: Status) -> Iterable[str | tuple[str, str]]:
    traffic = status.traffic
    yield from ((f"{status.rates.steps:.1f}", "bold"), " steps/s  ")
    yield from ((f"{status.rates.resets:.2f}", "bold"), " resets/s  ")
    ended = sum(status.episodes.values())
    yield f"{status.steps} steps  {ended} episodes ended  {traffic.get('hits', 0)} hits  "
    misses = traffic.get("misses", 0)
    yield (f"{misses} misses", "yellow" if misses else "")
    yield f"  {traffic.get('noise', 0)} noise"


def _letters(sessions: Iterable[SessionStatus], width: int) -> RenderableType:
    from rich.text import Text

    signs = Text()
    for index, session in enumerate(sessions):
        if index and index % (width // 2) == 0:
            signs.append("\n")
        signs.append(session.letter + " ", _COLOURS.get(session.letter, "bold blue"))
    return signs


def _table(**widths: int) -> Table:
    """Return a table of headings and minimum widths; the last column shrinks first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, width in widths.items():
        table.add_column(heading.replace("_", " "), overflow="ellipsis", no_wrap=True, min_width=width)
    return table


def _queues(status: Status) -> Table:
    table = _table(queue=10, under_way=9, waiting=7)
    for name, queue in status.queues.items():
        waits = f"[yellow]{queue.waiting}[/]" if queue.waiting else "0"
        table.add_row(name, f"{queue.under_way} / {queue.limit}", waits)
    return table


def _failures(status: Status) -> Table:
    table = _table(failures=14, count=5)
    for kind, count in sorted(status.failures.items(), key=lambda each: -each[1]):
        table.add_row(kind, str(count))
    if not status.failures:
        table.add_row("none", "")
    return table


def _running(sessions: Iterable[SessionStatus], most: int) -> Table:
    from rich.markup import escape

    table = _table(session=7, step=4, age=6, owner=9, doing=7, task=10)
    leased = sorted((each for each in sessions if each.letter != "N"), key=lambda each: -each.age)
    for each in leased[:most]:
        what = f"[red]{escape(each.error)}[/]" if each.error else escape(each.task or each.url)
        sign = f"{each.index} {each.letter}"
        table.add_row(sign, str(each.step), f"{each.age:.0f} s", escape(each.owner), each.doing, what)
    if len(leased) > most:
        table.add_row("...", "", "", "", "", f"{len(leased) - most} more")
    return table


def _misses(status: Status) -> Table:
    from rich.markup import escape

    table = _table(missed=9, request=20, task=4)
    for miss in status.misses[:5]:
        table.add_row(f"{miss.age:.0f} s ago", escape(miss.request), escape(miss.task))
    return table


def _lines(console: Console, status: Status) -> int:
    """Return the number of sessions that fit into the terminal."""
    if not console.is_terminal:
        return len(status.sessions)
    others = 12 + len(status.queues) + min(5, len(status.misses)) + 4
    return max(3, console.height - others)


async def _watch(url: str, key: str) -> None:
    from rich.live import Live

    from stillweb.polling import poll

    first = await _fetch_status(url, key)  # an unreachable server or a wrong key ends the command
    with Live(StatusView(first, url), console=_screen(), screen=True, auto_refresh=False) as live:
        newest = first

        async def listen() -> bool:
            nonlocal newest
            try:
                async for newest in _events(url, key):
                    live.update(StatusView(newest, url), refresh=True)
            except PeerError:
                pass  # shown below; the next attempt finds a restarted server
            live.update(StatusView(newest, url, "unreachable; retrying"), refresh=True)
            return False

        while True:
            await poll(listen, timeout=3600, interval=_RETRY_SECONDS)


def _screen() -> Console:
    screen = stdout()
    if not screen.is_terminal:
        echo("stdout is not a terminal: use --once", err=True)
        raise click.exceptions.Exit(2)
    return screen


async def _fetch_status(url: str, key: str) -> Status:
    from stillweb.server.monitor.status import Status

    async with _client(url, key) as client:
        try:
            answer = await client.get("/v1/status")
        except httpx.HTTPError as error:
            raise PeerError(
                f"no rollout server at {url}: {error or type(error).__name__}",
                hint="stillweb serve starts one",
            ) from None
    _check(answer, url)
    return Status.model_validate_json(answer.content)


async def _events(url: str, key: str) -> AsyncIterator[Status]:
    from stillweb.server.monitor.status import Status

    async with _client(url, key) as client:
        try:
            async with client.stream("GET", "/v1/stream") as answer:
                _check(answer, url)
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        yield Status.model_validate_json(line[len("data:") :])
        except httpx.HTTPError as error:
            raise PeerError(f"{url}: {error or type(error).__name__}") from None


def _client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"x-api-key": key} if key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_SILENT_SECONDS, trust_env=False)


def _check(answer: httpx.Response, url: str) -> None:
    if answer.status_code in (401, 403):
        raise UsageError(f"{url} requires an API key", hint="set --api-key-file FILE, or STILLWEB_API_KEY")
    form = answer.headers.get("content-type", "").partition(";")[0]
    if answer.status_code != 200 or form not in ("application/json", "text/event-stream"):
        raise PeerError(f"{url} is not a rollout server: status {answer.status_code}", hint="stillweb serve")
