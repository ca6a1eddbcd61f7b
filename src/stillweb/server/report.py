"""The server's status, put together; see `status` for its form."""

from __future__ import annotations

from stillweb import clock
from stillweb.server.engine import Engine
from stillweb.server.gate import Gate
from stillweb.server.status import Browser, Letter, Miss, Queue, Rates, Session, Status

__all__ = ["status_of"]


def status_of(engine: Engine) -> Status:
    """Return how a server stands."""
    now = clock.monotonic()
    tally = engine.tally
    return Status(
        state="draining" if engine.desk.draining else "serving",
        uptime=round(now - engine.began, 3),
        replay=engine.proxy,
        level=engine.options.level,
        observe=list(engine.options.observe),
        sessions=_sessions(engine, now),
        queues={"allocate": _allocate(engine)} | {name: _queue(gate) for name, gate in engine.queues.items()},
        rates=Rates(steps=round(tally.steps.value(now), 3), resets=round(tally.resets.value(now), 3)),
        steps=tally.steps.total,
        resets=tally.resets.total,
        episodes=dict(tally.episodes),
        leases=dict(tally.leases),
        failures=dict(tally.failures),
        traffic=dict(tally.traffic),
        misses=[
            Miss(age=round(now - each.at, 3), task=each.task, request=each.request)
            for each in reversed(tally.misses)
        ],
        browsers=[Browser(**each) for each in engine.vector.browsers()],
        pictures={"count": len(engine.pictures), "bytes": engine.pictures.bytes},
    )


def _sessions(engine: Engine, now: float) -> list[Session]:
    shown = {held.lease.session: held.to_status(now) for held in engine.desk.held.values()}
    nobody = Letter.NOBODY.value
    return [shown.get(i) or Session(index=i, letter=nobody) for i in range(engine.options.sessions)]


def _allocate(engine: Engine) -> Queue:
    line = engine.desk.leases.line
    return Queue(
        limit=line.limit,
        under_way=line.inside,
        waiting=line.waiting,
        room=line.room,
        begun=engine.tally.leases["granted"],
    )


def _queue(gate: Gate) -> Queue:
    line = gate.line
    return Queue(
        limit=line.limit, under_way=line.inside, waiting=line.waiting, room=line.room, begun=gate.begun
    )
