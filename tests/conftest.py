"""Fixtures that all tests share, and the order of the tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# No deadlines, because the machine is shared. Every run uses the same examples, so failures are reproducible.
# To search for new ones: pytest --hypothesis-profile=long --timeout=0 tests/replay tests/collections
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile("quick")

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real archives, tasks and sites beside the project; skips where it is absent."""
    folder = Path(os.environ.get("STILLWEB_SHARED", REPO.parent / "shared"))
    if not (folder / "archives").is_dir():
        pytest.skip(f"no shared archives at {folder} (set STILLWEB_SHARED)")
    return folder


def pytest_configure() -> None:
    """Restore SIGINT: a shell ignores it in background jobs, and programs that tests start inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assign the tests of a file to one xdist worker, and sort slow folders and Docker tests.

    Modules share fixtures, so the tests of a file stay together. Folders run in reverse order: the slow ones
    (trainers, server, replay, record, pipeline, env) come first, so that both workers finish at about the
    same time. Tests that need Docker come last and run in a process of their own (Makefile): a container that
    starts or stops changes the network interfaces, and Chromium then drops every connection of concurrent
    tests (net::ERR_NETWORK_CHANGED).
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(REPO).as_posix()))
    items.sort(key=lambda item: item.path.parent, reverse=True)
    items.sort(key=lambda item: item.get_closest_marker("docker") is not None)
