"""What is to be done about misses, and by which means; pure but for looking into the pack.

Each missed request is an errand of one of three kinds. A *page* (a document without a body) is visited by
the browser, so that all that it asks for comes with it; so is a *frame*, which is no page of the
collection. Anything else is a plain *request*, sent with the fields that the client had and with the
cookies of the page that it came from. Errands of one page stand together.

What a miss is, among requests for one URL: method, URL, body, and the fields that bear meaning
(`identity`). Two misses that agree in that are one errand.
"""

from __future__ import annotations

from collections.abc import Collection as Set
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from stillweb.collections.misses import Missed
from stillweb.collections.pack.reader import Pack
from stillweb.matching.captures import MEANT, Entry, RequestFields, page_set
from stillweb.matching.keys import request_key
from stillweb.matching.rules import Rules
from stillweb.model import MUTATIONS, Request, header
from stillweb.urls import host_of, other_scheme, wire_url

__all__ = ["Errand", "FetchMethod", "RefusedMiss", "SealedIndex", "identity", "plan"]

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FRAMES = frozenset({"iframe", "frame", "embed", "object"})


class FetchMethod(StrEnum):
    """By which means a miss is fetched."""

    PAGE = "page"
    FRAME = "frame"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Errand:
    """A request to make.

    Attributes:
        id: `identity` of the request.
        missed: as the ledger has it; the first of equal ones.
        page: the document that asked for it, "" if unknown; its cookies are sent.
        count: how often it was missed, equal ones together.
    """

    id: str
    kind: FetchMethod
    missed: Missed
    page: str = ""
    count: int = 1

    @property
    def changes(self) -> bool:
        """Whether it may change the site."""
        return self.missed.method in MUTATIONS


@dataclass(frozen=True, slots=True)
class RefusedMiss:
    """A miss that is not fetched: `present` if it is in the collection already, else refused."""

    missed: Missed
    reason: str
    present: bool = False


def identity(request: Request) -> str:
    """Return which request this is, whoever sends it: 64 hex digits."""
    return _identity(request, _key(request))


def _key(request: Request) -> bytes:
    content_type = header(request.headers, "content-type")
    return request_key(request.method, request.url, content_type, request.raw_body)


def _identity(request: Request, key: bytes) -> str:
    told = {
        name.lower(): value.strip()
        for name, value in request.headers
        if value.strip() and (name.lower() in MEANT or page_set(name.lower()))
    }
    accept = header(request.headers, "accept")
    if accept and "*/*" not in accept:
        told["accept"] = accept
    return sha256(key + repr(sorted(told.items())).encode()).hexdigest()


class SealedIndex:
    """What a sealed collection answers already, so that nothing is recorded beside it.

    Args:
        pack: of the collection; None if there is nothing in it.
        rules: of the collection.
    """

    def __init__(self, pack: Pack | None, rules: Rules) -> None:
        self._pack = pack
        self._rules = rules
        self._hosts = {host_of(url) for url in pack.urls()} if pack else set()

    @property
    def hosts(self) -> Set[str]:
        """The hosts that anything was recorded of."""
        return self._hosts

    def likeness(self, request: Request) -> str:
        """Return the same for requests that differ in what varies by itself only."""
        aliases = [alias.key for alias in self._rules.aliases(request) if not alias.guessed]
        return _identity(request, aliases[0] if aliases else _key(request))

    def holds(self, request: Request) -> bool:
        """Whether any capture could answer the request's method, URL and body, however it came about.

        By whatever replay looks under: the other scheme, the GET for a HEAD, the request without what varies
        by itself. Another capture beside it would change what is answered.
        """
        return next(self._rows(request), None) is not None

    def answers(self, request: Request) -> bool:
        """Whether a capture answers the request with the fields that it has."""
        asked = RequestFields(request, lambda name: not self._rules.ignores(request, name))
        return any(not asked.other_meaning(entry) for entry in self._rows(request))

    def _rows(self, request: Request) -> Iterator[Entry]:
        if self._pack is None:
            return
        for key in keys_of(request, self._rules):
            for row in self._pack.lookup(key):
                yield self._pack.entry(row)


def keys_of(request: Request, rules: Rules) -> Iterator[bytes]:
    """Yield all keys under which replay finds an answer to a request."""
    content_type = header(request.headers, "content-type")
    methods = ("HEAD", "GET") if request.method == "HEAD" else (request.method,)
    for url in filter(None, (request.url, other_scheme(request.url))):
        for method in methods:
            yield request_key(method, url, content_type, request.raw_body)
            asked = Request(method, url, request.headers, request.raw_body)
            yield from (alias.key for alias in rules.aliases(asked) if not alias.guessed)


def plan(
    misses: Iterable[Missed],
    known: SealedIndex,
    *,
    unsafe: bool = False,
    any_host: bool = False,
    begun: Set[str] = frozenset(),
) -> tuple[list[Errand], list[RefusedMiss]]:
    """Return what to fetch, pages first, and what not, with why.

    Args:
        misses: in any order.
        known: what the collection answers.
        unsafe: whether requests that may change the site are sent.
        any_host: whether hosts are asked that nothing was recorded of.
        begun: errands of a run that was cut short: they are done again, though their answer may be there.
    """
    errands: dict[str, Errand] = {}
    refusals = []
    for missed in misses:
        request = missed.request()
        name, same = identity(request), known.likeness(request)
        if before := errands.get(same):
            errands[same] = _counted(before, missed)
            continue
        if name not in begun and known.answers(request):
            refusals.append(RefusedMiss(missed, "it is recorded already", present=True))
        elif why := _refused(missed, known, unsafe, any_host):
            refusals.append(RefusedMiss(missed, why))
        else:
            page = missed.first.page or missed.first.referer
            kind = _kind(missed)
            own = kind is not FetchMethod.REQUEST
            errands[same] = Errand(
                name, kind, missed, "" if own else _page(page, known, any_host), missed.count
            )
    order = list(FetchMethod)
    # What changes the site comes last: till then it is as a session finds it that has changed nothing.
    return sorted(
        errands.values(), key=lambda each: (order.index(each.kind), each.changes, each.page)
    ), refusals


def _counted(errand: Errand, missed: Missed) -> Errand:
    return Errand(errand.id, errand.kind, errand.missed, errand.page, errand.count + missed.count)


def _refused(missed: Missed, known: SealedIndex, unsafe: bool, any_host: bool) -> str:
    host = host_of(missed.url)
    if not missed.url.lower().startswith(("http://", "https://")):
        return "not an http or https URL; stillweb record proxy records WebSockets"
    if missed.method in MUTATIONS and not unsafe:
        return f"a {missed.method} may change the site; --unsafe sends it"
    if missed.method not in _SAFE | MUTATIONS:
        return f"{missed.method} is not a method to ask again with"
    if host not in known.hosts and not any_host:
        return f"nothing was recorded of {host}; --scope-any asks it"
    if not missed.whole:
        return (
            f"the ledger did not keep its body of {missed.body_size} bytes; stillweb record proxy records it"
        )
    return ""


def _kind(missed: Missed) -> FetchMethod:
    if missed.method != "GET" or missed.body or header(missed.fields, "range"):
        return FetchMethod.REQUEST
    if any(page_set(name) for name, _ in missed.fields):
        return FetchMethod.REQUEST  # a script's, for a part of a page
    if missed.resource in _FRAMES:
        return FetchMethod.FRAME
    # Of a URL in a list nothing is known: whatever it is, the browser takes it.
    unknown = not missed.resource and not missed.fields
    return FetchMethod.PAGE if missed.resource == "document" or unknown else FetchMethod.REQUEST


def _page(url: str, known: SealedIndex, any_host: bool) -> str:
    there = url.startswith(("http://", "https://")) and (any_host or host_of(url) in known.hosts)
    return wire_url(url) if there else ""
