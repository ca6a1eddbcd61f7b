"""Live transports of SockJS and socket.io, recognised by their URLs. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from stillweb.matching.engineio import is_transport

# sockjs-client, lib/main.js: a number of three digits, then a string of [a-z0-5] (8 by default).
_TRANSPORTS = (
    "websocket",
    "xhr_streaming",
    "xhr_send",
    "xhr",
    "eventsource",
    "jsonp_send",
    "jsonp",
    "htmlfile",
)
SOCKJS = re.compile(
    rf"(?P<prefix>(?:/[^/*?\[\]]+)*)/[0-9]{{3}}/[a-z0-5]{{8,64}}/(?P<transport>{'|'.join(_TRANSPORTS)})"
)


def is_live(url: str) -> bool:
    """Return True for a request of a SockJS or socket.io connection, which only its page can continue."""
    return is_transport(url) or (has_transport(url) and bool(SOCKJS.fullmatch(urlsplit(url).path)))


def has_transport(url: str) -> bool:
    """Return whether a URL ends in the name of a transport of SockJS."""
    return url.partition("?")[0].rpartition("/")[2] in _TRANSPORTS
