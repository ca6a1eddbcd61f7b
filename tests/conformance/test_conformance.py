"""The same requests to every back-end, on the same folder; where they differ it is written down.

`EXPECTED_DISAGREEMENTS` lists each answer of pywb that is not the right one, with the reason, and
docs/replay-backends.md tells users of it. A case that is listed must fail in just the stated way: a
disagreement that went away is as much news as one that came.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from conformance_site import AT, BINARY, CASES, CSS, SCRIPT, SITE, Case, recording
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.seal import seal
from stillweb.collections.writer import CollectionWriter
from stillweb.errors import ProgramNotFound
from stillweb.replay.pywb import PywbOptions, find_pywb, serve_pywb
from stillweb.replay.server import ReplayOptions, serve

REPO = Path(__file__).resolve().parents[2]
BACKENDS = ("native", "pywb", "pywb-fuzzy")


@dataclass(frozen=True)
class Seen:
    """What a back-end answered: fields by lower-case name, repeated ones joined by `|`."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Disagreement:
    """An answer of a back-end that is not the right one."""

    reason: str
    status: int = 200
    body: bytes | None = None
    headers: tuple[tuple[str, str | None], ...] = ()


_BODY_CUT = "the query made of a POST body is cut at 4096 characters, so long bodies look alike"
_LEAVES = "a JSON body is reduced to the names of its leaves, without the path to them"
_NO_BODY = "the body of a PATCH or DELETE is not read"
_SURT = "urlkeys fold the query's order, the path's case, `www.` and a final slash"
_NOT_READ = "an Origin is answered by fields of pywb's own, whether the site allowed it or not"
_FUZZY = "pywb's rules take what has the same path, or the same beginning"

_ALWAYS = {
    "post-big-other": Disagreement(_BODY_CUT, body=b'{"big": 1}'),
    "post-json-swapped-parents": Disagreement(_LEAVES, body=b"nested"),
    "patch-unseen": Disagreement(_NO_BODY, body=b"patched"),
    "query-order": Disagreement(_SURT, body=b"a before b"),
    "path-case": Disagreement(_SURT, body=b"About with a capital"),
    "www-added": Disagreement(_SURT, body=CSS),
    "www-dropped": Disagreement(_SURT, body=b"with www"),
    "trailing-slash": Disagreement(_SURT, body=CSS),
    "cors-not-allowed-by-the-site": Disagreement(
        _NOT_READ, body=CSS, headers=(("access-control-allow-origin", "https://evil.example"),)
    ),
    "unseen-across-origins": Disagreement(
        "a miss has no CORS fields, so that a page sees a network error and no 404",
        status=404,
        headers=(("access-control-allow-origin", None),),
    ),
    "preflight": Disagreement("a preflight is answered 200, not 204; browsers take both", body=b""),
    "range-from-the-end": Disagreement("a range of the last bytes gets the whole", body=BINARY),
    "accept-datetime": Disagreement(
        "Accept-Datetime is a request of Memento, and a bad one is 400", status=400
    ),
    "cart-after-post": Disagreement(
        "there is one answer to a URL, whatever was posted before", body=b"empty"
    ),
}
_BY_ITS_RULES = {
    "post-json-unseen-id": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "post-json-unseen-operation": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "post-form-unseen": Disagreement(_FUZZY, body=b"form one"),
    "post-multipart-unseen": Disagreement(_FUZZY, body=b"uploaded"),
    "delete-unseen": Disagreement(_FUZZY, body=b"patched"),
    "delete-unseen-beside-posts": Disagreement(_FUZZY, body=b'{"item": 1}'),
    "get-of-what-was-only-posted": Disagreement(_FUZZY, body=b"form one"),
    "post-of-what-was-only-got": Disagreement(_FUZZY, body=CSS),
    "page-unseen": Disagreement(_FUZZY, body=b'{"page": 1}'),
    "query-unseen": Disagreement(_FUZZY, body=CSS),
    "cache-buster-unseen": Disagreement(_FUZZY, body=CSS),
}
EXPECTED_DISAGREEMENTS: dict[tuple[str, str], Disagreement] = {
    **{(name, "pywb"): stated for name, stated in _ALWAYS.items()},
    **{(name, "pywb-fuzzy"): stated for name, stated in (_ALWAYS | _BY_ITS_RULES).items()},
}


class Running:
    """A back-end in a thread of its own, and requests to it by plain sockets."""

    def __init__(self, name: str, url: str, ca: CertAuthority) -> None:
        self.name = name
        self.url = url
        self._context = ssl.create_default_context(cafile=str(ca.ca_file))

    @contextmanager
    def session(self) -> Iterator[int]:
        """The port of a session of one's own."""
        with httpx.Client(base_url=self.url, trust_env=False) as client:
            opened = client.post("/sessions", json={"collection": None}).json()
            yield urlsplit(opened["proxy"]).port or 0
            client.delete(f"/sessions/{opened['id']}")

    def connect(self, port: int, url: str) -> http.client.HTTPConnection:
        """A connection to the host of a URL, through a proxy there."""
        host = urlsplit(url).hostname
        if url.startswith("http:"):
            return http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=self._context)
        client.set_tunnel(host, 443)
        return client

    def ask(self, client, method, url, sent=(), sends=b"") -> Seen:
        """Send one request on a connection."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        client.putrequest(
            method, url if url.startswith("http:") else target, skip_host=True, skip_accept_encoding=True
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

    def answer(self, case: Case) -> Seen:
        """The answer to a case, in a session of its own."""
        with self.session() as port:
            for method, url, sent, sends in case.first:
                with closing(self.connect(port, url)) as client:
                    self.ask(client, method, url, sent, sends)
            with closing(self.connect(port, case.url)) as client:
                return self.ask(client, case.method, case.url, case.sent, case.sends)


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> CertAuthority:
    return CertAuthority.init(tmp_path_factory.mktemp("conformance-certs"))


@pytest.fixture(scope="session")
def collection(tmp_path_factory) -> Collection:
    made = Collection.create(tmp_path_factory.mktemp("conformance") / "collections", "site")
    with CollectionWriter(made) as writer:
        for exchange in recording():
            writer.write(exchange)
    (made.archive / "foreign.warc.gz").write_bytes(foreign_warc())
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

    def record(kind: str, path: str, minute: int, body: bytes, fields: list[tuple[str, str]]):
        made = writer.create_warc_record(
            f"{SITE}/{path}",
            kind,
            payload=io.BytesIO(body),
            http_headers=StatusAndHeaders("200 OK", fields, protocol="HTTP/1.1"),
            warc_headers_dict={"WARC-Date": f"2026-01-01T00:{minute}:00Z"},
        )
        writer.write_record(made)
        made.raw_stream.close()
        return made.rec_headers.get_header("WARC-Payload-Digest")

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


def serving(name: str, collection: Collection, authority: CertAuthority):
    if name == "native":
        return serve([collection], authority, ReplayOptions(port=0, session_ports=None))
    return serve_pywb([collection], authority, PywbOptions(fuzzy=name == "pywb-fuzzy"))


@pytest.fixture(
    scope="session",
    params=[pytest.param(n, marks=[] if n == "native" else pytest.mark.pywb) for n in BACKENDS],
)
def backend(request, collection, authority) -> Iterator[Running]:
    if request.param != "native":
        try:
            find_pywb()
        except ProgramNotFound as error:
            pytest.skip(f"{error}; {error.hint}")
    loop, started, ended, failed = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []
    urls: list[str] = []

    async def live() -> None:
        async with serving(request.param, collection, authority) as server:
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
    yield Running(request.param, urls[0], authority)
    loop.call_soon_threadsafe(ended.set)
    thread.join()


def as_expected(case: Case, seen: Seen) -> str:
    """What is wrong with an answer, "" if nothing is."""
    if seen.status != case.status:
        return f"status {seen.status}, not {case.status}"
    for name, value in case.headers.items():
        if seen.headers.get(name) != value:
            return f"{name}: {seen.headers.get(name)!r}, not {value!r}"
    if case.body is not None and seen.body != case.body:
        return f"body {seen.body[:80]!r}, not {case.body[:80]!r}"
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, backend):
    seen = backend.answer(case)
    wrong = as_expected(case, seen)
    stated = EXPECTED_DISAGREEMENTS.get((case.name, backend.name))
    if stated is None:
        assert not wrong
        return
    assert wrong, f"{backend.name} agrees by now; take it out of EXPECTED_DISAGREEMENTS: {stated.reason}"
    assert seen.status == stated.status
    assert stated.body is None or seen.body == stated.body
    for name, value in stated.headers:
        assert seen.headers.get(name) == value


def test_every_disagreement_names_a_case_and_is_documented():
    names = {case.name for case in CASES}
    text = (REPO / "docs" / "replay-backends.md").read_text(encoding="utf-8")
    for name, backend in EXPECTED_DISAGREEMENTS:
        assert name in names
        assert backend in BACKENDS[1:]  # none of ours: what the native one does is the definition
        assert f"`{name}`" in text


def test_keep_alive_over_many_connections(backend):
    """pywb ends keep-alive for all beyond its 50th tunnel, unless it is told not to."""
    with backend.session() as port, ThreadPoolExecutor(16) as pool:
        clients = [backend.connect(port, SITE) for _ in range(64)]

        def twice(client: http.client.HTTPConnection) -> set[bytes]:
            first = backend.ask(client, "GET", f"{SITE}/style.css")
            connection = client.sock
            second = backend.ask(client, "GET", f"{SITE}/style.css")
            assert client.sock is connection is not None
            return {first.body, second.body}

        try:
            for _ in range(2):  # all stay open
                assert set().union(*pool.map(twice, clients)) == {CSS}
        finally:
            for client in clients:
                client.close()


def test_many_requests_on_one_connection(backend):
    with backend.session() as port, closing(backend.connect(port, SITE)) as client:
        for _ in range(20):
            for path, body in (
                ("/style.css", CSS),
                ("/none", b""),
                ("/gzip.js", gzip.compress(SCRIPT, mtime=0)),
            ):
                seen = backend.ask(client, "GET", f"{SITE}{path}", [("Accept-Encoding", "gzip")])
                assert seen.body == body


def test_sessions_do_not_disturb_each_other(backend):
    with backend.session() as one, backend.session() as two:
        for port in (one, two, one):
            with closing(backend.connect(port, SITE)) as client:
                assert backend.ask(client, "GET", f"{SITE}/cart").body == b"empty"
