"""A master: one address for several rollout servers, which join it and tell it how they stand.

It knows no leases. Whose a lease is stands in its identifier (`cluster`), so that requests pass through as
they are, and a master may be started anew while episodes run. A new lease goes to the node with the most
free sessions; where none has any, clients wait here in the order of arrival. A node that does not answer is
told as `infra_error`, never as a reward, and counts as lost until it is heard again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any

import httpx
from fastapi import Body, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from sse_starlette.sse import EventSourceResponse

from stillweb import clock
from stillweb.errors import InfraError, StillwebError, UsageError
from stillweb.server.cluster.nodes import ClusterNode, NodeRegistry, merged, node_of
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.guard import base_app
from stillweb.server.leases.queue import Semaphore
from stillweb.server.monitor import status as figures
from stillweb.server.monitor.status import Status
from stillweb.server.protocols.models import BatchReset, BatchStep, LeaseRequest
from stillweb.server.protocols.web import JsonResponse, while_connected

__all__ = ["Joining", "Master", "make_master_app"]

logger = logging.getLogger(__name__)

_ROOM = 4096  # clients that may wait for a lease
_REMEMBERED = 4096  # requests
_CONNECT_SECONDS = 5.0
_APART = 0.5  # seconds between two events of the stream
_QUIET = 3.0  # after which there is one although no node was heard
_PASSED_ON = ("content-type", "retry-after", "cache-control", "etag")

Given = Mapping[str, Any]
Send = Callable[[ClusterNode], Awaitable[httpx.Response]]


class Joining(BaseModel):
    """What a node says of itself, again and again."""

    name: str = Field(max_length=63)
    url: str = Field(max_length=500, description="Where the master reaches the node")
    status: Status


class Master:
    """Passes requests on to nodes.

    Args:
        key: that nodes ask for; "" for none. One for the whole cluster.
    """

    def __init__(self, key: str = "") -> None:
        self.cluster = NodeRegistry()
        self.began = clock.monotonic()
        self.closing = asyncio.Event()
        self._line = Semaphore("leases", 1, _ROOM)
        self._sent: dict[str, str] = {}  # requests that may be retried, and the node that has their answer
        self._news = asyncio.Event()
        headers = {"x-api-key": key} if key else {}
        # An answer takes as long as a step does, and the node has its own limits.
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async def close(self) -> None:
        """Let go of the nodes."""
        await self._http.aclose()

    def hears(self, told: Joining) -> None:
        """Take what a node says of itself."""
        self.cluster.hears(told.name, told.url.rstrip("/"), told.status, clock.monotonic())
        self._tell()

    def status(self) -> Status:
        """Return how all nodes stand, as one."""
        now = clock.monotonic()
        return merged(self.cluster.there(now), round(now - self.began, 3))

    def of(self, lease: str) -> ClusterNode:
        """Return the node of a lease.

        Raises:
            Refused: if no node can have given it.
            InfraError: if its node is lost.
        """
        name = node_of(lease)
        if node := self.cluster.find(name, clock.monotonic()):
            return node
        if any(node.name == name for node in self.cluster.all()):
            raise InfraError(f"node {name} of lease {lease} is lost", hint="get another lease")
        raise RequestRefused(FailureKind.UNKNOWN, f"no lease {lease}: no node is called {name!r}")

    async def ask(self, node: ClusterNode, method: str, target: str, body: bytes = b"") -> httpx.Response:
        """Pass a request on, once, and return the answer, read.

        Raises:
            InfraError: if the node does not answer.
        """
        async with self.asking(node, method, target, body) as answer:
            await answer.aread()
            return answer

    @asynccontextmanager
    async def asking(
        self, node: ClusterNode, method: str, target: str, body: bytes
    ) -> AsyncIterator[httpx.Response]:
        """Pass a request on, and give the answer as it comes."""
        headers = {"content-type": "application/json"} if body else {}
        try:
            async with self._http.stream(method, node.url + target, content=body, headers=headers) as answer:
                yield answer
        except httpx.HTTPError as error:
            self.cluster.loses(node.name, str(error) or type(error).__name__)
            logger.warning("a node is lost", extra={"node": node.name, "error": repr(error)})
            raise InfraError(
                f"node {node.name} ({node.url}) does not answer: {error or type(error).__name__}",
                hint="what it was asked may have been done; get another lease",
            ) from error

    async def place(self, seconds: float, send: Send, request_id: str = "") -> httpx.Response:
        """Send a request for a lease to the node with the most room.

        Args:
            seconds: to wait for one, in the order of arrival.
            send: to a node; one that is full after all is not asked again until it was heard.
            request_id: of a request that may have been sent before, and its owner: the node that got it knows
                its answer.
        """
        if node := self.cluster.find(self._sent.get(request_id, ""), clock.monotonic()):
            return await send(node)
        until = clock.monotonic() + seconds
        full: set[str] = set()
        while True:
            node = await self._room(until, full)
            self._remember(request_id, node)
            answer = await send(node)
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return answer
            full.add(node.name)

    async def changed(self, seconds: float) -> None:
        """Wait until a node was heard, or so many seconds."""
        heard = asyncio.ensure_future(self._news.wait())
        await asyncio.wait([heard], timeout=max(0.0, seconds))
        heard.cancel()

    async def _room(self, until: float, full: set[str]) -> ClusterNode:
        """Wait for a free session, in the order of arrival."""
        async with self._line.turn():
            while True:
                now = clock.monotonic()
                if node := self.cluster.choose(now, full):
                    return node
                if now >= until:
                    there = self.cluster.there(now)
                    what = f"all {len(there)} nodes are full" if there else "no node has joined"
                    raise RequestRefused(
                        FailureKind.FULL, what, hint="" if there else "stillweb serve --join URL"
                    )
                await self.changed(until - now)
                full.clear()

    def _remember(self, request_id: str, node: ClusterNode) -> None:
        if request_id:
            self._sent[request_id] = node.name
            if len(self._sent) > _REMEMBERED:
                del self._sent[next(iter(self._sent))]

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


# --- HTTP ------------------------------------------------------------------------------------------------


def make_master_app(master: Master, key: str = "") -> FastAPI:
    """Return the application of a master; `key` is "" for none."""
    app = base_app("stillweb serve --master", __doc__ or "", key)
    routes = _Routes(master)
    for path, method, route in (
        ("/v1/nodes", "POST", routes.join),
        ("/v1/nodes", "GET", routes.nodes),
        ("/v1/nodes/{name}", "DELETE", routes.leave),
        ("/v1/leases", "POST", routes.create_lease),
        ("/v1/leases/{lease}", "GET", routes.lease),
        ("/v1/leases/{lease}", "DELETE", routes.lease),
        ("/v1/leases/{lease}/{what}", "POST", routes.lease),
        ("/v1/batch/step", "POST", routes.batch_step),
        ("/v1/batch/reset", "POST", routes.batch_reset),
        ("/v1/tasks", "GET", routes.tasks),
        ("/v1/pictures/{sha256}", "GET", routes.picture),
        ("/v1/status", "GET", routes.status),
        ("/v1/stream", "GET", routes.stream),
        ("/metrics", "GET", routes.metrics),
        ("/health", "GET", routes.health),
        ("/ready", "GET", routes.ready),
    ):
        app.add_api_route(path, route, methods=[method], response_model=None)
    for prefix in ("", "/omniboxes"):
        app.add_api_route(prefix + "/get", routes.instance, methods=["POST"], response_model=None)
        app.add_api_route(prefix + "/execute", routes.execute, methods=["POST"], response_model=None)
        app.add_api_route(prefix + "/reset", routes.of_instance, methods=["POST"], response_model=None)
        for name in ("screenshot", "probe", "metadata"):
            app.add_api_route(f"{prefix}/{name}", routes.of_instance, methods=["GET"], response_model=None)
        app.add_api_route(prefix + "/info", routes.info, methods=["GET"], response_model=None)
    return app


class _Routes:
    """The master's routes: who is asked, and what of several answers is made."""

    def __init__(self, master: Master) -> None:
        self._master = master

    # --- nodes ---

    async def join(self, told: Joining) -> Response:
        """Take what a node says of itself."""
        self._master.hears(told)
        return JsonResponse({"nodes": len(self._master.cluster.there(clock.monotonic()))})

    async def nodes(self) -> Response:
        """List the nodes, lost ones too."""
        now = clock.monotonic()
        there = {node.name for node in self._master.cluster.there(now)}
        return JsonResponse(
            {"nodes": [_node(node, now, node.name in there) for node in self._master.cluster.all()]}
        )

    async def leave(self, name: str) -> Response:
        """Forget a node that ended."""
        self._master.cluster.leaves(name)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    # --- leases ---

    async def create_lease(self, request: Request, given: LeaseRequest) -> Response:
        """Lease a session of the node with the most room."""
        sent = json.dumps(given.model_dump(exclude={"wait"}, exclude_none=True)).encode()
        again = f"{given.owner}\n{given.request_id}" if given.request_id else ""
        placing = self._place(given.wait, "/v1/leases", sent, again)
        return await (placing if again else while_connected(request, placing))

    async def lease(self, request: Request, lease: str) -> Response:
        """Pass on what is asked of a lease."""
        return await self._pass_on(self._master.of(lease), request)

    async def batch_step(self, given: BatchStep) -> Response:
        """Step leases of several nodes at once."""
        return await self._batch("/v1/batch/step", given.model_dump())

    async def batch_reset(self, given: BatchReset) -> Response:
        """Reset leases of several nodes at once."""
        return await self._batch("/v1/batch/reset", given.model_dump(exclude_none=True))

    async def tasks(self, request: Request) -> Response:
        """List the tasks that clients may name, as the first node has them; all are to have the same."""
        there = self._master.cluster.there(clock.monotonic())
        return await self._pass_on(there[0], request) if there else JsonResponse({"tasks": []})

    async def picture(self, request: Request, sha256: str, node: str = "") -> Response:
        """Fetch a picture from the node that has it; where that is not said, from whichever has."""
        now = clock.monotonic()
        known = self._master.cluster.find(node, now)
        asked = [known] if known else self._master.cluster.there(now)
        for each in asked:
            answer = await self._master.ask(each, "GET", f"/v1/pictures/{sha256}")
            if answer.status_code == HTTPStatus.OK:
                return _passed(answer)
        raise RequestRefused(FailureKind.ABSENT, f"no picture {sha256}, or not any more")

    # --- Omniboxes ---

    async def instance(self, request: Request) -> Response:
        """Lease an instance."""
        return await self._place(0.0, _target(request), b"")

    async def execute(self, request: Request, body: Annotated[dict[str, Any], Body()]) -> Response:
        """Pass a command on."""
        return await self._pass_on(self._master.of(str(body.get("instance_id", ""))), request)

    async def of_instance(self, request: Request, instance_id: str) -> Response:
        """Pass on what is asked of an instance."""
        return await self._pass_on(self._master.of(instance_id), request)

    async def info(self, request: Request) -> Response:
        """Tell of all nodes."""
        nodes: list[Any] = []
        for node in self._master.cluster.there(clock.monotonic()):
            answer = await self._master.ask(node, "GET", _target(request))
            nodes += answer.json()["nodes"]
        return JsonResponse({"nodes": nodes})

    # --- how it stands ---

    async def status(self) -> Status:
        """Tell how all nodes stand, as one server."""
        return self._master.status()

    async def stream(self) -> EventSourceResponse:
        """Send the status as events: at every change, at most two a second."""
        return EventSourceResponse(self._events(), ping=15)

    async def metrics(self) -> Response:
        """Give figures of all nodes to Prometheus."""
        return Response(figures.render(self._master.status()), headers={"Content-Type": figures.MEDIA_TYPE})

    async def health(self) -> Response:
        """Tell that the program lives."""
        return JsonResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Tell whether any node is there."""
        there = len(self._master.cluster.there(clock.monotonic()))
        code = HTTPStatus.OK if there else HTTPStatus.SERVICE_UNAVAILABLE
        return JsonResponse({"ready": bool(there), "nodes": there}, status_code=code)

    async def _events(self) -> AsyncIterator[dict[str, str]]:
        closing = asyncio.ensure_future(self._master.closing.wait())
        try:
            while not closing.done():
                yield {"event": "status", "data": self._master.status().model_dump_json()}
                await asyncio.wait([closing], timeout=_APART)
                await self._master.changed(_QUIET)
        finally:
            closing.cancel()

    # --- shared ---

    async def _place(self, seconds: float, target: str, body: bytes, request_id: str = "") -> Response:
        def send(node: ClusterNode) -> Awaitable[httpx.Response]:
            return self._master.ask(node, "POST", target, body)

        return _passed(await self._master.place(seconds, send, request_id))

    async def _pass_on(self, node: ClusterNode, request: Request) -> Response:
        answer = await self._master.ask(node, request.method, _target(request), await request.body())
        return _passed(answer)

    async def _batch(self, target: str, given: Given) -> Response:
        parts: dict[str, list[int]] = {}
        for index, item in enumerate(given["items"]):
            parts.setdefault(node_of(item["lease"]), []).append(index)
        asked = [self._part(target, given["items"], part) for part in parts.values()]
        if not given["stream"]:
            results = [each for part in asked async for each in part]
            return JsonResponse({"results": sorted(results, key=lambda each: int(each["index"]))})
        return StreamingResponse(_lines(asked), media_type="application/x-ndjson")

    async def _part(
        self, target: str, items: Sequence[Given], indexes: Sequence[int]
    ) -> AsyncIterator[dict[str, Any]]:
        """Give what became of the items of one node, as they end."""
        body = json.dumps({"items": [items[i] for i in indexes], "stream": True}).encode()
        missing = dict(enumerate(indexes))
        try:
            node = self._master.of(items[indexes[0]]["lease"])
            async with self._master.asking(node, "POST", target, body) as answer:
                if answer.status_code != HTTPStatus.OK:
                    await answer.aread()
                    raise UsageError(f"node {node.name} answers {answer.status_code}: {answer.text[:200]}")
                async for line in answer.aiter_lines():
                    told = json.loads(line)
                    yield {**told, "index": missing.pop(told["index"])}
        except StillwebError as error:
            fault = fault_of(error)
            for index in missing.values():
                lease = items[index]["lease"]
                yield {"index": index, "lease": lease, "status": int(fault.status), **fault.to_dict()}


async def _lines(parts: Sequence[AsyncIterator[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """Give the results of several nodes in the order in which they end."""
    ended: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def drain(part: AsyncIterator[dict[str, Any]]) -> None:
        try:
            async for each in part:
                ended.put_nowait(each)
        finally:
            ended.put_nowait(None)

    tasks = [asyncio.ensure_future(drain(part)) for part in parts]
    try:
        left = len(tasks)
        while left:
            each = await ended.get()
            if each is None:
                left -= 1
            else:
                yield json.dumps(each, ensure_ascii=False).encode() + b"\n"
    finally:
        for task in tasks:
            task.cancel()


def _target(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _passed(answer: httpx.Response) -> Response:
    headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
    return Response(answer.content, status_code=answer.status_code, headers=headers)


def _node(node: ClusterNode, now: float, there: bool) -> dict[str, Any]:
    queue = node.status.queues["allocate"]
    return {
        "name": node.name,
        "url": node.url,
        "there": there,
        "why": node.gone or ("" if there else "silent"),
        "silent": round(now - node.heard, 3),
        "state": node.status.state,
        "sessions": queue.limit,
        "leased": queue.under_way,
    }
