"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def collections_option(command: F) -> F:
    """Add `--collections DIR`, passed on as `root`."""
    return click.option(
        "--collections",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="STILLWEB_COLLECTIONS",
        default=Path("collections"),
        show_default=True,
        help="Folder of the collections.",
    )(command)


def certs_option(command: F) -> F:
    """Add `--certs DIR`, passed on as `certs_dir`."""
    return click.option(
        "--certs",
        "certs_dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="STILLWEB_CERTS",
        default=Path("certs"),
        show_default=True,
        help="Folder of the certificate authority.",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")(command)
