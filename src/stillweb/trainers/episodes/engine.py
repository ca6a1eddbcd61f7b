"""Leases of an engine in this process, without HTTP: for a trainer on the machine that runs the browsers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stillweb.env import EnvOptions, PoolOptions, Task, VectorOptions, load_tasks
from stillweb.errors import InfraError
from stillweb.server.engine import Engine, Start, Stepped
from stillweb.server.failures import RequestRefused
from stillweb.server.leases.held import HeldLease
from stillweb.server.options import ServeOptions
from stillweb.trainers.episodes.client import error_of
from stillweb.trainers.episodes.start import request_start
from stillweb.trainers.episodes.turn import Turn

_FOREVER = 7 * 86400.0  # seconds; the lease ends with this process at the latest


async def start_engine(given: Mapping[str, Any]) -> InProcessEngine:
    """Return a running engine for a configuration of `open_source`.

    Raises:
        ReplayUnreachable, ProgramNotFound, InfraError: see `Engine.start`.
    """
    files = [given["tasks"]] if isinstance(given.get("tasks"), str) else given.get("tasks", ())
    tasks = {task.id: task for file in files for task in load_tasks(Path(file))}
    env = EnvOptions(max_steps=int(given["max_steps"])) if given.get("max_steps") else EnvOptions()
    chosen = {name: given[name] for name in ("level", "collection") if given.get(name)}
    options = ServeOptions(
        sessions=int(given.get("sessions", 8)),
        lifetime=_FOREVER,
        observe=tuple(given.get("observe") or ("axtree",)),
        tasks=tasks,
        vector=VectorOptions(pool=PoolOptions(browsers=int(given.get("browsers", 1))), env=env),
        **chosen,
    )
    engine = Engine(given["proxy"], options)
    try:
        await engine.start()
    except BaseException:
        await engine.close()
        raise
    return InProcessEngine(engine)


class InProcessEngine:
    """Grants leases of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def lease(
        self, owner: str = "stillweb", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> EngineLease:
        """Lease a session, see `RolloutClient.lease`; with `beat` the lease does not expire by silence."""
        try:
            held = await self._engine.leases.acquire(owner, ttl=_FOREVER if beat else ttl, wait=wait)
        except RequestRefused as error:
            raise error_of(error.kind.value, str(error), error.hint) from error
        return EngineLease(self._engine, held)

    async def aclose(self) -> None:
        await self._engine.close()


class EngineLease:
    """A session of an engine, see `RemoteLease`."""

    def __init__(self, engine: Engine, held: HeldLease) -> None:
        self.id = held.lease.id
        self._engine = engine
        self._held = held

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        given = Start.of(self._engine.options.tasks, request_start(task, start))
        return _turn(await self._converted(self._engine.reset(self._held, given)))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        return _turn(await self._converted(self._engine.step(self._held, action)))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        seen: Mapping[str, Any] = await self._converted(self._engine.observe(self._held, kinds))
        return seen

    async def picture(self, sha256: str) -> bytes:
        if body := self._engine.pictures.get(sha256):
            return body
        raise InfraError(f"picture {sha256} was dropped from memory")

    async def release(self) -> None:
        await self._engine.leases.release(self._held)

    async def _converted(self, call: Any) -> Any:
        """Raise refusals as the errors that `RemoteLease` raises."""
        try:
            return await call
        except RequestRefused as error:
            raise error_of(error.kind.value, str(error), error.hint) from error


def _turn(stepped: Stepped) -> Turn:
    return Turn(stepped.observation, stepped.reward, stepped.terminated, stepped.truncated, stepped.info)
