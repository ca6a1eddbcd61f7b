"""What the commands that record share: where to write, how to reach the sites, how to be stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.cli.options import certs_option, collections_option
from stillweb.cli.recordsecrets import archive_given, archive_options
from stillweb.cli.signals import until_signal
from stillweb.errors import UsageError
from stillweb.record.options import RecordOptions, ScopeKind
from stillweb.record.resolve import parse_all

__all__ = [
    "name_options",
    "reach_options",
    "record_options",
    "refuse_without",
    "scope_option",
    "until_signal",
]

F = TypeVar("F", bound=Callable[..., Any])


def name_options(command: F) -> F:
    """Add which collection to write."""
    append = click.option(
        "--append", is_flag=True, help="Add to the collection, and go on with a crawl that was stopped."
    )
    name = click.option("-c", "--collection", "name", required=True, help="Name of the collection.")
    return name(append(command))


def scope_option(what: str) -> Callable[[F], F]:
    """Return the option that says how far links lead; `what` is its help."""
    return click.option(
        "--scope",
        type=click.Choice([kind.value for kind in ScopeKind]),
        default=ScopeKind.HOST.value,
        show_default=True,
        help=what,
    )


def reach_options(command: F) -> F:
    """Add how to find the sites, and where collections and certificates are."""
    resolve = click.option(
        "--resolve",
        "rules",
        multiple=True,
        metavar="HOST[:PORT]=ADDR[:PORT]",
        help="Where a host really is; *.NAME is every host below it. Repeatable.",
    )
    upstream_ca = click.option(
        "--upstream-ca",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="PEM file of a CA that the sites use besides the system's.",
    )
    return resolve(upstream_ca(collections_option(certs_option(archive_options(command)))))


def refuse_without(ctx: click.Context, wanted: str, names: Iterable[str]) -> None:
    """Refuse options that say nothing without another.

    Raises:
        UsageError: if one of `names` was given and the option `wanted` was not.
    """
    if ctx.params[wanted]:
        return
    for option in ctx.command.params:
        if option.name in names and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            needed = f"--{wanted}"
            raise UsageError(f"{option.opts[0]} says nothing without {needed}", hint=f"add {needed}")


def record_options(given: dict[str, Any], **more: Any) -> RecordOptions:
    """Return how to record, of what was said on the command line."""
    if logging.getLogger().level >= logging.WARNING:
        # It warns of every site that does not answer, which is in our report.
        logging.getLogger("mitmproxy").setLevel(logging.ERROR)
        # What keeps it from listening is in our error; stopped while it starts, it logs an empty one.
        logging.getLogger("mitmproxy.addons.proxyserver").setLevel(logging.CRITICAL)
    return RecordOptions(
        resolve=parse_all(given["rules"]),
        upstream_ca=given["upstream_ca"],
        host=given.get("host", "127.0.0.1"),
        port=given.get("port", 0),
        **archive_given(given),
        **more,
    )
