"""What browsertrix-crawler says while it works: JSON lines, read one by one; pure.

    {"timestamp", "logLevel": info|warn|error|fatal, "context", "message", "details": {...}}

Progress is a line of the context `crawlStatus`, at each page's start and once at the end; a page that is over
has a line of `pageStatus`. No line says that all went well: the exit code does (`ends`). Any other line is
passed over, since newer versions may say more, and kept in the transcript.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from stillweb.record.report import CrawlEvent

__all__ = ["Log"]

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
