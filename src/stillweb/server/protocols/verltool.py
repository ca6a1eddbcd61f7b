"""verl-tool's server protocol: `POST /get_observation` with a batch of trajectories, each a lease here.

The first action of a trajectory opens its lease and begins its episode, by `task`, `task_id` or `url` of its
`extra_fields`; an empty one just looks. `finish` gives the lease back. Each item succeeds or fails by
itself. What fails by our fault has `error.kind` "infra_error" in its observation, is done and not valid: mask
it.
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
from stillweb.server.engine import Engine, Stepped
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.web import EngineOf, JsonResponse, inline, start_of

__all__ = ["GetObservation", "Trajectories", "router"]

_WAIT = 60.0  # seconds for a free session: a batch may hold more trajectories than there are


class GetObservation(BaseModel):
    """A batch; further lists, one value for each trajectory, are taken as extra fields."""

    model_config = ConfigDict(extra="allow")

    trajectory_ids: list[str | int] = Field(min_length=1)
    actions: list[str] = Field(min_length=1)
    extra_fields: list[dict[str, Any]] | None = None

    def items(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return trajectory, action and fields of each.

        Raises:
            UsageError: if the lists are not of one length.
        """
        count = len(self.trajectory_ids)
        lists = {**(self.model_extra or {}), "actions": self.actions}
        fields = self.extra_fields if self.extra_fields is not None else [{} for _ in range(count)]
        for name, values in {**lists, "extra_fields": fields}.items():
            if not isinstance(values, list) or len(values) != count:
                raise UsageError(f"{name} is no list of {count}, as many as trajectory_ids")
        del lists["actions"]
        told = [{**fields[i], **{name: values[i] for name, values in lists.items()}} for i in range(count)]
        return list(zip(map(str, self.trajectory_ids), self.actions, told, strict=True))


class Trajectories:
    """Which lease is which trajectory's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._leases: dict[str, str] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def observe(
        self, trajectory: str, action: str, fields: Mapping[str, Any]
    ) -> tuple[Any, bool, bool]:
        """Return observation, whether it is done, and whether the action was valid."""
        try:
            if fields.get("finish"):
                return await self._finish(trajectory)
            held, begun = await self._held(trajectory, fields)
            if begun and not action.strip():
                return _told(self._engine, begun)
            if not action.strip():
                raise UsageError("the action is empty")
            return _told(self._engine, await self._engine.step(held, action))
        except StillwebError as error:
            fault = fault_of(error)
            done = fault.kind != FailureKind.BAD
            return {"obs": "" if done else fault.message, **fault.to_dict()}, done, False

    async def _held(self, trajectory: str, fields: Mapping[str, Any]) -> tuple[HeldLease, Stepped | None]:
        lock = self._opening.setdefault(trajectory, asyncio.Lock())
        async with lock:
            if lease := self._leases.get(trajectory):
                held = self._engine.desk.find(lease)
                self._engine.desk.heard(held)
                return held, None
            start = start_of(self._engine, fields, "extra_fields")
            held = await self._engine.desk.get(f"verl-tool {trajectory}", wait=_WAIT)
            try:
                begun = await self._engine.reset(held, start)
            except StillwebError:
                await self._engine.desk.end(held)
                raise
            self._forget()
            self._leases[trajectory] = held.lease.id
            return held, begun

    async def _finish(self, trajectory: str) -> tuple[str, bool, bool]:
        lease = self._leases.pop(trajectory, None)
        try:
            if lease:
                await self._engine.desk.end(self._engine.desk.find(lease))
        except RequestRefused:  # it ran out meanwhile
            pass
        return "", True, True

    def _forget(self) -> None:
        """Drop trajectories whose leases ended, but for as long as that can still be told."""
        for trajectory, lease in list(self._leases.items()):
            leases = self._engine.desk.leases
            if leases.get(lease) is None and leases.why_ended(lease) is None:
                del self._leases[trajectory]


def _told(engine: Engine, stepped: Stepped) -> tuple[dict[str, Any], bool, bool]:
    observation = inline(stepped.observation, engine.pictures)
    texts = [observation[form] for form in observation["digests"] if isinstance(observation.get(form), str)]
    pictures = [each["data"] for each in observation["pictures"].values() if "data" in each]
    error = observation["last_action_error"]
    told = {"obs": "\n\n".join([*([f"Error: {error}"] if error else []), *texts])}
    done = stepped.terminated or stepped.truncated
    more = {"reward": stepped.reward} if done else {}
    images = {"image": [f"data:image/png;base64,{data}" for data in pictures]} if pictures else {}
    return {**told, **images, **more}, done, stepped.info["action"]["status"] != "invalid_action"


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    made = APIRouter(prefix=prefix, tags=["verl-tool"])
    made.add_api_route("/get_observation", get_observation, methods=["POST"])
    made.add_api_route("/health", health, methods=["GET"])
    return made


def _trajectories(request: Request) -> Trajectories:
    known: Trajectories = request.app.state.trajectories
    return known


async def get_observation(
    known: Annotated[Trajectories, Depends(_trajectories)], given: GetObservation
) -> Response:
    """Take an action in each trajectory of a batch."""
    told = await asyncio.gather(*(known.observe(*item) for item in given.items()))
    observations, dones, valids = zip(*told, strict=True)
    return JsonResponse({"observations": observations, "dones": dones, "valids": valids})


async def health(engine: EngineOf) -> Response:
    """Tell that the server lives."""
    line = engine.desk.leases.line
    told = {"status": "healthy", "concurrent_requests": line.inside, "max_concurrent": line.limit}
    return JsonResponse({**told, "tools": ["stillweb"]})
