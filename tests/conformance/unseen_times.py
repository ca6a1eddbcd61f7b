"""Requests that hold the page's time: only all of it moved together, and as the page's present, is the same.

The recording's page clock began at `START`. Recorded requests hold times of 2.5 s later, as `NOW`; requested
ones those of 47 s later, when the environment has reported `LATER`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from unseen import FORM, Ask, Cases, Unseen, get, post, send

START = 1763000000000  # 2025-11-13T02:13:20Z
NOW = START + 2500
LATER = START + 45000
THEN = START + 47123
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
_HOST = "time-"

_cases = Cases()


def _hit(name: str, recorded: Ask | list[Ask], request: Ask, why: str, right: int = 0, **more: Any) -> None:
    _cases.hit(_HOST + name, recorded, request, why, right, **{"date": LATER} | more)


def _miss(name: str, recorded: Ask | list[Ask], request: Ask, why: str, **more: Any) -> None:
    _cases.miss(_HOST + name, recorded, request, why, **{"date": LATER} | more)


def _range(start: float, end: float) -> Ask:
    return get(f"/?since={start:.0f}&until={end:.0f}")


def _iso(ms: int, offset: timedelta = timedelta(0), digits: str = "milliseconds") -> str:
    text = datetime.fromtimestamp(ms / 1000, timezone(offset)).isoformat(timespec=digits)
    return text.replace("+00:00", "Z")


def _graphql(start: int, end: int) -> Ask:
    return post({"query": "query Q($a: T, $b: T) { q(a: $a, b: $b) }", "variables": {"a": start, "b": end}})


def _body(start: str | int, end: str | int, **more: Any) -> Ask:
    return post({"runs": {"start": {"after_": start, "before_": end}}, **more})


# The range moved as the page's clock did.
_hit("ms", _range(NOW - HOUR, NOW), _range(THEN - HOUR, THEN), "the last hour")
_hit(
    "s",
    _range((NOW - HOUR) // 1000, NOW // 1000),
    _range((THEN - HOUR) // 1000, THEN // 1000),
    "the last hour",
)
_hit(
    "us", _range((NOW - HOUR) * 1000, NOW * 1000), _range((THEN - HOUR) * 1000, THEN * 1000), "the last hour"
)
_hit(
    "s-and-ms",
    _range((NOW - HOUR) // 1000, NOW),
    _range((THEN - HOUR) // 1000, THEN),
    "the last hour, its start in seconds",
)
_hit("future", _range(NOW, NOW + DAY), _range(THEN, THEN + DAY), "the next day")
_hit("alone", get(f"/?until={NOW}"), get(f"/?until={THEN}"), "until now")
_hit("day-alone", get(f"/?since={NOW - DAY}"), get(f"/?since={THEN - DAY}"), "the last day, without an end")
_hit(
    "iso",
    _body(_iso(NOW - 7 * DAY), _iso(NOW)),
    _body(_iso(THEN - 7 * DAY), _iso(THEN)),
    "the last week",
)
_EAST = timedelta(hours=2)
_hit(
    "zone",
    _body(_iso(NOW - DAY, _EAST), _iso(NOW, _EAST)),
    _body(_iso(THEN - DAY, _EAST), _iso(THEN, _EAST)),
    "the last day, in local time",
)
_hit(
    "iso-query",
    get(f"/?since={quote(_iso(NOW - DAY))}&until={quote(_iso(NOW))}"),
    get(f"/?since={quote(_iso(THEN - DAY))}&until={quote(_iso(THEN))}"),
    "the last day",
)
_hit("graphql", _graphql(NOW - DAY, NOW), _graphql(THEN - DAY, THEN), "the last day")
_hit(
    "form",
    send("POST", "/", f"since={NOW - DAY}&until={NOW}".encode(), FORM),
    send("POST", "/", f"since={THEN - DAY}&until={THEN}".encode(), FORM),
    "the last day",
)
_hit(
    "with-buster",
    get(f"/?since={NOW - HOUR}&until={NOW}&_={NOW + 3}"),
    get(f"/?since={THEN - HOUR}&until={THEN}&_={THEN + 9}"),
    "the last hour, and a cache-buster",
)
_hit("path", get(f"/since/{NOW}/list"), get(f"/since/{THEN}/list"), "a rule names that segment")
_hit(
    "sizes",
    [_range(NOW - HOUR, NOW), _range(NOW - DAY, NOW)],
    _range(THEN - DAY, THEN),
    "the last day was recorded, too",
    right=1,
)
_hit("exact", [_range(START - 9 * HOUR, START - HOUR)], _range(START - 9 * HOUR, START - HOUR), "as recorded")

_hit(
    "rounded",
    _range(START + 2000 - HOUR, START + 2000),
    _range(START + 45000 - HOUR, START + 45000),
    "the present without its milliseconds",
    date=START + 45700,
)
_hit(
    "rounded-start",
    _range(START + 2000 - HOUR, NOW),
    _range(START + 47000 - HOUR, THEN),
    "the last hour, its start without milliseconds",
)
_hit(
    "fraction",
    get(f"/?until={NOW / 1000}&_={START}"),
    get(f"/?until={THEN / 1000}&_={START + 1}"),
    "now, in seconds with a fraction",
)
_hit("kept", _range(NOW - HOUR, NOW), _range(THEN - HOUR, THEN), "read a second ago", date=THEN + 1100)

_hit(
    "start-kept",
    _range(START + 1000 - DAY, NOW),
    _range(START + 9000 - DAY, THEN),
    "the last day, its start computed when the page was opened",
)
_hit(
    "end-kept",
    _range(NOW, START + 1000 + 7 * DAY),
    _range(THEN, START + 9000 + 7 * DAY),
    "the next week, its end computed when the page was opened",
)


# Times inside of a text, as in a filter expression.
def _filter(start: object, end: object, more: str = "") -> Ask:
    return get(f"/?filter={quote(f'ts > {start} AND ts < {end}{more}')}")


_hit("text", _filter(NOW - 7 * DAY, NOW), _filter(THEN - 7 * DAY, THEN), "the last week")
_hit(
    "text-iso",
    post({"filter": f"[{_iso(NOW - DAY)} TO {_iso(NOW)}]"}),
    post({"filter": f"[{_iso(THEN - DAY)} TO {_iso(THEN)}]"}),
    "the last day",
)
_hit(
    "text-beside",
    get(f"/?until={NOW}&filter={quote(f'ts > {NOW - HOUR}')}"),
    get(f"/?until={THEN}&filter={quote(f'ts > {THEN - HOUR}')}"),
    "the last hour, its end apart",
)
_miss("text-size", _filter(NOW - 7 * DAY, NOW), _filter(THEN - 8 * DAY, THEN), "eight days")
_miss(
    "text-start-kept",
    _filter(START + 1000 - DAY, NOW),
    _filter(START + 9000 - DAY, THEN),
    "in a text, a second more may be another value",
)
_miss("text-words", _filter(NOW - DAY, NOW), _filter(THEN - DAY, THEN, " AND ok"), "another filter")
_miss("text-order", _filter(NOW - DAY, NOW), _filter(THEN, THEN - DAY), "from the end to the start")
_miss("text-picked", _filter(NOW - 9 * DAY, NOW - DAY), _filter(NOW - 8 * DAY, NOW - DAY), "past days")
_miss(
    "text-number",
    _filter(NOW - DAY, NOW, " AND id = 1763000001"),
    _filter(THEN - DAY, THEN, " AND id = 1763000002"),
    "another id",
)
_miss(
    "text-time",
    _filter(NOW - DAY, NOW, f" AND id = {START - 8 * DAY - 1}"),
    _filter(THEN - DAY, THEN, f" AND id = {START - 8 * DAY - 2}"),
    "another id like a time",
)
_miss("text-part", _filter(f"b{NOW}x", NOW), _filter(f"b{THEN}x", THEN), "a cursor in the text")

# Another range.
_miss("size", _range(NOW - HOUR, NOW), _range(THEN - 2 * HOUR, THEN), "two hours")
_miss("size-minute", _range(NOW - 5 * MINUTE, NOW), _range(THEN - 6 * MINUTE, THEN), "six minutes")
_miss("size-second", _range(NOW - HOUR, NOW), _range(THEN - HOUR - SECOND, THEN), "a second more")
_miss("size-minutes", _range(NOW - DAY, NOW), _range(THEN - DAY - 2 * MINUTE, THEN), "two minutes more")
_miss(
    "size-days", _range(NOW - 7 * DAY, NOW), _range(THEN - 7 * DAY - 11 * MINUTE, THEN), "eleven minutes more"
)
_miss("size-less", _range(NOW - DAY, NOW), _range(THEN - DAY + 2 * MINUTE, THEN), "two minutes less")
_miss(
    "size-picked", _range(NOW - DAY, NOW), _range(START + 40 * SECOND - DAY, THEN), "from 2:14 of a calendar"
)
_miss("direction", _range(NOW - HOUR, NOW), _range(THEN, THEN + HOUR), "the next hour")
_miss("swapped", _range(NOW - HOUR, NOW), _range(THEN, THEN - HOUR), "from the end to the start")
_miss("stays", _range(NOW - HOUR, NOW), _range(NOW - HOUR, THEN), "its start stayed")
_miss("end-stays", _range(NOW - HOUR, NOW), _range(THEN - HOUR, NOW), "its end stayed")
_miss("before", _range(NOW - HOUR, NOW), _range(THEN - 2 * HOUR, THEN - HOUR), "the hour before")
_miss(
    "before-minutes",
    _range(NOW - HOUR, NOW),
    _range(NOW - HOUR + 10 * SECOND, NOW + 10 * SECOND),
    "an hour that ended 35 s ago",
)
_miss(
    "picked",
    _range(NOW - HOUR, NOW),
    _range(START - 5 * DAY, START - 5 * DAY + HOUR),
    "an hour that a user picked",
)
_miss(
    "picked-both",
    _range(1762905600000, 1762992000000),
    _range(1762819200000, 1762905600000),
    "another day of the calendar",
)
_miss("picked-start", _range(1762905600000, NOW), _range(1762819200000, THEN), "another first day")
_miss("picked-same-start", _range(1762905600000, NOW), _range(1762905600000, THEN), "the range has grown")
_miss(
    "picked-end",
    _range(1762905600000, NOW),
    _range(1762905600000, 1762992000000),
    "an end that a user picked",
)
_miss("past", get(f"/?until={NOW}"), get(f"/?until={START - 30 * DAY}"), "a month ago")
_miss("days-alone", get(f"/?since={NOW - DAY}"), get(f"/?since={THEN - 2 * DAY}"), "two days, not one")
_miss("day-alone-now", get(f"/?since={NOW - DAY}"), get(f"/?since={THEN}"), "from now")
_miss(
    "day-alone-minute", get(f"/?since={NOW - DAY}"), get(f"/?since={THEN - DAY + MINUTE}"), "less than a day"
)
_miss("past-minute", get(f"/?until={NOW}"), get(f"/?until={THEN - MINUTE}"), "a minute ago")
_miss("ahead", get(f"/?until={NOW}"), get(f"/?until={THEN + MINUTE}"), "in a minute")
_miss(
    "since-only",
    get(f"/?since={NOW - MINUTE}"),
    get(f"/?since={THEN - MINUTE}"),
    "no present to compare with",
)
_miss(
    "since-other", get(f"/?since={NOW - 5 * MINUTE}"), get(f"/?since={THEN - MINUTE}"), "one minute, not five"
)
_miss(
    "since-recorded-late",
    get(f"/?since={START + 10 * SECOND}"),
    get(f"/?since={LATER - 20 * SECOND}"),
    "20 s ago: not the present",
)

_miss(
    "ten-seconds", get(f"/?since={NOW}"), get(f"/?since={THEN - 10 * SECOND}"), "ten seconds ago", date=THEN
)

# Another clock.
_miss(
    "late",
    _range(NOW - HOUR, NOW),
    _range(NOW + 11 * MINUTE - HOUR, NOW + 11 * MINUTE),
    "too long after",
    date=NOW + 11 * MINUTE,
)
_miss(
    "early",
    _range(NOW - HOUR, NOW),
    _range(START - DAY - HOUR, START - DAY),
    "the day before",
    date=START - DAY,
)
_miss(
    "unknown", _range(NOW - HOUR, NOW), _range(THEN - HOUR, THEN), "no page has reported its time", date=None
)
_miss(
    "recorded-elsewhen",
    _range(NOW - DAY, NOW - DAY + HOUR),
    _range(THEN - HOUR, THEN),
    "recorded for a past hour",
)

# Another notation, place or value beside it.
_miss("unit", _range(NOW - HOUR, NOW), _range((THEN - HOUR) // 1000, THEN // 1000), "in seconds")
_miss(
    "spelled",
    _body(_iso(NOW - DAY), _iso(NOW)),
    _body(_iso(THEN - DAY, _EAST), _iso(THEN, _EAST)),
    "another zone",
)
_miss(
    "digits",
    _body(_iso(NOW - DAY), _iso(NOW)),
    _body(_iso(THEN - DAY, digits="seconds"), _iso(THEN, digits="seconds")),
    "no fraction",
)
_miss("type", _body(NOW - DAY, NOW), _body(str(THEN - DAY), str(THEN)), "texts, not numbers")
_miss("place", get(f"/?until={NOW}"), get(f"/?since={THEN}"), "from now, not until now")
_miss("one-more", get(f"/?until={NOW}"), _range(THEN - HOUR, THEN), "another start")
_miss(
    "beside", _body(_iso(NOW - DAY), _iso(NOW), page=1), _body(_iso(THEN - DAY), _iso(THEN), page=2), "page 2"
)
_miss("method", _range(NOW - HOUR, NOW), Ask("DELETE", _range(THEN - HOUR, THEN).path), "it deletes")
_miss(
    "minute-only",
    get("/?until=2025-11-13T02:13Z"),
    get("/?until=2025-11-13T02:14Z"),
    "minutes do not show the present",
)
_miss("no-date", get("/?until=2025-02-30T02:13:20Z"), get("/?until=2025-02-31T02:13:20Z"), "no dates")
_miss("path-size", get(f"/since/{NOW}/list"), get(f"/since/{THEN - HOUR}/list"), "an hour ago")
_miss("path-other", get(f"/note/{NOW}"), get(f"/note/{THEN}"), "a note, made then")

# Values that look like times, in places that no rule names, or that are not the present.
_miss("id", get(f"/?id={NOW // 1000}"), get(f"/?id={THEN // 1000}"), "an id like a time")
_miss("id-named", get(f"/?until={START + 3000}"), get(f"/?until={START + 4000}"), "its rule, not the present")
_miss(
    "cursor",
    get(f"/?since={NOW - HOUR}&until={NOW}&after=b{NOW}x"),
    get(f"/?since={THEN - HOUR}&until={THEN}&after=b{THEN}x"),
    "another page of the list",
)
_miss("json-id", post({"id": NOW}), post({"id": THEN}), "an id like a time")

TIMES: tuple[Unseen, ...] = tuple(_cases.made)

_NAMES = {
    "query": ("since", "until", "filter"),
    "form": ("since", "until"),
    "json": ("runs.start.after_", "runs.start.before_", "variables.a", "variables.b", "filter"),
}
_LINES = [
    f'  - {{where: {where}, name: {name}, shape: clock, host: "{_HOST}*.example", origin: learned}}'
    for where, names in _NAMES.items()
    for name in names
]
_LINES.append(f'  - {{where: path, name: 2, shape: clock, host: "{_HOST}*.example", path: "/since/**"}}')
TIMES_RULES = "\n".join(["", *_LINES, f"clock: {datetime.fromtimestamp(START / 1000, UTC).isoformat()}", ""])
