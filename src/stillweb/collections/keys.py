"""Request keys: when are two requests the same request.

A key is 16 bytes over method, wire URL and *structural* body key (`bodies`). Nothing that a server
could tell apart is folded; what varies by itself is taken out by `rules`, into keys of their own.

Pure and sans-io. The keys are stored in packs: a change here is a new pack version.
"""

from __future__ import annotations

from hashlib import blake2b

from stillweb.collections.bodies import body_digest, read_body
from stillweb.urls import wire_url

__all__ = ["KEY_SIZE", "body_key", "request_key"]

KEY_SIZE = 16


def request_key(method: str, url: str, content_type: str = "", raw_body: bytes = b"") -> bytes:
    """Return the 16-byte key of a request.

    HEAD has a key of its own; who wants the GET's answer asks with "GET".

    Args:
        method: in any case.
        url: absolute; spelled as `wire_url` spells it before it is keyed.
        content_type: the whole header value, since the multipart boundary is in it.
        raw_body: without transfer encoding, with content encoding.
    """
    wire = wire_url(url).encode("utf-8", "surrogatepass")
    prefix = f"{method.upper()} {len(wire)} ".encode("utf-8", "surrogatepass")
    return blake2b(prefix + wire + body_key(content_type, raw_body), digest_size=KEY_SIZE).digest()


def body_key(content_type: str, raw_body: bytes) -> bytes:
    """Return what identifies a request body: b"" for an empty one, else 16 bytes.

    The content type says how to read the body and is no part of its identity.
    """
    return body_digest(read_body(content_type, raw_body)) if raw_body else b""
