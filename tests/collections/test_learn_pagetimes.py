"""Rules for times that moved with the page's clock between two walks."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from stillweb.collections.learn.pagetimes import clock_rules, clock_shift, equal_time_rules
from stillweb.matching.rules import Rules
from stillweb.model import Request

START = datetime(2026, 11, 26, 14, 30, 1, tzinfo=UTC)
LATER = clock_shift(START)
HOUR = timedelta(hours=1)
Make = Callable[[datetime], Request]


def ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def get(url: str) -> Request:
    return Request("GET", f"https://a.example{url}")


def learned(
    make: Make, *, after: float = 2.0, later: timedelta = LATER, second: Make | None = None
) -> list[str]:
    """Return the names of the rules that one request of each walk gives, `after` seconds from its start."""
    first = make(START + timedelta(seconds=after))
    other = (second or make)(START + timedelta(seconds=after) + later)
    return [f"{rule.where}:{rule.name} {rule.path}" for rule in clock_rules([([first], [other])], START)]


def test_a_range_until_now_moves_with_the_clock() -> None:
    assert learned(lambda now: get(f"/runs?since={ms(now - HOUR)}&until={ms(now)}")) == [
        "query:since /runs",
        "query:until /runs",
    ]


def test_a_past_moment_alone_moves_with_the_clock_if_it_is_whole_days_ago() -> None:
    assert learned(lambda now: get(f"/runs?since={ms(now - 24 * HOUR)}")) == ["query:since /runs"]
    assert not learned(lambda now: get(f"/runs?since={ms(now - HOUR)}"))


@pytest.mark.parametrize("minute", [0, 12, 29, 30, 46, 59])
def test_a_time_in_whole_hours_does_not_hide_the_time_beside_it(minute: int) -> None:
    start = START.replace(minute=minute)
    shift = clock_shift(start)

    def make(now: datetime) -> Request:
        end = now.replace(minute=0, second=0) + HOUR
        return get(f"/runs?after={round(now.timestamp())}&before={round(end.timestamp())}")

    found = clock_rules([([make(start)], [make(start + shift)])], start)
    assert [rule.name for rule in found] == ["after"]


def test_times_in_json_move_with_the_clock() -> None:
    def make(now: datetime) -> Request:
        body = {"start": {"before_": now.isoformat()}, "limit": 5}
        return Request(
            "POST",
            "https://a.example/api",
            (("Content-Type", "application/json"),),
            json.dumps(body).encode(),
        )

    assert learned(make) == ["json:start.before_ /api"]


def test_times_inside_of_a_text_move_with_the_clock() -> None:
    def make(now: datetime, more: str = "") -> Request:
        return get(f"/?filter=ts%20%3E%20{ms(now - HOUR)}%20AND%20ts%20%3C%20{ms(now)}{more}")

    assert learned(make) == ["query:filter /"]
    assert not learned(make, second=lambda now: make(now, "%20OR%20x"))  # another text
    assert not learned(
        lambda now: get(f"/?filter=ts%20%3E%20{ms(START)}"),
        second=lambda now: get(f"/?filter=ts%20%3E%20{ms(START + HOUR)}"),
    )  # moved otherwise


def test_a_later_walk_may_be_slower() -> None:
    assert learned(lambda now: get(f"/?until={ms(now)}"), later=LATER + timedelta(seconds=9.25))


def test_what_names_a_thing_in_the_path_is_left_out_of_the_rule() -> None:
    thing = "7fd120e1-d173-4d3e-98e1-649078a1e88d"
    assert learned(lambda now: get(f"/runs/{thing}/logs?until={ms(now)}")) == ["query:until /runs/*/logs"]


def test_a_cache_buster_need_not_move_with_the_other_times() -> None:
    opened = ms(START)
    assert learned(
        lambda now: get(f"/?time={ms(now) / 1000}&_={opened + 1}"),
        second=lambda now: get(f"/?time={ms(now) / 1000 + 0.75}&_={opened + 2833_001}"),
    ) == ["query:time /"]


def test_seconds_with_and_without_a_fraction_are_one_notation() -> None:
    assert learned(
        lambda now: get(f"/?time={ms(now) // 1000}"),
        second=lambda now: get(f"/?time={ms(now) / 1000 + 0.5}"),
    ) == ["query:time /"]


def test_a_time_that_stays_has_no_rule() -> None:
    picked = ms(START - 9 * HOUR)
    assert learned(lambda now: get(f"/?since={picked}&until={ms(now)}")) == ["query:until /"]


_PAST = ms(START - HOUR)


@pytest.mark.parametrize(
    ("make", "second"),
    [
        # A value of the site, the same whatever the clock.
        (lambda now: get(f"/?id={_PAST}"), None),
        # Two values of the site, made 13 minutes apart, long before the recording.
        (lambda now: get(f"/?id={ms(now - 30 * HOUR)}"), None),
        # Two values of the site, made within the recording.
        (lambda now: get(f"/?id={ms(now)}"), lambda now: get(f"/?id={ms(now - LATER) + 4000}")),
        # Rounded to a quarter of an hour: moved by another amount.
        (lambda now: get(f"/?until={ms(now) // 900_000 * 900_000}"), None),
        # One of two moved further than the other.
        (
            lambda now: get(f"/?since={ms(now - HOUR)}&until={ms(now)}"),
            lambda now: get(f"/?since={ms(now - 2 * HOUR)}&until={ms(now)}"),
        ),
        # The name of a note.
        (lambda now: get(f"/note/{ms(now)}"), None),
        # Another page of the list, or another notation.
        (lambda now: get(f"/?page=1&until={ms(now)}"), lambda now: get(f"/?page=2&until={ms(now)}")),
        (lambda now: get(f"/?until={ms(now)}"), lambda now: get(f"/?until={ms(now) // 1000}")),
        # Only the start of an interval, without the present.
        (lambda now: get(f"/?since={ms(now - HOUR)}"), None),
    ],
)
def test_other_values_that_look_like_times_give_no_rule(make: Make, second: Make | None) -> None:
    assert learned(make, second=second) == []


def test_a_place_on_three_paths_is_a_place_of_the_host() -> None:
    walks = [
        ([get(f"/{path}?until={ms(START)}")], [get(f"/{path}?until={ms(START + LATER)}")]) for path in "abc"
    ]
    assert [rule.path for rule in clock_rules(walks[:2], START)] == ["/a", "/b"]
    (rule,) = clock_rules(walks, START)
    assert rule.path == "**"
    assert rule.evidence.endswith("on 3 paths")


def test_a_time_that_equals_a_proved_one_follows_the_clock_too() -> None:
    day_ago = (START - 24 * HOUR).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    picked = (START - 24 * HOUR).strftime("%Y-%m-%dT%H:%M:00.000Z")
    proved = clock_rules(
        [([get(f"/metrics?from={ms(START)}")], [get(f"/metrics?from={ms(START + LATER)}")])], START
    )
    recorded = [
        get(f"/metrics?from={day_ago}"),
        get(f"/metrics?from={picked}"),
        get(f"/runs?since={day_ago}&state=failed"),
        get(f"/runs?picked={picked}"),
        get("/runs?other=2026-11-25T14:30:02.000Z"),
    ]
    (rule,) = equal_time_rules(recorded, START, Rules(tuple(proved), clock=START))
    assert (rule.name, rule.path, rule.shape) == ("since", "/runs", "clock")
