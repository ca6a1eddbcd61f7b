"""Log and exit code of browsertrix-crawler, as progress, a collection's state or an error; pure.

The output is imported before an error is raised, so that an error never loses recorded pages.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from stillweb.errors import ProgramNotFound, RecordError, StillwebError, UpstreamUnreachable, UsageError
from stillweb.record.browsertrix.settings import Container
from stillweb.record.crawl.report import CrawlEvent

_VERSION = re.compile(r"Browsertrix-Crawler ([\w.-]+)")
_SHOWN = 20  # stray lines and faults to keep


@dataclass(slots=True)
class Log:
    """State read from the log lines so far.

    Attributes:
        pages, total, failed: last statistics.
        limit_hit: whether it skipped pages because of a page limit.
        failed_pages: URL -> why it could not be loaded.
        failed_requests: URL -> the browser's error.
        fatal: its message before it gave up, "" if it did not.
        faults: last messages of level `error`.
        stray: last lines that are not log entries.
        waiting: whether its last entry says that it waits for its store.
        body_bytes: set by the caller; sent with each event.
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
        """Read a line; return an event if it reports progress."""
        entry = _object(line)
        if entry is None:
            if line.strip():
                self.stray = [*self.stray[1 - _SHOWN :], line.strip()]
            return None
        context, message = str(entry.get("context", "")), str(entry.get("message", ""))
        details = entry.get("details")
        details = details if isinstance(details, dict) else {}
        self.waiting = context in ("redis", "state") and "redis" in message
        if (found := _VERSION.match(message)) and not self.version:
            self.version = found[1]
        level = entry.get("logLevel")
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
        # "Page Load Failed", "Page Load Aborted: DNS Error", "Page Invalid Status" and others.
        what, failed, _ = message.partition(": retry limit reached")
        if not failed:
            return None
        why = str(details.get("msg") or what).partition(" at http")[0]
        self.failed_pages[url] = why
        self.failed = max(self.failed, len(self.failed_pages))
        return self._event(url, why)

    def _event(self, url: str, error: str) -> CrawlEvent:
        queued = max(0, self.total - self.pages - self.failed)
        return CrawlEvent(url, error, self.pages, queued, self.failed, 0, self.body_bytes)


def _object(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and "logLevel" in entry else None


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


_CONTINUE = "what is recorded is kept; the same command with --append continues"


@dataclass(frozen=True, slots=True)
class CrawlExit:
    """How a crawl ended.

    Attributes:
        stopped: why it is incomplete, "" if it is complete.
        error: error to raise after the import; None if the user requested this end.
    """

    stopped: str = ""
    error: StillwebError | None = None


# Exit codes of ends that the user requested: partial, and not an error.
_REQUESTED = {14: "the limit of size", 15: "the limit of time"}
# Exit codes of failures while pages were recorded, and what to do.
_FAILURES = {
    3: ("the disk is full", f"free disk space; {_CONTINUE}"),
    8: ("its store, Redis, did not answer", f"try again; {_CONTINUE}"),
    10: ("its browser crashed", f"give the container more memory, or --jobs 1; {_CONTINUE}"),
    16: ("the disk is too full for it", f"free disk space, or --set diskUtilization=0; {_CONTINUE}"),
    18: ("the site limits the request rate", f"--rate 10; {_CONTINUE}"),
    21: ("its proxy does not respond", "see proxyServer in --set"),
    22: ("its upload failed", "leave uploads to stillweb: no STORE_ variables in --docker-arg"),
    137: ("the container was killed, by a user or for lack of memory", _CONTINUE),
    139: ("a program in the container crashed", _CONTINUE),
}


def judge(code: int, log: Log, container: Container, *, interrupted: bool = False) -> CrawlExit:
    """Return how a crawl ended.

    Args:
        code: exit code of Docker, which is the crawler's except for 125 to 127; negative for a signal.
        interrupted: whether we sent a signal.
    """
    if code in (125, 126, 127):
        return CrawlExit("it did not start", _not_started(code, log, container))
    if code == 0:
        return CrawlExit()
    if code in (11, 13) or (interrupted and code != 1):
        return CrawlExit("a signal")
    if code in _REQUESTED:
        return CrawlExit(_REQUESTED[code])
    if code in (1, 9, 12, 17):
        return _failed(code, log)
    what, hint = _FAILURES.get(code, (f"it ended with status {code}", f"its log says more; {_CONTINUE}"))
    return CrawlExit(what, RecordError(f"browsertrix stopped: {what}{_last_message(log)}", hint=hint))


def _failed(code: int, log: Log) -> CrawlExit:
    """Return the end of a crawl that gave up because of its settings, its seeds or its failures."""
    first = next(iter(log.failed_pages.items()), None)
    if code == 1 and not log.version and not log.fatal:
        last = log.stray[-1] if log.stray else "no message"
        hint = "check the values of --set; --dry-run shows the settings"
        return CrawlExit("its settings", UsageError(f"browsertrix rejects its settings: {last}", hint=hint))
    if code == 17 and "seed" in log.fatal.lower():
        return CrawlExit("its seeds", UsageError(f"browsertrix: {log.fatal}", hint="check the URLs"))
    if code == 12 or first is None:
        what = log.fatal or (log.faults[-1] if log.faults else f"it ended with status {code}")
        hint = "its log says more; see failOnFailedSeed and failOnFailedLimit, if --set has them"
        return CrawlExit(what, RecordError(f"browsertrix gave up: {what}", hint=hint))
    return CrawlExit(first[1], nothing_recorded(log))


def nothing_recorded(log: Log) -> StillwebError:
    """Return the error for a crawl without a response, with its first failed page as the cause."""
    for url, why in log.failed_pages.items():
        hint = f"check that the site is reachable from a container: curl -v {url}"
        return UpstreamUnreachable(f"{url} cannot be reached: {why}", hint=hint)
    return RecordError("browsertrix recorded no response", hint="its log says more")


def _not_started(code: int, log: Log, container: Container) -> StillwebError:
    output = next((line for line in log.stray if "rror" in line), log.stray[0] if log.stray else "")
    output = output or f"status {code}"
    if "is already in use" in output:
        return UsageError(
            "a container of this collection is running already",
            hint=f"wait for it, or: {container.program} stop its name, which `{container.program} ps` shows",
        )
    if code == 125:
        hint = "--dry-run shows the command; run it by hand"
        return RecordError(f"{container.program} run failed: {output}", hint=hint)
    what = f"{container.image} has no program `crawl`: {output}"
    return ProgramNotFound(what, hint="name an image of browsertrix-crawler by --image")


def _last_message(log: Log) -> str:
    output = log.fatal or (log.faults[-1] if log.faults else "")
    return f" ({output})" if output else ""
