"""What a comparison has found so far, on disk: a comparison that was killed goes on where it was.

    KEY/pages.jsonl   a line of JSON a page; a line torn by a kill is no page
    KEY/pictures/     of the replay, and what differs marked
    KEY/finished      there when all pages are through: the next comparison begins anew

KEY is made of all that decides what is found: the environment, the back-end, the level, the
collection's settings, this program. So nothing is taken over from a comparison of something else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from stillweb.diff.report import PageDiff
from stillweb.errors import UsageError

_FINISHED = "finished"


class State:
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
def state_in(root: Path, key: str, *, fresh: bool = False) -> Iterator[State]:
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
        yield State(folder)
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
