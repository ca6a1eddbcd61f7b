"""Fixtures that all tests share, and the order of the tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings

from shared_browsers import SharedBrowsers
from stillweb.certs import CertAuthority

# No deadlines, because the machine is shared. Every run uses the same examples, so failures are reproducible.
# To search for new ones: pytest --hypothesis-profile=long --timeout=0 tests/replay tests/collections
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile("quick")

REPO = Path(__file__).resolve().parents[1]
# Folders without a long file: they come last, so that no process ends long after the others.
QUICK = ("certs", "collections", "coverage", "docs", "http", "matching")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real archives, tasks and sites beside the project; skips where it is absent."""
    folder = Path(os.environ.get("STILLWEB_SHARED", REPO.parent / "shared"))
    if not (folder / "archives").is_dir():
        pytest.skip(f"no shared archives at {folder} (set STILLWEB_SHARED)")
    return folder


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertAuthority:
    """The CA of all tests that need no other: browsers that trust the same CA can be shared."""
    return CertAuthority.init(tmp_path_factory.mktemp("certs") / "ca")


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def shared_browsers() -> AsyncIterator[SharedBrowsers]:
    module = importlib.import_module("stillweb.browser.launch")  # the package has a function of this name
    with pytest.MonkeyPatch.context() as patch:
        browsers = SharedBrowsers(module._started)
        patch.setattr(module, "_started", browsers.start)
        patch.setattr(module, "playwright_driver", browsers.driver)
        patch.setattr("asyncio.run", browsers.run)
        yield browsers
        await browsers.close()


@pytest.fixture
def own_browsers(shared_browsers: SharedBrowsers) -> Iterator[None]:
    """For tests of the start, loss and end of browsers: each start is a start."""
    shared_browsers.sharing = False
    yield
    shared_browsers.sharing = True


def pytest_collection() -> None:
    """Collect tests without garbage collection, which would walk all of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which is as seldom as in the command line."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 50, 50)


def pytest_configure() -> None:
    """Restore SIGINT: a shell ignores it in background jobs, and programs that tests start inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort slow folders, quick folders and Docker tests.

    Folders run in reverse order: the slow ones (trainers, server, replay, record, pipeline, env) come first
    and the quick ones last, so that all workers finish at about the same time. Tests that need Docker come
    after them and run in a process of their own (Makefile): a container that starts or stops changes the
    network interfaces, and Chromium then drops every connection of concurrent tests
    (net::ERR_NETWORK_CHANGED).
    """
    items.sort(key=lambda item: item.path.parent, reverse=True)
    items.sort(key=lambda item: item.path.parent.name in QUICK)
    items.sort(key=lambda item: item.get_closest_marker("docker") is not None)
