"""Gymnasium: tasks as registered environments, so that `gymnasium.make` finds them by name.

    ids = register_tasks(tasks, "http://127.0.0.1:8080", GymOptions(level="exact"))
    env = gymnasium.make(ids[0])                                 # "stillweb/online_train.942-v0"

The environment is `stillweb.env.gym.StillwebEnv`, whose browser runs in this process. An identifier also
works in worker processes that receive it (see `registration`). A trainer without local browsers uses
`stillweb.trainers.episodes.source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stillweb.env import Task
from stillweb.env.gym import GymOptions, StillwebEnv  # raises ExtraNotInstalled without Gymnasium
from stillweb.trainers.registration import RegisteredName, register, registry_name


def register_tasks(
    tasks: Sequence[Task], proxy: str, options: GymOptions | None = None, *, namespace: str = "stillweb"
) -> list[RegisteredName]:
    """Register tasks with Gymnasium; return their identifiers.

    Args:
        tasks: registered as `NAMESPACE/ID-v0`; characters that Gymnasium does not allow become "-".
        proxy: control URL of the replay server.
        namespace: namespace of the identifiers.
    """
    return [
        register(
            f"{namespace}/{registry_name(task.id)}-v0",
            partial(StillwebEnv, proxy, [task], options),
            max_episode_steps=None,  # the task's own limit truncates
        )
        for task in tasks
    ]
