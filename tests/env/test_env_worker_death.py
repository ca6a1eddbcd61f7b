"""A worker that dies under an episode is ours: an InfraError, never a miss and never a reward of 0."""

from __future__ import annotations

import os
import signal

import pytest
import pytest_asyncio
from small_site import ORIGIN, build

from stillweb.collections.layout import Collection
from stillweb.env.env import Env
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.errors import InfraError
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, serve_cluster

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

TRUE = Task("true", "Do nothing", ORIGIN + "/", evaluation=Evaluation(EvalKind.JS, "true"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory, ca):
    collection: Collection = build(tmp_path_factory.mktemp("collections"))
    async with serve_cluster(
        [collection], ca, ReplayOptions(port=0, session_ports=None), workers=2
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("restarted", "action"),
    [(False, {"action": "terminate"}), (True, {"action": "goto", "url": ORIGIN + "/second"})],
)
async def test_a_worker_that_dies_is_an_infra_error(cluster, browser, action, restarted):
    async with Env(proxy=cluster.url, browser=browser) as env, ReplayClient(cluster.url) as control_api:
        _, info = await env.reset(task=TRUE)
        worker = cluster.workers[(await control_api.session(info["session"]))["worker"]]
        restarts = worker.restarts
        os.kill(worker.pid, signal.SIGKILL)
        if restarted:
            assert await poll(lambda: worker.alive and worker.restarts > restarts, timeout=60)
        with pytest.raises(InfraError):
            await env.step(action)
        assert await poll(lambda: worker.alive, timeout=60)
        await env.reset(task=TRUE)
        assert (await env.step({"action": "terminate"}))[1] == 1.0
