"""Trajectories on disk: actions, observations and the evidence for the reward.

    ROOT/store/ab/abcd....png|txt      observations and long texts by their SHA-256, shared by all episodes
    ROOT/<episode>/trajectory.jsonl    a header, a line for the reset and for each step, an end
    ROOT/<episode>/run.jsonl           values that differ from run to run: identifiers, times
    ROOT/<episode>/events.jsonl        requests and console of each step (trajectories/events.py)
    ROOT/<episode>/episode.har         requests and responses (trajectories/log.py)

Equal episodes have equal `trajectory.jsonl`, byte for byte. Lines are appended step by step, and files of the
store are written atomically, so that a crash loses at most the last step. An episode without an end was cut
short. The folder of an ended episode may be moved to any place below ROOT.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from stillweb.env.tasks.evidence import Evidence
from stillweb.errors import InfraError, TaskError
from stillweb.files import write_atomically

FORMAT = "stillweb-trajectory"
VERSION = 1
FILE = "trajectory.jsonl"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONG = 2000  # characters; a longer value goes into the store
_BY_DIGEST = "sha256"


class ContentFiles:
    """Content-addressed files (SHA-256); many episodes and processes write into one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root / "store"

    def path(self, digest: str, suffix: str) -> Path:
        return self._root / digest[:2] / f"{digest}.{suffix}"

    def put(self, body: bytes, suffix: str) -> str:
        """Write bytes atomically; return their digest."""
        digest = hashlib.sha256(body).hexdigest()
        path = self.path(digest, suffix)
        # After a crash of the machine a file may have the wrong length.
        if not path.exists() or path.stat().st_size != len(body):
            write_atomically(path, body, durable=False)
        return digest

    def get(self, digest: str, suffix: str) -> bytes:
        """Return bytes by their digest.

        Raises:
            TaskError: if they are missing or damaged.
        """
        path = self.path(digest, suffix)
        if not _DIGEST.fullmatch(str(digest)):
            raise TaskError(f"{str(digest)[:80]!r} is not an SHA-256 of a stored content")
        try:
            body = path.read_bytes()
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
        if hashlib.sha256(body).hexdigest() != digest:
            raise TaskError(f"{path}: is damaged: its digest is another")
        return body


def store_of(trajectory: Path) -> ContentFiles:
    """Return the store of a trajectory's file: `store` in the nearest parent folder that has one."""
    roots = trajectory.absolute().parents[1:]
    return ContentFiles(next((root for root in roots if (root / "store").is_dir()), roots[0]))


# --- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode read from its file.

    Attributes:
        header: task, collection, environment id, level, seed, browser, fonts, processor.
        steps: the reset and each step, as JSON.
        end: the last line; None if the episode was cut short.
    """

    header: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    end: Mapping[str, Any] | None
    path: Path

    @property
    def store(self) -> ContentFiles:
        """The store of its observations."""
        return store_of(self.path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a trajectory from its file or folder. An incomplete last line is ignored: it is from a crash.

        Raises:
            TaskError: naming file and line.
        """
        path = path / FILE if path.is_dir() else path
        lines = list(json_lines(path, torn=True))
        header = lines[0] if lines else {}
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise TaskError(f"{path}:1: no header of a trajectory of version {VERSION}")
        end = lines[-1] if "end" in lines[-1] else None
        return cls(header, tuple(each for each in lines[1:] if "step" in each), end, path)

    def observed(self, step: int, form: str) -> bytes:
        """Return one form of the observation after a step.

        Raises:
            TaskError: if that form was not observed, or is damaged.
        """
        try:
            digest = self.steps[step]["digests"][form]
        except (IndexError, KeyError):
            raise TaskError(f"{self.path}: step {step} has no {form}") from None
        return self.store.get(digest, "png" if self.store.path(digest, "png").exists() else "txt")


def trajectories_in(path: Path) -> Iterator[Path]:
    """Yield the trajectory files at or below a path, in order."""
    if path.is_file():
        yield path
    else:
        yield from sorted(path.rglob(FILE))


def json_lines(path: Path, *, torn: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file's lines; `torn` ignores a last line without its end, which a crash leaves.

    Raises:
        TaskError: naming file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    for number, text in enumerate(lines[:-1] if torn else lines, 1):
        if torn or text.strip():
            yield json_object(text, f"{path}:{number}")


def json_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        TaskError: if it is not a JSON object; `where` names the line.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TaskError(f"{where}: {type(value).__name__} where an object is expected")
    return value


# --- evidence --------------------------------------------------------------------------------------


_EVIDENCE = TypeAdapter(Evidence)


def evidence_to_dict(evidence: Evidence, store: ContentFiles) -> dict[str, Any]:
    """Return evidence as JSON; long texts go into the store."""
    dumped = asdict(evidence)
    for reading in dumped["readings"]:
        value = reading["value"]
        if isinstance(value, str) and len(value) > _LONG:
            reading["value"] = {_BY_DIGEST: store.put(value.encode("utf-8", "surrogatepass"), "txt")}
            reading["stored"] = True
    return dumped


def evidence_from_dict(loaded: Mapping[str, Any], store: ContentFiles) -> Evidence:
    """Read the result of `evidence_to_dict`.

    Raises:
        TaskError: if it is no evidence, or the store lacks a text that it names.
    """
    try:
        readings = [_with_value(reading, store) for reading in loaded["readings"]]
        given = {field.name: loaded[field.name] for field in fields(Evidence)}
        return _EVIDENCE.validate_python(given | {"readings": readings})
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"the evidence cannot be read: {error!r}") from error


def _with_value(reading: Mapping[str, Any], store: ContentFiles) -> Mapping[str, Any]:
    if not reading.get("stored"):
        return reading
    value = store.get(reading["value"][_BY_DIGEST], "txt").decode("utf-8", "surrogatepass")
    return {**reading, "value": value}


def line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


async def in_thread(work: Any, *arguments: Any) -> Any:
    """Write in a thread, so that other episodes continue; cancellation does not interrupt the write.

    Raises:
        InfraError: if the write fails.
    """
    try:
        return await asyncio.shield(asyncio.to_thread(work, *arguments))
    except OSError as error:
        raise InfraError(f"the trajectory cannot be written: {error}") from error
