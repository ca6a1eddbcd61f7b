"""Open what waits and will not be come to: links, by weight, only to have them recorded.

A state costs a fresh context, a survey of the page and all that is tried there. Where the budget ends, most
of what somebody who clicks about would miss is plain pages, one link away from what was entered: to open them
takes a fraction of that. Nothing has changed the site by then, so they are recorded as a session finds them
that has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stillweb.browser.walk import Act
from stillweb.errors import InfraError
from stillweb.record.explorebook import Book
from stillweb.record.explorefrontier import ExploreFrontier
from stillweb.record.exploregrounds import Grounds

__all__ = ["open_links"]

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
    urls = [url for url in frontier.addresses() if url not in book.known][:limit]
    for some in _in_parts(urls):
        try:
            async with grounds.walking() as walker:
                for url in some:
                    if is_late():
                        return
                    if url in book.known:  # a link before it was sent on to it
                        continue
                    await walker.do(Act("open", value=url))
                    book.recorded(walker.take_requests())
                    book.count_opened(url, len(frontier))
                    grounds.recording.check()
                with suppress(TimeoutError):
                    await asyncio.wait_for(grounds.recording.idle(), _LAST_ANSWERS)
        except InfraError as error:  # a page that the browser does not stand; the others have their turn
            book.report.faults.append(f"{some[0]} and behind: {error}")
            if not grounds.browser.is_connected():
                return


def _in_parts(urls: list[str]) -> list[list[str]]:
    return [urls[at : at + _A_CONTEXT] for at in range(0, len(urls), _A_CONTEXT)]
