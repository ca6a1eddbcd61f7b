"""Compare every page of a collection with its replay.

Visits wait for a browser and run concurrently on the event loop. Comparisons are CPU-bound and run in a pool:
of processes if `DiffOptions.workers` is set, otherwise of threads. `ComparisonState` stores the result of
each page, so a comparison that was killed resumes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter

from stillweb import __version__, clock
from stillweb.browser import Level, launch
from stillweb.browser.profile import LEVEL
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.diff.compare.pages import ComparisonContext, compare
from stillweb.diff.compare.settings import DiffSettings, read_settings
from stillweb.diff.compare.visit import ReplayedPage, VisitSetup, visit_page
from stillweb.diff.report.report import DiffReport, PageDiff
from stillweb.errors import CollectionError, UsageError, first_error
from stillweb.model import Page
from stillweb.options import Option
from stillweb.replay import ReplayClient, ReplayInfo
from stillweb.text import well_formed
from stillweb.urls import from_timestamp

_FINISHED = "finished"


PAGE_DIFF = TypeAdapter(PageDiff)


class ComparisonState:
    """Stored results of one comparison.

    Attributes:
        pages: compared pages by page id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pictures = folder / "pictures"
        self._file = folder / "pages.jsonl"
        self.pages = {page.id: page for page in _read(self._file)}

    def add(self, page: PageDiff) -> None:
        self.pages[page.id] = page
        line = json.dumps(PAGE_DIFF.dump_python(page, mode="json"), ensure_ascii=False, separators=(",", ":"))
        with self._file.open("ab") as file:
            file.write(well_formed(line).encode() + b"\n")

    def finish(self) -> None:
        (self.folder / _FINISHED).touch()


def key_of(**inputs: object) -> str:
    """Return the name of the state of a comparison with these inputs."""
    text = json.dumps({name: str(value) for name, value in inputs.items()}, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


@contextmanager
def state_in(root: Path, key: str, *, fresh: bool = False) -> Iterator[ComparisonState]:
    """Open the state of a comparison exclusively. It is empty if `fresh` or if none was interrupted.

    States with other keys in the folder are removed, so a collection has one set of pictures.

    Raises:
        UsageError: if another comparison uses the folder, or the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror}", hint="use another folder: --work DIR") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or use another folder: --work DIR"
            raise UsageError(f"another comparison is running in {root}", hint=hint) from None
        folder = root / key
        for other in root.iterdir():
            if fresh or other.name != key or (other / _FINISHED).exists():
                shutil.rmtree(other)
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        yield ComparisonState(folder)
    finally:
        os.close(lock)


def _read(path: Path) -> Iterator[PageDiff]:
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            yield PAGE_DIFF.validate_json(line)
        except ValueError:
            continue  # empty, or truncated by a kill


_MIN_PAGES_FOR_PROCESSES = 20

WORK = "diff"
"""Subfolder of a collection for the state and pictures of a comparison."""


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """Options of `diff`.

    Attributes:
        gates: limits that every page must pass; None for those of the collection's `diff.yaml`.
        page_timeout: seconds for a navigation.
        browser: path of the browser executable; None to search for one.
        workers: number of comparison processes; 0 for threads. Processes are spawned, so the caller's main
            module must be import-safe.
    """

    jobs: Annotated[
        int,
        Option(
            "Visit N pages at a time; the result does not depend on it.",
            min=1,
            default="two for each processor",
        ),
    ] = 2
    limit: Annotated[int | None, Option("Compare the first N pages of the collection only.", min=1)] = None
    gates: Mapping[str, float] | None = None
    level: Annotated[Level, replace(LEVEL, choices=LEVEL.choices[1:])] = Level.CLOCK
    page_timeout: float = 45.0
    browser: Path | None = None
    workers: int = 0
    work: Annotated[
        Path | None,
        Option("Folder for state and screenshots.", path="folder", default="diff/ in the collection"),
    ] = None
    derived: Annotated[
        bool, Option("Allow derived answers to forms, as `replay --derived` does; they are counted apart.")
    ] = False
    fresh: Annotated[bool, Option("Start over instead of resuming an interrupted comparison.")] = False


async def diff(
    collection: Collection,
    client: ReplayClient,
    options: DiffOptions | None = None,
    *,
    on_page: Callable[[PageDiff], None] | None = None,
) -> DiffReport:
    """Compare the pages of a collection with their replay.

    Args:
        client: client of a server that serves the collection under the same name.
        on_page: called with each compared page, in order of completion.

    Raises:
        ReplayUnreachable: if the server does not respond.
        CollectionNotFound: if the server does not serve the collection.
        CollectionError: if the collection lists no pages, or its `diff.yaml` is invalid.
        InfraError: if the browser cannot be started or dies.
        UsageError: if another comparison of the collection is running.
    """
    options = options or DiffOptions()
    began = clock.perf()
    settings = read_settings(collection.path)
    gates = dict(settings.gates if options.gates is None else options.gates)
    pages = _pages(collection, options.limit)
    info = await client.info()
    manifest = collection.manifest()
    environment = info.collections.get(collection.name, "")
    key = key_of(
        environment=environment,
        backend=info.backend,
        level=options.level.value,
        settings=replace(settings, gates=gates),
        software=__version__,
    )
    work = options.work or collection.path / WORK
    with state_in(work, key, fresh=options.fresh) as state:
        on_page = on_page or (lambda page: None)
        for page in pages:
            if page.id in state.pages:
                on_page(state.pages[page.id])
        waiting = [page for page in pages if page.id not in state.pages]
        if waiting:
            context = ComparisonContext(collection.name, state.pictures, settings, gates)
            async with _visits(collection, client, info, settings, options) as setup:
                with pool_of(options, len(waiting)) as pool:
                    run = _Run(collection, setup, context, state, pool, on_page)
                    await run.all(waiting, options.jobs)
        state.finish()
        found = tuple(state.pages[page.id] for page in pages)
    about = _about(info, environment, manifest, options)
    return DiffReport(collection.name, found, gates, about, clock.perf() - began)


@asynccontextmanager
async def _visits(
    collection: Collection,
    client: ReplayClient,
    info: ReplayInfo,
    settings: DiffSettings,
    options: DiffOptions,
) -> AsyncIterator[VisitSetup]:
    """Start a browser, and yield the setup of visits with it."""
    exact = options.level is Level.EXACT
    async with launch(spki=info.spki, replay=client.url, executable=options.browser, exact=exact) as browser:
        yield VisitSetup(
            collection.name,
            collection.manifest(),
            client,
            browser,
            settings,
            options.level,
            options.page_timeout,
            info.features.get("ledger", False),
            options.derived,
        )


def _pages(collection: Collection, limit: int | None) -> list[Page]:
    pages = collection.page_list()[:limit]
    if not pages:
        raise CollectionError(
            f"{collection.name} lists no pages to compare",
            path=collection.pages,
            hint=f"stillweb collections show {collection.name} --captures",
        )
    return [
        page if page.id else replace(page, id=f"page-{number}") for number, page in enumerate(pages, start=1)
    ]


def _about(info: ReplayInfo, environment: str, manifest: Manifest, options: DiffOptions) -> dict[str, str]:
    recorded = manifest.recorded_at and from_timestamp(manifest.recorded_at)
    return {
        "environment_id": environment,
        "backend": info.backend,
        "level": options.level.value,
        "seed": str(manifest.seed),
        "recorded_at": f"{recorded:%Y-%m-%d %H:%M:%S} UTC" if recorded else "",
        "compared_at": f"{clock.now():%Y-%m-%d %H:%M:%S} UTC",
    }


@contextmanager
def pool_of(options: DiffOptions, pages: int) -> Iterator[Executor]:
    """Yield a pool for comparing `pages` pages. For a few pages, starting processes does not pay off."""
    pool: Executor
    if options.workers and pages > _MIN_PAGES_FOR_PROCESSES:
        # Spawned, not forked: this process has threads and an event loop.
        pool = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"))
    else:
        pool = ThreadPoolExecutor(max_workers=2)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Run:
    collection: Collection
    setup: VisitSetup
    context: ComparisonContext
    state: ComparisonState
    pool: Executor
    on_page: Callable[[PageDiff], None]

    async def all(self, pages: Sequence[Page], jobs: int) -> None:
        """Visit pages, `jobs` concurrently, and compare each while the next is visited."""
        waiting = deque(pages)
        try:
            async with asyncio.TaskGroup() as group:

                async def work() -> None:
                    while waiting:
                        page = waiting.popleft()
                        began = clock.perf()
                        seen = await visit_page(self.setup, page)
                        group.create_task(self._compare(page, seen, began))

                for _ in range(max(1, min(jobs, len(pages)))):
                    group.create_task(work())
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _compare(self, page: Page, seen: ReplayedPage, began: float) -> None:
        folder = self.collection.baseline / page.baseline if page.baseline else None
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.pool, compare, page, folder, seen, self.context)
        found = replace(found, seconds=clock.perf() - began)
        self.state.add(found)
        self.on_page(found)
