"""Grants leases and ends them: the timers and tasks around `LeaseTable`.

One method clears the session of every ended lease, whatever ended it: it leaves the session, waits for the
running call, and only then gives the session to the next client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from stillweb import clock
from stillweb.errors import StillwebError
from stillweb.polling import wait_event
from stillweb.replay.server.runtime import Tasks
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.leases.held import HeldLease
from stillweb.server.leases.queue import OperationQueue
from stillweb.server.leases.table import Lease, LeaseEnd, LeaseTable, LeaseTerms, QueueFull
from stillweb.server.monitor.counters import ServerCounters
from stillweb.server.options import ServeOptions

logger = logging.getLogger(__name__)


class LeaseManager:
    """The leases of a server.

    Args:
        leave: leaves a session, whatever runs in it.
        releases: queue of the calls of `leave`.
        counters: counts granted and ended leases.
        on_change: called when a lease is granted or ends.
    """

    def __init__(
        self,
        options: ServeOptions,
        leave: Callable[[int], Awaitable[None]],
        releases: OperationQueue,
        counters: ServerCounters,
        on_change: Callable[[], None],
    ) -> None:
        self.table = LeaseTable(options.sessions, options.waiting)
        self.draining = False
        self.held: dict[str, HeldLease] = {}
        self._options = options
        self._leave = leave
        self._releases = releases
        self._counters = counters
        self._on_change = on_change
        self._grants: dict[str, asyncio.Future[HeldLease]] = {}
        self._clearing: dict[str, asyncio.Future[None]] = {}
        self._tasks = Tasks()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        self._tasks.spawn(self._reap())

    async def acquire(
        self,
        owner: str,
        *,
        ttl: float | None = None,
        lifetime: float | None = None,
        wait: float = 0.0,
        client: str = "",
    ) -> HeldLease:
        """Grant a lease.

        Args:
            owner: label that the monitor shows.
            ttl: seconds of silence that end the lease [default: the server's].
            lifetime: seconds after which the lease ends; the server's value is the maximum.
            wait: seconds to wait for a session, in order of arrival.
            client: name of the API key that requests it.

        Raises:
            RequestRefused: if no session is free, or the server shuts down.
        """
        if self.draining:
            raise RequestRefused(FailureKind.DRAINING, "the server is shutting down and grants no new leases")
        most = self._options.lifetime
        node = self._options.node
        lease_id = f"{node}.{clock.new_id()}" if node else clock.new_id()
        terms = LeaseTerms(lease_id, owner, ttl or self._options.ttl, min(lifetime or most, most), client)
        try:
            lease = self.table.request(terms, clock.monotonic(), waits=wait > 0)
        except QueueFull as error:
            raise self._full() from error
        if lease:
            return self._begin(lease)
        return await self._wait(terms, wait)

    def find(self, lease_id: str, client: str = "") -> HeldLease:
        """Return a lease of a client.

        Raises:
            RequestRefused: if the lease has ended, or the client has no such lease. A lease of another client
                gives the same error as an unknown one.
        """
        held = self.held.get(lease_id)
        if held and held.lease.terms.client == client:
            return held
        if not held and (why := self.table.why_ended(lease_id)):
            raise RequestRefused(
                FailureKind.LEASE_OVER, f"lease {lease_id} is over: {why.value}", hint="request a new lease"
            )
        raise RequestRefused(FailureKind.NO_LEASE, f"no lease {lease_id}")

    def renew(self, held: HeldLease, *, calls: int = 0) -> None:
        """Renew a lease; `calls` is 1 at the start of a call and -1 at its end."""
        self.table.renew(held.lease.id, clock.monotonic(), calls=calls)
        self._wake.set()

    async def release(self, held: HeldLease, why: LeaseEnd = LeaseEnd.RELEASED) -> None:
        """End a lease and wait until its session is cleared. Idempotent."""
        self._end(held, why)
        if clearing := self._clearing.get(held.lease.id):
            await asyncio.shield(clearing)

    async def drain(self, seconds: float) -> None:
        """Refuse new leases and wait until the running ones have ended."""
        self.draining = True
        for lease_id, granted in self._grants.items():
            self.table.withdraw(lease_id)
            if not granted.done():
                granted.set_exception(RequestRefused(FailureKind.DRAINING, "the server is shutting down"))
        self._on_change()
        await wait_event(self._idle, seconds)

    async def close(self) -> None:
        await self.drain(0.0)
        await self._tasks.end()
        ends = [self.release(held, LeaseEnd.CLOSED) for held in list(self.held.values())]
        for result in await asyncio.gather(*ends, *self._clearing.values(), return_exceptions=True):
            if isinstance(result, BaseException):
                logger.error("a session was not cleared", exc_info=result)

    # --- granting -----------------------------------------------------------------------------------

    async def _wait(self, terms: LeaseTerms, seconds: float) -> HeldLease:
        granted: asyncio.Future[HeldLease] = asyncio.get_running_loop().create_future()
        self._grants[terms.id] = granted
        self._on_change()
        try:
            await asyncio.wait([granted], timeout=seconds)
            if granted.done():
                return granted.result()
            raise self._full()
        except asyncio.CancelledError:
            if granted.done() and not granted.exception():
                self._end(granted.result(), LeaseEnd.RELEASED)  # the client does not know its identifier
            raise
        finally:
            del self._grants[terms.id]
            self.table.withdraw(terms.id)
            self._on_change()

    def _full(self) -> RequestRefused:
        return RequestRefused(
            FailureKind.FULL,
            f"all {self.table.limit} sessions are leased and {self.table.waiting} clients wait",
        )

    def _begin(self, lease: Lease) -> HeldLease:
        held = self.held[lease.id] = HeldLease(lease)
        self._counters.leases["granted"] += 1
        self._idle.clear()
        self._wake.set()
        self._on_change()
        return held

    # --- ending -------------------------------------------------------------------------------------

    def _end(self, held: HeldLease, why: LeaseEnd) -> None:
        lease_id = held.lease.id
        if self.table.end(lease_id, why):
            held.ended = True
            del self.held[lease_id]
            self._counters.leases[why.value] += 1
            self._clearing[lease_id] = asyncio.ensure_future(self._clear(held))
            self._on_change()

    async def _clear(self, held: HeldLease) -> None:
        """Leave the session, and again after the running call: a reset under way may have opened a page."""
        lease = held.lease
        try:
            async with self._releases.slot():
                await self._leave(lease.session)
            async with held.lock:
                await self._leave(lease.session)
        except StillwebError as error:
            logger.warning("a session was not cleared", extra={"lease": lease.id, "error": str(error)})
        finally:
            del self._clearing[lease.id]
            if following := self.table.session_cleared(lease.id, clock.monotonic()):
                self._hand_over(following)
            if not self.held and not self._clearing:
                self._idle.set()
            self._on_change()

    def _hand_over(self, lease: Lease) -> None:
        held = self._begin(lease)
        granted = self._grants.get(lease.id)
        if granted is None or granted.done():
            self._end(held, LeaseEnd.RELEASED)
        else:
            granted.set_result(held)

    async def _reap(self) -> None:
        while True:
            self._wake.clear()
            now = clock.monotonic()
            for lease, why in self.table.overdue(now):
                logger.info("a lease expired", extra={"lease": lease.id, "why": why.value})
                self._end(self.held[lease.id], why)
            due = self.table.next_due()
            await wait_event(self._wake, None if due is None else max(0.0, due - now))
