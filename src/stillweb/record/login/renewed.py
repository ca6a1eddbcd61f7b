"""Tokens of a repeated login, for applications that keep them in local storage.

Scripts send such a token in a header field (`Authorization: Bearer ...`). A recording has a placeholder in
its storage state and in its requests, and replay answers no request with another one
(docs/decisions/0017-vary-and-authorization.md). Each further login gives another token. So a recording that
is continued

- writes the placeholder of the first login for the new token (`keep_placeholders`);
- sends the new token where a request has that placeholder (`LiveTokens`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import storage_state_of
from stillweb.matching.placeholders import Placeholders, key_file
from stillweb.model import Headers
from stillweb.record.login.steps import Login, secret_part
from stillweb.record.redaction.find import cookie_texts, entry_texts, strong
from stillweb.urls import host_of

if TYPE_CHECKING:
    from stillweb.record.login.run import LoginSession
    from stillweb.record.options import RecordOptions

_COOKIES = "cookies"
_RECORDED = 500  # requests that are read for their fields


def keep_placeholders(collection: Collection, login: Login, state: Mapping[str, Any]) -> dict[str, str]:
    """Let the tokens of a login have the placeholders of those that they replace; return these by token.

    This holds only for steps that the collection has recorded, with all their inputs: another user's
    token means other answers.
    """
    if login.kind != "steps":
        return {}
    placeholders = Placeholders.open(key_file(collection.root, collection.name))
    recorded = storage_state_of(collection.manifest().extra)
    if recorded is None or placeholders.known(login.inputs) is None:
        placeholders.of(login.inputs)
        return {}
    stored = {at: value for at, value in _values(recorded) if at[0] != _COOKIES}
    renewed = {
        new: stored[at]
        for at, new in _values(state)
        if at in stored and placeholders.drew(secret_part(stored[at]))
    }
    for token, placeholder in renewed.items():
        placeholders.hand_on(placeholder, token)
    return renewed


def knowing_login(record: RecordOptions, collection: Collection, session: LoginSession) -> RecordOptions:
    """Return options that redact the secrets of a login, its tokens as `keep_placeholders` says."""
    renewed = keep_placeholders(collection, session.login, session.state)
    return record.knowing((*session.secrets, *renewed))


@dataclass(slots=True)
class LiveTokens:
    """Values of the valid login by those that the recording has at the same place.

    Attributes:
        fields: header fields with such values that recorded requests of scripts have, by URL.
    """

    values: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Headers] = field(default_factory=dict)

    @classmethod
    def of(cls, collection: Collection, state: Mapping[str, Any]) -> LiveTokens:
        """Return the tokens of a login, and the fields that recorded requests for data have them in."""
        tokens = cls()
        tokens.renew(collection, state)
        tokens.read(collection)
        return tokens

    def renew(self, collection: Collection, state: Mapping[str, Any]) -> None:
        """Take the state of a login."""
        recorded = dict(_values(storage_state_of(collection.manifest().extra) or {}))
        live = {recorded[at]: value for at, value in _values(state) if at in recorded}
        # Scripts decode a cookie's value before they send it in a field.
        self.values = live | {unquote(old): unquote(new) for old, new in live.items()}

    def read(self, collection: Collection) -> None:
        """Note the fields of recorded requests for data."""
        if not self.values:
            return
        data = (
            each
            for each in collection.captures()
            if each.method == "GET" and each.mime.endswith("json") and each.request_offset >= 0
        )
        for capture in islice((each for each in data if each.status == HTTPStatus.OK), _RECORDED):
            self.note(capture.url, collection.read_request(capture).headers)

    def note(self, url: str, headers: Headers) -> None:
        """Note the fields of a recorded request of a script."""
        found = tuple(each for each in headers if self.replaced(each[1]) != each[1])
        if found or url not in self.fields:  # a recorded login has a token of its own
            self.fields[url] = found

    def fields_for(self, url: str) -> Headers:
        """Return the fields of the recorded request of the same host whose path has most in common."""
        own = _segments(url)

        def likeness(other: str) -> int:
            shared = 0
            for mine, theirs in zip(own, _segments(other), strict=False):
                if mine != theirs:
                    break
                shared += 1
            return shared

        alike = (other for other in self.fields if host_of(other) == host_of(url))
        nearest = max(alike, key=likeness, default=None)
        return self.fields[nearest] if nearest is not None else ()

    def live_for(self, url: str) -> Headers:
        """Return the fields as `fields_for` does, with the tokens of the valid login."""
        return tuple((name, self.replaced(value)) for name, value in self.fields_for(url))

    def replaced(self, value: str) -> str:
        """Return a field's value with the tokens of the valid login."""
        for recorded, live in self.values.items():
            value = value.replace(recorded, live)
        return value


def _segments(url: str) -> list[str]:
    return urlsplit(url).path.split("/")


def _values(state: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the random values of a storage state, each with its place in it."""
    for each in state.get("cookies", ()):
        place = (_COOKIES, each.get("domain", ""), each.get("path", "/"), each["name"])
        texts = cookie_texts(each["value"])
        yield from (((*place, str(at)), text) for at, text in enumerate(texts) if strong(text))
    for origin in state.get("origins", ()):
        for entry in origin.get("localStorage", ()):
            for path, value in entry_texts(entry["value"]):
                if strong(value):
                    yield (origin["origin"], entry["name"], *path), value
