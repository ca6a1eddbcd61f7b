"""A small site over TLS with a CA of its own, in this process, and what is needed to record it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from odd_site import OddSite, odd_site

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

HOST = "site.test"


@dataclass
class Requested:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    body: bytes = b""
    type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunks: tuple[bytes, ...] = ()
    hold: threading.Event | None = None  # after the first chunk


@dataclass
class Site:
    """Answers by path; `requests` lists the received requests."""

    answers: dict[str, Answer | Callable[[Requested], Answer]] = field(default_factory=dict)
    requests: list[Requested] = field(default_factory=list)
    port: int = 0
    ca_file: Path = Path()

    @property
    def resolve(self) -> str:
        return f"*.test=127.0.0.1:{self.port}"

    @property
    def options(self) -> RecordOptions:
        return RecordOptions(resolve=parse_all([self.resolve]), upstream_ca=self.ca_file)

    def page(self, path: str, body: str, **more: Any) -> None:
        self.answers[path] = self.reply(f"<title>{path}</title>{body}", **more)

    def reply(self, body: str, **more: Any) -> Answer:
        return Answer(f"<!doctype html>{body}".encode(), **more)


class _Responder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each body would wait 40 ms for the delayed ACK of its head
    site: Site

    def _answer(self) -> None:
        chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Requested(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.site.requests.append(request)
        found = self.site.answers.get(self.path.partition("?")[0], Answer(b"nothing here", status=404))
        answer = found if isinstance(found, Answer) else found(request)
        self.send_response(answer.status)
        for name, value in (("Content-Type", answer.type), *answer.headers):
            self.send_header(name, value)
        if answer.chunks:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in answer.chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
                if answer.hold:
                    answer.hold.wait(20)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_HEAD = do_PUT = _answer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    context: Any

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The handshake in the connection's own thread: a client that gives up must not stop the others.
        try:
            with self.context.wrap_socket(request, server_side=True) as secure:
                super().finish_request(secure, client_address)
        except OSError:
            pass


@contextmanager
def serve_site(folder: Path, host: str = HOST) -> Iterator[Site]:
    ca = CertAuthority.init(folder)
    site = Site(ca_file=folder / "ca.pem")
    responder = type("Responder", (_Responder,), {"site": site})
    with _Server(("127.0.0.1", 0), responder) as server:
        server.context = ca.server_context(host)
        site.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serve_site(tmp_path / "site-ca") as running:
        yield running


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for recordings that the tests of a module share."""
    with serve_site(tmp_path_factory.mktemp("site-ca")) as running:
        yield running


@pytest.fixture
def cdn(tmp_path: Path, site: Site) -> Iterator[tuple[Site, RecordOptions]]:
    """Another site, of another origin, and how both are reached."""
    with serve_site(tmp_path / "cdn-ca", "cdn.test") as other:
        both = tmp_path / "both.pem"
        both.write_bytes(site.ca_file.read_bytes() + other.ca_file.read_bytes())
        resolve = parse_all([site.resolve, f"cdn.test=127.0.0.1:{other.port}"])
        yield other, RecordOptions(resolve=resolve, upstream_ca=both)


@pytest_asyncio.fixture
async def odd() -> AsyncIterator[OddSite]:
    async with odd_site() as running:
        yield running


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.create(tmp_path / "collections", "odd")


@pytest.fixture
def answer() -> type[Answer]:
    """The class of a site's answers, for tests that make their own."""
    return Answer
