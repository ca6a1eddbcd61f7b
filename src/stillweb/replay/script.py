"""Answers that have the connection from their head on: WebSockets and open event streams.

Sans-io: times are seconds of the caller's clock (`takeover` has the loop's).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stillweb.replay.answer import Answer

__all__ = ["Script", "Scripted"]


class Script(Protocol):
    """What may have a connection after HTTP; times are seconds of one clock.

    Attributes:
        closed: whether the connection shall be closed, once what was returned has gone out.
        next_due: when `due` has something next; None if that hangs on the client, or nothing is left.
    """

    closed: bool

    @property
    def next_due(self) -> float | None:
        """Return it."""

    def due(self, now: float) -> bytes:
        """Return what shall go out by now."""

    def receive(self, text: bytes, now: float) -> bytes:
        """Take what came; return what shall go out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Answer):
    """An answer behind whose head a script plays.

    Attributes:
        script: used by one connection.
    """

    script: Script
