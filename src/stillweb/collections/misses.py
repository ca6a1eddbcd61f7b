"""File of misses: requests that replay could not answer, for `record amend`.

One JSON object per line, version 1 (docs/reference/ledger.md). `stillweb replay misses --json` writes it,
`stillweb record amend` reads it. Neither package imports the other, so the format is defined here. It never
contains cookies or authorization; bodies are as the page sent them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stillweb.collections.limits import load_json
from stillweb.errors import CollectionError
from stillweb.model import Headers, Request

VERSION = 1


@dataclass(frozen=True, slots=True)
class Sighting:
    """Circumstances of one miss.

    Attributes:
        seq: number of the request in its session.
        referer: as sent by the client.
        page: the last document that the session requested; "" if unknown.
    """

    session: str
    seq: int
    referer: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Missed:
    """All misses of one request.

    Attributes:
        fields: header fields needed to repeat the request, [name, value] in lower case.
        body: of the request in base64; "" if it had none, or was too large to store.
        body_size, body_digest: of the body in any case; the digest is `sha256:` and hex.
        resource: destination of the request (`Sec-Fetch-Dest`).
        reason: why replay had no response.
        explained: why no response can be expected; "" without a reason, None if not determined.
    """

    collection: str
    environment_id: str
    method: str
    url: str
    first: Sighting
    last: Sighting
    fields: Headers = ()
    body: str = ""
    body_size: int = 0
    body_digest: str = ""
    resource: str = ""
    reason: str = ""
    count: int = 1
    explained: str | None = field(default=None)

    @property
    def whole(self) -> bool:
        """True if the request is complete and can be repeated."""
        return bool(self.body) or not self.body_size

    def request(self) -> Request:
        """Return the request to repeat, without its body if that was too large to store."""
        return Request(self.method, self.url, self.fields, b64decode(self.body))

    def to_line(self) -> str:
        members = {"version": VERSION, **asdict(self)}
        return json.dumps(members, ensure_ascii=True, sort_keys=True, separators=(",", ":")) + "\n"

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> Missed:
        """Parse a line of the file; unknown members are ignored.

        Raises:
            KeyError, TypeError, ValueError: if it has another version or format.
        """
        if loaded["version"] != VERSION:
            raise ValueError(f"version {loaded['version']!r}, not {VERSION}")
        known = {name: loaded[name] for name in cls.__slots__ if name in loaded}
        for name in ("first", "last"):
            known[name] = Sighting(
                **{each: loaded[name][each] for each in ("session", "seq", "referer", "page")}
            )
        known["fields"] = tuple((str(name), str(value)) for name, value in loaded["fields"])
        return cls(**known)


def read_misses(path: Path) -> Iterator[Missed]:
    """Yield the misses of a file.

    Raises:
        CollectionError: at an invalid line, with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield Missed.from_dict(load_json(line, path=path))
            except (KeyError, TypeError, ValueError) as error:
                raise CollectionError(
                    f"line {number} is not a miss: {error}",
                    path=path,
                    hint="stillweb replay misses SOURCE --out FILE",
                ) from error
