"""An episode behind a tool: for trainers that know calls of a tool, and no environment.

The first call opens the task's page and shows it (`first="show"`): the model has seen nothing yet, and could
name no element. Where the prompt shows the page already, the first call acts (`first="act"`). Calls after
the end say that it is over, and do nothing: one score, that of the first end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.env.vector.rollout import Outcome
from stillweb.errors import InfraError, StillwebError, TaskError, UsageError
from stillweb.trainers.place import EpisodeLease, EpisodeSource
from stillweb.trainers.turn import Turn, cut

__all__ = ["ToolOptions", "ToolPlay", "ToolReply"]

logger = logging.getLogger(__name__)

_SHOWN = "This is the start page. Your call was not carried out; act on what is shown here."
_OVER = "The episode is over; nothing was done."
_FAILED = "The browser failed, through no fault of yours. The episode is over; nothing more can be done."


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How calls are answered.

    Attributes:
        owner: whom the server's monitor names.
        ttl: seconds of silence after which the session is taken back; None as the server has it.
        beat: whether the session is kept while the policy thinks; for callers that surely close.
        first: "show" or "act", see above.
        limit: of characters of an answer; 0 for any number.
        attempts: to open the start page.
        pictures: whether those that were observed are fetched.
    """

    owner: str = "tool"
    ttl: float | None = 900.0
    beat: bool = False
    first: str = "show"
    limit: int = 0
    attempts: int = 3
    pictures: bool = True

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            UsageError: if it says nothing that can be done.
        """
        if self.first not in ("show", "act") or self.attempts < 1:
            raise UsageError('first is "show" or "act", attempts at least 1')


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a call is answered.

    Attributes:
        pictures: PNG.
        reward: of the step; None where there is none, as after a failure.
    """

    text: str
    pictures: tuple[bytes, ...] = ()
    reward: float | None = 0.0
    turn: Turn | None = None


@dataclass(slots=True)
class ToolPlay:
    """The episode of one trajectory; to be used in the place's loop.

    Attributes:
        start: what it begins with, see `start_in`.
        outcome: how it ended; None while it has not.
        reward: of the episode; None unless it ended as it should.
        error: why it failed.
    """

    place: EpisodeSource
    start: Mapping[str, Any]
    options: ToolOptions = field(default_factory=ToolOptions)
    outcome: Outcome | None = None
    reward: float | None = None
    error: str = ""
    steps: int = 0
    _lease: EpisodeLease | None = None
    _shown: Turn | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> ToolReply:
        """Open the start page and show it; once."""
        async with self._lock:
            return await self._kept(self._open())

    async def call(self, action: Mapping[str, Any] | str) -> ToolReply:
        """Answer a call of the tool."""
        async with self._lock:
            if self.outcome is not None:
                text = _FAILED if self.outcome is not Outcome.OK else _OVER
                return ToolReply(
                    cut(text, self.options.limit), reward=0.0 if self.reward is not None else None
                )
            return await self._kept(self._call(action))

    async def close(self) -> None:
        """Give the session back. Twice is once."""
        lease, self._lease = self._lease, None
        if lease:
            await lease.release()

    def told(self) -> dict[str, Any]:
        """Return how it stands, for a trainer's extra fields: `failure_kind` is "" unless it has failed."""
        failed = self.outcome not in (None, Outcome.OK)
        return {
            "stillweb_reward": self.reward,
            "failure_kind": str(self.outcome) if failed else "",
            "failure": self.error,
            "steps": self.steps,
        }

    async def _open(self) -> ToolReply:
        turn = await self._opened()
        first = [f"Goal: {turn.goal}"] if turn.goal else []
        return await self._answer(turn, first)

    async def _call(self, action: Mapping[str, Any] | str) -> ToolReply:
        if self._lease is None:
            turn = await self._opened()
            if self.options.first == "show":
                return await self._answer(turn, [_SHOWN, *([f"Goal: {turn.goal}"] if turn.goal else [])])
        assert self._lease is not None
        turn = await self._lease.step(action)
        self.steps += 1
        if turn.over:
            self.outcome, self.reward = Outcome.OK, turn.reward
        answer = await self._answer(turn)
        if turn.over:
            await self.close()
        return answer

    async def _opened(self) -> Turn:
        """Return the start page; tried again while browser or proxy fail."""
        for attempt in range(1, self.options.attempts + 1):
            chosen = self.options
            self._lease = await self.place.lease(chosen.owner, ttl=chosen.ttl, beat=chosen.beat)
            try:
                return await self._lease.reset(**self.start)
            except InfraError as error:
                await self.close()
                if attempt == self.options.attempts:
                    raise
                logger.warning("a reset failed", extra={"attempt": attempt, "error": str(error)})
        raise AssertionError("unreachable")

    async def _kept(self, work: Any) -> ToolReply:
        """Return an answer; a failure that is not the model's ends the episode, and gives no reward."""
        try:
            answer: ToolReply = await work
            return answer
        except (TaskError, UsageError) as error:  # a row that names no task of the server is the second
            self.outcome, self.error = Outcome.TASK_ERROR, str(error)
        except StillwebError as error:
            self.outcome, self.error = Outcome.INFRA_ERROR, str(error)
        self.reward = None
        logger.warning("an episode failed", extra={"outcome": str(self.outcome), "error": self.error})
        await self.close()
        return ToolReply(cut(_FAILED, self.options.limit), reward=None)

    async def _answer(self, turn: Turn, first: Sequence[str] = ()) -> ToolReply:
        assert self._lease is not None
        wanted = turn.pictures if self.options.pictures else ()
        pictures = [await self._lease.picture(sha256) for sha256 in wanted]
        reward = turn.reward if turn.reward is not None else 0.0
        return ToolReply(turn.text(first=first, limit=self.options.limit), tuple(pictures), reward, turn)
