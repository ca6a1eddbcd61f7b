"""`stillweb view`: trajectories in a browser, or as a single HTML file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, on_signals, print_json
from stillweb.cli.options import FILE, json_option
from stillweb.errors import PeerError, UsageError

_PAIR = 2
_SILENT_SECONDS = 30.0


class _FolderOrUrl(click.Path):
    """A folder, or the URL of a rollout server, which stays a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        is_url = isinstance(value, str) and value.startswith(("http://", "https://"))
        return value if is_url else super().convert(value, param, ctx)


@click.command("view")
@click.argument("folder", metavar="DIR|URL", type=_FolderOrUrl(path_type=Path, exists=True, file_okay=False))
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
def view(
    folder: Path | str, port: int, target: Path | None, episodes: tuple[str, ...], as_json: bool
) -> None:
    """Show the trajectories below DIR on a page for this machine, until Ctrl-C.

    DIR is the folder of a rollout, or any folder of trajectories. The page lists the episodes with their
    rewards and misses, plays an episode step by step, and shows two episodes from their first difference.
    Episodes that are still being played appear as they are written. A rollout server has such a page itself:
    with its URL the command prints the address of the page, and ends.

    \b
    Example:
      stillweb view out/run
      stillweb view http://127.0.0.1:7000
      stillweb view out/run --episode tasks/cheapest/0 --export episode.html
      stillweb view out/run --episode tasks/cheapest/0 --episode tasks/cheapest/1 --export two.html
    """
    if isinstance(folder, str):
        if target is not None or episodes:
            raise UsageError("a server's episodes are shown only", hint="--export needs the folder")
        _print_page(folder, as_json)
        return
    if target is not None:
        _export(folder, target, episodes)
        return
    if episodes:
        raise UsageError(
            "--episode requires --export", hint="open the episode on the page, or add --export FILE"
        )
    asyncio.run(_serve(folder, port, as_json))


def _print_page(url: str, as_json: bool) -> None:
    import httpx

    from stillweb.server.guard import VIEWER

    page = f"{url.rstrip('/')}{VIEWER}/"
    try:
        status = httpx.get(page, timeout=_SILENT_SECONDS, trust_env=False).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PeerError(f"no rollout server at {url}: {error}", hint="stillweb serve starts one") from error
    if status != httpx.codes.OK:
        raise PeerError(
            f"{url} shows no episodes ({page} answers {status})", hint="stillweb serve ... --trajectories DIR"
        )
    print_json({"url": page}) if as_json else echo(page)


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
