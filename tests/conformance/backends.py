"""One collection, served by each back-end, and requests to it over plain sockets.

Used by the tests here and by bench/wrong_answers.py, so that both ask the very same things.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpx
from conformance_site import AT, SITE, recording
from unseen import Ask, Unseen, exchanges_of
from unseen_bodies import BODIES
from unseen_fields import FIELDS
from unseen_times import TIMES, TIMES_RULES
from unseen_urls import RULES, URLS
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy
from stillweb.model import Exchange, Request, Response, header
from stillweb.replay.onmiss.front import Front, FrontOptions, serve_front
from stillweb.replay.pywb.backend import PywbOptions, serve_pywb
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.replay.workers.cluster import serve_cluster
from stillweb.urls import from_timestamp

BACKENDS = ("native", "native-workers", "on-miss", "pywb", "pywb-fuzzy")
OWN = frozenset({"native", "native-workers", "on-miss"})
"""Back-ends whose strict responses are stillweb's: the wrong-answer suite holds for them."""
UNSEEN = BODIES + URLS + FIELDS + TIMES


@dataclass(frozen=True)
class Seen:
    """An answer of a back-end: fields by lower-case name, repeated ones joined by `|`."""

    status: int
    headers: dict[str, str]
    body: bytes


class Running:
    """A back-end in a thread of its own, and requests to it by plain sockets."""

    def __init__(self, name: str, url: str, ca: CertAuthority) -> None:
        self.name = name
        self.url = url
        self._context = ssl.create_default_context(cafile=str(ca.ca_file))
        self._ids: dict[int, str] = {}
        self._control = httpx.Client(base_url=url, trust_env=False, verify=False)

    def close(self) -> None:
        """Let go of the control API."""
        self._control.close()

    @contextmanager
    def session(self) -> Iterator[int]:
        """The port of a session of one's own."""
        opened = self._control.post("/sessions", json={"collection": None}).json()
        port = urlsplit(opened["proxy"]).port or 0
        self._ids[port] = opened["id"]
        yield port
        self._control.delete(f"/sessions/{opened['id']}")

    def session_id(self, port: int) -> str:
        """The id of the session of a port."""
        return self._ids[port]

    def reset(self, port: int) -> None:
        """Make the session of a port as new."""
        self._control.post(f"/sessions/{self._ids[port]}/reset").raise_for_status()

    def report_date(self, port: int, date: int) -> None:
        """Report the time of the page of the session of a port, in ms since 1970."""
        url = f"/sessions/{self._ids[port]}/date"
        self._control.post(url, json={"date": date}).raise_for_status()

    def control(self, path: str) -> Any:
        """Return the control API's answer at a path."""
        return self._control.get(path).raise_for_status().json()

    def ledger(self, port: int) -> list[dict[str, Any]]:
        """The ledger of the session of a port."""
        return list(self.control(f"/sessions/{self._ids[port]}/ledger")["entries"])

    def once(self, port: int, ask: Ask, url: str) -> Seen:
        """Send one request on a connection of its own."""
        with closing(self.connect(port, url)) as client:
            return self.ask(client, ask.method, url, ask.sent, ask.sends)

    def connect(self, port: int, url: str) -> http.client.HTTPConnection:
        """A connection to the host of a URL, through a proxy there."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=self._context)
        client.set_tunnel(host, parts.port or 443)
        return client

    def ask(
        self,
        client: http.client.HTTPConnection,
        method: str,
        url: str,
        sent: tuple[tuple[str, str], ...] | list[tuple[str, str]] = (),
        sends: bytes = b"",
    ) -> Seen:
        """Send one request on a connection."""
        parts = urlsplit(url)
        target = url.partition("://")[2].partition("/")[2]
        client.putrequest(
            method, url if parts.scheme == "http" else f"/{target}", skip_host=True, skip_accept_encoding=True
        )
        fields = [("Host", parts.netloc), ("Connection", "keep-alive"), *sent]
        if sends:
            fields.append(("Content-Length", str(len(sends))))
        for field, value in fields:
            client.putheader(field, value)
        client.endheaders(sends or None)
        response = client.getresponse()
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            key = name.lower()
            headers[key] = f"{headers[key]}|{value}" if key in headers else value
        return Seen(response.status, headers, response.read())


def verdict_on(backend: Running, port: int, case: Unseen) -> str:
    """Return the verdict on a back-end's answers to a case: the worst over all schemes."""
    verdicts = []
    for scheme in case.schemes:
        backend.reset(port)
        for first in case.first:
            ask = first if isinstance(first, Ask) else case.recorded[first]
            backend.once(port, ask, case.url(ask, scheme))
        if case.date is not None and backend.name in OWN:
            backend.report_date(port, case.date)
        seen = backend.once(port, case.request, case.url(case.request, scheme))
        # The front stamps an answer of pywb as such; for a strict back-end it is a miss.
        guessed = backend.name == "on-miss" and backend.ledger(port)[-1]["tier"] == "pywb"
        verdicts.append("miss" if guessed else case.verdict(seen.status, seen.body))
    return max(verdicts, key=("right", "miss", "wrong").index)


def verdicts(backend: Running) -> dict[Unseen, str]:
    """Return the verdict on each case; two are sent simultaneously, each in a session that was reset."""
    free: SimpleQueue[int] = SimpleQueue()

    def judged(case: Unseen) -> str:
        port = free.get()
        try:
            return verdict_on(backend, port, case)
        finally:
            free.put(port)

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            free.put(stack.enter_context(backend.session()))
        return dict(zip(UNSEEN, pool.map(judged, UNSEEN), strict=True))


def recorded() -> list[Exchange]:
    """All that was recorded, in recorded order."""
    hour = from_timestamp(AT) + timedelta(hours=1)  # after the site; one case after the other
    starts = (hour + timedelta(seconds=10 * place) for place in range(len(UNSEEN)))
    cases = (exchanges_of(case, start) for case, start in zip(UNSEEN, starts, strict=True))
    return [*recording(), *chain.from_iterable(cases)]


def requested_again(backend: Running, scheme: str, *, respelled: bool = False) -> tuple[int, list[str]]:
    """Repeat the recorded requests in order; return their number and those without their exact answer.

    Reads are also sent as HEAD and with a range. If `respelled`, only bodies of JSON are sent, turned round.
    """
    count, wrong = 0, []
    clients: dict[tuple[str, str], http.client.HTTPConnection] = {}
    with backend.session() as port, ExitStack() as stack:
        for url, ask, status, body in _asks(scheme, respelled=respelled):
            count += 1
            origin = urlsplit(url)[:2]
            if origin not in clients:
                clients[origin] = stack.enter_context(closing(backend.connect(port, url)))
            seen = backend.ask(clients[origin], ask.method, url, ask.sent, ask.sends)
            if (seen.status, seen.body) != (status, body):
                found = f"{seen.status} {seen.body[:60]!r}, not {status} {body[:60]!r}"
                wrong.append(f"{ask.method} {url}: {found}")
    return count, wrong


def _asks(scheme: str, *, respelled: bool) -> Iterator[tuple[str, Ask, int, bytes]]:
    """Yield each URL and request with the status and body that are due to it."""
    firsts: dict[tuple[object, ...], Response] = {}
    epoch = 0
    for exchange in recorded():
        request = exchange.request
        # At a port of its own a URL has one scheme.
        url = (
            request.url if urlsplit(request.url).port else f"{scheme}{request.url[request.url.index(':') :]}"
        )
        # Read twice between two mutations, a URL gives its first answer again.
        due = firsts.setdefault((epoch, request), exchange.response)
        epoch += request.method in ("POST", "PUT", "PATCH", "DELETE")
        sends = turned_round(request) if respelled else request.raw_body
        if respelled and sends == request.raw_body:
            continue
        headers = (*request.headers, ("Accept-Encoding", "gzip, br"))
        yield url, Ask(request.method, "", headers, sends), due.status, due.raw_body
        if request.method == "GET" and due.status == 200 and not sends:
            yield url, Ask("HEAD", "", headers), 200, b""
            if not header(headers, "range"):
                yield url, Ask("GET", "", (*headers, ("Range", "bytes=1-3"))), 206, due.raw_body[1:4]


def turned_round(request: Request) -> bytes:
    """The body of a request with the members of its JSON objects turned round, if that says the same."""
    if not header(request.headers, "content-type").startswith("application/json"):
        return request.raw_body
    duplicates = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal duplicates
        duplicates = duplicates or len(dict(pairs)) < len(pairs)
        return dict(reversed(pairs))

    turned = json.loads(request.raw_body or b"null", object_pairs_hook=members)
    return (
        json.dumps(turned, indent=1).encode()
        if isinstance(turned, dict) and not duplicates
        else request.raw_body
    )


def make_collection(root: Path) -> Collection:
    """Record the site and all cases, and seal them."""
    made = Collection.create(root, "site")
    with CollectionWriter(made) as writer:
        for exchange in recorded():
            writer.write(exchange)
    (made.archive / "foreign.warc.gz").write_bytes(foreign_warc())
    (made.path / "rules.yaml").write_text(RULES + TIMES_RULES)
    reindex(made)
    made.write_manifest(Manifest(name="site", recorded_at=AT))
    seal(made)
    return made


def foreign_warc() -> bytes:
    """A WARC as other tools write them: a revisit, and a body in chunks."""
    file = io.BytesIO()
    writer = WARCWriter(file, gzip=True)
    plain = [("Content-Type", "text/plain")]
    pieces = b"".join(
        b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (b"three ", b"pieces ", b"here", b"")
    )

    def record(kind: str, path: str, minute: int, body: bytes, fields: list[tuple[str, str]]) -> str:
        made = writer.create_warc_record(
            f"{SITE}/{path}",
            kind,
            payload=io.BytesIO(body),
            http_headers=StatusAndHeaders("200 OK", fields, protocol="HTTP/1.1"),
            warc_headers_dict={"WARC-Date": f"2026-01-01T00:{minute}:00Z"},
        )
        writer.write_record(made)
        made.raw_stream.close()
        return str(made.rec_headers.get_header("WARC-Payload-Digest"))

    digest = record("response", "visited", 10, b"visited twice", plain)
    writer.write_record(
        writer.create_revisit_record(
            *(f"{SITE}/revisited", digest, f"{SITE}/visited", "2026-01-01T00:10:00Z"),
            http_headers=StatusAndHeaders("200 OK", plain, protocol="HTTP/1.1"),
            warc_headers_dict={"WARC-Date": "2026-01-01T00:11:00Z"},
        )
    )
    record("response", "chunked", 12, pieces, [*plain, ("Transfer-Encoding", "chunked")])
    return file.getvalue()


def serving(name: str, collection: Collection, authority: CertAuthority) -> AbstractAsyncContextManager[Any]:
    """A server of a back-end."""
    if name == "native":
        return serve([collection], authority, ReplayOptions(port=0, session_ports=None))
    if name == "native-loose":  # an option for users; nothing here is promised of it
        policy = Policy(default_noise(), guessed=True, fuzzy=0.5)
        return serve([collection], authority, ReplayOptions(port=0, session_ports=None, policy=policy))
    if name == "native-workers":
        options = ReplayOptions(port=0, session_ports=None)
        return serve_cluster([collection], authority, options, workers=2)
    if name == "on-miss":
        return serving_front(collection, authority)
    return serve_pywb([collection], authority, PywbOptions(fuzzy=name == "pywb-fuzzy"))


@asynccontextmanager
async def serving_front(collection: Collection, authority: CertAuthority) -> AsyncIterator[Front]:
    """The front of `--on-miss pywb`."""
    options = FrontOptions(port=0, session_ports=None)
    async with serve_front([collection], authority, options) as (front, _):
        yield front


@contextmanager
def running(name: str, collection: Collection, authority: CertAuthority) -> Iterator[Running]:
    """Run a back-end in a thread."""
    loop, started, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    failed: list[BaseException] = []
    urls: list[str] = []

    async def live() -> None:
        async with serving(name, collection, authority) as server:
            urls.append(server.url)
            started.set()
            await ended.wait()

    def run() -> None:
        try:
            loop.run_until_complete(live())
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    if failed:
        thread.join()
        raise failed[0]
    try:
        with closing(Running(name, urls[0], authority)) as backend:
            yield backend
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
