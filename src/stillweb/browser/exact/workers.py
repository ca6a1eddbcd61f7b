"""Workers of a context at level EXACT: pinned before their first instruction, with ordered messages.

A worker's global object is complete only when its first script is about to run
(docs/decisions/0018-exact.md), so clock and seeds are installed there, at an instrumentation breakpoint. At a
rest each worker in turn delivers its messages (`js/worker.js`, `js/hold.js`), so that no two of them race.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from stillweb.browser.cdp.connection import CdpError, CdpSession

__all__ = ["Workers"]

_ROUNDS = 500  # of messages between workers and pages


class Workers:
    """Workers of one `ExactContext`.

    Attributes:
        begun: number of workers that have begun.
    """

    def __init__(
        self, script: Callable[[str], str], control: str, flag: Callable[[str], None], progress: asyncio.Event
    ) -> None:
        self.begun = 0
        self._script = script
        self._control = json.dumps(control)
        self._flag = flag
        self._progress = progress
        self._running: dict[str, CdpSession] = {}
        self._counts: dict[str, int] = {}  # by URL
        self._names: dict[str, tuple[str, int]] = {}
        self._loading: dict[str, set[str]] = {}  # a module worker's imports, by worker
        self._starting: dict[str, str] = {}  # URLs of workers that do not respond yet
        self._late: set[str] = set()  # workers that are no longer awaited
        self._messages: dict[str, int] = {}  # number received, by worker

    def pin(self, session: CdpSession, target: dict[str, Any], waiting: bool) -> None:
        """Install clock and seeds in a new worker."""
        url = target["url"]
        kind = "blob:" if url.startswith("blob:") else url
        index = self._counts.get(kind, 0)
        self._counts[kind] = index + 1
        self._starting[target["targetId"]] = url
        if not waiting:
            self._flag(f"{target['type']} {url} ran before it could be pinned")
        script = self._script(f"{target['type']}/{index}/")
        self._names[target["targetId"]] = (kind, index)
        session.on("Debugger.paused", lambda _: self._on_paused(session, script))
        session.post("Debugger.enable")
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
        self._starting.pop(target, None)

    def beginning(self, open_urls: set[str]) -> list[str]:
        """Return the workers that are about to begin, without those whose script is being requested."""
        return [
            target
            for target, url in self._starting.items()
            if url not in open_urls and not self._loading.get(target) and target not in self._late
        ]

    def give_up(self, target: str) -> None:
        """Stop waiting for a worker to begin, and flag it."""
        self._late.add(target)
        self._flag(f"worker {self._starting[target]} did not begin in time")

    async def calm(self, idle: Callable[[], Awaitable[object]]) -> None:
        """Deliver messages between workers and pages until none is left in two rounds."""
        still = 0
        for _ in range(_ROUNDS):
            if not self._running or still == 2:
                return
            still = 0 if await self._deliver(idle) else still + 1
        self._flag("workers and pages talk to each other without end")

    async def move(self, command: str, time: int) -> list[dict[str, Any]]:
        """Move the clocks of all workers; return each one's time and next timer."""
        call = f"self[{self._control}]({json.dumps(command)}, {time})"
        return await self._evaluate(call, *self._running.values())

    def _on_paused(self, session: CdpSession, script: str) -> None:
        if session.target["targetId"] in self._starting:
            pinned = session.post("Runtime.evaluate", {"expression": script})
            pinned.add_done_callback(partial(self._on_pinned, session))
        session.post("Debugger.disable")  # also resumes

    def _on_pinned(self, session: CdpSession, result: asyncio.Future[dict[str, Any]]) -> None:
        target = session.target
        self._starting.pop(target["targetId"], None)
        self._progress.set()
        if result.cancelled() or result.exception() is not None:
            return  # it ended before it began
        self._running[target["targetId"]] = session
        self.begun += 1
        if thrown := result.result().get("exceptionDetails"):
            why = thrown.get("exception", {}).get("description", thrown["text"]).splitlines()[0]
            self._flag(f"{target['type']} {target['url']} could not be pinned: {why}")

    async def _deliver(self, idle: Callable[[], Awaitable[object]]) -> bool:
        """Deliver the messages of each worker in turn; return True if any had one."""
        moved = False
        for target, session in sorted(self._running.items(), key=lambda each: self._names[each[0]]):
            for reply in await self._evaluate(f"self[{self._control}]()", session):
                for what in reply["flags"]:
                    self._flag(what)
                if reply["given"] or reply["heard"] != self._messages.get(target, 0):
                    self._messages[target] = reply["heard"]
                    moved = True
                    await idle()
        return moved

    async def _evaluate(self, expression: str, *sessions: CdpSession) -> list[dict[str, Any]]:
        params = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        results = await asyncio.gather(
            *(session.send("Runtime.evaluate", params) for session in sessions), return_exceptions=True
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
