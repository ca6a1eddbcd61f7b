"""`stillweb env`: try tasks and actions on a replayed collection."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import print_json, stderr
from stillweb.cli.envcheck import check
from stillweb.cli.envtasks import miniwob, tasks
from stillweb.cli.options import level_option, observe_option, proxy_option
from stillweb.env.env import Env, EnvOptions
from stillweb.env.nativetask import native_schema
from stillweb.env.observation import Observation
from stillweb.env.tables import STYLES, tool_schema


@click.group()
def env() -> None:
    """Try tasks and actions on a replayed collection.

    \b
    Example:
      stillweb replay shop &
      stillweb env check tasks.json --proxy http://127.0.0.1:8080
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
    """  # noqa: D301  click reads \b itself


env.add_command(check)
env.add_command(tasks)
env.add_command(miniwob)


@env.command()
@click.option("--tasks", "of_tasks", is_flag=True, help="Of a task file instead, for editors.")
@click.option(
    "--style",
    type=click.Choice(STYLES),
    default="json",
    show_default=True,
    help="JSON schema, the tool definition of OpenAI or Anthropic, or BrowserGym's calls.",
)
def schema(of_tasks: bool, style: str) -> None:
    """Print the JSON schema of an action, for a trainer's tool definition.

    \b
    Example:
      stillweb env schema > action.schema.json
      stillweb env schema --style openai
    """  # noqa: D301
    told = native_schema() if of_tasks else tool_schema(style)
    if isinstance(told, str):
        click.echo(told)
    else:
        print_json(told)


@env.command()
@proxy_option
@level_option
@click.option("--url", required=True, help="Page to begin with.")
@click.option("-c", "--collection", help="Collection, if the server has several.")
@click.option("--seed", type=int, help="Seed of the page's randomness; the recording's unless given.")
@click.option(
    "--trajectories",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write the episode down in.",
)
@observe_option("What to show: axtree, compact:viewport, ... (docs/observations.md). Repeatable.")
def shell(proxy: str, level: str, url: str, collection: str | None, **chosen: Any) -> None:
    """Type actions as JSON, one a line, and see what the agent would see.

    Of pictures the digest is shown; with --trajectories they are kept.

    \b
    Example:
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
      > {"action": "click", "bid": "a12"}
    """  # noqa: D301
    options = EnvOptions(max_steps=sys.maxsize, trajectories=chosen["trajectories"])
    environment = Env(proxy, collection, level=level, observe=chosen["observe"], options=options)
    asyncio.run(_shell(environment, url, chosen["seed"]))


async def _shell(environment: Env, url: str, seed: int | None) -> None:
    async with environment:
        observation, info = await environment.reset(url=url, seed=seed)
        _show(observation)
        _say(observation.url, info)
        while line := await asyncio.to_thread(_read_line):
            if not line.strip():
                continue
            observation, _, terminated, truncated, info = await environment.step(line)
            _show(observation)
            _say(observation.url, info)
            if terminated or truncated:
                break


def _show(observation: Observation) -> None:
    for form, digest in observation.digests.items():
        if form in ("screenshot", "som"):
            click.echo(f"{form} {digest}")
        else:
            click.echo((observation.body(form) or b"").decode())
    if observation.marks:
        click.echo(json.dumps(dict(observation.marks)))


def _read_line() -> str:
    stderr().print("> ", end="")
    return sys.stdin.readline()


def _say(url: str, info: dict[str, Any]) -> None:
    action, settle, traffic = info["action"], info["settle"], info["traffic"]
    stderr().print(f"{url}  {action['status']} {action['error']}", style="bold", markup=False)
    said = {"settle": settle and settle["reason"], "traffic": traffic, "dialogs": info["dialogs"]}
    stderr().print(json.dumps(said, ensure_ascii=False), style="dim", markup=False)
