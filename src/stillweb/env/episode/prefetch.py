"""Prefetched starts: episodes that begin before the reset that needs them (docs/decisions/0021).

Trainers reset the same task repeatedly, and a policy takes time between steps. At level EXACT a settled page
does not change until its virtual clock advances. So an episode can begin early, with a context and a proxy
session of its own. `take` returns it for an equal start on the same browser and pack, if nothing has
happened to it meanwhile. Unused starts are closed. A failed prefetch is only logged: the reset then begins
its episode as usual.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stillweb.browser.profile import Level
from stillweb.env.aio import both
from stillweb.env.episode.episode import Episode, infra
from stillweb.env.options import EnvOptions
from stillweb.errors import StillwebError, UsageError

if TYPE_CHECKING:
    from stillweb.env.episode.start import StartContext, StartedEpisode, StartRequest


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PrefetchCounts:
    """Outcomes of the prefetched starts.

    Attributes:
        left: closed because another start was requested, or the env was closed.
        discarded: closed at the reset because the pack or the episode has changed.
    """

    taken: int = 0
    left: int = 0
    discarded: int = 0
    failed: int = 0


class _PrefetchedStart:
    """One start: waiting for its turn, in progress, or ready."""

    def __init__(self, context: StartContext, start: StartRequest, turns: asyncio.Semaphore | None) -> None:
        self.context = context
        self.start = start
        self.episode: Episode | None = None
        self.waits = turns is not None
        self._turns = turns
        self._state = (0, 0, 0)
        self.task = asyncio.ensure_future(self._prepare())

    async def _prepare(self) -> StartedEpisode:
        async with AsyncExitStack() as turn:
            if self._turns:
                await turn.enter_async_context(self._turns)
            self.waits = False
            async with infra("prefetching a start", self.context.options.step_seconds):
                begun = await self.context.begin(self.start, self._hold)
        self._state = _state(begun.episode)
        return begun

    def _hold(self, episode: Episode) -> None:
        self.episode = episode

    async def is_untouched(self, begun: StartedEpisode) -> bool:
        """Return True if the episode has not changed and the server still has its session."""
        episode, session = begun.episode, begun.episode.session
        if episode.activity.broken or _state(episode) != self._state:
            return False
        client = self.context.replay.client
        try:
            episode.tabs.check()
            info, _ = await both(client.info(), client.session(session.id))
        except StillwebError:
            return False
        return info.collections.get(session.collection) == session.environment_id


class Prefetcher:
    """Prefetched starts of one env; it must be closed.

    Args:
        options: `prefetch` is the number of starts.

    Attributes:
        counts: outcomes so far.
        turns: limits concurrent prefetches, where several envs share a machine.

    Raises:
        UsageError: if `prefetch` is not 0 at a level other than EXACT.
    """

    def __init__(self, options: EnvOptions, level: Level) -> None:
        if options.prefetch < 0:
            raise UsageError(f"prefetch={options.prefetch}: the number of starts cannot be negative")
        if options.prefetch and level is not Level.EXACT:
            raise UsageError(
                f"no start can be prefetched at level {level.value!r}: real time passes in its page",
                hint="EnvOptions(prefetch=0), or level 'exact'",
            )
        self.counts = PrefetchCounts()
        self.turns: asyncio.Semaphore | None = None
        self._number = options.prefetch
        self._starts: list[_PrefetchedStart] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> int:
        """Number of starts that can be taken."""
        return sum(each.task.done() for each in self._starts)

    def prepare(self, context: StartContext, start: StartRequest) -> None:
        """Prefetch a start `prefetch` times; close the prefetched starts that differ from it."""
        self._leave([each for each in self._starts if not _is_for(each, context, start)])
        while len(self._starts) < self._number:
            one = _PrefetchedStart(context, start, self.turns)
            one.task.add_done_callback(partial(self._note, one))
            self._starts.append(one)

    async def take(self, context: StartContext, start: StartRequest) -> StartedEpisode | None:
        """Return a prefetched episode, which the caller then owns; None if there is none."""
        while one := next((each for each in self._starts if _is_for(each, context, start)), None):
            if one.waits:
                return None  # the reset itself is quicker
            await asyncio.wait([one.task])
            if one not in self._starts:
                continue  # it failed, or was closed meanwhile
            self._starts.remove(one)
            try:
                begun = one.task.result()
                untouched = await one.is_untouched(begun)
            except BaseException:
                self._leave_one(one)
                raise
            if untouched:
                self.counts.taken += 1
                return begun
            self.counts.discarded += 1
            logger.warning("prefetched start was discarded", extra={"url": start.url})
            self._leave_one(one)
        return None

    async def close(self) -> None:
        """Close all starts, and wait until they are closed."""
        self._leave(list(self._starts))
        while self._leaving:
            await asyncio.wait(self._leaving)

    def _leave(self, those: list[_PrefetchedStart]) -> None:
        for one in those:
            self._starts.remove(one)
            self.counts.left += one.episode is not None
            self._leave_one(one)

    def _leave_one(self, one: _PrefetchedStart) -> None:
        leaving = asyncio.ensure_future(_close(one))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _note(self, one: _PrefetchedStart, _: object) -> None:
        if one.task.cancelled() or (error := one.task.exception()) is None:
            return
        logger.warning("start could not be prefetched", extra={"url": one.start.url, "error": str(error)})
        if one in self._starts:
            self._starts.remove(one)
            self.counts.failed += 1
            self._leave_one(one)


def _state(episode: Episode) -> tuple[int, int, int]:
    """Return values that change with any event in an idle episode."""
    return episode.activity.generation, len(episode.flags), len(episode.tabs.pages)


def _is_for(one: _PrefetchedStart, context: StartContext, start: StartRequest) -> bool:
    return one.context.browser is context.browser and one.start == start


async def _close(one: _PrefetchedStart) -> None:
    if not one.task.done():
        one.task.cancel()
        await asyncio.wait([one.task])
    if one.episode:
        await one.episode.close()
