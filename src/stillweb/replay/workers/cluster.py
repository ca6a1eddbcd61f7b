"""Several workers behind one port: who has which session, and one control API for all of them.

The supervisor, this program, answers nothing but control requests. It starts the workers, puts each new
session on the one with the fewest, remembers who has it and asks that one. Every other connection to
the public port goes to the worker of its session as soon as its first request tells which that
is (`lobby`; docs/decisions/0015-workers.md).

What a dead worker kept is lost and said to be so, 410, until the session is closed: its cursor cannot be
known. The port stays unused as long, since a client may still point there. A lost default session
begins anew when it is reset, and answers 503 until then.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import ReplayError, SessionLost, UsageError
from stillweb.http.wire import refusal
from stillweb.replay.server.connection import ListenerTarget
from stillweb.replay.server.control import DEFAULT_SESSION, ControlBackend, Readiness
from stillweb.replay.server.listeners import BACKLOG, Listener, PortPool, authority, cannot_listen, drain
from stillweb.replay.server.metrics import ReplayMetrics, ResponseCounters
from stillweb.replay.server.process import Format, Tasks
from stillweb.replay.server.server import ReplayOptions
from stillweb.replay.workers.lobby import CONTROL, ConnectionRouter, adopt
from stillweb.replay.workers.supervisor import Worker
from stillweb.replay.workers.worker import ReplayWorkerConfig

__all__ = ["ReplayCluster", "serve_cluster"]

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Placed:
    """A session, its worker, and what is known if that dies."""

    worker: Worker
    shown: dict[str, Any]
    port: int = 0
    lost: bool = False


class ReplayCluster(ControlBackend):
    """The supervisor of several workers; made by `serve_cluster`. It is the `Desk` of their control API.

    Attributes:
        url: of the proxy and the control API.
        workers: by number.
    """

    def __init__(self, configs: Sequence[ReplayWorkerConfig], options: ReplayOptions) -> None:
        self.url = ""
        self.options = options
        self.workers = [Worker(config, self._bury) for config in configs]
        self._ports = PortPool(options.session_ports)
        self._placed = {DEFAULT_SESSION: _Placed(self.workers[0], {"id": DEFAULT_SESSION})}
        self._lobbies: set[asyncio.Transport] = set()
        self._tasks = Tasks()
        self._listener = Listener(ListenerTarget(self._tasks.spawn, control=self))
        self._buried: dict[str, ResponseCounters] = {}  # what dead workers had counted

    @property
    def totals(self) -> Counter[str]:
        """Answers by tier, as the workers said when they ended."""
        totals: Counter[str] = Counter()
        for tally in self._buried.values():
            totals.update(tally.answers)
        for worker in self.workers:
            totals.update(worker.answered)
        return totals

    async def start(self) -> None:
        """Start the workers, then take connections.

        Raises:
            PortInUse: if the port is taken, or every session port is.
            StillwebError: what a worker cannot serve for.
        """
        self._ports.check(self.options.host)
        host, port, target = self.options.host, self.options.port, self._listener.target
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: ConnectionRouter(self._route, self._lobbies, target),
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
        logger.info("supervisor serves", extra={"url": self.url, "workers": len(self.workers)})

    async def stop(self) -> None:
        """Take nothing new, let answers at hand go out, end the workers."""
        self._listener.close()  # first, lest more come in after those that are here
        for transport in tuple(self._lobbies):
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
            transport.abort()  # the worker has a descriptor of its own: the client notices nothing

    def _bury(self, worker: Worker) -> int:
        """Give up the sessions of a worker that has died; return how many."""
        lost = [placed for placed in self._placed.values() if placed.worker is worker and not placed.lost]
        for placed in lost:
            placed.lost = True
        figures, worker.figures = worker.figures, ReplayMetrics()
        for name, tally in figures.tallies.items():
            self._buried.setdefault(name, ResponseCounters()).add_up(tally)
        if self._placed[DEFAULT_SESSION] in lost:
            again = f"POST {self.url}/sessions/default/reset"
            logger.warning("default session is lost until it is reset", extra={"next": again})
        return len(lost)

    # The desk of the control API.

    def knows(self, session_id: str) -> bool:
        """Return whether there is a session of that id, be it lost."""
        return session_id in self._placed

    @property
    def _alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    async def _ask_all(self, method: str, path: str) -> list[tuple[Worker, Any]]:
        """Return what each worker answers that lives to do so."""

        async def ask(worker: Worker) -> tuple[Worker, Any] | None:
            with suppress(SessionLost):
                return worker, await worker.ask(method, path)
            return None

        return [each for each in await asyncio.gather(*map(ask, self._alive)) if each is not None]

    async def info(self) -> dict[str, Any]:
        """Return what `/info` shows.

        Raises:
            ReplayError: if no worker lives.
        """
        for worker in self._alive:
            with suppress(SessionLost):
                info: dict[str, Any] = await worker.ask("GET", "/info")
                return {**info, "session_ports": str(self._ports), "workers": len(self.workers)}
        raise _nobody()

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken: every worker has to live."""
        missing = tuple(f"worker {worker.number}" for worker in self.workers if not worker.alive)
        refused: dict[str, str] = {}
        for _, told in await self._ask_all("GET", "/ready"):
            refused |= told["refused"]
        return Readiness(missing, refused)

    async def figures(self) -> ReplayMetrics:
        """Return what `/metrics` shows."""
        for worker, told in await self._ask_all("GET", "/figures"):
            worker.figures = ReplayMetrics.from_dict(told)
        tallies: dict[str, ResponseCounters] = {}
        for counted in (self._buried, *(worker.figures.tallies for worker in self.workers)):
            for name, tally in counted.items():
                tallies.setdefault(name, ResponseCounters()).add_up(tally)
        return ReplayMetrics(tallies, tuple(worker.shown for worker in self.workers))

    async def reload(self, collection: str) -> dict[str, Any]:
        """Let every worker look for a newer pack of a collection.

        Raises:
            CollectionNotFound: if the collection is not served.
        """
        told = [each for _, each in await self._ask_all("POST", f"/collections/{collection}/reload")]
        if not told:
            raise _nobody()
        refused = next((each["refused"] for each in told if each["refused"]), "")
        return {**told[0], "newer": any(each["newer"] for each in told), "refused": refused}

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""
        told = {
            (worker.number, shown["id"]): shown
            for worker, each in await self._ask_all("GET", "/sessions")
            for shown in each["sessions"]
        }
        return [
            self._shown(placed, told.get((placed.worker.number, session_id), {}))
            for session_id, placed in tuple(self._placed.items())
        ]

    def _shown(self, placed: _Placed, told: Mapping[str, Any]) -> dict[str, Any]:
        if not placed.lost:
            placed.shown |= told
        shown = {**_UNKNOWN, **placed.shown, "worker": placed.worker.number, "lost": placed.lost}
        return {**shown, "proxy": self.url} if shown["id"] == DEFAULT_SESSION else shown

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return how a session stands.

        Raises:
            SessionLost: if its worker has died.
        """
        placed, told = await self._ask_owner(session_id, "GET", "")
        return self._shown(placed, told)

    async def _ask_owner(
        self, session_id: str, method: str, part: str, body: Any = None
    ) -> tuple[_Placed, Any]:
        placed = self._placed[session_id]
        if placed.lost:
            raise placed.worker.lost()
        return placed, await placed.worker.ask(method, f"/sessions/{session_id}{part}", body)

    async def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return the ledger of a session, also of one closed not long ago.

        Raises:
            SessionLost: if its worker has died.
        """
        part = f"/ledger?after={after}"
        if session_id in self._placed:
            ledger: dict[str, Any] = (await self._ask_owner(session_id, "GET", part))[1]
            return ledger
        for worker in self._alive:
            with suppress(SessionLost, UsageError):  # it does not know it
                closed: dict[str, Any] = await worker.ask("GET", f"/sessions/{session_id}{part}")
                return closed
        return None

    async def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently, worker by worker."""
        told = await self._ask_all("GET", "/sessions?closed=1")
        return [shown for _, each in told for shown in each["sessions"]]

    async def conclude(self, session_id: str, outcome: Mapping[str, Any]) -> bool:
        """Put a held miss on the ledger of a session; return whether there was one."""
        with suppress(UsageError):  # it holds no such miss
            await self._ask_owner(session_id, "POST", "/misses", dict(outcome))
            return True
        return False

    async def open_session(self, collection: str | None, port: int | None = None) -> dict[str, Any]:
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

        placed = await self._ports.lend(attempt)
        session_id = placed.shown["id"]
        if placed.port in {each.port for each in self._placed.values() if each.lost}:
            another = await self.open_session(collection)  # the system chose the port of a dead session
            await self.close_session(session_id)
            return another
        facts = {"session": session_id, "worker": placed.worker.number, "port": placed.port}
        logger.debug("session placed", extra=facts)
        return self._shown(placed, {})

    async def _open(self, collection: str | None, port: int) -> _Placed:
        tried: set[int] = set()
        while alive := [worker for worker in self._alive if worker.number not in tried]:
            worker = self._least_loaded(alive)
            tried.add(worker.number)
            deaths = worker.deaths
            worker.opening += 1
            try:
                await worker.close_orphans(self._placed)
                shown = await worker.ask("POST", "/sessions", {"collection": collection, "port": port})
            except SessionLost:  # nobody was told of that session: another worker may open it
                continue
            except ReplayError:  # it did not answer, and may open one all the same
                worker.unsure = True
                raise
            finally:
                worker.opening -= 1
            if worker.deaths == deaths:
                placed = _Placed(worker, shown, int(shown["proxy"].rpartition(":")[2]))
                self._placed[shown["id"]] = placed
                return placed
        raise _nobody()

    def _least_loaded(self, workers: Sequence[Worker]) -> Worker:
        load = Counter(placed.worker.number for placed in self._placed.values() if not placed.lost)
        return min(workers, key=lambda each: (load[each.number] + each.opening, each.number))

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Make a session as new; also the default one if it is lost, on the worker that has come instead.

        Raises:
            SessionLost: if its worker has died.
        """
        if session_id == DEFAULT_SESSION and self._placed[session_id].worker.alive:
            self._placed[session_id].lost = False
        placed, told = await self._ask_owner(session_id, "POST", "/reset")
        return self._shown(placed, told)

    async def close_session(self, session_id: str) -> None:
        """Close a session; its port may be used again.

        Raises:
            ReplayError: if its worker does not answer; the session is there until it does.
        """
        placed = self._placed[session_id]
        if not placed.lost:
            # It has died: so much the better. Or it had closed it when nobody waited for the answer any more.
            with suppress(SessionLost, UsageError):
                await placed.worker.ask("DELETE", f"/sessions/{session_id}")
        if self._placed.pop(session_id, None) is not None:
            self._ports.give_back(placed.port)


# What a lost session shows if it was never asked for.
_UNKNOWN: dict[str, Any] = {"collection": "", "environment_id": "", "proxy": ""}
_UNKNOWN |= {"epoch": 0, "in_flight": 0, "requests": 0, "counts": {}, "connections": 0}


def _nobody() -> ReplayError:
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
        ca: a folder's; each worker opens it.
        options: as for one server; the ports are shared out.
        workers: how many.
        log: form and level of the workers' logs.

    Raises:
        UsageError: if there is nothing to serve.
        PortInUse: if the port is taken, or every session port is.
        StillwebError: what a worker cannot serve for.
    """
    if not collections:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    with tempfile.TemporaryDirectory(prefix="stillweb-") as folder:
        private = replace(options, session_ports=None, private=Path(folder) / "worker")
        names = [(collection.root.absolute(), collection.name) for collection in collections]
        configs = [ReplayWorkerConfig(number, names, ca.folder, private, log) for number in range(workers)]
        cluster = ReplayCluster(configs, options)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.stop()
