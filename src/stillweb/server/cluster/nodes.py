"""The nodes of a master: which are live, which has free sessions, which granted a lease, and their addresses.

The registry has no clock and no event loop.

A node's name is the prefix of its lease identifiers, `a100-3.<id>`. So a restarted master finds the node of
every lease that still runs.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

from stillweb.errors import UsageError
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.monitor.status import BrowserStatus, Queue, Rates, RecentMiss, SessionStatus, Status

NODE_SECONDS = 10.0
"""Seconds of silence after which a node counts as lost. Nodes report at least every two seconds."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MISSES = 50


def check_node_name(name: str) -> None:
    """Raise a UsageError unless a name is valid in identifiers, URLs and labels."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid node name",
            hint="--node-name takes a-z, 0-9 and -, at most 63 characters, as in host names",
        )


def node_of(lease: str) -> str:
    """Return the name of the node that granted a lease; "" for an identifier without a node."""
    name, point, _ = lease.partition(".")
    return name if point else ""


@dataclass(slots=True)
class ClusterNode:
    """A rollout server that joined.

    Attributes:
        url: address under which the master reaches it.
        status: its last report.
        last_heard: time of the last report.
        promised: leases that the master requested since the last report.
        lost: why the node counts as lost although it reported recently; "" if it does not.
    """

    name: str
    url: str
    status: Status
    last_heard: float
    promised: int = 0
    lost: str = ""

    @property
    def free(self) -> int:
        """Free sessions, as far as the master knows."""
        queue = self.status.queues["allocate"]
        taken = queue.under_way + queue.waiting + self.promised
        return max(0, queue.limit - taken) if self.status.state == "serving" else 0


class NodeRegistry:
    """The live and lost nodes of a master."""

    def __init__(self) -> None:
        self._nodes: dict[str, ClusterNode] = {}

    def update(self, name: str, url: str, status: Status, now: float) -> None:
        """Store a node's report.

        Raises:
            UsageError: if the name is invalid, or a live node with another URL has it.
        """
        check_node_name(name)
        known = self._nodes.get(name)
        if known and known.url != url and self._is_live(known, now):
            raise UsageError(
                f"another node is called {name!r}: {known.url}", hint="use --node-name to set another name"
            )
        self._nodes[name] = ClusterNode(name, url, status, now)

    def mark_lost(self, name: str, why: str) -> None:
        """Count a node as lost until its next report."""
        if node := self._nodes.get(name):
            node.lost = why

    def remove(self, name: str) -> None:
        self._nodes.pop(name, None)

    def all(self) -> list[ClusterNode]:
        return [self._nodes[name] for name in sorted(self._nodes)]

    def live(self, now: float) -> list[ClusterNode]:
        return [node for node in self.all() if self._is_live(node, now)]

    def find(self, name: str, now: float) -> ClusterNode | None:
        node = self._nodes.get(name)
        return node if node and self._is_live(node, now) else None

    def choose(self, now: float, without: Container[str] = ()) -> ClusterNode | None:
        """Return the node with the most free sessions and reserve one of them; None if all are full."""
        free = [node for node in self.live(now) if node.name not in without and node.free]
        if not free:
            return None
        node = max(free, key=lambda each: each.free)  # of equal nodes the first by name
        node.promised += 1
        return node

    def _is_live(self, node: ClusterNode, now: float) -> bool:
        return not node.lost and now - node.last_heard <= NODE_SECONDS


def merged(nodes: list[ClusterNode], uptime: float) -> Status:
    """Return the status of several nodes as one server; sessions and browsers name their node."""
    sessions: list[SessionStatus] = []
    browsers: list[BrowserStatus] = []
    misses: list[RecentMiss] = []
    queues: dict[str, Queue] = {}
    counted = ("episodes", "leases", "failures", "traffic", "pictures", "latency", "memory")
    sums: dict[str, Any] = {name: {} for name in counted}
    for node in nodes:
        status = node.status
        for session in status.sessions:
            sessions.append(session.model_copy(update={"index": len(sessions), "node": node.name}))
        browsers += [each.model_copy(update={"node": node.name}) for each in status.browsers]
        misses += status.misses
        for name, queue in status.queues.items():
            queues[name] = _sum(queues.get(name), queue)
        for name, total in sums.items():
            for key, count in getattr(status, name).items():
                total[key] = total[key] + count if key in total else count
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


def _sum(one: Queue | None, other: Queue) -> Queue:
    if one is None:
        return other
    return Queue(**{name: getattr(one, name) + getattr(other, name) for name in Queue.model_fields})


# --- addresses -------------------------------------------------------------------------------------

_PORTS = {"http": 80, "https": 443}
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


async def resolve_node_url(url: str, peer: str, networks: Sequence[Network]) -> str:
    """Return the URL under which the master reaches a node.

    The check prevents server-side request forgery by the master. A node may report the address from which it
    joins; an unspecified address (0.0.0.0) means that one. Other addresses must be in a permitted network.
    The URL holds the checked IP address, so that a later DNS answer cannot change it. For https, the
    certificate protects the name.

    Args:
        url: URL that the node reported.
        peer: address from which the node reported it.
        networks: permitted networks.

    Raises:
        UsageError: if the URL is not `http(s)://HOST[:PORT]`, or its host is unknown.
        RequestRefused: if its address is not permitted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL of a node: {error}", hint="use http://HOST:PORT") from error
    extra = parts.username or parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in _PORTS or not host or extra:
        raise UsageError(f"{url!r} is not a URL of a node", hint="use http://HOST:PORT")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"the host of {url} is unknown: {error}", hint="--advertise sets the URL") from error
    origin = _plain(ip_address(peer))
    addresses = [_plain(ip_address(info[4][0])) for info in found]
    addresses = [origin if each.is_unspecified else each for each in addresses]
    for address in addresses:
        if not _permitted(address, origin, networks):
            raise RequestRefused(
                FailureKind.FORBIDDEN,
                f"a node that joins from {peer} may not have the address {address} of {url}",
                hint="permit its network with stillweb serve --master --node-network CIDR",
            )
    if parts.scheme == "https":
        return f"https://{parts.netloc}"
    first = addresses[0]
    return f"http://{f'[{first}]' if first.version == 6 else first}:{port}"


def _plain(address: Address) -> Address:
    """Return an IPv4-mapped IPv6 address as IPv4."""
    return getattr(address, "ipv4_mapped", None) or address


def _permitted(address: Address, peer: Address, networks: Sequence[Network]) -> bool:
    if address == peer or (address.is_loopback and peer.is_loopback):
        return True
    return any(address in network for network in networks)
