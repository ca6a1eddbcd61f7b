"""`stillweb coverage`: how often agents leave a recording, why, and which command closes each gap."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import (
    FILE,
    FOLDER,
    backend_options,
    certs_option,
    collections_option,
    json_option,
    option_for,
    options_from,
)
from stillweb.cli.progress import counting
from stillweb.cli.replay.shared import default_level, replayed, start_urls
from stillweb.collections.layout import Collection
from stillweb.coverage import (
    CoverageOptions,
    CoverageResult,
    MissCause,
    causes_of,
    closable_rate,
    measure_coverage,
)
from stillweb.options import Option, parse_share
from stillweb.record.explore.plan import AvoidRules
from stillweb.replay import ReplayClient
from stillweb.urls import host_of

_CAUSES = 10  # printed on a terminal


@click.command("coverage")
@click.argument("name")
@options_from(CoverageOptions())
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Start page of walks. Repeatable.  [default: the first pages of the recording]",
)
@click.option(
    "--level",
    type=click.Choice(["exact", "clock", "network"]),
    help="Determinism level.  [default: exact, or clock if the browser cannot keep it]",
)
@click.option("--misses", type=FILE, help="Write the missed requests to this file, for record amend.")
@click.option("--report", type=FOLDER, help="Write an HTML report into this folder.")
@option_for(
    "fail_over",
    float | None,
    None,
    Option("Exit with status 1 if the miss rate is higher.", metavar="PERCENT", parse=parse_share),
)
@backend_options
@json_option
@collections_option
@certs_option
@click.pass_context
def coverage(ctx: click.Context, /, name: str, options: CoverageOptions, **given: Any) -> None:
    """Measure how often agents leave a recording.

    Agents that share no code with the recorder walk on the replay. The miss rate is the share of steps
    without a recorded answer, among those that sent a request and stayed on the site. Misses are grouped by
    cause, each with a command that closes it. Exit status 1 if the rate is above --fail-over, or if no step
    requested anything. pywb has no ledger: with --backend pywb every answer with a status of 400 or more
    counts as missed.

    \b
    Example:
      stillweb coverage shop
      stillweb coverage shop --seeds 20 --report out/coverage --misses misses.jsonl --fail-over 1%
    """
    collection = Collection.open(given["root"], name)
    options = replace(options, level=given["level"] or default_level(given["backend"]))
    result, causes = asyncio.run(_measure(collection, options, given))
    if given["misses"]:
        given["misses"].write_text("".join(each.to_line() for each in result.misses()), "utf-8")
    if given["as_json"]:
        print_json({**result.to_dict(), "causes": [asdict(cause) for cause in causes]})
    else:
        print_coverage(result, causes)
    limit = given["fail_over"]
    rate = result.miss_rate()
    ctx.exit(1 if limit is not None and (rate.share > limit or not rate.tried) else 0)


async def _measure(
    collection: Collection, options: CoverageOptions, given: dict[str, Any]
) -> tuple[CoverageResult, list[MissCause]]:
    hosts = {host_of(capture.url) for capture in collection.captures()}
    starts = list(given["urls"]) or start_urls(collection)
    async with (
        replayed(collection, given["certs_dir"], backend=given["backend"], proxy=given["proxy"]) as url,
        ReplayClient(url) as client,
    ):
        with counting(f"walking on {collection.name}", len(options.agents) * options.seeds) as on_walk:
            result = await measure_coverage(client, collection.name, starts, hosts, options, on_walk=on_walk)
        causes = causes_of(result, recorded_at=collection.manifest().recorded_at)
        if given["report"]:
            from stillweb.coverage.report import take_pictures, write_report  # jinja2 is slow to import

            pictures = await take_pictures(client, result, causes, options.level)
            page = write_report(result, causes, pictures, given["report"])
            echo(f"report: {page}", err=True)
    return result, causes


def print_coverage(result: CoverageResult, causes: list[MissCause]) -> None:
    agents = list(dict.fromkeys(walk.agent for walk in result.walks))
    rows = []
    for agent in (*agents, ""):
        counts, rate = result.counts(agent), result.miss_rate(agent)
        numbers = [counts[key] for key in ("steps", "requested", "left", "missed", "dead")]
        share = f"{rate.share:.1%}" if rate.tried else "not known"
        rows.append((agent or "all", *numbers, share, f"{rate.low:.1%} to {rate.high:.1%}"))
    columns = (
        *("agent", "#steps", "#requested", "#left", "#missed", "#dead ends"),
        *("#miss rate", "#95% interval"),
    )
    print_table(columns, rows, title=f"{result.collection}{' with --derived' if result.derived else ''}")
    closable = closable_rate(result, AvoidRules.of())
    if closable.tried != result.miss_rate().tried:
        echo(f"without controls that the recorder leaves alone: {closable}", err=True)
    if causes:
        shown = [(c.steps, c.method, c.template, c.control, c.command) for c in causes[:_CAUSES]]
        print_table(("#steps", "method", "URL template", "control", "command"), shown, title="causes")
    if len(causes) > _CAUSES:
        echo(f"and {len(causes) - _CAUSES} more causes; --json and --report list them all", err=True)
    for walk in result.walks:
        if walk.error:
            echo(f"{walk.agent} {walk.seed}: {walk.error}", err=True)
