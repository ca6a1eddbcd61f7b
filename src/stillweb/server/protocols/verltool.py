"""verl-tool's server protocol: `POST /get_observation` with a batch of trajectories; each holds a lease.

The first action of a trajectory acquires its lease and starts its episode, from `task`, `task_id` or `url` in
its `extra_fields`; an empty first action only observes. `finish` releases the lease. Each item succeeds or
fails independently. A failure of the server sets `error.kind` "infra_error" in the observation, done and not
valid: mask the trajectory. An action after the end of the episode changes nothing: the item is done again,
without a second reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from stillweb.errors import StillwebError, UsageError
from stillweb.server.engine import Engine, Start, Stepped
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.web import Caller, CallerOf, EngineOf, inline
from stillweb.server.responses import JsonResponse

_WAIT = 60.0  # seconds for a free session: a batch may hold more trajectories than the server has sessions
_OVER = "The episode is over; the action was not carried out."


class GetObservation(BaseModel):
    """A batch; further lists, with one value for each trajectory, count as extra fields."""

    model_config = ConfigDict(extra="allow")

    trajectory_ids: list[str | int] = Field(min_length=1)
    actions: list[str] = Field(min_length=1)
    extra_fields: list[dict[str, Any]] | None = None

    def items(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return trajectory, action and fields of each item.

        Raises:
            UsageError: if the lists differ in length.
        """
        count = len(self.trajectory_ids)
        lists = {**(self.model_extra or {}), "actions": self.actions}
        fields = self.extra_fields if self.extra_fields is not None else [{} for _ in range(count)]
        for name, values in {**lists, "extra_fields": fields}.items():
            if not isinstance(values, list) or len(values) != count:
                raise UsageError(f"{name} must be a list of {count} values, one for each of trajectory_ids")
        del lists["actions"]
        merged = [{**fields[i], **{name: values[i] for name, values in lists.items()}} for i in range(count)]
        return list(zip(map(str, self.trajectory_ids), self.actions, merged, strict=True))


class TrajectoryLeases:
    """The lease of each trajectory; trajectories of different clients are separate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._leases: dict[tuple[str, str], str] = {}
        self._opening: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def observe(
        self, caller: Caller, trajectory: str, action: str, fields: Mapping[str, Any]
    ) -> tuple[Any, bool, bool]:
        """Return observation, done, and whether the action was valid."""
        try:
            if fields.get("finish"):
                return await self._finish(caller, trajectory)
            held, started = await self._lease(caller, trajectory, fields)
            if started and not action.strip():
                return _observed(self._engine, started)
            if not action.strip():
                raise UsageError("the action is empty")
            if held.finished:
                return {"obs": _OVER}, True, False
            return _observed(self._engine, await self._engine.step(held, action))
        except StillwebError as error:
            fault = fault_of(error)
            done = fault.kind != FailureKind.BAD_REQUEST
            return {"obs": "" if done else fault.error.message, **fault.body}, done, False

    async def _lease(
        self, caller: Caller, trajectory: str, fields: Mapping[str, Any]
    ) -> tuple[HeldLease, Stepped | None]:
        key = caller.client, trajectory
        lock = self._opening.setdefault(key, asyncio.Lock())
        async with lock:
            if lease := self._leases.get(key):
                return caller.lease(lease), None
            start = Start.of(self._engine.options.tasks, fields, "extra_fields")
            held = await caller.acquire(f"verl-tool {trajectory}", wait=_WAIT)
            started = await caller.start_or_release(held, start)
            self._forget()
            self._leases[key] = held.lease.id
            return held, started

    async def _finish(self, caller: Caller, trajectory: str) -> tuple[str, bool, bool]:
        lease = self._leases.pop((caller.client, trajectory), None)
        try:
            if lease:
                await self._engine.leases.release(caller.lease(lease))
        except RequestRefused:  # it has expired
            pass
        return "", True, True

    def _forget(self) -> None:
        """Drop trajectories whose leases ended so long ago that the server forgot why."""
        table = self._engine.leases.table
        for key, lease in list(self._leases.items()):
            if table.get(lease) is None and table.why_ended(lease) is None:
                del self._leases[key]


def _observed(engine: Engine, stepped: Stepped) -> tuple[dict[str, Any], bool, bool]:
    observation = inline(stepped.observation, engine.pictures)
    texts = [observation[form] for form in observation["digests"] if isinstance(observation.get(form), str)]
    pictures = [each["data"] for each in observation["pictures"].values() if "data" in each]
    error = observation["last_action_error"]
    text = {"obs": "\n\n".join([*([f"Error: {error}"] if error else []), *texts])}
    done = stepped.terminated or stepped.truncated
    reward = {"reward": stepped.reward} if done else {}
    images = {"image": [f"data:image/png;base64,{data}" for data in pictures]} if pictures else {}
    return {**text, **images, **reward}, done, stepped.info["action"]["status"] != "invalid_action"


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    routes = APIRouter(prefix=prefix, tags=["verl-tool"])
    routes.add_api_route("/get_observation", get_observation, methods=["POST"])
    routes.add_api_route("/health", health, methods=["GET"])
    return routes


def _trajectories(request: Request) -> TrajectoryLeases:
    trajectories: TrajectoryLeases = request.app.state.trajectories
    return trajectories


async def get_observation(
    caller: CallerOf, known: Annotated[TrajectoryLeases, Depends(_trajectories)], given: GetObservation
) -> Response:
    """Take an action in each trajectory of a batch."""
    results = await asyncio.gather(*(known.observe(caller, *item) for item in given.items()))
    observations, dones, valids = zip(*results, strict=True)
    return JsonResponse({"observations": observations, "dones": dones, "valids": valids})


async def health(engine: EngineOf) -> Response:
    """Return 200 while the process runs, and the number of leases."""
    table = engine.leases.table
    counts = {"status": "healthy", "concurrent_requests": table.leased, "max_concurrent": table.limit}
    return JsonResponse({**counts, "tools": ["stillweb"]})
