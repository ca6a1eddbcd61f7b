"""NeMo Gym's servers and collection play tasks; a lost rollout has no row until it is resumed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvicorn
import yaml
from aiohttp import ClientResponseError
from steps import GIVEN, Actor, lose_leases, report

from stillweb.env import action_schema
from stillweb.polling import poll

FOLDER = Path(tempfile.mkdtemp(dir=Path.cwd()))
NAMES = ("policy_model", "stillweb", "stillweb_agent")
LISTENERS = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
CLICKS, FILLS = GIVEN["tasks"]


def configured() -> dict:
    """Return the configuration of the example, with addresses, as NeMo Gym passes it to its servers."""
    config = yaml.safe_load((Path(GIVEN["examples"]) / "nemo_gym" / "stillweb.yaml").read_text())
    config["policy_model"] = {"responses_api_models": {"policy": {"entrypoint": "app.py"}}}
    for name, listener in LISTENERS.items():
        ((_, kinds),) = config[name].items()
        ((_, instance),) = kinds.items()
        instance["host"], instance["port"] = listener.getsockname()
    given = {"source": {"server": GIVEN["rollouts"]}, "max_turns": 6, "max_observation_length": 100_000}
    config["stillweb"]["resources_servers"]["stillweb"].update(given)
    with socket.create_server(("127.0.0.1", 0)) as free:
        config["head_server"] = {"host": "127.0.0.1", "port": free.getsockname()[1]}
    return config


os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(configured())

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel  # noqa: E402
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming  # noqa: E402
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper  # noqa: E402
from nemo_gym.server_utils import HeadServer, ServerClient, SimpleServer  # noqa: E402
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent  # noqa: E402

from stillweb.trainers.nemo_gym import StillwebServer  # noqa: E402


class Policy(SimpleResponsesAPIModel):
    """Follows the plan of the task whose goal it is shown, by tool calls if it has a tool."""

    config: BaseResponsesAPIModelConfig
    silent: bool = False
    lost: bool = False

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        pages = [getattr(each, "output", None) or getattr(each, "content", "") for each in body.input]
        pages = [page for each, page in zip(body.input, pages, strict=True) if is_page(each)]
        if self.silent:
            return answered("Let me think.", len(pages), tool=False)
        if self.lost and len(pages) > 1:
            await asyncio.to_thread(lose_leases)
        actor = Actor(next(name for name, goal in GIVEN["goals"].items() if goal in pages[0]))
        for page in pages:
            action = actor.act((page.partition("Goal: ")[2] or page).partition("\n\n")[2])
        return answered(json.dumps(action), len(pages), tool=bool(body.tools))

    async def chat_completions(self, body):
        raise NotImplementedError


def is_page(item: object) -> bool:
    return getattr(item, "role", "") == "user" or getattr(item, "type", "") == "function_call_output"


def answered(text: str, number: int, *, tool: bool) -> NeMoGymResponse:
    call = {"type": "function_call", "call_id": f"c{number}", "name": "browser", "arguments": text}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    return NeMoGymResponse(
        id="r", created_at=0, model="m", object="response", output=[call if tool else said],
        parallel_tool_calls=False, tool_choice="auto", tools=[],
    )  # fmt: skip


@asynccontextmanager
async def serving(kind: type[SimpleServer], name: str):
    """Serve one of NeMo Gym's servers, set up as its `run_webserver` does, which would start Ray."""
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    server = kind(
        config=kind.load_config_from_global_config(), server_client=ServerClient.load_from_global_config()
    )
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    runner = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(runner.serve(sockets=[LISTENERS[name]]))
    try:
        yield server
    finally:
        runner.should_exit = True
        await serving


def row(task: str, *tools: dict) -> dict:
    return {"responses_create_params": {"input": [], "tools": list(tools)}, "task_id": task}


async def collected(name: str, rows: list[dict], **options: object) -> dict:
    given, rollouts = FOLDER / f"{name}.jsonl", FOLDER / f"{name}_rollouts.jsonl"
    given.write_text("".join(json.dumps(each) + "\n" for each in rows))
    config = RolloutCollectionConfig(
        agent_name="stillweb_agent", input_jsonl_fpath=str(given), output_jsonl_fpath=str(rollouts), **options
    )
    error = ""
    try:
        await RolloutCollectionHelper().run_from_config(config)
    except ClientResponseError as failure:
        error = f"{failure.status} {failure.response_content.decode()}"
    stored = [json.loads(line) for line in rollouts.read_text().splitlines()]
    metrics = FOLDER / f"{name}_rollouts_aggregate_metrics.json"
    agents = json.loads(metrics.read_text()) if metrics.exists() else []
    return {
        "error": error,
        "rewards": [each["reward"] for each in stored],
        "truncated": [each["truncated"] for each in stored],
        "items": [sorted({item["type"] for item in each["response"]["output"]}) for each in stored],
        "means": [each["agent_metrics"]["mean/reward"] for each in agents],
    }


async def main() -> None:
    head, thread, _ = HeadServer.run_webserver()
    assert await poll(lambda: head.started, timeout=20)
    tool = {"type": "function", "name": "browser", "parameters": action_schema(), "strict": False}
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(serving(Policy, "policy_model"))
        await stack.enter_async_context(serving(StillwebServer, "stillweb"))
        await stack.enter_async_context(serving(GymnasiumAgent, "stillweb_agent"))
        result = {"played": await collected("played", [row(CLICKS), row(FILLS, tool)])}
        policy.silent = True
        result["silent"] = await collected("silent", [row(CLICKS)])
        policy.silent, policy.lost = False, True
        result["lost"] = await collected("lost", [row(CLICKS)])
        policy.lost = False
        result["resumed"] = await collected("lost", [row(CLICKS)], resume_from_cache=True)
    head.should_exit = True
    thread.join()
    report(result)


asyncio.run(main())
