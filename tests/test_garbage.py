"""Many simultaneous objects, without the collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from stillweb.garbage import uncollected


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def collections() -> int:
    return sum(each["collections"] for each in gc.get_stats())


def made(count: int) -> list[list[int]]:
    return [[number] for number in range(count)]


def test_nothing_is_collected_within_and_it_continues_afterwards() -> None:
    before = collections()
    with uncollected():
        stored = made(50_000)
        assert collections() == before
    assert gc.isenabled()
    stored += made(50_000)
    assert collections() > before


def test_it_continues_after_an_error() -> None:
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


async def test_blocks_of_several_tasks_leave_it_on() -> None:
    async def block(turns: int) -> None:
        with uncollected():
            for _ in range(turns):
                await asyncio.sleep(0)

    await asyncio.gather(block(1), block(3), block(2))
    assert gc.isenabled()


def test_who_has_put_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
