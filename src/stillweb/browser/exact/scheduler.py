"""Answers let in one by one: at level EXACT no two answers of a context race.

Every request is held in the browser before it is sent (CDP Fetch). Only when everything is idle is one of
those held let go, and the next one only when its answer has been taken in and everything is idle again.
Which one is first must not hang on the machine: what pages wait for (documents, styles, data) comes before
what they do not (deferred scripts), and that before pictures; then those that were asked for after fewer
answers come first, then the order is that of URL and body, and of those who ask for the same. So the order
hangs on the page alone, whatever thread of the browser was quicker, and whatever it keeps back while a
document's head loads: only the latter two.

This module keeps the account, and knows neither CDP nor time; `world` asks it what to do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["PendingRequest", "RequestScheduler", "RequestStage"]

# Nobody waits for their end: pings are not answered, and streams end when the page says so.
_UNTIL_ANSWERED = frozenset({"eventsource", "media", "websocket"})
_NOT_AT_ALL = frozenset({"ping", "cspviolationreport"})
_PICTURES = frozenset({"image", "font", "media", "texttrack", "ping", "cspviolationreport", "prefetch"})


class RequestStage(StrEnum):
    """How far a request is."""

    SENT = "sent"  # told by the page; not held yet, or answered from the page's own memory
    HELD = "held"
    LET = "let"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request.

    Attributes:
        key: the browser's identifier of it.
        url, method, body: what is asked.
        kind: resource type, lower case.
        round: how many answers had been let in when it was first seen.
        hold: identifier under which it is held.
        answered: whether its answer has begun.
        late: whether the browser gives it a low priority.
        asker: what tells the worker that asks from others; documents ask first.
        told: whether it is known who asks.
        moved: set when it has ended, or is held again, or nobody waits for it any more.
    """

    key: str
    url: str
    method: str
    kind: str
    round: int
    body: str = ""
    stage: RequestStage = RequestStage.SENT
    hold: str = ""
    owner: object = None
    answered: bool = False
    late: bool = False
    asker: tuple[str, int] = ("", 0)
    told: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def rank(self) -> tuple[int, int, str, str, str, tuple[str, int]]:
        """What decides which of those held comes first."""
        return (self.place, self.round, self.url, self.method, self.body, self.asker)

    @property
    def place(self) -> int:
        """0 for what pages wait for, 1 for what they do not, 2 for pictures."""
        return 2 if self.is_picture else int(self.late)

    @property
    def is_picture(self) -> bool:
        """Whether scripts seldom hang on it."""
        return self.kind in _PICTURES


class RequestScheduler:
    """The account of a context's requests.

    Attributes:
        round: how many answers were let in.
        progress: set whenever something moves; who waits clears it.
    """

    def __init__(self) -> None:
        self.round = 0
        self.progress = asyncio.Event()
        self._asked: dict[str, PendingRequest] = {}

    @property
    def open(self) -> list[PendingRequest]:
        """The requests that have not ended."""
        return list(self._asked.values())

    def sent(self, key: str, url: str, method: str, kind: str, body: str = "") -> PendingRequest:
        """A page tells of a request; of one that is known if it is redirected or was held first."""
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = PendingRequest(key, url, method, kind, self.round, body)
        elif asked.stage is RequestStage.LET:  # a redirection: it will be held again
            asked.url, asked.method, asked.stage, asked.answered = url, method, RequestStage.SENT, False
        self.progress.set()
        return asked

    def held(self, asked: PendingRequest, hold: str, owner: object) -> None:
        """The browser holds a request."""
        asked.stage, asked.hold, asked.owner = RequestStage.HELD, hold, owner
        asked.moved.set()
        self.progress.set()

    def answered(self, key: str) -> None:
        """The head of an answer has come."""
        if asked := self._asked.get(key):
            asked.answered = True
            if asked.kind in _UNTIL_ANSWERED:
                self.ended(key)
            self.progress.set()

    def ended(self, key: str) -> PendingRequest | None:
        """A request is over, well or not; return it unless it was over before."""
        if asked := self._asked.pop(key, None):
            asked.stage = RequestStage.ENDED
            asked.moved.set()
        self.progress.set()
        return asked

    def ended_of(self, owner: object) -> list[PendingRequest]:
        """All requests of a target that is gone are over; return them."""
        gone = [asked for asked in self._asked.values() if asked.owner is owner]
        for asked in gone:
            self.ended(asked.key)
        return gone

    def unaccounted(self) -> list[PendingRequest]:
        """Requests of which it is not known yet whether they will be held.

        One whose preflight is held, or under way, is known to be held after it. What is of a later place than
        something held does not matter yet; and browsers keep it back while a document's head loads.
        """
        asked = self._asked.values()
        preflights = {
            each.url for each in asked if each.method == "OPTIONS" and each.stage is not RequestStage.SENT
        }
        first = min((each.place for each in asked if each.stage is RequestStage.HELD), default=2)
        return [
            each
            for each in asked
            if each.stage is RequestStage.SENT and each.url not in preflights and each.place <= first
        ]

    def untold(self) -> list[PendingRequest]:
        """Requests of which it has to be known who asks: others that are held are the same but for that."""
        held = [asked for asked in self._asked.values() if asked.stage is RequestStage.HELD]
        alike = Counter(asked.rank[:-1] for asked in held)
        return [asked for asked in held if not asked.told and alike[asked.rank[:-1]] > 1]

    def under_way(self) -> list[PendingRequest]:
        """Requests that were let go and have not ended."""
        return [asked for asked in self._asked.values() if asked.stage is RequestStage.LET]

    def first_held(self) -> PendingRequest | None:
        """The one to let go next."""
        held = [asked for asked in self._asked.values() if asked.stage is RequestStage.HELD]
        return min(held, key=lambda asked: asked.rank) if held else None

    def let(self, asked: PendingRequest) -> None:
        """A request is let go."""
        self.round += 1
        asked.stage = RequestStage.LET
        asked.moved.clear()
        if asked.kind in _NOT_AT_ALL:
            self.ended(asked.key)
