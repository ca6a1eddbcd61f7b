"""Limits of a session's ledger: by count and by bytes, the oldest out first, and the loss is reported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stillweb.clock import perf, seeded
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.http.control import LedgerEntry
from stillweb.matching.resolver import Policy
from stillweb.model import Request, Response
from stillweb.replay.ledger import session as ledgers
from stillweb.replay.ledger.session import ClosedSessions
from stillweb.replay.server.cache import CachedResponse
from stillweb.replay.server.session import Session

SHOP = "https://shop.example/"
AGENT = (
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("Accept-Language", "en-US,en;q=0.9"),
    ("Origin", "https://shop.example"),
    ("Referer", f"{SHOP}cart?step=2"),
    ("Sec-Fetch-Dest", "empty"),
    ("Sec-Fetch-Mode", "cors"),
    ("Sec-Fetch-Site", "same-origin"),
)


@pytest.fixture
def pack(tmp_path: Path) -> Iterator[Pack]:
    page = PackEntry.of("GET", SHOP, Response(200, "OK", (), b"page"))
    build_pack([page], {"name": "shop"}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        yield pack


def ask(session: Session, request: Request) -> None:
    session.finish(session.begin(request))


def miss(number: int, body: bytes = b"") -> Request:
    fields = tuple((name, f"{value}{number}") for name, value in AGENT)  # parsed each time, never shared
    return Request("POST" if body else "GET", f"{SHOP}missing/{number}", fields, body)


def repeated(session: Session) -> CachedResponse:
    served = session.begin(Request("GET", SHOP))
    session.finish(served)
    session.cache_response(("", b"GET /"), served, b"answer")
    stored = session.cache.get(("", b"GET /"))
    assert stored is not None
    return stored


def is_weighed(entry: LedgerEntry) -> bool:
    return entry.tier == "miss" or entry.seq == 1


def test_a_ledger_keeps_the_newest_that_weigh_no_more_than_it_may(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "LEDGER_BYTES", 40_000)
    monkeypatch.setattr(ledgers, "LEDGER_SIZE", 60)
    draw = seeded("ledger")
    session = Session("s", "shop", pack, Policy())
    stored = repeated(session)
    ledger = session.ledger()
    for number in range(2, 600):
        # Stretches of repeats push weighed lines out by count, stretches of misses by weight.
        light = draw.random() < (0.95 if number // 100 % 2 else 0.3)
        if light:
            session.repeat(stored, perf())
        else:
            ask(session, miss(number, b"x" * draw.choice((0, 10, 9_000))))
        last, ledger = ledger.entries, session.ledger()
        numbers = [entry.seq for entry in ledger.entries]
        assert numbers == list(range(ledger.dropped + 1, number + 1))
        assert len(numbers) <= 60
        weighed = [entry.weight for entry in ledger.entries if is_weighed(entry)]
        assert sum(weighed) <= 40_000
        if number % 7 == 0:
            assert session.entries.weight == sum(weighed) + 160 * len(numbers)
        gone = [entry for entry in last if entry.seq <= ledger.dropped]
        # Nothing goes without need, and with a weighed line only what is older.
        if gone and len(last) < 60:
            assert is_weighed(gone[-1])
            assert sum(weighed) + gone[-1].weight > 40_000
    assert ledger.dropped
    assert sum(ledger.counts.values()) == 599


def test_one_that_weighs_more_than_all_may_is_stored_alone(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "LEDGER_BYTES", 5_000)
    session = Session("s", "shop", pack, Policy())
    for number in range(3):
        ask(session, miss(number, b"x" * 9_000))
    ledger = session.ledger()
    assert ([entry.seq for entry in ledger.entries], ledger.dropped) == ([3], 2)


@pytest.mark.parametrize("body", [b"", b"b" * 300])
def test_misses_weigh_what_they_take(pack: Pack, body: bytes) -> None:
    session = Session("s", "shop", pack, Policy())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1_000):
            ask(session, miss(number, body))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 * taken < session.entries.weight < 1.5 * taken


def test_repeated_answers_weigh_what_they_take(pack: Pack) -> None:
    session = Session("s", "shop", pack, Policy())
    stored = repeated(session)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10_000):
            session.repeat(stored, perf())
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 * taken < session.entries.weight < 1.5 * taken


def test_a_closed_session_with_an_empty_ledger_weighs_something_too(pack: Pack) -> None:
    closed = ClosedSessions(limit=1_000_000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            session = Session(f"session-{number}", "shop", pack, Policy())
            closed.add(session.describe(), session.entries)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * 1_000_000 < taken < 1.5 * 1_000_000
    assert len(closed.sessions()) < 1_000


def test_lines_of_great_length_are_not_repeated(pack: Pack) -> None:
    session = Session("s", "shop", pack, Policy())
    for referer, is_stored in (("r" * 1_000, True), ("r" * 8_000, False)):
        request = Request("GET", SHOP, (("Referer", referer),))
        served = session.begin(request)
        session.cache_response(("", referer.encode()), served, b"answer")
        assert (session.cache.get(("", referer.encode())) is not None) is is_stored


def test_an_entry_weighs_its_texts() -> None:
    entry = LedgerEntry(1, "GET", SHOP, 404, "miss", "", 0, 0.0)
    for name in ("url", "reason", "resource", "referer"):
        more = replace(entry, **{name: getattr(entry, name) + "x" * 70_000})
        assert more.weight - entry.weight == 70_000
