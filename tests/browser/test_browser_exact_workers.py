"""When a worker is pinned and begins, whatever order its reports arrive in; without a browser."""

from __future__ import annotations

import asyncio

import pytest

from stillweb.browser.cdp.connection import CdpSession
from stillweb.browser.exact.workers import Workers

pytestmark = pytest.mark.asyncio


class Session(CdpSession):
    """A worker's session that keeps the commands; each has its result immediately."""

    def __init__(self, number: int) -> None:
        super().__init__(
            None, f"{number}", {"type": "worker", "targetId": f"w{number}", "url": f"/{number}.js"}
        )
        self.commands: list[str] = []

    def post(self, method, params=None):
        self.commands.append(method)
        result = asyncio.get_running_loop().create_future()
        result.set_result({"result": {}})
        return result


class Rig:
    def __init__(self) -> None:
        self.flags: list[str] = []
        self.arrived: list[str] = []
        self.workers = Workers(
            lambda name: name, "control", self.flags.append, asyncio.Event(), self.arrived.append
        )

    async def made(self, number: int) -> Session:
        session = Session(number)
        self.workers.pin(session, session.target, True)
        await asyncio.sleep(0)
        return session


LOADED = ("Inspector.workerScriptLoaded", {})
PAUSED = ("Debugger.paused", {"reason": "instrumentation"})


@pytest.mark.parametrize("reports", [(PAUSED, LOADED), (LOADED, PAUSED)])
async def test_a_worker_is_pinned_in_whatever_order_its_reports_arrive(reports):
    rig = Rig()
    session = await rig.made(0)
    for report in reports:
        session.dispatch(*report)
    await asyncio.sleep(0)
    assert session.commands[-1] == "Runtime.evaluate"
    assert (rig.workers.ready, rig.arrived) == (1, ["w0"])
    rig.workers.begin_next()
    assert session.commands[-1] == "Debugger.disable"
    assert rig.workers.begun == 1
    assert rig.flags == []


async def test_workers_begin_in_the_order_of_their_names():
    rig = Rig()
    sessions = [await rig.made(number) for number in (2, 0, 1)]
    for session in (sessions[0], sessions[2], sessions[1]):
        session.dispatch(*PAUSED)
    await asyncio.sleep(0)
    began = []
    while rig.workers.ready:
        rig.workers.begin_next()
        began += [
            each.id for each in sessions if each.commands[-1] == "Debugger.disable" and each.id not in began
        ]
    assert began == ["0", "1", "2"]


async def test_a_worker_that_ran_before_it_was_pinned_is_flagged_and_continues():
    rig = Rig()
    session = Session(0)
    rig.workers.pin(session, session.target, False)
    session.dispatch(*PAUSED)
    assert session.commands[-1] == "Debugger.disable"
    assert rig.workers.lost
    assert rig.flags == ["worker /0.js ran before it could be pinned"]


async def test_a_worker_that_ends_while_it_waits_does_not_begin():
    rig = Rig()
    session = await rig.made(0)
    session.dispatch(*PAUSED)
    await asyncio.sleep(0)
    rig.workers.forget("w0")
    assert rig.workers.ready == 0
