"""`stillweb why`: the step that lost an episode, by forks at each of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from stillweb import __version__
from stillweb.cli.console import SectionedCommand, echo, print_json, print_table, until_signal
from stillweb.cli.episodes.shared import RolloutProgress, playing_options, replayed_tasks
from stillweb.cli.options import EXISTING, FILE, FOLDER, options_from
from stillweb.env import Trajectory
from stillweb.env.vector.rollout import Agent
from stillweb.errors import UsageError
from stillweb.trainers.agents import load_agent
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.runner import BatchOptions, rollout
from stillweb.trainers.batch.why import EpisodeForks, write_why_report

SECTIONS = {
    "Forks": ("forks", "budget", "resume", "html", "success"),
    "Agent": ("agent", "agent_options", "seed", "max_steps", "perturb", "perturb_seed"),
    "Concurrency": ("max_concurrent", "browsers", "retry"),
    "Replay": ("proxy", "root", "certs_dir"),
}
_CHOSEN = ("max_concurrent", "retry", "max_steps", "browsers", "perturb", "perturb_seed")


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("episode", type=EXISTING)
@playing_options
@click.option("--output", required=True, type=FOLDER,
              help="Folder for the forks and their result, why.json.")  # fmt: skip
@click.option("-k", "--forks", type=click.IntRange(1), default=8, show_default=True,
              help="Forks at each step.")  # fmt: skip
@click.option("--budget", type=click.IntRange(1), default=None, metavar="N",
              help="Maximum number of forks; --forks is reduced to fit.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue in the folder: play the missing forks.")
@click.option("--html", type=FILE,
              help="Write an HTML page with a chart of the success by step.")  # fmt: skip
@options_from(BatchOptions, only=_CHOSEN)
def why(episode: Path, output: Path, options: BatchOptions, html: Path | None, **given: Any) -> None:
    """Find the step that lost an episode: fork it at each step, and let an agent play on.

    EPISODE is the folder of a trajectory. Each fork repeats the first steps, which replay answers
    identically, and compares every observation with the recorded digests. Then the agent plays to the end.
    The result has the success rate after each step, with its 95 % interval, and the step after which no fork
    succeeds. Its values of the states can serve as process rewards.

    \b
    Example:
      stillweb why out/tasks/cheapest/0 --agent scripted:solutions --output out/why --html why.html
      stillweb why out/tasks/cheapest/0 --agent openai -o model=qwen3-4b -k 16 --budget 200 --output out/why
    """
    trajectory = Trajectory.load(episode)
    forks = EpisodeForks.of(trajectory)
    options = _options(forks, options, given["forks"], given["budget"])
    player = load_agent(given["agent"], seed=given["seed"], options=given["agent_options"])
    configuration = {
        "stillweb": __version__,
        "episode": str(episode),
        "forked": sha256(trajectory.path.read_bytes()).hexdigest(),
        **{name: given[name] for name in ("agent", "agent_options", "seed")},
        **options.to_json(),
    }
    with BatchFolder.open(output, configuration, go_on=given["resume"]) as folder:
        until_signal(_play(folder, forks, player, options, given))
        explained = forks.explain(folder.results.values(), success=given["success"])
        folder.write("why.json", explained)
    if html:
        write_why_report(explained, html)
    if given["as_json"]:
        print_json(explained)
    else:
        _print(explained)


def _options(forks: EpisodeForks, options: BatchOptions, k: int, budget: int | None) -> BatchOptions:
    """Return options that play the forks as the episode was played."""
    states = len(forks.states)
    if budget is not None and budget < states:
        raise UsageError(
            f"a budget of {budget} forks is less than one for each of the {states} states",
            hint=f"--budget {states} or more",
        )
    header = forks.header
    return replace(
        options,
        episodes=k if budget is None else min(k, budget // states),
        level=header["level"],
        observe=forks.observed,
        off_path=header.get("off_path"),
        page_seeds=(header["seed"],),
        collection=header["collection"],
    )


async def _play(
    folder: BatchFolder, forks: EpisodeForks, agent: Agent, options: BatchOptions, given: Mapping[str, Any]
) -> None:
    tasks = forks.tasks
    async with replayed_tasks(tasks, options.collection, given) as proxy:
        with RolloutProgress(given["success"]) as shown:
            await rollout(proxy, forks.agent(agent), tasks, folder, options, on_change=shown.change)


def _print(explained: Mapping[str, Any]) -> None:
    print_table(
        ("step", "action", "#success", "95%", "#value", "#change", "#forks"), map(_row, explained["states"])
    )
    echo(f"{explained['forks']} forks, {explained['without_reward']} without a reward", err=True)
    echo(explained["verdict"])


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    known = row["success"] is not None
    bounds = f"{row['low']:.0%} to {row['high']:.0%}" if row["scored"] else "known" if known else ""
    change = row.get("change")
    return (
        row["step"],
        _action(row["action"]),
        f"{row['success']:.0%}" if known else "",
        bounds,
        f"{row['value']:.2f}" if known else "",
        "" if change is None else f"{change:+.2f}",
        row["forks"],
    )


def _action(action: Any) -> str:
    if not isinstance(action, Mapping):
        return str(action or "start")
    rest = " ".join(f"{name}={value}" for name, value in action.items() if name != "action")
    return f"{action.get('action', '')} {rest}".strip()
