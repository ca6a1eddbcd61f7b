"""The server's tests run on both event loops: transports of the two differ in small ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from stillweb.errors import ProgramNotFound
from stillweb.replay.pywb.process import find_pywb

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    both = item.path.name == "test_replay_server.py"
    return LOOPS if both else {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def pywb() -> Path:
    """pywb's `wayback`, where it is installed."""
    try:
        return find_pywb()
    except ProgramNotFound as error:
        pytest.skip(f"{error}; {error.hint}")
