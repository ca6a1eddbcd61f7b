"""`amends.json` of a collection: what was added after its recording, and what the site then did not give.

    {"version": 1, "amends": [{"version": "2", "kept": "1", ...}],
     "absent": [{"method": ..., "url": ..., "reason": ..., "at": ..., "id": ...}]}

The collection itself is the newest version; those before lie under `versions/`, named 1, 2, ... An absence
explains a later miss, as what a recording saw fail does (`absent`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillweb.collections.manifest import write_atomically
from stillweb.errors import CollectionError

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection

__all__ = ["FILE", "Absent", "Amend", "next_version", "read_absent", "read_amends", "write_amends"]

FILE = "amends.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Amend:
    """One round of additions.

    Attributes:
        version: what the collection has been since then.
        kept: the version that holds it as it was before.
        at: 14 digits UTC.
        asked, recorded, absent, refused: misses, by what came of them.
        captures: added, those included that nobody had missed yet.
        pages: URLs of pages added.
    """

    version: str
    kept: str
    at: str
    asked: int = 0
    recorded: int = 0
    absent: int = 0
    refused: int = 0
    captures: int = 0
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """A request that a recording made in vain.

    Attributes:
        id: which request it was, as `record amend` tells requests apart.
        reason: why there is no answer.
        at: 14 digits UTC.
    """

    method: str
    url: str
    reason: str
    at: str
    id: str = ""


def read_amends(path: Path) -> tuple[list[Amend], list[Absent]]:
    """Return what the file of a collection's folder says; nothing if there is none.

    Raises:
        CollectionError: if it is none of ours.
    """
    file = path / FILE
    try:
        loaded = json.loads(file.read_bytes())
        if loaded["version"] > _VERSION:
            raise ValueError(f"version {loaded['version']}, not {_VERSION}")
        amends = [Amend(**_known(Amend, each) | {"pages": tuple(each["pages"])}) for each in loaded["amends"]]
        return amends, [Absent(**_known(Absent, each)) for each in loaded["absent"]]
    except FileNotFoundError:
        return [], []
    except (ValueError, TypeError, KeyError) as error:
        raise CollectionError(
            f"no list of amends: {error!r}",
            path=file,
            hint="upgrade stillweb; or remove the file: captures stay",
        ) from error


def read_absent(path: Path) -> Iterator[Absent]:
    """Yield what was asked for in vain.

    Raises:
        CollectionError: as `read_amends`.
    """
    yield from read_amends(path)[1]


def write_amends(path: Path, amends: Iterable[Amend], absent: Iterable[Absent]) -> None:
    """Write the file atomically."""
    members = {
        "version": _VERSION,
        "amends": [asdict(each) for each in amends],
        "absent": [asdict(each) for each in absent],
    }
    text = json.dumps(members, indent=1, ensure_ascii=True) + "\n"
    write_atomically(path / FILE, text.encode("ascii"))


def next_version(names: Iterable[str]) -> int:
    """Return the number for a collection's version as it is now, given the names of those kept."""
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


def current_version(collection: Collection) -> str:
    """Return the number of a collection as it is; "1" if nothing was added to it."""
    amends, _ = read_amends(collection.path)
    return amends[-1].version if amends else "1"


def _known(kind: type[Amend] | type[Absent], members: dict[str, Any]) -> dict[str, Any]:
    return {name: members[name] for name in kind.__slots__ if name in members}
