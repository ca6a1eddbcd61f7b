"""Choice of the captures of a request key that may answer a request, in the order of preference.

A key is method, URL and body; a server may look at more. The response's `Vary` names what it looked at, and
the pack keeps a digest of the recorded values (docs/decisions/0017-vary-and-authorization.md):

- a field that the *page* sets (`HX-Request`, `RSC`, `Authorization`) has meaning: a capture with another
  value does not answer, and for the fields in `MEANT` not even where `Vary` is silent;
- a field that the *browser* sets (`User-Agent`, `Origin`, `Sec-*`) is only a preference, because browsers,
  profiles and crawlers differ in them;
- `Cookie` is the weakest: it identifies a session's state, and epochs do that better. A capture recorded with
  other cookies may answer, and the ledger says so.

Where `Vary` is silent on a field that the page set, the server states that the response does not depend on it
(RFC 9111 §4.1). Many servers state so wrongly. The field then excludes nothing, but of several captures those
that agree with the request in most page-set fields come first.

Redirects that would loop yield to other captures. So do responses of a media type that the request ranks
lower: one URL may be a page and, to a script, JSON.

One URL may have other versions in other visits (a script of a site that starts up). The recorded Referer says
for which page a capture was made (`of_visit`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol
from urllib.parse import urljoin

from stillweb.matching.keys import request_key
from stillweb.matching.ranges import other_unit, recorded_span, requested_span
from stillweb.model import BUSY, MUTATIONS, Headers, Request, header
from stillweb.urls import wire_url

VARY_SIZE = 8

Varies = tuple[tuple[str, bytes], ...]
"""Request fields that a response depends on: lower-case names, each with the digest of its value."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One response of a pack.

    Attributes:
        key: request key.
        timestamp: 14 digits UTC.
        epoch: number of mutations (POST, PUT, PATCH, DELETE) recorded before it.
        order: position in recorded order; the row.
        head: status line and fields, without Content-Length and the blank line.
        body: as recorded, content encoding kept.
        encoding: content codings, "" if none.
        mime: without parameters.
        body_sha256: 32 bytes.
        varies: lower-case names of the request fields that the response depends on, each with `vary_digest`
            of the recorded request's value.
        referer: `vary_digest` of the recorded Referer, b"" without one and for navigations.
    """

    key: bytes
    method: str
    url: str
    timestamp: str
    status: int
    epoch: int
    order: int
    head: memoryview
    body: memoryview
    encoding: str
    mime: str
    body_sha256: bytes
    varies: tuple[tuple[str, bytes], ...] = ()
    referer: bytes = b""


def vary_digest(value: str) -> bytes:
    """Return the digest of a request field's value for `varies`; an absent field counts as ""."""
    return blake2b(value.strip().encode("utf-8", "surrogatepass"), digest_size=VARY_SIZE).digest()


def noted_digest(name: str, headers: Headers) -> bytes:
    """Return the digest that `varies` has under a name."""
    value = header(headers, "range" if name == OTHER_RANGE else name)
    return vary_digest(value if name != OTHER_RANGE or other_unit(value) else "")


_QUALITY = re.compile(r"[01](?:\.[0-9]{0,3})?")
_CONTENT_TYPE = re.compile(rb"\r\ncontent-type:[ \t]*([^\r\n]*)", re.IGNORECASE)
_UNHEEDED = frozenset({"q", "charset"})  # browsers read every charset


def rank(accept: str, mime: str) -> tuple[float, int]:
    """Return the weight of a media type and how exactly it is named: 2 itself, 1 its type, 0 any, -1 not."""
    wanted = {mime: 2, f"{mime.partition('/')[0]}/*": 1, "*/*": 0}
    closest, weight = -1, 0.0
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        if wanted.get(name, -1) > closest:
            closest, weight = wanted[name], _weight(parameters)
    return weight, closest


def excludes(accept: str, mime: str) -> bool:
    """Return True if `Accept` excludes a media type; an absent field and browsers' own exclude none."""
    if not accept or not mime or ("*/*" in accept and "q=0" not in accept):
        return False
    return rank(accept, mime)[0] == 0


def other_parameters(accept: str, content_type: str) -> bool:
    """Return True if `Accept` names a response's media type with another parameter than the response states.

    Such as `odata=verbose`; a parameter that the response does not state excludes nothing.
    """
    if "=" not in accept or "*/*" in accept:
        return False
    mime, *parameters = content_type.lower().split(";")
    stated = _parameters(parameters)
    items = [item.split(";") for item in accept.lower().split(",")]
    wanted = [_parameters(parameters) for name, *parameters in items if name.strip() == mime.strip()]
    return bool(wanted) and all(
        any(stated.get(name, value) != value for name, value in each.items()) for each in wanted
    )


def _parameters(items: list[str]) -> dict[str, str]:
    pairs = (item.partition("=") for item in items)
    return {
        name.strip(): value.strip().strip('"') for name, _, value in pairs if name.strip() not in _UNHEEDED
    }


def _weight(parameters: list[str]) -> float:
    quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return float(quality) if _QUALITY.fullmatch(quality) else 0.0


MEANT = frozenset(
    (
        # The sender of the request. Cookies identify the client too, but each browser has its own, and replay
        # repeats the responses that set them.
        *("authorization", "x-api-key", "x-auth-token", "x-access-token"),
        # The procedure that is called, or the method that is meant, if the URL does not say.
        *("soapaction", "x-amz-target", "next-action"),
        *("x-http-method-override", "x-http-method", "x-method-override"),
        # The effect of a method: where to (RFC 4918 §10), and what it returns (RFC 7240, PostgREST).
        *("destination", "depth", "overwrite", "prefer", "accept-profile", "content-profile"),
        # The version of an API.
        *("api-version", "x-api-version", "accept-version", "x-github-api-version"),
        # Frameworks request a part of a page under the page's own URL with these; servers forget to list them
        # in Vary.
        *("x-requested-with", "rsc", "turbo-frame", "x-pjax", "x-pjax-container"),
        *("hx-request", "hx-boosted", "hx-history-restore-request", "hx-target"),
        *("x-inertia", "x-inertia-partial-component", "x-inertia-partial-data", "x-inertia-partial-except"),
    )
)  # fmt: skip
"""Names in lower case."""

PREFERRED = "?"
"""Prefix of the name of a preferred field; no field name contains it (RFC 9110 §5.6.2)."""

OTHER_RANGE = "range/"
"""Name under which a `Range` of another unit than bytes is noted; no field has it."""

# Fields that browsers send on their own, and ranges and conditions, which other code handles.
_BROWSERS_OWN = frozenset(
    (
        *("accept", "accept-charset", "accept-encoding", "accept-language", "cookie", "dnt", "origin"),
        *("referer", "save-data", "upgrade-insecure-requests", "user-agent"),
        *("device-memory", "downlink", "dpr", "ect", "rtt", "viewport-width", "width"),  # old client hints
        *("if-modified-since", "if-none-match", "if-range", "range"),
    )
)  # fmt: skip
_BROWSERS_PREFIX = "sec-"  # no script can set these (Fetch §2.2.2)

# Fields without meaning for the response, though a recorded request may have them.
_NOT_THE_PAGES = frozenset(
    (
        # About the connection and the message; type and coding of a body are compared with the body.
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host"),
        *("http2-settings", "keep-alive", "max-forwards", "te", "trailer", "transfer-encoding", "upgrade"),
        # Set by browsers, for caches and for themselves.
        *("alt-used", "cache-control", "if-match", "if-unmodified-since", "last-event-id"),
        *("ping-from", "ping-to", "pragma", "priority", "purpose", "service-worker"),
        *("service-worker-navigation-preload", "x-client-data"),
        *("x-devtools-emulate-network-conditions-client-id", "x-moz", "x-purpose"),
        # Set by proxies and crawlers.
        *("cdn-loop", "client-ip", "forwarded", "from", "true-client-ip", "via", "x-real-ip"),
        # Trace identifiers.
        *("b3", "baggage", "correlation-id", "elastic-apm-traceparent", "newrelic", "request-context"),
        *("request-id", "sentry-trace", "traceparent", "tracestate", "uber-trace-id", "x-amzn-trace-id"),
        *("x-cloud-trace-context", "x-correlation-id", "x-request-id", "x-trace-id"),
        # Proof that the page was loaded before: a second order from the same page is still the second one.
        *("csrf-token", "idempotency-key", "x-csrf-token", "x-csrftoken", "x-xsrf-token"),
    )
)  # fmt: skip
_NOT_THE_PAGES_PREFIXES = ("cf-", "proxy-", "x-b3-", "x-datadog-", "x-forwarded-", "x-newrelic-")


def browsers_own(name: str) -> bool:
    """Return True if browsers set a field on their own. The name is in lower case."""
    return name in _BROWSERS_OWN or name.startswith(_BROWSERS_PREFIX)


def page_set(name: str) -> bool:
    """Return True if only a page can have set a field, as far as known. The name is in lower case."""
    return not (browsers_own(name) or name in _NOT_THE_PAGES or name.startswith(_NOT_THE_PAGES_PREFIXES))


_WHEN = re.compile(rb"(?<=\r\n)(?:date|age):[^\r\n]*(?:\r\n|$)", re.IGNORECASE)
_MANY = 4  # below that, comparing costs more than reading


def timeless(entry: Entry) -> bytes:
    """Return the head of a response without `Date` and `Age`."""
    return _WHEN.sub(b"", bytes(entry.head))


def first_of_alike(rows: Sequence[int], entry: Callable[[int], Entry]) -> Sequence[int]:
    """Return the rows without those that repeat the response of an earlier row to an equivalent request.

    A style sheet of a hundred recorded pages has a hundred captures; one of them is enough.

    Args:
        rows: of one request key.
        entry: returns the response in a row.
    """
    if len(rows) < _MANY:
        return rows
    firsts: dict[tuple[object, ...], int] = {}
    for row in sorted(rows, key=lambda row: entry(row).order):
        each = entry(row)
        says = (each.method, each.url, each.status, each.mime, each.body_sha256, each.varies, timeless(each))
        firsts.setdefault(says, row)
    return tuple(firsts.values())


_ABSENT = vary_digest("")
# Weighed separately: Accept as media types, Cookie within an epoch.
_NO_PREFERENCE = frozenset({"cookie", "range", "if-range", "if-none-match", "if-modified-since"})


class RequestFields:
    """A request, for comparison with captures.

    Args:
        counts: returns False for a field that a rule declares volatile.
    """

    def __init__(self, request: Request, counts: Callable[[str], bool]) -> None:
        self._request = request
        self._counts = counts
        self._digests: dict[str, bytes] = {}
        self._accept = header(request.headers, "accept")
        sent = {name.lower() for name, value in request.headers if value.strip()}
        self._meant = sorted(MEANT & sent)
        if "range" in sent and other_unit(header(request.headers, "range")):
            self._meant.append(OTHER_RANGE)

    def other_meaning(self, entry: Entry) -> str:
        """Return why a capture answers a request with another meaning; "" if it does not."""
        varied = set()
        for noted, digest in entry.varies:
            name = noted.removeprefix(PREFERRED)
            # Packs that were sealed before a field got its meaning note it as preferred.
            if browsers_own(name) or (noted != name and name not in MEANT):
                continue
            varied.add(name)
            if digest != self._digest(name) and self._counts(name):
                return f"recorded with another {self._spelling(name)}"
        # A client that sends a credential where none was recorded may be a user, and expect that user's
        # response.
        for name in self._meant:
            if name not in varied and self._counts(name):
                return f"recorded without {self._spelling(name)}"
        if not 200 <= entry.status < 300 or not self._excludes(entry):
            return ""
        # Sealing notes the field if the server gave this response to this very value.
        ignored = ("accept", self._digest("accept")) in entry.varies
        return "" if ignored else f"recorded as {entry.mime}, which this request does not accept"

    def _excludes(self, entry: Entry) -> bool:
        if excludes(self._accept, entry.mime):
            return True
        found = _CONTENT_TYPE.search(bytes(entry.head)) if ";" in self._accept else None
        return found is not None and other_parameters(self._accept, found[1].decode("latin-1"))

    def page_differences(self, entries: list[Entry]) -> list[int]:
        """Return for each capture the number of page-set fields in which its recorded request differs.

        A field that one capture notes and another does not was absent from the other's request: sealing notes
        all.
        """
        noted = [
            {name.removeprefix(PREFERRED): digest for name, digest in entry.varies if not browsers_own(name)}
            for entry in entries
        ]
        if not any(noted):
            return [0] * len(entries)
        # A field with equal values in all captures does not distinguish them.
        differing = [
            name
            for name in sorted(set().union(*noted))
            if len({each.get(name, _ABSENT) for each in noted}) > 1 and self._counts(name)
        ]
        return [sum(each.get(name, _ABSENT) != self._digest(name) for name in differing) for each in noted]

    def browser_differences(self, entry: Entry) -> int:
        """Return the number of varied fields of the browser's own in which the recorded request differs."""
        return sum(
            browsers_own(name)
            and name not in _NO_PREFERENCE
            and digest != self._digest(name)
            and self._counts(name)
            for name, digest in entry.varies
        )

    def same_cookies(self, entry: Entry) -> bool:
        """Return True if a capture does not depend on cookies, or was recorded with these."""
        return all(digest == self._digest(name) for name, digest in entry.varies if name == "cookie")

    def _digest(self, name: str) -> bytes:
        if name not in self._digests:
            self._digests[name] = noted_digest(name, self._request.headers)
        return self._digests[name]

    def _spelling(self, name: str) -> str:
        name = name.rstrip("/")
        return next((each for each, _ in self._request.headers if each.lower() == name), name)


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPING_METHOD = frozenset({307, 308})  # RFC 9110 §15.4.8, §15.4.9
_LOCATION = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
_MAX_HOPS = 8
# A range that the site could not satisfy says nothing about others; replay cuts them from a complete body.
_UNSATISFIED, _SATISFIED = 416, (200, 206)


class Rows(Protocol):
    """The part of a pack that this module uses."""

    def lookup(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key, in recorded order."""

    def entry(self, row: int) -> Entry:
        """Return the answer in a row."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A capture that may answer; `same_cookies` is True if it was recorded with the request's cookies."""

    row: int
    entry: Entry
    same_cookies: bool = True


def usable(
    request: Request, rows: Sequence[int], index: Rows, counts: Callable[[str], bool]
) -> tuple[list[Candidate], str]:
    """Return the captures in some rows that may answer a request, in recorded order.

    Args:
        rows: of one key.
        index: that has the rows.
        counts: returns False for a field that a rule declares volatile.

    Returns:
        The captures, and if none is left, why the first was refused.
    """
    found = [Candidate(row, index.entry(row)) for row in rows]
    fields = RequestFields(request, counts)
    satisfied = any(candidate.entry.status in _SATISFIED for candidate in found)
    answering = [
        candidate
        for candidate in found
        if not _refuses(request, fields, candidate.entry)
        and not (satisfied and candidate.entry.status == _UNSATISFIED)
    ]
    if len(answering) > 1:
        answering = _without_loops(answering, request, index)
        answering = _fewest(answering, fields.page_differences([candidate.entry for candidate in answering]))
        answering = _as_accepted(answering, request)
        answering = _fewest(answering, _differences(fields, answering))
    answering = [c if fields.same_cookies(c.entry) else Candidate(c.row, c.entry, False) for c in answering]
    answering.sort(key=lambda candidate: candidate.entry.order)
    if answering:
        return answering, ""
    return answering, next(
        filter(None, (_refuses(request, fields, candidate.entry) for candidate in found)), ""
    )


def same_answer(candidates: Iterable[Candidate]) -> bool:
    """Return True if all captures hold the same response, ignoring its time."""
    first, *others = (candidate.entry for candidate in candidates)
    if any((e.status, e.body_sha256) != (first.status, first.body_sha256) for e in others):
        return False
    head = timeless(first) if others else b""
    return all(timeless(entry) == head for entry in others)


def is_navigation(request: Request) -> bool:
    """Return True for a navigation of a tab, and of a frame if the user started it.

    A browser stays on its page if the response is 204 (HTML, navigate, step "204"). The first document of a
    frame is not a navigation in this sense: nothing would be left open. Browsers send `Sec-Fetch-*` to
    https only; on http, `Upgrade-Insecure-Requests` marks navigations of tabs and frames alike.
    """
    mode = header(request.headers, "sec-fetch-mode")
    if not mode:
        return header(request.headers, "upgrade-insecure-requests") == "1"
    in_tab = header(request.headers, "sec-fetch-dest") == "document"
    return mode == "navigate" and (in_tab or header(request.headers, "sec-fetch-user") == "?1")


def of_visit(
    request: Request, candidates: Sequence[Candidate], index: Rows, shown: Mapping[bytes, int]
) -> list[Candidate]:
    """Return the captures that were recorded for the page that sends a request; none if it is unknown.

    The Referer names the page. If it was visited several times, the visit counts whose document the session
    received.

    Args:
        candidates: in recorded order.
        index: that has them.
        shown: last row that the session received, by request key; without one it is the first recorded.
    """
    page = header(request.headers, "referer")
    if not page or is_navigation(request):
        return []
    digest = vary_digest(page)
    mine = [candidate for candidate in candidates if candidate.entry.referer == digest]
    key = request_key("GET", page)
    visits = index.lookup(key) if mine else ()
    if not visits:
        return mine
    began = shown.get(key, visits[0])
    ended = next((row for row in visits if row > began), None)
    visited = [each for each in mine if each.row > began and (ended is None or each.row < ended)]
    return visited or mine


def _refuses(request: Request, fields: RequestFields, entry: Entry) -> str:
    """Return why a capture cannot answer; "" if it can."""
    return _unfit(request, entry) or fields.other_meaning(entry)


def _fewest(candidates: list[Candidate], counted: Sequence[int]) -> list[Candidate]:
    fewest = min(counted)
    return [candidate for number, candidate in zip(counted, candidates, strict=True) if number == fewest]


def _differences(fields: RequestFields, candidates: list[Candidate]) -> list[int]:
    """Return for each capture the number of browser fields in which it differs.

    An overloaded site sends no `Vary`: such a response is no closer to the request than the site's other
    responses.
    """
    counted = [fields.browser_differences(candidate.entry) for candidate in candidates]
    busy = [candidate.entry.status in BUSY for candidate in candidates]
    least = min((number for number, was in zip(counted, busy, strict=True) if not was), default=0)
    return [max(number, least) if was else number for number, was in zip(counted, busy, strict=True)]


def _unfit(request: Request, entry: Entry) -> str:
    """Return why a capture can answer no request of this form; "" if it may."""
    if entry.status < 200:
        return "recorded without a final answer"
    if entry.status == 206 and not _part_suffices(request, entry):
        return "recorded in part only, and not the requested part"
    if entry.status == 304 and not _conditional(request):
        return "recorded as not modified only"
    if entry.status == _UNSATISFIED and not header(request.headers, "range"):
        return "recorded as a range that cannot be given only"
    target = _target(entry, request.method)
    if target is not None and target == wire_url(request.url):
        return "recorded as a redirect to itself only"
    return ""


def _conditional(request: Request) -> bool:
    return any(header(request.headers, name) for name in ("if-none-match", "if-modified-since"))


def _part_suffices(request: Request, entry: Entry) -> bool:
    recorded = recorded_span(bytes(entry.head))
    if recorded is None:  # the range of another unit is compared with the request's fields
        return any(name == OTHER_RANGE for name, _ in entry.varies)
    requested = requested_span(header(request.headers, "range"), recorded.total)
    return recorded.whole if requested is None else requested.empty or recorded.holds(requested)


def _target(entry: Entry, method: str) -> str | None:
    """Return where a response redirects a browser with the same method; None if nowhere."""
    if entry.status not in _REDIRECTS:
        return None
    if method not in ("GET", "HEAD") and entry.status not in _KEEPING_METHOD:
        return None
    found = _LOCATION.search(bytes(entry.head))
    if found is None:
        return None
    try:
        return wire_url(urljoin(entry.url, found[1].decode("latin-1").strip()))
    except ValueError:  # urljoin rejects broken IPv6 literals; browsers do not follow them
        return None


def _without_loops(candidates: list[Candidate], request: Request, index: Rows) -> list[Candidate]:
    """Drop redirects that lead back to the requested URL, if another capture remains.

    A site that sets a cookie by a round trip is recorded as redirect, redirect, page.
    """
    url = wire_url(request.url)
    ending = [c for c in candidates if not _comes_back(c.entry, url, request.method, index)]
    return ending or candidates


def _comes_back(entry: Entry, url: str, method: str, index: Rows) -> bool:
    for _ in range(_MAX_HOPS):
        target = _target(entry, method)
        if target is None:
            return False
        if target == url:
            return True
        hops = [index.entry(row) for row in index.lookup(request_key("GET", target))]
        if not hops or any(hop.status not in _REDIRECTS for hop in hops):
            return False
        entry = hops[0]
    return True


def _as_accepted(candidates: list[Candidate], request: Request) -> list[Candidate]:
    """Drop complete responses that a read's `Accept` ranks below others (RFC 9110 §12.5.1)."""
    accept = header(request.headers, "accept")
    full = [c for c in candidates if 200 <= c.entry.status < 300]
    mimes = {c.entry.mime for c in full}
    if not accept or request.method in MUTATIONS or len(mimes) < 2:
        return candidates
    ranks = {mime: rank(accept, mime) for mime in mimes}
    best = max(ranks.values())
    behind = {c.row for c in full if ranks[c.entry.mime] != best}
    return [c for c in candidates if c.row not in behind]
