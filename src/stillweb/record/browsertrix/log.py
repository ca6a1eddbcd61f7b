"""How browsertrix-crawler ended: its exit code and last words, as a collection's state or an error; pure.

Whatever it left is imported first, so that an error never costs what was recorded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from stillweb.errors import ProgramNotFound, RecordError, StillwebError, UpstreamUnreachable, UsageError
from stillweb.record.browsertrix.settings import Container
from stillweb.record.crawl.report import CrawlEvent

__all__ = ["CrawlExit", "Log", "judge"]

_VERSION = re.compile(r"Browsertrix-Crawler ([\w.-]+)")
_SHOWN = 20  # lines that are no JSON, and faults


@dataclass(slots=True)
class Log:
    """What the lines so far have told.

    Attributes:
        version: of the crawler.
        pages, total, failed: of its last statistics.
        limit_hit: whether it left pages out because of a limit of pages.
        failed_pages: URL -> why it could not be loaded.
        failed_requests: URL -> the browser's word for why.
        fatal: its last word before it gave up, "" if it did not.
        faults: the last messages of level `error`.
        stray: the last lines that were no JSON of this form.
        waiting: whether all that it says is that it waits for its store.
        body_bytes: set by who looks at the archive; sent on with each event.
    """

    version: str = ""
    pages: int = 0
    total: int = 0
    failed: int = 0
    limit_hit: bool = False
    failed_pages: dict[str, str] = field(default_factory=dict)
    failed_requests: dict[str, str] = field(default_factory=dict)
    fatal: str = ""
    faults: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    waiting: bool = False
    body_bytes: int = 0

    def feed(self, line: str) -> CrawlEvent | None:
        """Read a line; return an event if it tells of progress."""
        told = _object(line)
        if told is None:
            if line.strip():
                self.stray = [*self.stray[1 - _SHOWN :], line.strip()]
            return None
        context, message = str(told.get("context", "")), str(told.get("message", ""))
        details = told.get("details")
        details = details if isinstance(details, dict) else {}
        self.waiting = context in ("redis", "state") and "redis" in message
        if (found := _VERSION.match(message)) and not self.version:
            self.version = found[1]
        level = told.get("logLevel")
        if level == "fatal":
            self.fatal = message.removesuffix(" Quitting").strip()
        elif level == "error":
            why = details.get("error") or details.get("msg") or details.get("message") or ""
            self.faults = [*self.faults[1 - _SHOWN :], f"{message}: {why}" if why else message]
        if context == "crawlStatus":
            return self._statistics(details)
        if context == "pageStatus":
            return self._page(message, details)
        if context == "recorder" and message == "Request failed" and isinstance(details.get("url"), str):
            self.failed_requests[details["url"]] = str(details.get("errorText", "failed"))
        return None

    def _statistics(self, details: dict[str, Any]) -> CrawlEvent:
        self.pages = _whole(details.get("crawled"), self.pages)
        self.total = _whole(details.get("total"), self.total)
        self.failed = max(_whole(details.get("failed"), 0), len(self.failed_pages))
        limit = details.get("limit")
        self.limit_hit = bool(isinstance(limit, dict) and limit.get("hit"))
        return self._event("", "")

    def _page(self, message: str, details: dict[str, Any]) -> CrawlEvent | None:
        url = str(details.get("page") or details.get("url") or "")
        if message == "Page Finished":
            self.pages += 1
            self.total = max(self.total, self.pages + self.failed)
            return self._event(url, "")
        if not message.startswith("Page Load Failed: retry limit"):
            return None
        why = str(details.get("msg") or message).partition(" at http")[0]
        self.failed_pages[url] = why
        self.failed = max(self.failed, len(self.failed_pages))
        return self._event(url, why)

    def _event(self, url: str, error: str) -> CrawlEvent:
        queued = max(0, self.total - self.pages - self.failed)
        return CrawlEvent(url, error, self.pages, queued, self.failed, 0, self.body_bytes)


def _object(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and "logLevel" in told else None


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


_ON = "what is recorded is kept; the same with --append goes on"


@dataclass(frozen=True, slots=True)
class CrawlExit:
    """How a crawl ended.

    Attributes:
        stopped: why it is not complete, "" if it is.
        error: to be raised when what there is has been imported; None if the user asked for this end.
    """

    stopped: str = ""
    error: StillwebError | None = None


# Ends that the user asked for: partial, and no error.
_ASKED = {14: "the limit of size", 15: "the limit of time"}
# What went wrong while pages were recorded, and what to do.
_BROKE = {
    3: ("the disk is full", f"make room; {_ON}"),
    8: ("its store, Redis, did not answer", f"try again; {_ON}"),
    10: ("its browser crashed", f"give the container more memory, or --jobs 1; {_ON}"),
    16: ("the disk is too full for it", f"make room, or --set diskUtilization=0; {_ON}"),
    18: ("the site limits how often it is asked", f"--rate 10; {_ON}"),
    21: ("the proxy that it was told to use does not answer", "see proxyServer in --set"),
    22: ("its upload failed", "leave it to stillweb: no STORE_ variables in --docker-arg"),
    137: ("the container was killed, by a person or for want of memory", _ON),
    139: ("a program in the container crashed", _ON),
}


def judge(code: int, log: Log, container: Container, *, interrupted: bool = False) -> CrawlExit:
    """Return how a crawl ended.

    Args:
        code: of the call of Docker, which is that of the crawler but for 125 to 127; negative for a signal.
        log: all that was said.
        container: as it was run.
        interrupted: whether we told it to stop.
    """
    if code in (125, 126, 127):
        return CrawlExit("it did not start", _not_started(code, log, container))
    if code == 0:
        return CrawlExit()
    if code in (11, 13) or (interrupted and code != 1):
        return CrawlExit("a signal")
    if code in _ASKED:
        return CrawlExit(_ASKED[code])
    if code in (1, 9, 12, 17):
        return _failed(code, log)
    what, hint = _BROKE.get(code, (f"it ended with status {code}", f"its log says more; {_ON}"))
    return CrawlExit(what, RecordError(f"browsertrix stopped: {what}{_words(log)}", hint=hint))


def _failed(code: int, log: Log) -> CrawlExit:
    """Return the end of a crawl that gave up: at its arguments, its seeds, or its number of failures."""
    first = next(iter(log.failed_pages.items()), None)
    if code == 1 and not log.version and not log.fatal:
        last = log.stray[-1] if log.stray else "it does not say why"
        hint = "check the values of --set; --dry-run shows what it is told"
        return CrawlExit(
            "its settings", UsageError(f"browsertrix does not take its settings: {last}", hint=hint)
        )
    if code == 17 and "seed" in log.fatal.lower():
        return CrawlExit("its seeds", UsageError(f"browsertrix: {log.fatal}", hint="check the URLs"))
    if code == 12 or first is None:
        what = log.fatal or (log.faults[-1] if log.faults else f"it ended with status {code}")
        hint = "its log says more; see failOnFailedSeed and failOnFailedLimit, if --set has them"
        return CrawlExit(what, RecordError(f"browsertrix gave up: {what}", hint=hint))
    url, why = first
    hint = f"check that the site is up, seen from a container: curl -v {url}"
    return CrawlExit(why, UpstreamUnreachable(f"{url} cannot be reached: {why}", hint=hint))


def _not_started(code: int, log: Log, container: Container) -> StillwebError:
    said = next((line for line in log.stray if "rror" in line), log.stray[0] if log.stray else "")
    said = said or f"status {code}"
    if "is already in use" in said:
        return UsageError(
            "a container of this collection runs already",
            hint=f"wait for it, or: {container.program} stop its name, which `{container.program} ps` shows",
        )
    if code == 125:
        hint = "--dry-run shows the call; try it by hand"
        return RecordError(f"{container.program} run failed: {said}", hint=hint)
    what = f"{container.image} has no program `crawl`: {said}"
    return ProgramNotFound(what, hint="name an image of browsertrix-crawler by --image")


def _words(log: Log) -> str:
    said = log.fatal or (log.faults[-1] if log.faults else "")
    return f" ({said})" if said else ""
