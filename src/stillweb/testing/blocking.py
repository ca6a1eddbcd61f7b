"""A synchronous environment, for tests that are plain functions and for interactive use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb.env import Env, Observation, Task
from stillweb.testing.background import Background


class BlockingEnv:
    """`Env` with synchronous methods.

    Args:
        env: the environment, for exclusive use.
        background: runs the environment in its loop.
        seed: default of `reset`; None for the recording's seed.
    """

    def __init__(self, env: Env, background: Background, *, seed: int | None = None) -> None:
        self._env = env
        self._seed = seed
        self._background = background

    def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, like `Env.reset`."""
        chosen = self._seed if seed is None else seed
        return self._background.run(self._env.reset(task=task, url=url, seed=chosen))

    def step(self, action: Mapping[str, Any] | str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action, like `Env.step`."""
        return self._background.run(self._env.step(action))

    def close(self) -> None:
        """End the episode and the browser."""
        self._background.run(self._env.close())
