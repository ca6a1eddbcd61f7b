"""What whoever takes connections reads alike: TLS or not, which session, which URL. Pure.

The server (`connection`), the front (`frontdoor`) and the supervisor's lobby take the same clients; were they
to read them differently, a request would be another one behind a front than without.
"""

from __future__ import annotations

from base64 import b64decode

from stillweb.model import header
from stillweb.replay.wire import RequestReceived

__all__ = [
    "CONTINUE",
    "ESTABLISHED",
    "TLS_HANDSHAKE",
    "asked_url",
    "in_origin_form",
    "place_of",
    "tunnel_host",
    "user_of",
]

TLS_HANDSHAKE = 0x16
"""The first byte of a connection that speaks TLS (RFC 8446 §5.1)."""
ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def user_of(credentials: str | bytes) -> str | None:
    """Return the user name of Basic credentials (RFC 7617 §2); None if they are none."""
    try:
        return b64decode(credentials, validate=True).decode("ascii").partition(":")[0]
    except ValueError:
        return None


def tunnel_host(authority: str) -> str:
    """Return the host that a tunnel is to, without its port."""
    return authority.rpartition(":")[0] or authority


def place_of(tls: bool, tunnel: str) -> str:
    """Return of whom requests in origin form are, where a tunnel, or TLS, says it."""
    return f"{'https' if tls else 'http'}://{tunnel}"


def in_origin_form(event: RequestReceived) -> bool:
    """Return whether a request names a path only, or `*` (RFC 9112 §3.2.1, §3.2.4)."""
    return event.target.startswith(("/", "*"))


def asked_url(event: RequestReceived, place: str) -> str:
    """Return the URL that a request asks for at a place; "" if it does not say of which host."""
    if not in_origin_form(event):
        return event.target  # absolute form is taken everywhere (RFC 9112 §3.2.2)
    # RFC 9112 §3.3: the Host field names the site; the tunnel does if there is none.
    scheme, _, authority = place.partition("://")
    host = header(event.headers, "host") or authority
    return f"{scheme}://{host}{event.target}" if host else ""
