"""Several workers behind one port: which worker holds which session, and one control API for all of them.

The supervisor, this process, answers control requests only. It starts the workers and opens each new
session on the worker with the fewest. It records the worker of each session and sends control requests to
it. Every other connection to the public port goes to the worker of its session as soon as its first request
names the session (`router`; docs/decisions/0015-workers.md).

The sessions of a worker that died are lost, because their cursors are unknown. They answer 410 until they
are closed, and their ports stay unused as long, because a client may still use them. A lost default session
answers 503 until it is reset.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import ReplayError, SessionLost, UsageError
from stillweb.http.control import (
    DEFAULT_SESSION,
    KEY_VARIABLE,
    Ledger,
    MissOutcome,
    Readiness,
    ReloadResult,
    ReplayInfo,
    SessionInfo,
    parse_info,
    parse_ledger,
)
from stillweb.http.controlrouter import ControlBackend, ControlResponse
from stillweb.http.wire import refusal
from stillweb.replay.server.connection import ListenerTarget
from stillweb.replay.server.listeners import (
    BACKLOG,
    ExpiryTimer,
    Listener,
    PortPool,
    authority,
    cannot_listen,
    drain,
    lend_port,
)
from stillweb.replay.server.metrics import ReplayMetrics, ResponseCounters, metrics_response, parse_metrics
from stillweb.replay.server.runtime import Format, Tasks
from stillweb.replay.server.server import ReplayOptions
from stillweb.replay.workers.process import WorkerProcess
from stillweb.replay.workers.router import CONTROL, ConnectionRouter, adopt
from stillweb.replay.workers.worker import ReplayWorkerConfig
from stillweb.scratch import scratch_folder

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Placed:
    """A session, its worker, and its last known state."""

    worker: WorkerProcess
    state: SessionInfo
    port: int = 0
    lost: bool = False


class ReplayCluster(ControlBackend):
    """The supervisor of several workers; made by `serve_cluster`.

    Attributes:
        url: of the proxy and the control API.
    """

    def __init__(self, configs: Sequence[ReplayWorkerConfig], options: ReplayOptions) -> None:
        self.url = ""
        self.options = options
        self.hosts: Iterable[str] = {options.host.lower(), *options.allowed_hosts}
        self.key = os.environ.get(KEY_VARIABLE, "")
        self.workers = [WorkerProcess(config, self._lose_sessions) for config in configs]
        self._ports = PortPool(options.session_ports)
        self._placed = {DEFAULT_SESSION: _Placed(self.workers[0], {"id": DEFAULT_SESSION})}
        self._unrouted: set[asyncio.Transport] = set()
        self._tasks = Tasks()
        self._listener = Listener(ListenerTarget(self._tasks.spawn, control=self, limits=options.limits))
        self._expiry = ExpiryTimer(lambda: [self._listener.target])
        self._of_dead: dict[str, ResponseCounters] = {}  # counters of workers that died

    @property
    def totals(self) -> Counter[str]:
        """Responses by tier, as the workers reported them when they ended."""
        totals: Counter[str] = Counter()
        for counters in self._of_dead.values():
            totals.update(counters.answers)
        for worker in self.workers:
            totals.update(worker.answered)
        return totals

    async def start(self) -> None:
        """Start the workers, then accept connections.

        Raises:
            PortInUse: if the port is taken, or every session port is.
            StillwebError: the reason why a worker cannot serve.
        """
        self._ports.check(self.options.host)
        host, port, target = self.options.host, self.options.port, self._listener.target
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: ConnectionRouter(self._route, self._unrouted, target),
                *(host, port),
                backlog=BACKLOG,
                start_serving=False,
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        self._listener.server, self._listener.port = server, server.sockets[0].getsockname()[1]
        self.url = f"http://{authority(host, self._listener.port)}"
        started = await asyncio.gather(*(worker.start() for worker in self.workers), return_exceptions=True)
        for failed in filter(None, started):
            raise failed
        await server.start_serving()
        self._expiry.start()
        logger.info("supervisor serves", extra={"url": self.url, "workers": len(self.workers)})

    async def stop(self) -> None:
        """Accept no new connection, let current responses finish, end the workers."""
        self._expiry.stop()
        self._listener.close()  # first: no connection may follow those that are aborted here
        for transport in tuple(self._unrouted):
            transport.abort()
        await asyncio.gather(
            drain([self._listener], self.options.drain), *(worker.stop() for worker in self.workers)
        )
        await self._tasks.end()
        logger.info("supervisor ends", extra={"answered": self.totals.total(), **self.totals})

    def _route(self, transport: asyncio.Transport, session_id: str, data: bytes) -> None:
        """Pass a connection on to the worker of its session, or to the control API."""
        if session_id == CONTROL:
            adopt(transport, self._listener.target, data)
        elif (placed := self._placed.get(session_id)) is None:
            transport.write(refusal(407))
            transport.close()
        elif placed.lost or not placed.worker.alive:
            transport.write(refusal(503))
            transport.close()
        else:
            transport.pause_reading()
            placed.worker.hand_over(transport.get_extra_info("socket").fileno(), data)
            transport.abort()  # the worker has its own descriptor, so the client notices nothing

    def _lose_sessions(self, worker: WorkerProcess) -> int:
        lost = [placed for placed in self._placed.values() if placed.worker is worker and not placed.lost]
        for placed in lost:
            placed.lost = True
        figures, worker.figures = worker.figures, ReplayMetrics()
        for name, counters in figures.counters.items():
            self._of_dead.setdefault(name, ResponseCounters()).add_up(counters)
        if self._placed[DEFAULT_SESSION] in lost:
            reset = f"POST {self.url}/sessions/default/reset"
            logger.warning("default session is lost until it is reset", extra={"next": reset})
        return len(lost)

    # The control API.

    def knows(self, session_id: str) -> bool:
        return session_id in self._placed

    @property
    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    async def _ask_all(self, method: str, path: str) -> list[tuple[WorkerProcess, Any]]:
        """Return the replies of all live workers."""

        async def ask(worker: WorkerProcess) -> tuple[WorkerProcess, Any] | None:
            with suppress(SessionLost):
                return worker, await worker.ask(method, path)
            return None

        return [each for each in await asyncio.gather(*map(ask, self._alive)) if each is not None]

    async def info(self) -> ReplayInfo:
        """Return what `/info` shows.

        Raises:
            ReplayError: if no worker lives.
        """
        for worker in self._alive:
            with suppress(SessionLost):
                info = parse_info(await worker.ask("GET", "/info"))
                return replace(info, session_ports=str(self._ports), workers=len(self.workers))
        raise _no_worker()

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken: every worker must live."""
        missing = tuple(f"worker {worker.number}" for worker in self.workers if not worker.alive)
        refused: dict[str, str] = {}
        for _, reply in await self._ask_all("GET", "/ready"):
            refused |= reply["refused"]
        return Readiness(missing, refused)

    async def metrics(self) -> ControlResponse:
        return metrics_response(await self.figures())

    async def figures(self) -> ReplayMetrics:
        """Return the counters of all workers, the dead ones included."""
        for worker, reply in await self._ask_all("GET", "/figures"):
            worker.figures = parse_metrics(reply)
        totals: dict[str, ResponseCounters] = {}
        for counted in (self._of_dead, *(worker.figures.counters for worker in self.workers)):
            for name, counters in counted.items():
                totals.setdefault(name, ResponseCounters()).add_up(counters)
        return ReplayMetrics(totals, tuple(worker.shown for worker in self.workers))

    async def reload(self, collection: str) -> ReloadResult:
        """Let every worker look for a newer pack of a collection.

        Raises:
            CollectionNotFound: if the collection is not served.
        """
        path = f"/collections/{collection}/reload"
        results: list[ReloadResult] = [each for _, each in await self._ask_all("POST", path)]
        if not results:
            raise _no_worker()
        refused = next((each["refused"] for each in results if each["refused"]), "")
        return {**results[0], "newer": any(each["newer"] for each in results), "refused": refused}

    async def sessions(self) -> list[SessionInfo]:
        states: dict[tuple[int, str], SessionInfo] = {
            (worker.number, state["id"]): state
            for worker, reply in await self._ask_all("GET", "/sessions")
            for state in reply["sessions"]
        }
        return [
            self._state(placed, states.get((placed.worker.number, session_id), {}))
            for session_id, placed in tuple(self._placed.items())
        ]

    def _state(self, placed: _Placed, newer: SessionInfo) -> SessionInfo:
        if not placed.lost:
            placed.state = {**placed.state, **newer}
        state: SessionInfo = {**_UNKNOWN, **placed.state, "worker": placed.worker.number, "lost": placed.lost}
        return {**state, "proxy": self.url} if state["id"] == DEFAULT_SESSION else state

    async def session(self, session_id: str) -> SessionInfo:
        """Return the state of a session.

        Raises:
            SessionLost: if its worker has died.
        """
        placed, state = await self._ask_owner(session_id, "GET", "")
        return self._state(placed, state)

    async def _ask_owner(
        self, session_id: str, method: str, part: str, body: Any = None
    ) -> tuple[_Placed, Any]:
        placed = self._placed[session_id]
        if placed.lost:
            raise placed.worker.lost()
        return placed, await placed.worker.ask(method, f"/sessions/{session_id}{part}", body)

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        """Return the ledger of an open session, or of one closed recently.

        Raises:
            SessionLost: if its worker has died.
        """
        part = f"/ledger?after={after}"
        if session_id in self._placed:
            return parse_ledger((await self._ask_owner(session_id, "GET", part))[1])
        for worker in self._alive:
            with suppress(SessionLost, UsageError):  # the worker does not know it
                return parse_ledger(await worker.ask("GET", f"/sessions/{session_id}{part}"))
        return None

    async def closed_sessions(self) -> list[SessionInfo]:
        """Return the sessions closed most recently, worker by worker."""
        replies = await self._ask_all("GET", "/sessions?closed=1")
        return [state for _, reply in replies for state in reply["sessions"]]

    async def conclude(self, session_id: str, outcome: MissOutcome) -> bool:
        with suppress(UsageError):
            await self._ask_owner(session_id, "POST", "/misses", outcome)
            return True
        return False

    async def command(self, session_id: str, name: str, body: Any) -> Any:
        return (await self._ask_owner(session_id, "POST", f"/{name}", body))[1]

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session on the worker that has the fewest.

        Raises:
            CollectionNotFound: if the collection is not served.
            PortInUse: if no session port is free.
            ReplayError: if no worker lives.
        """
        if port is not None:
            raise UsageError("session ports are chosen by the server", hint='leave "port" out')

        async def attempt(port: int) -> _Placed:
            return await self._open(collection, port)

        placed = await lend_port(self, self._ports, attempt)
        session_id = placed.state["id"]
        if placed.port in {each.port for each in self._placed.values() if each.lost}:
            another = await self.open_session(collection)  # the system chose the port of a lost session
            await self.close_session(session_id)
            return another
        facts = {"session": session_id, "worker": placed.worker.number, "port": placed.port}
        logger.debug("session placed", extra=facts)
        return self._state(placed, {})

    async def _open(self, collection: str | None, port: int) -> _Placed:
        tried: set[int] = set()
        while alive := [worker for worker in self._alive if worker.number not in tried]:
            worker = self._least_loaded(alive)
            tried.add(worker.number)
            deaths = worker.deaths
            worker.opening += 1
            try:
                await worker.close_orphans(self._placed)
                state = await worker.ask("POST", "/sessions", {"collection": collection, "port": port})
            except SessionLost:  # no client knows that session: another worker may open one
                continue
            except ReplayError:  # it did not answer, and may still open one
                worker.given_up += 1
                raise
            finally:
                worker.opening -= 1
            if worker.deaths == deaths:
                placed = _Placed(worker, state, int(state["proxy"].rpartition(":")[2]))
                self._placed[state["id"]] = placed
                return placed
        raise _no_worker()

    def _least_loaded(self, workers: Sequence[WorkerProcess]) -> WorkerProcess:
        load = Counter(placed.worker.number for placed in self._placed.values() if not placed.lost)
        return min(workers, key=lambda each: (load[each.number] + each.opening, each.number))

    async def reset_session(self, session_id: str) -> SessionInfo:
        """Reset a session; a lost default session begins again on the worker that replaced the dead one.

        Raises:
            SessionLost: if its worker has died.
        """
        if session_id == DEFAULT_SESSION and self._placed[session_id].worker.alive:
            self._placed[session_id].lost = False
        placed, state = await self._ask_owner(session_id, "POST", "/reset")
        return self._state(placed, state)

    async def close_session(self, session_id: str) -> None:
        """Close a session; its port may then be used again.

        Raises:
            ReplayError: if its worker does not answer; the session stays open.
        """
        placed = self._placed[session_id]
        if not placed.lost:
            # The worker has died; or it closed the session for a request that was given up.
            with suppress(SessionLost, UsageError):
                await placed.worker.ask("DELETE", f"/sessions/{session_id}")
        if self._placed.pop(session_id, None) is not None:
            self._ports.give_back(placed.port)


# The state of a lost session that no request has read before.
_UNKNOWN: SessionInfo = {
    "collection": "",
    "environment_id": "",
    "proxy": "",
    "epoch": 0,
    "in_flight": 0,
    "requests": 0,
    "counts": {},
    "connections": 0,
}


def _no_worker() -> ReplayError:
    return ReplayError("no worker lives", hint="they are started again; the log says why they died")


@asynccontextmanager
async def serve_cluster(
    collections: Sequence[Collection],
    ca: CertAuthority,
    options: ReplayOptions,
    *,
    workers: int,
    log: tuple[Format, str] = ("text", "warning"),
) -> AsyncIterator[ReplayCluster]:
    """Serve sealed collections by several workers until the context ends.

    Args:
        collections: the first is that of the default session.
        ca: stored in a folder; each worker opens it.
        options: as for one server; the ports are shared among the workers.
        log: format and level of the workers' logs.

    Raises:
        UsageError: if nothing is given to serve.
        PortInUse: if the port is taken, or every session port is.
        StillwebError: the reason why a worker cannot serve.
    """
    if not collections:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    with scratch_folder() as folder:
        private = replace(options, session_ports=None, private=folder / "worker")
        names = [(collection.root.absolute(), collection.name) for collection in collections]
        configs = [ReplayWorkerConfig(number, names, ca.folder, private, log) for number in range(workers)]
        cluster = ReplayCluster(configs, options)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.stop()
