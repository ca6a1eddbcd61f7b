"""The examples run as they are written."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayOptions, serve

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PAGES = {
    "https://site.example/": b"<title>Home</title><h1>Home</h1><a href=/next>Next</a>",
    "https://site.example/next": b"<title>Next</title><h1>Next</h1>",
}


def _collection(root: Path) -> Collection:
    collection = Collection.create(root, "site")
    with CollectionWriter(collection) as writer:
        for url, body in PAGES.items():
            response = Response(200, "OK", (("Content-Type", "text/html"),), body)
            writer.write(Exchange(Request("GET", url), response, "20260101000000"))
    collection.write_manifest(
        Manifest(name="site", created="2026-01-01T00:00:00Z", recorded_at="20260101000000")
    )
    seal(collection)
    return collection


@pytest.fixture
async def url(tmp_path: Path, ca: CertAuthority) -> AsyncIterator[str]:
    options = ReplayOptions(port=0, session_ports=None)
    async with serve([_collection(tmp_path / "collections")], ca, options) as server:
        yield server.url


@pytest.fixture
def printed(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs an example in this process against a replay server, and returns what it prints."""

    def run(example: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [example, url, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.browser
def test_episode(printed):
    output = printed("episode.py", "https://site.example/")
    assert "1 requests, 0 misses" in output
    assert "clicked 'Next': ok, now at https://site.example/next" in output


@pytest.mark.browser
def test_tasks(printed, tmp_path):
    output = printed("tasks.py", EXAMPLES / "tasks.yaml", tmp_path / "out")
    assert output == "next-page: 1\nnext-page again: 1, same; as stored: locator\n"


@pytest.mark.browser
def test_rollout_groups(printed):
    output = "rewards 0 1 0 1; advantages -1.00 +1.00 -1.00 +1.00"
    expected = f"next-page from its start: {output}\nnext-page from step 1: {output}\n"
    assert printed("rollout_groups.py", EXAMPLES / "tasks.yaml", 4) == expected


@pytest.mark.browser
async def test_gymnasium_loop(url):
    pytest.importorskip("gymnasium", reason="needs the extra stillweb[gym]")
    program = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / "gymnasium_loop.py", url, EXAMPLES / "tasks.yaml",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    assert output == b"stillweb/next-page-v0: 1\n"


def test_verl_rows(tmp_path):
    """One line of JSON each, whose start is one that the adapters take."""
    program = [sys.executable, EXAMPLES / "verl_rows.py", EXAMPLES / "tasks.yaml"]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    (row,) = map(json.loads, printed.splitlines())
    assert row["extra_info"]["tools_kwargs"] == {"browser": {"create_kwargs": {"task_id": "next-page"}}}
    assert row["prompt"][-1]["content"].startswith("Open the next page")
