"""Several writes of one session: each answer is that of the site in the same state, or a miss."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from graph_sites import (
    ADD_A,
    ADD_B,
    ADD_C,
    HOST,
    NOTE,
    PAGES,
    Cart,
    Form,
    Recorded,
    Visitor,
    get,
    record,
    token_in,
)

from stillweb.collections.learn.proof import ProvedForm, Refusal, prove
from stillweb.matching.captures import Entry
from stillweb.matching.derived.branch import Branch, dump, load
from stillweb.matching.derived.derive import Branches, DerivedAnswers
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import MUTATIONS, Match, Request, Response, Tier

SINGLE = ((ADD_A,), (ADD_B,), (NOTE,))
PAIRS = ((ADD_A, ADD_B), (ADD_B, ADD_A), (ADD_A, NOTE), (NOTE, ADD_A), (NOTE, NOTE))
FORMS = (ADD_A, ADD_B, ADD_C, NOTE)
TEXTS = ("Call Ada", "Buy oats, quickly", "It's 5 o'clock")


def discount(items: Sequence[str], notes: Sequence[str]) -> str:
    return "discount" if len(set(items)) > 1 else ""


def made(visit: int) -> Cart:
    return Cart(visit, discount)


def proved(*path: Form, make: Callable[[int], Cart] = made) -> Branch:
    found = prove(record(make, *path))
    assert isinstance(found, ProvedForm), found
    stored: Branch = load(json.loads(json.dumps(dump(found.branch))))
    return stored


class Session:
    """A session with recorded pages, beside the site in the same state."""

    def __init__(
        self,
        branches: Sequence[Branch],
        writes: Sequence[Form] = (),
        make: Callable[[int], Cart] = made,
    ) -> None:
        self.live = Visitor(make(0))
        self.site = make(0)
        exchanges = [(get(path), self.site.answer(get(path)), 0) for path in PAGES]
        for epoch, form in enumerate(writes):
            token = token_in(self.site.answer(get(form.page)).raw_body)
            request = form.request(token, ["recorded text"])
            exchanges.append((request, self.site.answer(request), epoch))
            exchanges += [(get(path), self.site.answer(get(path)), epoch + 1) for path in PAGES]
        self.index = Recorded(exchanges)
        vocabulary = Vocabulary()
        for entry in self.index.entries:
            vocabulary.add(bytes(entry.body).decode())
        self.derived = DerivedAnswers(Branches(tuple(branches), vocabulary), self.index)
        self.epoch = 0
        self.tiers: list[Tier] = []

    def send(self, request: Request) -> Entry | None:
        """Return the answer, which equals that of the site; None for a miss."""
        match, entry = self._answer(request)
        self.tiers.append(match.tier)
        if entry is not None:
            check(entry, self.live.send(request)[1], match)
            self.derived.note_visit(request, entry)
        return entry

    def _answer(self, request: Request) -> tuple[Match, Entry | None]:
        kind = dict(request.headers).get("Content-Type", "")
        key = request_key(request.method, request.url, kind, request.raw_body)
        rows = [row for row in self.index.lookup(key) if self.index.entry(row).epoch <= self.epoch]
        match = Match(Tier.EXACT, rows[-1]) if rows else Match(Tier.MISS, reason="not recorded")
        found = self.derived.answer(request, match, self.epoch)
        if found is not None:
            return found
        if match.entry < 0:
            return match, None
        self.derived.note_write(request, match)
        entry = self.index.entry(match.entry)
        if request.method in MUTATIONS:
            self.epoch = entry.epoch + 1
        return match, entry

    def write(self, form: Form, text: str = "") -> bool:
        """Open the form's page and send it, as a browser does; return False at a miss."""
        page = self.send(get(form.page))
        return page is not None and self.send(form.request(token_in(bytes(page.body)), [text])) is not None


def check(entry: Entry, real: Response, match: Match) -> None:
    shown, expected = (re.sub(rb"[0-9a-f]{32}", b"", bytes(body)) for body in (entry.body, real.raw_body))
    assert (entry.status, shown) == (real.status, expected), match.reason


@pytest.fixture(scope="module")
def branches() -> list[Branch]:
    return [proved(*path) for path in (*SINGLE, *PAIRS)]


SEQUENCES = [path for length in (1, 2, 3) for path in product(FORMS, repeat=length)]


@pytest.mark.parametrize("path", SEQUENCES, ids=lambda path: ", ".join(form.name for form in path))
def test_each_order_of_writes_is_answered_as_by_the_site(
    branches: list[Branch], path: tuple[Form, ...]
) -> None:
    session = Session(branches)
    known = {tuple(form.name for form in each) for each in (*SINGLE, *PAIRS)}
    for number, (form, text) in enumerate(zip(path, TEXTS, strict=False), start=1):
        answered = session.write(form, text)
        assert answered == (tuple(each.name for each in path[:number]) in known)
        if not answered:
            break
        assert all(session.send(get(page)) is not None for page in PAGES)


def test_two_products_in_both_orders_are_branches_without_own_values(branches: list[Branch]) -> None:
    for first, second in ((ADD_A, ADD_B), (ADD_B, ADD_A)):
        session = Session(branches)
        assert session.write(first)
        assert session.write(second)
        cart = session.send(get("/cart"))
        assert cart is not None
        assert b"2 items" in bytes(cart.body)
        assert b"discount" in bytes(cart.body)
        assert session.tiers[-1] is Tier.BRANCH


def test_own_text_stays_after_another_form(branches: list[Branch]) -> None:
    session = Session(branches)
    assert session.write(NOTE, "Call Ada")
    assert session.write(ADD_A)
    page = session.send(get("/notes"))
    assert page is not None
    assert b"<li>Call Ada</li>" in bytes(page.body)
    assert session.tiers[-1] is Tier.DERIVED


def test_the_same_form_twice_shows_both_texts(branches: list[Branch]) -> None:
    session = Session(branches)
    assert session.write(NOTE, "Call Ada")
    assert session.write(NOTE, "Buy oats")
    page = session.send(get("/notes"))
    assert page is not None
    assert b"<li>Call Ada</li><li>Buy oats</li>" in bytes(page.body)


@pytest.mark.parametrize("text", ["Call Ada", "call ada", "Call", "Call Ada now"])
def test_a_text_that_contains_the_one_before_is_a_miss(branches: list[Branch], text: str) -> None:
    session = Session(branches)
    assert session.write(NOTE, "Call Ada")
    assert not session.write(NOTE, text)


@pytest.mark.parametrize("writes", [(ADD_A,), (NOTE,), (ADD_A, ADD_C)], ids=["a", "note", "a, c"])
def test_a_form_after_recorded_writes_has_their_state(
    branches: list[Branch], writes: tuple[Form, ...]
) -> None:
    session = Session(branches, writes)
    assert session.write(writes[0], "recorded text")
    assert session.tiers[-1] is Tier.EXACT
    second = ADD_B if writes[0] is ADD_A else ADD_A
    assert session.write(second)
    assert all(session.send(get(page)) is not None for page in PAGES)


def test_recorded_writes_in_their_order_are_answered_by_their_recordings(branches: list[Branch]) -> None:
    session = Session(branches, (ADD_A, ADD_B))
    for form in (ADD_A, ADD_B):
        assert session.write(form)
        assert all(session.send(get(page)) is not None for page in PAGES)
    assert set(session.tiers) == {Tier.EXACT}


def test_a_recorded_write_of_another_state_is_answered_from_this_one(branches: list[Branch]) -> None:
    session = Session(branches, (ADD_A, ADD_C, ADD_B))
    assert session.write(ADD_A)
    assert session.send(ADD_B.request(token_in(bytes(session.index.entries[3].body)))) is not None
    cart = session.send(get("/cart"))
    assert cart is not None
    assert b"2 items" in bytes(cart.body)


def test_after_a_write_that_no_branch_knows_forms_are_misses(branches: list[Branch]) -> None:
    session = Session(branches, (ADD_C,))
    assert session.write(ADD_C)
    for form in (ADD_A, NOTE):
        match, entry = session._answer(form.request(session.site.token, ["Call Ada"]))
        assert entry is None
        assert "written before" in match.reason


def test_a_guess_is_followed_by_misses(branches: list[Branch]) -> None:
    session = Session(branches)
    session.derived.note_write(ADD_A.request(session.site.token), Match(Tier.GUESS, 0))
    assert not session.write(ADD_B)


@pytest.mark.parametrize("token", ["", "0" * 32, "expired"])
def test_a_token_of_no_page_of_the_branch_is_a_miss(branches: list[Branch], token: str) -> None:
    session = Session(branches)
    assert session.write(ADD_A)
    assert session.send(ADD_B.request(token)) is None


def test_a_pair_needs_its_first_form(branches: list[Branch]) -> None:
    pair = [branch for branch in branches if branch.path == ("add a", "add b")]
    session = Session(pair)
    assert not session.write(ADD_B)


def test_a_form_that_changes_nothing_is_refused() -> None:
    class Deaf(Cart):
        def answer(self, request: Request) -> Response:
            answer = super().answer(request)
            self.items.clear()
            return answer

    found = prove(record(lambda visit: Deaf(visit), ADD_A))
    assert isinstance(found, Refusal)
    assert "changed anything" in found.reason


def test_a_page_that_both_writes_change_together_is_recorded_so() -> None:
    def rule(items: Sequence[str], notes: Sequence[str]) -> str:
        return f"gift for {sum(map(ord, notes[0]))}" if items and notes else ""

    found = prove(record(lambda visit: Cart(visit, rule), ADD_A, NOTE))
    assert isinstance(found, ProvedForm)
    cart = next(read for read in found.branch.reads if read.url.pieces == (f"{HOST}/cart".encode(),))
    assert "depends on the value" in cart.why


def sized(items: Sequence[str], notes: Sequence[str]) -> str:
    size = sum(len(note.encode()) for note in notes) - 60
    return "" if not notes else f"plus {size} B" if size > 0 else f"minus {-size} B"


SIZES = [
    "ox",
    "Call Ada",
    "Gr\u00fc\u00dfe",
    "Buy oats, quickly",
    "Buy 12 oats now",
    "a" * 15,
    "one two " * 4,
]


@pytest.mark.parametrize("text", SIZES)
def test_a_length_is_derived_within_the_recorded_ones(text: str) -> None:
    branch = proved(NOTE, make=lambda visit: Cart(visit, sized))
    session = Session([branch], make=lambda visit: Cart(visit, sized))
    answered = session.write(NOTE, text.strip())
    cart = session.send(get("/cart")) if answered else None
    assert session.send(get("/notes")) is not None
    assert (cart is not None) == (text in ("Call Ada", "Buy oats, quickly", "Buy 12 oats now"))


def test_a_number_that_two_recordings_make_look_like_a_length_is_refused() -> None:
    def rule(items: Sequence[str], notes: Sequence[str]) -> str:
        return f"{min(len(notes[0]), 14)} letters" if notes else ""

    found = prove(record(lambda visit: Cart(visit, rule), NOTE))
    assert isinstance(found, ProvedForm)
    carts = [read for read in found.branch.reads if read.url.pieces == (f"{HOST}/cart".encode(),)]
    assert [read.answer for read in carts] == [None]


def listing(visit: int) -> Cart:
    return Cart(visit, discount, seen=True)


@pytest.fixture(scope="module")
def listed() -> list[Branch]:
    return [proved(*path, make=listing) for path in ((ADD_A,), (ADD_B,), (ADD_A, ADD_B), (NOTE,))]


WALKS = [
    walk for length in range(4) for walk in product(("/item/a", "/item/b", "/item/c", "/cart"), repeat=length)
]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: " ".join(walk) or "none")
def test_a_page_that_lists_visited_pages_is_answered_after_the_same_visits(
    listed: list[Branch], walk: tuple[str, ...]
) -> None:
    session = Session(listed, make=listing)
    assert session.write(ADD_A)
    assert session.derived.trail == [f"{HOST}/item/a"]
    for path in walk:
        session.send(get(path))
    assert session.send(get("/cart")) is not None
    wandered = any(path.startswith("/item/") and path != "/item/a" for path in walk)
    assert (session.send(get("/item/a")) is None) == wandered


def test_two_products_are_added_though_their_pages_list_the_visited_ones(listed: list[Branch]) -> None:
    session = Session(listed, make=listing)
    assert session.write(ADD_A)
    assert session.write(ADD_B)
    assert session.send(get("/cart")) is not None
    assert session.send(get("/item/b")) is not None


def test_visits_before_the_write_count(listed: list[Branch]) -> None:
    session = Session(listed, make=listing)
    session.derived.note_visit(get("/item/c"), session.index.entry(4))
    assert session.derived.trail == [f"{HOST}/item/c"]
    request = ADD_A.request(session.site.token)
    assert session._answer(request)[1] is not None
    assert session._answer(get("/item/a"))[1] is None
    assert session._answer(get("/cart"))[1] is not None


def test_stored_branches_of_the_first_format_start_at_the_start_state() -> None:
    stored = dump(proved(ADD_A))
    del stored["after"], stored["own"], stored["traces"]
    assert load(stored).path == ("add a",)


TRIPLES = ((ADD_A, ADD_B, NOTE), (ADD_B, ADD_A, NOTE), (ADD_A, NOTE, ADD_A))


def test_three_writes_in_a_row_are_answered_where_the_three_were_recorded_and_missed_elsewhere() -> None:
    branches = [proved(*path) for path in (*SINGLE, *PAIRS, *TRIPLES)]
    answered = 0
    for path in product(FORMS, repeat=3):
        session = Session(branches)
        results = [session.write(form, text) for form, text in zip(path, TEXTS, strict=True)]
        for page in PAGES:
            session.send(get(page))  # fails if it is not the live one
        if all(results):
            answered += 1
            assert path in TRIPLES
        elif path in TRIPLES:
            pytest.fail(f"{[form.name for form in path]} was recorded")
    assert answered == len(TRIPLES)


def test_a_fourth_write_is_a_miss() -> None:
    session = Session([proved(*path) for path in (*SINGLE, *PAIRS, *TRIPLES)])
    assert [session.write(form, TEXTS[0]) for form in (ADD_A, ADD_B, NOTE)] == [True] * 3
    assert not session.write(NOTE, TEXTS[1])
