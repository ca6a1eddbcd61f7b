"""Options of a rollout server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from stillweb.browser.profile import BEST_LEVEL, LEVEL
from stillweb.env import Task, VectorOptions
from stillweb.errors import UsageError
from stillweb.options import Option

# Simultaneous operations of each kind. `VectorOptions.at_once` limits the work on processors.
QUEUES: Mapping[str, int] = {"reset": 64, "execute": 128, "observe": 128, "screenshot": 256, "release": 8}


def _parse_queues(texts: Iterable[str]) -> dict[str, int]:
    limits = dict(QUEUES)
    for each in texts:
        name, _sign, count = each.partition("=")
        if not count.isdecimal() or int(count) < 1:
            raise ValueError(f"{each!r} is not NAME=COUNT, such as execute=64")
        if name not in QUEUES:
            raise UsageError(f"no queue {name}", hint=f"queues: {', '.join(QUEUES)}")
        limits[name] = int(count)
    return limits


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a rollout server.

    Attributes:
        waiting: clients that may wait for a lease.
        queue_capacity: waiting operations of each kind.
        tasks: tasks that clients may name, by identifier.
        node: name in a cluster; the prefix of all lease identifiers. "" without a cluster.
        vector: see `VectorEnv`.
    """

    sessions: Annotated[int, Option("Maximum simultaneous leases.", min=1, max=1024)] = 8
    ttl: Annotated[
        float,
        Option(
            "Seconds without a request after which a lease ends, unless its client requests others.",
            metavar="SECONDS",
            above=0,
        ),
    ] = 60.0
    lifetime: Annotated[
        float, Option("Seconds after which every lease ends.", metavar="SECONDS", above=0)
    ] = 4 * 3600.0
    waiting: int = 1024
    queues: Annotated[
        Mapping[str, int],
        Option(
            f"Maximum simultaneous operations of a kind: {', '.join(QUEUES)}. Repeatable.",
            "--queue",
            "NAME=COUNT",
            parse=_parse_queues,
        ),
    ] = field(default_factory=lambda: dict(QUEUES))
    queue_capacity: int = 1024
    picture_bytes: Annotated[
        int, Option("Screenshots to keep in memory, in MiB.", "--picture-mib", "MIB", min=1, unit=1 << 20)
    ] = 256 << 20
    tasks: Mapping[str, Task] = field(default_factory=dict)
    drain_seconds: Annotated[
        float, Option("Seconds to let running leases finish on shutdown.", metavar="SECONDS", min=0)
    ] = 30.0
    node: str = ""
    level: Annotated[str, LEVEL] = BEST_LEVEL
    observe: Annotated[
        tuple[str, ...],
        Option(
            "Form of observation: axtree, screenshot, ... (docs/reference/observations.md). Repeatable.",
            metavar="FORM",
        ),
    ] = ("axtree",)
    collection: Annotated[
        str | None,
        Option("Collection of tasks that name none, if the server has several.", "-c --collection", "NAME"),
    ] = None
    vector: VectorOptions = field(default_factory=VectorOptions)
