"""A master and its nodes over real HTTP: leases are spread, found again, and lost with their node only."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import httpx
import pytest
import pytest_asyncio
from served_pages import filling, lease, play, step

from stillweb.errors import UsageError
from stillweb.polling import poll
from stillweb.server.cluster.joining import joined
from stillweb.server.serving import serve_master

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(replay, serving):
    """A master with the nodes `one` and `two`, of one session each: its URL, itself, their engines."""
    async with (
        serve_master() as (url, master),
        serving(replay.url, node="one", sessions=1, observe=("axtree", "screenshot")) as one,
        joined(one.engine, url, one.url),
        serving(replay.url, node="two", sessions=1, observe=("axtree", "screenshot")) as two,
        joined(two.engine, url, two.url),
    ):
        yield url, master, (one.engine, two.engine)


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster):
    """An HTTP client of the master; what it leased is given back after the test, and the master knows it."""
    url, master, engines = cluster
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        yield client
    for engine in engines:
        await asyncio.gather(*(engine.leases.release(held) for held in list(engine.leases.held.values())))
    assert await poll(lambda: all(node.free == 1 for node in master.cluster.all()), timeout=30)


async def test_episodes_on_two_nodes_by_one_address(client):
    (one, seen_one), (two, seen_two) = await asyncio.gather(lease(client), lease(client))
    assert {one.split(".")[0], two.split(".")[0]} == {"one", "two"}
    assert seen_one["digests"] == seen_two["digests"]
    full = await client.post("/v1/leases", json={})
    assert (full.status_code, full.json()["error"]["kind"]) == (503, "full")
    for each, seen in ((one, seen_one), (two, seen_two)):
        assert (await play(client, each, seen))["reward"] == 1.0
        (picture,) = [*seen["pictures"].values()]
        assert (await client.get(picture["href"])).content.startswith(b"\x89PNG")
        assert (await client.get(f"/v1/pictures/{picture['sha256']}")).status_code == 200
    status = (await client.get("/v1/status")).json()
    assert [each["node"] for each in status["sessions"]] == ["one", "two"]


async def test_who_waits_gets_the_session_that_is_given_back(client):
    first, _ = await lease(client)
    await lease(client)
    waiting = asyncio.ensure_future(client.post("/v1/leases", json={"wait": 30}))
    await asyncio.wait([waiting], timeout=0.5)
    assert not waiting.done()
    await client.delete(f"/v1/leases/{first}")
    assert (await waiting).json()["lease"].split(".")[0] == first.split(".")[0]


async def test_a_lease_requested_twice_is_one(client):
    request = {"task_id": "named", "owner": "me", "request_id": "again-1"}
    answers = [await client.post("/v1/leases", json=request) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201], [each.text for each in answers]
    assert answers[0].json()["lease"] == answers[1].json()["lease"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_batch_is_of_many_nodes(client, stream):
    (one, seen), (two, _) = [await lease(client) for _ in range(2)]
    items = [{"lease": each, "action": filling(seen)} for each in (one, "three.x", two)]
    answer = await client.post("/v1/batch/step", json={"items": items, "stream": stream})
    results = [json.loads(line) for line in answer.text.splitlines()] if stream else answer.json()["results"]
    statuses = {each["index"]: (each["status"], each["lease"]) for each in results}
    assert statuses == {0: (200, one), 1: (404, "three.x"), 2: (200, two)}
    wrong = next(each for each in results if each["index"] == 1)
    assert wrong["error"]["kind"] == "no_lease"


async def test_omniboxes_clients_find_the_node_of_their_instance(client):
    got = (await client.post("/get?lifetime_mins=5")).json()
    assert got["instance_id"].startswith(f"{got['node']}.")
    visit = {**got, "visit_page": {"url": "https://small.test/"}}
    answer = await client.post("/execute", json=visit)
    assert answer.json() == {"status": "success"}, answer.text
    assert (await client.get("/probe", params=got)).status_code == 200
    nodes = (await client.get("/info")).json()["nodes"]
    assert [node["hash"] for node in nodes] == ["one", "two"]
    assert (await client.post("/reset", params=got)).json() == {"status": "success"}


async def test_a_node_that_is_killed_takes_its_own_leases_only(replay, serving):
    async with serve_master() as (url, _), serving(replay.url, node="stays", sessions=1) as stays:
        node = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stillweb", "serve", replay.url, "--port", "0", "--join", url,
            "--node-name", "dies", "--sessions", "1", stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with (
            joined(stays.engine, url, stays.url),
            httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        ):

            async def both():
                return len((await client.get("/v1/nodes")).json()["nodes"]) == 2

            assert await poll(both, timeout=60, interval=0.2)
            leases = [(await client.post("/v1/leases", json={})).json()["lease"] for _ in range(2)]
            node.send_signal(signal.SIGKILL)
            await node.wait()
            lost = next(each for each in leases if each.startswith("dies."))
            stored = next(each for each in leases if each.startswith("stays."))
            answer = await step(client, lost, {"action": "terminate"})
            assert (answer.status_code, answer.json()["error"]["kind"]) == (502, "infra_error")
            reset = await client.post(f"/v1/leases/{stored}/reset", json={"task_id": "named"})
            assert (await play(client, stored, reset.json()["observation"]))["reward"] == 1.0
            nodes = {each["name"]: each["there"] for each in (await client.get("/v1/nodes")).json()["nodes"]}
            assert nodes == {"dies": False, "stays": True}


async def test_who_cannot_join_is_reported(rollouts, replay, serving):
    async with serving(replay.url, node="n", sessions=1) as node:
        with pytest.raises(UsageError, match="refuses this node"):
            async with joined(node.engine, rollouts.url, node.url):  # no master, but a rollout server
                pass
        async with serve_master(key="one") as (url, _):
            with pytest.raises(UsageError, match="another key"):
                async with joined(node.engine, url, node.url, "other"):
                    pass
