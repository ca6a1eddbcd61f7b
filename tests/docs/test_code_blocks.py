"""Python blocks of the documentation run as printed, on a replay of the tutorial's shop.

Names that a page leaves to its reader (`task`, `model`, `Env` of `stillweb.env`) have a value here. Blocks
for packages of trainers run in `make integration`, the block of docs/how-to/pytest.md in tests/testing. The
block of docs/how-to/ray.md needs an object store, and only compiles (test_pages.py).
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import stillweb.env
from stillweb.env import Env, EnvOptions, Task, VectorEnv, load_tasks
from stillweb.server.options import ServeOptions
from stillweb.server.serving import serve_rollouts

REPO = Path(__file__).resolve().parents[2]
HOME = "http://lamps.test/"
TASKS = load_tasks(REPO / "examples" / "tutorial" / "tasks.yaml")
ANSWER = {"action": "terminate", "answer": "$9.85"}

pytestmark = pytest.mark.browser


def _block(page: str, containing: str) -> str:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", (REPO / page).read_text("utf-8"))
    return next(block for block in blocks if containing in block)


class Reader:
    """Names that a reader has: a replay, tasks, a model; `names` collects the definitions of the blocks."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.stack = stack
        self.names: dict[str, Any] = {name: getattr(stillweb.env, name) for name in stillweb.env.__all__}
        self.names |= {"task": TASKS[0], "other": TASKS[1], "tasks": TASKS, "url": url, "proxy": url}

    async def env(self) -> Env:
        """Start an environment at level `exact` on the page of the first task."""
        self.names["env"] = env = await self.stack.enter_async_context(Env(self.url, level="exact"))
        self.names["observation"], self.names["info"] = await env.reset(task=TASKS[0])
        return env

    def bid(self, name: str) -> str:
        return str(next(node.bid for node in self.names["observation"].nodes if node.name == name))

    async def run(self, page: str, containing: str, **replaced: str) -> dict[str, Any]:
        """Run a block with the replay's address, this machine's browser, and other replacements."""
        text = _block(page, containing).replace("http://127.0.0.1:8080", self.url)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if inspect.isawaitable(result):
            await result
        return self.names


@pytest.fixture
async def reader(replay: str) -> AsyncIterator[Reader]:
    async with AsyncExitStack() as stack:
        yield Reader(replay, stack)


# --- whole programs --------------------------------------------------------------------------------


def test_the_episode_of_the_tutorial(replay, capsys):
    code = _block("docs/tutorial/index.md", "Night light").replace("http://127.0.0.1:8080", replay)
    exec(code, {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "[a8] link 'Night light'" in printed
    assert "http://lamps.test/lamp/night ok 0 misses" in printed


def test_the_episode_of_the_readme(replay, capsys):
    code = _block("README.md", "async def main").replace("http://127.0.0.1:8080", replay)
    code = code.replace('"site"', '"lamps"').replace("https://site.example/", HOME)
    exec(code.replace('"a12"', '"a6"'), {"__name__": "__main__"})
    assert "link 'Desk lamp'" in capsys.readouterr().out


async def test_the_training_of_the_tutorial(replay, train, monkeypatch, capsys):
    monkeypatch.setattr(train, "ROUNDS", 1)
    monkeypatch.setattr(train, "GROUP", 2)
    await train.main(replay)
    assert re.match(r"round 0: success +\d+% of 2 episodes", capsys.readouterr().out)


# --- environments ----------------------------------------------------------------------------------


async def test_forms_of_actions(reader):
    env = await reader.env()
    statuses = []
    step = env.step

    async def counted(action):
        result = await step(action)
        statuses.append(result[4]["action"]["status"])
        return result

    env.step = counted
    await reader.run("docs/reference/actions.md", '"enter": True', **{"a12": reader.bid("Search")})
    assert statuses == ["not_recorded", *["ok"] * 3, "ok"]


async def test_forms_of_observations(reader):
    names = await reader.run("docs/reference/observations.md", "with_clickable")
    assert "Night light" in names["once"].body("compact").decode()
    assert names["observation"].digests.keys() == {"axtree", "som"}


async def test_perturbed_episodes(reader):
    names = await reader.run("docs/how-to/perturb.md", "perturb_seed=3")
    assert len(names["info"]["perturbation"]["digest"]) == 64
    await reader.env()
    names = await reader.run("docs/how-to/perturb.md", "full.at(")
    assert names["info"]["perturbation"]["digest"]


async def test_a_stored_episode(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = await reader.stack.enter_async_context(
        Env(reader.url, observe=["screenshot"], options=EnvOptions(trajectories=tmp_path))
    )
    _, info = await env.reset(task=TASKS[0])
    for action in (*[{"action": "scroll", "dy": 9}] * 3, ANSWER):
        await env.step(action)
    reader.names |= {"path": tmp_path / info["episode"], "Path": Path}
    await reader.run("docs/how-to/debug.md", "step3.png")
    assert (tmp_path / "step3.png").read_bytes().startswith(b"\x89PNG")
    await reader.run("docs/reference/trajectories.md", "trajectories_in")


async def test_a_prompt_for_an_own_loop(reader):
    await reader.env()

    async def model(messages: list[dict[str, Any]]) -> str:
        assert "Night light" in messages[-1]["content"]
        return json.dumps(ANSWER)

    class Tokenizer:
        encode = staticmethod(str.split)

    reader.names |= {"model": model, "tokenizer": Tokenizer}
    names = await reader.run("docs/how-to/rollout.md", "context.add_reply")
    assert (names["reward"], names["terminated"]) == (1.0, True)


async def test_a_session_of_its_own(reader):
    names = await reader.run("docs/how-to/sessions.md", "open_session", site="lamps")
    assert names["session"].proxy.startswith("http://127.0.0.1:")


def test_tasks_of_webarena_are_placed_on_the_recorded_sites(tmp_path):
    row = {
        "task_id": 1,
        "intent": "What does it cost?",
        "start_url": "__SHOPPING__/lamp",
        "sites": ["shopping"],
    }
    answer = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "$9.85"}}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([row | {"eval": answer}]), "utf-8")
    names = {"load_tasks": load_tasks, "path": path}
    text = _block("docs/reference/tasks.md", "SHOPPING").replace("...", '"https://map.example"')
    exec(text, names)
    (task,) = names["tasks"]
    assert (task.start_url, task.collection) == ("https://shop.example/lamp", "shop")


# --- vectors ---------------------------------------------------------------------------------------


async def test_sessions_of_a_vector(reader):
    names = await reader.run("docs/how-to/vector.md", "vector.step(3", **{", 16,": ", 4,", "a12": "a8"})
    assert names["info"]["action"]["status"] == "ok"


async def test_a_rollout_of_a_vector(reader, capsys):
    async def model(goal: str, history: list[str]) -> Any:
        assert "Night light" in history[0]
        return ANSWER

    vector = await reader.stack.enter_async_context(VectorEnv(reader.url, 2, level="exact"))
    reader.names |= {"model": model, "vector": vector}
    await reader.run("docs/how-to/vector.md", "async for rollout")
    assert sorted(capsys.readouterr().out.splitlines()) == ["basket ok 0.0", "price ok 1.0"]


async def test_prepared_starts(reader):
    await reader.run("docs/how-to/vector.md", "vector.prepare", **{", 8,": ", 1,"})


async def test_forks(reader):
    async def play(fork: Env) -> float:
        return (await fork.step(ANSWER))[1]

    await reader.env()
    first = {"action": "click", "bid": reader.bid("Night light")}
    reader.names |= {"asyncio": asyncio, "first": first, "play": play}
    assert (await reader.run("docs/how-to/vector.md", "env.fork(4)"))["ends"] == [1.0] * 4


async def test_gymnasium(replay):
    text = _block("docs/how-to/vector.md", "StillwebVectorEnv").replace("http://127.0.0.1:8080", replay)

    def play() -> None:  # in a thread: both interfaces block
        names: dict[str, Any] = {"tasks": TASKS}
        exec(text.replace(", 16,", ", 2,"), names)
        with closing(names["env"]) as env, closing(names["envs"]) as envs:
            assert env.reset()[0]["url"] == HOME
            assert list(envs.reset()[0]["url"]) == [HOME, HOME]

    await asyncio.to_thread(play)


# --- rollout server --------------------------------------------------------------------------------


@pytest.fixture
async def server(replay: str) -> AsyncIterator[str]:
    tasks = {"t1": Task("t1", TASKS[0].goal, HOME, evaluation=TASKS[0].evaluation)}
    async with serve_rollouts(replay, ServeOptions(sessions=1, tasks=tasks, drain_seconds=0.0)) as server:
        yield server.url


async def test_a_lease_by_the_client(server, reader, capsys):
    await reader.run(
        "docs/how-to/trainers.md", "client.lease", **{"http://127.0.0.1:7000": server, "a12": "a8"}
    )
    assert "Night light" in capsys.readouterr().out


async def test_a_lease_by_plain_http(server, reader):
    numbers = count()
    reader.names |= {
        "policy": lambda observation: ANSWER,
        "next_id": lambda: f"call-{next(numbers)}",
    }
    text = _block("docs/how-to/rollout-server.md", "next_id()").replace("http://127.0.0.1:7000", server)
    await asyncio.to_thread(exec, text, reader.names)
    assert reader.names["step"].json()["reward"] == 1.0
