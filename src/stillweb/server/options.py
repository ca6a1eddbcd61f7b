"""What seldom needs saying about a rollout server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stillweb.env.tasks.load import Task
from stillweb.env.vector.vector import VectorOptions

__all__ = ["QUEUES", "ServeOptions"]

# At once. More than the processors do at a time wait their turn in `VectorOptions.at_once`.
QUEUES: Mapping[str, int] = {
    "reset": 64,
    "execute": 128,
    "observe": 128,
    "screenshot": 256,
    "release": 8,
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What seldom needs saying.

    Attributes:
        sessions: leases at once.
        ttl: seconds of silence after which a lease ends, unless its client says otherwise.
        lifetime: seconds after which a lease ends in any case; no client gets more.
        waiting: clients that may wait for a lease.
        queues: operations of each kind at once.
        room: operations of each kind that may wait.
        picture_bytes: of pictures in memory.
        tasks: that clients may name, by identifier.
        drain_seconds: that running leases are given when the server ends.
        node: its name in a cluster (`cluster`), with which its leases begin; "" for a server by itself.
        level, observe, collection, vector: as of `VectorEnv`.
    """

    sessions: int = 8
    ttl: float = 60.0
    lifetime: float = 4 * 3600.0
    waiting: int = 1024
    queues: Mapping[str, int] = field(default_factory=lambda: dict(QUEUES))
    room: int = 1024
    picture_bytes: int = 256 * 1024 * 1024
    tasks: Mapping[str, Task] = field(default_factory=dict)
    drain_seconds: float = 30.0
    node: str = ""
    level: str = "clock"
    observe: tuple[str, ...] = ("axtree",)
    collection: str | None = None
    vector: VectorOptions = field(default_factory=VectorOptions)
