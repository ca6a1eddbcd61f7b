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


def proxy_option(command: F) -> F:
    """Add `--proxy URL`."""
    return click.option(
        "--proxy",
        required=True,
        metavar="URL",
        help="Control URL of a replay server, as stillweb replay prints it.",
    )(command)


def level_option(command: F) -> F:
    """Add `--level`."""
    return click.option(
        "--level",
        type=click.Choice(["network", "clock", "exact"]),
        default="clock",
        show_default=True,
        help="How much is pinned.",
    )(command)


def observe_option(told: str) -> Callable[[F], F]:
    """Return what adds `--observe FORM`; `told` is its help."""
    return click.option(
        "--observe", multiple=True, default=["axtree"], show_default=True, metavar="FORM", help=told
    )


def session_counts(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read counts of sessions, as a callback; none if nothing was said."""
    if text is None:
        return ()
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (0,)
    if min(counts) < 1 or max(counts) > 256:
        raise click.BadParameter("numbers from 1 to 256, separated by commas, such as 1,8,32")
    return counts


def sites_option(command: F) -> F:
    """Add `--site NAME=URL`, passed on as `sites`."""
    return click.option(
        "--site",
        "sites",
        multiple=True,
        metavar="NAME=URL",
        callback=_sites,
        help="Where a site of a WebArena file is, such as SHOPPING=https://shop.example. Repeatable.",
    )(command)


def _sites(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    told = dict(each.partition("=")[::2] for each in given)
    if not all(told.values()):
        raise click.BadParameter("NAME=URL, such as SHOPPING=https://shop.example")
    return told
