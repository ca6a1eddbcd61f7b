"""`stillweb tasks`: make tasks from recordings, audit task files, write evaluators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import yaml

from stillweb.benchmarks import (
    AuditOptions,
    AuditReport,
    MadeTasks,
    MakeOptions,
    PerturbedTask,
    PerturbTasksOptions,
    audit_tasks,
    make_tasks,
    paraphrase_tasks,
    perturb_tasks,
)
from stillweb.cli import CommandGroup
from stillweb.cli.console import echo, print_json, print_table, until_signal
from stillweb.cli.options import (
    EXISTING_FILE,
    FILE,
    certs_option,
    collections_option,
    json_option,
    optional_proxy_option,
    options_from,
    sites_option,
)
from stillweb.cli.progress import counting, progress
from stillweb.cli.replay.shared import replayed, replayed_together
from stillweb.collections.branches import BRANCHES
from stillweb.collections.layout import Collection, list_collections
from stillweb.env import Task, load_tasks
from stillweb.env.tasks.native import native_file
from stillweb.env.tasks.requests import pattern_of
from stillweb.env.tasks.writes import WriteRequest, recorded_write
from stillweb.errors import UsageError
from stillweb.matching.rules import Rules
from stillweb.model import MUTATIONS, Capture
from stillweb.replay import ReplayClient


@click.group(cls=CommandGroup)
def tasks() -> None:
    """Make tasks from recordings, audit task files, and write evaluators."""


@tasks.command()
@click.argument("name")
@options_from(MakeOptions())
@click.option("--out", type=FILE, required=True, help="Task file to write (YAML).")
@click.option("--report", type=FILE, help="Write an HTML report with pictures of start and end to this file.")
@click.option(
    "--paraphrase",
    metavar="URL",
    help="Paraphrase goals by this OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1. The API key "
    "is OPENAI_API_KEY in the environment. A paraphrase is kept only if names and values survive.",
)
@click.option("--paraphrase-model", default="default", show_default=True, help="Model of the endpoint.")
@optional_proxy_option
@json_option
@collections_option
@certs_option
@click.pass_context
def make(ctx: click.Context, /, name: str, options: MakeOptions, **given: Any) -> None:
    """Make proved tasks from a recording, without a language model.

    Each task has an oracle that solved it in several runs with equal observations. Doing nothing, values near
    the answer, and random walks score 0. Exit status 1 if fewer tasks than requested were made.

    \b
    Example:
      stillweb tasks make shop -n 200 --seed 7 --out tasks.yaml
      stillweb tasks make shop -n 50 --families report,form --out tasks.yaml --report tasks.html
    """
    collection = Collection.open(given["root"], name)
    options = replace(options, pictures=given["report"] is not None)
    made = until_signal(_make(collection, options, given, partial(_write_tasks, given["out"])))
    tasks = made.tasks
    if given["paraphrase"]:
        paraphrased = until_signal(paraphrase_tasks(tasks, given["paraphrase"], given["paraphrase_model"]))
        tasks = paraphrased.tasks
        rejected = ", ".join(f"{count} {why}" for why, count in sorted(paraphrased.rejected.items()))
        echo(f"{paraphrased.accepted} paraphrases accepted; {rejected or 'none'} rejected", err=True)
    _write_tasks(given["out"], tasks)
    if given["report"]:
        from stillweb.benchmarks.make import write_made_report  # jinja2 and Pillow are slow to import

        write_made_report(made, given["report"])
    if given["as_json"]:
        print_json(made.to_dict())
    else:
        _print_made(made)
    ctx.exit(0 if len(made.made) >= options.n else 1)


def _write_tasks(path: Path, tasks: list[Task]) -> None:
    text = yaml.safe_dump(native_file(tasks), sort_keys=False, allow_unicode=True, width=110)
    path.write_text(text, encoding="utf-8")


async def _make(
    collection: Collection, options: MakeOptions, given: dict[str, Any], write: Callable[[list[Task]], None]
) -> MadeTasks:
    with progress() as bar:
        task = bar.add_task(f"tasks of {collection.name}", total=options.n)

        written: list[Task] = []

        def show(made: MadeTasks) -> None:
            nonlocal written
            tried = sum(made.tried.values())
            text = made.preparing or f"{tried} candidates tried, {made.walks} random walks"
            bar.update(task, completed=len(made.made), description=text)
            if made.tasks != written:  # what is proved stays if the command is interrupted
                written = made.tasks
                write(written)

        async with (
            replayed(collection, given["certs_dir"], proxy=given["proxy"]) as url,
            ReplayClient(url) as client,
        ):
            return await make_tasks(collection, client, options, show)


def _print_made(made: MadeTasks) -> None:
    rows = []
    for row in filter(itemgetter("tried"), made.families()):
        dropped = ", ".join(f"{count} {proof}" for proof, count in row["dropped"].items())
        rows.append((row["family"], row["tried"], row["made"], row["train"], row["test"], dropped))
    columns = ("family", "#candidates", "#made", "#train", "#test", "dropped by")
    print_table(columns, rows, title=made.collection)
    echo(
        f"{len(made.made)} tasks from {made.pages} pages in {made.seconds:.0f} s, "
        f"{made.walk_seconds:.0f} s of episodes in random walks",
        err=True,
    )
    if not made.made:
        echo("No candidate passed its proofs. --report FILE shows an example of each failed proof.", err=True)


@tasks.command()
@click.argument("file", type=EXISTING_FILE)
@options_from(AuditOptions())
@click.option("--report", type=FILE, help="Write an HTML report to this file.")
@click.option(
    "--proxy",
    default="",
    metavar="URL",
    help="Control URL of a running replay server.  [default: start one with the tasks' collections]",
)
@sites_option
@json_option
@collections_option
@certs_option
@click.pass_context
def audit(ctx: click.Context, /, file: Path, options: AuditOptions, **given: Any) -> None:
    """Check the tasks of a file: what they score untouched, and what their graders accept.

    Reads the project's own files, WARC-Bench, WebArena, and what `stillweb env miniwob` prints. Tasks whose
    collection is missing are checked without a browser. Tasks with an oracle are proved as by `make`. Exit
    status 1 if a task has a finding of the severity "error".

    \b
    Example:
      stillweb tasks audit tasks.yaml
      stillweb tasks audit warc_bench_public.json --report audit.html --json
    """
    found = load_tasks(file, sites=given["sites"])
    if not found:
        raise UsageError(f"{file} has no task", hint="stillweb env tasks FILE lists tasks")
    report = until_signal(_audit(file, found, options, given))
    if given["report"]:
        from stillweb.benchmarks.make import write_audit_report  # jinja2 is slow to import

        write_audit_report(report.to_dict(), given["report"])
    if given["as_json"]:
        print_json(report.to_dict())
    else:
        _print_audit(report)
    ctx.exit(1 if report.errors else 0)


async def _audit(file: Path, found: list[Task], options: AuditOptions, given: dict[str, Any]) -> AuditReport:
    with counting(f"auditing {file.name}", len(found[: options.limit])) as on_task:
        names = {each.collection for each in found}
        held = [each for each in list_collections(given["root"]) if each.name in names]
        async with AsyncExitStack() as stack:
            url = given["proxy"]
            if not url and held:
                url = await stack.enter_async_context(replayed_together(held, given["certs_dir"]))
            client = await stack.enter_async_context(ReplayClient(url)) if url else None
            return await audit_tasks(str(file), found, client, options, held, on_task)


def _print_audit(report: AuditReport) -> None:
    rows = [
        (row["severity"], row["kind"], row["tasks"], ", ".join(row["examples"])) for row in report.kinds()
    ]
    print_table(("severity", "finding", "#tasks", "examples"), rows, title=report.source)
    echo(
        f"{report.played} of {report.tasks} tasks played, {len(report.errors)} with errors, "
        f"{report.seconds:.0f} s",
        err=True,
    )


@tasks.command()
@click.argument("file", type=EXISTING_FILE)
@options_from(PerturbTasksOptions())
@click.option("--out", type=FILE, help="Write the tasks that are still solvable to this file (YAML).")
@json_option
@collections_option
@certs_option
@click.pass_context
def perturb(ctx: click.Context, /, file: Path, options: PerturbTasksOptions, **given: Any) -> None:
    """Play the oracles of tasks under a perturbation, and list the tasks that are no longer solvable.

    The tasks are written as they are; `rollout --perturb` and `serve --perturb` with the same seed give the
    same variants. Exit status 1 if no task is solvable.

    \b
    Example:
      stillweb tasks perturb tasks.yaml --perturb content=0.5,faults=0.5 --perturb-seed 3 --out solvable.yaml
    """
    found = load_tasks(file)
    held = [each for each in list_collections(given["root"]) if each.name in {t.collection for t in found}]
    if not held:
        raise UsageError(f"no collection of {file} exists", hint="--collections FOLDER")
    proved = until_signal(_perturbed(held, found, options, given))
    solvable = [each.task for each in proved if not each.trouble]
    if given["out"]:
        _write_tasks(given["out"], solvable)
    rows = [
        {"task": each.task.id, "trouble": each.trouble, "digest": each.digest, "steps": each.steps}
        for each in proved
    ]
    if given["as_json"]:
        print_json({"tasks": len(proved), "solvable": len(solvable), "rows": rows})
    else:
        print_table(
            ("task", "trouble"),
            [(row["task"], row["trouble"]) for row in rows if row["trouble"]],
            title=str(file),
        )
        echo(f"{len(solvable)} of {len(proved)} tasks are solvable", err=True)
    ctx.exit(0 if solvable else 1)


async def _perturbed(
    held: list[Collection], found: list[Task], options: PerturbTasksOptions, given: dict[str, Any]
) -> list[PerturbedTask]:
    async with replayed_together(held, given["certs_dir"]) as url, ReplayClient(url) as client:
        return await perturb_tasks(client, found, options)


@tasks.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="N|TEXT",
    help="Write to convert: its number, or a text that its URL includes.",
)
@click.option("--field", "fields", multiple=True, metavar="PATH", help="Judge this field only. Repeatable.")
@click.option("--any", "any_value", multiple=True, metavar="PATH", help="Accept any value here. Repeatable.")
@click.option("--only", is_flag=True, help="The episode must send no other writes.")
@collections_option
@json_option
def request(
    name: str, source: str | None, fields: tuple[str, ...], any_value: tuple[str, ...], **chosen: Any
) -> None:
    """Print a recorded write as an evaluator of the type `request`; without --from, list the writes.

    The evaluator has the method, the URL and all fields, except CSRF tokens and what the collection's rules
    call volatile. Forms of `record forms` are listed too; their free fields accept any value, until you
    write the wanted one.

    \b
    Example:
      stillweb tasks request shop
      stillweb tasks request shop --from 3 --field product_id --any note
    """
    collection = Collection.open(chosen["root"], name)
    writes = [*_recorded(collection), *_forms(collection)]
    if source is None:
        _print_writes(writes, chosen["as_json"])
        return
    write = writes[_chosen(writes, source, name)]
    free = {path for path in write.free if not fields or path in fields}
    pattern = pattern_of(write.request, fields=fields, any_value={*any_value, *free})
    evaluator: dict[str, Any] = {"type": "request", "requests": [pattern]}
    if chosen["only"]:
        evaluator["only"] = True
    if chosen["as_json"]:
        print_json(evaluator)
    else:
        echo(yaml.safe_dump([evaluator], sort_keys=False, allow_unicode=True, width=100), nl=False)


@dataclass(frozen=True, slots=True)
class _Write:
    """A recorded write; `free` are the paths of a form's free fields."""

    request: WriteRequest
    free: frozenset[str] = frozenset()

    @property
    def paths(self) -> list[str]:
        return [path for place, path in self.request.leaves() if place not in self.request.volatile]


def _recorded(collection: Collection) -> list[_Write]:
    text = collection.path / "rules.yaml"
    rules = Rules.parse(text.read_text(encoding="utf-8") if text.exists() else "")
    return [_Write(request) for request in _requests(collection, rules)]


def _requests(collection: Collection, rules: Rules) -> list[WriteRequest]:
    captures = [capture for capture in collection.captures() if capture.method in MUTATIONS]
    captures.sort(key=Capture.in_time)
    writes = (recorded_write(collection.read_capture(capture).request, rules) for capture in captures)
    return [write for write in writes if write is not None]


def _forms(collection: Collection) -> list[_Write]:
    """Return one write for each form of `record forms`; its free fields differ between recordings."""
    stored = Collection(collection.path, BRANCHES)
    alike: dict[tuple[Any, ...], list[WriteRequest]] = {}
    for request in _requests(stored, Rules()) if stored.archive.exists() else ():
        alike.setdefault((request.method, request.url, *request.leaves()), []).append(request)
    return [
        _Write(
            first,
            frozenset(
                path
                for place, path in first.leaves()
                if place not in first.volatile and any(e.values(path) != first.values(path) for e in others)
            ),
        )
        for first, *others in alike.values()
    ]


def _print_writes(writes: list[_Write], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "number": number,
            "method": write.request.method,
            "url": write.request.url,
            "fields": write.paths,
            "free": sorted(write.free),
        }
        for number, write in enumerate(writes, 1)
    ]
    if as_json:
        print_json({"writes": rows})
        return
    if not rows:
        hint = "record some: stillweb record forms NAME, or stillweb record proxy"
        raise UsageError("the collection holds no write", hint=hint)
    print_table(
        ("#", "method", "url", "fields", "free"),
        ((str(row["number"]), row["method"], row["url"], " ".join(row["fields"]), " ".join(row["free"]))
         for row in rows),
    )  # fmt: skip


def _chosen(writes: list[_Write], source: str, name: str) -> int:
    if source.isdecimal() and 1 <= int(source) <= len(writes):
        return int(source) - 1
    found = [
        number
        for number, write in enumerate(writes)
        if not source.isdecimal() and source in write.request.url
    ]
    if len(found) != 1:
        hint = f"choose a number of the list that this prints: stillweb tasks request {name}"
        raise UsageError(
            f"--from {source} matches {len(found)} of the {len(writes)} writes, not 1", hint=hint
        )
    return found[0]
