"""Options and checks that the recording commands share."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stillweb.certs import CertAuthority
from stillweb.cli.console import echo
from stillweb.cli.extras import require_extra
from stillweb.cli.options import certs_option, collections_option, json_option, options_from
from stillweb.cli.record.login import login_of, login_options
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.matching.placeholders import key_file
from stillweb.record.crawl.scope import Scope
from stillweb.record.defaults import CrawlDefaults, read_defaults
from stillweb.record.login.steps import Login
from stillweb.record.options import CrawlOptions, RecordOptions

F = TypeVar("F", bound=Callable[..., Any])

LISTENING = ("host", "port", "max_body")
"""Options of `RecordOptions` that only `record proxy` has."""


def name_options(command: F) -> F:
    """Add `--collection`, passed on as `name`, and `--append`."""
    append = click.option(
        "--append", is_flag=True, help="Add to an existing collection; resumes a crawl that was stopped."
    )
    name = click.option("-c", "--collection", "name", required=True, help="Name of the collection.")
    return name(append(command))


def check_record_options(options: RecordOptions, *, extra: str = "record") -> None:
    """Check the extra and the options, warn if secrets are stored, and limit mitmproxy's log.

    Raises:
        ExtraNotInstalled: if a package of the extra is missing.
        UsageError: if options contradict each other.
    """
    if extra:
        require_extra(extra)
    secrets = options.secrets
    redact, spare = ({name.casefold(): name for name in names} for names in (secrets.redact, secrets.exempt))
    if redact and secrets.keep:
        raise UsageError("--redact and --keep-secrets contradict each other", hint="remove one of them")
    if both := redact.keys() & spare.keys():
        name = redact[min(both)]
        raise UsageError(
            f"{name!r} is given to both --redact and --no-redact", hint="remove it from one of them"
        )
    if secrets.keep:
        echo(
            "secrets are stored: anyone with this collection has its passwords, tokens and cookies", err=True
        )
    if logging.getLogger().level >= logging.WARNING:
        # It warns about every site that does not answer; the report lists these.
        logging.getLogger("mitmproxy").setLevel(logging.ERROR)
        # Our error says why it cannot listen; if stopped during start-up it logs an empty error.
        logging.getLogger("mitmproxy.addons.proxyserver").setLevel(logging.CRITICAL)


def is_given(name: str) -> bool:
    """Return True if an option of the current command was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_without(ctx: click.Context, wanted: str, names: Iterable[str]) -> None:
    """Reject options that have an effect only with another option.

    Raises:
        UsageError: if one of `names` was given and the option `wanted` was not.
    """
    if ctx.params[wanted]:
        return
    for option in ctx.command.params:
        if option.name in names and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[0]} requires --{wanted}", hint=f"add --{wanted}")


@dataclass(frozen=True, slots=True)
class Addition:
    """A collection to add to, with the options of its crawl where the command line has none."""

    collection: Collection
    ca: CertAuthority
    defaults: CrawlDefaults
    login: Login | None
    record: RecordOptions

    @classmethod
    def of(cls, name: str, record: RecordOptions, given: Mapping[str, Any]) -> Addition:
        """Open a collection and check the options of the recording."""
        collection = Collection.open(given["root"], name)
        defaults = read_defaults(collection)
        if text := str(defaults):
            echo(f"with the options of the crawl: {text}", err=True)
        key = key_file(collection.root, name)
        if collection.manifest().redactions and not key.exists():
            echo(
                f"warning: the key of the redacted secrets of {name} is missing: what is added now has other "
                "placeholders, and replay misses what depends on both. Copy it from where "
                f"{name} was recorded, to {key}",
                err=True,
            )
        record = defaults.record_options(record)
        check_record_options(record)
        login = login_of(collection, given, defaults)
        return cls(collection, CertAuthority.load_or_init(given["certs_dir"]), defaults, login, record)

    def scope(self, reach: CrawlOptions) -> Scope:
        """Return the scope around the pages that the recording began with."""
        pages, defaults = self.collection.page_list(), self.defaults
        seeds = [page.url for page in pages if page.seed] or [page.url for page in pages]
        kind = reach.scope if is_given("scope") else defaults.scope or reach.scope
        return Scope.of(kind, seeds, reach.include or defaults.include, reach.exclude or defaults.exclude)


def addition_options(command: F) -> F:
    """Add NAME and the options of `Addition`."""
    for decorator in (json_option, certs_option, collections_option, login_options, click.argument("name")):
        command = decorator(command)
    return command


def reach_options(command: F) -> F:
    """Add which pages and controls the recording leaves alone: `reach` and `explore_skip`."""
    return skip_option(options_from(CrawlOptions, "reach", only=("scope", "include", "exclude"))(command))


def skip_option(command: F) -> F:
    """Add `--explore-skip`, passed on as `explore_skip`."""
    return click.option(
        "--explore-skip",
        multiple=True,
        metavar="RE",
        callback=_patterns,
        help="Do not use controls whose name or address matches this regular expression. Repeatable.",
    )(command)


def _patterns(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in given:
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}") from error
    return given
