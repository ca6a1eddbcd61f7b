"""Others' protocols, by clients written from their documentation: Omniboxes, OpenEnv, verl-tool."""

from __future__ import annotations

import io
import json

import httpx
import pytest
from PIL import Image
from served_pages import bid, filling
from small_site import ORIGIN
from websockets.asyncio.client import connect

from stillweb.polling import poll

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"


class Omniboxes:
    """A client as WebGym's documentation has it: the master's URL, one key, one instance."""

    def __init__(self, url):
        self.http = httpx.AsyncClient(
            base_url=url, headers={"x-api-key": "default_key"}, timeout=60, trust_env=False
        )
        self.instance = {}

    async def get(self):
        answer = await self.http.post("/get", params={"lifetime_mins": 60})
        if answer.status_code == 200:
            self.instance = answer.json()
        return answer

    async def execute(self, **command):
        return await self.http.post("/execute", json={**self.instance, **command})

    async def screenshot(self, mode):
        answer = await self.http.get("/screenshot", params={**self.instance, "interaction_mode": mode})
        assert answer.headers["content-type"] == "image/png"
        return answer.content

    async def ask(self, what):
        return await self.http.get(what, params=self.instance)

    async def reset(self):
        return await self.http.post("/reset", params=self.instance)


@pytest.mark.parametrize("prefix", ["", "/omniboxes"])
async def test_an_omniboxes_client_browses_by_marks_and_by_coordinates(rollouts, prefix):
    box = Omniboxes(rollouts.url + prefix)
    async with box.http:
        assert set((await box.get()).json()) == {"instance_id", "node"}
        assert (await box.execute(click_coords={"x": 1, "y": 1})).status_code == 409  # no page yet
        assert (await box.execute(visit_page={"url": HOME})).json() == {"status": "success"}
        metadata = (await box.ask("/metadata")).json()
        picture = Image.open(io.BytesIO(await box.screenshot("coordinates")))
        assert picture.size == (metadata["width"], metadata["height"])
        assert (metadata["title"], metadata["url"]) == ("Home", HOME)
        assert (await box.execute(get_page_metadata={})).json() == {"title": "Home", "url": HOME}
        await box.screenshot("set_of_marks")
        marks = (await box.execute(get_screenshot_info={})).json()
        field = next(
            each for each, rect in marks["interactive_regions"].items() if rect["aria-name"] == "Name"
        )
        mark = next(number for number, each in marks["id_mapping"].items() if each == field)
        assert (
            await box.execute(fill_id={"id": mark, "value": "Ada", "press_enter": False})
        ).status_code == 200
        rect = (await box.execute(get_interactive_rects={})).json()[field]["rects"][0]
        middle = {"x": rect["x"] + rect["width"] / 2, "y": rect["y"] + rect["height"] / 2}
        more = {"value": " L", "press_enter": False}
        assert (await box.execute(fill_coords={**middle, **more})).status_code == 200
        assert "textbox 'Name' value='Ada L'" in await axtree(rollouts, box)
        text = (await box.execute(get_webpage_text={"n_lines": 1})).json()["text"]
        assert text == "Small site"
        assert (await box.execute(visit_page={"url": ORIGIN + "/second"})).json() == {"status": "success"}
        assert (await box.execute(back={})).json() == {"status": "success"}
        assert (await box.ask("/metadata")).json()["title"] == "Home"
        assert (await box.ask("/probe")).json()["status"] == "success"
        node = (await box.http.get("/info")).json()["nodes"][0]
        assert (node["hash"], node["capacity"], node["available"]) == (box.instance["node"], 4, 3)
        assert (await box.reset()).json() == {"status": "success"}
        assert (await box.ask("/probe")).status_code == 400


async def test_omniboxes_clients_are_reported_what_is_wrong(rollouts):
    box = Omniboxes(rollouts.url)
    async with box.http:
        await box.get()
        for command in ({}, {"back": {}, "tab_and_enter": {}}, {"solve_captcha": {}}):
            wrong = await box.execute(**command)
            assert (wrong.status_code, wrong.json()["status"]) == (400, "error")
        absent = await box.execute(visit_page={"url": ORIGIN + "/absent"})
        assert (absent.status_code, absent.json()["error"]["kind"]) == (422, "task_error")
        assert (await box.execute(visit_page={"url": HOME})).status_code == 200
        unknown = await box.execute(click_id={"id": "a999"})
        assert (unknown.status_code, "a999" in unknown.json()["message"]) == (400, True)
        refused = await box.execute(click_id={"id": bid((await axtree(rollouts, box)), "Off")})
        assert (refused.status_code, refused.json()["status"]) == (200, "failed")
        others = [(await Omniboxes.get(box)).status_code for _ in range(4)]
        assert others == [200, 200, 200, 503]
        for lease in rollouts.engine.leases.table.running:
            await box.http.post("/reset", params={"instance_id": lease.id, "node": "stillweb"})
        box.instance["node"] = "another"
        assert (await box.ask("/probe")).status_code == 400


async def axtree(rollouts, box):
    return (
        await rollouts.engine.observe(rollouts.engine.leases.find(box.instance["instance_id"]), ["axtree"])
    )["axtree"]


class Socket:
    """A client of OpenEnv's WebSocket."""

    def __init__(self, connection):
        self.connection = connection

    async def say(self, kind, **data):
        await self.connection.send(json.dumps({"type": kind, "data": data} if data else {"type": kind}))
        return json.loads(await self.connection.recv())


@pytest.mark.parametrize("path", ["/ws", "/openenv/ws"])
async def test_an_openenv_client_plays_over_its_socket(rollouts, path):
    async with connect(rollouts.url.replace("http", "ws") + path, max_size=None) as connection:
        socket = Socket(connection)
        began = await socket.say("reset", seed=3)  # which draws the one task there is
        assert began["data"]["metadata"]["info"]["task"] == "named"
        assert (began["type"], began["data"]["done"], began["data"]["reward"]) == ("observation", False, None)
        assert began["data"]["observation"]["goal"] == "Say Ada"  # the model sees nothing else
        filled = await socket.say("step", **filling(began["data"]["observation"]), metadata={})
        assert filled["data"]["metadata"]["info"]["action"]["status"] == "ok"
        assert filled["data"]["observation"]["goal"] == "Say Ada"
        assert (await socket.say("state"))["data"]["step_count"] == 1
        end = await socket.say("step", action="terminate")
        assert (end["data"]["reward"], end["data"]["done"]) == (1.0, True)
        over = await socket.say("step", action="terminate")
        assert (over["type"], over["data"]["code"], over["data"]["kind"]) == (
            "error",
            "VALIDATION_ERROR",
            "reset_needed",
        )
        assert (await socket.say("reset", url=ORIGIN + "/absent"))["data"]["code"] == "EXECUTION_ERROR"
        assert (await socket.say("dance"))["data"]["code"] == "UNKNOWN_TYPE"
        await connection.send("{")
        assert json.loads(await connection.recv())["data"]["code"] == "INVALID_JSON"
    assert await poll(lambda: not rollouts.engine.leases.table.leased, timeout=30)


async def test_openenv_over_http(client):
    began = (await client.post("/openenv/reset", json={"task_id": "named"})).json()
    episode_id = began["metadata"]["episode_id"]
    assert began["observation"]["goal"] == "Say Ada"
    action = filling(began["observation"])
    step = {"episode_id": episode_id, "action": action, "request_id": "1"}
    assert [(await client.post("/openenv/step", json=step)).status_code for _ in range(2)] == [200, 200]
    state = (await client.get("/openenv/state", params={"episode_id": episode_id})).json()
    assert (state["episode_id"], state["step_count"]) == (episode_id, 1)
    end = await client.post(
        "/openenv/step", json={**step, "action": {"action": "terminate"}, "request_id": "2"}
    )
    assert (end.json()["reward"], end.json()["done"]) == (1.0, True)
    assert "click" in (await client.get("/openenv/schema")).json()["action"]["properties"]["action"]["enum"]
    assert (await client.get("/openenv/metadata")).json()["name"] == "stillweb"
    assert (await client.post("/openenv/reset", json={"url": ORIGIN + "/absent"})).status_code == 422
    sessions = (await client.get("/v1/status")).json()["sessions"]
    assert [each["lease"] for each in sessions if each["lease"]] == [episode_id]


async def test_a_verl_tool_batch_is_observed_item_by_item(client):
    async def observe(actions, **fields):
        body = {"trajectory_ids": ["t1", "t2"], "actions": actions, **fields}
        answer = await client.post("/verl-tool/get_observation", json=body)
        return answer.json() if answer.status_code == 200 else answer

    tasks = [{"task_id": "named"}, {"url": ORIGIN + "/absent"}]
    began = await observe(["", ""], extra_fields=tasks)
    assert began["valids"] == [True, False]
    assert began["dones"] == [False, True]
    assert began["observations"][1]["error"]["kind"] == "task_error"
    seen = began["observations"][0]
    assert seen["image"][0].startswith("data:image/png;base64,")
    fill = json.dumps(filling({"axtree": seen["obs"]}))
    filled = await observe([fill, "no action"], extra_fields=[{}, {"url": HOME}])
    assert (filled["dones"], filled["valids"]) == ([False, False], [True, False])
    ended = await observe(['{"action": "terminate"}', ""], finish=[False, True])
    assert (ended["dones"], ended["valids"]) == ([True, True], [True, True])
    assert ended["observations"][0]["reward"] == 1.0
    await observe(["", ""], finish=[True, True])
    assert (await client.get("/v1/status")).json()["queues"]["allocate"]["under_way"] == 0
    assert (await observe([""], finish=[True, True])).status_code == 400
    assert (await client.get("/verl-tool/health")).json()["status"] == "healthy"
