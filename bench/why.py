"""Find the faulty step of five scripted episodes with `stillweb why`'s forks, and compare with the known one.

    python bench/why.py --shared ../shared --forks 2

A solution of a WARC-Bench task is broken at a known step. The agent of the forks plays the solution on, from
the action at which the episode left it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solver_plans import View, load_plans
from warc_bench import prepare

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.env import Env, EnvOptions, Task, Trace, Trajectory, load_tasks, run_trace
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.trainers.agents.builtin import ScriptedAgent
from stillweb.trainers.batch.folder import BatchFolder, folder_name
from stillweb.trainers.batch.runner import BatchOptions, rollout
from stillweb.trainers.batch.why import EpisodeForks, write_why_report

END = {"action": "terminate"}
RELOAD = {"action": "reload"}
SCROLL = {"action": "scroll", "dy": 40}


Actions = list[Mapping[str, Any]]

# name, task, right actions before the fault, actions from there on, step that nothing repairs
FAULTS: tuple[tuple[str, str, int, Actions, int], ...] = (
    ("reloads the page, which closes the calendar", "online.2", 2, [RELOAD], 3),
    ("terminates early", "online.2~2", 3, [END], 4),
    ("leaves out the last action", "online.3~2", 5, [END], 6),
    (
        "scrolls, which harms nothing, and later opens a tab",
        "online.3",
        1,
        [SCROLL, {"action": "new_tab"}],
        3,
    ),
    ("goes to another page", "online_train.940", 1, [{"action": "goto", "url": ""}], 2),
)


async def solve(env: Env, task: Task) -> Actions:
    """Return the actions of the task's plan."""
    observation, _ = await env.reset(task=task)
    following = load_plans().policies[task.id](View.of(observation.axtree or ""))
    actions = [next(following)]
    while True:
        observation, *_ = await env.step(actions[-1])
        try:
            actions.append(following.send(View.of(observation.axtree or "")))
        except StopIteration:
            break
    _, reward, *_ = await env.step(END)
    assert reward == 1.0, (task.id, reward)
    return [*actions, END]


async def play(env: Env, task: Task, actions: Actions, folder: Path) -> Path:
    """Play an episode; return its folder."""
    run = await run_trace(env, Trace(task.id, tuple(actions), task=task), keep=True)
    assert run.failure is None, run.failure
    assert run.steps[0].info
    return folder / str(run.steps[0].info["episode"])


async def explain(url: str, episode: Path, solutions: Path, out: Path, k: int) -> dict[str, Any]:
    """Fork an episode at each step; return the output of `stillweb why`."""
    forks = EpisodeForks.of(Trajectory.load(episode))
    header = forks.header
    options = BatchOptions(
        episodes=k,
        level=header["level"],
        observe=forks.observed,
        page_seeds=(header["seed"],),
        max_concurrent=2,
    )
    with BatchFolder.open(out, options.to_json()) as folder:
        await rollout(url, forks.agent(ScriptedAgent(solutions)), forks.tasks, folder, options)
        return forks.explain(folder.results.values())


async def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    known = {each.id: each for each in load_tasks(arguments.shared / "tasks" / "warc_bench_public.json")}
    tasks = [known[task] for _, task, *_ in FAULTS]
    collections = prepare(arguments.shared, folder / "collections", {task.collection for task in tasks})
    elsewhere = next(
        each.start_url for each in known.values()
        if each.collection == tasks[-1].collection and each.start_url != tasks[-1].start_url
    )  # fmt: skip
    rows = []
    async with serve(
        collections, CertAuthority.load_or_init(folder / "certs"), ReplayOptions(port=0, session_ports=None)
    ) as server:
        for (name, _, right, wrong, lost), task in zip(FAULTS, tasks, strict=True):
            broken = [{**each, "url": elsewhere} if each.get("url") == "" else each for each in wrong]
            options = EnvOptions(trajectories=folder / "episodes")
            async with Env(server.url, level="exact", options=options) as env:
                solution = await solve(env, task)
                file = folder / "solutions" / f"{folder_name(task.id)}.jsonl"
                Trace(task.id, tuple(solution), task=task).dump(file)
                tail = [] if broken[-1] is END else solution[right:]
                actions = [*solution[:right], *broken, *tail]
                episode = await play(env, task, actions, folder / "episodes")
            began = clock.perf()
            out = folder / "forks" / folder_name(task.id)
            outcome = await explain(server.url, episode, file.parent, out, arguments.forks)
            if arguments.html:
                write_why_report(outcome, arguments.html / f"{folder_name(task.id)}.html")
            rows.append(
                {
                    "fault": name, "task": task.id, "steps": len(actions), "known": lost,
                    "found": outcome["lost_after"], "forks": outcome["forks"],
                    "without_reward": outcome["without_reward"], "steps_played": outcome["steps_played"],
                    "seconds": round(clock.perf() - began, 1), "values": outcome["values"],
                }
            )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--forks", type=int, default=2)
    parser.add_argument("--html", type=Path, help="folder for a report of each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(arguments, Path(folder)))
    json.dump(
        {"found": sum(row["found"] == row["known"] for row in rows), "rows": rows}, sys.stdout, indent=1
    )


if __name__ == "__main__":
    main()
