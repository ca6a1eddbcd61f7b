"""`stillweb view`: trajectories in a browser, or as a single HTML file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from stillweb.cli.console import echo, on_signals, print_json
from stillweb.cli.options import EXISTING_FOLDER, FILE, json_option
from stillweb.errors import UsageError

_PAIR = 2


@click.command("view")
@click.argument("folder", metavar="DIR", type=EXISTING_FOLDER)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the page.  [default: a free one]"
)
@click.option("--export", "target", type=FILE, help="Write the chosen episode as one HTML file, and end.")
@click.option(
    "--episode",
    "episodes",
    multiple=True,
    metavar="PATH",
    help="Folder of an episode below DIR, for --export. Twice: two episodes side by side.",
)
@json_option
def view(folder: Path, port: int, target: Path | None, episodes: tuple[str, ...], as_json: bool) -> None:
    """Show the trajectories below DIR on a page for this machine, until Ctrl-C.

    DIR is the folder of a rollout, or any folder of trajectories. The page lists the episodes with their
    rewards and misses, plays an episode step by step, and shows two episodes from their first difference.
    Episodes that are still being played appear as they are written.

    \b
    Example:
      stillweb view out/run
      stillweb view out/run --episode tasks/cheapest/0 --export episode.html
      stillweb view out/run --episode tasks/cheapest/0 --episode tasks/cheapest/1 --export two.html
    """
    if target is not None:
        _export(folder, target, episodes)
        return
    if episodes:
        raise UsageError(
            "--episode requires --export", hint="open the episode on the page, or add --export FILE"
        )
    asyncio.run(_serve(folder, port, as_json))


async def _serve(folder: Path, port: int, as_json: bool) -> None:
    from stillweb.server.serving import serve_viewer

    async with serve_viewer(folder, port=port) as url:
        stopped = on_signals()
        if as_json:
            print_json({"url": url})
        else:
            echo(url)
            echo("Ctrl-C ends it", err=True)
        await stopped.wait()


def _export(folder: Path, target: Path, episodes: tuple[str, ...]) -> None:
    from stillweb.server.viewer.export import export

    if not 1 <= len(episodes) <= _PAIR:
        raise UsageError("--export needs one or two episodes", hint="--episode tasks/ID/0")
    folders = {each: folder / each for each in episodes}
    for each in folders.values():
        if not (each / "trajectory.jsonl").is_file():
            raise UsageError(f"{each} has no trajectory.jsonl", hint=f"stillweb view {folder} lists episodes")
    target.write_text(export(folders), encoding="utf-8")
    echo(f"{target}  {target.stat().st_size:,} bytes")
