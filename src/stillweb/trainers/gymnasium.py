"""Gymnasium: tasks as registered environments, so that `gymnasium.make` finds them by name.

    ids = register_tasks(tasks, "http://127.0.0.1:8080", GymOptions(level="exact"))
    env = gymnasium.make(ids[0])                                 # "stillweb/online_train.942-v0"

The environment is `stillweb.env.gym.StillwebEnv`: its browser runs in this process. Where that cannot be, a
trainer takes `stillweb.trainers.place`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stillweb.env.gym import (
    GymOptions,  # says so where Gymnasium is not here
    StillwebEnv,  # says so where Gymnasium is not here
)
from stillweb.env.tasks.task import Task
from stillweb.trainers.starts import name_of

__all__ = ["register_tasks"]


def register_tasks(
    tasks: Sequence[Task], proxy: str, options: GymOptions | None = None, *, namespace: str = "stillweb"
) -> list[str]:
    """Register tasks with Gymnasium; return their identifiers.

    Args:
        tasks: that are registered, as `NAMESPACE/ID-v0`; signs that Gymnasium does not allow become "-".
        proxy: control URL of the replay server.
        options: see `GymOptions`.
        namespace: of the identifiers.
    """
    import gymnasium

    ids = []
    for task in tasks:
        named = f"{namespace}/{name_of(task.id)}-v0"
        gymnasium.register(
            id=named,
            entry_point=partial(StillwebEnv, proxy, [task], options),
            max_episode_steps=None,  # the task's own limit truncates
        )
        ids.append(named)
    return ids
