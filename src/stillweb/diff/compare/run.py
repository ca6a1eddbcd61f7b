"""Compare every page of a collection with its replay: visits some at a time, comparisons off the event loop.

Visits wait for a browser, comparisons take a processor: so these run in a pool, of processes where the
caller has them (`DiffOptions.workers`), else of threads. What is found is kept page by page
(`stillweb.diff.compare.run`), and a comparison that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from stillweb import __version__, clock
from stillweb.browser import Level, launch
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.diff.compare.pages import Bench, compare
from stillweb.diff.compare.settings import read_settings
from stillweb.diff.compare.visit import ReplayedPage, VisitSetup, look_at
from stillweb.diff.report.report import DiffReport, PageDiff
from stillweb.errors import CollectionError, StillwebError, UsageError
from stillweb.model import Page
from stillweb.replay import ReplayClient, ReplayInfo
from stillweb.urls import from_timestamp

_FINISHED = "finished"


class ComparisonState:
    """The findings of one comparison, as far as it came.

    Attributes:
        pages: what is through already, by page id.
        pictures: folder for pictures.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pictures = folder / "pictures"
        self._file = folder / "pages.jsonl"
        self.pages = {page.id: page for page in _read(self._file)}

    def add(self, page: PageDiff) -> None:
        """Keep a page."""
        self.pages[page.id] = page
        line = json.dumps(to_json(page), ensure_ascii=False, separators=(",", ":")) + "\n"
        with self._file.open("ab") as file:
            file.write(line.encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        """Note that all pages are through."""
        (self.folder / _FINISHED).touch()


def key_of(**decides: object) -> str:
    """Return the name of a comparison's state, of what decides its findings."""
    told = json.dumps({name: str(value) for name, value in decides.items()}, sort_keys=True)
    return sha256(told.encode()).hexdigest()[:16]


@contextmanager
def state_in(root: Path, key: str, *, fresh: bool = False) -> Iterator[ComparisonState]:
    """Open the state of a comparison, empty if `fresh` or none was cut short; it is ours alone while open.

    Others' states in the same folder are removed: one set of pictures a collection is enough.

    Raises:
        UsageError: if another comparison of the same is under way, or the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror}", hint="--work DIR: another folder") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or use another folder: --work DIR"
            raise UsageError(f"another comparison is under way in {root}", hint=hint) from None
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
            yield from_json(PageDiff, json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue  # torn by a kill, or empty


def to_json(value: Any) -> Any:
    """Return a value of our dataclasses as JSON has it; paths as texts, bytes are not kept."""
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return "" if isinstance(value, bytes) else value


def from_json(kind: Any, value: Any) -> Any:
    """Return what `to_json` made JSON of, as the type that is asked for.

    Raises:
        TypeError, ValueError, KeyError: if it is no such thing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: from_json(hints[each.name], value[each.name]) for each in fields(kind)})  # type: ignore[operator]
    if origin in (Union, types.UnionType):
        chosen = next(each for each in arguments if each is not type(None))
        return None if value is None else from_json(chosen, value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(from_json(each, one) for each, one in zip(kinds, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: from_json(arguments[1], each) for key, each in value.items()}
    if kind is bytes:
        return b""
    if isinstance(kind, type) and issubclass(kind, Enum | Path):
        return kind(value)
    return value


_FEW = 20

WORK = "diff"
"""Folder of a collection in which a comparison keeps its state and its pictures."""


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How to compare.

    Attributes:
        jobs: pages at a time; the result does not depend on it.
        limit: pages at most, in the collection's order; None for all.
        gates: limits that every page must keep; None for those of the collection's `diff.yaml`.
        level: how far pages are pinned; the baseline was recorded at CLOCK.
        page_timeout: seconds for a navigation.
        browser: the browser's executable; None to look for one.
        workers: programs that compare; 0 for threads, since who starts programs this way must guard its main.
        work: folder for state and pictures; None for the collection's own.
        fresh: whether to begin anew where a comparison was cut short.
    """

    jobs: int = 2
    limit: int | None = None
    gates: Mapping[str, float] | None = None
    level: Level = Level.CLOCK
    page_timeout: float = 45.0
    browser: Path | None = None
    workers: int = 0
    work: Path | None = None
    fresh: bool = False


async def diff(
    collection: Collection,
    client: ReplayClient,
    options: DiffOptions | None = None,
    *,
    on_page: Callable[[PageDiff], None] | None = None,
) -> DiffReport:
    """Compare the pages of a collection with what a replay server makes of them.

    Args:
        collection: whose pages and baselines are read.
        client: of a server that serves the collection under the same name.
        options: how to compare.
        on_page: told of each page when it is compared, in order of completion.

    Raises:
        ReplayUnreachable: if the server is not there.
        CollectionNotFound: if it does not serve the collection.
        CollectionError: if the collection lists no pages, or its `diff.yaml` is wrong.
        InfraError: if the browser cannot be started or dies.
        UsageError: if another comparison of the collection is under way.
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
            exact = options.level is Level.EXACT
            async with launch(spki=info.spki, executable=options.browser, exact=exact) as browser:
                has_ledger = info.features.get("ledger", False)
                timeout, level = options.page_timeout, options.level
                scene = VisitSetup(
                    collection.name, manifest, client, browser, settings, level, timeout, has_ledger
                )
                bench = Bench(collection.name, state.pictures, settings, gates)
                with pool_of(options, len(waiting)) as pool:
                    run = _Run(collection, scene, bench, state, pool, on_page)
                    await run.all(waiting, options.jobs)
        state.finish()
        found = tuple(state.pages[page.id] for page in pages)
    about = _about(info, environment, manifest, options)
    return DiffReport(collection.name, found, gates, about, clock.perf() - began)


def _pages(collection: Collection, limit: int | None) -> list[Page]:
    pages = collection.page_list()[:limit]
    if not pages:
        raise CollectionError(
            f"{collection.name} lists no pages, so that there is nothing to compare",
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
    """Yield a pool for comparisons of so many pages; for a few of them no process is worth its start.

    Its processes are new ones, since ours has threads and an event loop.
    """
    pool: Executor
    if options.workers and pages > _FEW:
        pool = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"))
    else:
        pool = ThreadPoolExecutor(max_workers=2)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """One comparison under way."""

    collection: Collection
    scene: VisitSetup
    bench: Bench
    state: ComparisonState
    pool: Executor
    on_page: Callable[[PageDiff], None]

    async def all(self, pages: Sequence[Page], jobs: int) -> None:
        """Visit pages, `jobs` at a time, and compare each while the next is visited."""
        waiting = deque(pages)
        try:
            async with asyncio.TaskGroup() as group:

                async def work() -> None:
                    while waiting:
                        page = waiting.popleft()
                        began = clock.perf()
                        seen = await look_at(self.scene, page)
                        group.create_task(self._compare(page, seen, began))

                for _ in range(max(1, min(jobs, len(pages)))):
                    group.create_task(work())
        except ExceptionGroup as group:
            ours, _ = group.split(StillwebError)
            raise (ours or group).exceptions[0] from None

    async def _compare(self, page: Page, seen: ReplayedPage, began: float) -> None:
        folder = self.collection.baseline / page.baseline if page.baseline else None
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.pool, compare, page, folder, seen, self.bench)
        found = replace(found, seconds=clock.perf() - began)
        self.state.add(found)
        self.on_page(found)
