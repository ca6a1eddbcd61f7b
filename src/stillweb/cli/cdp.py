"""`stillweb cdp`: a browser on a replay session, for harnesses that use CDP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb.cli.console import echo, on_signals, print_json
from stillweb.cli.options import EXISTING_FILE, json_option
from stillweb.errors import UsageError

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task

_LISTED = 10  # task ids in an error


@click.command("cdp")
@click.argument("proxy", metavar="PROXY_URL")
@click.option("-c", "--collection", metavar="NAME", help="Collection, if the server has several.")
@click.option("--tasks", type=EXISTING_FILE, help="Task file with the task to score at the end.")
@click.option("--task-id", metavar="ID", help="Task to score; required if the file has several.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="CDP port of the browser.  [default: a free one]"
)
@click.option("--headed", is_flag=True, help="Show the browser's window.")
@json_option
def cdp(proxy: str, tasks: Path | None, task_id: str | None, as_json: bool, **chosen: Any) -> None:
    """Start a browser on a replay session, and print its CDP address.

    PROXY_URL is the control URL of a running replay server, on which the command opens a session. Ctrl-C,
    SIGTERM or a line on stdin ends the browser. With --tasks the command then scores the task, with the line
    as the answer.

    \b
    Example:
      stillweb cdp http://127.0.0.1:8080 -c shop
      stillweb cdp http://127.0.0.1:8080 --tasks shop.tasks.json --task-id cheapest --json
    """
    from stillweb.trainers.cdp import cdp_browser

    if task_id and not tasks:
        raise UsageError("--task-id requires --tasks", hint="add --tasks FILE")
    task = _task(tasks, task_id) if tasks else None

    async def run() -> None:
        async with cdp_browser(
            proxy, chosen["collection"], task=task, headless=not chosen["headed"], port=chosen["port"]
        ) as browser:
            stopped = on_signals()
            if as_json:
                print_json(browser.to_dict())
            else:
                for name, value in browser.to_dict().items():
                    echo(f"{name:<16}{value}")
            echo("Ctrl-C, or a line on stdin, ends it", err=True)
            answer = await _ended(stopped)
            if task is None:
                return
            scored = await browser.score(answer)
            if as_json:
                print_json({"task": task.id, "reward": scored.reward, "reasons": list(scored.reasons)})
            else:
                echo(f"{'reward':<16}{scored.reward:g} ({'; '.join(scored.reasons)})")

    asyncio.run(run())


async def _ended(stopped: asyncio.Event) -> str:
    """Wait for a signal, or a line on stdin; return that line."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        line = sys.stdin.readline()
        if line:
            lines.put_nowait(line.strip())
        else:
            loop.remove_reader(sys.stdin)  # closed, as for a background process: only a signal ends it

    try:
        loop.add_reader(sys.stdin, read)
    except (OSError, ValueError):  # a regular file, or none: always readable, and not an answer
        await stopped.wait()
        return ""
    typed, signalled = asyncio.ensure_future(lines.get()), asyncio.ensure_future(stopped.wait())
    await asyncio.wait([typed, signalled], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin)
    signalled.cancel()
    if typed.done():
        return typed.result()
    typed.cancel()
    return ""


def _task(file: Path, task_id: str | None) -> Task:
    from stillweb.env.tasks.load import load_tasks

    tasks = {task.id: task for task in load_tasks(file)}
    if task_id is None and len(tasks) == 1:
        return next(iter(tasks.values()))
    if task_id not in tasks:
        problem = f"{file} has no task {task_id!r}" if task_id else f"{file} has several tasks"
        more = " ..." if len(tasks) > _LISTED else ""
        raise UsageError(problem, hint=f"--task-id, one of: {', '.join([*tasks][:_LISTED])}{more}")
    return tasks[task_id]
