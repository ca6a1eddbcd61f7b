"""Tasks of a file, played by an agent of four lines, written down and scored again without a browser.

stillweb replay site                 # in another terminal python examples/tasks.py http://127.0.0.1:8080
examples/tasks.yaml trajectories/
"""

import asyncio
import sys
from pathlib import Path

from stillweb.env import Env, EnvOptions, Observation, load_tasks
from stillweb.env.trajectories.rescore import rescore_all
from stillweb.env.trajectories.trajectory import trajectories_in


def agent(observation: Observation) -> dict[str, str]:
    link = next((node for node in observation.nodes if node.role == "link"), None)
    heading = next(node for node in observation.nodes if node.role == "heading")
    return {"action": "click", "bid": link.bid} if link else {"action": "terminate", "answer": heading.name}


async def main(proxy: str, tasks: Path, trajectories: Path) -> None:
    async with Env(proxy, level="clock", options=EnvOptions(trajectories=trajectories)) as env:
        for task in load_tasks(tasks):
            observation, _ = await env.reset(task=task)
            terminated = truncated = False
            while not (terminated or truncated):
                observation, reward, terminated, truncated, _ = await env.step(agent(observation))
            print(f"{task.id}: {reward:g}")

    for row in rescore_all(trajectories_in(trajectories)):
        print(f"{row.task} again: {row.rescored:g}, {row.outcome}; as stored: {', '.join(row.stored)}")


if __name__ == "__main__":
    proxy, *paths = sys.argv[1:4]
    asyncio.run(main(proxy, *map(Path, paths)))
