"""Who listens to a context while a page loads: its requests with their bodies, and its scripts' complaints.

One for a recording and for who compares its replay, so that both hear the same.
"""

from __future__ import annotations

from typing import Any

from playwright.async_api import BrowserContext

from stillweb.browser.activity import Activity, Requested
from stillweb.browser.bodies import BodyDigests, Remembered
from stillweb.browser.complaints import Complaints


class Witness:
    """Make it before the first page, close it at the end.

    Args:
        context: of the page.
        remembered: answers whose digests need not be asked for.
        bodies: whether digests are made of any.

    Attributes:
        activity: of the context.
        load_ms: real milliseconds until the load event, as noted by who navigated.
    """

    def __init__(
        self, context: BrowserContext, remembered: Remembered | None = None, *, bodies: bool = True
    ) -> None:
        self._bodies = BodyDigests(remembered)
        self._complaints = Complaints(context)
        self.activity = Activity(context, self._bodies if bodies else None)
        self.load_ms = 0.0

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the scripts complained of so far (`Complaints.lines`)."""
        return tuple(self._complaints.lines)

    def pending(self) -> tuple[str, ...]:
        """Return the URLs of what the page still waits for."""
        return tuple(entry.url for entry in self.activity.in_flight if entry.resource_type != "websocket")

    async def requests(self) -> list[Requested]:
        """Return the requests up to now, those that have ended with the digests of their bodies."""
        seen = list(self.activity.requests)
        await self._bodies.noted()
        return seen

    async def close(self) -> None:
        """Stop listening."""
        self.activity.close()
        self._complaints.close()
        await self._bodies.close()


def request_list(requests: list[Requested]) -> list[dict[str, Any]]:
    """Return requests as a baseline's `resources.json` has them."""
    first = min((request.started for request in requests), default=0.0)
    return [
        {
            "url": request.url,
            "method": request.method,
            "type": request.resource_type,
            "status": request.status,
            "failed": request.failure,
            "body": request.body,
            "start": round(1000 * (request.started - first), 1),
            "duration": round(1000 * max(0.0, request.finished - request.started), 1),
        }
        for request in requests
    ]
