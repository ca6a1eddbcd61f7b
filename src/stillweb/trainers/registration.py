"""Gymnasium identifiers that register their environment in every process that receives them.

Gymnasium's registry belongs to one process. A worker of joblib, Ray or multiprocessing starts with an empty
registry, and `gymnasium.make` raises `NameNotFound`. A `RegisteredName` is a string that carries its
registration when it is pickled, and registers it when it is unpickled. AgentLab sends the name inside its
`EnvArgs`, so its workers need no code of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium


class RegisteredName(str):
    """An identifier of Gymnasium's registry.

    Attributes:
        registration: arguments of `gymnasium.register`.
    """

    registration: Mapping[str, Any]

    @property
    def task_name(self) -> RegisteredName:
        """The name without its namespace, as the `task_name` of AgentLab's `EnvArgs`."""
        return _restore(self.rpartition("/")[2], self.registration)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (str(self), self.registration)


def register(name: str, entry_point: Callable[..., Any], **options: Any) -> RegisteredName:
    """Register an environment; its entry point and options must be picklable.

    Args:
        entry_point: creates the environment.
        options: see `gymnasium.register`.
    """
    registration = {"id": name, "entry_point": entry_point, **options}
    gymnasium.registry.pop(name, None)  # a second registration replaces the first without a warning
    gymnasium.register(**registration)
    return _restore(name, registration)


def _restore(name: str, registration: Mapping[str, Any]) -> RegisteredName:
    if registration["id"] not in gymnasium.registry:
        gymnasium.register(**registration)
    restored = RegisteredName(name)
    restored.registration = registration
    return restored


def registry_name(task_id: str) -> str:
    """Return a task's identifier with the characters that Gymnasium's registry allows."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", task_id)
