"""Atropos's environment plays groups against an endpoint, and writes them as it sends them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from atroposlib.envs.base import APIServerConfig, BaseEnv
from byte_tokenizer import byte_tokenizer
from endpoint_standin import said, standin
from steps import GIVEN, Actor, lose_leases, report

from stillweb.trainers.atropos import AtroposConfig, AtroposEnv

TASK = GIVEN["tasks"][0]
FOLDER = Path(tempfile.mkdtemp(dir=Path.cwd()))
byte_tokenizer().save_pretrained(FOLDER / "tokenizer")


class Endpoint:
    """Follows the plan; the second episode of a group ends immediately."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost, self.starts = lost, 0

    def __call__(self, request: dict):
        pages = [each["content"] for each in request["messages"] if each["role"] == "user"]
        if len(pages) == 1:
            self.starts += 1
            if self.starts == 2:
                return said(json.dumps({"action": "terminate"}))
        if self.lost:
            lose_leases()
        actor = Actor(TASK)
        for page in pages:
            action = actor.act(page.partition("\n\n")[2])
        return said(json.dumps(action))


async def group(name: str, endpoint: Endpoint) -> dict:
    with standin(endpoint) as served:
        config = AtroposConfig(
            server=GIVEN["rollouts"], rows=[{"task_id": TASK}], group_size=2, max_observation_length=100_000,
            tokenizer_name=str(FOLDER / "tokenizer"), data_path_to_save_groups=str(FOLDER / f"{name}.jsonl"),
            use_wandb=False,
        )  # fmt: skip
        server = APIServerConfig(model_name="m", base_url=served.url, api_key="none", health_check=False)
        env = AtroposEnv(config, [server])
        await env.setup()
        item = await env.get_next_item()
        found, _ = await env.collect_trajectories(item)
        if found:
            await env.handle_send_to_api(found, item, do_send_to_api=False)
    stored = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    trained = [sum(each != -100 for each in mask) for mask in found["masks"]] if found else []
    return {
        "class": isinstance(env, BaseEnv), "scores": sorted(found["scores"]) if found else None,
        "stored": len(stored), "trained": min(trained, default=0), "replies": endpoint.starts,
    }  # fmt: skip


async def main() -> None:
    report({"played": await group("played", Endpoint()), "lost": await group("lost", Endpoint(lost=True))})


asyncio.run(main())
