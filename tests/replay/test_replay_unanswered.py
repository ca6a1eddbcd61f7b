"""Workers that do not answer in time, or end unexpectedly: their sessions and ports afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_sites import free_ports, recorded

from stillweb.certs import CertAuthority
from stillweb.errors import PortInUse, ReplayError
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayCluster, ReplayOptions, serve_cluster
from stillweb.replay.workers import process as process_module
from stillweb.replay.workers.process import WorkerProcess


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ReplayCluster]:
    ca = CertAuthority.init(tmp_path / "certs")
    options = ReplayOptions(port=0, session_ports=free_ports(2), drain=10)
    async with serve_cluster([recorded(tmp_path, "shop")], ca, options, workers=1) as cluster:
        yield cluster


@contextmanager
def stopped(worker: WorkerProcess) -> Iterator[None]:
    """Let a worker answer nothing, and its supervisor wait for that a moment only."""
    assert worker._running is not None
    http = worker._running.client._http
    wait_limit, http.timeout = http.timeout, 0.2
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        http.timeout = wait_limit


async def test_what_a_worker_did_not_answer_leaves_no_session_and_no_port_behind(
    cluster: ReplayCluster,
) -> None:
    (worker,) = cluster.workers
    async with ReplayClient(cluster.url) as control_api:
        first = await control_api.open_session()
        with stopped(worker):
            with pytest.raises(ReplayError, match="worker 0 does not answer"):
                await control_api.close_session(first.id)
            with pytest.raises(ReplayError, match="worker 0 does not answer"):
                await control_api.open_session()
        await control_api.close_session(first.id)
        opened = [await control_api.open_session() for _ in range(2)]
        with pytest.raises(PortInUse, match="2 sessions are open here"):
            await control_api.open_session()
        reply = await worker.ask("GET", "/sessions")
        assert [each["id"] for each in reply["sessions"]] == ["default", *(each.id for each in opened)]


async def test_a_session_that_a_worker_opens_after_the_first_look_is_closed_too(
    cluster: ReplayCluster,
) -> None:
    (worker,) = cluster.workers
    worker.given_up = 1
    async with ReplayClient(cluster.url) as control_api:
        known = [await control_api.open_session()]  # finds nothing to close
        await worker.ask(
            "POST", "/sessions", {"collection": None, "port": None}
        )  # answers the given up request
        known.append(await control_api.open_session())
        shown = await worker.ask("GET", "/sessions")
        assert [each["id"] for each in shown["sessions"]] == ["default", *(each.id for each in known)]


async def test_a_worker_that_ends_by_itself_is_said_to_be_away(cluster: ReplayCluster) -> None:
    (worker,) = cluster.workers
    where = cluster.url.removeprefix("http://").split(":")
    # Half a request, so that it has something to wait for.
    reading, held = await asyncio.open_connection(*where)
    held.write(b"GET http://shop.example/p1 HTTP/1.1\r\nHost: shop.example\r\n\r\nGET http")
    assert (await reading.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    async def request_page() -> bytes:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"GET http://shop.example/p1 HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await writer.wait_closed()
        return answer

    pid = worker.pid
    os.kill(pid, signal.SIGTERM)
    assert await poll(lambda: not worker.alive, timeout=20)
    assert (worker.pid, worker.deaths) == (pid, 0)  # it waits for the rest of the request
    assert (await request_page()).startswith(b"HTTP/1.1 503 ")
    held.transport.abort()
    assert await poll(lambda: worker.alive and worker.deaths == 1, timeout=60)


async def test_a_worker_that_is_never_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_START", 0)
    ca = CertAuthority.init(tmp_path / "certs")
    options = ReplayOptions(port=0, session_ports=None)
    with pytest.raises(ReplayError, match="worker 0 did not start: it was ended by SIGKILL"):
        async with serve_cluster([recorded(tmp_path, "shop")], ca, options, workers=1):
            pass
