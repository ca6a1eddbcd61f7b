"""The examples run as they are written."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
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


async def _printed(tmp_path: Path, example: str, *arguments: object) -> str:
    """Run an example against a replay server, and return what it prints."""
    ca = CertAuthority.init(tmp_path / "certs")
    options = ReplayOptions(port=0, session_ports=None)
    async with serve([_collection(tmp_path / "collections")], ca, options) as server:
        program = await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLES / example, server.url, *map(str, arguments),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, told = await program.communicate()
    assert program.returncode == 0, told.decode()
    return printed.decode()


@pytest.mark.browser
async def test_episode(tmp_path):
    printed = await _printed(tmp_path, "episode.py", "https://site.example/")
    assert "1 requests, 0 misses" in printed
    assert "clicked 'Next': ok, now at https://site.example/next" in printed


@pytest.mark.browser
async def test_tasks(tmp_path):
    printed = await _printed(tmp_path, "tasks.py", EXAMPLES / "tasks.yaml", tmp_path / "out")
    assert printed == "next-page: 1\nnext-page again: 1, same; as stored: locator\n"


@pytest.mark.browser
async def test_rollout_groups(tmp_path):
    printed = await _printed(tmp_path, "rollout_groups.py", EXAMPLES / "tasks.yaml", 4)
    told = "rewards 0 1 0 1; advantages -1.00 +1.00 -1.00 +1.00"
    assert printed == f"next-page from its start: {told}\nnext-page from step 1: {told}\n"


@pytest.mark.browser
async def test_gymnasium_loop(tmp_path):
    pytest.importorskip("gymnasium", reason="needs the extra stillweb[gym]")
    printed = await _printed(tmp_path, "gymnasium_loop.py", EXAMPLES / "tasks.yaml")
    assert printed == "stillweb/next-page-v0: 1\n"


def test_verl_rows(tmp_path):
    """One line of JSON each, whose start is one that the adapters take."""
    program = [sys.executable, EXAMPLES / "verl_rows.py", EXAMPLES / "tasks.yaml"]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    (row,) = map(json.loads, printed.splitlines())
    assert row["extra_info"]["tools_kwargs"] == {"browser": {"create_kwargs": {"task_id": "next-page"}}}
    assert row["prompt"][-1]["content"].startswith("Open the next page")
