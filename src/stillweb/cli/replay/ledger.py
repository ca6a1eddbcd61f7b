"""`stillweb replay ledger`, `misses` and `sessions`: the answers of a replay, from a server or from files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import FILE, collections_option, json_option

if TYPE_CHECKING:
    from stillweb.collections.baselines import Absences
    from stillweb.collections.misses import Missed
    from stillweb.http.control import SessionInfo
    from stillweb.replay.ledger.file import LedgerLine

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
_REQUEST_SHOWN = 12  # characters of a body's digest in tables


def _source_options(command: F) -> F:
    """Add the sources and filters of both commands."""
    for option in (
        click.option("--follow", "-f", is_flag=True, help="Continue with new answers, until Ctrl-C."),
        click.option("--collection", metavar="NAME", help="Only answers from this collection."),
        click.option("--session", "session_id", metavar="ID", help="Only answers to this session."),
        click.argument("sources", nargs=-1, metavar="[SOURCE]..."),
    ):
        command = option(command)
    return command


def _lines_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON lines to stdout.")(command)


@click.command()
@_source_options
@click.option("--tier", help="Only answers of this tier: exact, noise, miss, ...")
@_lines_option
def ledger(
    sources: tuple[str, ...], session_id: str | None, collection: str | None, follow: bool, **chosen: Any
) -> None:
    """List the answers of a replay, with the reasons.

    SOURCE is the URL of a server, which includes recently closed sessions, or a file that
    `stillweb replay NAME --ledger FILE` wrote; the default is http://127.0.0.1:8080. With --json the output
    has the format of that file, and can be a SOURCE again.

    \b
    Example:
      stillweb replay ledger http://127.0.0.1:8080 --tier exact
      stillweb replay ledger runs/*.jsonl --collection shop
      stillweb replay ledger --follow
    """
    tier, as_json = chosen["tier"], chosen["as_json"]

    def wanted(line: LedgerLine) -> bool:
        return (
            (session_id is None or line.session == session_id)
            and (collection is None or line.collection == collection)
            and (tier is None or line.entry.tier == tier)
        )

    if follow:
        _follow(sources, lambda line: _print_line(line, as_json) if wanted(line) else None)
        return
    found = [line for line in _read(sources) if wanted(line)]
    if as_json:
        for line in found:
            echo(line.to_json(), nl=False)
        return
    print_table(
        ("session", "#nr", "#status", "tier", "#bytes", "#ms", "method", "url", "reason"),
        [(line.session[:8], *_cells(line)) for line in found],
    )


@click.command()
@_source_options
@click.option("--guesses", is_flag=True, help="Include answers of looser tiers (guess, fuzzy, pywb).")
@click.option("--unexplained", is_flag=True, help="Leave out requests that failed in the recording too.")
@collections_option
@click.option("--out", type=FILE, help="File to write the misses to, as JSON lines.")
@_lines_option
def misses(
    sources: tuple[str, ...], session_id: str | None, collection: str | None, follow: bool, **chosen: Any
) -> None:
    """List the requests that the recording cannot answer, most frequent first, without noise.

    SOURCE is the URL of a server, which includes recently closed sessions, or a file that
    `stillweb replay NAME --ledger FILE` wrote; the default is http://127.0.0.1:8080. If the collection is in
    --collections, a miss that also failed in its recording is marked as explained. With --json or --out the
    output is a file of misses (docs/reference/ledger.md) for `stillweb record amend`. It contains request
    bodies as pages sent them.

    \b
    Example:
      stillweb replay misses http://127.0.0.1:8080
      stillweb replay misses runs/*.jsonl --unexplained --out misses.jsonl
    """
    if follow and chosen["out"]:
        raise click.UsageError("--out needs all answers first: remove --follow")
    marks = _Marks(chosen["root"], chosen["unexplained"])
    lines = (session_id, collection)
    if follow:
        _follow_misses(sources, lines, marks, chosen)
        return
    from stillweb.replay.ledger.misses import gather_misses

    read = (line for line in _read(sources) if _of(line, lines))
    found = [
        missed
        for missed in map(marks.marked, gather_misses(read, guesses=chosen["guesses"]))
        if marks.wanted(missed)
    ]
    if chosen["out"]:
        chosen["out"].write_text("".join(missed.to_line() for missed in found), "ascii")
        echo(f"{chosen['out']}: {len(found)} misses", err=True)
        for name in sorted({missed.collection for missed in found}):
            echo(f"  next: stillweb record amend {name} --misses {chosen['out']}", err=True)
    elif chosen["as_json"]:
        for missed in found:
            echo(missed.to_line(), nl=False)
    elif found:
        _print_misses(found)
    else:
        echo("no misses in this ledger", err=True)


class _Marks:
    """Marks misses as explained if the request also failed in the recording."""

    def __init__(self, root: Path, unexplained: bool) -> None:
        self._root = root
        self._unexplained = unexplained
        self._absences: dict[str, Absences] = {}

    def marked(self, missed: Missed) -> Missed:
        """Return a miss with its explanation, if its collection is available."""
        from stillweb.collections.baselines import Absences
        from stillweb.collections.layout import Collection
        from stillweb.errors import CollectionNotFound
        from stillweb.replay.ledger.misses import explained

        if missed.collection not in self._absences:
            try:
                opened = Collection.open(self._root, missed.collection)
            except CollectionNotFound:
                if self._unexplained:
                    raise
                return missed
            self._absences[missed.collection] = Absences(opened)
        return explained(missed, self._absences)

    def wanted(self, missed: Missed) -> bool:
        return not (self._unexplained and missed.explained)


def _of(line: LedgerLine, wanted: tuple[str | None, str | None]) -> bool:
    session_id, collection = wanted
    return (session_id is None or line.session == session_id) and (
        collection is None or line.collection == collection
    )


def _follow_misses(
    sources: tuple[str, ...], wanted: tuple[str | None, str | None], marks: _Marks, chosen: dict[str, Any]
) -> None:
    from stillweb.replay.ledger.misses import MissCollector

    gatherer = MissCollector(guesses=chosen["guesses"])

    def show(line: LedgerLine) -> None:
        missed = gatherer.take(line) if _of(line, wanted) else None
        if missed is None or not marks.wanted(missed := marks.marked(missed)):
            return
        text = f"{missed.method} {missed.url} {missed.resource or '-'} {missed.reason}"
        echo(missed.to_line().rstrip() if chosen["as_json"] else text)

    _follow(sources, show)


def _print_misses(found: Iterable[Missed]) -> None:
    print_table(
        ("#times", "method", "url", "resource", "body", "reason", "explained", "first page", "last page"),
        [
            (
                *(each.count, each.method, each.url, each.resource, _body(each), each.reason),
                "not known" if each.explained is None else each.explained or "no",
                *(each.first.page or each.first.referer, each.last.page or each.last.referer),
            )
            for each in found
        ],
    )


def _body(missed: Missed) -> str:
    if not missed.body_size:
        return ""
    return f"{missed.body_digest.removeprefix('sha256:')[:_REQUEST_SHOWN]} ({missed.body_size} bytes)"


def _cells(line: LedgerLine) -> tuple[object, ...]:
    e = line.entry
    return (e.seq, e.status, e.tier, e.bytes, e.ms, e.method, e.url, e.reason)


def _print_line(line: LedgerLine, as_json: bool) -> None:
    text = line.to_json().rstrip() if as_json else " ".join(map(str, (line.session[:8], *_cells(line))))
    echo(text)


def _read(sources: tuple[str, ...]) -> list[LedgerLine]:
    """Return the lines of all sources; print warnings about files to stderr."""
    return asyncio.run(_all(sources or (DEFAULT_URL,)))


async def _all(sources: tuple[str, ...]) -> list[LedgerLine]:
    from stillweb.replay.ledger.source import open_source

    found: list[LedgerLine] = []
    async with AsyncExitStack() as stack:
        for name in sources:
            source = open_source(name)
            stack.push_async_callback(source.aclose)
            found += await source.new()
            if source.warning:
                echo(source.warning, err=True)
    return found


def _follow(sources: tuple[str, ...], show: Callable[[LedgerLine], None]) -> None:
    """Show current and new lines, until Ctrl-C or until the reader of the pipe has closed it."""
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_followed(sources or (DEFAULT_URL,), show))


async def _followed(sources: tuple[str, ...], show: Callable[[LedgerLine], None]) -> None:
    from stillweb.replay.ledger.source import follow, open_source

    async with AsyncExitStack() as stack:
        opened = [open_source(name) for name in sources]
        for source in opened:
            stack.push_async_callback(source.aclose)
        async for line in follow(opened):
            show(line)


@click.command()
@click.argument("url", default=DEFAULT_URL)
@json_option
def sessions(url: str, as_json: bool) -> None:
    """List the open sessions of a replay server.

    \b
    Example:
      stillweb replay sessions http://127.0.0.1:8080
    """
    listed: list[Any] = [*asyncio.run(_sessions(url))]
    if as_json:
        print_json(listed)
        return
    fields = ("id", "collection", "proxy", "epoch", "in_flight", "requests")
    print_table(
        ("session", "collection", "proxy", "#epoch", "#in flight", "#requests", "#misses", "worker"),
        [(*(s[name] for name in fields), s["counts"].get("miss", 0), _worker(s)) for s in listed],
    )


def _worker(session: SessionInfo) -> str:
    died = " (died)" if session.get("lost") else ""
    return f"{session['worker']}{died}" if "worker" in session else ""


async def _sessions(url: str) -> list[SessionInfo]:
    from stillweb.replay import ReplayClient

    async with ReplayClient(url) as client:
        return await client.sessions()
