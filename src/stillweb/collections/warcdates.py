"""WARC-Date, as it should be written and as it is found, to and from 14-digit timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from stillweb.urls import from_timestamp, to_timestamp

# WARC 1.1 §5.4: W3C date-time, to nanoseconds. Seen besides: offsets (+0100), and ClueWeb09's
# 2008-10-294T..., in which the day is that of the year.
_DATE = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d{2,3}))?(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?)?\s*(Z|[+-]\d\d:?\d\d)?"
)


def timestamp_of(date: str) -> str:
    """Return 14 digits UTC of a WARC-Date, or of 14 digits; "" if it is no date."""
    date = date.strip()
    if date.isdigit():
        return _digits(date)
    match = _DATE.fullmatch(date)
    if not match:
        return ""
    year, month, day, hour, minute, second, zone = match.groups()
    try:
        if day and len(day) == 3:
            when = datetime(int(year), 1, 1) + timedelta(days=int(day) - 1)
        else:
            when = datetime(int(year), int(month), int(day or 1))
        when = when.replace(hour=int(hour or 0), minute=int(minute or 0), second=min(int(second or 0), 59))
        return to_timestamp((when - _offset(zone)).replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return ""


def _digits(date: str) -> str:
    try:
        return to_timestamp(from_timestamp(date[:14]))
    except ValueError:
        return ""


def _offset(zone: str | None) -> timedelta:
    if not zone or zone == "Z":
        return timedelta()
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timedelta(minutes=minutes if zone[0] == "+" else -minutes)


def iso_date(timestamp: str) -> str:
    """Return the WARC-Date of a timestamp of 14 digits; other text is returned as it is."""
    digits = _digits(timestamp)
    return from_timestamp(digits).strftime("%Y-%m-%dT%H:%M:%SZ") if digits else timestamp
