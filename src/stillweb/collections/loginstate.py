"""How the browser of a recording was logged in, as the manifest keeps it for the contexts of its replay.

    "login": {"kind": "steps", "logged_in": {"text": "Log Out"}, "storage_state": {"cookies": [...], ...}}

The state is redacted like the archive, by the same placeholders, so that what a page sends by it is
what was recorded. Its cookies end with the browser: a replay may come years later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stillweb.collections.manifest import Manifest

__all__ = ["LOGIN", "storage_state_of", "with_login"]

LOGIN = "login"
_STATE = "storage_state"


def with_login(manifest: Manifest, kind: str, sign: Mapping[str, Any], state: Mapping[str, Any]) -> Manifest:
    """Return a manifest that says how pages are to be logged in.

    Args:
        manifest: of the collection.
        kind: how the state was come by.
        sign: by what a login is seen; empty if nobody said.
        state: Playwright's storage state, redacted.
    """
    cookies = [{**cookie, "expires": -1} for cookie in state.get("cookies", ())]
    login: dict[str, Any] = {"kind": kind}
    if sign:
        login["logged_in"] = dict(sign)
    login[_STATE] = {"cookies": cookies, "origins": list(state.get("origins", ()))}
    return replace(manifest, extra={**manifest.extra, LOGIN: login})


def storage_state_of(members: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the storage state that a manifest, or a pack's, asks for; None if it asks for none."""
    login = members.get(LOGIN)
    state = login.get(_STATE) if isinstance(login, Mapping) else None
    return dict(state) if isinstance(state, Mapping) else None
