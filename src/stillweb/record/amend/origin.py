"""The page that misses come from, open while they are fetched: its cookies, tokens and forms."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin

import httpx
from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Request as BrowserRequest
from playwright.async_api import Response as BrowserResponse

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.context import open_context, plain_user_agent
from stillweb.browser.input.walker import fields_of
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.errors import InfraError
from stillweb.matching.keys import FormBody, read_body
from stillweb.matching.parts import Parts, Where, is_csrf
from stillweb.matching.redaction import replace_fields
from stillweb.matching.rules import Rule, RuleOrigin, Rules
from stillweb.matching.values import fits, shape_of
from stillweb.model import MUTATIONS, Headers, Request, destination, header
from stillweb.record.tokens import ISSUING, is_issued
from stillweb.urls import host_of, wire_url

if TYPE_CHECKING:
    from stillweb.record.crawl.visit import CrawlContext


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS = 8
# Browser fields that do not depend on the request.
_BROWSERS = (
    "user-agent",
    "accept-language",
    "accept-encoding",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
)
# Set for each message.
_REPLACED = frozenset({"host", "content-length", "connection", "cookie", "referer", "transfer-encoding"})


def browser_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a browser sends with any request, from those of a sent one."""
    return {name: fields[name] for name in _BROWSERS if fields.get(name)}


@dataclass(frozen=True, slots=True)
class RequestSender:
    """Sends requests through the recording proxy.

    Attributes:
        timeout: seconds for one request.
    """

    client: httpx.AsyncClient
    timeout: float

    async def send(
        self, request: Request, browsers: Mapping[str, str], referer: str, context: BrowserContext | None
    ) -> tuple[list[str], str]:
        """Send a request and follow redirects; return the requested URLs and why there is no response.

        Args:
            request: request with the client's fields.
            browsers: fields that the browser adds.
            referer: "" for none.
            context: context whose cookies are sent; None for none.
        """
        urls: list[str] = []
        for _ in range(_HOPS):
            urls.append(request.url)
            fields = await _fields(request, browsers, referer, context)
            try:
                async with self.client.stream(
                    request.method,
                    request.url,
                    headers=fields,
                    content=request.raw_body or None,
                    timeout=self.timeout,
                ) as response:
                    async for _chunk in response.aiter_raw():
                        pass
            except httpx.TimeoutException:
                return urls, f"no response within {self.timeout:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return urls, str(error) or type(error).__name__
            location = response.headers.get("location", "")
            if response.status_code not in _REDIRECTS or not location:
                return urls, ""
            target = wire_url(urljoin(request.url, location).partition("#")[0])
            if target in urls or not target.startswith(("http://", "https://")):
                return urls, ""
            request = _redirected(request, response.status_code, target)
        return urls, ""


@asynccontextmanager
async def request_sender(proxy: str, ca: CertAuthority, timeout: float) -> AsyncIterator[RequestSender]:
    """Open a client of a recording proxy."""
    trust = ssl.create_default_context(cafile=str(ca.ca_file))
    async with httpx.AsyncClient(proxy=httpx.Proxy(proxy), verify=trust, trust_env=False) as client:
        client.headers.clear()  # the site must see a browser's fields
        yield RequestSender(client, timeout)


async def _fields(
    request: Request, browsers: Mapping[str, str], referer: str, context: BrowserContext | None
) -> Sequence[tuple[str, str]]:
    own = [(name, value) for name, value in request.headers if name.lower() not in _REPLACED]
    names = {name.lower() for name, _ in own}
    fields = [*((name, value) for name, value in browsers.items() if name not in names), *own]
    if "accept" not in names:
        fields.append(("accept", "*/*"))
    if referer:
        fields.append(("referer", referer))
    cookies = await context.cookies(request.url) if context else []
    if cookies:
        fields.append(("cookie", "; ".join(f"{each['name']}={each['value']}" for each in cookies)))
    return fields


def _redirected(request: Request, status: int, url: str) -> Request:
    """Return the request after a redirect (Fetch §4.4): a GET after 303, and after 301 or 302 to a POST."""
    if (status == 303 and request.method != "HEAD") or (status in (301, 302) and request.method == "POST"):
        body_fields = ("content-type", "content-length", "origin")
        fields = tuple(field for field in request.headers if field[0].lower() not in body_fields)
        return Request("GET", url, fields)
    return Request(request.method, url, request.headers, request.raw_body)


TokenField = tuple[Where, str]

# Fields in which scripts send tokens, by the cookie or meta element where frameworks put them. Ledgers omit
# these fields, and replay ignores them (`collections.meaning`).
_BY_COOKIE = {"XSRF-TOKEN": "x-xsrf-token", "csrftoken": "x-csrftoken"}
_BY_META = {"csrf-token": "x-csrf-token", "_csrf": "x-csrf-token"}
_OTHER_FIELD = "x-csrf-token"  # for cookies of other names, such as Flask-SeaSurf's or OctoPrint's
# Narrower than `names_csrf`: ASP.NET's cookie `__RequestVerificationToken` differs from the token to send.
_TOKEN_NAME = re.compile(r"csrf|xsrf", re.IGNORECASE)


@dataclass(slots=True)
class SentTokens:
    """Token fields that scripts of a page send: by name, or by a value that an answer of the site had.

    Some interfaces refuse the first request. The refusal has a token in a field of its own, and their scripts
    send this field from then on. Examples are Transmission's `X-Transmission-Session-Id` (RPC specification
    §2.3.1) and `DPoP-Nonce` (RFC 9449 §8).
    """

    fields: dict[str, str] = field(default_factory=dict)
    _issued: set[tuple[str, str]] = field(default_factory=set)

    def note_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the fields that the answer to a script's request had."""
        if status in ISSUING:
            self._issued |= {(name.lower(), value) for name, value in headers.items() if is_issued(name)}

    def note_request(self, headers: Mapping[str, str]) -> None:
        """Take the tokens that a request had."""
        for name, value in ((name.lower(), value) for name, value in headers.items()):
            if _TOKEN_NAME.search(name) or (name, value) in self._issued:
                self.fields[name] = value


@dataclass(frozen=True, slots=True)
class LivePage:
    """Current tokens of a page.

    Attributes:
        forms: action and hidden fields of each form.
        metas: contents of `meta` elements by name.
        sent: token fields that the page's own scripts sent, by lower-case name.
    """

    forms: Sequence[tuple[str, Mapping[str, str]]] = ()
    metas: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    sent: Mapping[str, str] = field(default_factory=dict)

    def hidden(self, name: str, url: str) -> str:
        """Return a hidden field's value, preferably of the form with this action; "" if no form has it."""
        target = wire_url(url).partition("?")[0]
        own = [fields for action, fields in self.forms if wire_url(action).partition("?")[0] == target]
        found = (fields[name] for fields in (*own, *(each for _, each in self.forms)) if fields.get(name))
        return next(found, "")

    def meta(self) -> str:
        """Return the token of a meta element; "" if there is none."""
        found = (text for name, text in self.metas.items() if is_csrf(Where.FORM, name, "POST"))
        return next((text for text in found if fits("token", text)), "")

    def fields(self) -> Headers:
        """Return the fields that scripts of the page send with mutations."""
        others = [value for name, value in self.cookies.items() if _TOKEN_NAME.search(name)]
        guessed = {_OTHER_FIELD: unquote(others[0])} if others else {}
        cookies = {
            field: unquote(self.cookies[name]) for name, field in _BY_COOKIE.items() if name in self.cookies
        }
        metas = {field: self.metas[name] for name, field in _BY_META.items() if name in self.metas}
        known = cookies | metas
        return tuple({**(known or guessed), **self.sent}.items())


def token_fields(request: Request, rules: Rules) -> set[TokenField]:
    """Return the fields of a request that hold tokens of its page."""
    if request.method not in MUTATIONS:
        return set()
    parts = Parts.of(request)
    found = {
        (leaf.where, leaf.name)
        for leaf in parts.leaves(frozenset({Where.QUERY, Where.FORM, Where.MULTIPART, Where.JSON}))
        if fits("token", leaf.text)
        and (is_csrf(leaf.where, leaf.name, request.method) or _ruled(rules, parts, leaf.where, leaf.name))
    }
    return found


def with_fresh_tokens(request: Request, tokens: set[TokenField], page: LivePage) -> Request:
    """Return a request with the current tokens of a page; tokens that the page lacks stay."""

    def exchange(where: Where, name: str, value: str) -> str:
        if (where, name) not in tokens:
            return value
        return page.hidden(name, request.url) or page.meta() or value

    made = replace_fields(request, exchange)
    if destination(request.headers) == "document":
        return made
    fresh = page.fields()
    names = {name for name, _ in fresh}
    own = tuple(
        (name, value)
        for name, value in made.headers
        if not _TOKEN_NAME.search(name) and name.lower() not in names
    )
    return replace(made, headers=(*own, *fresh))


def rules_for(before: Request, after: Request, page: str, rules: Rules) -> tuple[Rule, ...]:
    """Return the rules by which replay matches a request whose tokens were replaced.

    Args:
        before: request as missed.
        after: request as sent.
        page: page that issued both values.
        rules: existing rules; fields that they cover need no further rule.
    """
    parts = Parts.of(before)
    wheres = frozenset({Where.FORM, Where.MULTIPART, Where.JSON})
    were, are = (list(each.leaves(wheres)) for each in (parts, Parts.of(after)))
    if [(each.where, each.name) for each in were] != [(each.where, each.name) for each in are]:
        return ()  # redaction may change a text that holds JSON itself: no rule compares these requests
    return tuple(
        Rule(
            old.where,
            old.name,
            shape_of([old.text, new.text]),
            host_of(before.url),
            method=before.method,
            origin=RuleOrigin.LEARNED,
            evidence=f"amended: {page} held another value than when it was recorded",
        )
        for old, new in zip(were, are, strict=True)
        if old.text != new.text
        and is_csrf(old.where, old.name, before.method)
        and not _ruled(rules, parts, old.where, old.name)
    )


def _ruled(rules: Rules, parts: Parts, where: Where, name: str) -> bool:
    return any(
        (rule.where, rule.name) == (where, name)
        and rule.origin is not RuleOrigin.GUESSED
        and rule.applies(parts)
        for rule in rules.volatile
    )


_METAS = """(() => Object.fromEntries([...document.querySelectorAll("meta[name][content]")].map(
  (each) => [each.getAttribute("name"), each.getAttribute("content")])))()"""
_SEND = """([action, fields]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action, acceptCharset: "utf-8", hidden: true });
  for (const [name, value] of fields) {
    const field = document.createElement("textarea");
    Object.assign(field, { name, value });
    form.append(field);
  }
  document.body.append(form);
  HTMLFormElement.prototype.submit.call(form);
}"""


class OriginPage:
    """A page in its own browser context; the bare context without a URL.

    Args:
        url: URL of the page; "" for none.

    Attributes:
        context: context whose cookies are sent.
        fields: fields that its browser sends with any request.
    """

    def __init__(self, browser: Browser, setting: CrawlContext, url: str) -> None:
        self._browser = browser
        self._setting = setting
        self._url = url
        self._page: Page | None = None
        self._activity: Activity | None = None
        self._sent = SentTokens()
        self.context: BrowserContext | None = None
        self.fields: Mapping[str, str] = {}

    async def __aenter__(self) -> OriginPage:
        setting = self._setting
        agent = setting.profile.user_agent or plain_user_agent(self._browser.version)
        self.fields = {
            "user-agent": agent,
            "accept-language": setting.profile.locale,
            "accept-encoding": "gzip, deflate, br, zstd",
        }
        self.context = await open_context(
            self._browser,
            proxy=setting.proxy,
            profile=setting.profile,
            pinning=setting.pinning,
            storage_state=setting.login.state if setting.login else None,
        )
        if self._url:
            self._activity = Activity(self.context)
            self.context.on("request", self._note_tokens)
            self.context.on("response", self._note_issued)
            await self._open(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.context is not None:
            with suppress(PlaywrightError):  # the browser has ended
                await self.context.close()

    async def with_fresh_tokens(
        self, request: Request, referer: str, rules: Rules
    ) -> tuple[Request, tuple[Rule, ...]]:
        """Return a request with the current tokens of its page, and the rules by which replay matches it.

        Args:
            referer: page that sent it; opened if the open page has no token.
        """
        tokens = token_fields(request, rules)
        document = destination(request.headers) == "document"
        if self._page is None or (document and not tokens):
            return request, ()
        made = with_fresh_tokens(request, tokens, await self._look())
        # A referrer policy may reduce the referer to the origin.
        if tokens and made.raw_body == request.raw_body and made.url == request.url and referer != self._url:
            if referer:
                await self._open(referer)
            made = with_fresh_tokens(request, tokens, await self._look())
        return made, rules_for(request, made, self._page.url, rules)

    async def submit(self, request: Request) -> bool:
        """Submit a form from the page, so that the resources of the result are recorded too.

        Returns:
            False if it is not a plain form or there is no page.
        """
        body = read_body(header(request.headers, "content-type"), request.raw_body)
        document = destination(request.headers) == "document"
        if not isinstance(body, FormBody) or not document or not self._page or not self._activity:
            return False
        try:
            fields = [[name.decode(), value.decode()] for name, value in body.fields]
            await self._page.evaluate(_SEND, [request.url, fields])
            await settle(self._page, self._activity)
        except UnicodeDecodeError:
            return False
        except (PlaywrightError, InfraError):  # the proxy knows the outcome
            pass
        return True

    async def _open(self, url: str) -> None:
        """Open a page in the context; the context stays without its cookies and tokens on failure."""
        assert self.context is not None
        assert self._activity is not None
        with suppress(PlaywrightError, InfraError):
            page = self._page or await self.context.new_page()
            answer = await page.goto(url, timeout=1000 * self._setting.page_timeout)
            self._page = page
            await settle(page, self._activity)
            if answer is not None:
                self.fields = {**self.fields, **browser_fields(await answer.request.all_headers())}

    def _note_tokens(self, request: BrowserRequest) -> None:
        if host_of(request.url) == host_of(self._url):
            self._sent.note_request(request.headers)

    def _note_issued(self, response: BrowserResponse) -> None:
        if host_of(response.url) == host_of(self._url):
            self._sent.note_answer(response.status, response.headers)

    async def _look(self) -> LivePage:
        assert self._page is not None
        assert self.context is not None
        cookies = {each["name"]: each["value"] for each in await self.context.cookies(self._page.url)}
        try:
            fields = await fields_of(self._page)
            metas = await (await PageProbe.of(self._page)).evaluate(_METAS)
        except (PlaywrightError, FrameGone, InfraError):
            return LivePage(cookies=cookies, sent=self._sent.fields)
        forms = {id(each.form): each.form for each in fields.values() if each.form}
        hidden = [(form.action, dict(form.hidden)) for form in forms.values()]
        return LivePage(hidden, metas, cookies, self._sent.fields)
