"""Recorded mutations that come before the frames of a WebSocket, or before the events of a stream. Pure.

A message that a site sends after a mutation may be its effect: one that the job runs, after the POST that
started it. So such frames and events are released only once the session has made that mutation
(docs/decisions/0016-frames.md).

A recorder notes each mutation that it passes on while a connection is open (`MutationMark`). Recordings
without these notes have the times of their exchanges, in whole seconds. Then a frame counts as an effect if
it may have come after the mutation; of mutations in the first two seconds of a connection, only if it
certainly did. Those are mostly sent by the page's own scripts, often in answer to the first frames, which
would otherwise wait for them forever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import MutationMark
from stillweb.matching.captures import Entry
from stillweb.matching.resolver import Policy, SessionState
from stillweb.model import MUTATIONS
from stillweb.replay.server.pageclock import PageClock
from stillweb.urls import from_timestamp, to_timestamp

_START = 2  # seconds of a connection in which scripts send mutations that no user made
_SPAN = 24 * 3600  # seconds of a connection that are searched for mutations


@dataclass(frozen=True, slots=True)
class Gate:
    """A mutation; what was received after it waits for it.

    Attributes:
        ms: milliseconds since the response to the handshake or request.
        order: position of the mutation's capture in recorded order.
    """

    ms: int
    order: int
    epoch: int

    def is_open(self, state: SessionState) -> bool:
        """Return whether a session has made the mutation, or a later one."""
        return state.epoch > self.epoch or state.uses.get(self.order, 0) > 0


@dataclass(frozen=True, slots=True)
class SessionGates:
    """The gates of a connection by time, and what of the session opens them.

    Attributes:
        state: returns the session's mutations.
    """

    gates: Sequence[Gate] = ()
    state: Callable[[], SessionState] = SessionState
    page_clock: PageClock = field(default_factory=PageClock)

    def is_open(self, gate: Gate) -> bool:
        return gate.is_open(self.state())


def gates_of(
    entry: Entry, marks: Sequence[MutationMark] | None, end_ms: int, pack: Pack, policy: Policy
) -> list[Gate]:
    """Return the gates of a recorded connection, by time.

    Args:
        entry: the connection.
        marks: the mutations that the recorder noted; None if it noted none.
        end_ms: time of its last frame or piece.
        pack: holds the mutations.
        policy: its noise is no cause of anything.

    Raises:
        MalformedPack: if an entry is damaged.
    """
    if marks is not None:
        found = [_marked(mark, pack, policy) for mark in marks if mark.ms <= end_ms]
        return [gate for gate in found if gate is not None]
    begin = from_timestamp(entry.timestamp)
    end = to_timestamp(begin + timedelta(seconds=min(end_ms // 1000 + 1, _SPAN)))
    gates = []
    for capture in _mutations(entry.timestamp, end, pack):
        if policy.noise.why(capture.url):
            continue
        seconds = round((from_timestamp(capture.timestamp) - begin).total_seconds())
        ms = (seconds + (1 if seconds < _START else -1)) * 1000
        if ms <= end_ms:
            gates.append(Gate(ms, capture.order, capture.epoch))
    return sorted(gates, key=lambda gate: (gate.ms, gate.order))


def _marked(mark: MutationMark, pack: Pack, policy: Policy) -> Gate | None:
    captures = list(_mutations(mark.at, mark.at, pack))
    if mark.number >= len(captures):  # the mutation was not recorded
        return None
    capture = captures[mark.number]
    return None if policy.noise.why(capture.url) else Gate(mark.ms, capture.order, capture.epoch)


def _mutations(begin: str, end: str, pack: Pack) -> Iterator[Entry]:
    """Yield the mutations from one timestamp to another, both included, in recorded order."""
    rows = range(len(pack))
    row = bisect_left(rows, begin, key=lambda each: pack.entry(each).timestamp)
    while row < len(pack) and (entry := pack.entry(row)).timestamp <= end:
        if entry.method in MUTATIONS:
            yield entry
        row += 1
