"""Requests of a step, counted from a ledger or from the browser's events."""

from __future__ import annotations

import pytest

from stillweb.browser.activity import Requested
from stillweb.env.episode.episode import from_events, from_ledger
from stillweb.errors import InfraError
from stillweb.http.control import LedgerEntry


def entry(seq, tier):
    return LedgerEntry(seq, "GET", f"https://a.example/{seq}", 200, tier, "", 0, 0.0)


def requested(number, **what):
    return Requested(f"https://a.example/{number}", "GET", "xhr", 0.0, **what)


def test_a_ledger_reports_misses_from_noise():
    traffic = from_ledger([entry(1, "exact"), entry(2, "miss"), entry(3, "noise"), entry(4, "sequence")])
    assert (traffic.requests, traffic.hits, traffic.misses, traffic.noise) == (4, 2, 1, 1)
    assert traffic.missed == ("GET https://a.example/2",)
    assert traffic.source == "ledger"


def test_what_looser_tiers_answered_is_a_hit_that_is_named():
    traffic = from_ledger([entry(1, "exact"), entry(2, "fuzzy"), entry(3, "pywb")])
    assert (traffic.hits, traffic.guesses, traffic.to_dict()["guesses"]) == (3, 2, 2)


def test_what_the_replay_could_not_read_is_no_miss_but_ours():
    with pytest.raises(InfraError, match=r"GET https://a\.example/2"):
        from_ledger([entry(1, "exact"), entry(2, "fault")])


def test_misses_are_counted_all_and_listed_first():
    traffic = from_ledger([entry(seq, "miss") for seq in range(50)])
    assert traffic.misses == 50
    assert len(traffic.missed) == 20


def test_events_take_errors_for_misses():
    events = [requested(1, status=200), requested(2, status=404), requested(3, failure="net::ERR_FAILED")]
    traffic = from_events(events)
    assert (traffic.source, traffic.requests, traffic.hits, traffic.misses) == ("browser", 3, 1, 2)
