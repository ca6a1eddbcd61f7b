"""`stillweb record forms`: record what forms answer, to derive the answers to other values."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table, until_signal
from stillweb.cli.options import options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.shared import LISTENING, Addition, addition_options, reach_options
from stillweb.collections.branches import FormOutcome
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.forms.run import FormsOptions, FormsReport, record_forms
from stillweb.record.options import CrawlOptions


@click.command("forms")
@options_from(FormsOptions(), without=LISTENING)
@reach_options
@addition_options
def forms(name: str, options: FormsOptions, reach: CrawlOptions, **given: Any) -> None:
    """Record what the forms of a collection answer, and prove what their answers depend on.

    Each form with free text is sent several times with values that occur nowhere in the collection. THIS
    CHANGES THE SITE. If the answers differ in the values only, `replay --derived` gives them for other values
    too. The recorded answers stay as they are. Forms that log out, delete or order, and forms with a
    password, are not sent.

    \b
    Example:
      stillweb record forms shop --reset-command ./restore-database.sh
      stillweb record forms wiki --page https://wiki.example/start?do=edit --login steps.yaml
      stillweb replay shop --derived
    """
    addition = Addition.of(name, options.record, given)
    avoid = AvoidRules.of(given["explore_skip"], sends=True)
    options = replace(options, avoid=avoid, login=addition.login, record=addition.record)
    scope = addition.scope(reach)
    with progress() as bar:
        task = bar.add_task("recording forms", total=None)

        def show(outcome: FormOutcome, left: int) -> None:
            bar.advance(task)
            bar.update(task, total=bar.tasks[0].completed + left, description=outcome.name[:60])

        def show_read(documents: int) -> None:
            bar.update(task, description=f"reading {documents} documents")

        recording = record_forms(addition.collection, addition.ca, scope, options, show, show_read)
        report = until_signal(recording)
    _print_report(name, report, as_json=given["as_json"])
    if not report.outcomes:
        echo(why_none(report, options), err=True)
        return
    if not options.reset:
        echo(
            "the site was not put back between the recordings, so that each may show the writes of those "
            "before: give --reset-command or --reset-url",
            err=True,
        )


def why_none(report: FormsReport, options: FormsOptions) -> str:
    """Return why no form was recorded, and what to do."""
    if report.outside:
        return f"{report.outside} forms are sent out of the scope: give --scope host, or --include"
    where = "these pages have" if options.page else "the recorded pages have"
    return f"{where} no form; forms that a script sends need --script"


def _print_report(name: str, report: FormsReport, *, as_json: bool) -> None:
    if as_json:
        print_json({"collection": name, **asdict(report)})
        return
    proved = sum(not each.refused for each in report.outcomes)
    rows = [
        (
            "refused" if each.refused else "proved",
            each.name,
            each.reads,
            each.refused or "; ".join(each.left_out),
        )
        for each in report.outcomes
    ]
    title = f"{name}: {proved} of {len(rows)} forms proved, environment {report.environment_id[:12]}"
    print_table(("", "form", "#pages", "reason, or what is left out"), rows, title=title)
