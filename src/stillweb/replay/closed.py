"""Ledgers of sessions that are over: what an episode missed is asked for after it has ended.

Bounded by what they hold, oldest session first out; the last one closed is always there. A ledger for
good is a file (`stillweb replay NAME --ledger FILE`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stillweb.replay.session import Ledger

__all__ = ["CLOSED_BYTES", "ClosedSessions"]

CLOSED_BYTES = 16 * 1024 * 1024
"""Bytes of closed sessions that are kept, about; of the last one closed all, however much that is."""

_SESSION = 2048  # bytes of one with an empty ledger, about


class ClosedSessions:
    """What the sessions closed most recently answered."""

    def __init__(self, limit: int = CLOSED_BYTES) -> None:
        self._limit = limit
        self._kept: dict[str, tuple[dict[str, Any], Callable[[int], Ledger], int]] = {}
        self._weight = 0

    def add(self, shown: Mapping[str, Any], weight: int, read: Callable[[int], Ledger]) -> None:
        """Keep a session.

        Args:
            shown: its last state, as the control API has it.
            weight: of its ledger in bytes (`Session.weight`).
            read: gives its ledger beyond a request number (`Session.reader`).
        """
        state = {**shown, "closed": True}
        weight += _SESSION
        self._kept[state["id"]] = (state, read, weight)
        self._weight += weight
        while self._weight > self._limit and len(self._kept) > 1:
            _, _, lighter = self._kept.pop(next(iter(self._kept)))
            self._weight -= lighter

    def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions, the first closed first."""
        return [state for state, _, _ in self._kept.values()]

    def ledger(self, session_id: str, after: int = 0) -> Ledger | None:
        """Return what a session answered beyond request number `after`; None if it is not known."""
        if session_id not in self._kept:
            return None
        return replace(self._kept[session_id][1](after), closed=True)
