"""The native replay server: its sessions, their listeners, and shutdown.

One listener takes proxy traffic (absolute form, CONNECT) for the default session and control requests
(origin form): docs/decisions/0002-one-listener.md. Every other session has a listener of its own in a fixed
range of ports, bound when the session opens. A client that cannot reach that port sends the session's id as
proxy user name to the first listener.

One of several workers (docs/decisions/0015-workers.md) has a private Unix socket instead of the first
listener. The supervisor passes the connections of that listener on to it.

No module of this package opens a connection, so replay is hermetic by construction.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from stillweb import __version__, clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.http.control import (
    DEFAULT_SESSION,
    KEY_VARIABLE,
    Ledger,
    MissOutcome,
    Readiness,
    ReloadResult,
    ReplayInfo,
    SessionInfo,
)
from stillweb.http.controlrouter import ControlBackend, ControlResponse
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.options import Option
from stillweb.polling import poll
from stillweb.replay.ledger.file import LedgerFile, LedgerLine
from stillweb.replay.ledger.session import ClosedSessions
from stillweb.replay.server.connection import BodyBudget, Connection, ConnectionLimits, ListenerTarget
from stillweb.replay.server.internalhosts import AboutPage, SearchHost
from stillweb.replay.server.listeners import (
    ExpiryTimer,
    Listener,
    PortPool,
    authority,
    drain,
    lend_port,
    listen,
    listen_unix,
)
from stillweb.replay.server.metrics import ReplayMetrics, WorkerMetrics, metrics_response, resident_bytes
from stillweb.replay.server.registry import PackHandle, PackRegistry
from stillweb.replay.server.runtime import Tasks
from stillweb.replay.server.session import Session

logger = logging.getLogger(__name__)

SESSION_PORTS = range(18100, 18164)

_DRAIN = 5.0  # seconds


def parse_ports(text: str) -> range | None:
    """Return the ports `A-B` or `A`; None for `any`."""
    if text == "any":
        return None
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports.start < 1 or ports.stop > 65536:
        raise ValueError(f"{text!r} is not a range of ports such as 18100-18163")
    return ports


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay server.

    Attributes:
        drain: seconds that responses have to finish on shutdown, and that a refused client has to read the
            refusal.
        hold_misses: whether a program in front reports the outcome of misses (`replay.onmiss`).
        private: Unix socket of the control API instead of `port`, under a supervisor.
    """

    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Option("Port of the proxy and the control API; 0 for a free one.", min=0, max=65535)
    ] = 8080
    session_ports: Annotated[
        range | None,
        Option(
            "Ports of the other sessions, or `any` for free ones.",
            metavar="A-B",
            parse=parse_ports,
            format=lambda ports: f"{ports[0]}-{ports[-1]}",
        ),
    ] = SESSION_PORTS
    ledger: Annotated[Path | None, Option("File to append every answer to, as JSON lines.", path="file")] = (
        None
    )
    search_host: Annotated[
        bool, Option("Answer http://search.stillweb.internal/ with a search over the collection's pages.")
    ] = False
    policy: Policy = field(default_factory=lambda: Policy(default_noise()))
    drain: float = _DRAIN
    hold_misses: bool = False
    private: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "Further host name that control requests may use. Repeatable.",
            "--allow-host",
            metavar="HOST",
            envvar="STILLWEB_ALLOW_HOSTS",
        ),
    ] = ()


@dataclass(eq=False, slots=True)
class _OpenSession:
    """A session, the pack that it holds, and its listener."""

    session: Session
    handle: PackHandle
    listener: Listener


class ReplayServer(ControlBackend):
    """A running server; made by `serve`.

    Attributes:
        url: of the proxy and the control API; "" if that is private.
        public: target of connections that a supervisor passes on for the default session.
        named: target of those for the session whose id is the proxy user name. A request without a user
            name is refused there, since the default session may be another worker's.
    """

    def __init__(
        self,
        registries: Mapping[str, PackRegistry],
        ca: CertAuthority,
        options: ReplayOptions,
        sink: Callable[[LedgerLine], None] | None,
    ) -> None:
        self.url = ""
        self.ca = ca
        self.options = options
        self.hosts: Iterable[str] = {options.host.lower(), *options.allowed_hosts}
        self.key = os.environ.get(KEY_VARIABLE, "")
        self._registries = dict(registries)
        self._sink = sink
        self._tasks = Tasks()
        self._ports = PortPool(options.session_ports)
        self._sessions: dict[str, _OpenSession] = {}
        self._closed = ClosedSessions()
        self._budget = BodyBudget(options.limits)
        self._about = AboutPage(self._registries, ca)
        self._search = SearchHost(self._registries) if options.search_host else None
        self.public, self.named = (
            self._target(by_user=self._by_user, about=self._about.respond) for _ in range(2)
        )
        self._expiry = ExpiryTimer(self._targets)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUse: if the port is taken, or every session port is.
        """
        self._ports.check(self.options.host)
        session, handle = self._new_session(DEFAULT_SESSION, next(iter(self._registries)))
        target = self._target(session=session, by_user=self._by_user, control=self, about=self._about.respond)
        self.public.session = session
        if self.options.private is not None:
            listener = await listen_unix(target, self.options.private)
        else:
            listener = await listen(target, self.options.host, self.options.port)
            self.url = f"http://{authority(self.options.host, listener.port)}"
        self._sessions[DEFAULT_SESSION] = _OpenSession(session, handle, listener)
        self._expiry.start()
        logger.info("replay serves", extra={"url": self.url, "collections": list(self._registries)})

    def _target(self, **leads_to: Any) -> ListenerTarget:
        options = self.options
        if self._search is not None:
            leads_to["search"] = self._search.respond
        return ListenerTarget(
            self.spawn,
            self.ca,
            refusal_timeout=options.drain,
            limits=options.limits,
            budget=self._budget,
            **leads_to,
        )

    def _targets(self) -> list[ListenerTarget]:
        return [self.public, self.named, *(each.listener.target for each in self._sessions.values())]

    async def stop(self) -> None:
        """Accept no new connection, let current responses finish, close."""
        self._expiry.stop()
        listeners = [each.listener for each in self._sessions.values()]
        adopted = [Listener(self.public), Listener(self.named)]
        await drain([*listeners, *adopted], self.options.drain)
        await self._tasks.end()
        logger.info("replay ends", extra={"answered": self.totals.total(), **self.totals})

    @property
    def totals(self) -> Counter[str]:
        """Responses by tier, of all sessions since the start."""
        totals: Counter[str] = Counter()
        for registry in self._registries.values():
            totals.update(registry.counters.answers)
        return totals

    def _new_session(self, session_id: str, collection: str) -> tuple[Session, PackHandle]:
        registry = self._registries[collection]
        handle = registry.acquire()
        policy, counters = self.options.policy, registry.counters
        session = Session(session_id, collection, handle.pack, policy, self._sink, counters)
        session.holds_misses = self.options.hold_misses
        return session, handle

    def _by_user(self, session_id: str) -> Session | None:
        found = self._sessions.get(session_id)
        return None if found is None else found.session

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.spawn(coroutine)

    # The control API.

    def knows(self, session_id: str) -> bool:
        return session_id in self._sessions

    async def info(self) -> ReplayInfo:
        for registry in self._registries.values():
            registry.refresh()
        current = {name: registry.current for name, registry in self._registries.items()}
        return ReplayInfo(
            backend="native",
            collections={name: handle.pack.environment_id for name, handle in current.items()},
            spki=tuple(self.ca.spki_hashes()),
            features={
                "ledger": True,
                "sessions": True,
                "in_flight": True,
                "cancel_navigations": True,
                "clock": True,
                "date": True,
                "answer_unrecorded": True,
                "derived": self.options.policy.unrecorded.derived,
                "accept": self.options.policy.unrecorded.on_write == "accept",
                "strict": self._is_strict(),
            },
            manifests={name: dict(handle.manifest) for name, handle in current.items()},
            session_ports=str(self._ports),
            software=f"stillweb/{__version__}",
        )

    def _is_strict(self) -> bool:
        policy = self.options.policy
        return not policy.guessed and policy.fuzzy is None and policy.unrecorded.on_write == "miss"

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken: always, since all packs were open before it listened."""
        for registry in self._registries.values():
            registry.refresh()
        return Readiness(
            refused={name: each.refused for name, each in self._registries.items() if each.refused}
        )

    async def metrics(self) -> ControlResponse:
        return metrics_response(await self.figures())

    async def figures(self) -> ReplayMetrics:
        sessions = self._sessions.values()
        worker = WorkerMetrics(
            sessions=dict(Counter(each.session.collection for each in sessions)),
            connections=sum(len(target.connections) for target in self._targets()),
            in_flight=sum(each.session.in_flight for each in sessions),
            resident=resident_bytes(),
        )
        return ReplayMetrics({name: each.counters for name, each in self._registries.items()}, (worker,))

    async def reload(self, collection: str) -> ReloadResult:
        """Look for a newer pack of a collection.

        Raises:
            CollectionNotFound: if the collection is not served.
        """
        registry = self._registry(collection)
        newer = registry.refresh()
        return {
            "collection": collection,
            "environment_id": registry.current.pack.environment_id,
            "newer": newer,
            "refused": registry.refused,
        }

    async def sessions(self) -> list[SessionInfo]:
        return [self._state(each) for each in self._sessions.values()]

    async def session(self, session_id: str) -> SessionInfo:
        return self._state(self._sessions[session_id])

    def _state(self, opened: _OpenSession) -> SessionInfo:
        return {
            **opened.session.describe(),
            "proxy": f"http://{authority(self.options.host, opened.listener.port)}",
            "connections": len(opened.listener.target.connections),
            "idle": self._idle(opened.session),
        }

    def _idle(self, session: Session) -> float:
        connected = any(each.session is session for target in self._targets() for each in target.connections)
        return 0.0 if connected else round(clock.monotonic() - session.left, 1)

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        found = self._sessions.get(session_id)
        return found.session.ledger(after) if found else self._closed.ledger(session_id, after)

    async def closed_sessions(self) -> list[SessionInfo]:
        return self._closed.sessions()

    async def conclude(self, session_id: str, outcome: MissOutcome) -> bool:
        return self._sessions[session_id].session.conclude(outcome)

    async def command(self, session_id: str, name: str, body: Any) -> Any:
        """Carry out a command.

        Raises:
            UsageError: if it comes too late: the session has answered a request already.
        """
        session = self._sessions[session_id].session
        match name:
            case "navigation":
                session.cancels_navigations = body["cancel"]
            case "unrecorded":
                session.answer_unrecorded(UnrecordedAnswers(**body))
            case "date":
                session.state.page_time = body["date"]
            case "clock":
                return session.page_clock.report(body["now"])
            case "lookup":
                return {"recorded": session.lookup(body["urls"])}
        return None

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session with a port of its own, or on the port that a supervisor chose.

        Raises:
            CollectionNotFound: if the collection is not served.
            PortInUse: if no session port is free.
        """
        name = next(iter(self._registries)) if collection is None else collection
        registry = self._registry(name)
        if port is not None and self._ports.ports is not None:
            raise UsageError("session ports are chosen by the server", hint='leave "port" out')
        session, handle = self._new_session(clock.new_id(), name)
        target = self._target(session=session)

        async def attempt(port: int) -> Listener:
            return await listen(target, self.options.host, port)

        try:
            listener = await (lend_port(self, self._ports, attempt) if port is None else attempt(port))
        except BaseException:
            registry.release(handle)
            raise
        opened = self._sessions[session.id] = _OpenSession(session, handle, listener)
        facts = {"session": session.id, "collection": name, "port": listener.port}
        logger.debug("session opened", extra=facts)
        return self._state(opened)

    def _registry(self, collection: str) -> PackRegistry:
        if collection not in self._registries:
            raise CollectionNotFound(
                f"collection {collection!r} is not served here",
                hint=f"served are: {', '.join(self._registries)}",
            )
        return self._registries[collection]

    async def reset_session(self, session_id: str) -> SessionInfo:
        """Reset a session; its port stays. The default session, which never ends, takes the newest pack."""
        found = self._sessions[session_id]
        pack = None
        if session_id == DEFAULT_SESSION:
            registry = self._registries[found.session.collection]
            older, found.handle = found.handle, registry.acquire()
            registry.release(older)
            pack = found.handle.pack
        found.session.reset(pack)
        return self._state(found)

    async def close_session(self, session_id: str) -> None:
        closing = self._sessions.pop(session_id)
        session, seconds = closing.session, min(1, self.options.drain)
        await drain([closing.listener], seconds)
        await self._end_by_user(session, seconds)
        self._closed.add(session.describe(), session.entries)
        self._registries[session.collection].release(closing.handle)
        self._ports.give_back(closing.listener.port)
        logger.debug("session closed", extra={"session": session.id, "collection": session.collection})

    async def _end_by_user(self, session: Session, seconds: float) -> None:
        """End the connections that reached a session by its id as user name."""
        targets = (self.public, self.named, self._sessions[DEFAULT_SESSION].listener.target)

        def theirs() -> list[Connection]:
            return [each for target in targets for each in target.connections if each.session is session]

        for connection in theirs():
            connection.end()
        if not await poll(lambda: not theirs(), timeout=seconds):
            for connection in theirs():
                connection.abort()


@contextmanager
def _opened(served: Sequence[Collection] | Mapping[str, Pack]) -> Iterator[dict[str, PackRegistry]]:
    """Open the packs of collections, and close those that were opened here."""
    if isinstance(served, Mapping):
        yield {name: PackRegistry(name, PackHandle(pack, pack.manifest)) for name, pack in served.items()}
        return
    registries: dict[str, PackRegistry] = {}
    with ExitStack() as stack:
        for collection in served:
            registries[collection.name] = PackRegistry.open(collection)
            stack.callback(registries[collection.name].close)
        yield registries


@asynccontextmanager
async def serve(
    served: Sequence[Collection] | Mapping[str, Pack], ca: CertAuthority, options: ReplayOptions | None = None
) -> AsyncIterator[ReplayServer]:
    """Serve sealed collections, or open packs by name, until the context ends; the first is the default.

    Raises:
        UsageError: if nothing is given to serve.
        PortInUse: if the port is taken, or every session port is.
        MalformedPack: if a collection is not sealed or its pack is damaged.
    """
    options = options or ReplayOptions()
    if not served:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    with ExitStack() as stack:
        registries = stack.enter_context(_opened(served))
        sink = stack.enter_context(LedgerFile(options.ledger)).write if options.ledger else None
        server = ReplayServer(registries, ca, options, sink)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@asynccontextmanager
async def serve_control(
    backend: ControlBackend, host: str, port: int, advice: str = ""
) -> AsyncIterator[str]:
    """Serve the control API alone, for a back-end that carries its traffic elsewhere; yield its URL.

    Args:
        port: 0 for any.
        advice: body of the response to proxy traffic that arrives here.
    """
    target = ListenerTarget(spawn=Tasks().spawn, control=backend, advice=advice)
    listener = await listen(target, host, port)
    try:
        yield f"http://{authority(host, listener.port)}"
    finally:
        await drain([listener], _DRAIN)
