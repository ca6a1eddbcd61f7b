"""The one door to time and randomness."""

from __future__ import annotations

from stillweb import clock


def test_equal_seeds_draw_equally_and_others_do_not() -> None:
    draws = [clock.seeded("page", 7).random() for _ in range(2)]
    assert draws[0] == draws[1]
    assert clock.seeded("page", 8).random() != draws[0]
    assert clock.seeded("pag", "e7").random() != draws[0]


async def test_poll_stops_when_the_condition_holds() -> None:
    asked = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert await clock.poll(third_time, timeout=5, interval=0.001)
    assert len(asked) == 3


async def test_poll_gives_up() -> None:
    async def never() -> bool:
        return False

    assert not await clock.poll(never, timeout=0.02, interval=0.001)
