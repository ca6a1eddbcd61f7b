"""`events.jsonl` beside a trajectory: what a step caused, for people who look at the episode.

A line for the reset and for each step:

    {"step": 3, "target": [8, 60, 90, 24], "requests": [...], "console": [...]}

`target` is the box of the action's element before the action, in CSS pixels of the viewport. Requests have
method, URL, status, tier and reason. Below level EXACT times of arrival decide the order of these lists, so
they are not in `trajectory.jsonl`, whose bytes are equal for equal episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from playwright.async_api import BrowserContext, ConsoleMessage, WebError

from stillweb.browser.exact.console import Console
from stillweb.env.trajectories.trajectory import line

FILE = "events.jsonl"

_REQUESTS = 500  # of a step
_MESSAGES = 200  # of a step
_LONGEST = 2000  # characters of a message
_FIELDS = ("method", "url", "status", "tier", "reason", "bytes", "resource")

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepEvents:
    """Events of a step besides its observation.

    Attributes:
        requests: ledger entries, or requests that the browser reported.
        target: left, top, width and height of the action's element; None if it was not in the viewport.
    """

    requests: tuple[Any, ...] = ()
    target: Box | None = None


class ConsoleLog:
    """Console messages and uncaught exceptions of the pages of a context.

    Args:
        exact: its console at level EXACT, which is read instead.
    """

    def __init__(self, context: BrowserContext, exact: Console | None = None) -> None:
        self._messages: list[dict[str, Any]] = []
        self._dropped = 0
        self._exact = exact
        if exact is None:
            context.on("console", self._on_message)
            context.on("weberror", self._on_error)

    def take(self) -> tuple[list[dict[str, Any]], int]:
        """Return the messages since the last call, and the number of dropped ones."""
        if self._exact:
            entries, self._dropped = self._exact.take()
            for entry in entries:
                self._add(entry.type, entry.text, entry.where)
        taken, dropped = self._messages, self._dropped
        self._messages, self._dropped = [], 0
        return taken, dropped

    def _on_message(self, message: ConsoleMessage) -> None:
        place = message.location
        where = f"{place.get('url', '')}:{place.get('lineNumber', 0) + 1}" if place.get("url") else ""
        self._add(message.type, message.text, where)

    def _on_error(self, error: WebError) -> None:
        self._add("exception", str(error.error), "")

    def _add(self, kind: str, text: str, where: str) -> None:
        if len(self._messages) >= _MESSAGES:
            self._dropped += 1
            return
        self._messages.append({"type": kind, "text": text[:_LONGEST], "where": where})


def events_line(step: int, events: StepEvents, console: ConsoleLog) -> str:
    """Return the line of a step; it takes the messages of the console."""
    messages, dropped = console.take()
    value: dict[str, Any] = {
        "step": step,
        "requests": list(_requests(events.requests[:_REQUESTS])),
        "console": messages,
    }
    if events.target:
        value["target"] = [round(each, 1) for each in events.target]
    if more := max(0, len(events.requests) - _REQUESTS):
        value["more_requests"] = more
    if dropped:
        value["more_console"] = dropped
    return line(value)


def _requests(requests: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    for request in requests:
        yield {name: value for name in _FIELDS if (value := getattr(request, name, ""))}
