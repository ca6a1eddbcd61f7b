"""Sites that misbehave, and a disk that is full: each fault is reported, and the crawl continues."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from whole import whole_records

from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.errors import RecordError, UpstreamUnreachable
from stillweb.record.crawl.crawl import CrawlEvent, crawl
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.recording import collection_to_fill

pytestmark = pytest.mark.browser

HOME = "https://site.test/"
HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
QUICK = {"behaviors": frozenset()}
SCRIPTS = {
    "/loop": b"for (;;);",
    "/dialogs": b"for (;;) alert('again');",
    "/leave": b"onbeforeunload = (e) => { e.preventDefault(); return 'stay'; };",
}


class Faulty:
    """A server over TLS that errs by path; it speaks raw bytes, since no library would send these."""

    def __init__(self, folder: Path) -> None:
        ca = CertAuthority.init(folder)
        self.ca_file = folder / "ca.pem"
        self._context = ca.server_context("site.test")
        self._over = threading.Event()
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port, self.plain_port = (each.getsockname()[1] for each in self._sockets)
        self.links: list[str] = []

    @property
    def options(self) -> RecordOptions:
        rules = [f"*.test=127.0.0.1:{self.port}", f"plain.site.test=127.0.0.1:{self.plain_port}"]
        return RecordOptions(resolve=parse_all(rules), upstream_ca=self.ca_file)

    @contextmanager
    def running(self) -> Iterator[Faulty]:
        threads = [
            threading.Thread(target=self._accept, args=(each, each is self._sockets[0]), daemon=True)
            for each in self._sockets
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for each in self._sockets:
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self, listening: socket.socket, secure: bool) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                target = self._serve if secure else self._speak_plainly
                threading.Thread(target=target, args=(connection,), daemon=True).start()

    def _speak_plainly(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 400 this is no TLS\r\n\r\n")

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, self._context.wrap_socket(connection, server_side=True) as secure:
            while head := _head(secure):
                self._answer(secure, head.split(b" ")[1].decode().partition("?")[0])

    def _answer(self, secure: ssl.SSLSocket, path: str) -> None:
        if path == "/":
            _page(secure, "".join(f'<a href="{link}">x</a>' for link in self.links).encode())
        elif path == "/hang":
            self._over.wait()
        elif path == "/reset":
            secure.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(secure.detach())
            raise ConnectionResetError  # OpenSSL would read the descriptor, which a new connection may have
        elif path == "/long":
            secure.sendall(HTML + b"Content-Length: 1000\r\n\r\n<p>half")
            secure.unwrap().close()
        elif path == "/short":
            secure.sendall(HTML + b"Content-Length: 10\r\n\r\n<p>0123456 and more than was said")
        elif path == "/endless":
            secure.sendall(HTML + b"Transfer-Encoding: chunked\r\n\r\n")
            while not self._over.wait(0.02):
                secure.sendall(b"10\r\n<p>and so on</p>\r\n")
        elif path == "/round":
            secure.sendall(b"HTTP/1.1 302 Found\r\nLocation: /round?again\r\nContent-Length: 0\r\n\r\n")
        elif path in SCRIPTS:
            _page(secure, b"<p>hi<script>%s</script>" % SCRIPTS[path])
        else:
            _page(secure, b"fine")


def _head(connection: ssl.SSLSocket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        if not (more := connection.recv(65536)):
            return b""
        got += more
    return got


def _page(connection: ssl.SSLSocket, body: bytes) -> None:
    connection.sendall(HTML + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    with Faulty(tmp_path / "site-ca").running() as server:
        yield server


ERRS = {
    "reset": "disconnected|closed|EMPTY_RESPONSE|reset",
    "long": "closed|incomplete|MISMATCH|INCOMPLETE",
    "round": "TOO_MANY_REDIRECTS",
    "https://other.site.test/": "ertificate",
    "https://plain.site.test/": "TLS|SSL",
}
NEVER_ENDS = "no document after|its document does not end|a script in it loops|not complete after"


async def test_what_a_site_does_wrong_is_reported_and_the_rest_is_recorded(
    tmp_path: Path, ca, faulty
) -> None:
    faulty.links = [*ERRS, "/short", "/leave", "/fine"]
    options = CrawlOptions(scope=ScopeKind.DOMAIN, retries=0, jobs=4, record=faulty.options, **QUICK)

    with collection_to_fill(tmp_path, "site") as collection:
        report = await crawl([HOME], collection, ca, options)

    failed = {url.removeprefix(HOME): why for url, why in report.failed_pages.items()}
    assert {"", "fine", "leave"} <= {page.url.removeprefix(HOME) for page in report.pages}
    assert set(failed) - {"short"} == set(ERRS)
    for name, words in ERRS.items():
        assert any(word in failed[name] for word in words.split("|")), (name, failed[name])
    assert collection.manifest().state == "complete"
    assert check(collection) == []
    recorded = {capture.url.removeprefix(HOME) for capture in collection.captures()}
    assert {"", "fine", "leave"} <= recorded
    assert not {"reset", "long"} & recorded


async def test_a_page_that_never_ends_does_not_hold_the_crawl(tmp_path: Path, ca, faulty) -> None:
    urls = [HOME + path for path in ("hang", "endless", "loop", "dialogs")]
    errors: dict[str, str] = {}
    options = CrawlOptions(
        scope=ScopeKind.PAGE, page_timeout=5.0, retries=0, jobs=4, record=faulty.options, **QUICK
    )

    with (
        pytest.raises(UpstreamUnreachable, match="hang cannot be reached"),
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl(urls, collection, ca, options, lambda event: errors.update({event.url: event.error}))

    assert list(errors) == urls
    for url, why in errors.items():
        assert any(words in why for words in NEVER_ENDS.split("|")), (url, why)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this program become longer than it is, or than a few bytes; its children may write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path, ca, faulty) -> None:
    faulty.links = [f"/p{number}" for number in range(5)]
    options = CrawlOptions(record=faulty.options, jobs=1, **QUICK)

    with ExitStack() as disk:

        def fill(event: CrawlEvent) -> None:
            if event.pages == 2:
                disk.enter_context(full_disk())

        with (
            pytest.raises(RecordError, match=r"cannot write to .*: file too large") as caught,
            collection_to_fill(tmp_path, "site") as collection,
        ):
            await crawl([HOME], collection, ca, options, fill)

    assert "free disk space" in caught.value.hint
    assert "--append" in caught.value.hint
    assert collection.manifest().state == "partial"
    assert whole_records(collection).count("response") >= 2

    with collection_to_fill(tmp_path, "site", append=True) as collection:
        report = await crawl([HOME], collection, ca, options)

    assert [page.url for page in report.pages] == [HOME, *(f"{HOME}p{number}" for number in range(5))]
    assert collection.manifest().state == "complete"
    assert check(collection) == []
