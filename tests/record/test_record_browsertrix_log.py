"""Genuine logs of browsertrix, and the end of the crawl that each one states."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.errors import ProgramNotFound, RecordError, UpstreamUnreachable, UsageError
from stillweb.record.browsertrix.log import Log, judge
from stillweb.record.browsertrix.settings import Container


def heard(text: str) -> tuple[Log, list]:
    log = Log()
    events = [event for line in text.splitlines() if (event := log.feed(line))]
    return log, events


@pytest.mark.shared
def test_a_whole_crawl_reports_every_page_and_never_goes_back(shared):
    log, events = heard((shared / "archives/browsertrix/logs/docs25.stdout").read_text())
    assert (log.version, log.pages, log.total, log.failed, log.limit_hit) == ("1.14.1", 25, 25, 0, True)
    assert (log.stray, log.fatal, log.faults) == ([], "", [])
    assert sum(bool(event.url) for event in events) == 25
    through = [event.pages for event in events]
    assert through == sorted(through)
    assert (events[0].pages, events[0].queued, events[-1].pages, events[-1].queued) == (0, 1, 25, 0)


# Its exit codes are those that were seen with these logs.
ENDS = {
    "ec-badurl": (17, UsageError, "No valid seeds", "its seeds"),
    "ec-faillimit": (12, RecordError, "Failed threshold reached 1 >= 1", None),
    "ec-refusedseed": (
        1,
        UpstreamUnreachable,
        "http://docs.local:8499/ cannot be reached: net::ERR_CONN",
        None,
    ),
    "ec-sigint": (11, None, "", "a signal"),
    "ec-sizelimit": (14, None, "", "the limit of size"),
    "ec-timelimit": (15, None, "", "the limit of time"),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", ENDS)
def test_each_way_to_end_is_reported(shared, name):
    code, error, words, stopped = ENDS[name]
    log, _ = heard((shared / f"archives/browsertrix/logs/{name}.log").read_text())
    end = judge(code, log, Container())
    assert end.stopped == stopped or stopped is None
    if error is None:
        assert end.error is None
    else:
        assert type(end.error) is error
        assert words in str(end.error)
        assert end.error.hint


@pytest.mark.parametrize(
    ("code", "said", "error", "words"),
    [
        (0, "", None, ""),
        (1, "Invalid values:\n  Argument: workers", UsageError, "Argument: workers"),
        (3, "", RecordError, "disk is full"),
        (8, "", RecordError, "Redis"),
        (9, "", RecordError, "status 9"),
        (10, "", RecordError, "browser crashed"),
        (13, "", None, ""),
        (16, "", RecordError, "too full"),
        (18, "", RecordError, "limits the request rate"),
        (99, "", RecordError, "status 99"),
        (137, "", RecordError, "killed"),
        (125, 'docker: Error: The container name "/x" is already in use', UsageError, "is running already"),
        (125, "docker: Error: no space", RecordError, "no space"),
        (127, "exec: crawl: not found", ProgramNotFound, "no program `crawl`"),
    ],
)
def test_every_exit_code_has_its_error_and_its_next_step(code, said, error, words):
    log, _ = heard(said)
    end = judge(code, log, Container())
    assert (type(end.error) if end.error else None) is error
    assert words in str(end.error or "")
    assert bool(end.stopped) == (code != 0)
    assert end.error is None or end.error.hint


def test_whatever_code_follows_our_signal_it_is_the_signals_doing():
    assert judge(130, Log(), Container(), interrupted=True).error is None
    assert judge(143, Log(), Container(), interrupted=False).error is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
LINES = st.one_of(
    st.text(),
    JSON.map(json.dumps),
    st.fixed_dictionaries(
        {"logLevel": st.sampled_from(["info", "error", "fatal"]), "message": JSON | st.just("Page Finished"),
         "context": st.sampled_from(["crawlStatus", "pageStatus", "recorder", "redis", "new"]),
         "details": JSON | st.dictionaries(st.sampled_from(["crawled", "total", "limit", "failed"]), JSON)}
    ).map(json.dumps),
)  # fmt: skip


@given(st.lists(LINES, max_size=5))
def test_no_line_is_too_strange(lines):
    log = Log()
    for line in lines:
        event = log.feed(line)
        assert event is None or min(event.pages, event.queued, event.failed) >= 0
    assert len(log.stray) <= 20
