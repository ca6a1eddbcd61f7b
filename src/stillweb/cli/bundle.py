"""`stillweb bundle`: publish a benchmark as one file, check one, and install one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stillweb.cli import CommandGroup
from stillweb.cli.console import echo, print_json
from stillweb.cli.options import EXISTING_FILE, FILE, collections_option, json_option
from stillweb.cli.progress import file_bar
from stillweb.cli.replay.shared import seal_shown
from stillweb.collections.bundle import Bundle, install_bundle, make_bundle, verify_bundle
from stillweb.collections.layout import Collection
from stillweb.text import printable

key_option = click.option(
    "--public-key",
    metavar="KEY|FILE",
    default="",
    help="Key of the publisher (minisign). Without it no signature is checked.",
)
id_option = click.option(
    "--id", "environment_id", default="", help="Environment id that the bundle must have."
)


@click.group(cls=CommandGroup)
def bundle() -> None:
    """Publish a benchmark as one file that others can verify.

    \b
    Example:
      stillweb bundle make shop --tasks tasks.yaml --license LICENSE -o shop.wacz
      stillweb bundle install shop.wacz -c shop --public-key RWQf6LRC...
    """


@bundle.command("make")
@click.argument("name")
@click.option("-o", "--output", type=FILE, help="File to write.  [default: NAME.wacz in the working folder]")
@click.option("--tasks", type=EXISTING_FILE, multiple=True, help="Task file to include; repeatable.")
@click.option("--license", "licence", type=EXISTING_FILE, help="File that says what others may do with it.")
@click.option(
    "--sign", "secret_key", type=EXISTING_FILE, help="Secret key of minisign; writes FILE.minisig beside it."
)
@json_option
@collections_option
def make(name: str, output: Path | None, as_json: bool, root: Path, **files: Any) -> None:
    """Write a collection with tasks, traces, certificates and licence as one WACZ.

    The command seals the collection first if necessary. The file states the environment id, and equal
    collections give equal bytes. It also opens in ReplayWeb.page.

    \b
    Example:
      stillweb bundle make shop --tasks tasks.yaml --license LICENSE --sign ~/.minisign/minisign.key
    """
    collection = Collection.open(root, name)
    seal_shown(collection)
    made = make_bundle(collection, output or Path(f"{name}.wacz"), **files)
    _print(made, as_json)
    if not made.tasks:
        echo("it has no tasks; next: --tasks FILE", err=True)
    if not made.certificates:
        echo(f"it has no certificate of this environment id; next: stillweb certify {name}", err=True)
    if not made.licence:
        echo("it says nothing about its licence; next: --license FILE", err=True)


@bundle.command("verify")
@click.argument("file", type=FILE)
@key_option
@id_option
@json_option
def verify(file: Path, as_json: bool, **checks: str) -> None:
    """Check signature, digests and environment id of a bundle, without installing it.

    The bundle is imported and sealed in a temporary folder beside it, which takes about its size on disk.

    \b
    Example:
      stillweb bundle verify shop.wacz --public-key publisher.pub
    """
    with file_bar() as advance:
        found = verify_bundle(file, on_progress=advance, **checks)
    _print(found, as_json)
    if not found.signed:
        echo("no signature was checked; next: --public-key KEY", err=True)


@bundle.command("install")
@click.argument("file", type=FILE)
@click.option("-c", "--collection", "name", help="Name of the new collection.  [default: that of the file]")
@key_option
@id_option
@json_option
@collections_option
def install(file: Path, name: str | None, as_json: bool, root: Path, **checks: str) -> None:
    """Verify a bundle, and import it as a sealed collection.

    \b
    Example:
      curl -O https://bench.example/shop.wacz -O https://bench.example/shop.wacz.minisig
      stillweb bundle install shop.wacz --public-key RWQf6LRC...
      stillweb certify --verify collections/shop/certificate-exact.json
    """
    name = name or file.name.removesuffix(".wacz")
    with file_bar() as advance:
        installed = install_bundle(file, root, name, on_progress=advance, **checks)
    _print(installed, as_json)
    if installed.tasks:
        echo(f"tasks: {root / name / 'tasks'}", err=True)
    echo(f"next: stillweb replay {name}", err=True)


def _print(found: Bundle, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    rows = {
        "file": found.path,
        "environment id": found.environment_id,
        "sha256": found.sha256,
        "signed": found.signed or "-",
        "license": found.licence or "-",
        "tasks": ", ".join(found.tasks) or "-",
        "certificates": ", ".join(found.certificates) or "-",
    }
    for name, value in rows.items():
        echo(f"{name:<16}{printable(value)}")
