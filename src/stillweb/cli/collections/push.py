"""`stillweb collections push` and `pull`: packs by digest on storage that machines share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import print_json, progress, stderr
from stillweb.cli.options import collections_option, json_option
from stillweb.cli.replay.commands import seal_shown
from stillweb.collections.layout import Collection
from stillweb.collections.pack.cache import PackStore, place
from stillweb.collections.pack.publish import PackRemote, Progress, is_identifier


@click.command("push")
@click.argument("name")
@click.argument("url")
@click.option("--again", is_flag=True, help="Write the pack even if it is there: it is broken.")
@json_option
@collections_option
def push_command(name: str, url: str, again: bool, as_json: bool, root: Path) -> None:
    """Write the pack of a collection to a URL, under its identifier, for machines to pull.

    URL is of any file system of fsspec: file:///share/packs, s3://bucket/packs (with s3fs installed). The
    pack is sealed first if need be. NAME points to it there from then on.

    The pack holds what the recording does, the login of its browser included: whoever can read the URL
    has it.

    \b
    Example:
      stillweb collections push shop s3://bucket/packs
    """  # noqa: D301
    collection = Collection.open(root, name)
    seal_shown(collection)
    with _bar(f"push {name}") as tell:
        pushed = PackRemote(url).push(collection.pack, name, again=again, on_progress=tell)
    if as_json:
        print_json({"name": name, **asdict(pushed)})
        return
    stderr().print(f"{name}: {'written' if pushed.written else 'was there'}: {pushed.url}", markup=False)
    click.echo(pushed.environment_id)


@click.command("pull")
@click.argument("which", metavar="ID|NAME")
@click.argument("url")
@click.option("-c", "--collection", "name", help="Name of the collection here.  [default: NAME, or ID]")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="STILLWEB_PACK_STORE",
    help="Folder that keeps packs.  [default: the user's, for caches]",
)
@click.option(
    "--store-gib", type=click.FloatRange(0, min_open=True), default=50.0, show_default=True,
    help="How much may lie there; the packs used longest ago go first.",
)  # fmt: skip
@json_option
@collections_option
def pull_command(which: str, url: str, root: Path, as_json: bool, name: str | None, **store: Any) -> None:
    """Fetch a pack that was pushed, compare all of it with its digests, and make it a collection here.

    It is replayed as any collection, under the same environment id, and cannot be sealed or added to. By its
    identifier it is the same for ever; a name is what was pushed under it last.

    \b
    Example:
      stillweb collections pull shop s3://bucket/packs
      stillweb replay shop
    """  # noqa: D301
    depot = PackRemote(url)
    environment_id = which if is_identifier(which) else depot.find(which)
    packs = PackStore(store["store"], gib=store["store_gib"])
    with (
        _bar(f"pull {which[:12]}") as tell,
        packs.hold(environment_id, depot, on_progress=tell) as pack,
    ):
        collection = place(pack, root, name or which)
    if as_json:
        told = {"name": collection.name, "environment_id": environment_id, "path": str(collection.path)}
        print_json(told)
        return
    click.echo(environment_id)
    stderr().print(f"next: stillweb replay {collection.name}", markup=False)


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    with progress() as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
