"""Waiting for the browser's answer, but not for a script that never ends.

A page in an endless loop answers nothing. What tells it from one that is merely slow, on a loaded machine,
is what its renderer has used of the processor (`Performance.getMetrics`, which Chromium answers amid a
script): one task that takes `LOOP_SECONDS` of it ends its page, as if the renderer had crashed. That hurts
this page alone, answers the frame that waits for it, and is told to all that waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stillweb import clock

if TYPE_CHECKING:
    from stillweb.browser.line import LineSession

__all__ = ["LOOP_SECONDS", "wait_long"]

LOOP_SECONDS = 5.0
"""Of the processor, for one task of a page: the longest of large pages take one or two."""

LOOK_SECONDS = 2.0
"""Real; a command takes milliseconds, and what takes longer is looked at as often."""

_ANSWER_SECONDS = 60.0  # real; for what hangs without using the processor

Answer = asyncio.Future[dict[str, Any]]


async def wait_long(session: LineSession, answer: Answer) -> bool:
    """Wait for an answer that has not come within `LOOK_SECONDS`; return whether there is one.

    A page that loops is ended meanwhile.
    """
    began = clock.monotonic()
    page = session.page
    ping = _ping(session)
    used = None
    while not answer.done() and clock.monotonic() - began < _ANSWER_SECONDS:
        metrics = page.post("Performance.getMetrics") if page else None
        await asyncio.wait([answer], timeout=LOOK_SECONDS)
        # Who answers something is not in a loop: the command waits for another reason.
        if page is None or metrics is None or ping.done() or not _answered(metrics):
            continue
        now = _seconds_used(metrics.result())
        used = now if used is None else used
        if now - used > LOOP_SECONDS:
            page.end(f"a script took {LOOP_SECONDS:g} s of the processor and did not end")
    return answer.done()


def _ping(session: LineSession) -> Answer:
    """Ask for something that is answered as soon as the thread of a page or worker has finished its task."""
    return session.post("Runtime.evaluate", {"expression": "1"})


def _answered(answer: Answer) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _seconds_used(told: dict[str, Any]) -> float:
    # Of the whole renderer, since workers have threads of their own.
    return next((float(each["value"]) for each in told["metrics"] if each["name"] == "ProcessTime"), 0.0)
