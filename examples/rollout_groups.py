"""Groups of episodes and their advantages, as GRPO wants them: of a task, and from the middle of an episode.

stillweb replay site                 # in another terminal python examples/rollout_groups.py
http://127.0.0.1:8080 examples/tasks.yaml 4
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stillweb.clock import seeded
from stillweb.env import Env, Observation, Planned, RolloutOptions, Task, VectorEnv, load_tasks
from stillweb.errors import InfraError
from stillweb.trainers.episodes.failures import FailureHandling, advantages, judge


def choose(observation: Observation, info: dict[str, Any], number: int) -> dict[str, str]:
    """Stand for a policy that is sampled: some of its episodes give up, each in its own way."""
    if seeded(number, info["step"]).random() < 0.25:
        return {"action": "terminate", "answer": "I give up"}
    link = next((node for node in observation.nodes if node.role == "link"), None)
    heading = next(node for node in observation.nodes if node.role == "heading")
    return {"action": "click", "bid": link.bid} if link else {"action": "terminate", "answer": heading.name}


def agent(task: Task) -> Any:
    return lambda observation, info: choose(observation, info, info["episode_number"])


def show(what: str, rewards: Sequence[float | None]) -> None:
    listed = " ".join("-" if reward is None else f"{reward:g}" for reward in rewards)
    print(f"{what}: rewards {listed}; advantages {' '.join(f'{each:+.2f}' for each in advantages(rewards))}")


async def of_tasks(proxy: str, tasks: Sequence[Task], n: int) -> None:
    """Play n episodes of each task, all beside each other; what was broken is masked and changes no other."""
    groups: dict[str, list[float | None]] = {task.id: [None] * n for task in tasks}
    planned = [Planned(task, number) for task in tasks for number in range(n)]
    async with VectorEnv(proxy, 4) as vector:
        async for ended in vector.rollout(agent, planned, RolloutOptions(attempts=2)):
            judged = judge(ended.outcome, ended.reward, FailureHandling(), error="; ".join(ended.errors))
            groups[ended.task.id][ended.number] = judged.reward
    for name, rewards in groups.items():
        show(f"{name} from its start", rewards)


async def of_a_moment(proxy: str, task: Task, n: int) -> None:
    """Play one step, fork there, and let each of n policies continue from the very same page."""
    async with Env(proxy) as env:
        observation, _ = await env.reset(task=task)
        link = next(node for node in observation.nodes if node.role == "link")
        observation, *_, info = await env.step({"action": "click", "bid": link.bid})
        forks = await env.fork(n)
        try:
            rewards = await asyncio.gather(
                *(go_on(fork, observation, info, number) for number, fork in enumerate(forks))
            )
        finally:
            await asyncio.gather(*(fork.close() for fork in forks))
    show(f"{task.id} from step 1", rewards)


async def go_on(env: Env, observation: Observation, info: dict[str, Any], number: int) -> float | None:
    try:
        while True:
            action = choose(observation, info, number)
            observation, reward, terminated, truncated, info = await env.step(action)
            if terminated or truncated:
                return reward
    except InfraError:
        return None


async def main(proxy: str, file: Path, n: int) -> None:
    tasks = load_tasks(file)
    await of_tasks(proxy, tasks, n)
    for task in tasks:
        await of_a_moment(proxy, task, n)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
