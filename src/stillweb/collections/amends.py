"""`amends.json` of a collection: later additions, and requests that the site did not answer then.

    {"version": 1, "amends": [{"version": "2", "kept": "1", ...}],
     "absent": [{"method": ..., "url": ..., "reason": ..., "at": ..., "id": ...}]}

The collection itself is the newest version; earlier ones are in `versions/`, named 1, 2, ... An absence
explains a later miss, like a request that failed during the recording (`Absences`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stillweb.collections.limits import load_json
from stillweb.errors import CollectionError
from stillweb.files import write_atomically

FILE = "amends.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Amend:
    """One round of additions.

    Attributes:
        version: of the collection since then.
        kept: version that holds the state before.
        at: 14 digits UTC.
        asked, recorded, absent, refused: numbers of misses, by result.
        captures: added, including those that no session had missed yet.
        pages: URLs of added pages.
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
    """A request that the site did not answer when it was recorded again.

    Attributes:
        id: identity of the request, as in `record amend`.
        reason: why it has no response.
        at: 14 digits UTC.
    """

    method: str
    url: str
    reason: str
    at: str
    id: str = ""


def read_amends(path: Path) -> tuple[list[Amend], list[Absent]]:
    """Return the content of the file in a collection's folder; empty lists if it is missing.

    Raises:
        CollectionError: if the file has another format.
    """
    file = path / FILE
    try:
        loaded = load_json(file.read_bytes(), path=file)
        if loaded["version"] > _VERSION:
            raise ValueError(f"version {loaded['version']}, not {_VERSION}")
        amends = [Amend(**_known(Amend, each) | {"pages": tuple(each["pages"])}) for each in loaded["amends"]]
        return amends, [Absent(**_known(Absent, each)) for each in loaded["absent"]]
    except FileNotFoundError:
        return [], []
    except (ValueError, TypeError, KeyError) as error:
        raise CollectionError(
            f"not a list of amends: {error!r}",
            path=file,
            hint="upgrade stillweb, or remove the file (captures stay)",
        ) from error


def read_absent(path: Path) -> Iterator[Absent]:
    """Yield the absences.

    Raises:
        CollectionError: as `read_amends`.
    """
    yield from read_amends(path)[1]


def write_amends(path: Path, amends: Iterable[Amend], absent: Iterable[Absent]) -> None:
    members = {
        "version": _VERSION,
        "amends": [asdict(each) for each in amends],
        "absent": [asdict(each) for each in absent],
    }
    text = json.dumps(members, indent=1, ensure_ascii=True) + "\n"
    write_atomically(path / FILE, text.encode("ascii"))


def next_version(names: Iterable[str]) -> int:
    """Return the version number of a collection's current state, given the names of its stored versions."""
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


def _known(kind: type[Amend] | type[Absent], members: dict[str, Any]) -> dict[str, Any]:
    return {name: members[name] for name in kind.__slots__ if name in members}
