"""What went wrong in a page's scripts: errors on the console, exceptions and rejections that nobody caught.

"Failed to load resource" is left out: requests are told by `Activity`, and more exactly.
"""

from __future__ import annotations

from playwright.async_api import BrowserContext, ConsoleMessage, WebError

_OF_REQUESTS = "Failed to load resource"
_LONGEST = 500  # characters


class Complaints:
    """The complaints of a context from now on; make it before the first page, close it at the end.

    Attributes:
        lines: each as "console: MESSAGE (URL:LINE)" or "uncaught: MESSAGE", in order of arrival.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.lines: list[str] = []
        self._context = context
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    def close(self) -> None:
        """Stop listening."""
        self._context.remove_listener("console", self._on_console)
        self._context.remove_listener("weberror", self._on_error)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type != "error" or message.text.startswith(_OF_REQUESTS):
            return
        at = message.location
        self._note("console", message.text, f"{at['url']}:{at['lineNumber'] + 1}" if at["url"] else "")

    def _on_error(self, error: WebError) -> None:
        self._note("uncaught", str(error.error), "")

    def _note(self, kind: str, text: str, place: str) -> None:
        line = " ".join(text.split())[:_LONGEST]
        self.lines.append(f"{kind}: {line}" + (f" ({place})" if place else ""))
