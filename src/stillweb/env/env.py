"""The environment: reset and step on replayed pages, as Gymnasium has them, but asynchronous.

    async with Env(proxy=url) as env:
        observation, info = await env.reset(task=task)
        observation, reward, terminated, truncated, info = await env.step({"action": "click", "bid": "a12"})

An episode is a new browser context and a new proxy session, so nothing of an earlier one is
left. Many Envs may share one browser. Whose fault a failure is decides how it is told: an
action that is malformed or that the page refuses is in `info["action"]` and in the observation's
`last_action_error`; a browser, page or proxy that is gone raises `InfraError` and is never a
reward. The reward is given once, at `terminate`; an episode that runs out of steps is truncated
with reward 0.

What is pinned is the level's: `network` the answers and all randomness, `clock` time too, `exact` also the
order in which anything comes in. It is probed at the start and stamped into `info["determinism"]`, never
silently lowered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any

from playwright.async_api import Browser

from stillweb.browser.cdp.connection import is_connected
from stillweb.browser.launch import launch
from stillweb.browser.profile import Level
from stillweb.browser.settle import Settled
from stillweb.env.actions.action import Action, ActionResult, ActionStatus, InvalidAction, parse
from stillweb.env.actions.perform import perform
from stillweb.env.aio import Started
from stillweb.env.episode.determinism import level_of, probe_level
from stillweb.env.episode.episode import Episode, EpisodeReplay, infra
from stillweb.env.episode.prefetch import Prefetcher
from stillweb.env.episode.recording import check_live_fork, check_live_level
from stillweb.env.episode.start import StartContext, StartedEpisode, StartRequest, info_of
from stillweb.env.observations.observation import Observation, observe_kinds, take_observation
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.scoring import score_end
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.log import StepOutcome
from stillweb.env.vector.fork import EpisodeHistory, check_past, fork
from stillweb.errors import (
    EnvClosed,
    InfraError,
    ResetNeeded,
    StillwebError,
    TaskError,
    UsageError,
)
from stillweb.replay.client import ReplayClient

__all__ = ["Env", "EnvOptions"]

logger = logging.getLogger(__name__)


Info = dict[str, Any]

# Chromium drops every connection when an interface of the machine comes or goes, as when a container starts.
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
_ATTEMPTS = 3  # to open a start page while interfaces of this machine come and go


class Env(Started):
    """Episodes on a replay server, one after the other; for several at once make several.

    Args:
        proxy: control URL of the replay server (`stillweb replay` prints it); or of a recording proxy, and
            episodes of the live site become archive (docs/record-proxy.md).
        collection: name of the collection; otherwise the task's, or the only one served.
        level: how much is pinned: "network", "clock" or "exact".
        observe: what observations hold: any of `Observe`, with options as in "axtree:viewport,with_visible"
            (docs/observations.md).
        browser: one to share, started with the server's SPKI hashes; otherwise one is started.
        options: see `EnvOptions`.
    """

    def __init__(
        self,
        proxy: str,
        collection: str | None = None,
        *,
        level: str = "clock",
        observe: Sequence[str] = ("axtree",),
        browser: Browser | None = None,
        options: EnvOptions | None = None,
    ) -> None:
        self._level = level_of(level)
        self._kinds = observe_kinds(observe)
        self._proxy = proxy
        self._collection = collection
        self._shared = browser
        self._browser: Browser | None = None
        self._options = options or EnvOptions()
        self._resources = AsyncExitStack()
        self._launched = AsyncExitStack()
        self._idle = asyncio.Event()
        self._idle.set()
        self._replay: EpisodeReplay | None = None
        self._episode: Episode | None = None
        self._past: EpisodeHistory | None = None
        self._closed = False
        self._ahead = Prefetcher(self._options, self._level)
        self._leaving: set[asyncio.Task[bool]] = set()

    async def start(self) -> None:
        """Reach the replay server, have a browser and probe the level. `reset` does so where needed.

        Raises:
            ReplayUnreachable: if no replay server answers.
            ProgramNotFound: if there is no browser.
            InfraError: if the browser does not start or does not keep the level.
        """
        self._raise_if_closed()
        if self._replay is None:
            client = await self._resources.enter_async_context(ReplayClient(self._proxy))
            self._replay = EpisodeReplay(client, await client.info())
            check_live_level(self._replay.info, self._level)
        if self._browser is not None and not is_connected(self._browser):
            await self._drop_browser()
        if self._browser is None:
            self._browser = self._shared or await self._launch(self._replay)
        async with infra("probing the level", self._options.step_seconds):
            await probe_level(self._browser, self._level)

    async def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode: open the task's start page, or a URL, in a new context and session.

        Args:
            task: what to do; or
            url: just a page.
            seed: of all randomness; otherwise the task's, otherwise the recording's, under which
                the page asks for what was recorded.

        Raises:
            UsageError: if neither or both of task and URL are given, or no collection is known.
            TaskError: if the collection does not hold the start page.
            InfraError: if browser or proxy fail.
        """
        start = StartRequest.of(task, url, seed)
        with self._one_at_a_time():
            for attempt in range(1, _ATTEMPTS + 1):
                begun = await self._prepared(start)
                if begun is None:
                    await self._leave_episode()
                    await self.start()
                else:
                    self._leave_behind()
                try:
                    async with infra("reset", self._options.step_seconds):
                        return await self._begin(begun, start)
                except TaskError as error:
                    self._raise_if_closed(error)  # a page that is closed under its navigation shows none
                    raise
                except InfraError as error:
                    self._raise_if_closed(error)
                    if self._episode is None:  # not even a context could be opened
                        await self._drop_browser()
                    # Passes by, and a new context with a new session knows nothing of it.
                    if _NETWORK_CHANGED not in str(error) or attempt == _ATTEMPTS:
                        raise
                    logger.warning("network changed during reset", extra={"attempt": attempt})
        raise AssertionError("unreachable")

    def prepare(self, *, task: Task | None = None, url: str | None = None, seed: int | None = None) -> None:
        """Say what the next reset will ask for, so that it is prepared meanwhile (`EnvOptions.ahead`).

        Unless said so, that is what the last one asked for. A reset that asks for something else begins
        as it does without.

        Raises:
            UsageError: if nothing is to be prepared, or neither or both of task and URL are given.
            ResetNeeded: before the first reset.
        """
        self._raise_if_closed()
        start = StartRequest.of(task, url, seed)
        if not self._options.ahead:
            raise UsageError("no starts are prepared ahead", hint='EnvOptions(ahead=1), at level "exact"')
        if self._episode is None:
            raise ResetNeeded("no episode is under way", hint="await env.reset(task=...)")
        self._ahead.prepare(self._ground(), start)

    @property
    def ahead(self) -> Prefetcher:
        """The starts that are prepared for the next resets."""
        return self._ahead

    async def step(self, action: Mapping[str, Any] | str) -> tuple[Observation, float, bool, bool, Info]:
        """Take an action; return observation, reward, terminated, truncated and info.

        Raises:
            ResetNeeded: before the first reset, and once the episode is over.
            InfraError: if browser or proxy fail; the episode is over then.
        """
        self._raise_if_closed()
        episode = self._episode
        if episode is None or episode.over:
            raise ResetNeeded("no episode is under way", hint="await env.reset(task=...)")
        with self._one_at_a_time():
            try:
                async with infra("step", self._options.step_seconds):
                    return await self._step(episode, action)
            except BaseException as error:
                episode.over = True  # its state is not known any more
                if episode.log:
                    await episode.log.broke(error)
                if isinstance(error, InfraError):
                    self._raise_if_closed(error)
                raise

    @property
    def past(self) -> EpisodeHistory:
        """The episode under way, as `retrace` needs it; a UsageError if there is none."""
        return check_past(self._past, self._episode is None or self._episode.over)

    async def fork(self, n: int) -> list[Env]:
        """Return n environments in the state of this one; close them before it."""
        self._raise_if_closed()
        if self._replay:
            check_live_fork(self._replay.info)
        return await fork(self._sibling, self.past, n)

    def _sibling(self) -> Env:
        return Env(
            self._proxy,
            self._collection,
            level=self._level.value,
            observe=[kind.value for kind in self._kinds],
            browser=self._browser,
            options=replace(self._options, ahead=0),  # it is stepped from where it stands, and not reset
        )

    async def observe(self, *kinds: str) -> Observation:
        """Look at the page as it is now, in any forms, without a step.

        Raises:
            UsageError: if there are no such forms.
            ResetNeeded: before the first reset.
            InfraError: if the browser fails.
        """
        self._raise_if_closed()
        episode = self._episode
        if episode is None:
            raise ResetNeeded("no episode is under way", hint="await env.reset(task=...)")
        wanted = observe_kinds(kinds)
        with self._one_at_a_time():
            async with infra("observe", self._options.step_seconds):
                return await take_observation(
                    episode.tabs.pages, episode.page, episode.bids, wanted, still=episode.still
                )

    async def close(self) -> None:
        """End the episode, and the browser if it is our own. Twice is once.

        A reset or step that is under way ends with `EnvClosed`.
        """
        self._closed = True
        await self._ahead.close()
        await self._leave_episode()
        await self._idle.wait()
        await self._leave_episode()
        await self._ahead.close()  # of a reset that ended meanwhile
        await self._left_behind()
        await self._launched.aclose()
        await self._resources.aclose()

    def _raise_if_closed(self, error: StillwebError | None = None) -> None:
        if self._closed:
            raise EnvClosed("this environment is closed") from error

    async def _launch(self, replay: EpisodeReplay) -> Browser:
        chosen = self._options
        return await self._launched.enter_async_context(
            launch(
                spki=replay.info.spki,
                executable=chosen.executable,
                headless=chosen.headless,
                exact=self._level is Level.EXACT,
            )
        )

    # --- reset -------------------------------------------------------------------------------------

    async def _begin(self, begun: StartedEpisode | None, start: StartRequest) -> tuple[Observation, Info]:
        """Make an episode the one under way: one that was prepared, or a new one."""
        ahead = begun is not None
        if begun is None:
            begun = await self._ground().begin(start, self._hold)
        else:
            self._hold(begun.episode)
        episode, observation, info = begun.episode, begun.observation, begun.info
        try:
            if episode.log:
                await episode.log.began(start.task, start.url, observation, info, ahead=ahead)
        except BaseException:
            episode.over = True
            raise
        self._replay = episode.replay
        self._past = EpisodeHistory(
            start.task, start.url, episode.pinning.seed, episode.session.environment_id
        )
        self._past.add(None, observation, info)
        self._ahead.prepare(self._ground(), start)
        return observation, info

    def _hold(self, episode: Episode) -> None:
        self._episode = episode
        self._raise_if_closed()

    def _ground(self) -> StartContext:
        assert self._replay is not None
        assert self._browser is not None
        return StartContext(
            self._replay, self._browser, self._level, self._kinds, self._options, self._collection
        )

    async def _leave_episode(self) -> None:
        episode, self._episode = self._episode, None
        self._past = None
        if episode is None:
            return
        closing = asyncio.ensure_future(episode.close())
        try:
            closed = await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])  # it ends by itself; cut short, it would leave a context behind
            raise
        if not closed:
            await self._drop_browser()

    def _leave_behind(self) -> None:
        """Leave the episode while the next one goes on already."""
        if self._episode is not None:
            leaving = asyncio.ensure_future(self._episode.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._episode = self._past = None

    async def _left_behind(self) -> None:
        while self._leaving:
            await asyncio.wait(self._leaving)

    async def _prepared(self, start: StartRequest) -> StartedEpisode | None:
        """Return an episode that has begun so, on a browser that is there; None if there is none."""
        self._raise_if_closed()
        if self._replay is None or self._browser is None or not is_connected(self._browser):
            return None
        return await self._ahead.take(self._ground(), start)

    async def _drop_browser(self) -> None:
        """Let go of a browser that does not answer, if it is ours, so that the next reset starts another."""
        await self._ahead.close()
        if self._shared is None:
            self._browser = None
            await self._launched.aclose()

    # --- step --------------------------------------------------------------------------------------

    async def _step(
        self, episode: Episode, raw: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, Info]:
        episode.steps += 1
        action = parse(raw)
        result, settled = await self._act(episode, action)
        chosen = self._options
        score = await score_end(episode, action, chosen.judge, html=chosen.trajectories is not None)
        terminated = score is not None
        limit = (episode.task.max_steps if episode.task else 0) or chosen.max_steps
        truncated = not terminated and episode.steps >= limit
        observation = await self._observe(episode, result.error)
        info = await info_of(episode, result, settled)
        if score:
            info["score"] = {"reward": score.reward, "reasons": list(score.reasons)}
        episode.over = terminated or truncated
        episode.downloads += info["downloads"]
        if self._past:
            self._past.add(raw, observation, info)
        outcome = StepOutcome(score.reward if score else 0.0, terminated, truncated, score)
        if episode.log:
            await episode.log.stepped(raw, observation, info, outcome)
        return observation, *outcome[:3], info

    async def _act(
        self, episode: Episode, action: Action | InvalidAction
    ) -> tuple[ActionResult, Settled | None]:
        if isinstance(action, InvalidAction):
            return ActionResult(ActionStatus.INVALID, action.error), None
        if action.action == "terminate":
            return ActionResult(), None
        if action.action == "wait":
            return ActionResult(), await episode.settle(ms=action.ms)
        result = await perform(action, episode.tabs, episode.bids, self._options)
        return result, await episode.settle()

    async def _observe(self, episode: Episode, error: str) -> Observation:
        return await take_observation(
            episode.tabs.pages, episode.page, episode.bids, self._kinds, error, still=episode.still
        )

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if not self._idle.is_set():
            raise UsageError(
                "reset or step was called while another one was under way",
                hint="make one Env per concurrent episode",
            )
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()
