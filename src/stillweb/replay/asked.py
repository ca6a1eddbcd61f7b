"""What the ledger keeps of a request that was missed, so that a recording can ask for it again.

Fields are taken by an allow-list: what chooses the representation a site sends, and never what says who
asks (cookies, authorization, tokens of one's own making). Bodies are kept up to a size, and a session
keeps so many bytes of them in all; a larger one is known by its digest only. Pure.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Any

from stillweb.model import Request

__all__ = ["BODIES", "BODY", "FIELDS", "asked_of"]

BODY = 64 * 1024
"""Bytes of one missed request's body that are kept."""

BODIES = 1024 * 1024
"""Bytes of missed requests' bodies that a session keeps in all."""

FIELDS = frozenset(
    (
        *("accept", "accept-language", "content-type", "origin", "range", "x-requested-with"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site"),
        # By these, frameworks ask for a part of a page under the page's own URL.
        *("hx-request", "hx-target", "hx-trigger", "hx-current-url", "turbo-frame", "x-pjax"),
        *("x-inertia", "x-inertia-version", "x-inertia-partial-data", "x-inertia-partial-component"),
        *("rsc", "next-action", "next-router-state-tree", "next-router-prefetch", "next-url", "soapaction"),
        *("x-pjax-container", "x-apollo-operation-name", "apollo-require-preflight"),
    )
)  # fmt: skip
"""Request fields that are kept, in lower case."""


def asked_of(request: Request, room: int) -> dict[str, Any]:
    """Return what is kept of a missed request, as JSON has it.

    Args:
        request: that was missed.
        room: bytes of bodies that may still be kept.

    Returns:
        `fields`: list of [name, value], in the order sent; where there is a body, `size` and `digest`
        (`sha256:` and hex), and the `body` itself in base64 if there is room.
    """
    kept: dict[str, Any] = {
        "fields": [[name.lower(), value] for name, value in request.headers if name.lower() in FIELDS]
    }
    if body := request.raw_body:
        kept |= {"size": len(body), "digest": f"sha256:{sha256(body).hexdigest()}"}
        if len(body) <= min(BODY, room):
            kept["body"] = b64encode(body).decode("ascii")
    return kept
