"""`manifest.json` of a collection: everything about a recording besides its captures.

It also holds the browser's login state, for the contexts of a replay:

    "login": {"kind": "steps", "logged_in": {"text": "Log Out"}, "storage_state": {"cookies": [...], ...}}

The state is redacted like the archive, with the same placeholders, so pages send the recorded values. Its
cookies are session cookies: a replay may run years later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from stillweb import __version__
from stillweb.collections.limits import load_json
from stillweb.errors import CollectionError
from stillweb.files import write_atomically

VERSION = 1

# Members of a pack's manifest that describe the pack, not the recording.
_OF_PACK = {
    *("format", "version", "entries", "keys", "bodies", "files"),
    *("rules", "default_rules", "sealing", "branches"),
}


_MOST_LEVELS = 100  # of lists and objects; writers and copies of a manifest are recursive


@dataclass(frozen=True, slots=True)
class Manifest:
    """Facts about a collection besides its captures.

    Attributes:
        created: ISO 8601.
        state: `complete`; `partial` while a recording runs or after it was stopped.
        recorded_at: 14 digits; start of the pinned clock.
        seed: of the pinned randomness.
        profile: viewport, user agent, locale, time zone, browser build, ...
        sources: imported files, `{"name", "sha256", "bytes"}` each.
        redactions: spans removed before digests were made.
        extra: members that this version does not know.
    """

    name: str = ""
    created: str = ""
    state: str = "complete"
    software: str = f"stillweb/{__version__}"
    recorded_at: str = ""
    seed: int = 0
    profile: dict[str, Any] = field(default_factory=dict)
    sources: tuple[dict[str, Any], ...] = ()
    redactions: tuple[dict[str, Any], ...] = ()
    notes: str = ""
    version: int = VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        members = asdict(self)
        extra = members.pop("extra")
        return {**extra, **members, "sources": list(self.sources), "redactions": list(self.redactions)}

    @classmethod
    def from_dict(cls, members: Mapping[str, Any]) -> Manifest:
        known = {each.name for each in fields(cls)} - {"extra"}
        values = {name: value for name, value in members.items() if name in known}
        for name in ("sources", "redactions"):
            values[name] = _dicts(name, values.get(name, []))
        default = cls()
        for name, value in values.items():
            if not isinstance(value, type(getattr(default, name))):
                raise ValueError(f"{name} is {value!r}")
        if values.get("version", VERSION) > VERSION:
            raise ValueError(f"version {values['version']}, this program reads {VERSION}")
        _require_plain(members, _MOST_LEVELS)
        return cls(**values, extra={k: v for k, v in members.items() if k not in known})


def _require_plain(value: Any, levels: int) -> None:
    """Raise ValueError for a value that cannot be written again: an infinite number, or too many levels."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no number of JSON (RFC 8259 §6)")
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"it has more than {_MOST_LEVELS} levels")
        for each in value.values() if isinstance(value, dict) else value:
            _require_plain(each, levels - 1)


def _dicts(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, dict) for each in value):
        raise ValueError(f"{name} is not a list of objects")
    return tuple(value)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; return defaults if the file is missing, as in a folder made by pywb.

    Raises:
        CollectionError: if it is not JSON, or of a newer version.
    """
    try:
        members = load_json(path.read_bytes(), path=path)
    except FileNotFoundError:
        return Manifest(name=path.parent.name)
    except ValueError as error:
        raise CollectionError(f"manifest is not JSON ({error})", path=path) from None
    try:
        return Manifest.from_dict(members if isinstance(members, dict) else {"version": members})
    except ValueError as error:
        hint = "upgrade: pip install -U stillweb"
        raise CollectionError(f"not a manifest of this version ({error})", path=path, hint=hint) from None


def manifest_of_pack(path: Path, name: str) -> Manifest:
    """Read a pack's copy of the manifest of its recording.

    Raises:
        CollectionError: if it cannot be read.
    """
    try:
        members = load_json(path.read_bytes(), path=path)
    except OSError as error:
        raise CollectionError(f"cannot be read ({error.strerror})", path=path) from error
    except ValueError as error:
        raise CollectionError(f"manifest is not JSON ({error})", path=path) from None
    members = members if isinstance(members, dict) else {"version": members}
    recorded = {key: value for key, value in members.items() if key not in _OF_PACK}
    try:
        return Manifest.from_dict({"name": name, "software": "", **recorded})
    except ValueError as error:
        raise CollectionError(f"not the manifest of a recording ({error})", path=path) from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    text = json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False) + "\n"
    # Names of imported files may not be UTF-8; a lone surrogate is written as its JSON escape.
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


LOGIN = "login"
_STATE = "storage_state"


def with_login(manifest: Manifest, kind: str, sign: Mapping[str, Any], state: Mapping[str, Any]) -> Manifest:
    """Return a manifest with a login state.

    Args:
        kind: how the state was obtained.
        sign: condition that holds when logged in; empty if none was given.
        state: Playwright's storage state, redacted.
    """
    lasting = without_ends(state)
    login: dict[str, Any] = {"kind": kind}
    if sign:
        login["logged_in"] = dict(sign)
    login[_STATE] = {"cookies": lasting["cookies"], "origins": list(state.get("origins", ()))}
    return replace(manifest, extra={**manifest.extra, LOGIN: login})


def without_ends(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a storage state whose cookies do not end: browsers end them by the time of the machine."""
    cookies = state.get("cookies", ())
    return {
        **state,
        "cookies": [{**each, "expires": -1} if isinstance(each, dict) else each for each in cookies],
    }


def storage_state_of(members: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the storage state in a collection's or a pack's manifest; None if it has none."""
    login = members.get(LOGIN)
    state = login.get(_STATE) if isinstance(login, Mapping) else None
    return dict(state) if isinstance(state, Mapping) else None
