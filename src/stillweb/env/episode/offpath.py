"""Off-path policy: what happens when an action leads to a document that the collection does not hold.

The replay answers such a navigation with 204 (`ReplayClient.cancel_navigations`), and a browser stays on its
page then (HTML, navigate, step "204"). This works alike for links, forms, scripts, history and new tabs, at
every level, without interception in the browser. The first document of a tab has no page to stay on: such a
tab is closed again. The ledger shows which navigations were cancelled. See docs/decisions/0022-off-path.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from playwright.async_api import Page

from stillweb.browser.observe.survey import SurveyItem
from stillweb.errors import InfraError, UsageError
from stillweb.http.control import LedgerEntry
from stillweb.model import Tier
from stillweb.options import Option
from stillweb.replay import OpenSession, ReplayClient, ReplayInfo
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.browser.activity import Activity
    from stillweb.env.episode.tabs import Tabs

OffPathMode = Literal["stay", "mask", "terminate", "follow"]

OFF_PATH = Option(
    "What to do when an action leads to a document that the collection does not hold.",
    default="stay, or follow if the server cannot cancel navigations",
)

_CANCELLED = 204
_FRAMES = ("iframe", "frame")
_BLANK = ("", ":", "about:blank")


def off_path_mode(chosen: OffPathMode | None, info: ReplayInfo) -> OffPathMode:
    """Return the mode on a server: "stay" by default, "follow" if the server cannot cancel navigations.

    Raises:
        UsageError: if another mode was chosen, and the server cannot cancel navigations.
    """
    if info.features.get("cancel_navigations"):
        return chosen or "stay"
    if chosen not in (None, "follow"):
        raise UsageError(
            f"off_path={chosen!r} is not supported by this {info.backend} server",
            hint="use `stillweb replay` with the native back-end and without --on-miss, or off_path='follow'",
        )
    return "follow"


@contextmanager
def session_required() -> Iterator[None]:
    """Raise InfraError if the server lacks the session.

    Another client closed the session, or the server was replaced.
    """
    try:
        yield
    except UsageError as error:
        raise InfraError(f"the replay lost the episode's session: {error}", hint="reset") from error


class OffPath:
    """Cancelled navigations and masked elements of one episode.

    Attributes:
        mode: effective mode.
        cancelled: "METHOD URL" of those in the last step.
        masked: bids of elements in the last observation whose document is not recorded, in mode "mask".
    """

    def __init__(self, client: ReplayClient, session: OpenSession) -> None:
        self.mode: OffPathMode = "follow"
        self.total = 0
        self.cancelled: tuple[str, ...] = ()
        self.masked: tuple[str, ...] = ()
        self._client = client
        self._session = session
        self._seen = 0  # number of the last ledger entry
        self._requests = 0  # of the activity
        self._recorded: dict[str, bool] = {}

    async def begin(self, mode: OffPathMode, activity: Activity) -> None:
        """Apply a mode from now on; call this when the start page is open."""
        self.mode = mode
        self._requests = len(activity.requests)
        if mode != "follow":
            await self._client.cancel_navigations(self._session.id)

    async def take(self, activity: Activity) -> bool:
        """Read the cancelled navigations of a step from the ledger; return True if there are any."""
        self.cancelled = ()
        requests, self._requests = activity.requests[self._requests :], len(activity.requests)
        documents = [each for each in requests if each.resource_type == "document"]
        if self.mode == "follow" or not any(each.status == _CANCELLED or each.failure for each in documents):
            return False
        with session_required():
            entries = (await self._client.ledger(self._session.id, after=self._seen)).entries
        self._seen = max((entry.seq for entry in entries), default=self._seen)
        arrived = any(each.status not in (0, _CANCELLED) for each in documents)
        self.cancelled = tuple(
            f"{entry.method} {entry.url}"
            for entry in entries
            if entry.status == _CANCELLED and _is_cancelled(entry, arrived)
        )
        self.total += len(self.cancelled)
        return bool(self.cancelled)

    @staticmethod
    async def close_empty(tabs: Tabs, before: Sequence[Page]) -> bool:
        """Close the tabs that opened in this step and have no document; return True if there are any."""
        empty = [page for page in tabs.pages if page not in before and page.url in _BLANK]
        for page in empty:
            await page.close()
        await tabs.ensure_one()
        return bool(empty)

    async def mask(self, items: Iterable[SurveyItem]) -> frozenset[str]:
        """Return the bids of links in a page whose documents the collection does not hold."""
        targets = {item.bid: wire_url(item.url) for item in items if item.url.startswith(("http:", "https:"))}
        unknown = sorted({url for url in targets.values() if url not in self._recorded})
        if unknown:
            with session_required():
                recorded = await self._client.lookup(self._session.id, unknown)
            self._recorded |= dict(zip(unknown, recorded, strict=True))
        self.masked = tuple(bid for bid, url in targets.items() if not self._recorded[url])
        return frozenset(self.masked)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `info`."""
        return {
            "mode": self.mode,
            "cancelled": list(self.cancelled),
            "total": self.total,
            "masked": list(self.masked),
        }


def _is_cancelled(entry: LedgerEntry, arrived: bool) -> bool:
    """Return True for a navigation that was to leave a page.

    On http, browsers do not say what a request is for. A miss beside a document that has arrived is then
    taken for the first document of one of its frames.
    """
    if entry.tier == Tier.NOISE:
        return entry.resource == "document"
    if entry.tier != Tier.MISS:
        return False
    return entry.resource in ("document", *_FRAMES) or (not entry.resource and not arrived)
