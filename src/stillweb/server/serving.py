"""A rollout server in this event loop: the socket it listens on, its start, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from stillweb.errors import ExtraNotInstalled, PortInUse, UsageError

try:
    import sse_starlette  # noqa: F401 - asked for here, so that its absence is told once and well
    import uvicorn
    from fastapi import FastAPI
except ImportError as missing:
    raise ExtraNotInstalled(
        f"the rollout server needs {missing.name}", hint="pip install 'stillweb[serve]'"
    ) from missing

from stillweb.server.app import make_app
from stillweb.server.cluster.master import Master, make_master_app
from stillweb.server.engine import Engine
from stillweb.server.guard import is_loopback
from stillweb.server.options import ServeOptions

__all__ = ["RolloutServer", "serve_master", "serve_rollouts"]

_KEEP_ALIVE_SECONDS = 75  # longer than clients keep theirs: who closes first must not be the one who is asked
_GRACE_SECONDS = 5  # for answers at hand, once all leases have ended


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program, which drains first."""
        yield


class RolloutServer:
    """A server that runs.

    Attributes:
        url: where it listens.
        engine: behind it.
    """

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine


@asynccontextmanager
async def serve_rollouts(
    proxy: str,
    options: ServeOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str = "",
) -> AsyncIterator[RolloutServer]:
    """Serve episodes on a replay server, until the block is left; then running leases are drained.

    Args:
        proxy: control URL of the replay server.
        options: see `ServeOptions`.
        host: to listen on; another one than loopback needs a key.
        port: to listen on; 0 for any.
        key: that clients must show; "" for none.

    Raises:
        UsageError: if others could reach it, and no key is asked for.
        PortInUse: if the port is taken.
        ReplayUnreachable, ProgramNotFound, InfraError: as `VectorEnv.start`.
    """
    with _listening(host, port, key) as listener:
        async with Engine(proxy, options) as engine, _answering(make_app(engine, key), listener):
            try:
                yield RolloutServer(_url(listener), engine)
            finally:
                await engine.drain()
                engine.end_streams()  # which would be waited for otherwise


@asynccontextmanager
async def serve_master(
    *, host: str = "127.0.0.1", port: int = 0, key: str = ""
) -> AsyncIterator[tuple[str, Master]]:
    """Serve as a master until the block is left; gives URL and master. Arguments as of `serve_rollouts`."""
    with _listening(host, port, key) as listener:
        master = Master(key)
        try:
            async with _answering(make_master_app(master, key), listener):
                try:
                    yield _url(listener), master
                finally:
                    master.closing.set()
        finally:
            await master.close()


@asynccontextmanager
async def _answering(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests until the block is left; those under way are answered still."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = _Uvicorn(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@contextmanager
def _listening(host: str, port: int, key: str) -> Iterator[socket.socket]:
    if not key and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by other machines, and no API key is set",
            hint="--api-key KEY, or STILLWEB_API_KEY in the environment",
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}", hint="--port 0: any") from error
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
