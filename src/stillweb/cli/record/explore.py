"""`stillweb record explore`, and the options by which `record crawl` goes on to explore."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, progress
from stillweb.cli.options import json_option
from stillweb.cli.record.login import login_given, login_options, tell_stranger
from stillweb.cli.record.shared import reach_options, record_options, scope_option, until_signal
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import ExploreEvent, ExploreOptions, ExploreReport, explore
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import read_values
from stillweb.record.login.steps import Login
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind

__all__ = [
    "EXPLORE",
    "EXPLORING",
    "explore_after",
    "explore_command",
    "explore_given",
    "explore_options",
    "tell_explored",
]

F = TypeVar("F", bound=Callable[..., Any])


EXPLORE = click.option(
    "--explore",
    type=click.IntRange(1),
    metavar="BUDGET",
    help="Then try what an agent may do on the pages, BUDGET acts at most (docs/explore.md).",
)

EXPLORING = ("explore_time", "explore_links", "values", "skip", "alike", "read_only", "destructive")
"""Names of the options that say how."""


def explore_options(command: F) -> F:
    """Add how an exploration goes, but for its budget."""
    options = (
        click.option(
            "--explore-time", type=click.FloatRange(1), metavar="SECONDS", help="Explore no longer than that."
        ),
        click.option(
            "--explore-links",
            type=click.IntRange(0),
            metavar="N",
            help="Addresses at most that are opened beside, without being explored; BUDGET if not told.",
        ),
        click.option(
            "--values",
            multiple=True,
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="YAML of field names and values that forms are filled with, or a file of tasks. Repeatable.",
        ),
        click.option(
            "--explore-skip",
            "skip",
            multiple=True,
            metavar="RE",
            callback=_patterns,
            help="Leave controls alone whose name or address matches. Repeatable.",
        ),
        click.option(
            "--explore-alike",
            "alike",
            type=click.IntRange(1),
            default=3,
            show_default=True,
            help="Controls of one kind, such as the rows of a table, tried in a state.",
        ),
        click.option("--read-only", is_flag=True, help="Try nothing that sends a form by POST."),
        click.option(
            "--destructive",
            is_flag=True,
            help="Try also what logs out, deletes, orders or pays, and say yes to dialogs.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _patterns(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in given:
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r} is no regular expression: {error}") from error
    return given


@click.command("explore")
@click.argument("name")
@click.option("--budget", type=click.IntRange(1), default=200, show_default=True, help="Acts at most.")
@explore_options
@scope_option("How far from the pages that the recording began with.")
@click.option("--include", multiple=True, metavar="RE", help="Lead to links that match only. Repeatable.")
@click.option("--exclude", multiple=True, metavar="RE", help="Do not lead to links that match. Repeatable.")
@login_options
@reach_options
@json_option
def explore_command(name: str, **given: Any) -> None:
    """Try what an agent may do on the pages of a collection, and record what that asks for.

    Each control of each state is tried once, forms are sent with --values; what cannot be undone is left
    alone (docs/explore.md). What came of it is in the collection's reachability.jsonl: `stillweb collections
    reachability NAME`. The same command goes on where it ended or was stopped.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25 --explore 300
      stillweb record explore site --budget 200 --values values.yaml
    """  # noqa: D301  click reads \b itself
    collection = Collection.open(given["root"], name)
    pages = collection.page_list()
    seeds = [page.url for page in pages if page.seed] or [page.url for page in pages]
    scope = Scope.of(ScopeKind(given["scope"]), seeds, given["include"], given["exclude"])
    ca = CertAuthority.load_or_init(given["certs_dir"])
    login = login_given(given)
    tell_stranger(collection, login)
    options = _options(given["budget"], given, record_options(given), login)
    report = _explore(collection, ca, scope, options)
    if given["as_json"]:
        print_json({"collection": name, **asdict(report)})
    else:
        tell_explored(name, report)


def explore_given(crawled: CrawlOptions, given: dict[str, Any]) -> ExploreOptions | None:
    """Return how a crawl goes on to explore, read before it begins; None if it does not.

    Raises:
        UsageError: if a file of values is none, or options contradict each other.
    """
    budget = given["explore"]
    return _options(budget, given, crawled.record, crawled.login) if budget else None


def explore_after(
    collection: Collection, ca: CertAuthority, crawled: CrawlOptions, urls: Sequence[str], how: ExploreOptions
) -> ExploreReport:
    """Explore what a crawl of some URLs has recorded, in the crawl's scope."""
    scope = Scope.of(crawled.scope, urls, crawled.include, crawled.exclude)
    return _explore(collection, ca, scope, how)


def _options(
    budget: int, given: dict[str, Any], record: RecordOptions, login: Login | None
) -> ExploreOptions:
    if given["read_only"] and given["destructive"]:
        raise UsageError("--read-only and --destructive contradict each other", hint="give one of them")
    return ExploreOptions(
        budget,
        links=given["explore_links"],
        seconds=given["explore_time"],
        values=read_values(given["values"]),
        avoid=AvoidRules.of(given["skip"], destructive=given["destructive"]),
        alike=given["alike"],
        accept=given["destructive"],
        mutations=not given["read_only"],
        login=login,
        record=record,
    )


def _explore(
    collection: Collection, ca: CertAuthority, scope: Scope, options: ExploreOptions
) -> ExploreReport:
    with progress() as bar:
        task = bar.add_task("exploring", total=options.budget)

        def show(event: ExploreEvent) -> None:
            text = f"{event.states} states, {event.waiting} wait, {event.body_bytes / 1e6:.1f} MB"
            bar.update(task, completed=event.acts, description=text)

        try:
            return until_signal(explore(collection, ca, scope, options, show))
        except click.Abort:
            bar.console.print(
                f"what was explored is kept; stillweb record explore {collection.name} goes on", markup=False
            )
            raise


def tell_explored(name: str, report: ExploreReport) -> None:
    """Print what came of an exploration."""
    said = report.summary
    click.echo(
        f"{name}: {report.acts} acts, {said['states']} states, {report.waiting} not come to, "
        f"{report.exchanges} exchanges; {said['answered']} of {said['actions']} actions have an answer"
    )
    for line in report.repaired:
        click.echo(f"  mended: {line}", err=True)
    for fault in report.faults:
        click.echo(f"  given up: {fault}", err=True)
