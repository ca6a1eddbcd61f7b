"""Where the pages that an amend has brought lead to: opened, so that an agent can go a step further."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from playwright.async_api import Browser

from stillweb.browser.profile import Pinning, Profile
from stillweb.collections.layout import Collection
from stillweb.collections.reachability import Reach
from stillweb.record.explorebook import Book
from stillweb.record.explorefrontier import ExploreFrontier
from stillweb.record.exploregrounds import Grounds
from stillweb.record.exploreknown import Known
from stillweb.record.explorelinks import open_links
from stillweb.record.exploreoptions import ExploreOptions, ExploreReport
from stillweb.record.options import ScopeKind
from stillweb.record.proxy import RecordingProxy
from stillweb.record.scope import Scope

__all__ = ["open_leads"]


async def open_leads(
    collection: Collection,
    urls: Sequence[str],
    grounds: tuple[Browser, RecordingProxy, Profile, Pinning],
    options: ExploreOptions,
) -> int:
    """Open what pages lead to, within their hosts, the likeliest first; return how many were opened.

    Args:
        collection: what it holds is not opened.
        urls: of the pages; each is opened once more, to be looked at.
        grounds: where.
        options: `links` at most, with values for forms.

    Raises:
        RecordError: if an exchange could not be written.
    """
    limit = options.links or 0
    if not urls or not limit:
        return 0
    pages = frozenset(urls)
    known = Known(
        each.url for each in collection.captures() if each.method == "GET" and each.url not in pages
    )
    report = ExploreReport()
    book = Book(Reach(), known, StringIO(), report, grounds[1], lambda event: None)
    frontier = ExploreFrontier()
    frontier.seed(urls)
    scope = Scope.of(ScopeKind.HOST, urls)
    ground = Grounds(*grounds, scope, options)
    await open_links(ground, book, frontier, limit + len(urls), lambda: False)
    return max(0, report.opened - len(urls))
