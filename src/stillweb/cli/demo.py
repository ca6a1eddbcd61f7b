"""`stillweb demo`: the whole pipeline in a minute, on a local shop that needs no network.

Each step is a coroutine on the result of the previous one. The shop is closed before the replay starts;
`is_closed` verifies that. The customer follows a fixed script, without a model, but reads the accessibility
tree as a model would. It runs once on the live shop, to record its requests, and then in every episode.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from playwright.async_api import Browser
from rich.console import Console

from stillweb import clock
from stillweb.browser import Activity, Level, launch, open_context, settle
from stillweb.browser.observe.axtree import AxNode, axtree
from stillweb.browser.observe.bids import Bids
from stillweb.browser.profile import BEST_LEVEL
from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, print_json, print_table, stderr
from stillweb.cli.demo_site.site import HOSTS, Bookshop, open_shop
from stillweb.cli.extras import require_extra
from stillweb.cli.options import FOLDER, json_option
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.diff import DiffReport
from stillweb.diff.compare.run import diff
from stillweb.env import Action, ActionStatus, Env, EvalKind, Evaluation, Task, parse
from stillweb.env.actions.perform import open_start, perform
from stillweb.env.episode.determinism import level_of
from stillweb.env.episode.tabs import Tabs
from stillweb.errors import InfraError, RecordError, TaskError, UsageError, first_error
from stillweb.record.crawl.crawl import OnEvent, crawl
from stillweb.record.crawl.report import CrawlReport
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import ResolveRule
from stillweb.record.recording import pinning_of
from stillweb.replay import ReplayClient, ReplayOptions, serve

TASK = Task(
    id="bookshop-1",
    goal="Search for books about the sea, put The Sea-Wolf into the cart, subscribe ada@home.example to the "
    "newsletter, and answer with the total of the cart.",
    start_url="https://bookshop.example/",
    collection="bookshop",
    evaluation=Evaluation(EvalKind.STRING, "$9.85"),
)

# (action, role, beginning of the name, value)
_PLAN = (
    ("fill", "searchbox", "Search books", "sea"),
    ("click", "button", "Search", ""),
    ("click", "link", "The Sea-Wolf", ""),
    ("click", "button", "Add to cart", ""),
    ("click", "link", "Cart (1)", ""),
    ("click", "link", "Newsletter", ""),
    ("fill", "textbox", "Your e-mail address", "ada@home.example"),
    ("click", "button", "Subscribe", ""),
)


class Customer:
    """The agent; `act` receives the nodes of the current page."""

    def __init__(self) -> None:
        self._step = 0
        self._total = ""

    def act(self, nodes: Sequence[AxNode]) -> dict[str, Any]:
        """Return the next action.

        Raises:
            TaskError: if the page lacks the element of the action.
        """
        for node in nodes:
            if node.role == "StaticText" and node.name.startswith("Total: "):
                self._total = node.name.removeprefix("Total: ")
        if self._step == len(_PLAN):
            return {"action": "terminate", "answer": self._total}
        action, role, name, value = _PLAN[self._step]
        self._step += 1
        found = next((n for n in nodes if n.bid and n.role == role and n.name.startswith(name)), None)
        if found is None:
            raise TaskError(f"step {self._step}: the page has no {role} {name!r}")
        return {"action": action, "bid": found.bid} | ({"value": value} if action == "fill" else {})


KINDS = ("axtree", "html", "screenshot")
ATTEMPTS = 3  # at an episode that infrastructure broke, as trainers do


@dataclass(frozen=True, slots=True)
class Recorded:
    """Totals of the recording; `port` is that of the closed shop."""

    pages: int
    exchanges: int
    body_bytes: int
    steps: int
    port: int


@dataclass(frozen=True, slots=True)
class Step:
    """The observations after an action ("reset" for the first), as digests by kind."""

    action: str
    url: str
    digests: dict[str, str]


@dataclass(frozen=True, slots=True)
class CustomerRun:
    steps: tuple[Step, ...]
    reward: float
    answer: str
    environment_id: str
    requests: int
    missed: tuple[str, ...]
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """A step over all episodes: number of episodes with the most frequent observation, by kind."""

    action: str
    alike: dict[str, int]


async def record_shop(
    collection: Collection, ca: CertAuthority, site_ca: CertAuthority, on_event: OnEvent
) -> Recorded:
    """Open the shop, crawl it, record one episode of the customer, and close it."""
    async with open_shop(Bookshop(), site_ca) as port:
        rules = tuple(ResolveRule(host, 443, "127.0.0.1", port) for host in HOSTS)
        options = CrawlOptions(limit=20, record=RecordOptions(rules, upstream_ca=site_ca.ca_file))
        report = await crawl([TASK.start_url], collection, ca, options, on_event)
        if report.failed_pages:
            url, why = next(iter(report.failed_pages.items()))
            raise RecordError(f"the shop's page {url} was not recorded: {why}")
        return await _record_walk(collection, ca, options.record, report, port)


async def _record_walk(
    collection: Collection, ca: CertAuthority, options: RecordOptions, report: CrawlReport, port: int
) -> Recorded:
    """Record the customer's POST requests, and the shop's answers after them."""
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options) as recording,
            launch(spki=ca.spki_hashes()) as browser,
        ):
            steps = await _walk(browser, recording.url, collection)
            recording.check()
            exchanges, size = recording.exchanges, recording.body_bytes
    return Recorded(len(report.pages), report.exchanges + exchanges, report.body_bytes + size, steps, port)


async def _walk(browser: Browser, proxy: str, collection: Collection) -> int:
    """Run the customer on the live shop, pinned like the episodes; return the number of steps."""
    profile, pinning = pinning_of(collection.manifest())
    context = await open_context(browser, proxy=proxy, profile=profile, pinning=pinning)
    tabs, activity, bids, customer = Tabs(context), Activity(context), Bids(), Customer()
    try:
        await open_start(await context.new_page(), TASK.start_url)
        steps = 0
        while True:
            await settle(tabs.active, activity)
            tree = await axtree(tabs.active, bids)
            action = parse(customer.act(tree.nodes))
            assert isinstance(action, Action)
            if action.action == "terminate":
                return steps
            result = await perform(action, tabs, bids)
            if result.status is not ActionStatus.OK:
                raise RecordError(f"the customer's step {steps + 1} on the live shop failed: {result.error}")
            steps += 1
    finally:
        activity.close()
        await context.close()


async def is_closed(port: int) -> bool:
    """Return whether a loopback port refuses connections."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return False


async def run_episodes(url: str, spki: Sequence[str], count: int) -> list[CustomerRun]:
    """Run `count` parallel episodes of the customer, in one browser."""
    async with launch(spki=spki, exact=level_of(BEST_LEVEL) is Level.EXACT) as browser:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_episode_with_retries(url, browser)) for _ in range(count)]
        except ExceptionGroup as failed:
            raise first_error(failed) from None
    return [task.result() for task in tasks]


async def _episode_with_retries(url: str, browser: Browser) -> CustomerRun:
    """Run an episode, and repeat it if the browser or the machine failed: that is never a reward."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return replace(await _episode(url, browser), attempts=attempt)
        except InfraError:
            if attempt == ATTEMPTS or not browser.is_connected():
                raise
    raise AssertionError("unreachable")


async def _episode(url: str, browser: Browser) -> CustomerRun:
    customer, steps, requests = Customer(), [], 0
    missed: list[str] = []
    async with Env(url, observe=KINDS, browser=browser) as env:
        observation, info = await env.reset(task=TASK)
        name, action, reward, over = "reset", dict[str, Any](), 0.0, False
        while True:
            steps.append(Step(name, observation.url, dict(observation.digests)))
            requests += info["traffic"]["requests"]
            missed += info["traffic"]["missed"]
            if over:
                break
            action = customer.act(observation.nodes)
            name = str(action["action"])
            observation, reward, terminated, truncated, info = await env.step(action)
            if info["action"]["status"] != ActionStatus.OK:
                raise InfraError(f"{name} failed in the replay: {info['action']['error']}")
            over = terminated or truncated
    answer = str(action.get("answer", ""))
    return CustomerRun(tuple(steps), reward, answer, info["environment_id"], requests, tuple(missed))


def compare(trajectories: Sequence[CustomerRun]) -> list[StepAgreement]:
    """Return for each step how many trajectories have the most frequent digest."""
    rows = []
    for index in range(max(len(each.steps) for each in trajectories)):
        steps = [each.steps[index] for each in trajectories if index < len(each.steps)]
        alike = {}
        for kind in KINDS:
            seen = [step.digests.get(kind, "") for step in steps]
            alike[kind] = max(seen.count(digest) for digest in seen)
        rows.append(StepAgreement(steps[0].action, alike))
    return rows


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
    taken = json.dumps([asdict(each) for each in outcome.trajectories], indent=1)
    (out / "trajectories.json").write_text(f"{taken}\n")
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
        recorded = await record_shop(
            collection,
            ca,
            site_ca,
            lambda event: say(f"recording the shop: {event.pages} pages, {event.queued} queued"),
        )
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
    return DemoResult(recorded, pack.environment_id, trajectories, report, page, clock.perf() - began)


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
