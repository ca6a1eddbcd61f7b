"""Addresses that a recording may connect to.

A recorded page chooses which hosts its browser requests. Private, loopback, link-local and metadata addresses
are refused, so that a page cannot record services of the recorder's network. The check follows name
resolution, and the connection goes to the checked address: a name that changes its address between the two
has no effect. Every connection is checked, so redirects are too. A host that matches a `--resolve` rule may
have any address, because the user has named it; `--allow-private` permits all addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from stillweb.errors import RecordError
from stillweb.record.proxy.resolve import ResolveRule, resolve

_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052 §2.1; the last 32 bits are an IPv4 address
# Metadata services outside of link-local and private networks.
_METADATA = tuple(
    ip_network(text)
    for text in ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128")
)
_HINT = "--allow-private permits private addresses; --resolve HOST=ADDRESS permits one host"


class AddressRefused(RecordError):
    """A host has an address that the recording may not connect to."""


def address_kind(address: str) -> str:
    """Return why an address is refused, such as `loopback`; "" for a public address.

    IPv4 addresses inside of IPv6 addresses count: mapped (RFC 4291 §2.5.5.2), 6to4 (RFC 3056), Teredo (RFC
    4380) and NAT64 (RFC 6052).
    """
    try:
        parsed = ip_address(address.strip("[]"))
    except ValueError:
        return "malformed"
    return next((kind for each in _embedded(parsed) if (kind := _kind(each))), "")


def _embedded(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses that a packet to this address may reach."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            yield address.ipv4_mapped
            return
        if address in _NAT64:
            yield IPv4Address(address.packed[-4:])
            return
        if address.sixtofour:
            yield address.sixtofour
        yield from address.teredo or ()
    yield address


def _kind(address: IPv4Address | IPv6Address) -> str:
    if any(address.version == network.version and address in network for network in _METADATA):
        return "metadata"
    kinds = {
        "unspecified": address.is_unspecified,
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "private": isinstance(address, IPv6Address) and address.is_site_local,
        "reserved": address.is_reserved,
    }
    named = next((kind for kind, applies in kinds.items() if applies), "")
    return named or ("" if address.is_global else "private")


class UpstreamResolver:
    """Resolves hosts to addresses that a recording may connect to.

    Args:
        rules: address overrides.
        allow_private: permit all addresses.
    """

    def __init__(self, rules: Sequence[ResolveRule], *, allow_private: bool = False) -> None:
        self._rules = rules
        self._allow_private = allow_private
        self._unreachable: set[str] = set()

    async def resolve(self, host: str, port: int) -> tuple[str, int]:
        """Return the address and port to connect to.

        Raises:
            AddressRefused: if all addresses of the host are refused.
            OSError: if the name cannot be resolved.
        """
        target = resolve(self._rules, host, port)
        if self._allow_private or any(rule.matches(host.lower().rstrip("."), port) for rule in self._rules):
            return target
        addresses = await _addresses(*target)
        permitted = [address for address in addresses if not address_kind(address)]
        if not permitted:
            address, kind = addresses[0], address_kind(addresses[0])
            subject = address if host.strip("[]") == address else f"{host} has the address {address}, which"
            raise AddressRefused(f"{subject} is {kind}: not recorded", hint=_HINT)
        # An address that failed before comes last.
        return min(permitted, key=lambda each: each in self._unreachable), target[1]

    def mark_unreachable(self, address: str) -> None:
        """Prefer other addresses of a host from now on."""
        self._unreachable.add(address)


async def _addresses(host: str, port: int) -> list[str]:
    try:
        return [str(ip_address(host.strip("[]")))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
