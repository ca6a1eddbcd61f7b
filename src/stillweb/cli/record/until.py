"""`stillweb record until`: record until agents miss at most a share of what they request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table, until_signal
from stillweb.cli.options import FOLDER, options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.shared import LISTENING, Addition, addition_options, reach_options
from stillweb.cli.replay.shared import default_level, start_urls
from stillweb.coverage import UntilOptions, UntilReport, record_until
from stillweb.record.amend.amend import AmendOptions
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.options import ExploreOptions
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.harvest.options import HarvestOptions
from stillweb.record.options import CrawlOptions
from stillweb.replay import ReplayClient
from stillweb.replay.pywb.backend import serve_by

_PICTURES, _PICTURES_LEAST = 0.05, 20.0  # share of the time limit for the report's pictures, and seconds
_MEASURED = ("agents", "agent_option", "seeds", "first_seed", "steps")
_SET_BY_THE_LOOP = ("pages", "requests", "size", "forms", "words", "jobs", "explore", "amend")


@click.command("until")
@options_from(UntilOptions(), without=("measure", "harvest", "explore", "amend"))
@options_from(UntilOptions().measure, "measure", only=_MEASURED)
@options_from(HarvestOptions(), "harvest", without=(*LISTENING, "time", *_SET_BY_THE_LOOP))
@reach_options
@click.option("--report", "folder", type=FOLDER, help="Write an HTML report into this folder.")
@addition_options
@click.pass_context
def until(ctx: click.Context, /, name: str, options: UntilOptions, reach: CrawlOptions, **given: Any) -> None:
    """Record until agents miss at most a share of what they request.

    Measures the miss rate with agents that share no code with the recorder. Then records the requests that
    they missed or are likely to miss, and measures again with fresh seeds. Ends when the rate is reached or
    the time is over; then the causes that are left are listed. POST forms are sent unless --read-only is
    given. Forms that agents sent with own text are sent with several texts (record forms); the report then
    has the rate of a replay with --derived too. Exit status 1 if the rate is not reached.

    \b
    Example:
      stillweb record crawl https://site.example/ -c site --limit 25
      stillweb record until site --miss-rate 1% --time 30m
    """
    addition = Addition.of(name, given["harvest"].record, given)
    options = _options(options, given, addition)
    report = _run(addition, addition.scope(reach), options)
    if given["folder"]:
        asyncio.run(_write_report(addition, options, report, given["folder"]))
    if given["as_json"]:
        print_json({"collection": name, **report.to_dict()})
    else:
        print_until(name, report)
    ctx.exit(0 if report.reached else 1)


def _options(options: UntilOptions, given: dict[str, Any], addition: Addition) -> UntilOptions:
    chosen: HarvestOptions = given["harvest"]
    login, record, values = addition.login, addition.record, chosen.values
    avoid = AvoidRules.of(given["explore_skip"])
    return replace(
        options,
        measure=replace(given["measure"], level=default_level(options.backend)),
        harvest=replace(chosen, pages=1_000_000, avoid=avoid, login=login, record=record),
        explore=ExploreOptions(1, values=values, avoid=avoid, login=login, record=record),
        amend=AmendOptions(login=login, values=values, record=record),
    )


def _run(addition: Addition, scope: Scope, options: UntilOptions) -> UntilReport:
    collection, ca = addition.collection, addition.ca
    starts = start_urls(collection)
    with progress() as bar:
        task = bar.add_task("measure", total=None)

        def show(text: str) -> None:
            bar.update(task, description=text)
            if text.startswith("round "):
                bar.console.print(text, markup=False)

        return until_signal(record_until(collection, ca, scope, starts, options, show))


async def _write_report(addition: Addition, options: UntilOptions, report: UntilReport, folder: Path) -> None:
    from stillweb.coverage.report import take_pictures, write_report  # jinja2 is slow to import

    result = report.rounds[-1].result
    async with (
        serve_by(options.backend, addition.collection, addition.ca) as url,
        ReplayClient(url) as client,
    ):
        seconds = max(_PICTURES_LEAST, _PICTURES * options.seconds)
        pictures = await take_pictures(client, result, report.causes, options.measure.level, seconds)
    page = write_report(result, report.causes, pictures, folder, report)
    echo(f"report: {page}", err=True)


def print_until(name: str, report: UntilReport) -> None:
    rows = []
    for each in report.rounds:
        rate, counts = each.result.miss_rate(), each.result.counts()
        recorded = ", ".join(f"{count} {means}" for means, count in each.recorded.items()) or "as found"
        share = f"{rate.share:.1%} ({rate.low:.1%} to {rate.high:.1%})" if rate.tried else "not known"
        numbers = (counts[name] for name in ("requested", "missed", "dead"))
        rows.append((each.number, f"{each.seconds / 60:.1f}", recorded, *numbers, share))
    columns = (
        *("#round", "#minutes", "exchanges recorded", "#requested", "#missed", "#dead ends"),
        "#miss rate (95%)",
    )
    print_table(columns, rows, title=f"{name}: {'target reached' if report.reached else report.why}")
    if report.late:
        echo(f"{report.late} exchanges were recorded after the last measurement: no rate counts them")
    if report.forms:
        forms = [("refused" if e.refused else "proved", e.name, e.refused) for e in report.forms]
        print_table(("", "form", "reason"), forms, title="forms recorded with several texts")
    if report.derived is not None:
        default = report.rounds[-1].result.miss_rate()
        echo(f"miss rate as replay answers by default: {default}")
        echo(f"miss rate of the same seeds with --derived: {report.derived.miss_rate()}")
    if report.causes and not report.reached:
        left = [(c.steps, c.method, c.template, c.control, c.why, c.command) for c in report.causes[:10]]
        heads = ("#steps", "method", "URL template", "control", "why it is left", "command")
        print_table(heads, left, title="causes left")
