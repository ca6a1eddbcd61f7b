"""The one source of time and randomness."""

from __future__ import annotations

from stillweb import clock


def test_equal_seeds_draw_equally_and_others_do_not() -> None:
    draws = [clock.seeded("page", 7).random() for _ in range(2)]
    assert draws[0] == draws[1]
    assert clock.seeded("page", 8).random() != draws[0]
    assert clock.seeded("pag", "e7").random() != draws[0]
