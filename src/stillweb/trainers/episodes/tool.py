"""An episode behind a tool call: for trainers that know tool calls and no environment.

With `first="show"` the first call opens and shows the start page without acting, since the model has not yet
seen any element. With `first="act"` the prompt already shows the page, and the first call acts. Calls after
the end return a note and change nothing, so that the episode is scored once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.env import Outcome
from stillweb.errors import InfraError, StillwebError, TaskError, UsageError
from stillweb.trainers.episodes.failures import error_of_outcome
from stillweb.trainers.episodes.source import EpisodeLease, EpisodeSource
from stillweb.trainers.episodes.turn import Turn, cut

logger = logging.getLogger(__name__)

EPISODE_OVER = "The episode is over; nothing was done."
_START_PAGE = "This is the start page. Your call was not carried out; act on what is shown here."
_FAILED = "The browser failed, through no fault of yours. The episode is over; nothing more can be done."


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of a tool episode.

    Attributes:
        owner: label that the server's monitor shows.
        ttl: seconds of silence after which the server takes the session back; None for the server's value.
        beat: whether to renew the lease while the policy thinks; only for callers that always close.
        first: the first call opens the start page, and with "show" shows it, with "act" also acts.
        limit: maximum number of characters of a reply; 0 for no limit.
        attempts: attempts to open the start page.
        pictures: whether to fetch observed pictures.
    """

    owner: str = "tool"
    ttl: float | None = 900.0
    beat: bool = False
    first: str = "show"
    limit: int = 0
    attempts: int = 3
    pictures: bool = True

    @classmethod
    def of_loop(cls, owner: str, limit: int, *, pictures: bool = False, attempts: int = 3) -> ToolOptions:
        """Return the options of a loop that opens the start page itself and always closes the episode."""
        return cls(owner, None, True, "act", limit, attempts, pictures)

    def __post_init__(self) -> None:
        if self.first not in ("show", "act") or self.attempts < 1:
            raise UsageError('first must be "show" or "act", and attempts at least 1')


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The reply to a tool call.

    Attributes:
        pictures: PNG bytes.
        reward: reward of the step; None after a failure.
    """

    text: str
    pictures: tuple[bytes, ...] = ()
    reward: float | None = 0.0
    turn: Turn | None = None


@dataclass(slots=True)
class ToolEpisode:
    """The episode of one trajectory; its methods run in the loop of `source`.

    Attributes:
        start: see `start_of_row`.
        outcome: None until the episode has ended.
        reward: reward of the episode; None unless it ended normally.
        error: why it failed.
    """

    source: EpisodeSource
    start: Mapping[str, Any]
    options: ToolOptions = field(default_factory=ToolOptions)
    outcome: Outcome | None = None
    reward: float | None = None
    error: str = ""
    steps: int = 0
    _lease: EpisodeLease | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False

    async def open(self) -> ToolReply:
        """Open the start page and show it."""
        async with self._lock:
            return await self._guarded(self._open())

    async def call(self, action: Mapping[str, Any] | str) -> ToolReply:
        """Carry out a tool call."""
        async with self._lock:
            if self.outcome is not None:
                text = _FAILED if self.outcome is not Outcome.OK else EPISODE_OVER
                reward = 0.0 if self.reward is not None else None
                return ToolReply(cut(text, self.options.limit), reward=reward)
            return await self._guarded(self._call(action))

    async def close(self) -> None:
        """End the episode, and release its session, also one that is being opened meanwhile. Idempotent."""
        self._closed = True
        await self._release()

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease:
            await lease.release()

    def check(self) -> None:
        """Raise the failure of an episode that has no reward because of it."""
        if self.outcome not in (None, Outcome.OK):
            raise error_of_outcome(self.outcome, self.error)

    def fields(self) -> dict[str, Any]:
        """Return the state for a trainer's extra fields; `failure_kind` is "" unless the episode failed."""
        failed = self.outcome not in (None, Outcome.OK)
        return {
            "stillweb_reward": self.reward,
            "failure_kind": str(self.outcome) if failed else "",
            "failure": self.error,
            "steps": self.steps,
        }

    async def _open(self) -> ToolReply:
        turn = await self._reset()
        return await self._reply(turn, _goal(turn))

    async def _call(self, action: Mapping[str, Any] | str) -> ToolReply:
        if self._lease is None:
            turn = await self._reset()
            if self.options.first == "show":
                return await self._reply(turn, [_START_PAGE, *_goal(turn)])
        assert self._lease is not None
        turn = await self._lease.step(action)
        self.steps += 1
        if turn.over:
            self.outcome, self.reward = Outcome.OK, turn.reward
        reply = await self._reply(turn)
        if turn.over:
            await self._release()
        return reply

    async def _reset(self) -> Turn:
        """Open the start page; try again while browser or proxy fail."""
        for attempt in range(1, self.options.attempts + 1):
            chosen = self.options
            if not self._closed:
                self._lease = await self.source.lease(chosen.owner, ttl=chosen.ttl, beat=chosen.beat)
            if self._closed:  # as a trainer does with the other rollouts of a group that failed
                await self._release()
                raise InfraError("the episode was closed while its session was opened")
            assert self._lease is not None
            try:
                return await self._lease.reset(**self.start)
            except InfraError as error:
                await self._release()
                if attempt == self.options.attempts or self._closed:
                    raise
                logger.warning("a reset failed", extra={"attempt": attempt, "error": str(error)})
        raise AssertionError("unreachable")

    async def _guarded(self, work: Any) -> ToolReply:
        """Return a reply; a failure that the model did not cause ends the episode without a reward."""
        try:
            reply: ToolReply = await work
            return reply
        except (TaskError, UsageError) as error:  # UsageError: the row names an unknown task
            self.outcome, self.error = Outcome.TASK_ERROR, str(error)
        except StillwebError as error:
            self.outcome, self.error = Outcome.INFRA_ERROR, str(error)
        self.reward = None
        logger.warning("an episode failed", extra={"outcome": str(self.outcome), "error": self.error})
        await self._release()
        return ToolReply(cut(_FAILED, self.options.limit), reward=None)

    async def _reply(self, turn: Turn, first: Sequence[str] = ()) -> ToolReply:
        assert self._lease is not None
        wanted = turn.pictures if self.options.pictures else ()
        pictures = [await self._lease.picture(sha256) for sha256 in wanted]
        reward = turn.reward if turn.reward is not None else 0.0
        return ToolReply(turn.text(first=first, limit=self.options.limit), tuple(pictures), reward, turn)


def _goal(turn: Turn) -> list[str]:
    return [f"Goal: {turn.goal}"] if turn.goal else []
