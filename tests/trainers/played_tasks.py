"""A replay server and a rollout server with tasks of WARC-Bench, on a thread of their own.

For tests of adapters, which are clients: synchronous ones, with loops of their own, or other programs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.server.options import ServeOptions
from stillweb.server.serving import RolloutServer, serve_rollouts

COLLECTION = "synthetic_train"
CLICKS, FILLS = "online_train.942", "online_train.85"  # untouched, both are worth 0


@dataclass(frozen=True)
class Servers:
    """Attributes:
    replay, rollouts: URLs.
    tasks: that the rollout server knows, by identifier.
    """

    replay: str
    rollouts: str
    tasks: dict[str, Task]
    running: RolloutServer
    root: Path

    def ended(self, deadline: float = 20.0) -> bool:
        """Wait until no lease is held; return whether it came to that."""
        from stillweb.polling import poll

        async def idle() -> bool:
            return await poll(lambda: not self.running.engine.leases.held, timeout=deadline)

        return asyncio.run(idle())


@contextmanager
def servers(
    shared: Path, root: Path, *, sessions: int = 4, key: str = "", observe: tuple[str, ...] = ("axtree",)
) -> Iterator[Servers]:
    """Serve until the block is left."""
    import_files([shared / "archives" / f"{COLLECTION}.wacz"], root / "collections", COLLECTION)
    collection = Collection.open(root / "collections", COLLECTION)
    seal(collection)
    ca = CertAuthority.load_or_init(root / "ca")
    known = load_tasks(shared / "tasks" / "warc_bench_public.json")
    tasks = {task.id: task for task in known if task.id in (CLICKS, FILLS)}
    loop = asyncio.new_event_loop()
    ready, ending = threading.Event(), asyncio.Event()
    started: list = []

    async def run() -> None:
        options = ServeOptions(
            sessions=sessions, tasks=tasks, level="clock", drain_seconds=1.0, observe=observe
        )
        try:
            async with (
                serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as replay,
                serve_rollouts(replay.url, options, key=key) as rollouts,
            ):
                started.append(Servers(replay.url, rollouts.url, tasks, rollouts, root))
                ready.set()
                await ending.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()
