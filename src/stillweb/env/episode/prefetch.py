"""Starts prepared ahead: the next reset finds its episode already begun (docs/decisions/0021).

Trainers reset the same task again and again, and a policy thinks between steps. At level EXACT a page at rest
stands still however long nobody moves its clock, so that an episode may begin before it is asked for: with a
context and a proxy session of its own, as every other. `take` hands it out for an equal start on the same
browser and the same pack, if nothing has happened to it meanwhile; what is not taken is closed. What fails
here is told to nobody but the log: the reset that would have had it begins as usual, and tells its own.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from stillweb.browser.profile import Level
from stillweb.env.aio import both
from stillweb.env.episode.episode import Episode, infra
from stillweb.env.episode.start import StartContext, StartedEpisode, StartRequest
from stillweb.env.options import EnvOptions
from stillweb.errors import StillwebError, UsageError

__all__ = ["PrefetchCounts", "Prefetcher"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PrefetchCounts:
    """What became of the starts that were prepared.

    Attributes:
        taken: handed out by a reset.
        left: closed, since another start was asked for, or the env was closed.
        spoilt: closed when they were asked for: the pack is another one, or something has happened to them.
        failed: did not come to be.
    """

    taken: int = 0
    left: int = 0
    spoilt: int = 0
    failed: int = 0


class _PrefetchedStart:
    """One start: waiting for its turn, on its way, or ready."""

    def __init__(self, ground: StartContext, start: StartRequest, gate: asyncio.Semaphore | None) -> None:
        self.ground = ground
        self.start = start
        self.episode: Episode | None = None
        self.waits = gate is not None  # for its turn
        self._gate = gate
        self._signs = (0, 0, 0)
        self.task = asyncio.ensure_future(self._prepare())

    async def _prepare(self) -> StartedEpisode:
        async with AsyncExitStack() as turn:
            if self._gate:
                await turn.enter_async_context(self._gate)
            self.waits = False
            async with infra("preparing a start", self.ground.options.step_seconds):
                begun = await self.ground.begin(self.start, self._hold)
        self._signs = _signs(begun.episode)
        return begun

    def _hold(self, episode: Episode) -> None:
        self.episode = episode

    async def is_untouched(self, begun: StartedEpisode) -> bool:
        """Return whether the episode stands as it was left, on a session that the server still has."""
        episode, session = begun.episode, begun.episode.session
        if episode.activity.broken or _signs(episode) != self._signs:
            return False
        client = self.ground.replay.client
        try:
            episode.tabs.check()
            told, _ = await both(client.info(), client.session(session.id))
        except StillwebError:
            return False
        return told.collections.get(session.collection) == session.environment_id


class Prefetcher:
    """The prepared starts of one env; close it.

    Args:
        options: `ahead` says how many are kept.
        level: of the env.

    Attributes:
        counts: what became of those there were.
        gate: of which each preparation takes a turn, where several envs share a machine.

    Raises:
        UsageError: if starts are to be kept where they would not stand still.
    """

    def __init__(self, options: EnvOptions, level: Level) -> None:
        if options.ahead < 0:
            raise UsageError(f"ahead={options.ahead}: a number of starts cannot be negative")
        if options.ahead and level is not Level.EXACT:
            raise UsageError(
                f"no start can be prepared ahead at level {level.value!r}: real time passes in it meanwhile",
                hint="EnvOptions(ahead=0), or level 'exact'",
            )
        self.counts = PrefetchCounts()
        self.gate: asyncio.Semaphore | None = None
        self._keep = options.ahead
        self._kept: list[_PrefetchedStart] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> int:
        """How many are ready to be taken."""
        return sum(each.task.done() for each in self._kept)

    def prepare(self, ground: StartContext, start: StartRequest) -> None:
        """Have as many of a start as are to be kept; those of others are closed."""
        self._leave([each for each in self._kept if not _is_for(each, ground, start)])
        while len(self._kept) < self._keep:
            one = _PrefetchedStart(ground, start, self.gate)
            one.task.add_done_callback(partial(self._note, one))
            self._kept.append(one)

    async def take(self, ground: StartContext, start: StartRequest) -> StartedEpisode | None:
        """Return an episode that has begun so, and is the caller's from then on; None if there is none."""
        while one := next((each for each in self._kept if _is_for(each, ground, start)), None):
            if one.waits:
                return None  # whoever needs it now is quicker
            await asyncio.wait([one.task])
            if one not in self._kept:
                continue  # it failed, or was left meanwhile
            self._kept.remove(one)
            try:
                begun = one.task.result()
                untouched = await one.is_untouched(begun)
            except BaseException:
                self._leave_one(one)
                raise
            if untouched:
                self.counts.taken += 1
                return begun
            self.counts.spoilt += 1
            logger.warning("a prepared start was spoilt", extra={"url": start.url})
            self._leave_one(one)
        return None

    async def close(self) -> None:
        """Close all, and wait until they are."""
        self._leave(list(self._kept))
        while self._leaving:
            await asyncio.wait(self._leaving)

    def _leave(self, those: list[_PrefetchedStart]) -> None:
        for one in those:
            self._kept.remove(one)
            self.counts.left += one.episode is not None
            self._leave_one(one)

    def _leave_one(self, one: _PrefetchedStart) -> None:
        leaving = asyncio.ensure_future(_close(one))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _note(self, one: _PrefetchedStart, _: object) -> None:
        """Take note of how a preparation ended."""
        if one.task.cancelled() or (error := one.task.exception()) is None:
            return
        logger.warning("a start could not be prepared", extra={"url": one.start.url, "error": str(error)})
        if one in self._kept:
            self._kept.remove(one)
            self.counts.failed += 1
            self._leave_one(one)


def _signs(episode: Episode) -> tuple[int, int, int]:
    """Return what changes when anything happens in an episode that nobody moves."""
    return episode.activity.generation, len(episode.flags), len(episode.tabs.pages)


def _is_for(one: _PrefetchedStart, ground: StartContext, start: StartRequest) -> bool:
    return one.ground.browser is ground.browser and one.start == start


async def _close(one: _PrefetchedStart) -> None:
    if not one.task.done():
        one.task.cancel()
        await asyncio.wait([one.task])
    if one.episode:
        await one.episode.close()
