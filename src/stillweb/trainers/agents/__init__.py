"""Agents by name, for the command line.

random              draws actions that the page offers, by seed, task and episode (`agents/builtin.py`)
scripted:PATH       plays a trace, or the trace that a folder holds for the task (`agents/builtin.py`)
openai              requests actions from a model at an OpenAI-compatible endpoint (`agents/endpoint.py`)
MODULE:NAME         your own function from a task to a policy (`stillweb.env.vector.rollout.Agent`)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from stillweb.env.vector.rollout import Agent, Policy
from stillweb.errors import UsageError

if TYPE_CHECKING:
    from stillweb.env import Observation, Task

__all__ = ["PastStep", "ResumableAgent", "load_agent"]


class PastStep(NamedTuple):
    """An observation of an earlier part of the episode, and the action that followed it."""

    observation: Observation
    info: Mapping[str, Any]
    action: Mapping[str, Any] | str


class ResumableAgent(Protocol):
    """An agent that can continue an episode that another agent began."""

    def __call__(self, task: Task) -> Policy:
        """Return the policy of a new episode."""

    def resume(self, task: Task, past: Sequence[PastStep]) -> Policy:
        """Return the policy that continues an episode after these steps."""


T = TypeVar("T")


def load_agent(name: str, *, seed: int = 0, options: Mapping[str, Any] | None = None) -> Agent:
    """Return the agent of a name.

    Args:
        name: see the module.
        seed: seed of its draws.
        options: options of `random` and `openai`. If your own agent gets options, it is called with them and
            returns the agent.

    Raises:
        UsageError: if the name or an option is unknown.
        ExtraNotInstalled: for `openai`, if its package is missing.
    """
    given = dict(options or {})
    kind, _, rest = name.partition(":")
    if kind == "scripted" and rest:
        from stillweb.trainers.agents.builtin import ScriptedAgent

        _options(dict, {}, given, name)
        return ScriptedAgent(Path(rest))
    if name == "random":
        from stillweb.trainers.agents.builtin import RandomAgent, RandomOptions

        return RandomAgent(seed, _options(RandomOptions, {}, given, name))
    if name == "openai":
        from stillweb.trainers.agents.endpoint import EndpointAgent, EndpointOptions

        return EndpointAgent(_options(EndpointOptions, {"seed": seed}, given, name))
    if not rest:
        raise UsageError(
            f"no agent is called {name!r}", hint="use random, scripted:PATH, openai or MODULE:NAME"
        )
    return _imported(kind, rest, given)


def _imported(module: str, name: str, options: Mapping[str, Any]) -> Agent:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # `python -m` does the same
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports is missing
        raise UsageError(
            f"no module is called {module!r}",
            hint="use MODULE:NAME, with MODULE in this folder or on PYTHONPATH",
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no {name!r}")
        found = getattr(found, part)
    agent = found(**options) if options else found
    if not callable(agent):
        raise UsageError(
            f"{module}:{name} is not an agent", hint="an agent is a function from a task to a policy"
        )
    return agent  # type: ignore[no-any-return]  # its signature is checked when it is called


def _options(kind: type[T], usual: Mapping[str, Any], given: Mapping[str, Any], name: str) -> T:
    """Return the options of an agent; texts from the command line are converted to the field types."""
    from pydantic import TypeAdapter, ValidationError  # slow to import

    takes = getattr(kind, "__dataclass_fields__", {})
    if unknown := [key for key in given if key not in takes]:
        raise UsageError(
            f"{name} takes no option {', '.join(unknown)}", hint=f"it takes: {', '.join(takes) or 'none'}"
        )
    try:
        return TypeAdapter(kind).validate_python({**usual, **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"option {where} of {name}: {first['msg']}, it is {first['input']!r}") from error
