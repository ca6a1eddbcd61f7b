"""The folder of a batch: every episode that has ended, whatever happens to the program.

    batch.json                    how it is played
    results.jsonl                 a line for each episode that has ended; of several for one, the last holds
    summary.json                  what they come to, when the program last ended by itself
    tasks/TASK/0/                 the task's first episode: result.json, and its trajectory
    tasks/TASK/0/failed-1/        its first attempt, if that failed and another followed
    tasks/TASK/0-before-1/        what was there until it was played again
    store/                        observations by SHA-256 (env/trajectory.py)
    cut-short/                    episodes that were under way when the program ended

An episode has ended when its line is in `results.jsonl`: one write, to the disk. Its trajectory is filed
after that, and filing goes on at the next opening where a kill cut it short. So no episode counts twice,
and none is lost.
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

from stillweb.collections.manifest import write_atomically
from stillweb.env.trajectories.trajectory import FILE, json_object, line
from stillweb.env.vector.rollout import Rollout
from stillweb.errors import UsageError
from stillweb.trainers.batch.results import Result

__all__ = ["BatchFolder", "folder_name"]

FORMAT = "stillweb-batch"
VERSION = 1
_DECIDES = ("agent", "agent_options", "seed", "page_seeds", "level", "observe", "max_steps")
_LONGEST = 120  # characters of a folder's name


class BatchFolder:
    """A batch's folder while it is ours; `BatchFolder.open` makes it."""

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
        """Open the folder for one batch at a time, and file what a kill left unfiled.

        Args:
            path: of the folder; made if need be.
            configuration: for `batch.json`, in JSON's types.
            go_on: whether results may be there already.

        Raises:
            UsageError: if another program plays into it, it holds results that are not to be gone on with, or
                these were played in another way.
            TaskError: if its results cannot be read; names file and line.
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another rollout plays into {path}", hint="--output DIR: another") from None
            folder = cls(path)
            folder._check(configuration, go_on=go_on)
            configuration = {"format": FORMAT, "version": VERSION, **configuration}
            folder._write("batch.json", configuration)
            folder.sweep()
            yield folder
        finally:
            os.close(lock)

    def keep(self, rollout: Rollout) -> Result:
        """Keep an episode that has ended."""
        result = Result.of(rollout)
        self._append(line(result.to_dict()).encode("utf-8", "backslashreplace"))
        self.results[result.key] = result
        self._file(result)
        return result

    def home(self, result: Result) -> Path:
        """Return the folder of an episode."""
        return self.path / "tasks" / folder_name(result.task) / str(result.number)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        self._write("summary.json", summary)

    def sweep(self) -> None:
        """File the episodes that have ended, and lay aside what was cut short."""
        for result in self.results.values():
            self._file(result)
        for file in sorted(self.path.glob(f"*/{FILE}")):
            aside = self.path / "cut-short" / file.parent.name
            aside.parent.mkdir(exist_ok=True)
            file.parent.rename(aside)

    def _check(self, configuration: Mapping[str, Any], *, go_on: bool) -> None:
        """Refuse to mix episodes that were played in different ways."""
        if not go_on and self.results:
            raise UsageError(
                f"{self.path} holds {len(self.results)} results already",
                hint="--resume to go on, --only-failed to play failed ones again, or another --output",
            )
        file = self.path / "batch.json"
        if not self.results or not file.exists():
            return
        before = json_object(file.read_text(encoding="utf-8"), str(file))
        other = [name for name in _DECIDES if before.get(name) != configuration.get(name)]
        if other:
            was = ", ".join(f"{name} {json.dumps(before.get(name))}" for name in other)
            raise UsageError(f"{self.path} was played in another way: {was}", hint="another --output")

    # --- results -----------------------------------------------------------------------------------

    def _read(self) -> Iterator[Result]:
        if not self._log.exists():
            return
        body = self._log.read_bytes()
        whole = body[: body.rfind(b"\n") + 1]
        if whole != body:  # torn: the disk was full, or the machine went down
            os.truncate(self._log, len(whole))
        for number, text in enumerate(whole.decode("utf-8", "replace").splitlines(), 1):
            where = f"{self._log}:{number}"
            yield Result.from_dict(json_object(text, where), where)

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
        """Bring trajectories and result of an episode to their place, or go on with that."""
        home = self.home(result)
        file, told = home / "result.json", _pretty(result.to_dict())
        if file.exists():
            if file.read_bytes() == told:
                return
            home.rename(_free(home))
        home.parent.mkdir(parents=True, exist_ok=True)
        *failed, last = result.episodes or ("",)
        self._move(last, home)
        home.mkdir(exist_ok=True)
        for number, episode in enumerate(failed, 1):
            self._move(episode, home / f"failed-{number}")
        write_atomically(file, told)

    def _move(self, episode: str, to: Path) -> None:
        """Move an attempt's folder, if it left one: what failed in its reset did not."""
        if episode and (self.path / episode).is_dir():
            (self.path / episode).rename(to)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, _pretty(value))


def _pretty(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _free(home: Path) -> Path:
    """Return a name beside a folder that nothing has yet."""
    taken: Collection[str] = {each.name for each in home.parent.iterdir()}
    number = next(n for n in range(1, len(taken) + 2) if f"{home.name}-before-{n}" not in taken)
    return home.with_name(f"{home.name}-before-{number}")


def folder_name(task_id: str) -> str:
    """Return a task's id as the name of a folder, another one for each id."""
    name = quote(task_id, safe=" ~@+=,()")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{sha256(task_id.encode()).hexdigest()[:16]}"
    return name
