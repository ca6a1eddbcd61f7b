"""Index of the episodes below a folder: one row for each trajectory, with its task, reward and misses.

Rows are read from the first and the last line of `trajectory.jsonl`, without parsing the steps, and again
only if the file has changed. `refresh` reads on until it has seen all files; the rows read so far can be
listed meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.diff.certify.rates import rate
from stillweb.env.trajectories.trajectory import FILE
from stillweb.errors import UsageError

_TRAFFIC = re.compile(rb'"requests":(\d+),"hits":\d+,"misses":(\d+)')
_UNRECORDED = re.compile(rb'"guesses":(\d+),"derived":(\d+)')
_STEP = re.compile(rb'^\{"step":', re.MULTILINE)
_NUMBER = re.compile(r"[._/#:-]?\d+$")
_GOAL = 300  # characters
_CUT = "cut short"
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode.

    Attributes:
        id: path of its folder below the root, with `/`.
        family: the task's own, else its id without a final number.
        end: kind of its end as in the trajectory; "cut short" without one, "unreadable" if damaged.
        reward: None if the episode has none.
        guesses, derived: answers that were not recorded, as in `info["traffic"]`.
        modified: seconds since 1970.
    """

    id: str
    task: str = ""
    family: str = ""
    goal: str = ""
    collection: str = ""
    level: str = ""
    seed: int | None = None
    end: str = _CUT
    reward: float | None = None
    steps: int = 0
    requests: int = 0
    misses: int = 0
    guesses: int = 0
    derived: int = 0
    error: str = ""
    modified: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Choice of episodes; an empty field chooses all.

    Attributes:
        text: words that must all be in id, task, goal, collection or error; case is ignored.
        reward: "1", "0", "between", "none" (no reward) or "" for any.
        misses: "yes", "no" or "".
    """

    text: str = ""
    task: str = ""
    family: str = ""
    collection: str = ""
    end: str = ""
    reward: str = ""
    misses: str = ""

    def accepts(self, row: EpisodeRow) -> bool:
        for name in ("task", "family", "collection", "end"):
            wanted = getattr(self, name)
            if wanted and getattr(row, name) != wanted:
                return False
        if self.reward and _reward_class(row.reward) != self.reward:
            return False
        if self.misses and (row.misses > 0) != (self.misses == "yes"):
            return False
        if not self.text:
            return True
        searched = f"{row.id} {row.task} {row.goal} {row.collection} {row.error}".lower()
        return all(word in searched for word in self.text.lower().split())


def _reward_class(reward: float | None) -> str:
    if reward is None:
        return "none"
    return "1" if reward >= 1 else "0" if reward <= 0 else "between"


@dataclass(slots=True)
class EpisodeIndex:
    """Rows of all episodes below a folder.

    Attributes:
        root: the folder; trajectories may be at any depth.
        scanning: whether `refresh` is running.
        seconds: duration of the last refresh.
    """

    root: Path
    scanning: bool = False
    seconds: float = 0.0
    _rows: dict[str, EpisodeRow] = field(default_factory=dict)
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, root: Path) -> EpisodeIndex:
        """Return an empty index of a folder.

        Raises:
            UsageError: if it is not a folder.
        """
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder", hint="stillweb rollout --output DIR writes episodes")
        return cls(root.resolve())

    def refresh(self) -> None:
        """Read new and changed trajectories, and drop rows of missing ones; runs in any thread."""
        with self._lock:
            self.scanning = True
            began = clock.perf()
            found: set[str] = set()
            try:
                for folder, stamp in _trajectories(self.root):
                    episode = folder.relative_to(self.root).as_posix()
                    found.add(episode)
                    if self._stamps.get(episode) != stamp:
                        self._rows[episode] = read_row(folder, episode)
                        self._stamps[episode] = stamp
                for gone in self._rows.keys() - found:
                    del self._rows[gone], self._stamps[gone]
            finally:
                self.seconds = clock.perf() - began
                self.scanning = False

    def folder(self, episode: str) -> Path:
        """Return the folder of an episode.

        Raises:
            KeyError: if there is no such episode below the root; so no other path can be read.
        """
        if "\0" in episode:
            raise KeyError(episode)
        # Not looked up in the rows: a link can name an episode that the first refresh has not reached.
        folder = (self.root / episode).resolve()
        inside = self.root in folder.parents and folder.relative_to(self.root).as_posix() == episode
        if not inside or not (folder / FILE).is_file():
            raise KeyError(episode)
        return folder

    def rows(self, chosen: EpisodeFilter, order: str = "") -> list[EpisodeRow]:
        """Return the chosen rows, sorted by a column; `-` before its name reverses the order."""
        rows = [row for row in list(self._rows.values()) if chosen.accepts(row)]
        rows.sort(key=lambda row: _natural(row.id))
        column = order.removeprefix("-")
        if column in EpisodeRow.__slots__:
            rows.sort(key=lambda row: _sortable(getattr(row, column)), reverse=order.startswith("-"))
        return rows

    def choices(self) -> dict[str, list[tuple[str, int]]]:
        rows = list(self._rows.values())
        counted = {
            name: Counter(getattr(row, name) for row in rows)
            for name in ("task", "family", "collection", "end")
        }
        return {name: sorted(counts.items()) for name, counts in counted.items()}


def summary(rows: Iterable[EpisodeRow]) -> dict[str, Any]:
    """Return count, successes with their 95 % interval, and failures; failures are not in the rate."""
    rows = list(rows)
    scored = [row.reward for row in rows if row.reward is not None]
    found = rate(sum(reward >= 1 for reward in scored), len(scored))
    return {
        "episodes": len(rows),
        "scored": len(scored),
        "successes": sum(reward >= 1 for reward in scored),
        "low": found.low,
        "high": found.high,
        "mean": sum(scored) / len(scored) if scored else None,
        "with_misses": sum(row.misses > 0 for row in rows),
        "with_guesses": sum(row.guesses > 0 for row in rows),
        "with_derived": sum(row.derived > 0 for row in rows),
    }


def read_row(folder: Path, episode: str) -> EpisodeRow:
    """Return the row of a trajectory; one that cannot be read gets the end "unreadable"."""
    path = folder / FILE
    try:
        content, modified = path.read_bytes(), path.stat().st_mtime
        first, last = _first_and_last(content)
        return _row(episode, first, last, content, modified)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return EpisodeRow(episode, end=UNREADABLE, error=f"{path}: {error}")


def _row(
    episode: str, header: Mapping[str, Any], end: Mapping[str, Any], content: bytes, modified: float
) -> EpisodeRow:
    task = header.get("task") or {}
    name = str(header.get("name") or "")
    traffic = [(int(requests), int(misses)) for requests, misses in _TRAFFIC.findall(content)]
    unrecorded = [(int(guesses), int(derived)) for guesses, derived in _UNRECORDED.findall(content)]
    reward = end.get("reward")
    return EpisodeRow(
        episode,
        task=name,
        family=str(task.get("family") or _NUMBER.sub("", name) or name),
        goal=str(header.get("goal") or task.get("goal") or "")[:_GOAL],
        collection=str(header.get("collection") or ""),
        level=str(header.get("level") or ""),
        seed=header.get("seed"),
        end=str(end.get("end", _CUT)),
        reward=None if reward is None else float(reward),
        steps=max(0, len(_STEP.findall(content)) - 1),
        requests=sum(requests for requests, _ in traffic),
        misses=sum(misses for _, misses in traffic),
        guesses=sum(guesses for guesses, _ in unrecorded),
        derived=sum(derived for _, derived in unrecorded),
        error=str(end.get("error") or ""),
        modified=modified,
    )


def _first_and_last(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header, and the end if it is the last complete line."""
    first = json.loads(content[: content.index(b"\n")])
    complete = content[: content.rindex(b"\n")]
    last = complete[complete.rfind(b"\n") + 1 :]
    return first, json.loads(last) if last.startswith(b'{"end":') else {}


def _trajectories(root: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield the folders with a trajectory, and modification time and size of its file."""
    waiting = [str(root)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "store":
                        waiting.append(entry.path)
                elif entry.name == FILE:
                    facts = entry.stat()
                    yield Path(entry.path).parent, (facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1 << 16)
def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers within a text by value."""
    parts = re.split(r"(\d+)", text)
    return [(int(part) if part.isdigit() and part.isascii() else 0, part) for part in parts]


def _sortable(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)
