"""Gives leases and takes them back: the clockwork around `leases`.

A lease that is over, by whosoever's doing, is cleared in one place: its session is left, what runs in it
is waited for, and only then the next client gets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from stillweb import clock
from stillweb.errors import StillwebError
from stillweb.replay.server.process import Tasks
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.leases.held import HeldLease
from stillweb.server.leases.leases import Ended, Lease, Leases, Wanted
from stillweb.server.leases.queue import QueueFull, Semaphore
from stillweb.server.monitor.counters import ServerCounters
from stillweb.server.options import ServeOptions

__all__ = ["LeaseManager"]

logger = logging.getLogger(__name__)


class LeaseManager:
    """The leases of a server.

    Args:
        options: see `ServeOptions`.
        leave: leaves a session, whatever is under way in it.
        releasing: turns of `leave`.
        tally: counts leases.
        changed: is called when a lease came or went.
    """

    def __init__(
        self,
        options: ServeOptions,
        leave: Callable[[int], Awaitable[None]],
        releasing: Semaphore,
        tally: ServerCounters,
        changed: Callable[[], None],
    ) -> None:
        self.leases = Leases(options.sessions, options.waiting)
        self.draining = False
        self.held: dict[str, HeldLease] = {}
        self._options = options
        self._leave = leave
        self._releasing = releasing
        self._tally = tally
        self._changed = changed
        self._granted: dict[str, asyncio.Future[HeldLease]] = {}
        self._clearing: dict[str, asyncio.Future[None]] = {}
        self._tasks = Tasks()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Begin to end leases that are over."""
        self._tasks.spawn(self._reap())

    async def get(
        self, owner: str, *, ttl: float | None = None, lifetime: float | None = None, wait: float = 0.0
    ) -> HeldLease:
        """Return a new lease.

        Args:
            owner: whom the monitor names.
            ttl: seconds of silence, as the server's options say unless given.
            lifetime: seconds at most; no more than the options say.
            wait: seconds to wait for one, in the order of arrival.

        Raises:
            Refused: if there is none, or the server ends.
        """
        if self.draining:
            raise RequestRefused(FailureKind.DRAINING, "this server ends and gives no new leases")
        most = self._options.lifetime
        node = self._options.node
        lease_id = f"{node}.{clock.new_id()}" if node else clock.new_id()
        wanted = Wanted(lease_id, owner, ttl or self._options.ttl, min(lifetime or most, most))
        try:
            lease = self.leases.ask(wanted, clock.monotonic(), waits=wait > 0)
        except QueueFull as error:
            raise self._full() from error
        if lease:
            return self._begin(lease)
        return await self._wait(wanted, wait)

    def find(self, lease_id: str) -> HeldLease:
        """Return a lease.

        Raises:
            Refused: if it is over, or never was.
        """
        if held := self.held.get(lease_id):
            return held
        if why := self.leases.why_ended(lease_id):
            raise RequestRefused(
                FailureKind.OVER, f"lease {lease_id} is over: {why.value}", hint="get another one"
            )
        raise RequestRefused(FailureKind.UNKNOWN, f"no lease {lease_id}")

    def heard(self, held: HeldLease, *, calls: int = 0) -> None:
        """Renew a lease."""
        self.leases.heard(held.lease.id, clock.monotonic(), calls=calls)
        self._wake.set()

    async def end(self, held: HeldLease, why: Ended = Ended.RELEASED) -> None:
        """End a lease and wait until its session was left. Twice is once."""
        self._end(held, why)
        if clearing := self._clearing.get(held.lease.id):
            await asyncio.shield(clearing)

    async def drain(self, seconds: float) -> None:
        """Give no new leases, and wait until those there are have ended."""
        self.draining = True
        for lease_id, waiting in self._granted.items():
            self.leases.withdraw(lease_id)
            if not waiting.done():
                waiting.set_exception(RequestRefused(FailureKind.DRAINING, "this server ends"))
        self._changed()
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait([idle], timeout=seconds)
        idle.cancel()

    async def close(self) -> None:
        """End all leases."""
        await self.drain(0.0)
        await self._tasks.end()
        ends = [self.end(held, Ended.CLOSED) for held in list(self.held.values())]
        for told in await asyncio.gather(*ends, *self._clearing.values(), return_exceptions=True):
            if isinstance(told, BaseException):
                logger.error("a session was not left", exc_info=told)

    # --- giving -------------------------------------------------------------------------------------

    async def _wait(self, wanted: Wanted, seconds: float) -> HeldLease:
        granted: asyncio.Future[HeldLease] = asyncio.get_running_loop().create_future()
        self._granted[wanted.id] = granted
        self._changed()
        try:
            await asyncio.wait([granted], timeout=seconds)
            if granted.done():
                return granted.result()
            raise self._full()
        except asyncio.CancelledError:
            if granted.done() and not granted.exception():
                self._end(granted.result(), Ended.RELEASED)  # nobody will ever know of it
            raise
        finally:
            del self._granted[wanted.id]
            self.leases.withdraw(wanted.id)
            self._changed()

    def _full(self) -> RequestRefused:
        line = self.leases.line
        return RequestRefused(
            FailureKind.FULL, f"all {line.limit} sessions are leased and {line.waiting} clients wait"
        )

    def _begin(self, lease: Lease) -> HeldLease:
        held = self.held[lease.id] = HeldLease(lease)
        self._tally.leases["granted"] += 1
        self._idle.clear()
        self._wake.set()
        self._changed()
        return held

    # --- taking back --------------------------------------------------------------------------------

    def _end(self, held: HeldLease, why: Ended) -> None:
        lease_id = held.lease.id
        if self.leases.end(lease_id, why):
            held.ended = True
            del self.held[lease_id]
            self._tally.leases[why.value] += 1
            self._clearing[lease_id] = asyncio.ensure_future(self._clear(held))
            self._changed()

    async def _clear(self, held: HeldLease) -> None:
        """Leave a session; what waits for its turn in it finds the lease ended, and does nothing."""
        lease = held.lease
        try:
            async with self._releasing.turn():
                await self._leave(lease.session)
            async with held.lock:
                await self._leave(lease.session)
        except StillwebError as error:
            logger.warning("a session was not left well", extra={"lease": lease.id, "error": str(error)})
        finally:
            del self._clearing[lease.id]
            following = self.leases.left(lease.id, clock.monotonic())
            if following:
                self._hand_over(following)
            if not self.held and not self._clearing:
                self._idle.set()
            self._changed()

    def _hand_over(self, lease: Lease) -> None:
        held = self._begin(lease)
        waiting = self._granted.get(lease.id)
        if waiting is None or waiting.done():
            self._end(held, Ended.RELEASED)
        else:
            waiting.set_result(held)

    async def _reap(self) -> None:
        while True:
            self._wake.clear()
            now = clock.monotonic()
            for lease, why in self.leases.overdue(now):
                logger.info("a lease is over", extra={"lease": lease.id, "why": why.value})
                self._end(self.held[lease.id], why)
            due = self.leases.next_due()
            woken = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait([woken], timeout=None if due is None else max(0.0, due - now))
            finally:
                woken.cancel()
