"""OpenEnv: an `Environment` on replayed pages, for OpenEnv's own servers (`create_app`).

    app = create_app(environment({"server": "http://127.0.0.1:7000"}), StillwebAction, StillwebObservation)

`stillweb serve` itself speaks OpenEnv's protocol at `/openenv` (`GenericEnvClient(base_url=url +
"/openenv")`). Use this module to build a server of OpenEnv's with its own tasks and web page. A reset takes
`task_id`, `task` or `url`. Failures of the infrastructure raise, which OpenEnv reports to its client as an
error, never as an observation with a reward. A step after the end of the episode changes nothing: it returns
the last page, done, with reward 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import Field

from stillweb import __version__
from stillweb.errors import ExtraNotInstalled, InfraError, ResetNeeded
from stillweb.trainers.episodes.source import EpisodeLease, open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import EPISODE_OVER
from stillweb.trainers.episodes.turn import Turn

try:
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
except ImportError as missing:
    raise ExtraNotInstalled(f"OpenEnv is not installed: {missing}", hint="pip install openenv") from missing


class StillwebAction(Action):  # type: ignore[misc]
    """An action with the fields of docs/reference/actions.md, or its text in `call`: `click('a12')`."""

    action: str = ""
    call: str = ""
    bid: str | int | None = None
    x: float | None = None
    y: float | None = None
    to: str | None = None
    dx: float | None = None
    dy: float | None = None
    value: str | int | float | bool | None = None
    text: str | None = None
    key: str | None = None
    enter: bool | None = None
    url: str | None = None
    tab: int | None = None
    file: str | None = None
    button: str | None = None
    modifiers: str | None = None
    ms: int | None = None
    accept: bool | None = None
    answer: str | None = None

    def given(self) -> dict[str, Any] | str:
        """Return the action as a step takes it."""
        return self.call or self.model_dump(exclude_none=True, exclude={"metadata", "call"})


class StillwebObservation(Observation):  # type: ignore[misc]
    """An observation. `text` begins with the goal; forms that were not requested are empty."""

    goal: str = ""
    url: str = ""
    title: str = ""
    text: str = ""
    last_action_error: str = ""
    truncated: bool = False
    digests: dict[str, str] = Field(default_factory=dict)
    pictures: dict[str, dict[str, str]] = Field(default_factory=dict, description="References by SHA-256")


class StillwebEnvironment(Environment[StillwebAction, StillwebObservation, State]):  # type: ignore[misc]
    """One episode after the other; `environment` creates it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, source: Mapping[str, Any] | str) -> None:
        super().__init__()
        self._source = open_source(source)
        self._lease: EpisodeLease | None = None
        self._goal = ""
        self._last: Turn | None = None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> StillwebObservation:
        return self._source.run(self._reset(seed, episode_id, kwargs))

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> StillwebObservation:
        return await self._source.on_loop(self._reset(seed, episode_id, kwargs))

    def step(
        self, action: StillwebAction, timeout_s: float | None = None, **kwargs: Any
    ) -> StillwebObservation:
        return self._source.run(self._step(action))

    async def step_async(
        self, action: StillwebAction, timeout_s: float | None = None, **kwargs: Any
    ) -> StillwebObservation:
        return await self._source.on_loop(self._step(action))

    @property
    def state(self) -> State:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="stillweb",
            description="Tasks on recorded web sites that replay frozen.",
            version=__version__,
        )

    def close(self) -> None:
        self._source.run(self._release())

    async def _reset(
        self, seed: int | None, episode_id: str | None, given: Mapping[str, Any]
    ) -> StillwebObservation:
        start = start_of_row({**given, "seed": seed}, "reset")
        self._last = None
        if self._lease is None:
            self._lease = await self._source.lease("openenv")
        try:
            turn = await self._lease.reset(**start)
        except InfraError:
            await self._release()  # this lease may be over; the next reset acquires another one
            raise
        self._goal = turn.goal
        self._state = State(
            episode_id=episode_id or str(turn.info.get("episode", "")),
            step_count=0,
            task=str(turn.info.get("task", "")),
        )
        return self._observed(turn)

    async def _step(self, action: StillwebAction) -> StillwebObservation:
        if self._lease is None:
            raise ResetNeeded("no episode is under way", hint="reset first")
        if self._last and self._last.over:
            return self._after_end(self._last)
        turn = await self._lease.step(action.given())
        self._state.step_count += 1
        return self._observed(turn)

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease:
            await lease.release()

    def _observed(self, turn: Turn) -> StillwebObservation:
        self._last = turn
        seen = turn.observation
        return StillwebObservation(
            goal=self._goal,
            url=seen.get("url", ""),
            title=seen.get("title", ""),
            text=turn.text(first=[f"Goal: {self._goal}"] if self._goal else []),
            last_action_error=seen.get("last_action_error", ""),
            truncated=turn.truncated,
            digests=dict(seen.get("digests", {})),
            pictures={name: dict(each) for name, each in seen.get("pictures", {}).items()},
            done=turn.over,
            reward=turn.reward,
            metadata={"info": dict(turn.info)},
        )

    def _after_end(self, last: Turn) -> StillwebObservation:
        update = {"reward": 0.0, "last_action_error": EPISODE_OVER, "text": EPISODE_OVER}
        observation: StillwebObservation = self._observed(last).model_copy(update=update)
        return observation


def environment(source: Mapping[str, Any] | str) -> Callable[[], StillwebEnvironment]:
    """Return a factory of environments for OpenEnv's servers."""
    return partial(StillwebEnvironment, source)
