"""A replay server with the real archives of WARC-Bench, and one browser, for a whole module."""

from __future__ import annotations

import pytest
import pytest_asyncio
from small_site import build

from stillweb.browser.launch import launch
from stillweb.env.env import Env
from stillweb.env.tasks.load import load_tasks
from stillweb.replay.server.server import ReplayOptions, serve

WARC_BENCH = ("svelte_gantt", "svelte_toolbar", "synthetic_train", "triwest")


@pytest.fixture(scope="session")
def warc_bench_collections(shared, tmp_path_factory):
    from stillweb.collections.importers.importer import import_files
    from stillweb.collections.layout import Collection
    from stillweb.collections.pack.seal import seal

    root = tmp_path_factory.mktemp("collections")
    for name in WARC_BENCH:
        import_files([shared / "archives" / f"{name}.wacz"], root, name)
        seal(Collection.open(root, name))
    return [Collection.open(root, name) for name in WARC_BENCH]


@pytest.fixture(scope="session")
def warc_bench_tasks(shared):
    return {task.id: task for task in load_tasks(shared / "tasks" / "warc_bench_public.json")}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def warc_bench(warc_bench_collections, ca):
    options = ReplayOptions(port=0, session_ports=None)
    async with serve(warc_bench_collections, ca, options) as server:
        yield server


@pytest.fixture(scope="module")
def exact():
    """Whether the module's browser is one for level `exact`."""
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser(ca, exact):
    async with launch(spki=ca.spki_hashes(), exact=exact) as started:
        yield started


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """The small site."""
    return build(tmp_path_factory.mktemp("collections"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replay(collection, ca):
    """A replay server with the module's collection."""
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def env(replay, browser):
    async with Env(replay.url, browser=browser) as opened:
        yield opened
