"""Open what waits and will not be come to: links, by weight, only to have them recorded.

A state costs a fresh context, a survey of the page and all that is tried there. Where the budget ends, most
of what somebody who clicks about would miss is plain pages, one link away from what was entered: to open them
takes a fraction of that. Nothing has changed the site by then, so they are recorded as a session finds them
that has changed nothing. What they, and states that were entered, lead to by address (`exploreleads`) is
opened in its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stillweb.browser.walk import Act, Walker
from stillweb.errors import InfraError
from stillweb.record.explorebook import Book
from stillweb.record.explorefrontier import KEPT, ExploreFrontier
from stillweb.record.exploregrounds import Grounds
from stillweb.record.exploreleads import leads_of
from stillweb.urls import wire_url

__all__ = ["note_leads", "open_links"]

_A_CONTEXT = 20  # links; then a fresh one, since what a site remembers of its visitors grows
_LAST_ANSWERS = 5.0  # seconds for answers under way when a context is left


async def open_links(
    grounds: Grounds, book: Book, frontier: ExploreFrontier, limit: int, is_late: Callable[[], bool]
) -> None:
    """Open addresses that wait and are not recorded, the likeliest first.

    Args:
        grounds: where.
        book: what is written down.
        frontier: where they wait; they go on waiting to be entered.
        limit: how many at most.
        is_late: whether to stop.

    Raises:
        RecordError: if an exchange could not be written.
    """
    tried: set[str] = set()

    def passed(url: str) -> bool:
        return url in tried or url in book.known

    while len(tried) < limit and not is_late() and frontier.likeliest(passed):
        try:
            async with grounds.walking() as walker:
                for _ in range(min(_A_CONTEXT, limit - len(tried))):
                    found = frontier.likeliest(passed)
                    if found is None or is_late():
                        break
                    tried.add(found[0])
                    await walker.do(Act("open", value=found[0]))
                    book.recorded(walker.take_requests())
                    await note_leads(grounds, frontier, walker, found[1])
                    book.count_opened(found[0], len(frontier))
                    grounds.recording.check()
                with suppress(TimeoutError):
                    await asyncio.wait_for(grounds.recording.idle(), _LAST_ANSWERS)
        except InfraError as error:  # a page that the browser does not stand; the others have their turn
            book.report.faults.append(f"opening links: {error}")
            if not grounds.browser.is_connected():
                return


async def note_leads(grounds: Grounds, frontier: ExploreFrontier, walker: Walker, weight: float) -> None:
    """Hand the weight of a page on to where it leads by address, to be opened if nobody enters it."""
    if not grounds.scope.contains(wire_url(walker.page.url)):
        return
    options = grounds.options
    leads = [
        lead.url
        for lead in await leads_of(walker.page, options.values)
        if grounds.scope.contains(lead.url) and not options.avoid.forbids(lead.told, lead.url)
    ]
    for url in leads:
        frontier.note(url, weight * KEPT / len(leads))
