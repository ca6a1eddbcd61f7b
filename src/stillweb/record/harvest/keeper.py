"""Notice that a login has ended while pages are fetched, and log in again.

A request can end a session: a script that looks another user up, a page that signs out. From then on the site
answers with its login page, and a harvest would record that under each URL. The start page, requested with
the login and without it, shows in what the two differ. A response that has what only visitors see is a reason
to request the start page again. If that is the visitors' page now, the login has ended. The start page of an
application in one page is the same for all; then data that only the user gets takes its place.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from stillweb.http.codec import decoded_body
from stillweb.model import HTML_TYPES, Exchange, header
from stillweb.record.redaction.redactor import Secrets

_PASSWORD = re.compile(r"<input\b[^<>]*\btype\s*=\s*[\"']?password\b", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]*>([^<]*)</title", re.IGNORECASE)
_REFUSED = (401, 403)
# Latest requests of which a page of the user shows nothing: it may have been sent before them.
_IN_FLIGHT = 16
# Latest requests of which one may have ended the login. Responses without HTML do not show that it lasts.
_SUSPECTS = 64
_ENDS = 2  # logins that a kind of request ended, after which no other of the kind is sent

Fetch = Callable[[], Awaitable[Exchange]]


@dataclass(frozen=True, slots=True)
class _Features:
    """Features by which pages of visitors differ from those of a user; a redirect counts by its path."""

    location: str
    password: bool
    title: str
    refused: bool

    @classmethod
    def of(cls, exchange: Exchange) -> _Features:
        response = exchange.response
        location = header(response.headers, "location") if 300 <= response.status < 400 else ""
        html = ""
        if response.mime in HTML_TYPES:
            html = (decoded_body(response) or b"").decode("utf-8", "replace")
        title = _TITLE.search(html)
        refused = response.status in _REFUSED
        shown = title[1].strip() if title else ""
        return cls(urlsplit(location).path, bool(_PASSWORD.search(html)), shown, refused)


@dataclass(slots=True)
class SharedLogin:
    """A login by steps that several stages of a recording use, as long as it is valid.

    Attributes:
        state: storage state; None if the next stage has to log in.
    """

    state: Mapping[str, Any] | None = None
    _user: _Features | None = None
    _visitor: _Features | None = None

    def note(self, user: Exchange, visitor: Exchange) -> None:
        """Take what the login and a visitor see; a login of which that shows nothing is not kept."""
        self._user, self._visitor = _Features.of(user), _Features.of(visitor)
        if self._user == self._visitor:
            self.state = None

    def has_ended(self, user: Exchange) -> bool:
        """Return whether a stage before saw that the login differs, and this response is a visitor's."""
        found = _Features.of(user)
        return self._user is not None and self._user != self._visitor == found


@dataclass(slots=True)
class LoginKeeper:
    """The login of a harvest.

    Attributes:
        renew: logs in again and returns the cookies; it learns the secrets. None if only the user can.
        cookies: of the valid login.
        secrets: of the recording.
        generation: number of logins so far.
        why: why no request can be sent any more, "" if they can.
        left: times that `renew` may still be called.
        shared: the login for the next stage of the recording.
    """

    renew: Callable[[Secrets | None], Awaitable[httpx.Cookies]] | None
    cookies: httpx.Cookies
    secrets: Secrets | None = None
    generation: int = 0
    why: str = ""
    left: int = 5
    shared: SharedLogin = field(default_factory=SharedLogin)
    _refuses_valid: bool = False
    _user: _Features | None = None
    _visitor: _Features | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=_SUSPECTS))
    _harmless: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _ended: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def learn(self, user: Exchange, visitor: Exchange) -> None:
        """Take the start page with the login and without it."""
        self._user, self._visitor = _Features.of(user), _Features.of(visitor)

    @property
    def sees_difference(self) -> bool:
        """Whether the start page of the user is not that of visitors."""
        return self._user != self._visitor

    def refuses(self, url: str) -> bool:
        """Return whether requests like this one have ended the login, and seldom did not."""
        kinds = _kinds(url)
        return any(self._ended[each] >= max(_ENDS, self._harmless[each] + 1) for each in kinds)

    def is_like_visitors(self, exchange: Exchange) -> bool:
        """Return whether a response has what only visitors see."""
        if self._user is None or self._visitor is None or self._user == self._visitor:
            return False
        found, user, visitor = _Features.of(exchange), self._user, self._visitor
        is_like = exchange.response.status in _REFUSED or any(
            (
                found.location == visitor.location != user.location,
                found.password and visitor.password and not user.password,
                bool(found.title) and found.title == visitor.title != user.title,
            )
        )
        if not is_like:  # otherwise the login had ended before
            self._recent.append(exchange.request.url)
        if not is_like and exchange.response.mime in HTML_TYPES:
            self._clear_suspects()
        return is_like

    def _clear_suspects(self) -> None:
        """Note that the login has outlasted all requests that no longer run."""
        while len(self._recent) > _IN_FLIGHT:
            self._harmless.update(_kinds(self._recent.popleft()))

    async def holds(self, generation: int, fetch_start: Fetch) -> bool:
        """Return whether the login has lasted since a generation; log in again if it has ended now.

        Args:
            fetch_start: requests the start page with `cookies`.

        Raises:
            RecordError: if the login fails.
        """
        async with self._lock:
            if generation != self.generation or self.why:
                return False
            start = _Features.of(await fetch_start())
            if self._user is None or self._visitor is None or not self._is_ended(start):
                self._clear_suspects()
                return True
            self._ended.update({kind for url in self._recent for kind in _kinds(url)})
            self._recent.clear()
            if self.renew is None or not self.left:
                self.why = "the login ended, and pages are those of a visitor now"
                return False
            self.left -= 1
            self.cookies = await self.renew(self.secrets)
            self.generation += 1
            return False

    async def renew_token(self, generation: int) -> bool:
        """Log in again for a token that the site refuses; return whether a later one may be accepted.

        Raises:
            RecordError: if the login fails.
        """
        async with self._lock:
            if generation == self.generation:
                if self.renew is None or not self.left or self._refuses_valid:
                    return False
                self.left -= 1
                self.cookies = await self.renew(self.secrets)
                self.generation += 1
            return True

    def note_token(self, *, is_valid: bool) -> None:
        """Note whether the site accepts a new token; one that it refuses has other reasons."""
        self._refuses_valid = self._refuses_valid or not is_valid

    def _is_ended(self, start: _Features) -> bool:
        assert self._user is not None
        assert self._visitor is not None
        if self._user.refused != self._visitor.refused:
            return start.refused == self._visitor.refused
        if self._user.location != self._visitor.location:
            return start.location == self._visitor.location
        if self._user.password != self._visitor.password:
            return start.password == self._visitor.password
        return start.title == self._visitor.title


def _kinds(url: str) -> tuple[tuple[object, ...], ...]:
    """Return the kinds of a request: by its parameters, and also by values that may name an action."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    names = (parts.netloc, parts.path, tuple(name for name, _ in pairs))
    return names, (*names, tuple(value for _, value in pairs[:2]))
