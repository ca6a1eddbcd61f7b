"""An environment without `await`: for tests that are plain functions, and for a look from a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.load import Task
from stillweb.testing.background import Background


class BlockingEnv:
    """`Env`, each call of which waits until it is through.

    Args:
        env: that nobody else uses.
        background: in whose loop it lives.
        seed: of episodes that are reset without one; None leaves it to the recording.
    """

    def __init__(self, env: Env, background: Background, *, seed: int | None = None) -> None:
        self._env = env
        self._seed = seed
        self._background = background

    def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, as `Env.reset` does."""
        chosen = self._seed if seed is None else seed
        return self._background.run(self._env.reset(task=task, url=url, seed=chosen))

    def step(self, action: Mapping[str, Any] | str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action, as `Env.step` does."""
        return self._background.run(self._env.step(action))

    def close(self) -> None:
        """End the episode and the browser."""
        self._background.run(self._env.close())
