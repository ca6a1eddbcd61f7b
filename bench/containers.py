"""The same episodes several times through each container, and what was identical.

    stillweb demo --out /tmp/demo && cp -r /tmp/demo/collections/bookshop collections/
    STILLWEB_UID=$(id -u) STILLWEB_GID=$(id -g) docker compose up -d replay pywb
    python bench/containers.py --native http://127.0.0.1:8080 --pywb http://127.0.0.1:8090 [--runs 5]

Two episodes on the demo's bookshop: `browse` only reads and subscribes; `buy` is the demo's own, whose
cart shows what was put into it. Prints JSON: rewards, how each run ended, and per step and kind of
observation how many runs saw what most saw; for each back-end alone and for both together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

from stillweb.browser import launch
from stillweb.cli.demo import TASK, Customer
from stillweb.env.env import Env
from stillweb.errors import StillwebError, TaskError
from stillweb.replay import ReplayClient

KINDS = ("axtree", "html", "screenshot")
BROWSE = (
    ("click", "link", "Moby-Dick", ""),
    ("click", "link", "Newsletter", ""),
    ("fill", "textbox", "Your e-mail address", "ada@home.example"),
    ("click", "button", "Subscribe", ""),
)


class Browser:
    """Reads a book's page and subscribes: nothing that it does changes what it sees later."""

    def __init__(self) -> None:
        self._step = 0

    def act(self, nodes: Any) -> dict[str, Any]:
        """Return the next action."""
        if self._step == len(BROWSE):
            return {"action": "terminate", "answer": ""}
        action, role, name, value = BROWSE[self._step]
        self._step += 1
        found = next((n for n in nodes if n.bid and n.role == role and n.name.startswith(name)), None)
        if found is None:
            raise TaskError(f"step {self._step}: there is no {role} {name!r} on the page")
        return {"action": action, "bid": found.bid} | ({"value": value} if action == "fill" else {})


async def episode(url: str, browser: Any, agent: Any) -> dict[str, Any]:
    """Run one episode, as far as it goes."""
    steps: list[dict[str, Any]] = []
    outcome: dict[str, Any] = {"steps": steps, "reward": None, "ended": "terminated", "missed": []}
    async with Env(url, observe=KINDS, browser=browser) as env:
        try:
            observation, info = await env.reset(task=TASK)
            action: dict[str, Any] = {"action": "reset"}
            while True:
                steps.append({"action": action["action"], **observation.digests})
                outcome["missed"] += info["traffic"]["missed"]
                if action["action"] == "terminate":
                    return outcome
                action = agent.act(observation.nodes)
                observation, outcome["reward"], _, _, info = await env.step(action)
        except StillwebError as error:
            outcome["ended"] = f"{type(error).__name__}: {error}"
            return outcome


def summary_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what runs have in common."""
    rows = []
    for index in range(max(len(run["steps"]) for run in runs)):
        steps = [run["steps"][index] for run in runs if index < len(run["steps"])]
        row: dict[str, Any] = {"action": steps[0]["action"], "runs": len(steps)}
        for kind in KINDS:
            seen = [step[kind] for step in steps]
            row[kind] = max(map(seen.count, seen))
        rows.append(row)
    return {
        "runs": len(runs),
        "rewards": [run["reward"] for run in runs],
        "ended": sorted({run["ended"] for run in runs}),
        "missed": sorted({url for run in runs for url in run["missed"]}),
        "identical": {kind: all(row[kind] == len(runs) for row in rows) for kind in KINDS},
        "steps": rows,
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run both episodes through both containers, and lay them side by side."""
    result: dict[str, Any] = {}
    agents: dict[str, Callable[[], Any]] = {"browse": Browser, "buy": Customer}
    for name, agent in agents.items():
        all_runs: dict[str, list[dict[str, Any]]] = {}
        for backend, url in (("native", args.native), ("pywb", args.pywb)):
            async with ReplayClient(url) as client:
                spki = (await client.info()).spki
            async with launch(spki=spki) as browser:
                all_runs[backend] = [await episode(url, browser, agent()) for _ in range(args.runs)]
        result[name] = {backend: summary_of(runs) for backend, runs in all_runs.items()}
        result[name]["both"] = summary_of([run for runs in all_runs.values() for run in runs])
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--native", default="http://127.0.0.1:8080")
    parser.add_argument("--pywb", default="http://127.0.0.1:8090")
    parser.add_argument("--runs", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
