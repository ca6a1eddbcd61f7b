"""The workers of a context at level EXACT: pinned before their first instruction, moved and heard one by one.

A worker's global object is not complete until its first script is about to run
(docs/decisions/0018-exact.md), so that clock and seeds are put in there, at an instrumentation breakpoint.
At a rest each worker in turn gives what it has to say (`js/worker.js`, `js/hold.js`), so that no two of
them race.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from stillweb.browser.cdp.connection import CdpError, CdpSession

__all__ = ["Workers"]

_ROUNDS = 500  # of messages to and fro between workers and pages


class Workers:
    """Made by `World`.

    Attributes:
        begun: how many have begun.
    """

    def __init__(
        self, script: Callable[[str], str], door: str, flag: Callable[[str], None], progress: asyncio.Event
    ) -> None:
        self.begun = 0
        self._script = script
        self._door = json.dumps(door)
        self._flag = flag
        self._progress = progress
        self._running: dict[str, CdpSession] = {}
        self._seen: dict[str, int] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._loading: dict[str, set[str]] = {}  # a module worker's imports, by worker
        self._starting: dict[str, str] = {}  # those that do not answer yet, and their URLs
        self._late: set[str] = set()  # those that are not waited for
        self._heard: dict[str, int] = {}  # messages, by worker

    def pin(self, session: CdpSession, target: dict[str, Any], waiting: bool) -> None:
        """Put clock and seeds into a worker that has just been met."""
        url = target["url"]
        kind = "blob:" if url.startswith("blob:") else url
        index = self._seen.get(kind, 0)
        self._seen[kind] = index + 1
        self._starting[target["targetId"]] = url
        if not waiting:
            self._flag(f"{target['type']} {url} ran before it could be pinned")
        script = self._script(f"{target['type']}/{index}/")
        self._places[target["targetId"]] = (kind, index)
        session.on("Debugger.paused", lambda _: self._paused(session, script))
        session.post("Debugger.enable")
        session.post("Debugger.setInstrumentationBreakpoint", {"instrumentation": "beforeScriptExecution"})
        loading = self._loading.setdefault(target["targetId"], set())
        session.on("Network.requestWillBeSent", lambda event: loading.add(event["requestId"]))
        for event in ("Finished", "Failed"):
            session.on(f"Network.loading{event}", lambda event: loading.discard(event["requestId"]))

    def place(self, target: str) -> tuple[str, int]:
        """Return what tells a worker from others, by the order of their beginning; ("", 0) for a page."""
        return self._places.get(target, ("", 0))

    def forget(self, target: str) -> None:
        """A worker has ended."""
        self._running.pop(target, None)
        self._starting.pop(target, None)

    def beginning(self, held: set[str]) -> list[str]:
        """Return the workers that are about to begin: not those whose script is held."""
        return [
            target
            for target, url in self._starting.items()
            if url not in held and not self._loading.get(target) and target not in self._late
        ]

    def give_up(self, target: str) -> None:
        """Wait for a worker's beginning no longer."""
        self._late.add(target)
        self._flag(f"worker {self._starting[target]} did not begin in time")

    async def calm(self, idle: Callable[[], Awaitable[object]]) -> None:
        """Have workers and pages talk until none has anything to say, twice."""
        still = 0
        for _ in range(_ROUNDS):
            if not self._running or still == 2:
                return
            still = 0 if await self._speak(idle) else still + 1
        self._flag("workers and pages talk to each other without end")

    async def move(self, command: str, time: int) -> list[dict[str, Any]]:
        """Move the clocks of all workers; return what each says of now and of its next timer."""
        return await self._ask(f"self[{self._door}]({json.dumps(command)}, {time})", *self._running.values())

    def _paused(self, session: CdpSession, script: str) -> None:
        if session.target["targetId"] in self._starting:
            pinned = session.post("Runtime.evaluate", {"expression": script})
            pinned.add_done_callback(partial(self._pinned, session))
        session.post("Debugger.disable")  # and goes on

    def _pinned(self, session: CdpSession, answer: asyncio.Future[dict[str, Any]]) -> None:
        target = session.target
        self._starting.pop(target["targetId"], None)
        self._progress.set()
        if answer.cancelled() or answer.exception() is not None:
            return  # it ended before it began
        self._running[target["targetId"]] = session
        self.begun += 1
        if thrown := answer.result().get("exceptionDetails"):
            why = thrown.get("exception", {}).get("description", thrown["text"]).splitlines()[0]
            self._flag(f"{target['type']} {target['url']} could not be pinned: {why}")

    async def _speak(self, idle: Callable[[], Awaitable[object]]) -> bool:
        """Have the workers speak, one after the other; return whether one had anything to say."""
        moved = False
        for target, session in sorted(self._running.items(), key=lambda each: self._places[each[0]]):
            for told in await self._ask(f"self[{self._door}]()", session):
                for what in told["flags"]:
                    self._flag(what)
                if told["given"] or told["heard"] != self._heard.get(target, 0):
                    self._heard[target] = told["heard"]
                    moved = True
                    await idle()
        return moved

    async def _ask(self, expression: str, *sessions: CdpSession) -> list[dict[str, Any]]:
        wanted = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answers = await asyncio.gather(
            *(session.send("Runtime.evaluate", wanted) for session in sessions), return_exceptions=True
        )
        told = []
        for answer in answers:
            if isinstance(answer, CdpError):
                continue  # the worker has ended
            if isinstance(answer, BaseException):
                raise answer
            if value := answer["result"].get("value"):
                told.append(value)
        return told
