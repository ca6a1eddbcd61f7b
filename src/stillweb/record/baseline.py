"""A page as it looked when it was recorded: what `stillweb diff` holds a replay against.

Taken when the page has settled and before it is scrolled, since that is the state that a replay
reaches by loading the page alone. `resources.json` lists every request up to then, in order.
"""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page as BrowserPage

from stillweb.browser.portrait import portrait
from stillweb.browser.settle import Settled
from stillweb.browser.witness import Witness, request_list
from stillweb.collections.baselines import Arrival, write_baseline


async def take_baseline(page: BrowserPage, witness: Witness, rest: Settled, folder: Path) -> None:
    """Write what the page looks like and what led to it into a new folder."""
    pending = witness.pending()
    requests = request_list(await witness.requests())
    seen = await portrait(page)
    write_baseline(
        folder,
        seen.picture,
        {"text": seen.text, "axtree": seen.axtree, "dom": seen.dom},
        requests,
        Arrival(seen.url, rest.settled, rest.reason, pending, witness.complaints, witness.load_ms),
    )
