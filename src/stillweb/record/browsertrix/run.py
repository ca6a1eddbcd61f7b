"""One crawl by browsertrix-crawler, from the options to the collection.

The container is a process group of its own: a Ctrl-C at the terminal reaches it only as we pass it on. The
first `interrupt` lets it finish its pages and its WACZ, a second one ends it with what it has written, a
third kills it. If we are killed it goes on alone; the next crawl with `append` takes in what it left.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stillweb.clock import monotonic, perf
from stillweb.collections.layout import Collection, check_name
from stillweb.errors import CollectionExists, ProgramNotFound, RecordError, UsageError
from stillweb.record.browsertrix.leftovers import Leftovers, read_state
from stillweb.record.browsertrix.log import CrawlExit, Log, judge
from stillweb.record.browsertrix.settings import (
    CONFIG,
    Container,
    dump,
    mounted_files,
    run_arguments,
    settings_of,
)
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.scope import seed_url
from stillweb.record.options import CrawlOptions

__all__ = ["BrowsertrixCrawl", "CrawlPlan", "Job", "ensure_image", "plan"]

_OTHERWISE = "or record with stillweb's own browser: --engine browser"


async def ensure_image(container: Container, say: Callable[[str], None]) -> None:
    """Make sure that the image is there; pull it if it is not.

    Raises:
        ProgramNotFound: if there is no Docker.
        RecordError: if its daemon does not answer us, or the image cannot be had.
    """
    program = container.program
    if shutil.which(program) is None:
        raise ProgramNotFound(
            f"--engine browsertrix needs {program}, which is not installed",
            hint=f"https://docs.docker.com/engine/install/, {_OTHERWISE}",
        )
    code, said = await _ask(program, "version", "--format", "{{.Server.Version}}")
    if code:
        raise _no_daemon(program, said)
    code, _ = await _ask(program, "image", "inspect", "--format", "{{.Id}}", container.image)
    if not code:
        return
    say(f"pulling {container.image}: it is not here yet, and large")
    code, said = await _ask(program, "pull", container.image)
    if code:
        hint = f"try it by hand: {program} pull {container.image}; or name one that is here by --image"
        raise RecordError(f"the image {container.image} cannot be pulled: {_last(said)}", hint=hint)


def _no_daemon(program: str, said: str) -> RecordError:
    if "permission denied" in said.lower():
        what, hint = "may not be used by this user", "sudo usermod -aG docker $USER, and log in again"
    else:
        what, hint = "is installed, but its daemon does not answer", "sudo systemctl start docker"
    return RecordError(f"{program} {what}: {_last(said)}", hint=f"{hint}; {_OTHERWISE}")


async def _ask(*call: str) -> tuple[int, str]:
    """Run a command of Docker; return its status and what it said to stderr."""
    process = await asyncio.create_subprocess_exec(
        *call,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    return process.returncode or 0, errors.decode("utf-8", "replace")


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"


_LINE = 1 << 24  # bytes; its lists of pending pages make long lines
_SILENCE = 240.0  # seconds, besides those for a page and its behaviours
_BEHAVIOURS = 90.0  # its own limit


@dataclass(frozen=True, slots=True)
class Job:
    """What to crawl.

    Attributes:
        root, name: of the collection.
        seeds: as given.
        options: of `record crawl`.
        container: how it is run.
        append: whether the collection may be there already; a crawl that was cut short goes on.
        silence: seconds after which a crawler that says nothing is given up; None for enough.
    """

    root: Path
    name: str
    seeds: Sequence[str]
    options: CrawlOptions
    container: Container = field(default_factory=Container)
    append: bool = False
    silence: float | None = None


@dataclass(frozen=True, slots=True)
class CrawlPlan:
    """What is going to be run: the call of Docker, the settings as YAML, and what the user should know."""

    call: tuple[str, ...]
    yaml: str
    notes: tuple[str, ...]


def plan(job: Job) -> CrawlPlan:
    """Return what a crawl would run.

    Raises:
        UsageError: if an option cannot be told to the crawler.
    """
    check_name(job.name)
    there = (job.root / job.name).is_dir()
    seeds = [seed_url(seed) for seed in job.seeds]
    state = read_state(Collection.open(job.root, job.name), seeds) if there else None
    told = settings_of(job.name, job.seeds, job.options, job.container, state)
    work = Leftovers(job.root, job.name).path
    files = mounted_files(job.options, job.container)
    call = run_arguments(_label(work), work, job.options, job.container, files)
    return CrawlPlan(tuple(call), dump(told.settings), told.notes)


def _label(work: Path) -> str:
    """Return the container's name: Docker then refuses a second one for the same collection."""
    digest = hashlib.sha256(str(work.resolve()).encode()).hexdigest()[:8]
    return f"stillweb{work.name.replace('.', '-', 1)}-{digest}"


class BrowsertrixCrawl:
    """A crawl, to be run once.

    Attributes:
        log: what the crawler has said.
        silence: seconds after which one that says nothing is given up.
        interrupted: how often a person wanted an end.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.log = Log()
        waits = job.options.page_timeout + job.options.delay * job.options.jobs
        self.silence = _SILENCE + waits + _BEHAVIOURS if job.silence is None else job.silence
        self.interrupted = 0
        self._leftovers = Leftovers(job.root, job.name)
        self._process: asyncio.subprocess.Process | None = None

    def interrupt(self) -> None:
        """Pass on that a person wants an end; each time more urgently."""
        self.interrupted += 1
        self._signal(signal.SIGINT if self.interrupted < 3 else signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        if number is signal.SIGKILL:  # of the client alone it would leave the container running
            asyncio.get_running_loop().create_task(self._kill())
        else:
            self._process.send_signal(number)

    async def _kill(self) -> None:
        killer = await asyncio.create_subprocess_exec(
            self.job.container.program, "kill", _label(self._leftovers.path),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await killer.wait()

    async def run(
        self,
        on_event: Callable[[CrawlEvent], None] = lambda event: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> CrawlReport:
        """Crawl, and import what came; whatever goes wrong, what was recorded is in the collection.

        Raises:
            CollectionExists: if there is one, or a folder of a crawl, and not `append`.
            UsageError, RecordError, UpstreamUnreachable: as the crawl ended.
        """
        began = perf()
        self._check_place()
        await ensure_image(self.job.container, say)
        if self.interrupted:  # while the image was pulled
            return CrawlReport(stopped="a signal")
        if self._leftovers.path.exists():
            await self._take_in_old(say)
        what = plan(self.job)
        for note in what.notes:
            say(f"note: {note}")
        self._leftovers.path.mkdir(parents=True)
        (self._leftovers.path / CONFIG).write_text(what.yaml, "utf-8")
        code = await self._call(what.call, on_event)
        end = judge(code, self.log, self.job.container, interrupted=bool(self.interrupted))
        report = await asyncio.to_thread(self._import, end)
        report.seconds = perf() - began
        if end.error:
            if not report.captures:
                say(f"nothing was recorded; its log: {self._leftovers.put_by()}")
                self._leftovers.remove()
            raise end.error
        return report

    def _check_place(self) -> None:
        if self.job.append:
            return
        if (self.job.root / self.job.name).exists():
            hint = f"another name, --append, or: stillweb collections rm {self.job.name} --yes"
            raise CollectionExists(f"collection {self.job.name!r} is in {self.job.root} already", hint=hint)
        if self._leftovers.path.exists():
            what = f"a crawl of {self.job.name!r} was cut short, or still runs: {self._leftovers.path}"
            raise CollectionExists(what, hint="--append takes in what it left, and goes on")

    async def _take_in_old(self, say: Callable[[str], None]) -> None:
        """Import what a crawl left whose end nobody saw.

        Raises:
            UsageError: if it still runs.
        """
        label = _label(self._leftovers.path)
        process = await asyncio.create_subprocess_exec(
            self.job.container.program, "ps", "--quiet", "--filter", f"name={label}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        running, _ = await process.communicate()
        if running.strip():
            hint = (
                f"wait for it, or let it finish its pages: {self.job.container.program} kill -s INT {label}"
            )
            raise UsageError(f"the crawl of {self.job.name!r} that was begun before still runs", hint=hint)
        say("taking in what an earlier crawl left")
        await asyncio.to_thread(self._import, CrawlExit("cut short"))

    async def _call(self, call: Sequence[str], on_event: Callable[[CrawlEvent], None]) -> int:
        """Run the container to its end; return its exit code."""
        with self._leftovers.transcript.open("ab") as transcript:
            process = await asyncio.create_subprocess_exec(
                *call,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=_LINE,
                start_new_session=True,
            )
            self._process = process
            assert process.stdout is not None
            heard = began = monotonic()
            try:
                while line := await self._line(process.stdout, heard):
                    transcript.write(line)
                    transcript.flush()
                    self.log.body_bytes = self._leftovers.archived()
                    event = self.log.feed(line.decode("utf-8", "replace"))
                    heard = heard if self.log.waiting else monotonic()
                    if event:
                        on_event(replace(event, per_minute=60 * event.pages / max(1.0, monotonic() - began)))
                return await process.wait()
            except BaseException:
                await self._kill()
                await process.wait()
                raise

    async def _line(self, stream: asyncio.StreamReader, heard: float) -> bytes:
        """Return the next line, b"" at the end.

        Raises:
            RecordError: if nothing but waiting has been heard for long.
        """
        try:
            async with asyncio.timeout(heard + self.silence - monotonic()):
                return await stream.readline()
        except TimeoutError:
            raise self._mute() from None

    def _mute(self) -> RecordError:
        """Return the error for a crawler that says nothing any more, or only that it waits."""
        what = "waits for its store, Redis" if self.log.waiting else "says nothing any more"
        hint = (
            "what is recorded is taken in by the same with --append; a network of the host may have a Redis"
        )
        return RecordError(f"browsertrix {what}; it was stopped after {self.silence:.0f} s", hint=hint)

    def _import(self, end: CrawlExit) -> CrawlReport:
        found = self._leftovers.take_in()
        state = self._leftovers.state()
        report = CrawlReport(seeds=tuple(map(seed_url, self.job.seeds)), stopped=end.stopped)
        report.failed_pages = dict(self.log.failed_pages)
        report.failed_requests = dict(self.log.failed_requests)
        report.body_bytes = self._leftovers.archived()
        if (self.job.root / self.job.name).is_dir():
            collection = Collection.open(self.job.root, self.job.name)
            self._leftovers.settle(end.stopped, state)
            report.pages = collection.page_list()
            report.captures = sum(1 for _ in collection.captures())
            report.exchanges = found.captures if found else 0
        for defect in found.defects if found else ():
            report.notes[defect.what] = report.notes.get(defect.what, 0) + 1
        return report
