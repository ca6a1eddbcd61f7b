"""The worker actors of `RayRollouts`: creation, replacement of lost workers, shutdown.

Ray chooses their machines.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.errors import ExtraNotInstalled, InfraError, StillwebError, UsageError
from stillweb.trainers.ray.worker import EnvWorker, RayWorkerConfig

__all__ = ["RayError", "WorkerPlacement", "WorkerPool", "WorkerSlot", "cause_of", "is_lost", "ray"]

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as missing:
    raise ExtraNotInstalled(
        f"rollouts on Ray need {missing.name}", hint="pip install 'stillweb[ray]'"
    ) from missing


def is_lost(error: RayError) -> bool:
    """Return whether the worker was lost, in contrast to an error that its code raised."""
    return not isinstance(error, RayTaskError)


def cause_of(error: RayError) -> BaseException:
    """Return the error that the worker raised, or an `InfraError` for a lost worker."""
    if is_lost(error):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return InfraError(f"a worker was lost: {type(error).__name__}: {' '.join(lines[:4])}", hint="reset")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, StillwebError) else error


logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 60.0
_CALLS = 64  # concurrent calls of an actor beside those of its sessions


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Requirements of a worker on its machine.

    Attributes:
        num_cpus: processors that Ray reserves.
        memory: bytes that Ray reserves but does not enforce; 0 for none.
        resources: custom resources of Ray, such as {"browsers": 1}.
        strategy: Ray's scheduling strategy: "SPREAD" over the machines, "DEFAULT" to pack them, or an object.
        runtime_env: Ray's runtime environment: modules of agents, environment variables, ...
        start_seconds: seconds to wait for the first workers, including the download of packs.
    """

    num_cpus: float = 1.0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: Any = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None
    start_seconds: float = 600.0


@dataclass(eq=False, slots=True)
class WorkerSlot:
    """A numbered position of the pool with its current worker.

    Attributes:
        number: from 0.
        started: reference to the result of its `start`.
        under_way: episodes and sessions of this process on it.
    """

    number: int
    handle: Any
    started: Any
    under_way: int = 0
    lost: int = 0


class WorkerPool:
    """A fixed number of workers. Its methods block.

    Attributes:
        slots: one for each worker; empty before `start` and after `close`.
    """

    def __init__(self, count: int, placement: WorkerPlacement) -> None:
        self.config = RayWorkerConfig(sessions=1)
        self.slots: Sequence[WorkerSlot] = ()
        self._count = count
        self._placement = placement

    @property
    def sessions(self) -> int:
        return self.config.sessions

    def start(self, config: RayWorkerConfig) -> None:
        """Create the workers and wait until they have started.

        Raises:
            InfraError: if Ray cannot schedule a worker, or a worker does not start.
            StillwebError: see `EnvWorker.start`.
        """
        self.config = config
        self.slots = [WorkerSlot(number, *self._create()) for number in range(self._count)]
        started = [slot.started for slot in self.slots]
        ready, late = ray.wait(started, num_returns=len(started), timeout=self._placement.start_seconds)
        for reference in ready:
            try:
                ray.get(reference)
            except RayError as error:
                raise cause_of(error) from error
        if late:
            raise InfraError(
                f"{len(late)} of {self._count} workers did not start in {self._placement.start_seconds:g} s; "
                f"Ray has {ray.available_resources().get('CPU', 0):g} processors left",
                hint="use fewer workers or a smaller num_cpus; ray status shows the resources",
            )

    def close(self) -> None:
        # A worker that is not yet scheduled would never answer.
        closing = [slot.handle.close.remote() for slot in self.slots if _is_ready(slot.started)]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for slot in self.slots:
            ray.kill(slot.handle)
        self.slots = ()

    def status(self) -> list[dict[str, Any]]:
        """Return number, lost workers and running episodes of each slot, and the facts of its worker."""
        status = []
        for slot in self.slots:
            known: dict[str, Any] = {}
            if _is_ready(slot.started):
                try:
                    known = ray.get(slot.started)
                except RayError as error:
                    known = {"error": str(cause_of(error))}
            status.append({"number": slot.number, "lost": slot.lost, "under_way": slot.under_way, **known})
        return status

    def choose(self, avoid: WorkerSlot | None = None) -> WorkerSlot:
        """Return the least busy slot, other than `avoid` if possible.

        A slot whose worker has not started comes last: Ray may have no resources for it any more.
        """
        if not self.slots:
            raise UsageError(
                "the workers were not started", hint="use async with RayRollouts(...) as rollouts"
            )
        return min(
            self.slots,
            key=lambda slot: (not _is_ready(slot.started), slot is avoid, slot.under_way, slot.number),
        )

    def replace(self, slot: WorkerSlot, lost: Any) -> None:
        """Replace a lost worker, unless another call has done so."""
        if slot.handle is not lost or not self.slots:
            return
        logger.warning("a worker was lost and is replaced", extra={"worker": slot.number})
        ray.kill(lost)  # it may still run, cut off by the network
        slot.lost += 1
        slot.handle, slot.started = self._create()

    def _create(self) -> tuple[Any, Any]:
        placement = self._placement
        options = {
            "num_cpus": placement.num_cpus,
            "scheduling_strategy": placement.strategy,
            "max_concurrency": 2 * self.sessions + _CALLS,
            **({"memory": placement.memory} if placement.memory else {}),
            **({"resources": dict(placement.resources)} if placement.resources else {}),
            **({"runtime_env": dict(placement.runtime_env)} if placement.runtime_env else {}),
        }
        handle = ray.remote(EnvWorker).options(**options).remote(self.config)
        return handle, handle.start.remote()


def _is_ready(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])
