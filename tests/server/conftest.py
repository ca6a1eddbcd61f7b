"""A replay server with the small site, and rollout servers on it, spoken to over real HTTP."""

from __future__ import annotations

from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import async_playwright
from small_site import ORIGIN, build

from stillweb.browser.launch import find_browser
from stillweb.collections.layout import Collection
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.vector import VectorOptions
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.server.options import QUEUES, ServeOptions
from stillweb.server.serving import serve_rollouts

HOME = ORIGIN + "/"
ADA = Evaluation(EvalKind.JS, "document.getElementById('name').value == 'Ada'")
NAMED = Task("named", "Say Ada", HOME, evaluation=ADA)
AT_ONCE = 2


@pytest.fixture(scope="session")
def collections_root(tmp_path_factory):
    """A folder with the small site as a collection."""
    root = tmp_path_factory.mktemp("collections")
    build(root)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replay(ca, collections_root):
    async with serve(
        [Collection.open(collections_root, "small")], ca, ReplayOptions(port=0, session_ports=None)
    ) as server:
        yield server


@pytest.fixture(scope="session")
def serving():
    """Start a rollout server with what a test needs otherwise than usual."""

    @asynccontextmanager
    async def serving(url, key="", **options):
        usual = {
            "sessions": 4,
            "level": "clock",
            "tasks": {NAMED.id: NAMED},
            "queues": {**QUEUES, "execute": AT_ONCE},
            "drain_seconds": 0.0,
            "vector": VectorOptions(pool=PoolOptions(browsers=2)),
        }
        async with serve_rollouts(url, ServeOptions(**{**usual, **options}), key=key) as server:
            yield server

    return serving


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rollouts(replay, serving):
    """Four sessions on two browsers, two simultaneous steps."""
    async with serving(replay.url, observe=("axtree", "screenshot")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def client(rollouts):
    """An HTTP client; what it leased is released after the test."""
    async with httpx.AsyncClient(base_url=rollouts.url, timeout=60, trust_env=False) as client:
        yield client
        for session in (await client.get("/v1/status")).json()["sessions"]:
            if session["lease"]:
                await client.delete(f"/v1/leases/{session['lease']}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_browser():
    """A browser as a person has it, not that of an episode."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser())
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(own_browser):
    """A page whose errors fail the test."""
    page = await own_browser.new_page(viewport={"width": 1280, "height": 900})
    complaints = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    await page.close()
    assert not complaints
