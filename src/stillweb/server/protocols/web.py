"""Shared pieces of all protocols: the caller of a request, and the results of an episode."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from stillweb import clock
from stillweb.server.engine import Engine, Start, Stepped
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.keys import KeyHolder
from stillweb.server.leases.held import HeldLease
from stillweb.server.pictures import PictureStore


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request.

    Attributes:
        client: name of its API key; `Guard` sets it.
    """

    engine: Engine
    client: str

    def lease(self, lease_id: str) -> HeldLease:
        """Return a lease of the client and renew it.

        Raises:
            RequestRefused: if the client has no such lease.
        """
        held = self.engine.leases.find(lease_id, self.client)
        self.engine.leases.renew(held)
        return held

    async def acquire(self, owner: str, **terms: Any) -> HeldLease:
        """Grant a lease to the client; see `LeaseManager.acquire`."""
        return await self.engine.leases.acquire(owner, client=self.client, **terms)

    async def start_or_release(self, held: HeldLease, start: Start) -> Stepped:
        """Start the first episode of a new lease; if that fails, end the lease, whose id no client knows."""
        try:
            return await self.engine.reset(held, start)
        except BaseException:
            await self.engine.leases.release(held)
            raise


def holder_of(connection: HTTPConnection) -> KeyHolder:
    """Return the holder of the key of a request."""
    holder: KeyHolder = connection.scope["state"]["holder"]
    return holder


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller of a request or WebSocket."""
    return Caller(connection.app.state.engine, holder_of(connection).client)


def _engine(connection: HTTPConnection) -> Engine:
    engine: Engine = connection.app.state.engine
    return engine


T = TypeVar("T")
CallerOf = Annotated[Caller, Depends(caller_of)]
HolderOf = Annotated[KeyHolder, Depends(holder_of)]
EngineOf = Annotated[Engine, Depends(_engine)]


# --- requests and responses ------------------------------------------------------------------------


async def while_connected(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; cancel it when the client disconnects.

    Raises:
        RequestRefused: if the client disconnected; the response reaches no client.
    """
    waits, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([waits, gone], return_when=asyncio.FIRST_COMPLETED)
        if not waits.done():
            waits.cancel()
            await asyncio.wait([waits])
            raise RequestRefused(FailureKind.LEASE_OVER, "the client disconnected")
        return waits.result()
    finally:
        waits.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def step_result(held: HeldLease, stepped: Stepped, request_id: str = "") -> dict[str, Any]:
    """Return the result of a reset or step as `models.StepResponse`."""
    return {
        "lease": held.lease.id,
        "observation": stepped.observation,
        "reward": stepped.reward,
        "terminated": stepped.terminated,
        "truncated": stepped.truncated,
        "info": stepped.info,
        "request_id": request_id,
    }


def inline(observation: dict[str, Any], pictures: PictureStore) -> dict[str, Any]:
    """Return an observation with the base64 of those pictures that are still stored."""
    shown = {}
    for name, reference in observation["pictures"].items():
        body = pictures.get(reference["sha256"])
        data = {"data": base64.b64encode(body).decode()} if body else {}
        shown[name] = {**reference, **data}
    return {**observation, "pictures": shown}


def left(held: HeldLease) -> float:
    """Return the seconds until the end of a lease's lifetime."""
    return round(max(0.0, held.lease.until - clock.monotonic()), 3)
