"""The file of misses: what replay was asked for and did not have, for a recording to fetch.

One JSON object a line, version 1 (docs/ledger.md). `stillweb replay misses --json` writes it,
`stillweb record amend` reads it; neither knows the other, so the form lives here. It never holds
cookies or authorization; bodies are as the page sent them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stillweb.errors import CollectionError
from stillweb.model import Headers, Request

__all__ = ["VERSION", "Missed", "Sighting", "read_misses"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where a miss was seen.

    Attributes:
        session: id of the session.
        seq: number of the request in its session.
        referer: as the client sent it.
        page: the document that the session had asked for last; "" if none is known.
    """

    session: str
    seq: int
    referer: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Missed:
    """Something that was missed, however often.

    Attributes:
        fields: what is needed to ask again, [name, value] in lower case.
        body: of the request in base64; "" if it had none, or was too large to keep.
        body_size, body_digest: of the body in any case; the digest is `sha256:` and hex.
        resource: what the browser wanted it for (`Sec-Fetch-Dest`).
        reason: why replay had no answer.
        count: how often it was asked for.
        explained: why no answer is to be expected; "" if there is no reason, None if nobody looked.
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
        """Whether all of the request is here, so that it can be asked again."""
        return bool(self.body) or not self.body_size

    def request(self) -> Request:
        """Return the request to be asked again; it has no body where that was too large to keep."""
        return Request(self.method, self.url, self.fields, b64decode(self.body))

    def to_line(self) -> str:
        """Return it as a line of the file."""
        members = {"version": VERSION, **asdict(self)}
        return json.dumps(members, ensure_ascii=True, sort_keys=True, separators=(",", ":")) + "\n"

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> Missed:
        """Read what `to_line` made; members that are not known are passed over.

        Raises:
            KeyError, TypeError, ValueError: if it is of another version, or is none.
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
    """Yield what a file of misses holds.

    Raises:
        CollectionError: at a line that is none; with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield Missed.from_dict(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise CollectionError(
                    f"line {number} tells of no miss: {error}",
                    path=path,
                    hint="stillweb replay misses SOURCE --out FILE",
                ) from error
