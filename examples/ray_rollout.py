"""Tasks played on the workers of a Ray cluster, which find their pack by digest.

stillweb collections push site file:///share/packs        # once, where it was recorded python
examples/ray_rollout.py file:///share/packs site examples/tasks.yaml 2 4
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ray

from stillweb.env import Observation, Planned, RolloutOptions, Task, load_tasks
from stillweb.trainers.ray.rollouts import OBJECTS, RayOptions, RayRollouts


def agent(task: Task) -> Any:
    """Click the first link; where there is none, answer with the heading."""

    def act(observation: Observation, info: dict[str, Any]) -> dict[str, str]:
        link = next((node for node in observation.nodes if node.role == "link"), None)
        heading = next(node for node in observation.nodes if node.role == "heading")
        return (
            {"action": "click", "bid": link.bid} if link else {"action": "terminate", "answer": heading.name}
        )

    return act


def main(remote: str, pack: str, file: Path, workers: int, episodes: int) -> None:
    ray.init(log_to_driver=False)  # a cluster of this machine, or the one that RAY_ADDRESS names
    tasks = [Planned(task, number) for task in load_tasks(file) for number in range(episodes)]
    options = RayOptions(keep=OBJECTS)
    outcomes: Counter[str] = Counter()
    with RayRollouts(workers, 2, packs={pack: pack}, remote=remote, options=options) as rollouts:
        print(f"{pack} is {rollouts.packs[pack][:12]}")
        for episode in rollouts.rollout(agent, tasks, RolloutOptions(attempts=3)):
            ended = episode.rollout
            outcomes[f"{ended.task.id}: {ended.outcome}, reward {ended.reward}"] += 1
            last = episode  # its trajectory stays in Ray's store as long as this is held
        with_trajectory = last.stored.trajectory(Path("out/ray")) if last.stored else None
    for outcome, count in outcomes.items():
        print(f"{outcome}: {count} episodes")
    if with_trajectory:
        print(f"the last one's trajectory, of {len(with_trajectory.steps) - 1} steps: {with_trajectory.path}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
