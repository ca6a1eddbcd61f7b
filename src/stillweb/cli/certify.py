"""`stillweb certify`: run traces repeatedly, and certify that nothing differs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Any

import click
from click.core import ParameterSource

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import (
    EXISTING,
    FILE,
    FOLDER,
    backend_options,
    certs_option,
    collections_option,
    json_option,
    options_from,
)
from stillweb.cli.progress import counting
from stillweb.cli.replay.shared import replayed
from stillweb.collections.layout import Collection
from stillweb.diff.certify.certificate import (
    Certificate,
    TraceResult,
    VerifiedTrace,
    VerifyVerdict,
    compare_certificates,
)
from stillweb.diff.certify.certify import CertifyOptions
from stillweb.diff.certify.certify import certify as certify_traces
from stillweb.diff.certify.divergence import TraceDivergence
from stillweb.env import Env, EnvOptions, Trace, load_tasks, propose_trace
from stillweb.errors import UsageError
from stillweb.replay import ReplayClient

_LINES = 12  # of a difference; the certificate contains more


def print_certificate(certificate: Certificate) -> None:
    """Print a row per trace, a row per session count, the first differences, and a summary."""
    forms = certificate.forms
    columns = ["trace", "#steps", "#runs", "#fail", "#streams", *(f"#{form}" for form in forms)]
    rows = [_trace_row(result, forms) for result in certificate.traces]
    if any(row[-1] for row in rows):
        print_table([*columns, "first difference"], rows)
    else:
        print_table(columns, [row[:-1] for row in rows])
    print_table(
        ["sessions", "#runs", "#differ", "#fail", "#flagged", "#unsettled", "#ms/step", "#p90"],
        _group_rows(certificate),
    )
    for result in certificate.traces:
        if result.divergence:
            _print_divergence(result.divergence)
        if result.error:
            echo(f"{result.trace.name}: broken by us: {result.error}")
    echo(f"{certificate.collection}: {certificate.summary()} ({certificate.seconds:.1f} s)")


def print_verified(certified: Certificate, here: Certificate, rows: Sequence[VerifiedTrace]) -> None:
    print_table(
        ["trace", "#equal steps", "verdict", "first difference", "why"],
        [
            (
                row.trace,
                f"{row.equal}/{row.steps}",
                row.verdict.value,
                "" if row.step is None else f"step {row.step}: {', '.join(row.forms)}",
                row.why,
            )
            for row in rows
        ],
    )
    for result in here.traces:
        if result.divergence:
            _print_divergence(result.divergence)
    others = here.machine.differs_from(certified.machine)
    echo(f"made on {'this kind of machine' if not others else ', '.join(others)}, {certified.made}")


def _trace_row(result: TraceResult, forms: Sequence[str]) -> list[str]:
    divergence = result.divergence
    where = "" if divergence is None else f"step {divergence.step}: {', '.join(divergence.forms)}"
    streams = [str(result.distinct.get(form, "-")) for form in forms]
    counts = [str(value) for value in (len(result.steps), result.runs, result.failed, result.streams)]
    return [result.trace.name, *counts, *streams, where or result.error]


def _group_rows(certificate: Certificate) -> list[list[str]]:
    keys = list(dict.fromkeys((g.jobs, g.loaded) for trace in certificate.traces for g in trace.groups))
    rows = []
    for jobs, loaded in keys:
        groups = [g for t in certificate.traces for g in t.groups if (g.jobs, g.loaded) == (jobs, loaded)]
        sums = [
            sum(getattr(g, name) for g in groups)
            for name in ("runs", "differ", "failed", "flagged", "unsettled")
        ]
        walls = [max(g.median for g in groups), max(g.p90 for g in groups)]
        label = f"{jobs}{', machine loaded' if loaded else ''}"
        rows.append([label, *map(str, sums), *(f"{1000 * wall:.0f}" for wall in walls)])
    return rows


def _print_divergence(divergence: TraceDivergence) -> None:
    action = divergence.action or "reset"
    echo(
        f"\n{divergence.trace}, step {divergence.step} ({action}) at {divergence.url}: "
        f"{divergence.runs} runs differ from the reference, in {divergence.streams} ways"
    )
    if divergence.looks_like:
        echo(f"  looks like {divergence.looks_like}")
    if divergence.node:
        echo(f"  node: {divergence.node}")
    changed = [line for line in divergence.lines if line.kind in "-+"]
    for line in changed[:_LINES]:
        echo(f"    {line.kind} {line.text.strip()}")
    if len(changed) > _LINES:
        echo(f"    and {len(changed) - _LINES} more lines")
    for place in divergence.regions:
        left, top, right, bottom = place.box
        echo(f"  pixels: {left},{top} to {right},{bottom}  {place.element}")
    for request in divergence.requests:
        echo(f"  request: {request}")


_EXPLORED = 3  # traces, if the command line names none and the collection has none
_VERIFY_RUNS, _VERIFY_JOBS = 3, (1,)  # defaults with --verify


@click.command("certify")
@click.argument("name", required=False)
@click.option(
    "--traces", multiple=True, type=EXISTING, metavar="FILE", help="Trace or trajectory. Repeatable."
)
@click.option("--tasks", type=EXISTING, help="Task file: each task's start page is a trace.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Run the first N traces only.")
@click.option("--explore", type=click.IntRange(1), metavar="N", help="Make N traces by exploring.")
@click.option(
    "--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps of each explored trace."
)
@options_from(CertifyOptions)
@backend_options
@click.option(
    "--out", type=FILE, help="File for the certificate.  [default: certificate-LEVEL.json in the collection]"
)
@click.option(
    "--verify", type=EXISTING, metavar="FILE", help="Repeat the runs of this certificate, and compare."
)
@click.option("--report", type=FOLDER, help="Write index.html into this folder.")
@click.option("--junit", type=FILE, help="Write JUnit XML to this file.")
@json_option
@collections_option
@certs_option
@click.pass_context
def certify(ctx: click.Context, /, name: str | None, options: CertifyOptions, **given: Any) -> None:
    """Run traces on a replayed collection repeatedly, and certify that nothing differs.

    Traces are from files, tasks, exploration, or the collection's own traces/ folder. A run fails if any
    observation differs from the most frequent one, or if the environment flags a step as not exact. The
    command explains the first difference. Exit status 1 if a run fails, or a certificate does not hold on
    this machine. With --verify, --runs defaults to 3 and --jobs to 1.

    \b
    Example:
      stillweb certify shop
      stillweb certify shop --explore 5 --runs 40 --jobs 1,16 --level exact --load
      stillweb certify --verify collections/shop/certificate-clock.json
    """
    if given["verify"]:
        if ctx.get_parameter_source("runs") is ParameterSource.DEFAULT:
            options = replace(options, runs=_VERIFY_RUNS)
        if ctx.get_parameter_source("jobs") is ParameterSource.DEFAULT:
            options = replace(options, jobs=_VERIFY_JOBS)
        ctx.exit(_verify(name, options, given))
    if not name:
        raise UsageError(
            "no collection named", hint="stillweb certify NAME, or stillweb certify --verify FILE"
        )
    collection = Collection.open(given["root"], name)
    certificate = asyncio.run(_certify(collection, options, given))
    path = certificate.write(given["out"] or collection.path / f"certificate-{certificate.level}.json")
    echo(f"certificate: {path}", err=True)
    _write_more(certificate, given)
    if given["as_json"]:
        print_json(certificate.to_dict())
    else:
        print_certificate(certificate)
    ctx.exit(0 if certificate.passed else 1)


def _verify(name: str | None, options: CertifyOptions, given: dict[str, Any]) -> int:
    certified = Certificate.load(given["verify"])
    collection = Collection.open(given["root"], name or certified.collection)
    options = replace(
        options,
        level=certified.level,
        observe=certified.forms,
        unrecorded=certified.unrecorded,
        perturb=certified.perturb,
        perturb_seed=certified.perturb_seed,
    )
    given |= {"backend": certified.backend}
    here = asyncio.run(_certify(collection, options, given, [each.trace for each in certified.traces]))
    if here.environment_id != certified.environment_id:
        raise UsageError(
            f"{collection.name} is another pack ({here.environment_id}) than the certificate's "
            f"({certified.environment_id})",
            hint=f"stillweb collections show {collection.name}",
        )
    rows = compare_certificates(certified, here)
    _write_more(here, given)
    if given["as_json"]:
        print_json(_verified_dict(certified, here, rows))
    else:
        print_verified(certified, here, rows)
    return 0 if all(row.verdict is VerifyVerdict.EQUAL for row in rows) else 1


def _verified_dict(
    certified: Certificate, here: Certificate, rows: Sequence[VerifiedTrace]
) -> dict[str, Any]:
    return {
        "equal": all(row.verdict is VerifyVerdict.EQUAL for row in rows),
        "divergence": any(row.verdict is VerifyVerdict.DIVERGENCE for row in rows),
        "machine": {"certified": asdict(certified.machine), "here": asdict(here.machine)},
        "traces": [asdict(row) for row in rows],
        "here": here.to_dict(),
    }


def _write_more(certificate: Certificate, given: dict[str, Any]) -> None:
    if given["report"]:
        from stillweb.diff.report.html import write_certificate  # jinja2 is slow to import

        page = write_certificate(certificate, given["report"])
        echo(f"report: {page}", err=True)
    if given["junit"]:
        from stillweb.diff.report.junit import write_junit  # rarely needed

        write_junit(certificate, given["junit"])


async def _certify(
    collection: Collection, options: CertifyOptions, given: dict[str, Any], traces: Sequence[Trace] = ()
) -> Certificate:
    async with AsyncExitStack() as stack:
        where = replayed(collection, given["certs_dir"], backend=given["backend"], proxy=given["proxy"])
        url = await stack.enter_async_context(where)
        client = await stack.enter_async_context(ReplayClient(url))
        chosen = (
            list(traces)
            or _given_traces(collection, given)
            or await _explored(url, collection, options.level, given)
        )
        chosen = chosen[: given["limit"]]
        total = options.total(len(chosen))
        on_run = stack.enter_context(counting(f"certifying {collection.name}", total))
        return await certify_traces(client, collection.name, chosen, options, on_run=on_run)


def _given_traces(collection: Collection, given: dict[str, Any]) -> list[Trace]:
    """Return the traces of files and tasks; without these and --explore, those of the collection."""
    traces = [Trace.load(path) for path in given["traces"]]
    if given["tasks"]:
        tasks = [t for t in load_tasks(given["tasks"]) if t.collection in ("", collection.name)]
        traces += [Trace(task.id, (), task=task) for task in tasks]
        if not tasks:
            raise UsageError(f"{given['tasks']}: no task is on {collection.name}", hint="stillweb env check")
    if not traces and not given["explore"]:
        folder = collection.path / "traces"
        traces = [Trace.load(path) for path in sorted(folder.glob("*.jsonl"))]
    return traces


async def _explored(url: str, collection: Collection, level: str, given: dict[str, Any]) -> list[Trace]:
    count, steps = given["explore"] or _EXPLORED, given["steps"]
    pages = start_pages(collection)
    echo(f"exploring {collection.name}: {count} traces of {steps} steps", err=True)
    options = EnvOptions(max_steps=steps + 1, off_path="follow")
    async with Env(url, collection.name, level=level, options=options) as env:
        return [
            await propose_trace(env, pages[number % len(pages)], seed=number, steps=steps)
            for number in range(count)
        ]


def start_pages(collection: Collection) -> list[str]:
    """Return the pages of a collection; without a page list, its HTML answers.

    Raises:
        UsageError: if it has neither.
    """
    listed = [page.url for page in collection.page_list() if page.url.startswith("http")]
    if not listed:
        listed = [
            capture.url
            for capture in collection.captures()
            if capture.status == 200 and "html" in capture.mime and capture.method == "GET"
        ]
    if not listed:
        raise UsageError(
            f"{collection.name} has no page to start from", hint="stillweb certify NAME --traces FILE"
        )
    return list(dict.fromkeys(listed))
