"""Who may use a recording proxy: a name and a password, asked for as RFC 9110 §11.7 has it; pure."""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error as Base64Error
from ipaddress import ip_address

from stillweb.errors import UsageError

__all__ = ["CHALLENGE", "admits", "is_loopback", "parse_user"]

CHALLENGE = 'Basic realm="stillweb", charset="UTF-8"'


def parse_user(text: str) -> tuple[str, str]:
    """Read NAME:PASSWORD.

    Raises:
        UsageError: if one of the two is missing.
    """
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise UsageError("--user needs a name and a password", hint="--user NAME:PASSWORD")
    return name, password


def admits(user: tuple[str, str] | None, given: str) -> bool:
    """Tell whether the value of a `Proxy-Authorization` field lets somebody in; without a user all are."""
    if user is None:
        return True
    scheme, _, encoded = given.strip().partition(" ")
    try:
        told = b64decode(encoded.strip(), validate=True)
    except (Base64Error, ValueError):
        return False
    return scheme.lower() == "basic" and hmac.compare_digest(told, ":".join(user).encode("utf-8"))


def is_loopback(address: str) -> bool:
    """Tell whether an address or host name is this machine's own, for nobody else to reach."""
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"
