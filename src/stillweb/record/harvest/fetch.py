"""Fetch exchanges as a browser would send them, over plain HTTP/1.1 with kept-alive connections.

The request fields are those that the recording's own browser sent for the same destination. Replay then
matches a browser's request, and the site sees the same client. Only a login sends cookies: a page is what
a first visit shows, as in a crawl. Cookies that a page sets are dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from stillweb import clock
from stillweb.collections.layout import Collection
from stillweb.collections.limits import load_json
from stillweb.errors import LimitExceeded, UpstreamUnreachable
from stillweb.http.codec import decoded_body
from stillweb.http.messages import request_block
from stillweb.matching.transports import is_live
from stillweb.model import (
    BUSY,
    HTML_TYPES,
    Capture,
    Exchange,
    Headers,
    Request,
    Response,
    destination,
    header,
)
from stillweb.record.crawl.fetch import tls_context
from stillweb.record.crawl.scope import location_of
from stillweb.record.harvest.connections import BrokenResponse, ConnectionPool
from stillweb.record.harvest.keeper import LoginKeeper
from stillweb.record.harvest.misses import PlainRequest, is_plain_post, path_form
from stillweb.record.login.renewed import LiveTokens
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.flows import HOP_BY_HOP, end_to_end
from stillweb.record.proxy.upstream import AddressRefused, UpstreamResolver
from stillweb.record.redaction.redactor import Secrets
from stillweb.urls import host_of, origin_of, to_timestamp

WITHOUT_PAGE = (400, 401, 403, 419, 422)
"""Statuses that a POST may get only because no page sent it."""

_ATTEMPTS = 3
_LOGINS = 2  # requests of a page whose login ends meanwhile
_BROKEN = 3  # pages with a server error that lasts, without one that passes, after which
_ATTEMPTS_OF_BROKEN = 2  # is the number of attempts, and other pages do not wait for them
_STRANGERS = (401, 403, 419)
_REFUSALS = (400, 404, 405, 410, 422, 500)
_OF_ONE_TYPE = 20  # requests of one media type that are read for their fields
_LINKED = (
    50  # captures of one form of path that no script requested, after which the others are taken for such
)
_DATA = 2_000  # answers of scripts that are read for the entries of lists
_WAIT = 60.0  # longest Retry-After that is waited for, in seconds
_NOT_SENT = HOP_BY_HOP | {
    *("host", "cookie", "referer", "origin", "range", "content-length", "if-none-match", "if-modified-since"),
    *("authorization", "cache-control", "pragma"),
}


def visitor_fields(headers: Headers) -> Headers:
    """Return the request fields that do not belong to one request, such as cookies and referer."""
    return tuple((name, value) for name, value in headers if name.lower() not in _NOT_SENT)


def recorded_fields(collection: Collection) -> dict[str, Headers]:
    """Return the request fields that the recording's browser sent, by request destination.

    Destinations are those of `stillweb.model.destination`, "" if it is unknown. Fields that belong to one
    request (cookies, referer) are left out.
    """
    found: dict[str, Headers] = {}
    read: Counter[str] = Counter()
    for capture in collection.captures():
        if capture.method != "GET" or capture.request_offset < 0 or len(found) > 8:
            continue
        read[capture.mime] += 1
        if read[capture.mime] > _OF_ONE_TYPE:
            continue
        request = collection.read_request(capture)
        kind = destination(request.headers)
        if kind not in found:
            found[kind] = visitor_fields(request.headers)
    return found


def recorded_posts(
    collection: Collection, is_plain: Callable[[Request], bool] = is_plain_post
) -> Iterator[PlainRequest]:
    """Yield the POST requests that scripts sent and that may be sent without their page, each once."""
    seen: set[str] = set()
    for capture in collection.captures():
        if capture.method != "POST" or capture.request_offset < 0:
            continue
        found = _of_script(collection.read_request(capture), is_plain)
        if found is not None and found.key not in seen:
            seen.add(found.key)
            yield found


def _of_script(request: Request, is_plain: Callable[[Request], bool]) -> PlainRequest | None:
    """Return a request of a script, None for any other, and for a POST that needs its page."""
    # Over http, browsers say only of documents and their resources what they are for.
    if destination(request.headers) not in ("", "empty"):
        return None
    if request.method != "GET" and not is_plain(request):
        return None
    page, fields = header(request.headers, "referer"), visitor_fields(request.headers)
    body = None if request.method == "GET" else request.raw_body
    return PlainRequest(request.method, request.url, "empty", page, fields, body)


def recorded_data(
    collection: Collection, *, unsafe: bool, is_plain: Callable[[Request], bool] = is_plain_post
) -> Iterator[tuple[PlainRequest, Any]]:
    """Yield the requests of scripts that were answered with data, each once, and answers of JSON.

    The answer is None if it is plain text, Markdown or XML.

    Args:
        unsafe: whether requests by POST count, if they may be sent without their page.
        is_plain: returns whether a POST may be.
    """
    seen: set[str] = set()
    others: Counter[str] = Counter()  # by form of path: captures in a row that no script requested
    for capture in collection.captures():
        methods = ("GET", "POST") if unsafe else ("GET",)
        if capture.method not in methods or capture.status != HTTPStatus.OK or capture.request_offset < 0:
            continue
        is_json = capture.mime.endswith("json")
        if not (is_json or capture.mime.endswith(("/plain", "markdown", "xml"))) or len(seen) >= _DATA:
            continue
        form = path_form(urlsplit(capture.url).path, "{}")
        if others[form] >= _LINKED:
            continue
        found = _of_script(collection.read_request(capture), is_plain)
        if found is None:
            others[form] += 1
            continue
        others[form] = 0
        if found.key in seen or is_live(found.url):
            continue
        seen.add(found.key)
        with suppress(ValueError, LimitExceeded):
            body = decoded_body(collection.read_capture(capture).response) or b"" if is_json else b""
            yield found, load_json(body) if is_json else None


def recorded_requests(collection: Collection) -> Iterator[PlainRequest]:
    """Yield the GET requests with a query, or a typed segment, that scripts sent, each URL once.

    Requests of one path and the same parameters are taken to be of the same kind as the first of them.
    """
    kinds: dict[tuple[str, tuple[str, ...]], dict[str, Capture]] = {}
    for capture in collection.captures():
        request = PlainRequest("GET", capture.url, "empty", "")
        if is_data(capture) and (pairs := request.pairs):
            kind = (request.place, tuple(name for name, _ in pairs))
            kinds.setdefault(kind, {}).setdefault(capture.url, capture)
    for similar in kinds.values():
        first = next(iter(similar.values()))
        headers = collection.read_request(first).headers
        if not _is_of_script(first, headers):
            continue
        page = header(headers, "referer")
        fields = visitor_fields(headers)
        for url in similar:
            yield PlainRequest("GET", url, "empty", page, fields)


def opening_requests(collection: Collection) -> Iterator[PlainRequest]:
    """Yield the GET requests that scripts of pages sent, in the order of their recording, each URL once."""
    seen: set[str] = set()
    for capture in collection.captures():
        if not is_data(capture) or capture.url in seen:
            continue
        if len(seen) >= _DATA:
            return
        seen.add(capture.url)
        request = collection.read_request(capture)
        if _is_of_script(capture, request.headers) and (found := _of_script(request, is_plain_post)):
            yield found


def is_data(capture: Capture) -> bool:
    """Return whether a capture is a recorded GET request that was answered with text."""
    is_text = capture.mime.endswith(("json", "xml", "html", "plain")) and capture.status == HTTPStatus.OK
    return is_text and capture.method == "GET" and capture.request_offset >= 0


def _is_of_script(capture: Capture, headers: Headers) -> bool:
    """Return whether a script certainly sent a request: over http, browsers say so of no request."""
    return destination(headers) == "empty" or (capture.mime.endswith("json") and not destination(headers))


_OF_BODY = frozenset(("content-length", "content-type", "origin"))


class _Host:
    """Politeness towards one host: how many requests at a time, and when the next may start.

    A site that answers 5xx, 429 or too late gets half as many requests at a time; each further answer raises
    the limit again (additive increase, multiplicative decrease; RFC 5681 §3.1).
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = float(most)
        self._active = 0
        self._changed = asyncio.Condition()
        self.not_before = 0.0
        self.interval = 0.0
        self._lasting = 0

    async def __aenter__(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._active < max(1, int(self._limit)))
            self._active += 1

    async def __aexit__(self, *_: object) -> None:
        async with self._changed:
            self._active -= 1
            self._changed.notify_all()

    @property
    def has_broken_pages(self) -> bool:
        """Whether server errors of this host come from its pages, and not from too many requests."""
        return self._lasting >= _BROKEN

    def note_last(self, status: int, attempts: int) -> None:
        """Take the status after all attempts: a server error that lasts is the page's own."""
        if is_trouble(status):
            self._lasting += 1
        elif attempts > 1:
            self._lasting = 0

    def note(self, status: int | None) -> None:
        """Adapt the limit to a response's status, None if it came too late."""
        if status is not None and status not in BUSY and self.has_broken_pages:
            return
        if status is None or is_trouble(status):
            self._limit = max(1.0, self._limit / 2)
        else:
            self._limit = min(self._most, self._limit + 1 / self._limit)


def is_trouble(status: int) -> bool:
    """Return whether a status may come from too many requests at a time rather than from the page."""
    return status >= 500 or status in BUSY


@dataclass(slots=True)
class PageFetcher:
    """Fetches URLs as exchanges; an asynchronous context manager.

    Attributes:
        options: how the sites are reached.
        fields: request fields by destination, see `recorded_fields`.
        per_host: connections to one host at a time.
        interval: seconds between the starts of two requests to one host.
        max_body: bytes; a longer body raises `TooLarge`.
        cookies: cookies of the visit, by host.
        keeper: notices that the login of the cookies has ended; None without one.
        tokens: of the login, which scripts send in header fields.
        data: URLs of data, which may be the user's where the start page is the same for all.
    """

    options: RecordOptions
    fields: Mapping[str, Headers]
    per_host: int = 8
    interval: float = 0.0
    max_body: int = 32 << 20
    cookies: httpx.Cookies = field(default_factory=httpx.Cookies)
    keeper: LoginKeeper | None = None
    tokens: LiveTokens = field(default_factory=LiveTokens)
    data: tuple[str, ...] = ()
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _hosts: dict[str, _Host] = field(default_factory=dict)
    _pool: ConnectionPool | None = None
    _start: str = ""
    _generation: int = 0

    async def __aenter__(self) -> Self:
        options = self.options
        resolver = UpstreamResolver(options.resolve, allow_private=options.allow_private)
        self._pool = ConnectionPool(resolver, tls_context(options.upstream_ca), 4 * self.per_host)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pool is not None
        self._closed.set()
        self._pool.close()

    async def open_visit(self, start: str, secrets: Secrets | None) -> None:
        """Open a start page, and keep its cookies for the further pages of the visit."""
        exchange = await self._fetch(start)
        if self.keeper is not None:
            self.keeper.secrets = secrets
            exchange = await self._check_login(self.keeper, start, exchange)
        self.keep_cookies(exchange)
        if secrets is not None:
            secrets.redact(exchange, None)  # learns the visit's cookies before anything is written

    async def _check_login(self, keeper: LoginKeeper, start: str, exchange: Exchange) -> Exchange:
        """Learn in what the user differs from a visitor; log in again if a kept login has ended."""
        for url in (start, *self.data):
            self._start = url
            seen = exchange if url == start else await self._fetch_start()
            if keeper.shared.has_ended(seen) and await keeper.renew_token(keeper.generation):
                self.cookies, self._generation = httpx.Cookies(keeper.cookies), keeper.generation
                exchange, seen = await self._fetch(start), await self._fetch_start()
            visitor = replace(self, cookies=httpx.Cookies(), tokens=LiveTokens())
            other = await visitor._fetch_start()
            keeper.learn(seen, other)
            if keeper.sees_difference:
                break
        keeper.shared.note(seen, other)
        return exchange

    async def fetch(
        self,
        url: str,
        destination: str = "document",
        *,
        referer: str = "",
        body: bytes | None = None,
        fields: Headers = (),
        method: str = "",
    ) -> Exchange:
        """Return the exchange of a GET request, or of a POST with form data; redirects are not followed.

        `fields` replace request fields of the same names. `method` is for others than GET and POST.

        Raises:
            UpstreamUnreachable: if the site does not answer, or stays busy. Other server errors are retried,
                and returned if they last. Also if the login has ended, and the request cannot be repeated.
            TooLarge: if the body is longer than `max_body`.
        """

        async def fetch() -> Exchange:
            return await self._fetch(url, destination, referer, body, fields, method)

        keeper = self.keeper
        if keeper is not None and self._has_token(fields):
            return await self._fetch_with_token(fetch, keeper)
        if keeper is None or not self.cookies:
            return await fetch()
        for _ in range(_LOGINS):
            if keeper.why or keeper.refuses(url):
                raise UpstreamUnreachable(f"{url}: {keeper.why or 'requests like it end the login'}")
            if (generation := keeper.generation) != self._generation:
                self.cookies, self._generation = httpx.Cookies(keeper.cookies), generation
            exchange = await fetch()
            if not keeper.is_like_visitors(exchange):
                return exchange
            with_login = replace(self, cookies=httpx.Cookies(keeper.cookies))
            if await keeper.holds(generation, with_login._fetch_start):
                return exchange
            if exchange.request.method != "GET":
                break
        raise UpstreamUnreachable(f"{url}: {keeper.why or 'the login ended meanwhile'}")

    async def fetch_plain(self, request: PlainRequest) -> Exchange:
        """Return the exchange of a request, with the token that scripts send to its host; see `fetch`."""
        tokens = self.tokens.fields_for(request.url) if request.destination == "empty" else ()
        return await self.fetch(
            request.url,
            request.destination,
            referer=request.referer,
            body=request.body,
            fields=(*tokens, *request.fields),
            method=request.method,
        )

    def _has_token(self, fields: Headers) -> bool:
        return any(self.tokens.replaced(value) != value for _, value in fields)

    async def _fetch_with_token(
        self, fetch: Callable[[], Awaitable[Exchange]], keeper: LoginKeeper
    ) -> Exchange:
        """Return the exchange of a request that shows a token; log in again if it is no longer valid."""
        generation = keeper.generation
        exchange = await fetch()
        if exchange.response.status != HTTPStatus.UNAUTHORIZED or not await keeper.renew_token(generation):
            return exchange
        exchange = await fetch()
        keeper.note_token(is_valid=exchange.response.status != HTTPStatus.UNAUTHORIZED)
        return exchange

    async def _fetch_start(self) -> Exchange:
        """Return the page, or the data, by which the keeper knows the login."""
        if self._start not in self.data:
            return await self._fetch(self._start)
        return await self._fetch(self._start, "empty", fields=self.tokens.fields_for(self._start))

    async def _fetch(
        self,
        url: str,
        destination: str = "document",
        referer: str = "",
        body: bytes | None = None,
        fields: Headers = (),
        method: str = "",
    ) -> Exchange:
        host = self._host(url)
        for attempt in range(1, _ATTEMPTS + 1):
            async with host:
                await self._wait_for(host)
                try:
                    request = self._request(url, destination, referer, body, fields)
                    exchange = await self._send(replace(request, method=method or request.method))
                except TimeoutError:
                    host.note(None)
                    raise UpstreamUnreachable(f"{url}: no answer in time") from None
                status = exchange.response.status
                host.note(status)
                if status in BUSY or (is_trouble(status) and not host.has_broken_pages):
                    host.not_before = clock.monotonic() + _retry_after(exchange.response)
            is_last = attempt == (_ATTEMPTS_OF_BROKEN if host.has_broken_pages else _ATTEMPTS)
            if not is_trouble(status) or (is_last and status not in BUSY):
                host.note_last(status, attempt)
                return exchange
        raise UpstreamUnreachable(f"{url}: status {status} {_ATTEMPTS} times")

    async def _wait_for(self, host: _Host) -> None:
        now = clock.monotonic()
        start = max(now, host.not_before)
        host.not_before = start + max(self.interval, host.interval)
        if start > now:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), start - now)

    def keep_distance(self, url: str, seconds: float) -> None:
        """Let at least some seconds pass between two requests to a URL's host."""
        self._host(url).interval = seconds

    def _host(self, url: str) -> _Host:
        return self._hosts.setdefault(host_of(url), _Host(self.per_host))

    def keep_cookies(self, exchange: Exchange) -> None:
        """Take the cookies that a response sets."""
        request = httpx.Request("GET", exchange.request.url)
        response = httpx.Response(
            exchange.response.status, headers=list(exchange.response.headers), request=request
        )
        self.cookies.extract_cookies(response)

    def _request(
        self, url: str, destination: str, referer: str, body: bytes | None, replaced: Headers
    ) -> Request:
        fields = next(
            (self.fields[each] for each in (destination, "", "document") if each in self.fields), ()
        )
        same_origin = bool(referer) and origin_of(referer) == origin_of(url)
        sent = [("Host", url.partition("://")[2].partition("/")[0])]
        if body is not None:
            sent.append(("Content-Length", str(len(body))))
        sent += [
            (name, _site(name, value, same_origin))
            for name, value in fields
            if body is None or name.lower() not in _OF_BODY  # scripts give GET requests a type, too
        ]
        if body is not None:
            sent.append(("Origin", origin_of(referer)))
        if body:
            sent.append(("Content-Type", "application/x-www-form-urlencoded"))
        if referer:
            sent.append(("Referer", referer if same_origin else f"{origin_of(referer)}/"))
        others = {name.lower(): (name, self.tokens.replaced(value)) for name, value in replaced}
        sent = [others.pop(name.lower(), (name, value)) for name, value in sent]
        sent += others.values()
        if cookie := self._cookie(url):
            sent.append(("Cookie", cookie))
        return Request("GET" if body is None else "POST", url, tuple(sent), body or b"")

    def _cookie(self, url: str) -> str:
        if not self.cookies:
            return ""
        request = httpx.Request("GET", url)
        self.cookies.set_cookie_header(request)
        return str(request.headers.get("cookie", ""))

    async def _send(self, request: Request) -> Exchange:
        assert self._pool is not None
        url, started = request.url, clock.now()
        try:
            parts = urlsplit(url)
            received = await self._pool.send(
                parts.scheme,
                parts.hostname or "",
                parts.port or (443 if parts.scheme == "https" else 80),
                request_block(request),
                max_body=self.max_body,
                repeats=request.method == "GET",
            )
        except AddressRefused as error:
            raise UpstreamUnreachable(f"{url}: {error}", hint=error.hint) from error
        except TimeoutError:
            raise
        except (BrokenResponse, OSError, ValueError) as error:
            raise UpstreamUnreachable(f"{url}: {str(error) or type(error).__name__}") from error
        sent = (
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in request.headers
        )
        return Exchange(
            replace(request, headers=end_to_end(sent)),
            Response(received.status, received.reason, end_to_end(received.fields), received.body),
            to_timestamp(started),
            remote_ip=received.address,
        )


def _site(name: str, value: str, same_origin: bool) -> str:
    """Return a request field's value for a request from a page of the same origin, or from none."""
    if name.lower() == "sec-fetch-site" and value in ("none", "same-origin"):
        return "same-origin" if same_origin else "none"
    return value


def _retry_after(response: Response) -> float:
    """Return the seconds to wait before the next request (RFC 9110 §10.2.3), one second if none are given."""
    value = header(response.headers, "retry-after").strip()
    try:
        seconds = float(value) if value else 1.0
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - clock.now()).total_seconds()
        except (TypeError, ValueError):
            seconds = 1.0
    return min(max(seconds, 0.1), _WAIT)


def refuses_strangers(exchange: Exchange) -> bool:
    """Return True if a response may depend on cookies that a visitor of another page has."""
    return exchange.response.status in _STRANGERS or location_of(exchange) == exchange.request.url


def is_refusal(exchange: Exchange) -> bool:
    """Return whether a site refuses a request for what it says, and not for who sends it or when."""
    return exchange.response.status in _REFUSALS


def is_found(exchange: Exchange) -> bool:
    """Return whether a site answers a request with success."""
    return exchange.response.status == HTTPStatus.OK


def is_file(exchange: Exchange) -> bool:
    """Return False for error pages, and for the page that some sites send for any unknown path."""
    return is_found(exchange) and exchange.response.mime not in HTML_TYPES
