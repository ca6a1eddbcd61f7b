"""The nodes of a master, without clock or loop: who is there, who has room, whose lease it is.

A node's name begins the identifiers of its leases, `a100-3.<id>`, so that a master which starts anew finds
the node of every lease that still runs.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from stillweb.errors import UsageError
from stillweb.server.monitor.status import BrowserStatus, Queue, Rates, RecentMiss, SessionStatus, Status

__all__ = ["NODE_SECONDS", "ClusterNode", "NodeRegistry", "check_node_name", "merged", "node_of"]

NODE_SECONDS = 10.0
"""Of silence after which a node counts as lost. Nodes speak every two seconds, and at every change."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MISSES = 50


def check_node_name(name: str) -> None:
    """Raise a UsageError unless a name may begin identifiers, URLs and labels."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a node", hint="a-z, 0-9 and -, at most 63, as a host's: --node-name"
        )


def node_of(lease: str) -> str:
    """Return the name of the node that gave a lease; "" if none can have."""
    name, point, _ = lease.partition(".")
    return name if point else ""


@dataclass(slots=True)
class ClusterNode:
    """A rollout server that joined.

    Attributes:
        name: of the node.
        url: where the master reaches it.
        status: what it said last.
        heard: when that was.
        promised: leases that were asked of it since.
        gone: why it counts as lost although it was heard not long ago; "" if it does not.
    """

    name: str
    url: str
    status: Status
    heard: float
    promised: int = 0
    gone: str = ""

    @property
    def free(self) -> int:
        """Sessions that nobody has, as far as is known here."""
        queue = self.status.queues["allocate"]
        taken = queue.under_way + queue.waiting + self.promised
        return max(0, queue.limit - taken) if self.status.state == "serving" else 0


class NodeRegistry:
    """The nodes that are there, or were."""

    def __init__(self) -> None:
        self._nodes: dict[str, ClusterNode] = {}

    def hears(self, name: str, url: str, status: Status, now: float) -> None:
        """Take what a node says of itself.

        Raises:
            UsageError: if that name is none, or another node has it and is there.
        """
        check_node_name(name)
        known = self._nodes.get(name)
        if known and known.url != url and self._is_there(known, now):
            raise UsageError(
                f"another node is called {name!r}: {known.url}", hint="--node-name gives this one its own"
            )
        self._nodes[name] = ClusterNode(name, url, status, now)

    def loses(self, name: str, why: str) -> None:
        """Count a node as lost until it is heard again."""
        if node := self._nodes.get(name):
            node.gone = why

    def leaves(self, name: str) -> None:
        """Forget a node that ended as it should."""
        self._nodes.pop(name, None)

    def all(self) -> list[ClusterNode]:
        """Return the nodes by name, lost ones too."""
        return [self._nodes[name] for name in sorted(self._nodes)]

    def there(self, now: float) -> list[ClusterNode]:
        """Return the nodes that are there, by name."""
        return [node for node in self.all() if self._is_there(node, now)]

    def find(self, name: str, now: float) -> ClusterNode | None:
        """Return a node if it is there."""
        node = self._nodes.get(name)
        return node if node and self._is_there(node, now) else None

    def choose(self, now: float, without: Container[str] = ()) -> ClusterNode | None:
        """Return the node with the most free sessions, less one from now on; None if all are full."""
        free = [node for node in self.there(now) if node.name not in without and node.free]
        if not free:
            return None
        node = max(free, key=lambda each: each.free)  # the first by name of several
        node.promised += 1
        return node

    def _is_there(self, node: ClusterNode, now: float) -> bool:
        return not node.gone and now - node.heard <= NODE_SECONDS


def merged(nodes: list[ClusterNode], uptime: float) -> Status:
    """Return the status of several nodes as if they were one server; sessions say whose they are."""
    sessions: list[SessionStatus] = []
    browsers: list[BrowserStatus] = []
    misses: list[RecentMiss] = []
    queues: dict[str, Queue] = {}
    sums: dict[str, Any] = {name: {} for name in ("episodes", "leases", "failures", "traffic", "pictures")}
    for node in nodes:
        status = node.status
        for session in status.sessions:
            sessions.append(session.model_copy(update={"index": len(sessions), "node": node.name}))
        browsers += [each.model_copy(update={"node": node.name}) for each in status.browsers]
        misses += status.misses
        for name, queue in status.queues.items():
            queues[name] = _together(queues.get(name), queue)
        for name, total in sums.items():
            for key, count in getattr(status, name).items():
                total[key] = total.get(key, 0) + count
    return Status(
        state="serving" if any(node.status.state == "serving" for node in nodes) else "draining",
        uptime=uptime,
        replay=", ".join(sorted({node.status.replay for node in nodes})),
        level=", ".join(sorted({node.status.level for node in nodes})),
        observe=sorted({form for node in nodes for form in node.status.observe}),
        sessions=sessions,
        queues=queues,
        rates=Rates(
            steps=round(sum(node.status.rates.steps for node in nodes), 3),
            resets=round(sum(node.status.rates.resets for node in nodes), 3),
        ),
        steps=sum(node.status.steps for node in nodes),
        resets=sum(node.status.resets for node in nodes),
        misses=sorted(misses, key=lambda miss: miss.age)[:_MISSES],
        browsers=browsers,
        **sums,
    )


def _together(one: Queue | None, other: Queue) -> Queue:
    if one is None:
        return other
    return Queue(**{name: getattr(one, name) + getattr(other, name) for name in Queue.model_fields})
