"""The native replay server: sessions, their doors, and their end.

One listener takes proxy traffic (absolute form, CONNECT) for the default session and control
requests (origin form), docs/decisions/0002-one-listener.md; every other session has a listener of its
own out of a fixed range, bound when the session opens. Clients that cannot reach that port give the
session's id as proxy user name at the first one.

As one worker of several (docs/decisions/0015-workers.md) it has a private Unix socket instead of the first
listener, and is handed the connections that came in by it.

Nothing here, or below, can open a connection to anywhere: replay is hermetic by construction.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from stillweb import __version__, clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy
from stillweb.options import Option
from stillweb.polling import poll
from stillweb.replay.ledger.file import LedgerFile
from stillweb.replay.server.connection import Connection, ListenerTarget
from stillweb.replay.server.control import DEFAULT_SESSION, ControlBackend, Readiness
from stillweb.replay.server.listeners import Listener, PortPool, authority, drain, listen, listen_unix
from stillweb.replay.server.metrics import ReplayMetrics, WorkerMetrics, resident_bytes
from stillweb.replay.server.process import Tasks
from stillweb.replay.server.registry import PackHandle, PackRegistry
from stillweb.replay.server.session import Ledger, LedgerEntry, Session

__all__ = [
    "CLOSED_BYTES",
    "SESSION_PORTS",
    "ClosedSessions",
    "ReplayOptions",
    "ReplayServer",
    "serve",
    "serve_desk",
]

CLOSED_BYTES = 16 * 1024 * 1024
"""Bytes of closed sessions that are kept, about; of the last one closed all, however much that is."""

_SESSION = 2048  # bytes of one with an empty ledger, about


class ClosedSessions:
    """What the sessions closed most recently answered."""

    def __init__(self, limit: int = CLOSED_BYTES) -> None:
        self._limit = limit
        self._kept: dict[str, tuple[dict[str, Any], Callable[[int], Ledger], int]] = {}
        self._weight = 0

    def add(self, shown: Mapping[str, Any], weight: int, read: Callable[[int], Ledger]) -> None:
        """Keep a session.

        Args:
            shown: its last state, as the control API has it.
            weight: of its ledger in bytes (`Session.weight`).
            read: gives its ledger beyond a request number (`Session.reader`).
        """
        state = {**shown, "closed": True}
        weight += _SESSION
        self._kept[state["id"]] = (state, read, weight)
        self._weight += weight
        while self._weight > self._limit and len(self._kept) > 1:
            _, _, lighter = self._kept.pop(next(iter(self._kept)))
            self._weight -= lighter

    def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions, the first closed first."""
        return [state for state, _, _ in self._kept.values()]

    def ledger(self, session_id: str, after: int = 0) -> Ledger | None:
        """Return what a session answered beyond request number `after`; None if it is not known."""
        if session_id not in self._kept:
            return None
        return replace(self._kept[session_id][1](after), closed=True)


logger = logging.getLogger(__name__)

SESSION_PORTS = range(18100, 18164)


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


def _format_ports(ports: range) -> str:
    return f"{ports[0]}-{ports[-1]}"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to serve.

    Attributes:
        drain: seconds that answers at hand are given at the end, and refusals to be read.
        hold_misses: whether a program in front says what becomes of misses (`replay.fallback`).
        private: Unix socket of the control API instead of `port`, where a supervisor has that one.
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
            format=_format_ports,
        ),
    ] = SESSION_PORTS
    ledger: Annotated[Path | None, Option("File to append every answer to, as JSON lines.", path="file")] = (
        None
    )
    policy: Policy = field(default_factory=lambda: Policy(default_noise()))
    drain: float = 5.0
    hold_misses: bool = False
    private: Path | None = None


@dataclass(eq=False, slots=True)
class _OpenSession:
    """A session, the edition that it was lent, and the listener that leads to it."""

    session: Session
    edition: PackHandle
    listener: Listener


class ReplayServer(ControlBackend):
    """A running server; made by `serve`. It is the `Desk` of its control API.

    Attributes:
        url: of the proxy and the control API; "" if that is private.
        public: leads connections that were handed over to the default session.
        named: leads them to the session whose id is their user name; a request without one is refused
            there, since the default session may be another worker's.
    """

    def __init__(
        self,
        shelves: Mapping[str, PackRegistry],
        ca: CertAuthority,
        options: ReplayOptions,
        sink: Callable[[Session, LedgerEntry], None] | None,
    ) -> None:
        self.url = ""
        self.ca = ca
        self.options = options
        self._shelves = dict(shelves)
        self._sink = sink
        self._tasks = Tasks()
        self._ports = PortPool(options.session_ports)
        self._kept: dict[str, _OpenSession] = {}
        self._closed = ClosedSessions()
        seconds = options.drain
        self.public = ListenerTarget(self.spawn, self.ca, by_user=self._by_user, refusal_timeout=seconds)
        self.named = ListenerTarget(self.spawn, self.ca, by_user=self._by_user, refusal_timeout=seconds)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUse: if the port is taken, or every session port is.
        """
        self._ports.check(self.options.host)
        session, edition = self._new_session(DEFAULT_SESSION, next(iter(self._shelves)))
        target = ListenerTarget(
            self.spawn, self.ca, session, self._by_user, control=self, refusal_timeout=self.options.drain
        )
        self.public.session = session
        if self.options.private is not None:
            listener = await listen_unix(target, self.options.private)
        else:
            listener = await listen(target, self.options.host, self.options.port)
            self.url = f"http://{authority(self.options.host, listener.port)}"
        self._kept[DEFAULT_SESSION] = _OpenSession(session, edition, listener)
        logger.info("replay serves", extra={"url": self.url, "collections": list(self._shelves)})

    async def stop(self) -> None:
        """Take nothing new, let answers at hand go out, close."""
        listeners = [kept.listener for kept in self._kept.values()]
        handed = [Listener(self.public), Listener(self.named)]
        await drain([*listeners, *handed], self.options.drain)
        await self._tasks.end()
        logger.info("replay ends", extra={"answered": self.totals.total(), **self.totals})

    @property
    def totals(self) -> Counter[str]:
        """Answers by tier, of all sessions there ever were."""
        totals: Counter[str] = Counter()
        for shelf in self._shelves.values():
            totals.update(shelf.tally.answers)
        return totals

    def _new_session(self, session_id: str, collection: str) -> tuple[Session, PackHandle]:
        shelf = self._shelves[collection]
        edition = shelf.lend()
        policy, tally = self.options.policy, shelf.tally
        session = Session(session_id, collection, edition.pack, policy, self._sink, tally)
        session.holds_misses = self.options.hold_misses
        return session, edition

    def _by_user(self, session_id: str) -> Session | None:
        kept = self._kept.get(session_id)
        return None if kept is None else kept.session

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the server ends."""
        self._tasks.spawn(coroutine)

    # The desk of the control API.

    def knows(self, session_id: str) -> bool:
        """Return whether there is a session of that id."""
        return session_id in self._kept

    async def info(self) -> dict[str, Any]:
        """Return what `/info` shows."""
        for shelf in self._shelves.values():
            shelf.look()
        current = {name: shelf.current for name, shelf in self._shelves.items()}
        return {
            "backend": "native",
            "software": f"stillweb/{__version__}",
            "collections": {name: edition.pack.environment_id for name, edition in current.items()},
            "spki": list(self.ca.spki_hashes()),
            "features": {
                "ledger": True,
                "sessions": True,
                "in_flight": True,
                "strict": not self.options.policy.guessed and self.options.policy.fuzzy is None,
            },
            "manifests": {name: dict(edition.manifest) for name, edition in current.items()},
            "session_ports": str(self._ports),
        }

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken: they can, as all packs were open before it listened."""
        for shelf in self._shelves.values():
            shelf.look()
        return Readiness(
            refused={name: shelf.refused for name, shelf in self._shelves.items() if shelf.refused}
        )

    async def figures(self) -> ReplayMetrics:
        """Return what `/metrics` shows."""
        kept = self._kept.values()
        targets = [self.public, self.named, *(each.listener.target for each in kept)]
        worker = WorkerMetrics(
            sessions=dict(Counter(each.session.collection for each in kept)),
            connections=sum(len(target.connections) for target in targets),
            in_flight=sum(each.session.in_flight for each in kept),
            resident=resident_bytes(),
        )
        return ReplayMetrics({name: shelf.tally for name, shelf in self._shelves.items()}, (worker,))

    async def reload(self, collection: str) -> dict[str, Any]:
        """Look for a newer pack of a collection.

        Raises:
            CollectionNotFound: if the collection is not served.
        """
        shelf = self._shelf(collection)
        newer = shelf.look()
        environment_id = shelf.current.pack.environment_id
        return {
            "collection": collection,
            "environment_id": environment_id,
            "newer": newer,
            "refused": shelf.refused,
        }

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""
        return [self._shown(kept) for kept in self._kept.values()]

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return one session."""
        return self._shown(self._kept[session_id])

    def _shown(self, kept: _OpenSession) -> dict[str, Any]:
        return {
            **kept.session.to_dict(),
            "proxy": f"http://{authority(self.options.host, kept.listener.port)}",
            "connections": len(kept.listener.target.connections),
        }

    async def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return the ledger of a session, also of one closed not long ago."""
        kept = self._kept.get(session_id)
        found = kept.session.ledger(after) if kept else self._closed.ledger(session_id, after)
        return None if found is None else found.to_dict()

    async def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently."""
        return self._closed.sessions()

    async def conclude(self, session_id: str, outcome: Mapping[str, Any]) -> bool:
        """Put a held miss on the ledger of a session; return whether there was one."""
        return self._kept[session_id].session.conclude(str(outcome.get("mark", "")), outcome)

    async def open_session(self, collection: str | None, port: int | None = None) -> dict[str, Any]:
        """Open a session with a port of its own, or on one that was chosen for it.

        Raises:
            CollectionNotFound: if the collection is not served.
            PortInUse: if no session port is free.
        """
        name = next(iter(self._shelves)) if collection is None else collection
        shelf = self._shelf(name)
        if port is not None and self._ports.ports is not None:
            raise UsageError("session ports are chosen by the server", hint='leave "port" out')
        session, edition = self._new_session(clock.new_id(), name)
        target = ListenerTarget(self.spawn, self.ca, session, refusal_timeout=self.options.drain)

        async def attempt(port: int) -> Listener:
            return await listen(target, self.options.host, port)

        try:
            listener = await (self._ports.lend(attempt) if port is None else attempt(port))
        except BaseException:
            shelf.take_back(edition)
            raise
        kept = self._kept[session.id] = _OpenSession(session, edition, listener)
        logger.debug(
            "session opened", extra={"session": session.id, "collection": name, "port": listener.port}
        )
        return self._shown(kept)

    def _shelf(self, collection: str) -> PackRegistry:
        if collection not in self._shelves:
            raise CollectionNotFound(
                f"collection {collection!r} is not served here",
                hint=f"served are: {', '.join(self._shelves)}",
            )
        return self._shelves[collection]

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Make a session as new; its port stays. The default one, which never ends, takes the newest pack."""
        kept = self._kept[session_id]
        pack = None
        if session_id == DEFAULT_SESSION:
            shelf = self._shelves[kept.session.collection]
            older, kept.edition = kept.edition, shelf.lend()
            shelf.take_back(older)
            pack = kept.edition.pack
        kept.session.reset(pack)
        return self._shown(kept)

    async def close_session(self, session_id: str) -> None:
        """Close a session, its port and its connections."""
        kept = self._kept.pop(session_id)
        session, seconds = kept.session, min(1, self.options.drain)
        await drain([kept.listener], seconds)
        await self._end_by_user(session, seconds)
        self._closed.add(session.to_dict(), session.weight, session.reader())
        self._shelves[session.collection].take_back(kept.edition)
        self._ports.give_back(kept.listener.port)
        logger.debug("session closed", extra={"session": session.id, "collection": session.collection})

    async def _end_by_user(self, session: Session, seconds: float) -> None:
        """End the connections that lead to a session by its id as user name."""
        targets = (self.public, self.named, self._kept[DEFAULT_SESSION].listener.target)

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
    shelves: dict[str, PackRegistry] = {}
    with ExitStack() as stack:
        for collection in served:
            shelves[collection.name] = PackRegistry.open(collection)
            stack.callback(shelves[collection.name].close)
        yield shelves


@asynccontextmanager
async def serve(
    served: Sequence[Collection] | Mapping[str, Pack],
    ca: CertAuthority,
    options: ReplayOptions | None = None,
) -> AsyncIterator[ReplayServer]:
    """Serve sealed collections, or open packs by name, until the context ends; the first is the default.

    Raises:
        UsageError: if there is nothing to serve.
        PortInUse: if the port is taken, or every session port is.
        MalformedPack: if a collection is not sealed or its pack is damaged.
    """
    options = options or ReplayOptions()
    if not served:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    with ExitStack() as stack:
        shelves = stack.enter_context(_opened(served))
        sink = stack.enter_context(LedgerFile(options.ledger)).write if options.ledger else None
        server = ReplayServer(shelves, ca, options, sink)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@asynccontextmanager
async def serve_desk(
    make: Callable[[], ControlBackend], options: ReplayOptions, advice: str = ""
) -> AsyncIterator[str]:
    """Serve the control API alone, for a back-end that carries its traffic elsewhere; yields its URL."""
    tasks = Tasks()
    target = ListenerTarget(spawn=tasks.spawn, control=make(), advice=advice)
    listener = await listen(target, options.host, options.port)
    try:
        yield f"http://{authority(options.host, listener.port)}"
    finally:
        await drain([listener], options.drain)
