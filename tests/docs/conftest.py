"""A replay of the tutorial's shop, for the code blocks of the documentation."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayOptions, serve

REPO = Path(__file__).resolve().parents[2]
TUTORIAL = REPO / "examples" / "tutorial"
REQUESTS = [
    *(("GET", path, b"") for path in ("/", "/help", "/basket", "/search?q=")),
    *(("GET", f"/lamp/{key}", b"") for key in ("desk", "floor", "night", "ceiling")),
    ("POST", "/basket", b"lamp=desk"),
]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tutorial_{name}", TUTORIAL / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _recorded_shop(root: Path) -> Collection:
    """Record the tutorial's shop by plain HTTP."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _module("site").Shop)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    collection = Collection.create(root, "lamps")
    try:
        with CollectionWriter(collection) as writer:
            for method, path, body in REQUESTS:
                writer.write(_exchange(server.server_address[1], method, path, body))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    collection.write_manifest(
        Manifest(name="lamps", created="2026-01-01T00:00:00Z", recorded_at="20260101000000")
    )
    seal(collection)
    return collection


def _exchange(port: int, method: str, path: str, body: bytes) -> Exchange:
    headers = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
    connection = HTTPConnection("127.0.0.1", port)
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    response = Response(answer.status, answer.reason, tuple(answer.getheaders()), answer.read())
    connection.close()
    request = Request(method, f"http://lamps.test{path}", tuple(headers.items()), body)
    return Exchange(request, response, "20260101000000")


@pytest.fixture
def train() -> ModuleType:
    """The tutorial's training script."""
    return _module("train")


@pytest.fixture
async def replay(tmp_path, ca: CertAuthority) -> AsyncIterator[str]:
    collection = await asyncio.to_thread(_recorded_shop, tmp_path / "collections")
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        yield server.url
