"""Sources of ledger lines: the open and closed sessions of a running server, or ledger files.

To follow a server, `ServerSource` first lists the sessions, then reads the ledgers of those with new
responses. A request that is long in flight enters the ledger after later ones, so a cursor is "all up to
here, and these beyond".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stillweb.errors import SessionLost, UsageError
from stillweb.http.control import SessionInfo
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient
from stillweb.replay.ledger.file import LedgerFileReader, LedgerLine

FOLLOW_INTERVAL = 0.25
"""Seconds between two polls."""


def is_url(source: str) -> bool:
    """Return whether a source is a server, not a file."""
    return source.startswith(("http://", "https://"))


def open_source(source: str) -> ServerSource | FileSource:
    """Return the source of a URL or of a ledger file's path."""
    return ServerSource(source) if is_url(source) else FileSource(source)


class FileSource:
    """A ledger file, of a server that runs or has ended."""

    def __init__(self, source: str) -> None:
        self._reader = LedgerFileReader(Path(source))

    async def new(self) -> list[LedgerLine]:
        return list(self._reader.read())

    async def aclose(self) -> None:
        """Do nothing: the file is open only while it is read."""

    @property
    def warning(self) -> str:
        """Defect of the file; "" without one."""
        unfinished, unreadable = self._reader.unfinished, self._reader.unreadable
        torn = f"ends in the middle of a line ({unfinished} bytes)" if unfinished else ""
        bad = f"{unreadable} lines are not ledger entries" if unreadable else ""
        what = " and ".join(filter(None, (bad, torn)))
        return f"{self._reader.path}: {what}; skipped" if what else ""


@dataclass(slots=True)
class _Cursor:
    """Part of a session's ledger that was read: all up to `low`, and those in `beyond`."""

    low: int = 0
    beyond: set[int] = field(default_factory=set)
    finished: int = 0
    resets: int = 0
    over: bool = False

    def see(self, seq: int) -> bool:
        """Mark a request as read; return True if it is new."""
        if seq <= self.low or seq in self.beyond:
            return False
        self.beyond.add(seq)
        while self.low + 1 in self.beyond:
            self.low += 1
            self.beyond.remove(self.low)
        return True


class ServerSource:
    """A running server, with the closed sessions that it still holds."""

    def __init__(self, url: str) -> None:
        self._client = ReplayClient(url)
        self._lost: set[str] = set()
        self._cursors: dict[str, _Cursor] = {}

    @property
    def warning(self) -> str:
        """Sessions whose ledgers are lost; "" if none is."""
        lost = ", ".join(sorted(self._lost))
        return f"{self._client.url}: ledgers lost with their worker: {lost}" if lost else ""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def new(self) -> list[LedgerLine]:
        """Return the new lines, closed sessions before open ones.

        Raises:
            ReplayUnreachable: if no server answers.
            UsageError: if the server has no ledger.
        """
        if not self._cursors and not (await self._client.info()).features.get("ledger"):
            raise UsageError(
                f"{self._client.url} has no ledger", hint="stillweb replay NAME --backend native"
            )
        # First the open ones: a session that closes meanwhile is then in both lists.
        open_ones = await self._client.sessions()
        listed = {session["id"]: session for session in (*await self._client.closed_sessions(), *open_ones)}
        found = [line for session in listed.values() for line in await self._of(session)]
        for gone in self._cursors.keys() - listed.keys():
            del self._cursors[gone]
        return found

    async def _of(self, session: SessionInfo) -> list[LedgerLine]:
        if session.get("lost"):
            self._lost.add(session["id"])
            return []
        cursor = self._cursors.setdefault(session["id"], _Cursor())
        finished, resets = sum(session["counts"].values()), session.get("resets", 0)
        if cursor.resets != resets or finished < cursor.finished:  # fewer: it moved to another worker
            cursor = self._cursors[session["id"]] = _Cursor(resets=resets)
        if cursor.over or (finished == cursor.finished and not session.get("closed")):
            return []
        try:
            ledger = await self._client.ledger(session["id"], after=cursor.low, closed=True)
        except (UsageError, SessionLost):  # dropped, or lost, since it was listed
            return []
        cursor.finished, cursor.over = sum(ledger.counts.values()), ledger.closed
        if ledger.dropped and ledger.entries:  # dropped entries do not come any more
            cursor.low = max(cursor.low, ledger.entries[0].seq - 1)
        return [
            LedgerLine(session["id"], session["collection"], session["environment_id"], entry)
            for entry in ledger.entries
            if cursor.see(entry.seq)
        ]


async def follow(sources: Sequence[ServerSource | FileSource]) -> AsyncIterator[LedgerLine]:
    """Yield the lines of the sources, then new ones, forever."""
    found: list[LedgerLine] = []

    async def any_new() -> bool:
        for source in sources:
            found.extend(await source.new())
        return bool(found)

    while True:
        await poll(any_new, timeout=3600, interval=FOLLOW_INTERVAL)
        while found:
            yield found.pop(0)
