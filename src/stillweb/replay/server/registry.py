"""The packs served under a collection's name: the newest for new sessions, older ones until they end.

A collection may be sealed again while it is served. Opening a session first checks the pack's `digest`
file, which costs one `stat`. If it is another file than before, the pack behind it is opened and used from
then on. A session holds the pack that it began with, so an episode never sees two recordings; a pack is
closed when its last session ends. A newer pack that is damaged is refused, logged once and shown by
`/ready`; the older pack is still served.
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

logger = logging.getLogger(__name__)

_NONE = (0, 0)  # the stamp of no pack


@dataclass(eq=False, slots=True)
class PackHandle:
    """An open pack, its collection's manifest, and the number of sessions that hold it."""

    pack: Pack
    manifest: Mapping[str, Any]
    holders: int = 0


@dataclass(eq=False, slots=True)
class PackRegistry:
    """The packs of a collection.

    Attributes:
        current: for new sessions.
        refused: why the newest pack is not `current`; "" if it is.
    """

    name: str
    current: PackHandle
    collection: Collection | None = None  # None: the pack was open before, and stays so
    refused: str = ""
    counters: ResponseCounters = field(default_factory=ResponseCounters)
    _stamp: tuple[int, int] = _NONE
    _older: set[PackHandle] = field(default_factory=set)  # that sessions still hold

    @classmethod
    def open(cls, collection: Collection) -> PackRegistry:
        """Open the pack of a collection.

        Raises:
            MalformedPack: if it is not sealed or its pack is damaged.
        """
        stamp = pack_stamp(collection.pack)
        return cls(collection.name, _open(collection), collection, _stamp=stamp)

    def refresh(self) -> bool:
        """Look for a newer pack; return True if it is current now."""
        if self.collection is None:
            return False
        older, refused = self.current, self.refused
        while (stamp := pack_stamp(self.collection.pack)) != self._stamp:  # again if replaced meanwhile
            if stamp == _NONE:  # it is being replaced
                break
            self._stamp = stamp
            try:
                self._replace(_open(self.collection))
            except CollectionError as error:
                self.refused = str(error)
            else:
                self.refused = ""
        if self.refused != refused and self.refused:
            logger.error("newer pack is refused", extra={"collection": self.name, "error": self.refused})
        return self.current is not older

    def _replace(self, newer: PackHandle) -> None:
        older = self.current
        if newer.pack.environment_id == older.pack.environment_id:
            newer.pack.close()  # sealed again from the same recording
            return
        self.current = newer
        self._older.add(older)
        self._close_unused(older)
        names = {"older": older.pack.environment_id, "newer": newer.pack.environment_id}
        logger.info(
            "newer pack is served", extra={"collection": self.name, **names, "sessions": older.holders}
        )

    def acquire(self) -> PackHandle:
        self.refresh()
        self.current.holders += 1
        return self.current

    def release(self, handle: PackHandle) -> None:
        handle.holders -= 1
        self._close_unused(handle)

    def _close_unused(self, handle: PackHandle) -> None:
        if not handle.holders and handle in self._older:
            self._older.remove(handle)
            handle.pack.close()

    def close(self) -> None:
        """Close all packs, unless they were open before."""
        if self.collection is not None:
            for handle in (self.current, *self._older):
                handle.pack.close()


def _open(collection: Collection) -> PackHandle:
    manifest = collection.manifest().to_dict()
    pack = Pack.open(collection.pack)
    # A folder made by another program states no time: the clock then starts as where the pack is served
    # alone.
    manifest["recorded_at"] = manifest["recorded_at"] or pack.manifest.get("recorded_at", "")
    manifest["rules"] = pack.manifest.get("rules", "")  # for evaluators of requests, and the page's time
    return PackHandle(pack, manifest)
