"""The native API over real HTTP, on a real browser and replay."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import sys

import httpx
import pytest
from served_pages import filling, lease, play, step
from small_site import ORIGIN

from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.errors import UsageError
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient
from stillweb.server.serving import serve_rollouts

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SCROLL = {"action": "scroll", "dy": 10}


async def busy(rollouts):
    """Hold all turns of steps; return what lets go."""
    turns = [rollouts.engine.queues["execute"].slot() for _ in range(2)]
    for turn in turns:
        await turn.__aenter__()

    async def let_go():
        for turn in turns:
            await turn.__aexit__(None, None, None)

    return let_go


async def session_of(client, lease_id):
    sessions = (await client.get("/v1/status")).json()["sessions"]
    return next((session for session in sessions if session["lease"] == lease_id), None)


async def test_an_episode_to_its_reward(client):
    lease_id, seen = await lease(client, owner="me", seed=3)
    assert (await session_of(client, lease_id))["letter"] == "0"
    end = await play(client, lease_id, seen)
    assert (end["reward"], end["terminated"], end["truncated"]) == (1.0, True, False)
    assert end["info"]["seed"] == 3
    over = await step(client, lease_id, SCROLL)
    assert (over.status_code, over.json()["error"]["kind"]) == (409, "reset_needed")
    described = (await client.get(f"/v1/leases/{lease_id}")).json()
    assert (described["state"], described["reward"], described["owner"]) == ("F", 1.0, "me")
    again = await client.post(f"/v1/leases/{lease_id}/reset", json={"task_id": "named", "seed": 3})
    assert again.json()["observation"]["digests"] == seen["digests"]
    assert again.json()["reward"] is None
    for _ in range(2):
        assert (await client.delete(f"/v1/leases/{lease_id}")).status_code == 204
    assert (await step(client, lease_id, SCROLL)).status_code == 410


async def test_pictures_are_fetched_by_their_digest_or_inline(client):
    lease_id, seen = await lease(client)
    picture = seen["pictures"]["screenshot"]
    fetched = await client.get(picture["href"])
    assert fetched.content.startswith(b"\x89PNG")
    assert hashlib.sha256(fetched.content).hexdigest() == picture["sha256"] == seen["digests"]["screenshot"]
    assert "data" not in picture
    observed = {"observe": ["som"], "inline_pictures": True}
    marked = (await client.post(f"/v1/leases/{lease_id}/observe", json=observed)).json()
    assert base64.b64decode(marked["pictures"]["som"]["data"]).startswith(b"\x89PNG")
    assert (await session_of(client, lease_id))["picture"] == marked["pictures"]["som"]["sha256"]
    assert (await client.get("/v1/pictures/" + "0" * 64)).status_code == 404


async def test_a_task_may_be_sent_and_a_url_opened(client):
    task = Task("mine", "", ORIGIN + "/second", evaluation=Evaluation(EvalKind.JS, "true"), max_steps=1)
    lease_id, seen = await lease(client, task_id=None, task=task_to_dict(task))
    assert "Second page" in seen["axtree"]
    truncated = (await step(client, lease_id, SCROLL)).json()
    assert (truncated["truncated"], truncated["reward"]) == (True, 0.0)
    opened = await client.post(f"/v1/leases/{lease_id}/reset", json={"url": ORIGIN + "/"})
    assert opened.json()["observation"]["title"] == "Home"


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({"task_id": "unknown"}, 400, "no task 'unknown'"),
        ({"task_id": "named", "url": ORIGIN}, 400, "one of task, task_id and url"),
        ({"task": {"id": "x"}}, 422, "no task"),
        ({"url": ORIGIN + "/absent"}, 422, "absent"),
        ({"urll": ORIGIN}, 400, "urll"),
        ({"ttl": -1}, 400, "ttl"),
    ],
)
async def test_what_is_requested_wrongly_is_reported_and_leases_nothing(client, given, status, says):
    answer = await client.post("/v1/leases", json=given)
    assert (answer.status_code, says in answer.json()["error"]["message"]) == (status, True), answer.text
    assert all(session["letter"] == "N" for session in (await client.get("/v1/status")).json()["sessions"])


async def test_a_retry_is_taken_once_also_while_the_first_is_under_way(client, rollouts):
    lease_id, seen = await lease(client)
    let_go = await busy(rollouts)
    both = [asyncio.ensure_future(step(client, lease_id, filling(seen), request_id="one")) for _ in range(2)]
    started = await poll(lambda: rollouts.engine.queues["execute"].waiting == 1, timeout=30)
    await let_go()
    first, retry = await asyncio.gather(*both)
    assert started
    assert first.json() == retry.json()
    assert first.json()["info"]["step"] == 1
    other = await step(client, lease_id, SCROLL, request_id="one")
    assert (other.status_code, other.json()["error"]["kind"]) == (409, "request_id_conflict")
    ends = [await step(client, lease_id, {"action": "terminate"}, request_id="two") for _ in range(2)]
    assert [end.json()["reward"] for end in ends] == [1.0, 1.0]  # though the episode was over by then


async def test_a_batch_fails_item_by_item_and_may_be_streamed(client):
    leases = [await lease(client) for _ in range(2)]
    items = [{"lease": lease_id, "action": filling(seen)} for lease_id, seen in leases]
    items.append({"lease": "nobody", "action": SCROLL})
    results = (await client.post("/v1/batch/step", json={"items": items})).json()["results"]
    assert [each["status"] for each in results] == [200, 200, 404]
    assert results[2]["error"]["kind"] == "no_lease"
    ends = [{"lease": lease_id, "action": {"action": "terminate"}} for lease_id, _ in leases]
    lines = []
    async with client.stream("POST", "/v1/batch/step", json={"items": ends, "stream": True}) as streamed:
        assert streamed.headers["content-type"] == "application/x-ndjson"
        async for line in streamed.aiter_lines():
            lines.append(json.loads(line))
    assert sorted(line["index"] for line in lines) == [0, 1]
    assert [line["result"]["reward"] for line in lines] == [1.0, 1.0]
    resets = [{"lease": lease_id, "task_id": "named"} for lease_id, _ in leases]
    anew = (await client.post("/v1/batch/reset", json={"items": resets})).json()["results"]
    assert [each["result"]["observation"]["digests"] for each in anew] == [
        seen["digests"] for _, seen in leases
    ]


async def test_a_killed_client_is_reclaimed_and_the_others_lose_nothing(client, rollouts, replay):
    stored, seen = await lease(client)
    killed, its = await lease(client, ttl=1.0)
    let_go = await busy(rollouts)
    code = (
        "import http.client, sys; c = http.client.HTTPConnection(sys.argv[1]);"
        "c.request('POST', sys.argv[2], sys.argv[3], {'content-type': 'application/json'}); c.getresponse()"
    )
    address = rollouts.url.removeprefix("http://")
    body = json.dumps({"action": filling(its)})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, address, f"/v1/leases/{killed}/step", body
    )
    stepping = await poll(lambda: rollouts.engine.queues["execute"].waiting == 1, timeout=60)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await let_go()
    assert stepping
    assert await poll(lambda: killed not in rollouts.engine.leases.held, timeout=10)
    gone = await step(client, killed, SCROLL)
    assert (gone.status_code, "silent" in gone.json()["error"]["message"]) == (410, True)
    assert (await play(client, stored, seen))["reward"] == 1.0
    await client.delete(f"/v1/leases/{stored}")
    async with ReplayClient(replay.url) as control_api:
        assert await poll(lambda: not rollouts.engine.leases.table.leased, timeout=30)
        assert len(await control_api.sessions()) == 1  # the default one: no orphans


async def test_a_heartbeat_keeps_a_lease_and_its_lifetime_ends_it(client, rollouts):
    lease_id = (await client.post("/v1/leases", json={"ttl": 0.5, "lifetime": 2.0})).json()["lease"]
    beats = 0
    while (beat := await client.post(f"/v1/leases/{lease_id}/heartbeat")).status_code == 200:
        beats += 1
        await poll(lambda: lease_id not in rollouts.engine.leases.held, timeout=0.1)
    assert beats > 5
    assert "lifetime" in beat.json()["error"]["message"]


async def test_when_all_is_leased_clients_wait_in_line_or_are_reported_when_to_come_again(client):
    leases = [(await client.post("/v1/leases", json={})).json() for _ in range(4)]
    full = await client.post("/v1/leases", json={})
    assert (full.status_code, full.json()["error"]["kind"]) == (503, "full")
    assert int(full.headers["retry-after"]) > 0
    assert full.json()["error"]["retry"]
    short = await client.post("/v1/leases", json={"wait": 0.05})
    assert short.status_code == 503
    waiting = asyncio.ensure_future(client.post("/v1/leases", json={"wait": 60}))
    while not (await client.get("/v1/status")).json()["queues"]["allocate"]["waiting"]:
        assert not waiting.done()
    await client.delete(f"/v1/leases/{leases[0]['lease']}")
    assert (await waiting).json()["session"] == leases[0]["session"]


async def test_who_hangs_up_leaves_the_line_and_who_asks_again_gets_the_same_lease(client, rollouts):
    again = {"owner": "retrying", "request_id": "1"}
    first, retry = [(await client.post("/v1/leases", json=again)).json() for _ in range(2)]
    assert first["lease"] == retry["lease"]
    assert (await client.post("/v1/leases", json={"request_id": "1"})).status_code == 400
    for _ in range(3):
        await client.post("/v1/leases", json={})
    line = rollouts.engine.leases.table
    async with httpx.AsyncClient(base_url=rollouts.url, timeout=60, trust_env=False) as other:
        waiting = asyncio.ensure_future(other.post("/v1/leases", json={"wait": 60}))
        assert await poll(lambda: line.waiting == 1, timeout=30)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert await poll(lambda: line.waiting == 0, timeout=30)
    assert line.leased == 4


async def test_a_dead_browser_is_an_infra_error_and_the_others_go_on(client, rollouts):
    (one, _), (two, seen) = await lease(client), await lease(client)
    browsers = {(await session_of(client, lease_id))["browser"]: lease_id for lease_id in (one, two)}
    assert len(browsers) == 2
    number = next(number for number, lease_id in browsers.items() if lease_id == one)
    pid = next(each["pid"] for each in rollouts.engine.vector.browsers() if each["number"] == number)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # the retry gets the same response
        failed = await step(client, one, {"action": "terminate"}, request_id="last")
        assert (failed.status_code, failed.json()["error"]["kind"]) == (502, "infra_error")
        assert "reward" not in failed.json()
    assert (await session_of(client, one))["letter"] == "X"
    assert (await step(client, one, SCROLL)).status_code == 409
    assert (await play(client, two, seen))["reward"] == 1.0
    again = (await client.post(f"/v1/leases/{one}/reset", json={"task_id": "named"})).json()
    assert (await play(client, one, again["observation"]))["reward"] == 1.0
    assert (await client.get("/v1/status")).json()["failures"]["infra_error"] == 1


async def test_releasing_in_the_middle_of_a_step_ends_it(client, rollouts):
    lease_id, seen = await lease(client)
    let_go = await busy(rollouts)
    stepping = asyncio.ensure_future(step(client, lease_id, filling(seen)))
    assert await poll(lambda: rollouts.engine.queues["execute"].waiting == 1, timeout=30)
    releasing = asyncio.ensure_future(client.delete(f"/v1/leases/{lease_id}"))
    assert await poll(lambda: lease_id not in rollouts.engine.leases.held, timeout=30)
    await let_go()
    assert (await stepping).status_code == 410
    assert (await releasing).status_code == 204


async def test_status_comes_as_events_and_figures(client):
    lease_id, _ = await lease(client, owner="watched")
    await step(client, lease_id, {"action": "click", "bid": "a7"})  # it requests an unrecorded URL
    async with client.stream("GET", "/v1/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                status = json.loads(line.removeprefix("data:"))
                break
    session = next(each for each in status["sessions"] if each["lease"] == lease_id)
    assert (session["owner"], session["letter"], session["misses"]) == ("watched", "1", 1)
    assert status["misses"][0]["request"] == f"GET {ORIGIN}/absent.json"
    figures = (await client.get("/metrics")).text
    assert 'stillweb_serve_sessions{letter="0-9"} 1.0' in figures
    assert (await client.get("/ready")).json() == {"ready": True, "missing": []}
    assert (await client.get("/v1/tasks")).json()["tasks"][0]["goal"] == "Say Ada"
    assert (await client.get("/openapi.json")).json()["paths"]["/v1/leases"]
    assert "/v1/batch/step" in (await client.get("/docs")).text


async def test_a_server_with_a_key_answers_those_who_have_it(replay, serving):
    async with (
        serving(replay.url, key="s3cret", sessions=1) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        assert (await client.get("/v1/status")).status_code == 401
        assert (await client.get("/v1/status", headers={"x-api-key": "s3cret"})).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_a_server_that_others_reach_needs_a_key(replay):
    with pytest.raises(UsageError, match="no API key"):
        async with serve_rollouts(replay.url, host="0.0.0.0"):
            pass
