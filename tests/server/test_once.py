"""Repeated requests run once; operations get slots in order, whichever of them is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillweb.errors import InfraError, ResetNeeded
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.leases.held import IdempotencyCache, ResponseHistory, digest_of
from stillweb.server.leases.queue import OperationQueue

IDS = st.sampled_from(["", "a", "b", "c"])
BODIES = st.sampled_from([1, 2])


@given(st.lists(st.tuples(IDS, BODIES, st.booleans()), max_size=12))
@settings(max_examples=60)
def test_work_is_done_once_for_an_identifier_whenever_the_retry_comes(requests):
    asyncio.run(_do(requests))


async def _do(requests):
    once: IdempotencyCache[tuple[str, int, int]] = IdempotencyCache(8)
    done: list[tuple[str, int]] = []
    let_go = asyncio.Event()

    async def work(request_id, body):
        done.append((request_id, body))
        number = len(done)
        await let_go.wait()
        return request_id, body, number

    async def ask(request_id, body):
        return await once.do(request_id, body, lambda: work(request_id, body))

    submitted = []
    for request_id, body, hangs_up in requests:
        submitted.append((request_id, body, asyncio.ensure_future(ask(request_id, body))))
        await asyncio.wait([submitted[-1][2]], timeout=0)
        if hangs_up:
            submitted[-1][2].cancel()
    let_go.set()
    answers = await asyncio.gather(*(each[2] for each in submitted), return_exceptions=True)
    first: dict[str, int] = {}
    for (request_id, body, _), answer in zip(submitted, answers, strict=True):
        expected = first.setdefault(request_id, body) if request_id else body
        if isinstance(answer, RequestRefused):
            assert answer.kind is FailureKind.CONFLICT
            assert expected != body
        elif not isinstance(answer, asyncio.CancelledError):
            assert answer[:2] == (request_id, body)
            assert expected == body
    named = [request_id for request_id, _ in done if request_id]
    assert sorted(named) == sorted(first)
    assert len(done) - len(named) == sum(not request_id for request_id, _, _ in requests)
    for request_id, body in first.items():  # and once more, when all is over
        if request_id:
            await ask(request_id, body)
    assert len(done) == len(named) + sum(not request_id for request_id, _, _ in requests)


async def test_failures_of_ours_last_where_that_is_said_and_others_do_not():
    once: IdempotencyCache[None] = IdempotencyCache()
    count = 0

    async def fail(error):
        nonlocal count
        count += 1
        raise error

    for error, expected in ((InfraError("gone"), 1), (ResetNeeded("over"), 3)):
        for _ in range(2):
            with pytest.raises(type(error)):
                await once.do(str(error), None, lambda error=error: fail(error), (InfraError,))
        assert count == expected


def test_old_answers_are_forgotten_and_texts_are_reported_apart():
    answers: ResponseHistory[int] = ResponseHistory(2)
    for number in range(3):
        answers.put(str(number), "x", number)
    assert [answers.get(str(number), "x") for number in range(3)] == [None, 1, 2]
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": "1"}) != digest_of({"a": 1})


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(-1, 7), max_size=24))
@settings(max_examples=60)
def test_a_gate_lets_in_so_many_in_their_order(limit, capacity, moves):
    """A number below the count of arrived clients ends or cancels that client; others are arrivals."""
    asyncio.run(_pass(limit, capacity, moves))


async def _pass(limit, capacity, moves):
    gate = OperationQueue("work", limit, capacity)
    entered: list[int] = []
    inside: set[int] = set()
    tasks: list[asyncio.Task[None]] = []
    ends: list[asyncio.Event] = []

    async def come(number):
        async with gate.slot():
            entered.append(number)
            inside.add(number)
            assert len(inside) <= limit
            try:
                await ends[number].wait()
            finally:
                inside.discard(number)

    for move in moves:
        if 0 <= move < len(tasks):
            (ends[move].set if move % 2 else tasks[move].cancel)()
        else:
            ends.append(asyncio.Event())
            tasks.append(asyncio.ensure_future(come(len(tasks))))
        for _ in range(4):
            await asyncio.wait(tasks, timeout=0)
        assert gate.active == len(inside)
    for end in ends:
        end.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == sorted(entered)
    assert all(each is None or isinstance(each, RequestRefused | asyncio.CancelledError) for each in outcomes)
    assert (gate.active, gate.waiting) == (0, 0)
    assert gate.started == len(entered)
