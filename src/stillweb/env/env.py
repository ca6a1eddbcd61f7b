"""The environment: asynchronous `reset` and `step` on replayed pages, with Gymnasium's meanings.

    async with Env(proxy=url) as env:
        observation, info = await env.reset(task=task)
        observation, reward, terminated, truncated, info = await env.step({"action": "click", "bid": "a12"})

Each episode has a new browser context and a new proxy session, so that no state of an earlier episode
remains. Several Envs may share a browser. An invalid action, or one that the page does not allow, is reported
in `info["action"]` and in the observation's `last_action_error`. A failure of browser, page or proxy raises
`InfraError` and is never a reward. The reward is given once, at `terminate`; an episode that reaches its
limit of steps is truncated with reward 0.

The level determines what is fixed: `network` fixes responses and randomness, `clock` also time, `exact` also
the order of all events. The browser is probed at the start, and the level is in `info["determinism"]`; it is
never lowered silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from playwright.async_api import Browser

from stillweb.browser.cdp.connection import is_connected
from stillweb.browser.launch import launch
from stillweb.browser.profile import BEST_LEVEL, Level
from stillweb.browser.settle import Settled
from stillweb.env.actions.action import Action, ActionResult, ActionStatus, InvalidAction, parse
from stillweb.env.actions.perform import perform, target_box
from stillweb.env.aio import Started
from stillweb.env.episode.determinism import level_of, probe_level
from stillweb.env.episode.episode import Episode, EpisodeReplay, infra
from stillweb.env.episode.live import check_live_fork, check_live_level, is_live
from stillweb.env.episode.offpath import OffPathMode
from stillweb.env.episode.perturbation import Perturbation, obeyed, perturbation_of
from stillweb.env.episode.prefetch import Prefetcher
from stillweb.env.episode.start import StartContext, StartedEpisode, StartRequest, info_of, observe
from stillweb.env.observations.observation import Observation, observe_kinds
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
from stillweb.matching.resolver import OnWrite
from stillweb.replay import ReplayClient

logger = logging.getLogger(__name__)


Info = dict[str, Any]

# Chromium closes all connections when a network interface is added or removed, as when a container starts.
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
_ATTEMPTS = 3  # to open a start page while network interfaces change


def _is_idle(action: Action | InvalidAction) -> bool:
    """Return True for an action that touches no page: a navigation meanwhile is not its own."""
    return isinstance(action, InvalidAction) or action.action in ("wait", "terminate")


class Env(Started):
    """Environment for successive episodes on a replay server.

    Args:
        proxy: control URL of the replay server (`stillweb replay` prints it), or of a recording proxy, which
            archives the episodes on the live site (docs/how-to/record-proxy.md).
        collection: name of the collection; the default is the task's, or the only one served.
        level: determinism level: "network", "clock" or "exact"; "auto" is "exact" with
            chromium-headless-shell on a replay server, otherwise "clock".
        observe: forms of observation, see `Observe`, with options as in "axtree:viewport,with_visible"
            (docs/reference/observations.md).
        browser: browser to share, started with the server's SPKI hashes; by default the Env starts its own.
        off_path: overrides `EnvOptions.off_path`.
        derived: overrides that of `EnvOptions.unrecorded`.
        on_write: overrides that of `EnvOptions.unrecorded`.
        perturb: overrides `EnvOptions.perturb`; a text such as "layout=0.5,interruptions".
        perturb_seed: overrides `EnvOptions.perturb_seed`.
    """

    def __init__(  # noqa: PLR0913 - what callers choose most often, by name
        self,
        proxy: str,
        collection: str | None = None,
        *,
        level: str = BEST_LEVEL,
        observe: Sequence[str] = ("axtree",),
        browser: Browser | None = None,
        off_path: OffPathMode | None = None,
        derived: bool | None = None,
        on_write: OnWrite | None = None,
        perturb: str | Perturbation | None = None,
        perturb_seed: int | None = None,
        options: EnvOptions | None = None,
    ) -> None:
        self._kinds = observe_kinds(observe)
        self._proxy = proxy
        self._collection = collection
        self._shared = browser
        self._browser: Browser | None = None
        self._options = options or EnvOptions()
        if off_path:
            self._options = replace(self._options, off_path=off_path)
        if derived is not None:
            self._options = replace(
                self._options, unrecorded=replace(self._options.unrecorded, derived=derived)
            )
        if on_write is not None:
            self._options = replace(
                self._options, unrecorded=replace(self._options.unrecorded, on_write=on_write)
            )
        if perturb is not None or perturb_seed is not None:
            seed = self._options.perturb_seed if perturb_seed is None else perturb_seed
            self.set_perturbation(self._options.perturb if perturb is None else perturb, seed)
        self._is_best = level == BEST_LEVEL
        self._level = level_of(
            level, browser=browser, executable=self._options.executable, headless=self._options.headless
        )
        self._resources = AsyncExitStack()
        self._launched = AsyncExitStack()
        self._idle = asyncio.Event()
        self._idle.set()
        self._replay: EpisodeReplay | None = None
        self._episode: Episode | None = None
        self._past: EpisodeHistory | None = None
        self._closed = False
        self._prefetcher = Prefetcher(self._options, self._level)
        self._leaving: set[asyncio.Task[bool]] = set()

    async def start(self) -> None:
        """Connect to the replay server, start a browser and probe the level; `reset` does so if necessary.

        Raises:
            ReplayUnreachable: if no replay server answers.
            ProgramNotFound: if there is no browser.
            InfraError: if the browser does not start or does not keep the level.
        """
        self._raise_if_closed()
        if self._replay is None:
            client = await self._resources.enter_async_context(ReplayClient(self._proxy))
            self._replay = EpisodeReplay(client, await client.info())
            if self._is_best and is_live(self._replay.info):
                self._level = Level.CLOCK
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
            task: the task; or
            url: the start page of an episode without a task.
            seed: seed of all randomness; the default is the task's, otherwise the recording's. With another
                seed a page may send requests that were not recorded.

        Raises:
            UsageError: unless exactly one of task and URL is given, or if the collection is ambiguous.
            TaskError: if the collection does not hold the start page.
            InfraError: if browser or proxy fail.
        """
        start = StartRequest.of(task, url, seed)
        with self._one_at_a_time():
            for attempt in range(1, _ATTEMPTS + 1):
                begun = await self._prefetched(start)
                if begun is None:
                    await self._leave_episode()
                    await self.start()
                else:
                    self._close_in_background()
                try:
                    async with infra("reset", self._options.step_seconds):
                        return await self._begin(begun, start)
                except TaskError as error:
                    self._raise_if_closed(error)  # closing during a navigation looks like a missing page
                    raise
                except InfraError as error:
                    self._raise_if_closed(error)
                    if self._episode is None:  # no context could be opened
                        await self._drop_browser()
                    # A temporary failure; the next attempt has a new context and session.
                    if _NETWORK_CHANGED not in str(error) or attempt == _ATTEMPTS:
                        raise
                    logger.warning("network changed during reset", extra={"attempt": attempt})
        raise AssertionError("unreachable")

    def prepare(self, *, task: Task | None = None, url: str | None = None, seed: int | None = None) -> None:
        """Announce the arguments of the next reset, to prefetch its start (`EnvOptions.prefetch`).

        The default is a repetition of the last reset. A reset with other arguments is not affected.

        Raises:
            UsageError: if `prefetch` is 0, or unless exactly one of task and URL is given.
            ResetNeeded: before the first reset.
        """
        self._raise_if_closed()
        start = StartRequest.of(task, url, seed)
        if not self._options.prefetch:
            raise UsageError("prefetching is off", hint='EnvOptions(prefetch=1), at level "exact"')
        if self._episode is None:
            raise ResetNeeded("no episode is running", hint="await env.reset(task=...)")
        self._prefetcher.prepare(self._start_context(), start)

    @property
    def prefetcher(self) -> Prefetcher:
        """Prefetched starts of the next resets."""
        return self._prefetcher

    async def step(self, action: Mapping[str, Any] | str) -> tuple[Observation, float, bool, bool, Info]:
        """Perform an action; return observation, reward, terminated, truncated and info.

        Raises:
            ResetNeeded: before the first reset, and after the end of the episode.
            InfraError: if browser or proxy fail; the episode is then over.
        """
        self._raise_if_closed()
        episode = self._episode
        if episode is None or episode.over:
            raise ResetNeeded("no episode is running", hint="await env.reset(task=...)")
        with self._one_at_a_time():
            try:
                async with infra("step", self._options.step_seconds):
                    return await self._step(episode, action)
            except BaseException as error:
                episode.over = True  # its state is unknown
                if episode.log:
                    await episode.log.broke(error)
                if isinstance(error, InfraError):
                    self._raise_if_closed(error)
                raise

    @property
    def past(self) -> EpisodeHistory:
        """History of the running episode for `retrace`; UsageError if there is none."""
        return check_past(self._past, self._episode is None or self._episode.over)

    async def fork(self, n: int) -> list[Env]:
        """Return n environments in the state of this one; they must be closed before it."""
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
            options=replace(self._options, prefetch=0),  # a fork is not reset
        )

    def set_perturbation(self, perturb: str | Perturbation | None, seed: int = 0) -> None:
        """Perturb the episodes that begin from now on, such as by a schedule (`Perturbation.at`)."""
        chosen = perturbation_of(perturb) if isinstance(perturb, str) else perturb
        self._options = replace(self._options, perturb=chosen, perturb_seed=seed)

    def set_observation(self, *kinds: str) -> None:
        """Observe these forms from the next reset or step on.

        Raises:
            UsageError: if a form does not exist.
        """
        self._kinds = observe_kinds(kinds)

    @property
    def task(self) -> Task | None:
        """Task of the running episode; under the perturbation `content` with other names and prices."""
        return self._episode.task if self._episode else None

    async def observe(self, *kinds: str) -> Observation:
        """Observe the page in any forms, without a step.

        Raises:
            UsageError: if a form does not exist.
            ResetNeeded: before the first reset.
            InfraError: if the browser fails.
        """
        self._raise_if_closed()
        episode = self._episode
        if episode is None:
            raise ResetNeeded("no episode is running", hint="await env.reset(task=...)")
        wanted = observe_kinds(kinds)
        with self._one_at_a_time():
            async with infra("observe", self._options.step_seconds):
                return await observe(episode, wanted)

    async def close(self) -> None:
        """End the episode, and the Env's own browser; a second call has no effect.

        A concurrent reset or step raises `EnvClosed`.
        """
        self._closed = True
        await self._prefetcher.close()
        await self._leave_episode()
        await self._idle.wait()
        await self._leave_episode()
        await self._prefetcher.close()  # starts of a reset that ended meanwhile
        await self._wait_for_closes()
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
                replay=replay.client.url,
                executable=chosen.executable,
                headless=chosen.headless,
                exact=self._level is Level.EXACT,
            )
        )

    # --- reset -------------------------------------------------------------------------------------

    async def _begin(self, begun: StartedEpisode | None, start: StartRequest) -> tuple[Observation, Info]:
        """Make a prefetched or new episode the running one."""
        prefetched = begun is not None
        if begun is None:
            begun = await self._start_context().begin(start, self._hold)
        else:
            self._hold(begun.episode)
        episode, observation, info = begun.episode, begun.observation, begun.info
        try:
            if episode.log:
                await episode.log.began(
                    episode.task, start.url, observation, info, prefetched=prefetched, events=episode.events
                )
        except BaseException:
            episode.over = True
            raise
        self._replay = episode.replay
        self._past = EpisodeHistory(
            start.task, start.url, episode.pinning.seed, episode.session.environment_id
        )
        self._past.add(None, observation, info)
        self._prefetcher.prepare(self._start_context(), start)
        return observation, info

    def _hold(self, episode: Episode) -> None:
        self._episode = episode
        self._raise_if_closed()

    def _start_context(self) -> StartContext:
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
            await asyncio.wait([closing])  # interrupted, it would leave an open context
            raise
        if not closed:
            await self._drop_browser()

    def _close_in_background(self) -> None:
        """Close the episode in the background."""
        if self._episode is not None:
            leaving = asyncio.ensure_future(self._episode.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._episode = self._past = None

    async def _wait_for_closes(self) -> None:
        while self._leaving:
            await asyncio.wait(self._leaving)

    async def _prefetched(self, start: StartRequest) -> StartedEpisode | None:
        """Return a prefetched episode for this start on a connected browser; None if there is none."""
        self._raise_if_closed()
        if self._replay is None or self._browser is None or not is_connected(self._browser):
            return None
        return await self._prefetcher.take(self._start_context(), start)

    async def _drop_browser(self) -> None:
        """Close the Env's own browser after a failure, so that the next reset starts another."""
        await self._prefetcher.close()
        if self._shared is None:
            self._browser = None
            await self._launched.aclose()

    # --- step --------------------------------------------------------------------------------------

    async def _step(
        self, episode: Episode, raw: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, Info]:
        episode.steps += 1
        action = parse(raw)
        before = episode.tabs.pages
        await self._note_target(episode, action)
        result, settled = await self._act(episode, action)
        cancelled = await episode.off_path.take(episode.activity)
        if cancelled:
            if await episode.off_path.close_empty(episode.tabs, before):
                settled = await episode.settle()
            if result.status is ActionStatus.OK and not _is_idle(action):
                what = f"not recorded: {episode.off_path.cancelled[0]}"
                result = ActionResult(ActionStatus.NOT_RECORDED, what)
        chosen = self._options
        score = await score_end(episode, action, chosen.judge, html=chosen.trajectories is not None)
        terminated = score is not None
        limit = (episode.task.max_steps if episode.task else 0) or chosen.max_steps
        ended = cancelled and episode.off_path.mode == "terminate"
        truncated = not terminated and (ended or episode.steps >= limit)
        observation = await observe(episode, self._kinds, result.error)
        info = await info_of(episode, result, settled)
        if episode.variant and episode.variant.injections:
            _note_obeyed(episode, raw, info)
        if score:
            info["score"] = {"reward": score.reward, "reasons": list(score.reasons)}
        episode.over = terminated or truncated
        episode.downloads += info["downloads"]
        if self._past:
            self._past.add(raw, observation, info)
        outcome = StepOutcome(score.reward if score else 0.0, terminated, truncated, score)
        if episode.log:
            await episode.log.stepped(raw, observation, info, outcome, episode.events)
        return observation, *outcome[:3], info

    async def _note_target(self, episode: Episode, action: Action | InvalidAction) -> None:
        """Note the box of the action's element for the trajectory; the action may move or remove it."""
        target = None
        if self._options.trajectories is not None and isinstance(action, Action):
            target = await target_box(action, episode.tabs, episode.bids)
        episode.events = replace(episode.events, target=target)

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

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if not self._idle.is_set():
            raise UsageError(
                "reset or step was called during another reset or step",
                hint="make one Env per concurrent episode",
            )
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()


def _note_obeyed(episode: Episode, raw: Mapping[str, Any] | str, info: Info) -> None:
    """Note the injections whose token the agent's action, its requests or the URL contain."""
    assert episode.variant is not None
    requests = (str(getattr(each, "url", "")) for each in episode.events.requests)
    used = (str(raw), episode.page.url, *requests, *episode.off_path.cancelled)
    for token in obeyed(episode.variant.tokens, used):
        if token not in episode.obeyed:
            episode.obeyed.append(token)
    info["perturbation"]["obeyed"] = list(episode.obeyed)


@asynccontextmanager
async def open_envs(
    proxy: str, n: int, *, level: str, browser: Browser | None = None, **more: Any
) -> AsyncIterator[list[Env]]:
    """Open n environments on one browser, which is started for the level unless it is given.

    `more` are further arguments of `Env`.
    """
    async with AsyncExitStack() as stack:
        if browser is None:
            async with ReplayClient(proxy) as client:
                spki = (await client.info()).spki
            exact = level_of(level) is Level.EXACT
            browser = await stack.enter_async_context(launch(spki=spki, replay=proxy, exact=exact))
        envs = [Env(proxy, level=level, browser=browser, **more) for _ in range(n)]
        yield [await stack.enter_async_context(env) for env in envs]
