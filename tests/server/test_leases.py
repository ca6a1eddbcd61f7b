"""Leases and lines, whatever is done to them in whatever order: no session in two hands, and none lost."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stillweb.errors import UsageError
from stillweb.server.leases.leases import Ended, Leases, Wanted
from stillweb.server.leases.queue import QueueFull, WaitQueue

SESSIONS, ROOM = 3, 2
SECONDS = st.floats(0.1, 20)


class LeaseBook(RuleBasedStateMachine):
    """Clients come, call, fall silent and go; the clock only goes on."""

    def __init__(self):
        super().__init__()
        self.leases = Leases(SESSIONS, ROOM)
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
            lease = self.leases.ask(Wanted(name, "me", ttl, lifetime), self.now, waits=waits)
        except QueueFull:
            assert taken == SESSIONS
            assert not waits or len(self.waiting) == ROOM
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
        self.leases.heard(lease.id, self.now, calls=1 if begins else -1)
        self.calls[lease.id] += 1 if begins else -1
        self.last_heard[lease.id] = self.now

    @precondition(lambda self: self.leases.running)
    @rule(data=st.data())
    def release(self, data):
        lease = data.draw(st.sampled_from(self.leases.running))
        assert self.leases.end(lease.id, Ended.RELEASED) is lease
        assert self.leases.end(lease.id, Ended.SILENT) is None
        self.leaving.append(lease.id)

    @precondition(lambda self: self.leaving)
    @rule()
    def left(self):
        following = self.leases.left(self.leaving.pop(0), self.now)
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
            old = self.now - lease.since >= lease.wanted.lifetime - 1e-9
            silent = (
                not self.calls[lease.id] and self.now - self.last_heard[lease.id] >= lease.wanted.ttl - 1e-9
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
        assert self.leases.line.inside == len(sessions) + len(self.leaving) <= SESSIONS
        assert self.leases.line.waiting == len(self.waiting) <= ROOM
        assert not self.waiting or self.leases.line.inside == SESSIONS


TestLeaseBook = LeaseBook.TestCase
TestLeaseBook.settings = settings(max_examples=40, stateful_step_count=40)


@given(
    st.integers(1, 4), st.integers(0, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40)
)
def test_a_line_is_first_come_first_served(limit, room, moves):
    line: WaitQueue[int] = WaitQueue(limit, room)
    inside, waiting = set(), []
    for joins, who in moves:
        if joins and who not in inside and who not in waiting:
            with suppress(QueueFull):
                assert line.join(who) == (len(inside) < limit)
                (inside.add if len(inside) < limit else waiting.append)(who)
        elif not joins and (who in inside or who in waiting):
            expected = waiting[0] if who in inside and waiting else None
            assert line.leave(who) == expected
            inside.discard(who)
            if who in waiting:
                waiting.remove(who)
            if expected is not None:
                inside.add(waiting.pop(0))
        assert (line.inside, line.waiting) == (len(inside), len(waiting))
        assert len(waiting) <= room


def test_a_line_lets_somebody_in():
    with pytest.raises(UsageError):
        WaitQueue(0, 3)


def test_who_ended_is_remembered_but_not_for_ever():
    leases = Leases(1, 0)
    for number in range(1200):
        lease = leases.ask(Wanted(str(number), "", 1, 1), 0.0)
        assert lease
        leases.end(lease.id, Ended.RELEASED)
        assert leases.left(lease.id, 0.0) is None
    assert leases.why_ended("1199") is Ended.RELEASED
    assert leases.why_ended("0") is None
