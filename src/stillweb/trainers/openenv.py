"""OpenEnv: an `Environment` on replayed pages, for OpenEnv's own servers (`create_app`).

    app = create_app(environment({"server": "http://127.0.0.1:7000"}), StillwebAction, StillwebObservation)

`stillweb serve` speaks OpenEnv's protocol by itself, at `/openenv` (`GenericEnvClient(base_url=url +
"/openenv")`); this is for whoever builds a server of OpenEnv's, with its tasks and web page. A reset takes
`task_id`, `task` or `url`. What fails by our fault raises, which OpenEnv tells its client as an error: never
an observation with a reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import Field

from stillweb import __version__
from stillweb.errors import ExtraNotInstalled, InfraError, ResetNeeded
from stillweb.trainers.place import EpisodeLease, open_place
from stillweb.trainers.starts import start_in
from stillweb.trainers.turn import Turn

try:
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
except ImportError as missing:
    raise ExtraNotInstalled(f"OpenEnv is not here: {missing}", hint="pip install openenv") from missing

__all__ = ["StillwebAction", "StillwebEnvironment", "StillwebObservation", "environment"]


class StillwebAction(Action):  # type: ignore[misc]
    """An action, flat as docs/actions.md has it; or in `call`, the text of one such as `click('a12')`."""

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
        """Return it as a step takes it."""
        return self.call or self.model_dump(exclude_none=True, exclude={"metadata", "call"})


class StillwebObservation(Observation):  # type: ignore[misc]
    """What is seen; forms that were not asked for are empty. Pictures are references by SHA-256."""

    goal: str = ""
    url: str = ""
    title: str = ""
    text: str = ""
    last_action_error: str = ""
    truncated: bool = False
    digests: dict[str, str] = Field(default_factory=dict)
    pictures: dict[str, dict[str, str]] = Field(default_factory=dict)


class StillwebEnvironment(Environment[StillwebAction, StillwebObservation, State]):  # type: ignore[misc]
    """One episode after the other; `environment` makes it.

    Args:
        place: as of `open_place`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, place: Mapping[str, Any] | str) -> None:
        super().__init__()
        self._place = open_place(place)
        self._lease: EpisodeLease | None = None
        self._goal = ""
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> StillwebObservation:
        """Begin an episode."""
        return self._place.run(self._reset(seed, episode_id, kwargs))

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> StillwebObservation:
        """Begin an episode."""
        return await self._place.on_loop(self._reset(seed, episode_id, kwargs))

    def step(
        self, action: StillwebAction, timeout_s: float | None = None, **kwargs: Any
    ) -> StillwebObservation:
        """Take an action."""
        return self._place.run(self._step(action))

    async def step_async(
        self, action: StillwebAction, timeout_s: float | None = None, **kwargs: Any
    ) -> StillwebObservation:
        """Take an action."""
        return await self._place.on_loop(self._step(action))

    @property
    def state(self) -> State:
        """Which episode it is, and how many steps were taken."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Return what the environment is."""
        return EnvironmentMetadata(
            name="stillweb",
            description="Tasks on recorded web sites that replay frozen.",
            version=__version__,
        )

    def close(self) -> None:
        """Give the session back."""
        self._place.run(self._left())

    async def _reset(
        self, seed: int | None, episode_id: str | None, given: Mapping[str, Any]
    ) -> StillwebObservation:
        start = start_in({**given, "seed": seed}, "reset")
        if self._lease is None:
            self._lease = await self._place.lease("openenv")
        try:
            turn = await self._lease.reset(**start)
        except InfraError:
            await self._left()  # the next one gets another lease, should this one be over
            raise
        self._goal = turn.goal
        self._state = State(
            episode_id=episode_id or str(turn.info.get("episode", "")),
            step_count=0,
            task=str(turn.info.get("task", "")),
        )
        return self._seen(turn)

    async def _step(self, action: StillwebAction) -> StillwebObservation:
        if self._lease is None:
            raise ResetNeeded("no episode is under way", hint="reset first")
        turn = await self._lease.step(action.given())
        self._state.step_count += 1
        return self._seen(turn)

    async def _left(self) -> None:
        lease, self._lease = self._lease, None
        if lease:
            await lease.release()

    def _seen(self, turn: Turn) -> StillwebObservation:
        seen = turn.observation
        return StillwebObservation(
            goal=self._goal,
            url=seen.get("url", ""),
            title=seen.get("title", ""),
            text=turn.text(),
            last_action_error=seen.get("last_action_error", ""),
            truncated=turn.truncated,
            digests=dict(seen.get("digests", {})),
            pictures={name: dict(each) for name, each in seen.get("pictures", {}).items()},
            done=turn.over,
            reward=turn.reward,
            metadata={"info": dict(turn.info)},
        )


def environment(place: Mapping[str, Any] | str) -> Callable[[], StillwebEnvironment]:
    """Return what makes environments, for OpenEnv's servers."""
    return partial(StillwebEnvironment, place)
