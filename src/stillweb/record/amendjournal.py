"""`amend.json`: an amend under way, so that one that was cut short goes on where it was.

Written when the version before is kept and before anything is added; gone when all is through. An errand
without an outcome is done again: its answer may be in the archive, and the page that it is may not be listed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stillweb.collections.manifest import write_atomically
from stillweb.errors import CollectionError

__all__ = ["Journal", "Outcome"]

FILE = "amend.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a miss.

    Attributes:
        outcome: `recorded`, `present` (it was there), `absent` (the site gave no answer) or `refused`.
        reason: why, "" if recorded.
        status: of the answer, 0 without one.
        count: how often it was missed.
        id: of the request (`amendplan.identity`).
    """

    method: str
    url: str
    outcome: str
    reason: str = ""
    status: int = 0
    count: int = 1
    id: str = ""


@dataclass(slots=True)
class Journal:
    """How far an amend is.

    Attributes:
        version: what the collection will be.
        kept: the version before.
        state: of the manifest before.
        begun: identities of the errands, whether or not they are through.
        outcomes: of those that are.
        captures: added by runs that were cut short.
        pages: URLs of pages added so far.
    """

    version: str
    kept: str
    state: str
    begun: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    captures: int = 0
    pages: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> set[str]:
        """Errands that were begun and are not through."""
        return set(self.begun) - self.outcomes.keys()

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """Return the journal of a collection's folder; None if no amend was cut short.

        Raises:
            CollectionError: if the file is none of ours.
        """
        path = folder / FILE
        try:
            members = json.loads(path.read_bytes())
            members.pop("format")
            members["outcomes"] = {name: Outcome(**told) for name, told in members["outcomes"].items()}
            return cls(**members)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"no journal of an amend: {error!r}", path=path, hint=f"rm {path}, and amend again"
            ) from error

    def write(self, folder: Path) -> None:
        """Write it atomically."""
        content = json.dumps({"format": 1, **asdict(self)}, ensure_ascii=True)
        write_atomically(folder / FILE, content.encode("ascii"))

    def remove(self, folder: Path) -> None:
        """Remove the file: all is through."""
        (folder / FILE).unlink(missing_ok=True)
