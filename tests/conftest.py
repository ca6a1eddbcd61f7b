"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadlines: the machine is shared. The same examples in each run: what fails, fails again.
# To look for new ones: pytest --hypothesis-profile=long --timeout=0 tests/replay tests/collections
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs Docker last: a container that comes or goes changes the machine's network interfaces,
    and Chromium then drops every connection of the tests beside it (net::ERR_NETWORK_CHANGED)."""
    items.sort(key=lambda item: item.get_closest_marker("docker") is not None)
