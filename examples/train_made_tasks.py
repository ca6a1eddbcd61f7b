"""Train a small policy on made tasks with REINFORCE, and test it on held-out tasks: no GPU, no model.

    stillweb tasks make shop -n 200 --families form --out tasks.yaml
    stillweb replay shop                 # in another terminal
    python examples/train_made_tasks.py http://127.0.0.1:8080 tasks.yaml form/search curve.svg

A page offers actions of four kinds: fill a field with a text that the goal quotes, press Enter in a field,
click a control, terminate. The policy is a table: a score for each kind after each kind of last action, and
one for controls whose name occurs in the goal. All scores are 0 at first: the policy chooses at random.
Training uses the tasks of the part "train", the test those of the part "test".
"""

import asyncio
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stillweb.clock import seeded
from stillweb.env import Observation, Planned, RolloutOptions, Task, VectorEnv, load_tasks

ROUNDS, EPISODES, RATE, STEPS, SESSIONS = 10, 24, 3.0, 6, 4
FIELDS, CLICKED = ("textbox", "searchbox", "combobox"), ("link", "button")
Action = dict[str, str]
Feature = tuple[str, ...]


def offers(goal: str, observation: Observation, last: str) -> Iterator[tuple[Action, tuple[Feature, ...]]]:
    """Yield the actions of a page, each with the rows of the table that score it."""
    for node in observation.nodes:
        if node.bid and node.role in FIELDS:
            for text in re.findall("“([^”]+)”", goal):
                yield {"action": "fill", "bid": node.bid, "value": text}, ((last, "fill"),)
            yield {"action": "press", "bid": node.bid, "key": "Enter"}, ((last, "press"),)
        elif node.bid and node.role in CLICKED:
            named = ("named", "click") if node.name and node.name in goal else ("other", "click")
            yield {"action": "click", "bid": node.bid}, ((last, "click"), named)
    yield {"action": "terminate"}, ((last, "terminate"),)


class Policy:
    """A table of scores; `gradients` has the gradient of the log-probability of each episode's actions."""

    def __init__(self, table: dict[Feature, float], seed: str) -> None:
        self.table = table
        self.seed = seed
        self.last: defaultdict[int, str] = defaultdict(lambda: "reset")
        self.gradients: defaultdict[int, Counter[Feature]] = defaultdict(Counter)

    def __call__(self, goal: str, observation: Observation, info: dict[str, Any]) -> Action:
        number, step = info["episode_number"], info["step"]
        if step >= STEPS:
            return {"action": "terminate"}
        found = list(offers(goal, observation, self.last[number]))
        chances = self.chances(found)
        (chosen,) = seeded(self.seed, number, step).choices(range(len(found)), chances)
        self.gradients[number].update(found[chosen][1])
        for (_, features), chance in zip(found, chances, strict=True):
            self.gradients[number].subtract(dict.fromkeys(features, chance))
        action = found[chosen][0]
        self.last[number] = action["action"]
        return action

    def chances(self, found: Sequence[tuple[Action, tuple[Feature, ...]]]) -> list[float]:
        """Return the probability of each action; with a table of zeros all kinds have the same one."""
        alike = Counter(action["action"] for action, _ in found)
        weights = [
            math.exp(sum(self.table.get(each, 0.0) for each in features)) / alike[action["action"]]
            for action, features in found
        ]
        return [weight / sum(weights) for weight in weights]


async def play(vector: VectorEnv, tasks: Sequence[Task], policy: Policy) -> dict[int, float]:
    """Return the reward of each episode; an episode that browser or proxy broke has none."""
    planned = [Planned(task, number) for number, task in enumerate(tasks)]
    rewards = {}
    async for episode in vector.rollout(
        lambda task: partial(policy, task.goal), planned, RolloutOptions(attempts=2)
    ):
        if episode.reward is None:
            print(f"episode {episode.number} of {episode.task.id} is broken: {'; '.join(episode.errors)}")
        else:
            rewards[episode.number] = episode.reward
    return rewards


def learn(policy: Policy, rewards: dict[int, float]) -> None:
    """Move the table along the advantages: rewards without their mean, in units of their deviation."""
    mean = success(rewards)
    deviation = math.sqrt(mean * (1 - mean)) or 1.0
    for number, reward in rewards.items():
        scale = RATE * (reward - mean) / deviation / len(rewards)
        for feature, slope in policy.gradients[number].items():
            policy.table[feature] = policy.table.get(feature, 0.0) + scale * slope


def success(rewards: dict[int, float]) -> float:
    return sum(rewards.values()) / max(1, len(rewards))


def draw(curve: Sequence[float], before: float, after: float) -> str:
    """Return the learning curve as SVG: training as a line, held-out tasks before and after as dots."""

    def place(x: float, y: float) -> tuple[float, float]:
        return 60 + 520 * x / max(1, len(curve) - 1), 260 - 220 * y

    grid = [(level, place(0, level)[1]) for level in (0, 0.25, 0.5, 0.75, 1)]
    lines = [f'<path d="M60 {y:g}H580" stroke="#ddd"/>' for _, y in grid]
    lines += [f'<text x="52" y="{y + 4:g}" text-anchor="end">{level:.0%}</text>' for level, y in grid]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*each) for each in enumerate(curve)))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f5fbf" stroke-width="2"/>')
    for x, y in (place(0, before), place(len(curve) - 1, after)):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#c0392b"/>')
    lines.append(f'<text x="60" y="20">success in training by round, 1 to {len(curve)} (line);</text>')
    lines.append('<text x="320" y="20">held-out tasks before and after (dots)</text>')
    style = 'font-family="sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="280" {style}>{"".join(lines)}</svg>\n'
    )


async def train_and_test(proxy: str, tasks: Sequence[Task]) -> tuple[list[float], float, float]:
    """Return the success of each round of training, and that of the held-out tasks before and after."""
    train = [task for task in tasks if task.origin and task.origin.split == "train"]
    test = [task for task in tasks if task.origin and task.origin.split == "test"]
    print(f"{len(train)} tasks to train on, {len(test)} held out", flush=True)
    table: dict[Feature, float] = {}
    curve = []
    async with VectorEnv(proxy, SESSIONS, level="clock") as vector:
        before = success(await play(vector, test * 2, Policy(table, "before")))
        for number in range(1, ROUNDS + 1):
            drawn = seeded("tasks", number).choices(train, k=EPISODES)
            policy = Policy(table, f"round {number}")
            rewards = await play(vector, drawn, policy)
            learn(policy, rewards)
            curve.append(success(rewards))
            print(f"round {number}: success {curve[-1]:4.0%} of {len(rewards)} episodes", flush=True)
        after = success(await play(vector, test * 2, Policy(table, "after")))
    return curve, before, after


def main(proxy: str, file: str, template: str, picture: str) -> None:
    tasks = [task for task in load_tasks(Path(file)) if task.origin and task.origin.template == template]
    curve, before, after = asyncio.run(train_and_test(proxy, tasks))
    Path(picture).write_text(draw(curve, before, after), encoding="utf-8")
    print(f"held-out tasks: {before:.0%} before, {after:.0%} after; {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:])
