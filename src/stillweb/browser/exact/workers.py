"""Workers of a context at level EXACT: pinned before their first instruction, with ordered messages.

A worker's global object is complete only when its first script is about to run
(docs/decisions/0018-exact.md). Clock and seeds are therefore installed there, at an instrumentation
breakpoint. A worker stays at the breakpoint until a rest, at which one after the other begins. At a rest each
worker in turn also delivers its messages (`js/worker.js`, `js/hold.js`), so that no two of them race. The
creator of a worker reports it until it has begun, and a message to another process until it has arrived
(`WorkerWaits`); a rest includes both.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

from stillweb.browser.cdp.connection import CdpError, CdpSession
from stillweb.browser.cdp.reports import is_worker_script

_LOOK_SECONDS = 1.0  # real; between two checks for events that a page may not report
# Real; a worker that shares memory may wait for another thread (`Atomics.wait`), and replies after that.
_BLOCKED_SECONDS = 1.0
_SHARES_MEMORY = "threads share memory, which they change in any order"  # as in js/hold.js


@dataclass(frozen=True, slots=True)
class WorkerWaits:
    """Counts that realms report of workers.

    Attributes:
        starting: workers that a realm has created and that have not begun.
        unread: messages to shared workers, or from them, that have not arrived.
        deaf: ports of shared workers that are not started, so that nothing arrives.
    """

    starting: int = 0
    unread: int = 0
    deaf: int = 0

    @classmethod
    def of(cls, replies: Iterable[Mapping[str, Any] | None]) -> Self:
        """Return the sums over the replies of several realms."""
        found = [reply for reply in replies if reply]
        return cls(*(sum(reply.get(name, 0) for reply in found) for name in ("starting", "unread", "deaf")))

    def __add__(self, other: WorkerWaits) -> WorkerWaits:
        return WorkerWaits(self.starting + other.starting, self.unread + other.unread, self.deaf + other.deaf)


class PageSide(Protocol):
    """Page of a rest, as `settle` controls it.

    Attributes:
        waits: what the page's frames reported of workers at the last `idle`.
    """

    waits: WorkerWaits

    async def idle(self) -> object:
        """Wait until the page has nothing to do."""

    async def started(self) -> None:
        """Wait until a worker of the page has begun, or a message to one has arrived."""


class Workers:
    """Workers of one `ExactContext`.

    Attributes:
        begun: number of workers that have begun.
        lost: whether a worker runs unpinned, so that its beginning and its messages cannot be awaited.
    """

    def __init__(
        self,
        script: Callable[[str], str],
        control: str,
        flag: Callable[[str], None],
        progress: asyncio.Event,
        arrived: Callable[[str], None],
    ) -> None:
        self.begun = 0
        self.lost = False
        self._script = script
        self._control = json.dumps(control)
        self._flag = flag
        self._progress = progress
        self._arrived = arrived  # called with a worker whose script has arrived
        self._running: dict[str, CdpSession] = {}
        self._replies: dict[str, dict[str, Any]] = {}  # the last of each running worker
        self._counts: dict[str, int] = {}  # by URL
        self._names: dict[str, tuple[str, int]] = {}
        self._loading: dict[str, set[str]] = {}  # a module worker's imports, by worker
        self._starting: dict[str, str] = {}  # URLs of workers that have not begun
        self._unpinned: set[str] = set()  # workers that have not reached the breakpoint
        self._ready: dict[str, CdpSession] = {}  # pinned workers at the breakpoint
        self._messages: dict[str, int] = {}  # number received, by worker
        self._made: defaultdict[str, set[str]] = defaultdict(set)  # targets of workers, by their maker
        self._share_memory = False
        self._blocked: dict[str, asyncio.Future[dict[str, Any]]] = {}  # late replies, by session

    @property
    def waits(self) -> WorkerWaits:
        """The last reports of the workers."""
        return WorkerWaits.of(self._replies.values())

    @property
    def unreported(self) -> bool:
        """Whether a worker has made another one that the browser has not reported yet."""
        return any(reply.get("made", 0) > len(self._made[target]) for target, reply in self._replies.items())

    def note_flag(self, what: str) -> None:
        """Wait for workers only for some time from now on, if a realm reports shared memory."""
        self._share_memory |= what == _SHARES_MEMORY

    def reported(self, maker: str, worker: str) -> None:
        """The browser has reported a worker that another one made, or the request for its script."""
        self._made[maker].add(worker)
        self._progress.set()

    def requested(self, worker: str, url: str) -> int:
        """Name a worker by its number among those of its URL, in the order of the requests for their scripts.

        This is the order of their creation. The browser reports workers in the order in which their scripts
        have arrived.
        """
        if worker not in self._names:
            kind = "blob:" if url.startswith("blob:") else url
            self._names[worker] = kind, self._counts.get(kind, 0)
            self._counts[kind] = self._names[worker][1] + 1
        return self._names[worker][1]

    def pin(self, session: CdpSession, target: dict[str, Any], waiting: bool) -> None:
        """Install clock and seeds in a new worker."""
        url = target["url"]
        if session.parent:
            self.reported(session.parent.target.get("targetId", ""), target["targetId"])
        index = self.requested(target["targetId"], url)
        self._starting[target["targetId"]] = url
        self._unpinned.add(target["targetId"])
        if not waiting:
            self._lose(session)
        script = self._script(f"{target['type']}/{index}/")
        session.on("Debugger.paused", lambda _: self._on_paused(session, script))
        enabled = session.post("Debugger.enable")
        for event in ("Debugger.scriptParsed", "Inspector.workerScriptLoaded"):
            session.on(event, lambda _: None if enabled.done() else self._lose(session))
        # The script has arrived. Its pause may be reported later; one that does not parse has none.
        session.on("Inspector.workerScriptLoaded", lambda _: self._not_starting(target["targetId"]))
        session.post("Debugger.setInstrumentationBreakpoint", {"instrumentation": "beforeScriptExecution"})
        loading = self._loading.setdefault(target["targetId"], set())
        session.on("Network.requestWillBeSent", lambda event: loading.add(event["requestId"]))
        for event in ("Finished", "Failed"):
            session.on(f"Network.loading{event}", lambda event: loading.discard(event["requestId"]))

    def name(self, target: str) -> tuple[str, int]:
        """Return a worker's name: URL and number in the order of creation; ("", 0) for a page."""
        return self._names.get(target, ("", 0))

    def forget(self, target: str) -> None:
        """Remove a worker that has ended."""
        self._running.pop(target, None)
        self._ready.pop(target, None)
        self._replies.pop(target, None)
        self._unpinned.discard(target)
        self._not_starting(target)

    def beginning(self, open_requests: set[str]) -> list[str]:
        """Return the URLs of workers that are about to begin, since their script and its imports have loaded.

        CDP identifies the request for a worker's script by the worker's target.
        """
        return [
            url
            for target, url in self._starting.items()
            if target not in open_requests and not self._loading.get(target)
        ]

    def loading(self, open_requests: set[str]) -> set[str]:
        """Return the workers whose script, or an import of it, is among the open requests."""
        scripts = {request for request in open_requests if is_worker_script(request)}
        imports = {target for target in self._starting if self._loading.get(target, set()) & open_requests}
        return scripts | imports

    async def started(self) -> None:
        """Wait until a worker that a worker has created has begun, or a message has arrived."""
        sessions = [
            self._running[target]
            for target, reply in self._replies.items()
            if reply.get("starting") or reply.get("unread")
        ]
        if sessions:
            await self._evaluate(f'self[{self._control}]("started")', *sessions)

    async def calm(self, idle: Callable[[], Awaitable[object]]) -> None:
        """Deliver messages between workers and pages until none is left in two rounds."""
        still = 0
        while self._running and still < 2:
            still = 0 if await self._deliver(idle) else still + 1

    async def move(self, command: str, time: int) -> list[dict[str, Any]]:
        """Move the clocks of all workers; return each one's time and next timer."""
        call = f"self[{self._control}]({json.dumps(command)}, {time})"
        return await self._evaluate(call, *self._running.values())

    @property
    def ready(self) -> int:
        """Number of workers that wait for `begin_next`."""
        return len(self._ready)

    def are_pending(self, page: WorkerWaits) -> bool:
        """Return True if a worker is starting, or a message to another process is under way.

        Args:
            page: what the context's pages wait for.
        """
        own = self.waits
        messages = (page.unread and not own.deaf) or (own.unread and not page.deaf)
        return not self.lost and bool(page.starting or own.starting or messages)

    def will_begin(self, page: WorkerWaits, held: set[str]) -> bool:
        """Return True if a worker will be ready besides those that are, without any of the held requests."""
        return page.starting + self.waits.starting > self.ready + len(self.loading(held))

    async def wait_for_event(self, page: PageSide) -> None:
        """Wait for an event of a worker; at most a second, since a replaced document never reports it."""
        self._progress.clear()
        events = (page.started(), self.started(), self._progress.wait())
        pages, workers, progress = (asyncio.ensure_future(event) for event in events)
        wanted = {progress}
        wanted |= {pages} if page.waits.starting or page.waits.unread else set()
        wanted |= {workers} if self.waits.starting or self.waits.unread else set()
        await asyncio.wait(wanted, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (pages, workers, progress):
            task.cancel()
        await asyncio.gather(pages, workers, progress, return_exceptions=True)

    def begin_next(self) -> None:
        """Let the first of the pinned workers run its script."""
        target = min(self._ready, key=self._names.__getitem__)
        session = self._ready.pop(target)
        self._running[target] = session
        self.begun += 1
        session.post("Debugger.disable")  # also resumes

    def _on_paused(self, session: CdpSession, script: str) -> None:
        target = session.target["targetId"]
        if target not in self._unpinned:  # it ran before it could be pinned
            session.post("Debugger.disable")
            return
        self._unpinned.discard(target)
        pinned = session.post("Runtime.evaluate", {"expression": script})
        pinned.add_done_callback(partial(self._on_pinned, session))

    def _on_pinned(self, session: CdpSession, result: asyncio.Future[dict[str, Any]]) -> None:
        target = session.target
        if result.cancelled() or result.exception() is not None or session.gone.is_set():
            self._not_starting(target["targetId"])
            return  # it ended before it began
        self._ready[target["targetId"]] = session
        self._arrived(target["targetId"])
        self._not_starting(target["targetId"])
        if thrown := result.result().get("exceptionDetails"):
            why = thrown.get("exception", {}).get("description", thrown["text"]).splitlines()[0]
            self._flag(f"{target['type']} {target['url']} could not be pinned: {why}")
            self.lost = True

    def _lose(self, session: CdpSession) -> None:
        """Flag a worker whose script ran before the commands that pin it."""
        if self._starting.get(session.target["targetId"]):
            self._flag(f"{session.target['type']} {session.target['url']} ran before it could be pinned")
            self.lost = True
            self._unpinned.discard(session.target["targetId"])
            self._not_starting(session.target["targetId"])

    def _not_starting(self, target: str) -> None:
        self._starting.pop(target, None)
        self._progress.set()

    async def _deliver(self, idle: Callable[[], Awaitable[object]]) -> bool:
        """Deliver the messages of each worker in turn; return True if any had one."""
        moved = False
        for target, session in sorted(self._running.items(), key=lambda each: self._names[each[0]]):
            for reply in await self._evaluate(f"self[{self._control}]()", session):
                self._replies[target] = reply
                for what in reply["flags"]:
                    self._flag(what)
                if reply["given"] or reply["heard"] != self._messages.get(target, 0):
                    self._messages[target] = reply["heard"]
                    moved = True
                    await idle()
        return moved

    async def _evaluate(self, expression: str, *sessions: CdpSession) -> list[dict[str, Any]]:
        results = await asyncio.gather(
            *(self._ask(session, expression) for session in sessions), return_exceptions=True
        )
        replies = []
        for result in results:
            if isinstance(result, CdpError):
                continue  # the worker has ended
            if isinstance(result, BaseException):
                raise result
            if value := result["result"].get("value"):
                replies.append(value)
        return replies

    async def _ask(self, session: CdpSession, expression: str) -> dict[str, Any]:
        """Evaluate in a worker; return no value if it waits for another thread."""
        if late := self._blocked.get(session.id):
            if not late.done():
                return {"result": {}}
            del self._blocked[session.id]
        params = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        reply = asyncio.ensure_future(session.send("Runtime.evaluate", params))
        if self._share_memory:
            await asyncio.wait({reply}, timeout=_BLOCKED_SECONDS)
            if not reply.done():
                self._blocked[session.id] = reply
                reply.add_done_callback(lambda _: reply.cancelled() or reply.exception())
                return {"result": {}}
        return await reply
