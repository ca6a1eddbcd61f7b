"""One crawl by browsertrix-crawler, from the options to the collection.

The container runs in its own process group, so that Ctrl-C reaches it only through us. The first `interrupt`
lets it finish its pages and its WACZ, the second ends it with what it has written, the third kills it. If our
process is killed, the container continues; the next crawl with `append` imports its output.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from stillweb.clock import monotonic, now, perf
from stillweb.collections.importers.importer import ImportReport, import_files
from stillweb.collections.layout import Collection, check_name
from stillweb.errors import (
    CollectionError,
    CollectionExists,
    NoResponses,
    ProgramNotFound,
    RecordError,
    UsageError,
)
from stillweb.files import write_atomically
from stillweb.record.browsertrix.forwarder import forwarding
from stillweb.record.browsertrix.log import CrawlExit, Log, judge, nothing_recorded
from stillweb.record.browsertrix.settings import (
    CONFIG,
    Container,
    dump,
    mounted_files,
    run_arguments,
    seed_settings,
    settings_of,
    uses_forwarder,
)
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.scope import seed_url
from stillweb.record.options import CrawlOptions
from stillweb.urls import to_timestamp

TRANSCRIPT = "crawl.log"
_STATE_FOLDER = "browsertrix"
_STATE = "state.yaml"


class CrawlerOutput:
    """Output folder of a crawl.

    Attributes:
        path: the folder, mounted as the container's volume.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.path = root / f".browsertrix-{name}"
        self._output = self.path / "collections" / name

    @property
    def transcript(self) -> Path:
        """File with all output of the crawler."""
        return self.path / TRANSCRIPT

    def archived(self) -> int:
        """Return the bytes in the archive so far."""
        total = 0
        for path in (self._output / "archive").glob("*"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # renamed or removed meanwhile
                continue
        return total

    def state(self) -> dict[str, Any] | None:
        """Return the newest state that the crawler saved; None if there is none."""
        for path in sorted((self._output / "crawls").glob("*.yaml"), reverse=True):
            try:
                entry = yaml.safe_load(path.read_text("utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError):
                continue  # truncated: the previous one is complete
            if isinstance(entry, dict) and isinstance(entry.get("state"), dict):
                return dict(entry["state"])
        return None

    def take_in(self) -> ImportReport | None:
        """Import the output; return None if it holds no response of a site.

        Raises:
            CollectionError: if it is malformed.
        """
        append = (self.root / self.name).is_dir()
        for files in (self._package(), self._loose()):
            if not files:
                continue
            try:
                return import_files(files, self.root, self.name, append=append)
            except NoResponses:
                return None
        return None

    def _package(self) -> list[Path]:
        path = self._output / f"{self.name}.wacz"
        return [path] if path.is_file() and zipfile.is_zipfile(path) else []

    def _loose(self) -> list[Path]:
        """Return the files from which a WACZ would be made."""
        archive = self._output / "archive"
        if not archive.is_dir() or not any(archive.iterdir()):
            return []
        pages = [self._output / "pages" / name for name in ("pages.jsonl", "extraPages.jsonl")]
        return [archive, *(path for path in pages if path.is_file())]

    def settle(self, stopped: str, state: Mapping[str, Any] | None) -> None:
        """Store in the collection what later crawls and readers need, and remove the folder.

        Args:
            stopped: why the crawl is incomplete, "" if it is complete.
            state: state to continue from.
        """
        collection = Collection.open(self.root, self.name)
        folder = collection.path / _STATE_FOLDER
        folder.mkdir(exist_ok=True)
        if (self.path / CONFIG).is_file():
            shutil.copyfile(self.path / CONFIG, folder / CONFIG)
        if stopped and state:
            write_atomically(folder / _STATE, yaml.safe_dump({"state": dict(state)}).encode("utf-8"))
        else:
            (folder / _STATE).unlink(missing_ok=True)
        self._keep_transcript(collection)
        manifest = collection.manifest()
        extra = {name: value for name, value in manifest.extra.items() if name != "stopped"}
        if stopped:
            extra["stopped"] = stopped
        state_word = "partial" if stopped else "complete"
        collection.write_manifest(replace(manifest, state=state_word, extra=extra))
        self.remove()

    def _keep_transcript(self, collection: Collection) -> None:
        """Store the crawler's output unless an equal log exists; a WACZ log lacks lines that are not JSON."""
        if not self.transcript.is_file():
            return
        output = self.transcript.read_bytes()
        collection.logs.mkdir(exist_ok=True)
        target = collection.logs / f"browsertrix-{to_timestamp(now())}.log"
        for other in collection.logs.glob("*.log"):
            if other.read_bytes() == output:
                return
        target.write_bytes(output)

    def keep_transcript(self) -> Path:
        """Store the crawler's output beside a missing collection; return the file."""
        target = self.root / f"{self.path.name}.log"
        if self.transcript.is_file():
            self.transcript.replace(target)
        return target

    def remove(self) -> None:
        """Remove the folder; files of another user stay."""
        shutil.rmtree(self.path, ignore_errors=True)


def read_state(collection: Collection, seeds: Sequence[str]) -> dict[str, Any] | None:
    """Return the state that an interrupted crawl of the same seeds left in a collection.

    Raises:
        CollectionError: if a file is malformed.
    """
    entry = _yaml(collection.path / _STATE_FOLDER / CONFIG)
    if entry is None or entry.get("seeds") != seed_settings(seeds):
        return None  # its queue refers to seeds by number
    state = _yaml(collection.path / _STATE_FOLDER / _STATE)
    return dict(state["state"]) if state and isinstance(state.get("state"), dict) else None


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        entry = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"rm {path}, to crawl from the seeds again"
        raise CollectionError(f"malformed crawl state: {error}", path=path, hint=hint) from error
    return entry if isinstance(entry, dict) else None


_ALTERNATIVE = "or record with stillweb's own browser: --engine browser"


async def ensure_image(container: Container, say: Callable[[str], None]) -> None:
    """Pull the image unless it exists.

    Raises:
        ProgramNotFound: if Docker is not installed.
        RecordError: if its daemon does not respond, or the image cannot be pulled.
    """
    program = container.program
    if shutil.which(program) is None:
        raise ProgramNotFound(
            f"--engine browsertrix needs {program}, which is not installed",
            hint=f"https://docs.docker.com/engine/install/, {_ALTERNATIVE}",
        )
    code, output = await _run_docker(program, "version", "--format", "{{.Server.Version}}")
    if code:
        raise _no_daemon(program, output)
    code, _ = await _run_docker(program, "image", "inspect", "--format", "{{.Id}}", container.image)
    if not code:
        return
    say(f"pulling {container.image}: it is missing, and large")
    code, output = await _run_docker(program, "pull", container.image)
    if code:
        hint = f"try it by hand: {program} pull {container.image}; or name an existing image by --image"
        raise RecordError(f"the image {container.image} cannot be pulled: {_last_line(output)}", hint=hint)


def _no_daemon(program: str, output: str) -> RecordError:
    if "permission denied" in output.lower():
        what, hint = "rejects this user", "sudo usermod -aG docker $USER, and log in again"
    else:
        what, hint = "is installed, but its daemon does not respond", "sudo systemctl start docker"
    return RecordError(f"{program} {what}: {_last_line(output)}", hint=f"{hint}; {_ALTERNATIVE}")


async def _run_docker(*call: str) -> tuple[int, str]:
    """Run a Docker command; return its status and its stderr."""
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


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


_LINE = 1 << 24  # bytes; its lists of pending pages make long lines
_SILENCE = 240.0  # seconds, in addition to those for a page and its behaviors
_BEHAVIORS = 90.0  # seconds, the crawler's own limit


@dataclass(frozen=True, slots=True)
class CrawlerJob:
    """A crawl to run.

    Attributes:
        root, name: collection.
        options: options of `record crawl`.
        append: add to an existing collection; an interrupted crawl continues.
        silence: seconds without output after which the crawler is killed; None for a default.
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
    """Docker command, settings as YAML, and notes for the user."""

    call: tuple[str, ...]
    yaml: str
    notes: tuple[str, ...]


def plan(job: CrawlerJob, proxy: str | None = None) -> CrawlPlan:
    """Return what a crawl would run.

    Args:
        job: the crawl.
        proxy: URL of the forwarder, "" without one; None for an example of it.

    Raises:
        UsageError: if the crawler does not support an option.
    """
    check_name(job.name)
    exists = (job.root / job.name).is_dir()
    seeds = [seed_url(seed) for seed in job.seeds]
    state = read_state(Collection.open(job.root, job.name), seeds) if exists else None
    crawler = settings_of(job.name, job.seeds, job.options, job.container, state)
    work = CrawlerOutput(job.root, job.name).path
    files = mounted_files(job.options, job.container)
    if proxy is None:
        proxy = "socks5://127.0.0.1:PORT" if job.options.record.resolve else ""
    call = run_arguments(_label(work), work, job.options, job.container, files, proxy)
    return CrawlPlan(tuple(call), dump(crawler.settings), crawler.notes)


def _label(work: Path) -> str:
    """Return the container's name, which makes Docker refuse a second container for the same collection."""
    digest = hashlib.sha256(str(work.resolve()).encode()).hexdigest()[:8]
    return f"stillweb{work.name.replace('.', '-', 1)}-{digest}"


class BrowsertrixCrawl:
    """A crawl that runs once.

    Attributes:
        log: state of the crawler's log.
        silence: seconds without output after which the crawler is killed.
        interrupted: number of calls of `interrupt`.
    """

    def __init__(self, job: CrawlerJob) -> None:
        self.job = job
        self.log = Log()
        waits = job.options.page_timeout + job.options.delay * job.options.jobs
        self.silence = _SILENCE + waits + _BEHAVIORS if job.silence is None else job.silence
        self.interrupted = 0
        self._leftovers = CrawlerOutput(job.root, job.name)
        self._process: asyncio.subprocess.Process | None = None

    def interrupt(self) -> None:
        """Ask the crawler to end; each call is more urgent."""
        self.interrupted += 1
        self._signal(signal.SIGINT if self.interrupted < 3 else signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        if number is signal.SIGKILL:  # killing only the Docker client would leave the container running
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
        """Crawl and import the output; on any error, what was recorded is in the collection.

        Raises:
            CollectionExists: if the collection or an output folder exists without `append`.
            UsageError, RecordError, UpstreamUnreachable: as the crawl ended.
        """
        began = perf()
        self._check_target()
        await ensure_image(self.job.container, say)
        if self.interrupted:  # while the image was pulled
            return CrawlReport(stopped="a signal")
        if self._leftovers.path.exists():
            await self._take_in_old(say)
        async with forwarding(self.job.options.record) as proxy:
            what = plan(self.job, proxy)
            for note in what.notes:
                say(f"note: {note}")
            self._leftovers.path.mkdir(parents=True)
            (self._leftovers.path / CONFIG).write_text(what.yaml, "utf-8")
            code = await self._call(what.call, on_event)
        end = judge(code, self.log, self.job.container, interrupted=bool(self.interrupted))
        report = await asyncio.to_thread(self._import, end, self._leftovers.state())
        report.seconds = perf() - began
        error = end.error
        if not report.captures and not end.stopped:
            error = nothing_recorded(self.log)
        if error:
            if not report.captures:
                say(f"nothing was recorded; its log: {self._leftovers.keep_transcript()}")
                self._leftovers.remove()
            raise error
        return report

    def _check_target(self) -> None:
        if self.job.append:
            return
        if (self.job.root / self.job.name).exists():
            hint = f"use another name, --append, or: stillweb collections rm {self.job.name} --yes"
            raise CollectionExists(f"collection {self.job.name!r} is in {self.job.root} already", hint=hint)
        if self._leftovers.path.exists():
            what = (
                f"a crawl of {self.job.name!r} was interrupted, or is still running: {self._leftovers.path}"
            )
            raise CollectionExists(what, hint="--append imports its output and continues")

    async def _take_in_old(self, say: Callable[[str], None]) -> None:
        """Import the output of a crawl whose end we did not see.

        Raises:
            UsageError: if it is still running.
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
            raise UsageError(f"an earlier crawl of {self.job.name!r} is still running", hint=hint)
        say("importing the output of an earlier crawl")
        # Its forwarder ended with us. A later state counts pages as done that failed for this reason.
        past = _yaml(self._leftovers.path / CONFIG) or {}
        state = None if uses_forwarder(past) else self._leftovers.state()
        await asyncio.to_thread(self._import, CrawlExit("cut short"), state)

    async def _call(self, call: Sequence[str], on_event: Callable[[CrawlEvent], None]) -> int:
        """Run the container; return its exit code."""
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
            last_heard = began = monotonic()
            try:
                while line := await self._line(process.stdout, last_heard):
                    transcript.write(line)
                    transcript.flush()
                    self.log.body_bytes = self._leftovers.archived()
                    event = self.log.feed(line.decode("utf-8", "replace"))
                    last_heard = last_heard if self.log.waiting else monotonic()
                    if event:
                        on_event(replace(event, per_minute=60 * event.pages / max(1.0, monotonic() - began)))
                return await process.wait()
            except BaseException:
                await self._kill()
                await process.wait()
                raise

    async def _line(self, stream: asyncio.StreamReader, last_heard: float) -> bytes:
        """Return the next line, b"" at the end.

        Raises:
            RecordError: if the crawler was silent or waiting for too long.
        """
        try:
            async with asyncio.timeout(last_heard + self.silence - monotonic()):
                return await stream.readline()
        except TimeoutError:
            raise self._silence_error() from None

    def _silence_error(self) -> RecordError:
        """Return the error for a crawler that is silent or only waits."""
        what = "waits for its store, Redis" if self.log.waiting else "has stopped writing its log"
        hint = (
            "the same command with --append imports what is recorded; a host network may have another Redis"
        )
        return RecordError(f"browsertrix {what}; it was killed after {self.silence:.0f} s", hint=hint)

    def _import(self, end: CrawlExit, state: Mapping[str, Any] | None) -> CrawlReport:
        found = self._leftovers.take_in()
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
