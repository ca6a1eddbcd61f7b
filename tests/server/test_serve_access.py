"""Attacks on the rollout server and its clusters by clients on the network."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from served_pages import filling, lease, play
from starlette.datastructures import Headers

from stillweb.errors import UsageError
from stillweb.polling import poll
from stillweb.server.cluster.joining import joined
from stillweb.server.cluster.nodes import resolve_node_url
from stillweb.server.engine import Engine
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.guard import BODY_BYTES, BodyLimit, LimitedConnection
from stillweb.server.keys import CLIENT_HEADER, AccessKeys, KeyHolder, read_keys
from stillweb.server.monitor.monitor import status_of
from stillweb.server.serving import make_app, serve_master, serve_viewer

KEYS = AccessKeys({"ada": "key-of-ada", "eve": "key-of-eve"}, {"": "node-key"})


def client_of(url, key):
    return httpx.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=60, trust_env=False)


def report_of(engine, name, url):
    return {"name": name, "url": url, "status": status_of(engine).model_dump(mode="json")}


# --- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "holder"),
    [
        ({"x-api-key": "key-of-ada"}, KeyHolder("ada")),
        ({"authorization": "Bearer key-of-eve"}, KeyHolder("eve")),
        ({"x-api-key": "key-of-eve", CLIENT_HEADER: "ada"}, KeyHolder("eve")),  # only nodes may name a client
        ({"x-api-key": "node-key", CLIENT_HEADER: "ada"}, KeyHolder("ada", "")),
        ({"x-api-key": "key-of"}, None),
        ({}, None),
    ],
)
def test_a_key_has_one_holder(headers, holder):
    assert KEYS.holder(Headers(headers)) == holder


def test_keys_are_read_from_a_file_and_do_not_appear_in_texts(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# clients\nada key-of-ada\n\nsingle-key\n")
    assert read_keys(file) == {"ada": "key-of-ada", "": "single-key"}
    assert "key-of-ada" not in repr(KEYS)
    for wrong in ("", "a b c\n", "ada x\nada y\n", "ada x\neve x\n"):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="key"):
            read_keys(file)


@pytest.mark.parametrize("command", ["serve", "monitor"])
def test_a_key_on_the_command_line_is_refused_since_ps_shows_it(command):
    from click.testing import CliRunner

    from stillweb.cli.monitor import monitor
    from stillweb.cli.serve import serve

    chosen = {"serve": serve, "monitor": monitor}[command]
    outcome = CliRunner().invoke(chosen, ["http://127.0.0.1:9", "--api-key", "s3cret"])
    assert isinstance(outcome.exception, UsageError)
    assert "--api-key-file" in outcome.exception.hint
    assert "s3cret" not in str(outcome.exception)


# --- leases of other clients -----------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_client_neither_sees_nor_uses_the_leases_of_another(replay, serving):
    async with (
        serving(replay.url, key=KEYS, observe=("axtree", "screenshot")) as server,
        client_of(server.url, "key-of-ada") as ada,
        client_of(server.url, "key-of-eve") as eve,
    ):
        held, seen = await lease(ada, owner="trainer")
        box = (await ada.post("/get")).json()["instance_id"]
        mine = (await ada.get("/v1/status")).json()["sessions"]
        theirs = (await eve.get("/v1/status")).json()["sessions"]
        assert {each["lease"] for each in mine if each["lease"]} == {held, box}
        assert {each["letter"] for each in theirs} == {"0", "W", "N"}
        for text in (
            json.dumps(theirs),
            (await eve.get("/info")).text,
            (await eve.get("/metrics")).text,
            await first_event(eve),
        ):
            assert held not in text
            assert box not in text
        where = f"/v1/leases/{held}"
        attacks = [
            eve.get(where),
            eve.delete(where),
            eve.post(where + "/heartbeat"),
            eve.post(where + "/reset", json={"task_id": "named"}),
            eve.post(where + "/step", json={"action": {"action": "terminate"}}),
            eve.post(where + "/observe", json={"observe": ["axtree"]}),
            eve.get("/openenv/state", params={"episode_id": held}),
            eve.post("/openenv/step", json={"episode_id": held, "action": {"action": "terminate"}}),
        ]
        for attack in attacks:
            answer = await attack
            assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "no_lease"), (
                answer.request.url
            )
        assert (await eve.post("/reset", params={"instance_id": box, "node": "stillweb"})).status_code == 400
        batch = {"items": [{"lease": held, "action": {"action": "terminate"}}]}
        (item,) = (await eve.post("/v1/batch/step", json=batch)).json()["results"]
        assert item["status"] == 404
        again = {"owner": "trainer", "request_id": "1"}
        first = (await ada.post("/v1/leases", json=again)).json()["lease"]
        assert (await eve.post("/v1/leases", json=again)).json()["lease"] != first
        assert (await play(ada, held, seen))["reward"] == 1.0


async def first_event(client):
    async with client.stream("GET", "/v1/stream") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                return line
    return ""


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_trajectories_of_verl_tool_belong_to_their_client(replay, serving):
    async with (
        serving(replay.url, key=KEYS, sessions=2) as server,
        client_of(server.url, "key-of-ada") as ada,
        client_of(server.url, "key-of-eve") as eve,
    ):
        body = {"trajectory_ids": ["t"], "actions": [""], "extra_fields": [{"task_id": "named"}]}
        seen = (await ada.post("/verl-tool/get_observation", json=body)).json()["observations"][0]
        await eve.post("/verl-tool/get_observation", json=body | {"finish": [True]})
        fill = {**body, "actions": [json.dumps(filling({"axtree": seen["obs"]}))]}
        await ada.post("/verl-tool/get_observation", json=fill)
        end = {**body, "actions": ['{"action": "terminate"}']}
        for reward in (1.0, None):  # a call after the end changes nothing, and breaks nothing
            response = (await ada.post("/verl-tool/get_observation", json=end)).json()
            assert response["observations"][0].get("reward") == reward
            assert (response["dones"], "error" in response["observations"][0]) == ([True], False)


# --- clusters --------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_client_cannot_take_the_name_of_a_node(replay, serving):
    node_keys = AccessKeys(KEYS.clients, {"one": "key-of-one", "two": "key-of-two"})
    async with (
        serve_master(key=node_keys) as (url, _),
        serving(replay.url, node="one", sessions=1, key=AccessKeys(nodes={"one": "key-of-one"})) as one,
        joined(one.engine, url, one.url, "key-of-one"),
        client_of(url, "key-of-ada") as ada,
    ):
        forged = report_of(one.engine, "one", "http://127.0.0.1:9")
        for key, name in (("key-of-ada", "one"), ("key-of-ada", "new"), ("key-of-two", "one")):
            async with client_of(url, key) as thief:
                answer = await thief.post("/v1/nodes", json={**forged, "name": name})
                assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "forbidden")
                assert (await thief.delete(f"/v1/nodes/{name}")).status_code == 403
        held, seen = await lease(ada)
        assert (await play(ada, held, seen))["reward"] == 1.0
        async with client_of(url, "key-of-eve") as eve:
            assert held not in (await eve.get("/v1/status")).text
            assert held not in (await eve.get("/info")).text
            assert (await eve.delete(f"/v1/leases/{held}")).status_code == 404
        async with client_of(one.url, "key-of-ada") as direct:  # the node itself accepts its node key only
            assert (await direct.get("/v1/status")).status_code == 401
        with pytest.raises(UsageError, match="refuses"):
            async with joined(one.engine, url, one.url, "key-of-ada"):
                pass


@pytest.mark.parametrize(
    ("url", "peer", "networks", "reached"),
    [
        ("http://127.0.0.1:7001", "127.0.0.1", (), "http://127.0.0.1:7001"),
        ("http://10.0.0.7:7001/", "10.0.0.7", (), "http://10.0.0.7:7001"),
        ("http://10.0.0.7:7001", "::ffff:10.0.0.7", (), "http://10.0.0.7:7001"),
        ("http://0.0.0.0:7001", "10.0.0.7", (), "http://10.0.0.7:7001"),
        ("http://10.0.0.8:7001", "10.0.0.7", ("10.0.0.0/24",), "http://10.0.0.8:7001"),
        ("http://[fd00::8]:7001", "10.0.0.7", ("fd00::/8",), "http://[fd00::8]:7001"),
    ],
)
async def test_a_node_is_reached_where_it_joins_from_or_in_permitted_networks(url, peer, networks, reached):
    assert await resolve_node_url(url, peer, [ip_network(each) for each in networks]) == reached


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://127.0.0.1:8080",
        "http://localhost:8080",
        "http://[::1]:8080",
        "http://[::ffff:127.0.0.1]:8080",
        "http://2130706433:80",
        "http://10.0.0.8:7001",
        "http://user@10.0.0.7:7001",
        "http://10.0.0.7:7001/v1/leases?x=",
        "http://10.0.0.7:99999",
        "file:///etc/passwd",
        "gopher://10.0.0.7:70",
        "10.0.0.7:7001",
    ],
)
async def test_the_master_sends_no_requests_elsewhere(url):
    with pytest.raises((UsageError, RequestRefused)):
        await resolve_node_url(url, "10.0.0.7", [])


async def test_dns_cannot_move_a_node_after_the_check(monkeypatch):
    """The master connects to the checked address."""

    async def getaddrinfo(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await resolve_node_url("http://node.test:7001", "10.0.0.7", []) == "http://10.0.0.7:7001"


# --- bodies ----------------------------------------------------------------------------------------


async def app(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


async def posted(limit, parts, headers=()):
    """Post a body in parts; return the status, and how many parts were read."""
    given, sent = iter(parts), []
    read = 0

    async def receive():
        nonlocal read
        part = next(given, None)
        if part is None:
            await asyncio.Event().wait()
        read += 1
        return {"type": "http.request", "body": part, "more_body": part != b""}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": list(headers), "method": "POST", "path": "/"}
    await limit(scope, receive, send)
    return sent[0]["status"], read


async def test_bodies_have_a_limit_a_time_and_a_sum():
    limit = BodyLimit(app, limit=100, total=150, seconds=0.1)
    assert await posted(limit, [b"x" * 60, b"y" * 40, b""]) == (200, 3)
    assert await posted(limit, [b"x" * 60] * 99) == (413, 2 + 7)  # 400 bytes are read and dropped
    assert (await posted(limit, [b""], [(b"content-length", b"101")]))[0] == 413
    assert (await posted(limit, [b"x" * 10]))[0] == 408
    both = await asyncio.gather(*(posted(limit, [b"x" * 90]) for _ in range(2)))
    assert sorted(status for status, _ in both) == [408, 503]
    assert await posted(limit, [b"x" * 100, b""]) == (200, 2)  # nothing is held any more


async def test_fields_of_a_request_have_a_limit_and_a_time(tmp_path, monkeypatch):
    async with serve_viewer(tmp_path) as url:
        port = httpx.URL(url).port

        async def answer(*parts):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionError):
                for part in (b"GET / HTTP/1.1\r\nHost: localhost\r\n", *parts):
                    writer.write(part)
                    await writer.drain()
            received = await reader.read()
            writer.close()
            return received

        large = [b"X-A: " + b"a" * size + b"\r\n" for size in (*[9000] * 7, 3000)]  # nothing is left unread
        assert (await answer(*large)).startswith(b"HTTP/1.1 400")
        whole = await answer(b"Connection: close\r\n", b"X-A: " + b"a" * 9000 + b"\r\n\r\n")
        assert whole.startswith(b"HTTP/1.1 200")
        async with httpx.AsyncClient(trust_env=False) as client:  # the time starts anew with each request
            for _ in range(2):
                assert (await client.get(f"{url}/")).status_code == 200
        monkeypatch.setattr(LimitedConnection, "head_seconds", 0.1)
        assert await answer(b"X-A: a\r\n") == b""  # the blank line never arrives


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_large_body_is_refused_by_the_server(client):
    answer = await client.post("/v1/batch/step", content=b" " * (BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["kind"]) == (413, FailureKind.TOO_LARGE)


# --- a flood of requests without a key -------------------------------------------------------------


@pytest.fixture
def keyed():
    return make_app(Engine("http://127.0.0.1:1"), KEYS)


def anonymous(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_the_schema_and_its_page_are_written_once(keyed, monkeypatch):
    written = []
    monkeypatch.setattr(keyed, "openapi", lambda of=keyed.openapi: written.append(1) or of())
    async with anonymous(keyed) as client:
        for path in ("/openapi.json", "/docs"):
            answers = [await client.get(path) for _ in range(3)]
            assert {each.status_code for each in answers} == {200}
            assert len({each.content for each in answers}) == 1
    assert len(written) <= 2


async def test_simultaneous_health_checks_ask_the_replay_server_once(keyed, monkeypatch):
    calls = []
    answered = asyncio.Event()

    async def proxy_ready(seconds):
        calls.append(seconds)
        await answered.wait()
        return True

    monkeypatch.setattr(keyed.state.engine.vector, "proxy_ready", proxy_ready)
    async with anonymous(keyed) as client:
        checks = [asyncio.ensure_future(client.get("/ready")) for _ in range(20)]
        assert await poll(lambda: bool(calls), timeout=30)
        checks[0].cancel()  # a client that leaves does not end the check of the others
        answered.set()
        answers = [await each for each in checks[1:]]
        assert {each.status_code for each in answers} == {200}
        assert len(calls) == 1
        assert (await client.get("/ready")).status_code == 200
    assert len(calls) == 2


# --- shutdown --------------------------------------------------------------------------------------

STUCK = """
import re, sys
from stillweb.env.tasks import evaluators

def score(self, evidence):
    print("scoring", file=sys.stderr, flush=True)
    re.match("(a+)+$", "a" * 64 + "b")

for each in vars(evaluators).values():
    if isinstance(each, type) and "score" in vars(each):
        each.score = score
from stillweb.cli import main
from stillweb.server import serving
serving._GRACE_SECONDS = 0.2
main()
"""


@asynccontextmanager
async def started(code, *arguments):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "serve", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_sigterm_ends_the_server_while_a_scorer_never_ends(replay, tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(Path(__file__).with_name("stuck_task.json").read_text())
    arguments = (replay.url, "--port", "0", "--tasks", str(file), "--drain-seconds", "0.1", "--json")
    async with started(STUCK, *arguments) as process:
        printed = b""
        while not printed.endswith(b"}\n"):
            printed += await process.stdout.readline()
        async with httpx.AsyncClient(base_url=json.loads(printed)["url"], timeout=60) as client:
            held = (await client.post("/v1/leases", json={"task_id": "named"})).json()["lease"]
            action = {"action": {"action": "terminate"}}
            stepping = asyncio.ensure_future(client.post(f"/v1/leases/{held}/step", json=action))
            assert b"scoring" in await process.stderr.readline()
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await poll(lambda: process.returncode is not None, timeout=30)
            assert time.monotonic() - began < 20
            stepping.cancel()
            await asyncio.wait([stepping])
    assert process.returncode != 0
