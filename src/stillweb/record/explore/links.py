"""Open the links that exploration will not reach, by weight, only to record them.

Exploring a state costs a fresh context, an observation of the page and all trials in it. After the budget,
most misses of a random visitor would be plain pages one link away from an entered state. Opening such a page
takes a fraction of that time. The site has not been changed at that time, so the pages are recorded as a
session finds them that changed nothing. The links and GET forms of opened pages are opened in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.input.walker import Act, Walker
from stillweb.errors import InfraError
from stillweb.record.behaviors.behaviors import FRAME_TIMEOUT
from stillweb.record.crawl.scope import LEADS_TO, page_url
from stillweb.record.explore.frontier import DAMPING, ExploreFrontier
from stillweb.record.explore.options import ExplorationContext
from stillweb.record.explore.values import Values
from stillweb.record.htmlforms import HtmlForm, Input, LinkCandidate, form_requests
from stillweb.urls import page_address

if TYPE_CHECKING:
    from stillweb.record.explore.journal import ExplorationJournal


# Runs in an isolated world, through open shadow roots.
_LOOK = (
    "(() => {"
    + LEADS_TO
    + """
  const links = [], forms = [];
  const words = (element) =>
    (element.getAttribute("aria-label") || element.textContent || "").trim().slice(0, 120);
  const field = (e) => ({ name: e.name, type: e.type, value: e.value, on: Boolean(e.checked), id: e.id,
    placeholder: e.placeholder || "", required: Boolean(e.required),
    options: e.options ? [...e.options].map((option) => option.value) : [], words: words(e) || e.value });
  const walk = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) walk(element.shadowRoot);
      if (element.matches("a[href], area[href]")) {
        links.push([leadsTo(element, element.getAttribute("href")), words(element)]);
      }
      const method = (element.getAttribute("method") || "get").toLowerCase();
      if (!element.matches("form") || method !== "get") continue;
      const fields = [...element.elements].filter(
        (each) => each.matches("input:enabled, button:enabled, select:enabled, textarea:enabled"));
      const action = element.getAttribute("action") || document.location.href;
      forms.push([leadsTo(element, action), fields.map(field)]);
    }
  };
  walk(document);
  return { links, forms };
})()"""
)


async def find_candidates(page: Page, values: Values) -> list[LinkCandidate]:
    """Return where a page leads, in document order, links first; [] if the page does not respond."""
    found: list[LinkCandidate] = []
    with suppress(FrameGone, InfraError, TimeoutError):
        async with asyncio.timeout(FRAME_TIMEOUT):
            probe = await PageProbe.of(page)
            result = await probe.evaluate_all(_LOOK, await probe.frames())
            for frame in (each for each in result if each):
                found += [
                    LinkCandidate(page_url(url) or "", f'link "{words}"') for url, words in frame["links"]
                ]
                for action, fields in frame["forms"]:
                    form = HtmlForm(page_url(action) or "", tuple(_input(each) for each in fields))
                    found += form_requests(form, values)
    return [each for each in dict.fromkeys(found) if each.url]


def _input(fields: Mapping[str, Any]) -> Input:
    names = tuple(fields[each] for each in ("id", "placeholder") if fields[each])
    on = fields["on"] or (fields["type"] == "select-multiple" and fields["value"] != "")
    own = (fields["name"], fields["type"], fields["value"], on, fields["required"])
    return Input(*own, names, tuple(fields["options"]), fields["words"])


_CONTEXT_LINKS = 20  # links per context; a fresh one limits what a site stores about its visitor
_DRAIN_SECONDS = 5.0  # for responses in flight when a context is left


async def open_links(
    context: ExplorationContext,
    journal: ExplorationJournal,
    frontier: ExploreFrontier,
    limit: int,
    is_late: Callable[[], bool],
) -> None:
    """Open waiting URLs that are not recorded, the likeliest first.

    Args:
        frontier: waiting URLs; they stay in the queue.
        limit: maximum number of URLs.
        is_late: returns True to stop.

    Raises:
        RecordError: if an exchange could not be written.
    """
    tried: set[str] = set()

    def excluded(url: str) -> bool:
        return url in tried or url in journal.known

    while len(tried) < limit and not is_late() and frontier.likeliest(excluded):
        try:
            async with context.walking() as walker:
                for _ in range(min(_CONTEXT_LINKS, limit - len(tried))):
                    found = frontier.likeliest(excluded)
                    if found is None or is_late():
                        break
                    tried.add(found[0])
                    await walker.do(Act("open", value=found[0]))
                    journal.recorded(walker.take_requests())
                    journal.known.add_page(found[0])
                    await add_candidates(context, frontier, walker, found[1])
                    journal.count_opened(found[0], len(frontier))
                    context.recording.check()
                with suppress(TimeoutError):
                    await asyncio.wait_for(context.recording.idle(), _DRAIN_SECONDS)
        except InfraError as error:  # a page that the browser cannot load; continue with the others
            journal.report.faults.append(f"opening links: {error}")
            if not context.browser.is_connected():
                return


async def add_candidates(
    context: ExplorationContext, frontier: ExploreFrontier, walker: Walker, weight: float
) -> None:
    """Pass the weight of a page on to the URLs that it leads to, to be opened if they are not entered."""
    if not context.scope.contains(page_address(walker.page.url)):
        return
    options = context.options
    candidates = [
        each.url
        for each in await find_candidates(walker.page, options.values)
        if context.scope.contains(each.url) and not options.avoid.forbids(each.description, each.url)
    ]
    for url in candidates:
        frontier.note(url, weight * DAMPING / len(candidates))
