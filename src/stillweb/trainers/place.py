"""Where an adapter's episodes are played: on a rollout server, or by an engine in this process.

    place = open_place({"server": "http://127.0.0.1:7000", "api_key": "..."})
    place = open_place({"proxy": "http://127.0.0.1:8080", "sessions": 8, "level": "exact"})
    lease = await place.on_loop(place.lease("me"))             # or, without an event loop: place.run(...)
    turn = await place.on_loop(lease.reset(task_id="t1"))

Trainers name a place in their configuration, once for each of many objects that they make of it; so there is
one place of a kind in a process. It has an event loop on a thread of its own, so that it serves callers of
any loop, or of none, and is closed when the process ends. The second kind needs all of stillweb and a browser
here; the first one needs neither.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stillweb.env.aio import LoopThread
from stillweb.errors import UsageError
from stillweb.trainers.client import RolloutClient
from stillweb.trainers.turn import Turn

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task

__all__ = ["EpisodeLease", "EpisodeSource", "open_place"]

_REMOTE = {"server", "api_key", "patience"}
_HERE = {"proxy", "sessions", "level", "observe", "collection", "tasks", "browsers", "max_steps"}
_CLOSE_SECONDS = 30.0


class EpisodeLease(Protocol):
    """A session, for one episode after the other, as `RemoteLease`."""

    @property
    def id(self) -> str:
        """What it is called."""

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Begin an episode."""

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action."""

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        """Look at the page without a step."""

    async def picture(self, sha256: str) -> bytes:
        """Return a picture that an observation refers to."""

    async def release(self) -> None:
        """Give the session back."""


class _Source(Protocol):
    """Gives leases; made, used and closed in the place's loop."""

    async def lease(self, owner: str, *, ttl: float | None, wait: float, beat: bool) -> EpisodeLease: ...

    async def aclose(self) -> None: ...


class EpisodeSource(LoopThread):
    """Gives leases to callers of any event loop, or of none; `open_place` makes it.

    Args:
        source: makes what gives the leases, in this place's loop.
    """

    def __init__(self, source: Callable[[], Awaitable[_Source]]) -> None:
        super().__init__()
        self._make = source
        self._source: asyncio.Future[_Source] | None = None

    async def lease(
        self, owner: str = "stillweb", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> EpisodeLease:
        """Lease a session, see `RolloutClient.lease`; to be awaited in the place's loop."""
        if self._source is None or (self._source.done() and self._source.exception()):
            self._source = asyncio.ensure_future(self._make())
        source = await asyncio.shield(self._source)
        return await source.lease(owner, ttl=ttl, wait=wait, beat=beat)

    def close(self) -> None:
        """Close what gives the leases, and end the loop. Twice is once."""
        if self.runs:
            self.run(self._closed())
            super().close()

    async def _closed(self) -> None:
        if self._source and self._source.done() and not self._source.exception():
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._source.result().aclose()


# --- one of a kind ---------------------------------------------------------------------------------

_places: dict[str, EpisodeSource] = {}
_lock = threading.Lock()


def open_place(config: Mapping[str, Any] | str) -> EpisodeSource:
    """Return the place that a configuration names; the same one for the same configuration.

    Args:
        config: `server` (its URL, which also may stand alone), `api_key` (otherwise STILLWEB_API_KEY) and
            `patience` as of `RolloutClient`; or `proxy` (URL of a replay server), `sessions`, `browsers`,
            `level`, `observe`, `collection`, `max_steps`, and `tasks` (files of those that are called by
            `task_id`).

    Raises:
        UsageError: if it is neither.
    """
    given: dict[str, Any] = {"server": config} if isinstance(config, str) else dict(config)
    kinds = [kind for kind in ("server", "proxy") if given.get(kind)]
    known = _REMOTE if kinds == ["server"] else _HERE
    if len(kinds) != 1 or (unknown := sorted(given.keys() - known)):
        what = f"neither knows {', '.join(unknown)}" if len(kinds) == 1 else f"it has {kinds or 'neither'}"
        raise UsageError(
            f"a place is either a server or a proxy: {what}",
            hint='{"server": "http://127.0.0.1:7000"} or {"proxy": "http://127.0.0.1:8080", "sessions": 8}',
        )
    key = json.dumps(given, sort_keys=True)
    with _lock:
        place = _places.get(key)
        if place is None or not place.runs:  # closed, or another process's that this one was forked from
            make = _remote if kinds == ["server"] else _here
            place = _places[key] = EpisodeSource(lambda: make(given))
            atexit.register(place.close)
    return place


async def _remote(given: Mapping[str, Any]) -> _Source:
    key = given.get("api_key") or os.environ.get("STILLWEB_API_KEY", "")
    return RolloutClient(given["server"], api_key=key, patience=float(given.get("patience", 30.0)))


async def _here(given: Mapping[str, Any]) -> _Source:
    from stillweb.trainers.inprocess import start_engine

    return await start_engine(given)
