"""A storage state without its secrets, by the rules and placeholders of the archive that it belongs to.

Each cookie is put into an exchange as it would be sent, each entry of local storage into an answer,
and these are redacted as every other exchange is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stillweb.model import Exchange, Request, Response, header
from stillweb.record.redaction.redactor import Secrets

__all__ = ["redacted_state"]

_NO_TIME = "20250101000000"
_FLAGS = (("HttpOnly", "httpOnly"), ("Secure", "secure"))


def redacted_state(state: Mapping[str, Any], secrets: Secrets | None) -> dict[str, Any]:
    """Return the state with placeholders where secrets stood; as it is if they are kept."""
    if secrets is None:
        return dict(state)
    cookies = [{**cookie, "value": _cookie(cookie, secrets)} for cookie in state.get("cookies", ())]
    origins = [
        {
            **origin,
            "localStorage": [
                {**entry, "value": _entry(origin["origin"], entry, secrets)}
                for entry in origin.get("localStorage", ())
            ],
        }
        for origin in state.get("origins", ())
    ]
    return {"cookies": cookies, "origins": origins}


def _cookie(cookie: Mapping[str, Any], secrets: Secrets) -> str:
    scheme = "https" if cookie.get("secure") else "http"
    url = cookie.get("url") or f"{scheme}://{str(cookie.get('domain', '')).removeprefix('.')}/"
    pair = f"{cookie['name']}={cookie['value']}"
    told = [pair, *(flag for flag, member in _FLAGS if cookie.get(member))]
    secrets.redact(_exchange(url, (), (("Set-Cookie", "; ".join(told)),), b""))  # it learns by that
    made = secrets.redact(_exchange(url, (("Cookie", pair),), (), b""))[0]
    return header(made.request.headers, "cookie").partition("=")[2]


def _entry(origin: str, entry: Mapping[str, Any], secrets: Secrets) -> str:
    body = json.dumps({entry["name"]: entry["value"]}).encode()
    exchange = _exchange(f"{origin}/", (), (("Content-Type", "application/json"),), body)
    made = secrets.redact(exchange)[0]
    return str(next(iter(json.loads(made.response.raw_body).values())))


def _exchange(
    url: str, sent: tuple[tuple[str, str], ...], given: tuple[tuple[str, str], ...], body: bytes
) -> Exchange:
    return Exchange(Request("GET", url, sent), Response(200, "OK", given, body), _NO_TIME)
