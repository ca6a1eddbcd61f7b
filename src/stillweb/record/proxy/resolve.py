"""Address overrides for hosts, such as `--resolve '*.test=127.0.0.1:8443'`; pure.

A rule replaces the address to connect to and nothing else: URL, Host field, SNI and the name verified in the
site's certificate stay. The form is `PATTERN[:PORT]=ADDRESS[:PORT]`; a pattern is a host name, `*.` and a
name (every host below it), or `*`. The most specific rule wins, independent of order: exact names before
wildcards, longer wildcards before shorter, rules with a port before rules without. Among equals the last rule
wins.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stillweb.errors import UsageError

_HINT = "write it as HOST[:PORT]=ADDRESS[:PORT], for example --resolve '*.test:80=127.0.0.1:8480'"
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_SPLIT = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class ResolveRule:
    """An address override for the hosts of a pattern, at one port or all ports.

    Attributes:
        pattern: lower-case host name, `*.name` or `*`.
        port: requested port; None for every port.
        address: host name or IP literal (without brackets) to connect to.
        to_port: port to connect to; None for the requested one.
    """

    pattern: str
    port: int | None
    address: str
    to_port: int | None

    def matches(self, host: str, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.pattern == "*":
            return True
        if self.pattern.startswith("*."):
            return host.endswith(self.pattern[1:])
        return host == self.pattern

    def __str__(self) -> str:
        """Return the rule as `parse_resolve` reads it."""
        parts = ((self.pattern, self.port), (self.address, self.to_port))
        left, right = (_with_port(f"[{host}]" if ":" in host else host, port) for host, port in parts)
        return f"{left}={right}"

    @property
    def weight(self) -> tuple[bool, int, bool]:
        """Specificity of the rule; the greatest wins."""
        return (not self.pattern.startswith("*"), len(self.pattern), self.port is not None)


def parse_resolve(text: str) -> ResolveRule:
    """Parse one `--resolve` value.

    Raises:
        UsageError: if the value is not PATTERN[:PORT]=ADDRESS[:PORT].
    """
    left, equals, right = text.strip().partition("=")
    if not equals:
        raise UsageError(f"no '=' in --resolve {text!r}", hint=_HINT)
    pattern, port = _host_and_port(left, text)
    address, to_port = _host_and_port(right, text)
    name = pattern.removeprefix("*.")
    if pattern != "*" and not _is_name(name):
        raise UsageError(f"{pattern!r} in --resolve {text!r} is not a host pattern", hint=_HINT)
    if not _is_name(address):
        raise UsageError(f"{address!r} in --resolve {text!r} is not a host or address", hint=_HINT)
    return ResolveRule(pattern, port, address, to_port)


def parse_all(texts: Iterable[str]) -> tuple[ResolveRule, ...]:
    """Parse several `--resolve` values."""
    return tuple(parse_resolve(text) for text in texts)


def resolve(rules: Sequence[ResolveRule], host: str, port: int) -> tuple[str, int]:
    """Return the address to connect to; the host and port themselves if no rule matches."""
    host = host.lower().rstrip(".")
    chosen = None
    for rule in rules:
        if rule.matches(host, port) and (chosen is None or rule.weight >= chosen.weight):
            chosen = rule
    if chosen is None:
        return host, port
    return chosen.address, chosen.to_port if chosen.to_port is not None else port


def _with_port(host: str, port: int | None) -> str:
    return host if port is None else f"{host}:{port}"


def _host_and_port(text: str, whole: str) -> tuple[str, int | None]:
    match = _SPLIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} in --resolve {whole!r} is not HOST[:PORT]", hint=_HINT)
    host = match["host"].strip("[]").lower()
    if match["port"] is None:
        return host, None
    port = int(match["port"])
    if not 0 < port < 65536:
        raise UsageError(f"port {port} in --resolve {whole!r} is not in 1 to 65535", hint=_HINT)
    return host, port


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _NAME.fullmatch(host) is not None
    return True
