"""What the commands that record share: where to write, how to reach the sites, how to be stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.cli.console import until_signal
from stillweb.cli.options import certs_option, collections_option
from stillweb.errors import UsageError
from stillweb.record.options import RecordOptions, ScopeKind, SecretsOptions
from stillweb.record.proxy.resolve import parse_all

__all__ = [
    "archive_given",
    "archive_options",
    "name_options",
    "reach_options",
    "record_options",
    "refuse_without",
    "scope_option",
    "until_signal",
]

F = TypeVar("F", bound=Callable[..., Any])

_KEPT = (
    "secrets are kept: whoever gets this collection gets the passwords, tokens and cookies that go through it"
)


def archive_options(command: F) -> F:
    """Add what becomes of secrets, and the size of WARC files; `archive_given` reads them."""
    keep = click.option(
        "--keep-secrets",
        is_flag=True,
        help="Write passwords, Authorization, cookies and tokens as they are, so that whoever has the "
        "collection can log in with them. Without it they are exchanged for placeholders (docs/secrets.md).",
    )
    redact = click.option(
        "--redact",
        "redact",
        multiple=True,
        metavar="NAME",
        help="A further field, cookie or member whose value is secret. Repeatable.",
    )
    spare = click.option(
        "--no-redact",
        "spare",
        multiple=True,
        metavar="NAME",
        help="One whose value is none, whatever the rules say. Repeatable.",
    )
    size = click.option(
        "--warc-size",
        type=click.IntRange(1),
        metavar="MB",
        help="Megabytes at which the next WARC file is started.  [default: 1000]",
    )
    operator = click.option(
        "--operator", metavar="TEXT", help="Who records, for the WARC files' first records."
    )
    return keep(redact(spare(size(operator(command)))))


def archive_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of `RecordOptions`, and say so if secrets are kept.

    Raises:
        UsageError: if options contradict each other.
    """
    _refuse_contradictions(given)
    if given.get("keep_secrets"):
        click.echo(_KEPT, err=True)
    size = given.get("warc_size")
    return {
        "secrets": SecretsOptions(
            keep=bool(given.get("keep_secrets")),
            redact=tuple(given.get("redact", ())),
            spare=tuple(given.get("spare", ())),
        ),
        "warc_size": size * 1_000_000 if size else None,
        "operator": given.get("operator") or "",
    }


def _refuse_contradictions(given: Mapping[str, Any]) -> None:
    redact, spare = ({name.casefold(): name for name in given.get(each, ())} for each in ("redact", "spare"))
    if redact and given.get("keep_secrets"):
        raise UsageError("--redact and --keep-secrets contradict each other", hint="leave one of them out")
    if both := redact.keys() & spare.keys():
        name = redact[min(both)]
        raise UsageError(f"{name!r} is given to --redact and --no-redact", hint="leave it out of one of them")


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
