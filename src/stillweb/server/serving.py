"""A rollout server or a master in this event loop: application, listening socket, start and shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from stillweb.errors import ExtraNotInstalled, PortInUse, UsageError

try:
    import sse_starlette  # noqa: F401 - imported here so that one error names the missing extra
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse
except ImportError as missing:
    raise ExtraNotInstalled(
        f"the rollout server needs {missing.name}", hint="pip install 'stillweb[serve]'"
    ) from missing

from stillweb.server.cluster.master import Master, make_master_app
from stillweb.server.engine import Engine
from stillweb.server.guard import BODY_BYTES, VIEWER, LimitedConnection, base_app
from stillweb.server.keys import AccessKeys
from stillweb.server.monitor import monitor
from stillweb.server.monitor.history import HistoryRecorder
from stillweb.server.options import ServeOptions
from stillweb.server.protocols import native, omniboxes, openenv, verltool
from stillweb.server.viewer.app import make_viewer_app
from stillweb.server.viewer.app import router as viewer_router
from stillweb.server.viewer.index import EpisodeIndex
from stillweb.templates import templates_of
from stillweb.urls import is_loopback

_KEEP_ALIVE_SECONDS = 75  # longer than clients keep connections, so that no request meets a closed connection
_GRACE_SECONDS = 5  # for open responses after all leases have ended
_METHODS = ("get", "post", "put", "patch", "delete")


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command, which drains leases first."""
        yield


@dataclass(frozen=True, slots=True)
class RolloutServer:
    """A running server, and the address that it listens on."""

    url: str
    engine: Engine


@asynccontextmanager
async def serve_rollouts(
    proxy: str,
    options: ServeOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | AccessKeys = "",
) -> AsyncIterator[RolloutServer]:
    """Serve episodes until the block is left, then drain the running leases.

    Args:
        proxy: control URL of the replay server.
        host: address to listen on; an address other than loopback requires a key.
        port: port to listen on; 0 for any.
        key: API key that clients must send, or several keys; "" for none.

    Raises:
        UsageError: if other machines can reach the address and no key is set.
        PortInUse: if the port is taken.
        ReplayUnreachable, ProgramNotFound, InfraError: see `VectorEnv.start`.
    """
    keys = AccessKeys.of(key)
    with _listening(host, port, keys) as listener:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(Engine(proxy, options))
            app = make_app(engine, keys)
            if root := engine.options.vector.env.trajectories:
                root.mkdir(parents=True, exist_ok=True)
                app.include_router(viewer_router(EpisodeIndex.open(root), VIEWER), include_in_schema=False)
            await stack.enter_async_context(_answering(app, listener))
            await stack.enter_async_context(
                app.state.history.recording(partial(monitor.sampled_status, engine))
            )
            try:
                yield RolloutServer(_url(listener), engine)
            finally:
                await engine.drain()
                engine.end_streams()  # uvicorn would wait for them


@asynccontextmanager
async def serve_master(
    *, host: str = "127.0.0.1", port: int = 0, key: str | AccessKeys = "", networks: Sequence[str] = ()
) -> AsyncIterator[tuple[str, Master]]:
    """Run a master until the block is left; yield its URL and itself.

    Args:
        key: keys of clients and nodes; with API keys but no node key, no node can join.
        networks: networks in CIDR notation that the addresses of nodes may be in. A node may always have the
            address from which it joins.
    """
    keys = AccessKeys.of(key)
    with _listening(host, port, keys) as listener:
        master = Master(keys, networks)
        try:
            app = make_master_app(master, keys)
            async with _answering(app, listener), app.state.history.recording(master.current_status):
                try:
                    yield _url(listener), master
                finally:
                    master.closing.set()
        finally:
            await master.close()


@asynccontextmanager
async def serve_viewer(root: Path, *, port: int = 0) -> AsyncIterator[str]:
    """Show the trajectories below a folder to this machine until the block is left; yield the URL.

    Raises:
        UsageError: if the folder does not exist.
        PortInUse: if the port is taken.
    """
    app = make_viewer_app(EpisodeIndex.open(root))
    with _listening("127.0.0.1", port, AccessKeys()) as listener:
        async with _answering(app, listener):
            yield _url(listener)


@asynccontextmanager
async def _answering(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests until the block is left; requests under way still complete."""
    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="websockets-sansio",
        ws_max_size=BODY_BYTES,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = _Uvicorn(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await running


@contextmanager
def _listening(host: str, port: int, keys: AccessKeys) -> Iterator[socket.socket]:
    if not keys and not is_loopback(host):
        raise UsageError(
            f"other machines can reach {host}, and no API key is set",
            hint="set --api-key-file FILE, or STILLWEB_API_KEY in the environment",
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="use --port 0 for any free port"
        ) from error
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# --- application ----------------------------------------------------------------------------------


def page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as one HTML page.

    FastAPI's own pages (Swagger UI, ReDoc) load about 1.5 MB of scripts from a CDN. This page must work
    without internet and without scripts from other origins. Packages that bundle the scripts add megabytes to
    every installation, so the page is a template.
    """
    tags: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                tag = (operation.get("tags") or ["other"])[0]
                tags.setdefault(tag, []).append(_operation(path, method, operation))
    schemas = document.get("components", {}).get("schemas", {})
    texts = {name: json.dumps(schema, indent=2, ensure_ascii=False) for name, schema in schemas.items()}
    template = templates_of("stillweb.server").get_template("api.html.j2")
    return template.render(info=document["info"], tags=tags, schemas=texts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "method": method.upper(),
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": operation.get("parameters", []),
        "body": _model(operation.get("requestBody", {})),
        "responses": {
            status: {"text": each.get("description", ""), "model": _model(each)}
            for status, each in operation.get("responses", {}).items()
        },
    }


def _model(content: dict[str, Any]) -> str:
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]


_DESCRIPTION = (
    "Episodes on replayed sites, leased to trainers. A failure of browser, page or replay has status 502 or "
    "503 and the kind infra_error, and never a reward."
)


def make_app(engine: Engine, keys: AccessKeys) -> FastAPI:
    app = base_app("stillweb serve", _DESCRIPTION, keys)
    app.state.engine = engine
    app.state.history = HistoryRecorder()
    app.state.trajectories = verltool.TrajectoryLeases(engine)
    app.include_router(native.router())
    app.include_router(monitor.router())
    app.include_router(omniboxes.router("/omniboxes"))
    app.include_router(omniboxes.router(""), include_in_schema=False)  # WebGym clients use the root
    app.include_router(openenv.router("/openenv"))
    app.add_api_websocket_route("/ws", openenv.socket)
    app.include_router(verltool.router("/verl-tool"))

    @cache
    def text() -> str:
        return page(app.openapi())

    async def docs() -> HTMLResponse:
        return HTMLResponse(text())

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    return app
