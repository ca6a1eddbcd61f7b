"""What is served under a collection's name: the newest pack for new sessions, older ones until they end.

A collection may be sealed anew while it is served. Whoever opens a session first looks at the pack's
`digest`, which costs one `stat`: if it is another file than before, the pack behind it is opened and
lent from then on. Sessions keep the pack that they began with, so an episode never sees two
recordings; a pack is closed when the last of them is over. A newer pack that is damaged is refused,
said once and shown by `/ready`; the older one goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack, pack_stamp
from stillweb.errors import CollectionError
from stillweb.replay.server.metrics import ResponseCounters

__all__ = ["PackHandle", "PackRegistry"]

logger = logging.getLogger(__name__)

_NONE = (0, 0)  # the stamp of no pack


@dataclass(eq=False, slots=True)
class PackHandle:
    """A pack, what its recording says of itself, and how many sessions have it."""

    pack: Pack
    manifest: Mapping[str, Any]
    lent: int = 0


@dataclass(eq=False, slots=True)
class PackRegistry:
    """The packs of a collection.

    Attributes:
        current: what new sessions get.
        refused: why the newest pack is not `current`; "" if it is.
        tally: of the answers of all editions.
    """

    name: str
    current: PackHandle
    collection: Collection | None = None  # None: the pack was given open, and stays so
    refused: str = ""
    tally: ResponseCounters = field(default_factory=ResponseCounters)
    _stamp: tuple[int, int] = _NONE
    _older: set[PackHandle] = field(default_factory=set)  # that sessions still have

    @classmethod
    def open(cls, collection: Collection) -> PackRegistry:
        """Open the pack of a collection.

        Raises:
            MalformedPack: if it is not sealed or its pack is damaged.
        """
        stamp = pack_stamp(collection.pack)
        return cls(collection.name, _edition(collection), collection, _stamp=stamp)

    def look(self) -> bool:
        """Look for a newer pack; return whether there is one now."""
        if self.collection is None:
            return False
        older, refused = self.current, self.refused
        while (stamp := pack_stamp(self.collection.pack)) != self._stamp:  # again if exchanged meanwhile
            if stamp == _NONE:  # it is being exchanged
                break
            self._stamp = stamp
            try:
                self._put(_edition(self.collection))
            except CollectionError as error:
                self.refused = str(error)
            else:
                self.refused = ""
        if self.refused != refused and self.refused:
            logger.error("newer pack is refused", extra={"collection": self.name, "error": self.refused})
        return self.current is not older

    def _put(self, edition: PackHandle) -> None:
        older = self.current
        if edition.pack.environment_id == older.pack.environment_id:
            edition.pack.close()  # sealed again from the same recording
            return
        self.current = edition
        self._older.add(older)
        self._let_go(older)
        names = {"older": older.pack.environment_id, "newer": edition.pack.environment_id}
        logger.info("newer pack is served", extra={"collection": self.name, **names, "sessions": older.lent})

    def lend(self) -> PackHandle:
        """Return the newest edition for a session."""
        self.look()
        self.current.lent += 1
        return self.current

    def take_back(self, edition: PackHandle) -> None:
        """Note that a session is over."""
        edition.lent -= 1
        self._let_go(edition)

    def _let_go(self, edition: PackHandle) -> None:
        if not edition.lent and edition in self._older:
            self._older.remove(edition)
            edition.pack.close()

    def close(self) -> None:
        """Close all packs, unless they were given open."""
        if self.collection is not None:
            for edition in (self.current, *self._older):
                edition.pack.close()


def _edition(collection: Collection) -> PackHandle:
    manifest = collection.manifest().to_dict()
    pack = Pack.open(collection.pack)
    # A folder that another program made tells no time: the clock starts as where the pack is served alone.
    manifest["recorded_at"] = manifest["recorded_at"] or pack.manifest.get("recorded_at", "")
    return PackHandle(pack, manifest)
