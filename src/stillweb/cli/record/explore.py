"""`stillweb record explore`, and the exploration after `record crawl --explore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, print_json, until_signal
from stillweb.cli.options import option_names, options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.shared import LISTENING, Addition, addition_options, reach_options, skip_option
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import explore as explore_pages
from stillweb.record.explore.options import ExploreEvent, ExploreOptions, ExploreReport
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.options import CrawlOptions

F = TypeVar("F", bound=Callable[..., Any])

_NOT_AFTER_A_CRAWL = ("budget", "record")
EXPLORING = (*option_names(ExploreOptions, without=_NOT_AFTER_A_CRAWL), "explore_skip")
"""Names of the options that say how to explore."""


def explore_options(command: F) -> F:
    """Add how to explore; `explore_from` reads it."""
    return options_from(ExploreOptions(1), "exploring", without=_NOT_AFTER_A_CRAWL)(skip_option(command))


def explore_from(options: ExploreOptions, skip: Sequence[str], **known: Any) -> ExploreOptions:
    """Return the options with the controls to avoid.

    Raises:
        UsageError: if options contradict each other.
    """
    if options.accept and not options.mutations:
        raise UsageError("--read-only and --destructive contradict each other", hint="remove one of them")
    return replace(options, avoid=AvoidRules.of(skip, destructive=options.accept), **known)


@click.command("explore")
@options_from(ExploreOptions(200), without=LISTENING)
@reach_options
@addition_options
def explore(name: str, options: ExploreOptions, reach: CrawlOptions, **given: Any) -> None:
    """Try the actions that an agent can take on the pages of a collection, and record the requests.

    The explorer tries each control of each state once and sends forms with --values. It avoids controls whose
    effect cannot be undone (docs/how-to/explore.md). It writes reachability.jsonl, which `stillweb
    collections reachability NAME` shows. The same command resumes an exploration that ended or was stopped.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25 --explore 300
      stillweb record explore site --budget 200 --values values.yaml
    """
    addition = Addition.of(name, options.record, given)
    options = explore_from(options, given["explore_skip"], login=addition.login, record=addition.record)
    report = _explore(addition.collection, addition.ca, addition.scope(reach), options)
    if given["as_json"]:
        print_json({"collection": name, **asdict(report)})
    else:
        print_explored(name, report)


def explore_after(
    collection: Collection, ca: CertAuthority, crawled: CrawlOptions, urls: Sequence[str], how: ExploreOptions
) -> ExploreReport:
    """Explore the recording of a crawl from some URLs, in the crawl's scope."""
    scope = Scope.of(crawled.scope, urls, crawled.include, crawled.exclude)
    return _explore(collection, ca, scope, how)


def _explore(
    collection: Collection, ca: CertAuthority, scope: Scope, options: ExploreOptions
) -> ExploreReport:
    with progress() as bar:
        task = bar.add_task("exploring", total=options.budget)

        def show(event: ExploreEvent) -> None:
            text = f"{event.states} states, {event.waiting} waiting, {event.body_bytes / 1e6:.1f} MB"
            bar.update(task, completed=event.acts, description=text)

        try:
            return until_signal(explore_pages(collection, ca, scope, options, show))
        except click.Abort:
            bar.console.print(
                f"the explored states are stored; to continue: stillweb record explore {collection.name}",
                markup=False,
            )
            raise


def print_explored(name: str, report: ExploreReport) -> None:
    totals = report.summary
    echo(
        f"{name}: {report.acts} actions taken, {totals['states']} states, {report.waiting} not reached, "
        f"{report.exchanges} exchanges; {totals['answered']} of {totals['actions']} actions have an answer"
    )
    if report.resets:
        echo(f"  put back {report.resets} times, after an action had changed the site")
    if report.uncertain:
        echo(
            f"  {report.uncertain} browser contexts began after another one had changed the site: "
            "--reset-command or --reset-url puts it back",
            err=True,
        )
    for line in report.repaired:
        echo(f"  repaired: {line}", err=True)
    for fault in report.faults:
        echo(f"  abandoned: {fault}", err=True)
