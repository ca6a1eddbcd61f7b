"""The actors of a `RayRollouts`: made, replaced when lost, ended. Where they run is Ray's to decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.errors import ExtraNotInstalled, InfraError, StillwebError, UsageError
from stillweb.trainers.ray.worker import EnvWorker, RayWorkerConfig

__all__ = ["Placing", "Pool", "RayError", "WorkerSlot", "cause_of", "is_lost", "ray"]

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as missing:
    raise ExtraNotInstalled(
        f"rollouts on many machines need {missing.name}", hint="pip install 'stillweb[ray]'"
    ) from missing


def is_lost(error: RayError) -> bool:
    """Whether it is not the worker that raised it, but what became of the worker."""
    return not isinstance(error, RayTaskError)


def cause_of(error: RayError) -> BaseException:
    """Return an error as it was raised in the worker; the loss of a worker as what it is: ours."""
    if is_lost(error):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return InfraError(f"a worker was lost: {type(error).__name__}: {' '.join(lines[:4])}", hint="reset")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, StillwebError) else error


logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 60.0
_CALLS = 64  # beside those of its sessions


@dataclass(frozen=True, slots=True)
class Placing:
    """What a worker asks of the machine that Ray finds for it.

    Attributes:
        num_cpus: of Ray's count.
        memory: bytes, which Ray counts and does not enforce; 0 for none.
        resources: others of Ray's, such as {"browsers": 1}.
        strategy: of Ray's: "SPREAD" over the machines, "DEFAULT" packs them, or one of its objects.
        runtime_env: of Ray's: where agents' modules come from, environment variables, ...
        start_seconds: for which the first workers are waited for; packs are fetched in them.
    """

    num_cpus: float = 1.0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: Any = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None
    start_seconds: float = 600.0


@dataclass(eq=False, slots=True)
class WorkerSlot:
    """Where a worker stands in a pool; if it is lost, the next one stands there.

    Attributes:
        number: from 0.
        handle: of the actor.
        started: reference to what its `start` returns.
        under_way: episodes and sessions that it was given by this program.
        lost: how many were.
    """

    number: int
    handle: Any
    started: Any
    under_way: int = 0
    lost: int = 0


class Pool:
    """So many workers; `start` and `close` it. Calls wait.

    Args:
        count: of workers.
        placing: see `Placing`.

    Attributes:
        config: of each worker.
        seats: of the workers, as long as there are any.
    """

    def __init__(self, count: int, placing: Placing) -> None:
        self.config = RayWorkerConfig(sessions=1)
        self.seats: Sequence[WorkerSlot] = ()
        self._count = count
        self._placing = placing

    @property
    def sessions(self) -> int:
        """How many each worker has."""
        return self.config.sessions

    def start(self, config: RayWorkerConfig) -> None:
        """Make the workers and wait for them.

        Raises:
            InfraError: if Ray finds no place for them, or one does not start.
            StillwebError: as `EnvWorker.start`.
        """
        self.config = config
        self.seats = [WorkerSlot(number, *self._make()) for number in range(self._count)]
        started = [seat.started for seat in self.seats]
        ready, late = ray.wait(started, num_returns=len(started), timeout=self._placing.start_seconds)
        for reference in ready:
            try:
                ray.get(reference)
            except RayError as error:
                raise cause_of(error) from error
        if late:
            raise InfraError(
                f"{len(late)} of {self._count} workers did not start in {self._placing.start_seconds:g} s; "
                f"Ray has {ray.available_resources().get('CPU', 0):g} processors left",
                hint="fewer workers, or a smaller num_cpus; see also: ray status",
            )

    def close(self) -> None:
        """End the workers; what they do is left."""
        # One that has no place yet would never answer.
        closing = [seat.handle.close.remote() for seat in self.seats if _is_ready(seat.started)]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for seat in self.seats:
            ray.kill(seat.handle)
        self.seats = ()

    def told(self) -> list[dict[str, Any]]:
        """Return what is known of the workers."""
        told = []
        for seat in self.seats:
            known: dict[str, Any] = {}
            if _is_ready(seat.started):
                try:
                    known = ray.get(seat.started)
                except RayError as error:
                    known = {"error": str(cause_of(error))}
            told.append({"number": seat.number, "lost": seat.lost, "under_way": seat.under_way, **known})
        return told

    def choose(self, avoid: WorkerSlot | None = None) -> WorkerSlot:
        """Return the least busy seat, and another one than `avoid` where there is one, busy or not.

        One that has no worker yet comes last: if Ray has no place for it any more, nothing waits for that.
        """
        if not self.seats:
            raise UsageError("the workers were not started", hint="async with RayRollouts(...) as rollouts")
        return min(
            self.seats,
            key=lambda seat: (not _is_ready(seat.started), seat is avoid, seat.under_way, seat.number),
        )

    def replace(self, seat: WorkerSlot, lost: Any) -> None:
        """Have another worker in a seat instead of one that was lost, unless that was done."""
        if seat.handle is not lost or not self.seats:
            return
        logger.warning("a worker was lost and is replaced", extra={"worker": seat.number})
        ray.kill(lost)  # it may live, cut off from us: whatever it does is of no use
        seat.lost += 1
        seat.handle, seat.started = self._make()

    def _make(self) -> tuple[Any, Any]:
        placing = self._placing
        asked = {
            "num_cpus": placing.num_cpus,
            "scheduling_strategy": placing.strategy,
            "max_concurrency": 2 * self.sessions + _CALLS,
            **({"memory": placing.memory} if placing.memory else {}),
            **({"resources": dict(placing.resources)} if placing.resources else {}),
            **({"runtime_env": dict(placing.runtime_env)} if placing.runtime_env else {}),
        }
        handle = ray.remote(EnvWorker).options(**asked).remote(self.config)
        return handle, handle.start.remote()


def _is_ready(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])
