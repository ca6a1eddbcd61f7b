"""Options of all commands that record: what becomes of secrets, and how the archive is cut into files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from stillweb.errors import UsageError
from stillweb.record.secretsoptions import SecretsOptions

__all__ = ["archive_given", "archive_options"]

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
