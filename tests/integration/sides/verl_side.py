"""Drives verl's own classes; runs in verl's environment. Prints one JSON object."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import hydra
import yaml
from steps import GIVEN, Actor, report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import initialize_tools_from_config
from verl.utils.import_utils import load_extern_object
from verl.workers.rollout.replica import TokenOutput

import stillweb.trainers.verl.agent_loop  # noqa: F401 - registers it
from stillweb.errors import InfraError
from stillweb.polling import poll

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and a chat template: as much of a tokenizer as a loop needs."""
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = TEMPLATE
    return fast


def config(tools: str | None = None) -> Any:
    from omegaconf import OmegaConf

    multi_turn = {
        "max_user_turns": 10,
        "max_assistant_turns": 10,
        "max_parallel_calls": 1,
        "max_tool_response_length": 100_000,
        "tool_response_truncate_side": "middle",
        "format": "hermes",
        "tool_config_path": tools,
    }
    rollout = {
        "prompt_length": 100_000,
        "response_length": 200_000,
        "full_determinism": True,
        "multi_turn": multi_turn,
    }
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})


def tools_of(folder: Path, **more: Any) -> list[Any]:
    """Return the tools as verl makes them from YAML."""
    path = folder / "tools.yaml"
    config = {"type": "native", "source": {"server": GIVEN["rollouts"]}, "max_tool_response_length": 100_000}
    entry = {"class_name": "stillweb.trainers.verl.tool.BrowserTool", "config": {**config, **more}}
    path.write_text(yaml.safe_dump({"tools": [entry]}))
    return initialize_tools_from_config(str(path))


def made(target: Any, server: Any, tools: list[Any], fast: Any = None) -> Any:
    """Make a loop as AgentLoopWorker does: by hydra, of its registry's entry."""
    built = config()
    return hydra.utils.instantiate(
        config=target,
        trainer_config=DictConfigWrap(built),
        server_manager=server,
        tokenizer=fast or tokenizer(),
        processor=None,
        dataset_cls=SimpleNamespace,
        data_config=DictConfigWrap(built.data),
        tools=ToolListWrap(tools),
    )


def row(task: str) -> dict[str, Any]:
    return {"browser": {"create_kwargs": {"task_id": task}}}


def data(task: str, name: str) -> AgentData:
    return AgentData([], None, None, None, None, {}, name, row(task))


async def per_call(loop: ToolAgentLoop, task: str) -> dict[str, Any]:
    """A trajectory by `_call_tool` alone."""
    agent_data, actor = data(task, f"trajectory-{task}"), Actor(task)
    responses: list[Any] = []

    async def call(action: dict[str, Any]) -> Any:
        function = FunctionCall(name="browser", arguments=json.dumps(action))
        responses.append(await loop._call_tool(function, agent_data.tools_kwargs, agent_data))
        return responses[-1]

    response, _, _ = await call({"action": "click", "bid": "a1"})  # blind: the page is shown instead
    first = response.text
    while agent_data.extra_fields.get("stillweb_reward") is None and len(responses) < 12:
        await call(actor.act(responses[-1][0].text))
    steps = len(responses) - 1
    after, reward, _ = await call({"action": "click", "bid": "a1"})
    bad = await loop._call_tool(FunctionCall(name="browser", arguments="{"), {}, agent_data)
    return {
        "reward": agent_data.extra_fields["stillweb_reward"],
        "rewards": [each[1] for each in responses],
        "first": first[:200],
        "after": after.text,
        "after_reward": reward,
        "steps": steps,
        "bad": bad[0].text,
        "pictures": [picture.size for picture in response.image],
        "extra": agent_data.extra_fields,
    }


async def older(tool: Any, task: str) -> dict[str, Any]:
    """A trajectory by create, execute, calc_reward and release, once each but execute."""
    actor = Actor(task)
    name, response = await tool.create("chosen", task_id=task)
    for _ in range(10):
        action = actor.act(response.text)
        response, _, metrics = await tool.execute(name, action)
        if action["action"] == "terminate":
            break
    reward = await tool.calc_reward(name)
    await tool.release(name)
    return {"reward": reward, "metrics": metrics}


class Server:
    """In place of an inference server: says what a script says, as token ids."""

    def __init__(self, task: str, fast: Any, *, bare: bool = False, die: Any = None) -> None:
        self.task, self.fast, self.bare, self.die = task, fast, bare, die
        self.actor = Actor(task)
        self.prompts: list[list[int]] = []

    async def generate(self, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        self.prompts.append(prompt_ids)
        if self.die and len(self.prompts) == 2:
            await self.die()
        prompt = self.fast.decode(prompt_ids)
        if prompt.count("Page: ") == 1:
            self.actor = Actor(self.task)
        # The page that was shown last; what stands after it is the template's.
        text = prompt.rpartition("Page: ")[2].partition("<|im_end|>")[0]
        said = json.dumps(action := self.actor.act(text.partition("\n\n")[2]))
        if not self.bare:
            said = f"<tool_call>{json.dumps({'name': 'browser', 'arguments': action})}</tool_call>"
        ids = [*self.fast.encode(said, add_special_tokens=False), self.fast.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


async def looped(task: str, *, bare: bool = False, die: Any = None, **more: Any) -> dict[str, Any]:
    """A trajectory by the whole agent loop."""
    fast = tokenizer()
    source = {"server": GIVEN["rollouts"]}
    target = {**agent_loop._agent_loop_registry["stillweb_agent"], "source": source, **more}
    loop = made(target, Server(task, fast, bare=bare, die=die), [], fast)
    prompt = [{"role": "user", "content": "Reach the goal."}]
    output = await loop.run({}, priority=7, raw_prompt=prompt, tools_kwargs=row(task))
    said = [i for i, m in zip(output.response_ids, output.response_mask, strict=True) if m]
    return {
        "reward": output.reward_score,
        "mask": [sum(output.response_mask), len(output.response_mask)],
        "lengths": [len(output.response_ids), len(output.response_logprobs or [])],
        "said": fast.decode(said),
        "prompt": fast.decode(output.prompt_ids)[-300:],
        "extra": {name: value for name, value in output.extra_fields.items() if name != "raw_prompt"},
        "num_turns": output.num_turns,
    }


async def leases(*, end: bool = False) -> list[str]:
    """Return the leases of the server; or end them all, as a server that goes does."""
    async with httpx.AsyncClient(base_url=GIVEN["rollouts"], trust_env=False) as client:
        sessions = (await client.get("/v1/status")).json()["sessions"]
        held = [each["lease"] for each in sessions if each.get("lease")]
        for each in held if end else ():
            await client.delete(f"/v1/leases/{each}")
    return held


async def lease_lost() -> None:
    await leases(end=True)


async def released() -> bool:
    return not await leases()


def masked_advantages() -> dict[str, Any]:
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import stillweb.trainers.verl.advantage  # noqa: F401 - registers it

    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]])
    index = np.array(["a", "a", "a"], dtype=object)
    masked, _ = get_adv_estimator_fn("grpo_masked")(rewards, mask, index=index)
    pair, _ = get_adv_estimator_fn("grpo")(rewards[:2], mask[:2], index=index[:2])
    return {"masked": masked.tolist(), "pair": pair.tolist()}


async def cut_by_verl(folder: Path) -> dict[str, Any]:
    """Without a word of how long answers may be: verl cuts in the middle, and the tool says so once."""
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("stillweb.trainers.verl.tool").addHandler(handler)
    tools = tools_of(folder, max_tool_response_length=0, images=False)
    loop = made(agent_loop._agent_loop_registry["tool_agent"], None, tools)
    loop.max_tool_response_length = 256
    agent_data = data(GIVEN["tasks"][0], "short")
    call = FunctionCall(name="browser", arguments='{"action": "scroll", "dy": 9}')
    responses = [await loop._call_tool(call, agent_data.tools_kwargs, agent_data) for _ in range(2)]
    short = tools_of(folder, max_tool_response_length=256, images=False)[0]
    name, response = await short.create("shortened", task_id=GIVEN["tasks"][0])
    await short.release(name)
    return {
        "texts": [each[0].text for each in responses],
        "images": [each[0].image for each in responses],
        "warned": warned,
        "own": response.text,
    }


def reward_function(extra: dict[str, Any]) -> dict[str, Any]:
    """By verl's own loader, with what its reward manager gives."""
    score = load_extern_object("pkg://stillweb.trainers.verl.tool", "compute_score")

    def scored(extra_info: dict[str, Any]) -> Any:
        try:
            return score(data_source="stillweb", solution_str="", ground_truth="", extra_info=extra_info)
        except InfraError as error:
            return f"InfraError: {error}"

    failed = {"failure_kind": "infra_error", "failure": "the browser is gone", "stillweb_reward": None}
    return {"solved": scored(extra), "unfinished": scored({}), "failed": scored(failed)}


def examples() -> dict[str, Any]:
    """The YAML of the examples, read as verl reads it."""
    tools = initialize_tools_from_config(str(EXAMPLES / "verl_tools.yaml"))
    return {"tools": [tool.name for tool in tools], "agents": agents_of(EXAMPLES / "verl_agents.yaml")}


def agents_of(path: Path) -> list[str]:
    from omegaconf import OmegaConf

    classes = []
    for config in OmegaConf.load(path):
        agent_loop._agent_loop_registry[config.name] = config  # as AgentLoopWorker does
        built = made(agent_loop._agent_loop_registry[config.name], None, [])
        classes.append(type(built).__name__)
    return classes


async def main() -> dict[str, Any]:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tools = tools_of(Path(folder))
        result["short"] = await cut_by_verl(Path(folder))
    result["schema"] = tools[0].tool_schema.model_dump(exclude_none=True)
    loop = made(agent_loop._agent_loop_registry["tool_agent"], None, tools)
    result["per_call"] = await per_call(loop, GIVEN["tasks"][0])
    result["left"] = data(GIVEN["tasks"][0], "abandoned")
    blind = FunctionCall(name="browser", arguments="{}")
    await loop._call_tool(blind, result["left"].tools_kwargs, result["left"])
    result["leases"] = len(await leases())
    del result["left"]
    gc.collect()
    result["released"] = await poll(released, timeout=20.0)
    result["older"] = await older(tools[0], GIVEN["tasks"][1])
    result["loop"] = await looped(GIVEN["tasks"][0])
    result["bare"] = await looped(GIVEN["tasks"][1], bare=True)
    result["masked"] = await looped(GIVEN["tasks"][0], die=lease_lost)
    result["retried"] = await looped(GIVEN["tasks"][0], failures="retry", die=lease_lost)
    result["advantages"] = masked_advantages()
    nameless = AgentData([], None, None, None, None, {}, "nameless", {})
    answer = await loop._call_tool(blind, nameless.tools_kwargs, nameless)
    result["nameless"] = {"text": answer[0].text, **nameless.extra_fields}
    result["scores"] = reward_function(result["per_call"]["extra"])
    result["examples"] = examples()
    return result


if __name__ == "__main__":
    report(asyncio.run(main()))
