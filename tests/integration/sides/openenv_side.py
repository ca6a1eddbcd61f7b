"""Drives OpenEnv's own clients: on `stillweb serve`, and on a server of OpenEnv's with our `Environment`."""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_app
from steps import GIVEN, Actor, report

from stillweb.trainers.openenv import StillwebAction, StillwebObservation, environment

TASK = GIVEN["tasks"][0]


async def on_stillweb() -> dict:
    actor = Actor(TASK)
    async with GenericEnvClient(base_url=GIVEN["rollouts"] + "/openenv") as env:
        result = await env.reset(task_id=TASK)
        first, rewards = result.observation, []
        while not result.done:
            result = await env.step(actor.act(result.observation["axtree"]))
            rewards.append(result.reward)
        state = await env.state()
    return {"rewards": rewards, "url": first["url"], "state": state}


def on_openenv(url: str) -> dict:
    """By the synchronous client, which OpenEnv makes of the same class."""
    episodes = []
    for task in GIVEN["tasks"]:
        actor = Actor(task)
        with GenericEnvClient(base_url=url).sync() as env:
            result = env.reset(task_id=task)
            rewards = []
            while not result.done:
                text = result.observation["text"].partition("\n\n")[2]
                result = env.step(actor.act(text))
                rewards.append(result.reward)
            episodes.append({"rewards": rewards, "goal": result.observation["goal"], "state": env.state()})
    return {"episodes": episodes, "refused": refused(url)}


def refused(url: str) -> str:
    """Return the error for an unknown task; the server reports it as an error and not as an observation."""
    with GenericEnvClient(base_url=url).sync() as env:
        try:
            env.reset(task_id="no such task")
        except Exception as error:  # noqa: BLE001 - whatever the client makes of it
            return str(error)
    return ""


class Served(threading.Thread):
    """A server of OpenEnv's."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        make = environment({"server": GIVEN["rollouts"]})
        app = create_app(
            make, StillwebAction, StillwebObservation, env_name="stillweb", max_concurrent_envs=4
        )
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def run(self) -> None:
        self.server.run(sockets=[self.listener])


server = Served()
server.start()
port = server.listener.getsockname()[1]
report({"stillweb": asyncio.run(on_stillweb()), "openenv": on_openenv(f"http://127.0.0.1:{port}")})
