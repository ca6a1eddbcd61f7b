"""`stillweb record harvest`: record the pages that links and GET forms lead to, without a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from stillweb.cli.console import echo, echo_first, print_json, until_signal
from stillweb.cli.options import options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.shared import LISTENING, Addition, addition_options, reach_options
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.harvest.harvest import harvest as harvest_pages
from stillweb.record.harvest.options import HarvestOptions, HarvestReport
from stillweb.record.options import CrawlOptions

_FAILED = 5  # URLs without an answer that are named


@click.command("harvest")
@options_from(HarvestOptions(), without=LISTENING)
@reach_options
@addition_options
def harvest(name: str, options: HarvestOptions, reach: CrawlOptions, **given: Any) -> None:
    """Record the pages that a collection's pages lead to, by plain HTTP.

    The harvest follows links and GET forms in the order in which a random visitor is likely to reach them. It
    records each page with the resources that its HTML and style sheets name; scripts do not run. It waits as
    `Retry-After` says and does not follow links that log out, delete or order. The same command continues
    where it ended.

    \b
    Example:
      stillweb record harvest site
      stillweb record harvest site --pages 20000 --time 600 --words 500
    """
    addition = Addition.of(name, options.record, given)
    avoid = AvoidRules.of(given["explore_skip"])
    options = replace(options, avoid=avoid, login=addition.login, record=addition.record)
    report = _harvest(addition, addition.scope(reach), options)
    if given["as_json"]:
        print_json({"collection": name, **report.to_dict()})
    else:
        print_harvest(name, report)


def _harvest(addition: Addition, scope: Scope, options: HarvestOptions) -> HarvestReport:
    with progress(rate="pages") as bar:
        task = bar.add_task("harvesting", total=options.pages)

        def show(report: HarvestReport) -> None:
            text = f"{report.requests} requests, {report.body_bytes / 1e6:.1f} MB"
            bar.update(task, completed=report.pages, description=text)

        return until_signal(harvest_pages(addition.collection, addition.ca, scope, options, show))


def print_harvest(name: str, report: HarvestReport) -> None:
    rate = report.pages / report.seconds if report.seconds else 0.0
    echo(
        f"{name}: {report.pages} pages, {report.forms} forms, {report.requests} requests, "
        f"{report.body_bytes / 1e6:.1f} MB in {report.seconds:.1f} s ({rate:.1f} pages/s); "
        f"{report.waiting} URLs not reached" + (f", ended by {report.ended_by}" if report.ended_by else "")
    )
    if report.forbidden:
        echo(f"  {report.forbidden} URLs left out: robots.txt forbids them", err=True)
    others = {status: count for status, count in sorted(report.statuses.items()) if status != 200}
    if others:
        listed = ", ".join(f"{count} x {status}" for status, count in others.items())
        echo(f"  statuses: {listed}", err=True)
    echo_first([f"  no answer: {reason or url}" for url, reason in report.failed.items()], _FAILED)
