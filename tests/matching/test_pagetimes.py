"""Times of requests by their distance from the page's present, and rules for them."""

from __future__ import annotations

import pytest

from stillweb.errors import CollectionError
from stillweb.matching.pagetimes import instant_of
from stillweb.matching.rules import Rules
from stillweb.model import Request

START = 1763000000000  # 2025-11-13T02:13:20Z


def rules(*lines: str, clock: str = 'clock: "2025-11-13T02:13:20Z"') -> Rules:
    listed = "".join(f"\n  - {{{line}, shape: clock}}" for line in lines)
    return Rules.parse(f"version: 1\n{clock}\nvolatile:{listed}\n")


def key(found: Rules, url: str) -> bytes | None:
    alias = found.clock_alias(Request("GET", f"https://a.example{url}"))
    return alias and alias.key


@pytest.mark.parametrize(
    ("text", "at", "step"),
    [
        ("1763000000", START * 1000, 10**6),
        ("1763000000.25", START * 1000 + 250_000, 1000),
        ("1763000000123", START * 1000 + 123_000, 1000),
        ("1763000000000", START * 1000, 10**6),
        ("2025-11-13T02:13:20.000Z", START * 1000, 10**6),
        ("1763000000123456", START * 1000 + 123_456, 1),
        ("2025-11-13T02:13:20Z", START * 1000, 10**6),
        ("2025-11-13 04:13:20.5+02:00", START * 1000 + 500_000, 100_000),
        ("2025-11-13T02:13Z", START * 1000 - 20 * 10**6, 60 * 10**6),
    ],
)
def test_notations_of_a_time(text: str, at: int, step: int) -> None:
    found = instant_of(text)
    assert found is not None
    assert (found.at, found.step) == (at, step)


@pytest.mark.parametrize("text", ["2025-02-30T02:13:20Z", "2025-11-13", "17630000", "soon"])
def test_other_texts_are_no_times(text: str) -> None:
    assert instant_of(text) is None


def test_a_page_that_rounds_down_to_seconds_has_equal_distances() -> None:
    found = rules("where: query, name: since", "where: query, name: until")
    one = key(found, f"/?since={START // 1000 - 60}&until={START + 999}")
    assert one is not None
    assert one == key(found, f"/?since={START // 1000 - 59}&until={START + 1000}")
    assert one != key(found, f"/?since={START // 1000 - 59}&until={START + 999}")


def test_a_request_without_the_present_has_no_key() -> None:
    found = rules("where: query, name: since")
    assert key(found, f"/?since={START - 3_600_000}") is None
    assert key(found, f"/?since={START + 600_001}") is None
    assert key(found, "/?since=yesterday") is None
    assert key(found, f"/?since={START}") is not None


def test_the_same_time_of_an_earlier_day_shows_the_present() -> None:
    found = rules("where: query, name: since")
    day = 86_400_000
    one = key(found, f"/?since={START - day + 123}")
    assert one is not None
    assert one == key(found, f"/?since={START - day + 5123}")
    assert one not in (key(found, f"/?since={START - 2 * day + 123}"), key(found, f"/?since={START + 123}"))
    picked = (START - day + 40_000, START - day - 1_000, START - day + 601_000, START + day + 123)
    assert {key(found, f"/?since={each}") for each in picked} == {None}
    alias = found.clock_alias(Request("GET", f"https://a.example/?since={START - day + 5123}"))
    assert alias is not None
    assert alias.now.is_present(START + 5000)
    assert not alias.now.is_present(START + 60_000)


def test_the_clock_is_written_and_read() -> None:
    found = rules("where: query, name: since")
    assert Rules.parse(found.dump()) == found


@pytest.mark.parametrize(
    ("line", "clock", "why"),
    [
        ("where: query, name: since", "", "line 4: shape clock needs `clock:`"),
        ("where: header, name: since", 'clock: "2025-11-13T02:13:20Z"', "is not for header fields"),
        ("where: query, name: since", "clock: soon", "line 2: clock is 'soon', not a time"),
    ],
)
def test_rules_that_could_not_apply_are_refused(line: str, clock: str, why: str) -> None:
    with pytest.raises(CollectionError, match=why):
        rules(line, clock=clock)


def test_two_sets_are_not_exchanged() -> None:
    lines = [f"  - {{where: query, name: {name}, shape: set}}" for name in "mn"]
    found = Rules.parse("\n".join(["version: 1", "volatile:", *lines]))

    def alias(url: str) -> bytes:
        return found.aliases(Request("GET", f"https://a.example/?{url}"))[0].key

    assert alias("m=a|b&n=c|d") == alias("m=b|a&n=d|c")
    assert alias("m=a|b&n=c|d") != alias("m=c|d&n=a|b")
