"""The cookbook's own rollouts play a group; the policy is a script."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx
from byte_tokenizer import byte_tokenizer
from steps import GIVEN, Actor, report
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollout_strategy import MinViableGroup
from tinker_cookbook.rl.rollouts import do_group_rollout

from stillweb.errors import InfraError
from stillweb.trainers.tinker import ReplayDataset, ReplayGroupBuilder

TASK = GIVEN["tasks"][0]
TOKENIZER = byte_tokenizer()


def one_at_a_time(call, lock=threading.Lock()):  # noqa: B008 - one lock for all
    """The cookbook renders in threads, and a tokenizer of transformers 5 is for one."""

    def locked(*given, **named):
        with lock:
            return call(*given, **named)

    return locked


TOKENIZER.encode, TOKENIZER.decode = one_at_a_time(TOKENIZER.encode), one_at_a_time(TOKENIZER.decode)


class Scripted(TokenCompleter):
    """The first episode follows the plan, the second ends immediately, the third loses its session."""

    def __init__(self, builder: ReplayGroupBuilder) -> None:
        self.builder, self.starts = builder, 0

    async def __call__(self, model_input, stop, *, max_tokens=None) -> TokensWithLogprobs:
        pages = TOKENIZER.decode(model_input.to_ints()).split("Page: ")[1:]
        actor = Actor(TASK)
        for page in pages:
            action = actor.act("Page: " + page.partition("<|im_end|>")[0])
        if len(pages) == 1:
            self.starts += 1
            if self.starts == 2:
                action = {"action": "terminate"}
            if self.starts == 3:
                self.lose()
        tokens = TOKENIZER.encode(json.dumps(action) + "<|im_end|>")
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    def lose(self) -> None:
        """End the session of the last environment that still has its first page."""
        (episode,) = [
            env._episode for env in self.builder._envs if not env._episode.steps and env._left == 9
        ][-1:]
        httpx.delete(f"{GIVEN['rollouts']}/v1/leases/{episode._lease.id}", trust_env=False)


async def group(size: int, strategy=None) -> dict:
    renderer = get_renderer("qwen3_instruct", TOKENIZER)
    row = {"task_id": TASK}
    source = {"server": GIVEN["rollouts"]}
    made = ReplayGroupBuilder(
        source, row, renderer, group_size=size, max_turns=9, max_observation_length=100_000
    )
    (builder,) = ReplayDataset([made], 1).get_batch(0)
    found = await do_group_rollout(builder, Scripted(builder), strategy=strategy)
    return {
        "rewards": sorted(found.get_total_rewards()),
        "errors": [each.error_type for each in found.rollout_errors],
    }


async def failed() -> str:
    try:
        await group(3)
    except InfraError as error:
        return str(error)
    return ""


async def main() -> None:
    report({"played": await group(2), "dropped": await group(3, MinViableGroup()), "failed": await failed()})


asyncio.run(main())
