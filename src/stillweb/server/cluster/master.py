"""The master of a cluster: one address for several rollout servers, which join it and report their status.

The master stores no leases. A lease identifier names its node (`nodes.node_of`), so requests pass through
unchanged, and a master may restart while episodes run. A new lease goes to the node with the most free
sessions; if all are full, clients wait at the master in order of arrival. A node that does not answer gives
`infra_error`, never a reward, and counts as lost until its next report.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import ip_network
from typing import Annotated, Any

import httpx
from fastapi import Body, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from sse_starlette.sse import EventSourceResponse

from stillweb import clock
from stillweb.errors import InfraError, StillwebError, UsageError
from stillweb.polling import wait_event
from stillweb.server.cluster.nodes import ClusterNode, NodeRegistry, merged, node_of, resolve_node_url
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.guard import base_app
from stillweb.server.keys import CLIENT_HEADER, AccessKeys, KeyHolder
from stillweb.server.leases.queue import OperationQueue
from stillweb.server.monitor import status as figures
from stillweb.server.monitor.history import HistoryRecorder
from stillweb.server.monitor.monitor import health, history
from stillweb.server.monitor.status import Status, visible_to
from stillweb.server.protocols.models import BatchReset, BatchStep, LeaseRequest
from stillweb.server.protocols.web import HolderOf, holder_of, while_connected
from stillweb.server.responses import JsonResponse

logger = logging.getLogger(__name__)

_QUEUE_CAPACITY = 4096  # clients that may wait for a lease
_REMEMBERED = 4096  # requests
_CONNECT_SECONDS = 5.0
_MIN_INTERVAL = 0.5  # seconds between two events of the stream
_MAX_INTERVAL = 3.0
_FORWARDED_HEADERS = ("content-type", "retry-after", "cache-control", "etag")

Given = Mapping[str, Any]
Send = Callable[[ClusterNode], Awaitable[httpx.Response]]


class NodeReport(BaseModel):
    """The report of a node."""

    name: str = Field(max_length=63)
    url: str = Field(max_length=500, description="URL under which the master reaches the node")
    status: Status


class Master:
    """Forwards requests to nodes.

    Args:
        networks: networks that the addresses of nodes may be in, see `resolve_node_url`.
    """

    def __init__(self, keys: AccessKeys, networks: Sequence[str] = ()) -> None:
        self.networks = [ip_network(each) for each in networks]
        self._keys = keys
        self.cluster = NodeRegistry()
        self.started_at = clock.monotonic()
        self.closing = asyncio.Event()
        self._queue = OperationQueue("leases", 1, _QUEUE_CAPACITY)
        self._sent: dict[str, str] = {}  # the node that stores the response, by request
        self._reported = asyncio.Event()
        # No read timeout: a step may take long, and the node has its own limits.
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    def update(self, report: NodeReport, url: str) -> None:
        self.cluster.update(report.name, url, report.status, clock.monotonic())
        reported, self._reported = self._reported, asyncio.Event()
        reported.set()

    def status(self) -> Status:
        """Return the merged status of the live nodes."""
        now = clock.monotonic()
        return merged(self.cluster.live(now), round(now - self.started_at, 3))

    async def current_status(self) -> Status:
        """Return `status`, for the recorder of the history."""
        return self.status()

    def of(self, lease: str) -> ClusterNode:
        """Return the node of a lease.

        Raises:
            RequestRefused: if no node has granted it.
            InfraError: if its node is lost.
        """
        name = node_of(lease)
        if node := self.cluster.find(name, clock.monotonic()):
            return node
        if any(node.name == name for node in self.cluster.all()):
            raise InfraError(f"node {name} of lease {lease} is lost", hint="request another lease")
        raise RequestRefused(FailureKind.NO_LEASE, f"no lease {lease}: no node is called {name!r}")

    async def send(
        self, node: ClusterNode, method: str, target: str, body: bytes = b"", client: str = ""
    ) -> httpx.Response:
        """Forward a request of a client once and return the complete response.

        Raises:
            InfraError: if the node does not answer.
        """
        async with self.streaming(node, method, target, body, client) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def streaming(
        self, node: ClusterNode, method: str, target: str, body: bytes, client: str = ""
    ) -> AsyncIterator[httpx.Response]:
        """Forward a request and stream the response."""
        headers = {"content-type": "application/json"} if body else {}
        if key := self._keys.of_node(node.name):
            headers |= {"x-api-key": key, CLIENT_HEADER: client}
        try:
            async with self._http.stream(
                method, node.url + target, content=body, headers=headers
            ) as response:
                yield response
        except httpx.HTTPError as error:
            self.cluster.mark_lost(node.name, str(error) or type(error).__name__)
            logger.warning("a node is lost", extra={"node": node.name, "error": repr(error)})
            raise InfraError(
                f"node {node.name} ({node.url}) does not answer: {error or type(error).__name__}",
                hint="the node may have executed the request; request another lease",
            ) from error

    async def allocate(self, seconds: float, send: Send, request_id: str = "") -> httpx.Response:
        """Send a lease request to the node with the most free sessions.

        Args:
            seconds: time to wait for a free session, in order of arrival.
            send: sends the request to a node; a node that turns out to be full is skipped until its next
                report.
            request_id: identifies a request that may be a retry: it goes to the node that stores the
                response.
        """
        if node := self.cluster.find(self._sent.get(request_id, ""), clock.monotonic()):
            return await send(node)
        until = clock.monotonic() + seconds
        full: set[str] = set()
        while True:
            node = await self._free_node(until, full)
            self._remember(request_id, node)
            response = await send(node)
            if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return response
            full.add(node.name)

    async def changed(self, seconds: float) -> None:
        """Wait until a node reports, at most the given seconds."""
        await wait_event(self._reported, max(0.0, seconds))

    async def _free_node(self, until: float, full: set[str]) -> ClusterNode:
        """Wait for a free session, in order of arrival."""
        async with self._queue.slot():
            while True:
                now = clock.monotonic()
                if node := self.cluster.choose(now, full):
                    return node
                if now >= until:
                    live = self.cluster.live(now)
                    what = f"all {len(live)} nodes are full" if live else "no node has joined"
                    raise RequestRefused(
                        FailureKind.FULL,
                        what,
                        hint="" if live else "start one with stillweb serve --join URL",
                    )
                await self.changed(until - now)
                full.clear()

    def _remember(self, request_id: str, node: ClusterNode) -> None:
        if request_id:
            self._sent[request_id] = node.name
            if len(self._sent) > _REMEMBERED:
                del self._sent[next(iter(self._sent))]


# --- HTTP ------------------------------------------------------------------------------------------------


def make_master_app(master: Master, keys: AccessKeys) -> FastAPI:
    app = base_app("stillweb serve --master", __doc__ or "", keys)
    app.state.history = HistoryRecorder()
    routes = _Routes(master)
    for path, method, route in (
        ("/v1/nodes", "POST", routes.join),
        ("/v1/nodes", "GET", routes.nodes),
        ("/v1/nodes/{name}", "DELETE", routes.leave),
        ("/v1/leases", "POST", routes.create_lease),
        ("/v1/leases/{lease}", "GET", routes.lease),
        ("/v1/leases/{lease}", "DELETE", routes.lease),
        ("/v1/leases/{lease}/{operation}", "POST", routes.lease),
        ("/v1/leases/{lease}/thumbnail", "GET", routes.lease),
        ("/v1/history", "GET", history),
        ("/v1/batch/step", "POST", routes.batch_step),
        ("/v1/batch/reset", "POST", routes.batch_reset),
        ("/v1/tasks", "GET", routes.tasks),
        ("/v1/pictures/{sha256}", "GET", routes.picture),
        ("/v1/status", "GET", routes.status),
        ("/v1/stream", "GET", routes.stream),
        ("/metrics", "GET", routes.metrics),
        ("/health", "GET", health),
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
    """The routes of a master: they choose nodes, forward requests and merge responses."""

    def __init__(self, master: Master) -> None:
        self._master = master

    # --- nodes ---

    async def join(self, request: Request, holder: HolderOf, report: NodeReport) -> Response:
        """Store the report of a node."""
        _check_node(holder, report.name)
        peer = request.client.host if request.client else ""
        self._master.update(report, await resolve_node_url(report.url, peer, self._master.networks))
        return JsonResponse({"nodes": len(self._master.cluster.live(clock.monotonic()))})

    async def nodes(self) -> Response:
        """List the nodes, including lost ones."""
        now = clock.monotonic()
        live = {node.name for node in self._master.cluster.live(now)}
        return JsonResponse(
            {"nodes": [_node(node, now, node.name in live) for node in self._master.cluster.all()]}
        )

    async def leave(self, holder: HolderOf, name: str) -> Response:
        """Remove a node that shut down."""
        _check_node(holder, name)
        self._master.cluster.remove(name)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    # --- leases ---

    async def create_lease(self, request: Request, holder: HolderOf, given: LeaseRequest) -> Response:
        """Lease a session of the node with the most free sessions."""
        sent = json.dumps(given.model_dump(exclude={"wait"}, exclude_none=True)).encode()
        request_id = "\n".join((holder.client, given.owner, given.request_id)) if given.request_id else ""
        allocating = self._allocate(holder, given.wait, "/v1/leases", sent, request_id)
        return await (allocating if request_id else while_connected(request, allocating))

    async def lease(self, request: Request, lease: str) -> Response:
        """Forward a request of a lease."""
        return await self._forward(self._master.of(lease), request)

    async def batch_step(self, holder: HolderOf, given: BatchStep) -> Response:
        """Step leases of several nodes."""
        return await self._batch(holder, "/v1/batch/step", given.model_dump())

    async def batch_reset(self, holder: HolderOf, given: BatchReset) -> Response:
        """Reset leases of several nodes."""
        return await self._batch(holder, "/v1/batch/reset", given.model_dump(exclude_none=True))

    async def tasks(self, request: Request) -> Response:
        """List the tasks of the first node; all nodes must have the same tasks."""
        live = self._master.cluster.live(clock.monotonic())
        return await self._forward(live[0], request) if live else JsonResponse({"tasks": []})

    async def picture(self, request: Request, sha256: str, node: str = "") -> Response:
        """Return a picture from its node, or from any node that has it."""
        now = clock.monotonic()
        known = self._master.cluster.find(node, now)
        for each in [known] if known else self._master.cluster.live(now):
            response = await self._master.send(each, "GET", f"/v1/pictures/{sha256}")
            if response.status_code == HTTPStatus.OK:
                return _forwarded(response)
        raise RequestRefused(
            FailureKind.NOT_FOUND, f"no picture {sha256}: it is unknown or was dropped from memory"
        )

    # --- Omniboxes ---

    async def instance(self, request: Request, holder: HolderOf) -> Response:
        """Lease an instance."""
        return await self._allocate(holder, 0.0, _target(request), b"")

    async def execute(self, request: Request, body: Annotated[dict[str, Any], Body()]) -> Response:
        """Forward a command."""
        return await self._forward(self._master.of(str(body.get("instance_id", ""))), request)

    async def of_instance(self, request: Request, instance_id: str) -> Response:
        """Forward a request of an instance."""
        return await self._forward(self._master.of(instance_id), request)

    async def info(self, request: Request, holder: HolderOf) -> Response:
        """List all nodes."""
        nodes: list[Any] = []
        for node in self._master.cluster.live(clock.monotonic()):
            response = await self._master.send(node, "GET", _target(request), client=holder.client)
            nodes += response.json()["nodes"]
        return JsonResponse({"nodes": nodes})

    # --- monitor ---

    async def status(self, holder: HolderOf) -> Status:
        """Return the status of all nodes as one server."""
        return visible_to(self._master.status(), holder.client)

    async def stream(self, holder: HolderOf) -> EventSourceResponse:
        """Send the status as events: at every change, at most two per second."""
        return EventSourceResponse(self._events(holder.client), ping=15)

    async def metrics(self) -> Response:
        """Return the metrics of all nodes for Prometheus."""
        return Response(figures.render(self._master.status()), headers={"Content-Type": figures.MEDIA_TYPE})

    async def ready(self) -> Response:
        """Return 200 if at least one node is live; otherwise 503."""
        live = len(self._master.cluster.live(clock.monotonic()))
        code = HTTPStatus.OK if live else HTTPStatus.SERVICE_UNAVAILABLE
        return JsonResponse({"ready": bool(live), "nodes": live}, status_code=code)

    async def _events(self, client: str) -> AsyncIterator[dict[str, str]]:
        while not self._master.closing.is_set():
            status = visible_to(self._master.status(), client)
            yield {"event": "status", "data": status.model_dump_json()}
            await wait_event(self._master.closing, _MIN_INTERVAL)
            await self._master.changed(_MAX_INTERVAL)

    # --- shared ---

    async def _allocate(
        self, holder: KeyHolder, seconds: float, target: str, body: bytes, request_id: str = ""
    ) -> Response:
        def send(node: ClusterNode) -> Awaitable[httpx.Response]:
            return self._master.send(node, "POST", target, body, holder.client)

        return _forwarded(await self._master.allocate(seconds, send, request_id))

    async def _forward(self, node: ClusterNode, request: Request) -> Response:
        body, client = await request.body(), holder_of(request).client
        return _forwarded(await self._master.send(node, request.method, _target(request), body, client))

    async def _batch(self, holder: KeyHolder, target: str, given: Given) -> Response:
        parts: dict[str, list[int]] = {}
        for index, item in enumerate(given["items"]):
            parts.setdefault(node_of(item["lease"]), []).append(index)
        results = [self._part(holder, target, given["items"], part) for part in parts.values()]
        if not given["stream"]:
            items = [each for part in results async for each in part]
            return JsonResponse({"results": sorted(items, key=lambda each: int(each["index"]))})
        return StreamingResponse(_lines(results), media_type="application/x-ndjson")

    async def _part(
        self, holder: KeyHolder, target: str, items: Sequence[Given], indexes: Sequence[int]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the results of one node's items as they complete."""
        body = json.dumps({"items": [items[i] for i in indexes], "stream": True}).encode()
        missing = dict(enumerate(indexes))
        try:
            node = self._master.of(items[indexes[0]]["lease"])
            async with self._master.streaming(node, "POST", target, body, holder.client) as response:
                if response.status_code != HTTPStatus.OK:
                    await response.aread()
                    raise UsageError(
                        f"node {node.name} answers {response.status_code}: {response.text[:200]}"
                    )
                async for line in response.aiter_lines():
                    result = json.loads(line)
                    yield {**result, "index": missing.pop(result["index"])}
        except StillwebError as error:
            fault = fault_of(error)
            for index in missing.values():
                lease = items[index]["lease"]
                yield {"index": index, "lease": lease, "status": int(fault.status), **fault.body}


async def _lines(parts: Sequence[AsyncIterator[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """Yield the results of several nodes as they complete."""
    completed: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def drain(part: AsyncIterator[dict[str, Any]]) -> None:
        try:
            async for each in part:
                completed.put_nowait(each)
        finally:
            completed.put_nowait(None)

    tasks = [asyncio.ensure_future(drain(part)) for part in parts]
    try:
        left = len(tasks)
        while left:
            each = await completed.get()
            if each is None:
                left -= 1
            else:
                yield json.dumps(each, ensure_ascii=False).encode() + b"\n"
    finally:
        for task in tasks:
            task.cancel()


def _check_node(holder: KeyHolder, name: str) -> None:
    if not holder.may_be_node(name):
        raise RequestRefused(
            FailureKind.FORBIDDEN,
            f"this key may not act as node {name!r}",
            hint="set the node key with --node-key-file or STILLWEB_NODE_KEY",
        )


def _target(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _forwarded(response: httpx.Response) -> Response:
    headers = {name: response.headers[name] for name in _FORWARDED_HEADERS if name in response.headers}
    return Response(response.content, status_code=response.status_code, headers=headers)


def _node(node: ClusterNode, now: float, live: bool) -> dict[str, Any]:
    queue = node.status.queues["allocate"]
    return {
        "name": node.name,
        "url": node.url,
        "there": live,
        "why": node.lost or ("" if live else "silent"),
        "silent": round(now - node.last_heard, 3),
        "state": node.status.state,
        "sessions": queue.limit,
        "leased": queue.under_way,
    }
