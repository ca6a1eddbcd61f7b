"""Checks the address that a node reports, against server-side request forgery by the master.

A node may report the address from which it joins; an unspecified address (0.0.0.0) means that one. Other
addresses must be in a network that the operator permits. The master then connects to the checked IP address,
so that a later DNS answer cannot change it; for https, the certificate protects the name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from stillweb.errors import UsageError
from stillweb.server.failures import FailureKind, RequestRefused

__all__ = ["resolve_node_url"]

_PORTS = {"http": 80, "https": 443}
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


async def resolve_node_url(url: str, peer: str, networks: Sequence[Network]) -> str:
    """Return the URL under which the master reaches a node.

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
