"""`stillweb demo`: the whole pipeline in a minute, on a local shop that needs no network."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, print_json, print_table, stderr
from stillweb.cli.demo_site.pipeline import (
    KINDS,
    CustomerRun,
    Recorded,
    StepAgreement,
    compare,
    is_closed,
    record_shop,
    run_episodes,
)
from stillweb.cli.extras import require_extra
from stillweb.cli.options import FOLDER, json_option
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.diff import DiffReport
from stillweb.diff.compare.run import diff
from stillweb.errors import RecordError, UsageError
from stillweb.record.crawl.crawl import CrawlEvent
from stillweb.replay import ReplayClient, ReplayOptions, serve

_MARK = ".stillweb-demo"  # marks a folder that the next demo may empty


@dataclass(frozen=True, slots=True)
class DemoResult:
    recorded: Recorded
    environment_id: str
    trajectories: list[CustomerRun]
    report: DiffReport
    page: Path
    seconds: float

    @property
    def agreements(self) -> list[StepAgreement]:
        return compare(self.trajectories)

    @property
    def identical(self) -> bool:
        """Whether all episodes had equal observations at every step, reward 1 and no miss."""
        count = len(self.trajectories)
        same_length = len({len(each.steps) for each in self.trajectories}) == 1
        alike = all(number == count for row in self.agreements for number in row.alike.values())
        return (
            same_length
            and alike
            and all(each.reward == 1.0 and not each.missed for each in self.trajectories)
        )


@click.command()
@click.option(
    "--out",
    type=FOLDER,
    default=Path("out/demo"),
    show_default=True,
    help="Folder for all output; an earlier demo in it is replaced.",
)
@click.option(
    "--episodes",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Number of parallel episodes.",
)
@json_option
@click.pass_context
def demo(ctx: click.Context, out: Path, episodes: int, as_json: bool) -> None:
    """Record a shop, close it, replay it, run parallel episodes and compare them.

    The shop runs on this machine: three hosts, a single-page application with a JSON API, random numbers,
    clocks, timers, a cache-buster, a cart. Exit status 1 if anything differed.

    \b
    Example:
      stillweb demo
      stillweb demo --out /tmp/demo --episodes 16
    """
    require_extra("record")
    _prepare_folder(out)
    outcome = asyncio.run(_run_pipeline(out, episodes, stderr()))
    if as_json:
        print_json(_as_json(outcome))
    else:
        _print(outcome)
    ctx.exit(0 if outcome.identical and outcome.report.passed else 1)


def _prepare_folder(out: Path) -> None:
    """Create the folder, or empty it if an earlier demo created it.

    Raises:
        UsageError: if it contains anything else.
    """
    if out.is_dir() and any(out.iterdir()):
        if not (out / _MARK).exists():
            raise UsageError(
                f"{out} is not empty and not from an earlier demo", hint="stillweb demo --out ANOTHER_FOLDER"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


async def _run_pipeline(out: Path, episodes: int, console: Console) -> DemoResult:
    began = clock.perf()
    with _step(console, "certs", "creating a CA for the replay, and one for the shop") as say:
        ca = CertAuthority.init(out / "certs")
        site_ca = CertAuthority.init(out / "shop-certs", name="bookshop CA")
        say(f"CA {ca.fingerprint[:23]}…")
    with _step(console, "record", "recording the shop") as say:
        collection = Collection.create(out / "collections", "bookshop")

        def show(event: CrawlEvent) -> None:
            say(f"recording the shop: {event.pages} pages, {event.queued} queued")

        recorded = await record_shop(collection, ca, site_ca, show)
        say(
            f"{recorded.pages} pages crawled, {recorded.steps} steps taken: {recorded.exchanges} exchanges, "
            f"{recorded.body_bytes / 1000:.0f} kB"
        )
    with _step(console, "close", "closing the shop") as say:
        if not await is_closed(recorded.port):
            raise RecordError(f"the shop still answers at 127.0.0.1:{recorded.port}")
        say(f"the shop is closed: 127.0.0.1:{recorded.port} refuses connections")
    with _step(console, "seal", "sealing the collection") as say:
        pack = await asyncio.to_thread(seal, collection)
        say(f"environment {pack.environment_id[:16]}…: {pack.entries} answers, {pack.bodies} bodies")
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        with _step(console, "replay", f"{episodes} parallel episodes") as say:
            trajectories = await run_episodes(server.url, ca.spki_hashes(), episodes)
            total = sum(each.requests for each in trajectories)
            say(
                f"{episodes} episodes of {len(trajectories[0].steps)} observations, {total} requests answered"
            )
        with _step(console, "diff", "comparing recording and replay") as say:
            async with ReplayClient(server.url) as client:
                report = await diff(collection, client)
            page = report.write_html(out / "report")
            report.write_json(out / "report" / "report.json")
            say(report.summary())
    outcome = DemoResult(recorded, pack.environment_id, trajectories, report, page, clock.perf() - began)
    (out / "trajectories.json").write_text(
        json.dumps([asdict(each) for each in trajectories], indent=1) + "\n"
    )
    return outcome


@contextmanager
def _step(console: Console, name: str, what: str) -> Iterator[Any]:
    """Show a step while it runs, then its result and duration."""
    began = clock.perf()
    with console.status(what) as status:
        last = what

        def say(text: str) -> None:
            nonlocal last
            last = text
            status.update(text)

        yield say
    console.print(
        f"[bold green]✓[/] [bold]{name:8}[/]{last} [dim]{clock.perf() - began:.1f} s[/]", soft_wrap=True
    )


def _print(outcome: DemoResult) -> None:
    count = len(outcome.trajectories)
    rows = [
        [number, row.action, *(f"{row.alike[kind]} of {count}" for kind in KINDS)]
        for number, row in enumerate(outcome.agreements)
    ]
    print_table(
        ["#step", "action", *(f"#{kind}" for kind in KINDS)], rows, title="Episodes with equal observations"
    )
    missed = sorted({url for each in outcome.trajectories for url in each.missed})
    echo(f"rewards: {', '.join(f'{each.reward:g}' for each in outcome.trajectories)}")
    if again := sum(each.attempts - 1 for each in outcome.trajectories):
        echo(f"episodes repeated after a failure of the browser or machine: {again}")
    echo(f"misses: {len(missed)}" + "".join(f"\n  {url}" for url in missed))
    echo(f"recording against replay: {outcome.report.summary()}")
    echo(f"report: {outcome.page}")
    verdict = "identical" if outcome.identical else "NOT identical"
    echo(f"{count} episodes, {verdict}, in {outcome.seconds:.0f} s")


def _as_json(outcome: DemoResult) -> dict[str, Any]:
    return {
        "identical": outcome.identical,
        "environment_id": outcome.environment_id,
        "recorded": asdict(outcome.recorded),
        "steps": [asdict(row) for row in outcome.agreements],
        "rewards": [each.reward for each in outcome.trajectories],
        "answers": [each.answer for each in outcome.trajectories],
        "misses": sorted({url for each in outcome.trajectories for url in each.missed}),
        "diff": outcome.report.summary(),
        "report": str(outcome.page),
        "seconds": round(outcome.seconds, 1),
    }
