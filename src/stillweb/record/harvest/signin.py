"""The login of a harvest, of filling walks and of forms: a new one, or that of the stage before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.matching.transports import is_live
from stillweb.model import Headers
from stillweb.record.harvest.fetch import PageFetcher, is_data
from stillweb.record.harvest.keeper import LoginKeeper, SharedLogin
from stillweb.record.login.renewed import LiveTokens, keep_placeholders, knowing_login
from stillweb.record.login.run import LoginSession, log_in_separately
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.recording import pinning_of
from stillweb.record.redaction.redactor import Secrets

_RECORDED = 500  # requests that are looked at for data of the user
_PROBES = 4  # data that is requested as a visitor, too


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of a login, or a stranger, who fetches pages.

    Attributes:
        record: options that redact the secrets of the login.
        data: URLs of data, which may be the user's where the start page is the same for all.
    """

    record: RecordOptions
    cookies: httpx.Cookies
    tokens: LiveTokens
    data: tuple[str, ...] = ()
    keeper: LoginKeeper | None = None

    def fetcher(self, fields: Mapping[str, Headers], per_host: int = 8, interval: float = 0.0) -> PageFetcher:
        """Return a fetcher, see its attributes."""
        fetcher = PageFetcher(self.record, fields, per_host, interval)
        fetcher.cookies, fetcher.keeper = self.cookies, self.keeper
        fetcher.tokens, fetcher.data = self.tokens, self.data
        return fetcher


async def signed_in(
    collection: Collection,
    ca: CertAuthority,
    login: Login | None,
    options: RecordOptions,
    shared: SharedLogin,
) -> Visitor:
    """Return the user of a login, which may be a kept one. Only a login by steps can be repeated."""
    state, options = await signed_in_state(collection, ca, login, options, shared)
    if login is None:
        return Visitor(options, httpx.Cookies(), LiveTokens())
    tokens = LiveTokens.of(collection, state)
    data: dict[str, str] = {}
    for capture in islice(filter(is_data, collection.captures()), _RECORDED):
        if capture.mime.endswith("json") and not is_live(capture.url):
            data.setdefault(capture.url.partition("?")[0], capture.url)

    async def renew(secrets: Secrets | None) -> httpx.Cookies:
        shared.state = None
        state, known = await signed_in_state(collection, ca, login, options, shared)
        if secrets is not None:
            secrets.hand_on(keep_placeholders(collection, login, state))
            secrets.learn_given(known.secrets.given)
        tokens.renew(collection, state)
        return cookies_of(state)

    cookies = cookies_of(state)
    keeper = LoginKeeper(renew if login.kind == "steps" else None, cookies, shared=shared)
    return Visitor(options, cookies, tokens, tuple(islice(data.values(), _PROBES)), keeper)


async def signed_in_state(
    collection: Collection,
    ca: CertAuthority,
    login: Login | None,
    options: RecordOptions,
    shared: SharedLogin,
) -> tuple[Mapping[str, Any], RecordOptions]:
    """Return the storage state of a login, {} without one, and options that redact its secrets."""
    if login is None:
        return {}, options
    if shared.state is not None:
        session = LoginSession(login, shared.state)
    else:
        pages = collection.page_list()
        seed = next((page.url for page in pages if page.seed), pages[0].url if pages else "")
        pinned = pinning_of(collection.manifest())
        session = await log_in_separately(ca, login, pinned, seed, options, executable=None)
    if login.kind == "steps":
        shared.state = session.state
    return session.state or {}, knowing_login(options, collection, session)


def cookies_of(state: Mapping[str, Any] | None) -> httpx.Cookies:
    """Return the cookies of a storage state in Playwright's format."""
    cookies = httpx.Cookies()
    for each in (state or {}).get("cookies", ()):
        cookies.set(each["name"], each["value"], domain=each["domain"], path=each.get("path", "/"))
    return cookies
