"""Leases under random operations: no session has two clients, none is lost, and clients wait in order."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stillweb.errors import UsageError
from stillweb.server.leases.table import LeaseEnd, LeaseTable, LeaseTerms, QueueFull

SESSIONS, CAPACITY = 3, 2
SECONDS = st.floats(0.1, 20)


class LeaseBook(RuleBasedStateMachine):
    """Clients request leases, call, fall silent and release; the clock only moves forward."""

    def __init__(self):
        super().__init__()
        self.leases = LeaseTable(SESSIONS, CAPACITY)
        self.now = 100.0
        self.count = 0
        self.waiting: list[str] = []
        self.leaving: list[str] = []
        self.calls: dict[str, int] = {}
        self.last_heard: dict[str, float] = {}

    def begun(self, lease):
        self.calls[lease.id], self.last_heard[lease.id] = 0, self.now

    @rule(ttl=SECONDS, lifetime=SECONDS, waits=st.booleans())
    def ask(self, ttl, lifetime, waits):
        self.count += 1
        name = f"lease{self.count}"
        taken = len(self.leases.running) + len(self.leaving)
        try:
            lease = self.leases.request(LeaseTerms(name, "me", ttl, lifetime), self.now, waits=waits)
        except QueueFull:
            assert taken == SESSIONS
            assert not waits or len(self.waiting) == CAPACITY
            return
        if lease is None:
            assert taken == SESSIONS
            self.waiting.append(name)
        else:
            self.begun(lease)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        name = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(name)
        self.leases.withdraw(name)

    @precondition(lambda self: self.leases.running)
    @rule(data=st.data(), begins=st.booleans())
    def call(self, data, begins):
        lease = data.draw(st.sampled_from(self.leases.running))
        if not begins and not self.calls[lease.id]:
            return
        self.leases.renew(lease.id, self.now, calls=1 if begins else -1)
        self.calls[lease.id] += 1 if begins else -1
        self.last_heard[lease.id] = self.now

    @precondition(lambda self: self.leases.running)
    @rule(data=st.data())
    def release(self, data):
        lease = data.draw(st.sampled_from(self.leases.running))
        assert self.leases.end(lease.id, LeaseEnd.RELEASED) is lease
        assert self.leases.end(lease.id, LeaseEnd.SILENT) is None
        self.leaving.append(lease.id)

    @precondition(lambda self: self.leaving)
    @rule()
    def clear(self):
        following = self.leases.session_cleared(self.leaving.pop(0), self.now)
        if following is None:
            assert not self.waiting
        else:
            assert following.id == self.waiting.pop(0)
            self.begun(following)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.now += seconds
        overdue = dict((lease.id, why) for lease, why in self.leases.overdue(self.now))
        for lease in self.leases.running:
            old = self.now - lease.since >= lease.terms.lifetime - 1e-9
            silent = (
                not self.calls[lease.id] and self.now - self.last_heard[lease.id] >= lease.terms.ttl - 1e-9
            )
            assert (lease.id in overdue) == (old or silent)
        due = self.leases.next_due()
        assert (due is not None and due <= self.now) == bool(overdue)
        for name, why in overdue.items():
            self.leases.end(name, why)
            assert self.leases.get(name) is None
            assert self.leases.why_ended(name) is why
            self.leaving.append(name)

    @invariant()
    def every_session_is_in_one_hand_or_none(self):
        sessions = [lease.session for lease in self.leases.running]
        assert len(set(sessions)) == len(sessions)
        assert set(sessions) <= set(range(SESSIONS))
        assert self.leases.leased == len(sessions) + len(self.leaving) <= SESSIONS
        assert self.leases.waiting == len(self.waiting) <= CAPACITY
        assert not self.waiting or self.leases.leased == SESSIONS


TestLeaseBook = LeaseBook.TestCase
TestLeaseBook.settings = settings(max_examples=40, stateful_step_count=40)


@given(
    st.integers(1, 4), st.integers(0, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40)
)
def test_clients_get_sessions_in_order_of_arrival(limit, capacity, moves):
    table = LeaseTable(limit, capacity)
    inside, waiting = set(), []
    for joins, client in moves:
        name = str(client)
        if joins and client not in inside and client not in waiting:
            with suppress(QueueFull):
                granted = table.request(LeaseTerms(name, "", 60, 60), 0.0)
                assert (granted is not None) == (len(inside) < limit)
                (inside.add if granted else waiting.append)(client)
        elif not joins and client in waiting:
            table.withdraw(name)
            waiting.remove(client)
        elif not joins and client in inside:
            expected = waiting[0] if waiting else None
            table.end(name, LeaseEnd.RELEASED)
            following = table.session_cleared(name, 0.0)
            assert (following and int(following.id)) == expected
            inside.discard(client)
            if expected is not None:
                inside.add(waiting.pop(0))
        assert (table.leased, table.waiting) == (len(inside), len(waiting))
        assert len(waiting) <= capacity


def test_a_table_has_at_least_one_session():
    with pytest.raises(UsageError):
        LeaseTable(0, 3)


def test_the_reason_of_an_end_is_stored_for_a_while():
    leases = LeaseTable(1, 0)
    for number in range(1200):
        lease = leases.request(LeaseTerms(str(number), "", 1, 1), 0.0)
        assert lease
        leases.end(lease.id, LeaseEnd.RELEASED)
        assert leases.session_cleared(lease.id, 0.0) is None
    assert leases.why_ended("1199") is LeaseEnd.RELEASED
    assert leases.why_ended("0") is None
