"""The episodes of README and tutorial and the tutorial's training run as printed on a replay of its shop."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
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
async def replay(tmp_path) -> AsyncIterator[str]:
    collection = await asyncio.to_thread(_recorded_shop, tmp_path / "collections")
    ca = CertAuthority.init(tmp_path / "certs")
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        yield server.url


async def _run(code: str) -> str:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    return printed.decode()


def _block(page: str, containing: str) -> str:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", (REPO / page).read_text("utf-8"))
    return next(block for block in blocks if containing in block)


@pytest.mark.browser
async def test_the_episode_of_the_tutorial(replay):
    code = _block("docs/tutorial/index.md", "Night light").replace("http://127.0.0.1:8080", replay)
    printed = await _run(code)
    assert "[a8] link 'Night light'" in printed
    assert "http://lamps.test/lamp/night ok 0 misses" in printed


@pytest.mark.browser
async def test_the_episode_of_the_readme(replay):
    code = _block("README.md", "async def main").replace("http://127.0.0.1:8080", replay)
    code = code.replace('"site"', '"lamps"').replace("https://site.example/", "http://lamps.test/")
    assert "link 'Desk lamp'" in await _run(code.replace('"a12"', '"a6"'))


@pytest.mark.browser
async def test_the_training_of_the_tutorial(replay, monkeypatch, capsys):
    train = _module("train")
    monkeypatch.setattr(train, "ROUNDS", 1)
    monkeypatch.setattr(train, "GROUP", 2)
    await train.main(replay)
    assert re.match(r"round 0: success +\d+% of 2 episodes", capsys.readouterr().out)
