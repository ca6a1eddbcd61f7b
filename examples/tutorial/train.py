"""Train a small policy on replayed episodes with REINFORCE: no GPU, no model, one to three minutes.

stillweb replay lamps                 # in another terminal
python examples/tutorial/train.py http://127.0.0.1:8080

The policy is a table: a preference for each pair of page title and element. It plays groups of episodes of
the task `basket`. Choices that scored better than the mean of their group gain preference, as in GRPO.
"""

import asyncio
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from stillweb.clock import seeded
from stillweb.env import Observation, Planned, RolloutOptions, VectorEnv, load_tasks
from stillweb.trainers.episodes.failures import advantages

ROUNDS, GROUP, RATE = 8, 24, 8.0
Choice = tuple[str, str]  # title of the page, element


def policy(preferences: dict[Choice, float], seed: int, chosen: dict[int, list[Choice]]) -> Any:
    """Return a policy that clicks elements drawn by softmax over the preferences."""

    def act(observation: Observation, info: dict[str, Any]) -> dict[str, str]:
        if observation.title == "Basket":
            return {"action": "terminate"}
        number = info["episode_number"]
        nodes = [node for node in observation.nodes if node.bid and node.role in ("link", "button")]
        keys = [(observation.title, f"{node.role} {node.name}") for node in nodes]
        weights = [math.exp(preferences[key]) for key in keys]
        draw = seeded(seed, number, len(chosen[number]))
        (index,) = draw.choices(range(len(nodes)), weights)
        chosen[number].append(keys[index])
        return {"action": "click", "bid": nodes[index].bid}

    return act


async def main(proxy: str) -> None:
    task = next(task for task in load_tasks(Path(__file__).with_name("tasks.yaml")) if task.id == "basket")
    preferences: defaultdict[Choice, float] = defaultdict(float)
    async with VectorEnv(proxy, 4) as vector:
        for seed in range(ROUNDS):
            chosen: defaultdict[int, list[Choice]] = defaultdict(list)
            rewards: list[float | None] = [None] * GROUP
            planned = [Planned(task, number) for number in range(GROUP)]
            agent = policy(preferences, seed, chosen)
            async for episode in vector.rollout(lambda _, agent=agent: agent, planned, RolloutOptions()):
                rewards[episode.number] = episode.reward  # None after an infrastructure failure, never 0
            for number, advantage in enumerate(advantages(rewards)):
                for choice in chosen[number]:
                    preferences[choice] += RATE * advantage / GROUP
            scored = [reward for reward in rewards if reward is not None]
            print(
                f"round {seed}: success {sum(scored) / len(scored):4.0%} of {len(scored)} episodes",
                flush=True,
            )
    for title, element in sorted(preferences, key=preferences.__getitem__, reverse=True)[:2]:
        print(f"learned on {title!r}: click {element}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
