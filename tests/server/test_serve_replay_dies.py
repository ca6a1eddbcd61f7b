"""A replay worker that dies between two episodes fails neither of them."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from functools import partial

import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.replay import ReplayOptions, serve, serve_cluster
from stillweb.server import engine

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_reset_waits_for_a_worker_that_is_started_again(ca, collections_root, serving, monkeypatch):
    monkeypatch.setattr(engine, "_REPLAY_SECONDS", 60.0)  # machines are busy
    options = ReplayOptions(port=0, session_ports=None)
    small = Collection.open(collections_root, "small")
    async with (
        serve_cluster([small], ca, options, workers=1) as replay,
        serving(replay.url, sessions=1) as rollouts,
        httpx.AsyncClient(base_url=rollouts.url, timeout=120, trust_env=False) as client,
    ):
        lease = (await client.post("/v1/leases", json={"task_id": "named"})).json()["lease"]
        (worker,) = replay.workers
        os.kill(worker.pid, signal.SIGKILL)
        # An episode on the dead worker is lost, and reported as lost; the next episode is not.
        failed = await client.post(f"/v1/leases/{lease}/step", json={"action": {"action": "terminate"}})
        assert failed.json()["error"]["kind"] == "infra_error"
        again = await client.post(f"/v1/leases/{lease}/reset", json={"task_id": "named"})
        assert again.status_code == 200, again.text
        assert worker.restarts == 1
        assert (await client.get("/v1/status")).json()["failures"]["infra_error"] == 1


async def test_a_replay_that_returns_with_another_authority_is_trusted(
    tmp_path, ca, collections_root, serving
):
    """A pod that was replaced creates its certificates again."""
    small = Collection.open(collections_root, "small")
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        replay = await first.enter_async_context(
            serve([small], ca, ReplayOptions(port=0, session_ports=None))
        )
        rollouts = await stack.enter_async_context(serving(replay.url, sessions=1))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=rollouts.url, timeout=120, trust_env=False)
        )
        lease = (await client.post("/v1/leases", json={"task_id": "named"})).json()["lease"]
        await first.aclose()
        options = ReplayOptions(port=int(replay.url.rpartition(":")[2]), session_ports=None)
        other = CertAuthority.init(tmp_path / "certs")
        await stack.enter_async_context(serve([small], other, options))
        reset = partial(client.post, f"/v1/leases/{lease}/reset", json={"task_id": "named"})
        assert (await reset()).json()["error"]["kind"] == "infra_error"
        again = await reset()
        assert again.status_code == 200, again.text
