"""API keys of clients and keys of cluster nodes.

A key identifies its holder. Leases belong to the client that acquired them: other clients can neither use nor
see them. Only a node key may join a master, so that a client cannot take the name of a node and return forged
rewards. The master sends the node's key to the node, and names the client in the header `x-stillweb-client`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import Headers

from stillweb.errors import UsageError

CLIENT_HEADER = "x-stillweb-client"


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The holder of a key.

    Attributes:
        client: name of the client; "" for the only key, and without keys.
        node: name of the node; "" for a key that every node may use, None for a client.
    """

    client: str = ""
    node: str | None = None

    def may_be_node(self, name: str) -> bool:
        """Return whether the holder may act as the node of that name."""
        return self.node in ("", name)


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The keys that a server accepts.

    Attributes:
        clients: API keys by the name of the client.
        nodes: node keys by the name of the node; the name "" is for all nodes.
    """

    clients: Mapping[str, str] = field(default_factory=dict, repr=False)
    nodes: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, key: str | AccessKeys) -> AccessKeys:
        """Return keys with one API key; "" for none."""
        if isinstance(key, AccessKeys):
            return key
        return cls({"": key} if key else {})

    def __bool__(self) -> bool:
        return bool(self.clients or self.nodes)

    def holder(self, headers: Headers) -> KeyHolder | None:
        """Return the holder of a request's key, or None; without keys, every request has the client ""."""
        if not self:
            return KeyHolder(node="")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
        # All keys are compared, each in constant time: the time of the answer reveals nothing.
        clients = [name for name, key in self.clients.items() if _matches(given, key)]
        nodes = [name for name, key in self.nodes.items() if _matches(given, key)]
        if nodes:
            return KeyHolder(headers.get(CLIENT_HEADER, ""), nodes[0])
        return KeyHolder(clients[0]) if clients else None

    def of_node(self, name: str) -> str:
        """Return the key of a node; "" without one."""
        return self.nodes.get(name) or self.nodes.get("", "")


def _matches(given: tuple[str, ...], key: str) -> bool:
    return any([hmac.compare_digest(each.encode(), key.encode()) for each in given])


def read_keys(path: Path) -> dict[str, str]:
    """Read a key file: `KEY` or `NAME KEY` on each line; `#` starts a comment line.

    Raises:
        UsageError: if a line is malformed, or a name or key occurs twice.
    """
    keys: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        *name, key = line.split()
        if len(name) > 1:
            raise UsageError(f"{path}:{number}: not a key", hint="write KEY or NAME KEY on each line")
        holder = name[0] if name else ""
        if holder in keys or key in keys.values():
            raise UsageError(
                f"{path}:{number}: this name or key occurs twice", hint="remove one of the lines"
            )
        keys[holder] = key
    if not keys:
        raise UsageError(f"{path} holds no key", hint="write KEY or NAME KEY on each line")
    return keys
