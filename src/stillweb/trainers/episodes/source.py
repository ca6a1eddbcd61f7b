"""The source of an adapter's episodes: a rollout server, or an engine in this process.

    source = open_source({"server": "http://127.0.0.1:7000", "api_key": "..."})
    source = open_source({"proxy": "http://127.0.0.1:8080", "sessions": 8, "level": "exact"})
    lease = await source.on_loop(source.lease("me"))             # without an event loop: source.run(...)
    turn = await source.on_loop(lease.reset(task_id="t1"))

Trainers create many objects from one configuration; equal configurations share one source in a process. A
source runs an event loop on its own thread, serves callers with any event loop or none, and closes at process
exit. The in-process engine needs all of stillweb and a browser; the remote source needs neither.
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
from stillweb.trainers.episodes.client import RolloutClient
from stillweb.trainers.episodes.turn import Turn

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task


_REMOTE = {"server", "api_key", "retry_seconds"}
_IN_PROCESS = {"proxy", "sessions", "level", "observe", "collection", "tasks", "browsers", "max_steps"}
_CLOSE_SECONDS = 30.0


class EpisodeLease(Protocol):
    """A leased session; see `RemoteLease`."""

    @property
    def id(self) -> str: ...

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Start an episode."""

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action."""

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        """Observe the page without a step."""

    async def picture(self, sha256: str) -> bytes:
        """Return a picture that an observation refers to."""

    async def release(self) -> None:
        """Release the session."""


class _LeaseProvider(Protocol):
    """Grants leases; created, used and closed in the loop of the source."""

    async def lease(self, owner: str, *, ttl: float | None, wait: float, beat: bool) -> EpisodeLease: ...

    async def aclose(self) -> None: ...


class EpisodeSource(LoopThread):
    """Source of leases for callers of any event loop, or of none; `open_source` creates it.

    Args:
        provider: creates the provider of the leases, in the loop of this source.
    """

    def __init__(self, provider: Callable[[], Awaitable[_LeaseProvider]]) -> None:
        super().__init__()
        self._create = provider
        self._provider: asyncio.Future[_LeaseProvider] | None = None

    async def lease(
        self, owner: str = "stillweb", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> EpisodeLease:
        """Lease a session; await it in the loop of this source.

        Args:
            owner: label that the server's monitor shows.
            ttl: seconds of silence after which the lease ends; None for the server's value.
            wait: seconds to wait for a free session.
            beat: whether to renew the lease while the policy thinks.
        """
        if self._provider is None or (self._provider.done() and self._provider.exception()):
            self._provider = asyncio.ensure_future(self._create())
        provider = await asyncio.shield(self._provider)
        return await provider.lease(owner, ttl=ttl, wait=wait, beat=beat)

    def close(self) -> None:
        """Close the provider and end the loop. Idempotent."""
        if self.runs:
            self.run(self._close_provider())
            super().close()

    async def _close_provider(self) -> None:
        if self._provider and self._provider.done() and not self._provider.exception():
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._provider.result().aclose()


# --- shared sources --------------------------------------------------------------------------------

_sources: dict[str, EpisodeSource] = {}
_lock = threading.Lock()


def open_source(config: Mapping[str, Any] | str) -> EpisodeSource:
    """Return the source of a configuration; equal configurations get the same source.

    Args:
        config: for a server: `server` (URL; a plain string is the URL), `api_key` [default: STILLWEB_API_KEY]
            and `retry_seconds`, see `RolloutClient`. For an engine in this process: `proxy` (URL of a replay
            server), `sessions`, `browsers`, `level`, `observe`, `collection`, `max_steps`, and `tasks` (files
            of the tasks that `task_id` names).

    Raises:
        UsageError: if the configuration is neither.
    """
    given: dict[str, Any] = {"server": config} if isinstance(config, str) else dict(config)
    kinds = [kind for kind in ("server", "proxy") if given.get(kind)]
    known = _REMOTE if kinds == ["server"] else _IN_PROCESS
    if len(kinds) != 1 or (unknown := sorted(given.keys() - known)):
        what = f"neither has {', '.join(unknown)}" if len(kinds) == 1 else f"it has {kinds or 'neither'}"
        raise UsageError(
            f"a source is either a server or a proxy: {what}",
            hint='{"server": "http://127.0.0.1:7000"} or {"proxy": "http://127.0.0.1:8080", "sessions": 8}',
        )
    key = json.dumps(given, sort_keys=True)
    with _lock:
        source = _sources.get(key)
        if source is None or not source.runs:  # closed, or inherited through a fork without its thread
            create = _remote if kinds == ["server"] else _in_process
            source = _sources[key] = EpisodeSource(lambda: create(given))
            atexit.register(source.close)
    return source


async def _remote(given: Mapping[str, Any]) -> _LeaseProvider:
    key = given.get("api_key") or os.environ.get("STILLWEB_API_KEY", "")
    return RolloutClient(given["server"], api_key=key, retry_seconds=float(given.get("retry_seconds", 30.0)))


async def _in_process(given: Mapping[str, Any]) -> _LeaseProvider:
    from stillweb.trainers.episodes.engine import start_engine

    return await start_engine(given)
