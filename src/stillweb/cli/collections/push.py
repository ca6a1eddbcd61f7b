"""`stillweb collections push` and `pull`: packs by digest on shared storage, with what belongs to them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, print_json
from stillweb.cli.options import FOLDER, collections_option, json_option
from stillweb.cli.progress import file_bar
from stillweb.cli.replay.shared import seal_shown
from stillweb.collections.layout import Collection
from stillweb.collections.pack.cache import PackStore, place
from stillweb.collections.pack.publish import PackRemote, is_identifier


@click.command("push")
@click.argument("name")
@click.argument("url")
@click.option("--again", is_flag=True, help="Replace the pack at the URL, for example because it is damaged.")
@json_option
@collections_option
def push(name: str, url: str, again: bool, as_json: bool, root: Path) -> None:
    """Write the pack of a collection to a URL, under its identifier, for other machines to pull.

    URL is on any file system of fsspec: file:///share/packs, s3://bucket/packs (with s3fs installed). The
    command seals the collection first if necessary. At the URL, NAME then refers to this pack.

    Pages, rules, baselines, tasks, traces and certificates go with the pack; a further push replaces them.
    The pack contains the recording and the login of its browser: anyone who can read the URL has both.

    \b
    Example:
      stillweb collections push shop s3://bucket/packs
    """
    collection = Collection.open(root, name)
    seal_shown(collection)
    with file_bar(f"push {name}") as advance:
        remote = PackRemote(url)
        pushed = remote.push(collection.pack, name, again=again, on_progress=advance)
        remote.push_extras(pushed.environment_id, collection)
    if as_json:
        print_json({"name": name, **asdict(pushed)})
        return
    echo(f"{name}: {'written' if pushed.written else 'already present'}: {pushed.url}", err=True)
    echo(pushed.environment_id)


@click.command("pull")
@click.argument("which", metavar="ID|NAME")
@click.argument("url")
@click.option("-c", "--collection", "name", help="Local name of the collection.  [default: NAME, or ID]")
@click.option(
    "--store",
    type=FOLDER,
    envvar="STILLWEB_PACK_STORE",
    help="Folder of downloaded packs.  [default: in the user's cache folder]",
)
@click.option(
    "--store-gib", type=click.FloatRange(0, min_open=True), default=50.0, show_default=True,
    help="Maximum size of that folder in GiB; the least recently used packs are deleted first.",
)  # fmt: skip
@json_option
@collections_option
def pull(which: str, url: str, root: Path, as_json: bool, name: str | None, **store: Any) -> None:
    """Fetch a pushed pack, verify its digests, and make it a local collection.

    The collection replays under the same environment id. Tasks, traces, certificates and baselines are those
    that were pushed last. It cannot be sealed or extended. An identifier always names the same pack; a name
    refers to the pack that was pushed under it last.

    \b
    Example:
      stillweb collections pull shop s3://bucket/packs
      stillweb replay shop
    """
    remote = PackRemote(url)
    environment_id = which if is_identifier(which) else remote.find(which)
    packs = PackStore(store["store"], gib=store["store_gib"])
    with (
        file_bar(f"pull {which[:12]}") as advance,
        packs.hold(environment_id, remote, on_progress=advance) as pack,
    ):
        collection = place(pack, root, name or which)
    extras = remote.pull_extras(environment_id, collection.path)
    if as_json:
        print_json({"name": collection.name, "environment_id": environment_id, "path": str(collection.path)})
        return
    echo(environment_id)
    if extras:
        echo(f"{extras} further files (tasks, traces, certificates, baselines): {collection.path}", err=True)
    echo(f"next: stillweb replay {collection.name}", err=True)
