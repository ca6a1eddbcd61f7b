"""The folder of a batch: keeps every finished episode, even if the process is killed.

    batch.json                    options of the batch
    results.jsonl                 one line for each finished episode; the last line of an episode counts
    summary.json                  summary, as of the last normal end of the process
    tasks/TASK/0/                 the task's first episode: result.json and its trajectory
    tasks/TASK/0/failed-1/        its first attempt, if that failed and another followed
    tasks/TASK/0-before-1/        the earlier result of an episode that was played again
    store/                        observations by SHA-256 (env/trajectories)
    cut-short/                    episodes that were under way when the process ended

An episode is finished when its line is in `results.jsonl`: one write with fsync. Its trajectory is moved
after that; if a kill interrupts the move, the next opening completes it. So no episode counts twice, and none
is lost.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stillweb.env import Rollout
from stillweb.env.trajectories.trajectory import FILE, json_object, line
from stillweb.errors import UsageError
from stillweb.files import write_atomically
from stillweb.trainers.batch.results import Result

FORMAT = "stillweb-batch"
VERSION = 1
_COMPARED = (
    *("agent", "agent_options", "seed", "page_seeds", "level", "observe", "max_steps", "perturb"),
    "forked",  # of `stillweb why`: digest of the episode
)
_LONGEST = 120  # characters


class BatchFolder:
    """The locked folder of a batch; `BatchFolder.open` creates it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[tuple[str, int], Result] = {}
        self._log = path / "results.jsonl"
        for result in self._read():
            self.results[result.key] = result

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, configuration: Mapping[str, Any], *, go_on: bool = False
    ) -> Iterator[BatchFolder]:
        """Open and lock the folder, and move the trajectories that a kill left behind.

        Args:
            path: the folder; created if it is missing.
            configuration: content of `batch.json`, in JSON types.
            go_on: whether the folder may hold results.

        Raises:
            UsageError: if another process uses the folder, it holds results and `go_on` is False, or its
                results were played with other options.
            TaskError: if its results cannot be read; names file and line.
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another rollout writes into {path}", hint="choose another folder with --output"
                ) from None
            folder = cls(path)
            folder._check(configuration, go_on=go_on)
            configuration = {"format": FORMAT, "version": VERSION, **configuration}
            folder.write("batch.json", configuration)
            folder.sweep()
            yield folder
        finally:
            os.close(lock)

    def keep(self, rollout: Rollout) -> Result:
        result = Result.of(rollout)
        self._append(line(result.to_json()).encode("utf-8", "backslashreplace"))
        self.results[result.key] = result
        self._file(result)
        return result

    def folder_of(self, result: Result) -> Path:
        return self.path / "tasks" / folder_name(result.task) / str(result.number)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write("summary.json", summary)

    def sweep(self) -> None:
        """Move the trajectories of finished episodes to their folders, and unfinished ones to `cut-short`."""
        for result in self.results.values():
            self._file(result)
        for file in sorted(self.path.glob(f"*/{FILE}")):
            aside = self.path / "cut-short" / file.parent.name
            aside.parent.mkdir(exist_ok=True)
            file.parent.rename(aside)

    def _check(self, configuration: Mapping[str, Any], *, go_on: bool) -> None:
        """Refuse to mix episodes that were played with different options."""
        if not go_on and self.results:
            raise UsageError(
                f"{self.path} already holds {len(self.results)} results",
                hint="use --resume to continue, --only-failed to repeat failed episodes, or another --output",
            )
        file = self.path / "batch.json"
        if not self.results or not file.exists():
            return
        before = json_object(file.read_text(encoding="utf-8"), str(file))
        other = [name for name in _COMPARED if before.get(name) != configuration.get(name)]
        if other:
            was = ", ".join(f"{name} {json.dumps(before.get(name))}" for name in other)
            raise UsageError(
                f"{self.path} was played with other options: {was}",
                hint="choose another folder with --output",
            )

    # --- results -----------------------------------------------------------------------------------

    def _read(self) -> Iterator[Result]:
        if not self._log.exists():
            return
        body = self._log.read_bytes()
        whole = body[: body.rfind(b"\n") + 1]
        if whole != body:  # torn: the disk was full, or the machine crashed
            os.truncate(self._log, len(whole))
        yield from _parsed(whole, self._log)

    def _append(self, text: bytes) -> None:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(descriptor, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- filing ------------------------------------------------------------------------------------

    def _file(self, result: Result) -> None:
        """Move the trajectories of an episode and write its result, or complete an interrupted move."""
        home = self.folder_of(result)
        file, text = home / "result.json", _pretty(result.to_json())
        if file.exists():
            if file.read_bytes() == text:
                return
            home.rename(_free(home))
        home.parent.mkdir(parents=True, exist_ok=True)
        *failed, last = result.episodes or ("",)
        self._move(last, home)
        home.mkdir(exist_ok=True)
        for number, episode in enumerate(failed, 1):
            self._move(episode, home / f"failed-{number}")
        write_atomically(file, text)

    def _move(self, episode: str, to: Path) -> None:
        """Move the folder of an attempt; an attempt that failed in its reset has none."""
        if episode and (self.path / episode).is_dir():
            (self.path / episode).rename(to)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, _pretty(value))


def results_in(path: Path) -> list[Result]:
    """Return the results of a batch's folder, which another process may be writing.

    Raises:
        UsageError: if the folder has no results.
        TaskError: if they cannot be read; names file and line.
    """
    log = path / "results.jsonl"
    if not log.is_file():
        raise UsageError(f"{path} has no results.jsonl", hint="name the --output folder of stillweb rollout")
    body = log.read_bytes()
    return list({each.key: each for each in _parsed(body[: body.rfind(b"\n") + 1], log)}.values())


def _parsed(lines: bytes, log: Path) -> Iterator[Result]:
    for number, text in enumerate(lines.decode("utf-8", "replace").splitlines(), 1):
        where = f"{log}:{number}"
        yield Result.parse(json_object(text, where), where)


def _pretty(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _free(home: Path) -> Path:
    """Return an unused name beside a folder."""
    taken: Collection[str] = {each.name for each in home.parent.iterdir()}
    number = next(n for n in range(1, len(taken) + 2) if f"{home.name}-before-{n}" not in taken)
    return home.with_name(f"{home.name}-before-{number}")


def folder_name(task_id: str) -> str:
    """Return a task's identifier as a folder name, unique for each identifier."""
    name = quote(task_id, safe=" ~@+=,()")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{sha256(task_id.encode()).hexdigest()[:16]}"
    return name
