"""Plan of an amend: which misses to fetch and how; pure except for reading files.

`read_wanted` reads a file of misses (docs/reference/ledger.md), a HAR, or a list of URLs. From a HAR,
requests with complete responses are taken, as by an import. Cookies and authorization are dropped, because a
ledger does not hold them either.

Each miss becomes a fetch of one of three kinds. The browser visits a *page* (a document without a body), so
that its resources are recorded too. It also visits a *frame*, which is not listed as a page. Anything else is
a plain *request*, sent with the client's fields and the cookies of its page. Fetches of one page are
adjacent.

`identity` distinguishes requests by method, URL, body and the fields that bear meaning. Misses of equal
identity are one fetch.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection as Set
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from stillweb.collections.defects import Defect
from stillweb.collections.importers.har import HarFile
from stillweb.collections.misses import Missed, Sighting, read_misses
from stillweb.collections.pack.frames import WEBSOCKET, open_frames, socket_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import EVENT_STREAM, is_socket_url
from stillweb.errors import CollectionError, UsageError
from stillweb.matching.captures import MEANT, Entry, RequestFields, page_set
from stillweb.matching.keys import request_key
from stillweb.matching.rules import Rules
from stillweb.matching.transports import is_live
from stillweb.model import MUTATIONS, Page, Request, destination, header
from stillweb.record.crawl.scope import seed_url
from stillweb.urls import host_of, other_scheme, wire_url

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FRAMES = frozenset({"iframe", "frame", "embed", "object"})


class FetchMethod(StrEnum):
    """How a miss is fetched."""

    PAGE = "page"
    FRAME = "frame"
    SOCKET = "socket"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class FetchTask:
    """A miss to fetch.

    Attributes:
        id: `identity` of the request.
        missed: ledger entry, the first of equal ones.
        page: document that sent it, whose cookies are used; "" if unknown.
        count: number of equal misses.
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
    """A miss that is not fetched: `present` if the collection answers it, else refused."""

    missed: Missed
    reason: str
    present: bool = False


def identity(request: Request) -> str:
    """Return the identity of a request, independent of the client: 64 hex digits."""
    return _identity(request, _key(request))


def _key(request: Request) -> bytes:
    content_type = header(request.headers, "content-type")
    return request_key(request.method, request.url, content_type, request.raw_body)


def _identity(request: Request, key: bytes) -> str:
    fields = {
        name.lower(): value.strip()
        for name, value in request.headers
        if value.strip() and (name.lower() in MEANT or page_set(name.lower()))
    }
    accept = header(request.headers, "accept")
    if accept and "*/*" not in accept:
        fields["accept"] = accept
    return sha256(key + repr(sorted(fields.items())).encode()).hexdigest()


class SealedIndex:
    """The requests that a sealed collection answers.

    Args:
        pack: pack of the collection; None if it is empty.

    Attributes:
        homes: a page of each host, the first start page if there is one.
    """

    def __init__(self, pack: Pack | None, rules: Rules, pages: Iterable[Page] = ()) -> None:
        self._pack = pack
        self._rules = rules
        ordered = sorted(pages, key=lambda page: not page.seed)
        self.homes: Mapping[str, str] = {host_of(page.url): page.url for page in reversed(ordered)}
        self._hosts = {host_of(url) for url in pack.urls()} if pack else set()

    @property
    def hosts(self) -> Set[str]:
        """The recorded hosts."""
        return self._hosts

    def likeness(self, request: Request) -> str:
        """Return an identity that ignores learned volatile values."""
        aliases = [alias.key for alias in self._rules.aliases(request) if not alias.guessed]
        return _identity(request, aliases[0] if aliases else _key(request))

    def holds(self, request: Request) -> bool:
        """Return True if any capture has the request's method, URL and body, whatever its fields.

        All keys of a replay lookup count: the other scheme, GET for HEAD, the request without volatile
        values. A further capture of such a key would change the answer.
        """
        return next(self._rows(request), None) is not None

    def answers(self, request: Request) -> bool:
        """Return True if a capture answers the request with its fields."""
        fields = RequestFields(request, lambda name: not self._rules.ignores(request, name))
        return any(not fields.other_meaning(entry) for entry in self._rows(request))

    def sent_frames(self, url: str) -> set[tuple[int, bytes]]:
        """Return opcode and payload of the frames that pages sent in the recordings of a WebSocket."""
        entries = self._rows(Request(WEBSOCKET, url))
        bodies = (bytes(entry.body) for entry in entries if entry.status == HTTPStatus.OK)
        return {
            (frame.opcode, frame.payload)
            for body in bodies
            for frame in open_frames(body).frames
            if frame.sent
        }

    def _rows(self, request: Request) -> Iterator[Entry]:
        if self._pack is None:
            return
        for key in keys_of(request, self._rules):
            for row in self._pack.lookup(key):
                yield self._pack.entry(row)


def keys_of(request: Request, rules: Rules) -> Iterator[bytes]:
    """Yield all keys under which replay looks up a request."""
    if is_socket_url(request.url):
        scheme, _, rest = request.url.partition("://")
        yield from (socket_key(f"{each}://{rest}") for each in (scheme, {"ws": "wss"}.get(scheme, "ws")))
        return
    content_type = header(request.headers, "content-type")
    methods = ("HEAD", "GET") if request.method == "HEAD" else (request.method,)
    for url in filter(None, (request.url, other_scheme(request.url))):
        for method in methods:
            yield request_key(method, url, content_type, request.raw_body)
            variant = Request(method, url, request.headers, request.raw_body)
            yield from (alias.key for alias in rules.aliases(variant) if not alias.guessed)


def plan(
    misses: Iterable[Missed],
    known: SealedIndex,
    *,
    unsafe: bool = False,
    any_host: bool = False,
    begun: Set[str] = frozenset(),
) -> tuple[list[FetchTask], list[RefusedMiss]]:
    """Return what to fetch, pages first, and what not, with the reason.

    Args:
        unsafe: send requests that may change the site.
        any_host: send requests to hosts that are not recorded.
        begun: identities that an interrupted run started: they are fetched again even if they are answered.
    """
    tasks: dict[str, FetchTask] = {}
    refusals = []
    for missed in misses:
        request = missed.request()
        name, same = identity(request), known.likeness(request)
        if before := tasks.get(same):
            tasks[same] = _counted(before, missed)
            continue
        if name not in begun and known.answers(request):
            refusals.append(RefusedMiss(missed, "it is recorded already", present=True))
        elif why := _refused(missed, known, unsafe, any_host):
            refusals.append(RefusedMiss(missed, why))
        else:
            kind = _kind(missed)
            visited = kind in (FetchMethod.PAGE, FetchMethod.FRAME)
            page = "" if visited else _page(missed, known, any_host)
            tasks[same] = FetchTask(name, kind, missed, page, missed.count)
    order = list(FetchMethod)
    # Mutations come last: until then the site is as a session finds it that has changed nothing.
    return sorted(
        tasks.values(), key=lambda each: (order.index(each.kind), each.changes, each.page)
    ), refusals


def _counted(task: FetchTask, missed: Missed) -> FetchTask:
    return FetchTask(task.id, task.kind, task.missed, task.page, task.count + missed.count)


def _refused(missed: Missed, known: SealedIndex, unsafe: bool, any_host: bool) -> str:
    host = host_of(missed.url)
    socket = is_socket_url(missed.url)  # the ledger's method of a handshake is WEBSOCKET
    if socket:
        if not _page(missed, known, any_host):
            return "the page that opens this WebSocket is unknown; stillweb record proxy records it"
    elif not missed.url.lower().startswith(("http://", "https://")):
        return "not an http or https URL"
    if missed.method in MUTATIONS and not unsafe:
        return f"a {missed.method} may change the site; --unsafe sends it"
    if not socket and missed.method not in _SAFE | MUTATIONS:
        return f"cannot send a {missed.method} again"
    if host not in known.hosts and not any_host:
        return f"{host} is not recorded; --scope-any requests it"
    if not missed.whole:
        return f"the ledger omits its body of {missed.body_size} bytes; stillweb record proxy records it"
    return ""


def by_visit(url: str) -> bool:
    """Return True for requests of a live connection: a visit of its page records another one."""
    return is_socket_url(url) or is_live(url)


def _kind(missed: Missed) -> FetchMethod:
    if by_visit(missed.url):
        return FetchMethod.SOCKET
    if missed.method != "GET" or missed.body or header(missed.fields, "range"):
        return FetchMethod.REQUEST
    if any(page_set(name) for name, _ in missed.fields):
        return FetchMethod.REQUEST  # a script requests a part of a page
    if missed.resource in _FRAMES:
        return FetchMethod.FRAME
    # Nothing is known of a listed URL: the browser handles any type.
    unknown = not missed.resource and not missed.fields
    if missed.resource == "document" or unknown:
        return FetchMethod.PAGE
    streams = header(missed.fields, "accept").startswith(EVENT_STREAM)
    return FetchMethod.SOCKET if streams and missed.first.page else FetchMethod.REQUEST


def _page(missed: Missed, known: SealedIndex, any_host: bool) -> str:
    """Return the page to send a request from; "" if none is known.

    A site can withhold the referrer, and a WebSocket handshake never has one. Such a request has the cookies
    and tokens of a page of its origin.
    """
    url = missed.first.page or missed.first.referer
    usable = url.startswith(("http://", "https://")) and (any_host or host_of(url) in known.hosts)
    if usable:
        return wire_url(url)
    origin = header(missed.fields, "origin")
    return known.homes.get(host_of(origin) if "://" in origin else host_of(missed.url), "")


# Credentials, and fields of a single connection or message.
_NOT_TAKEN = frozenset(
    (
        *("authorization", "cookie", "proxy-authorization", "host", "content-length", "connection"),
        *("accept-encoding", "if-none-match", "if-modified-since", "te", "transfer-encoding", "upgrade"),
    )
)


def read_wanted(path: Path) -> list[Missed]:
    """Return the requests in a file of misses, a HAR or a list of URLs.

    Raises:
        CollectionError: if a line of misses is malformed.
        MalformedHar: if it is a HAR without entries.
        UsageError: if a line of a list is not a URL.
    """
    content = path.read_bytes().lstrip()
    if not content.startswith(b"{"):
        return _listed(content.decode("utf-8", "replace"), path)
    first = content.partition(b"\n")[0]
    try:
        misses = "method" in json.loads(first)
    except ValueError:
        misses = False
    try:
        if misses or b'"log"' not in content:
            return list(read_misses(path))
        return _of_har(path)
    except CollectionError as error:
        if misses:
            raise
        hint = "use a file of misses (stillweb replay misses ... --out FILE), a HAR or a list of URLs"
        raise CollectionError(error.what, path=path, hint=hint) from error


def _listed(text: str, path: Path) -> list[Missed]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        url = line.strip()
        if not url or url.startswith("#"):
            continue
        try:
            found.append(_missed(Request("GET", seed_url(url)), ""))
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}", hint=error.hint) from error
    return found


def _of_har(path: Path) -> list[Missed]:
    found = []
    for exchange, frames in HarFile.open(path).exchanges(_ignore):
        if frames:
            continue  # a WebSocket is recorded with its page
        original = exchange.request
        fields = tuple(
            (name.lower(), value) for name, value in original.headers if name.lower() not in _NOT_TAKEN
        )
        request = Request(original.method, original.url, fields, original.raw_body)
        found.append(_missed(request, header(original.headers, "referer")))
    return found


def _ignore(defect: Defect) -> None:
    """Ignore an entry without a response: the client received nothing."""


def _missed(request: Request, referer: str) -> Missed:
    body = request.raw_body
    seen = Sighting("", 0, referer, referer)
    fields = tuple(field for field in request.headers if field[0] not in ("referer", "user-agent"))
    return Missed(
        "",
        "",
        request.method,
        request.url,
        first=seen,
        last=seen,
        fields=fields,
        body=b64encode(body).decode("ascii"),
        body_size=len(body),
        body_digest=f"sha256:{sha256(body).hexdigest()}" if body else "",
        resource=destination(fields),
    )
