"""No request gets another's answer: over the wire, in plain and through CONNECT and TLS.

`unseen_*` lists wrong and right answers. The native back-end, alone, by workers and behind the front of
`--on-miss`, gives none of the wrong ones and all of the right ones. The answers of pywb are counted and have
a minimum here, so that the figures in docs/explanation/backends.md stay current (bench/wrong_answers.py
prints them).
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from backends import OWN, UNSEEN, Running, requested_again, running, verdicts
from conformance_site import FORM, SITE

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection

AT_LEAST_WRONG = {"pywb": 50, "pywb-fuzzy": 90}


def only_own(backend: Running) -> None:
    """Skip what is promised of stillweb's own back-ends alone."""
    if backend.name not in OWN:
        pytest.skip("bench/wrong_answers.py counts it for pywb")


def test_the_suite_is_as_large_as_promised() -> None:
    names = [case.name for case in UNSEEN]
    assert len(set(names)) == len(names)
    assert sum(case.right is None for case in UNSEEN) >= 90
    assert all(case.why for case in UNSEEN)


def test_nothing_gets_the_answer_of_something_else(backend: Running) -> None:
    found = verdicts(backend)
    wrong = [case.name for case, verdict in found.items() if verdict == "wrong"]
    if backend.name not in OWN:
        assert len(wrong) >= AT_LEAST_WRONG[backend.name]
        return
    assert not wrong
    assert not [case.name for case, verdict in found.items() if case.must and verdict != "right"]


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_what_was_recorded_gets_its_exact_answer(backend: Running, scheme: str) -> None:
    only_own(backend)
    count, wrong = requested_again(backend, scheme)
    assert not wrong
    assert count > 300


def test_bodies_spelled_otherwise_get_the_same_answer(backend: Running) -> None:
    only_own(backend)
    count, wrong = requested_again(backend, "https", respelled=True)
    assert not wrong
    assert count > 50


def test_sessions_at_once_get_what_each_alone_gets(backend: Running) -> None:
    """64 of them, each a story of its own over the same cart, from eight threads."""
    only_own(backend)
    dice = random.Random(7)
    cart, add = ("GET", f"{SITE}/cart", (), b""), ("POST", f"{SITE}/cart/add", (FORM,), b"sku=7")
    stories = [dice.choices([cart, cart, add], k=6) for _ in range(64)]

    alone = [
        [
            b"added" if ask is add else b"one thing" if add in story[:place] else b"empty"
            for place, ask in enumerate(story)
        ]
        for story in stories
    ]

    def replayed(story: list[tuple]) -> list[bytes]:
        with backend.session() as port, closing(backend.connect(port, SITE)) as client:
            first = [backend.ask(client, *each).body for each in story]
            backend.reset(port)
            assert [backend.ask(client, *each).body for each in story] == first
            return first

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(replayed, stories)) == alone


def test_what_is_loosened_is_said(collection: Collection, authority: CertAuthority) -> None:
    cases = {case.name: case for case in UNSEEN}
    wanted = [cases[name] for name in ("guessed-rule", "cursor", "delete-body", "other-user")]
    with running("native-loose", collection, authority) as backend, backend.session() as port:
        assert not backend.control("/info")["features"]["strict"]
        bodies = [backend.once(port, case.request, case.url(case.request)).body for case in wanted]
        ledger = backend.ledger(port)
    assert bodies == [b"guessed-rule 0", b"cursor 0", b"", b""]
    assert [entry["tier"] for entry in ledger] == ["normalised", "fuzzy", "miss", "miss"]
    assert ledger[0]["reason"] == "guessed volatile: query:t"
    assert "cursor.example/list.json?cursor=1 (cursor 0.00)" in ledger[1]["reason"]


def test_a_strict_server_says_so(backend: Running) -> None:
    assert backend.control("/info")["features"]["strict"] is backend.name.startswith("native")
