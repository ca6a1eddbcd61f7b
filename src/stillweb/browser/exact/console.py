"""Console messages, uncaught exceptions and log entries of a context at level EXACT, in one order.

Playwright reports them over its own connection, at any time: a message may come with the next step. Here they
come over the connection of the page, so all messages of a rest have arrived at its end. Exceptions of
promises are reported between the scripts of a loading document, by the real clock. So the messages of one
moment (an instant of the clock, after one response) are listed kind by kind: messages, exceptions, entries of
the browser; first those of pages, then those of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stillweb.browser.cdp.connection import CdpSession
from stillweb.urls import BLOB_URL

_MOST = 1000  # messages between two calls of `take`; more are counted only
_KINDS = ("message", "exception", "entry")

Moment = tuple[int, int]
Owner = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConsoleEntry:
    """A console message.

    Attributes:
        type: "log", "error", "warning" ... as in the console API, or "exception".
        text: as Playwright words it.
        where: URL and line, "" if unknown.
    """

    type: str
    text: str
    where: str


class Console:
    """Console of one `ExactContext`.

    Args:
        moment: returns the instant of the clock and the number of responses.
    """

    def __init__(self, moment: Callable[[], Moment]) -> None:
        self._moment = moment
        self._entries: list[tuple[tuple[object, ...], ConsoleEntry]] = []
        self._count = 0

    def follow(self, session: CdpSession, owner: Callable[[], Owner]) -> None:
        """Note the messages of a page or worker; `owner` returns its place among these."""
        session.on("Runtime.consoleAPICalled", partial(self._on_message, owner))
        session.on("Runtime.exceptionThrown", partial(self._on_exception, owner))
        session.on("Log.entryAdded", partial(self._on_entry, owner))
        # A page's probe enables Runtime, which then reports what came before.
        session.post("Log.enable" if session.target["type"] == "page" else "Runtime.enable")

    def take(self) -> tuple[list[ConsoleEntry], int]:
        """Return the messages since the last call, and the number of further ones."""
        taken = [entry for _, entry in sorted(self._entries, key=lambda each: each[0])]
        further = self._count - len(taken)
        self._entries, self._count = [], 0
        return taken, further

    def _on_message(self, owner: Callable[[], Owner], event: dict[str, Any]) -> None:
        text = " ".join(map(_shown, event["args"]))
        self._add("message", owner, ConsoleEntry(event["type"], text, _top(event.get("stackTrace"))))

    def _on_exception(self, owner: Callable[[], Owner], event: dict[str, Any]) -> None:
        details = event["exceptionDetails"]
        thrown = details.get("exception", {})
        text = thrown.get("description") or (_shown(thrown) if thrown else details["text"])
        if thrown.get("subtype") == "error":
            text = text.partition("\n    at ")[0].partition(": ")[2] or text
        self._add("exception", owner, ConsoleEntry("exception", text, ""))

    def _on_entry(self, owner: Callable[[], Owner], event: dict[str, Any]) -> None:
        entry = event["entry"]
        if entry["source"] == "worker":  # its own session reports it, too
            return
        where = f"{entry['url']}:{entry.get('lineNumber', 0) + 1}" if entry.get("url") else ""
        self._add("entry", owner, ConsoleEntry(entry["level"], entry["text"], where))

    def _add(self, kind: str, owner: Callable[[], Owner], entry: ConsoleEntry) -> None:
        self._count += 1
        if len(self._entries) < _MOST:
            # The UUID of a blob URL differs each time.
            entry = ConsoleEntry(
                entry.type, *(BLOB_URL.sub(r"\1", each) for each in (entry.text, entry.where))
            )
            self._entries.append(((*self._moment(), _KINDS.index(kind), owner()), entry))


def _shown(value: Mapping[str, Any]) -> str:
    """Return CDP's RemoteObject as text, as Playwright does."""
    if value["type"] == "undefined":
        return "undefined"
    if "value" in value:
        return _literal(value["value"])
    if text := value.get("unserializableValue"):
        return str(text)
    preview = value.get("preview")
    properties = preview["properties"] if preview else ()
    if preview and value.get("subtype") == "array":
        return f"[{', '.join(each.get('value', '') for each in properties)}]"
    if preview and value.get("description") == "Object":
        members = (f"{each['name']}: {each.get('value', '')}" for each in properties)
        return f"{{{', '.join(members)}}}"
    return str(value.get("description", value["type"]))


def _literal(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _top(stack: Mapping[str, Any] | None) -> str:
    frames = stack["callFrames"] if stack else ()
    return f"{frames[0]['url']}:{frames[0]['lineNumber'] + 1}" if frames and frames[0]["url"] else ""
