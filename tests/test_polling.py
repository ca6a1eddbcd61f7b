"""Asking until it holds."""

from __future__ import annotations

from stillweb.polling import poll


async def test_poll_stops_when_the_condition_holds() -> None:
    calls = []

    def third_time() -> bool:
        calls.append(1)
        return len(calls) == 3

    assert await poll(third_time, timeout=5, interval=0.001)
    assert len(calls) == 3


async def test_poll_gives_up() -> None:
    async def never() -> bool:
        return False

    assert not await poll(never, timeout=0.02, interval=0.001)
