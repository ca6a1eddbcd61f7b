"""Open what waits and will not be come to: links, by weight, only to have them recorded.

A state costs a fresh context, a survey of the page and all that is tried there. Where the budget ends, most
of what somebody who clicks about would miss is plain pages, one link away from what was entered: to open them
takes a fraction of that. Nothing has changed the site by then, so they are recorded as a session finds them
that has changed nothing. What they, and states that were entered, lead to by address (`exploreleads`) is
opened in its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.input.walker import Act, Walker
from stillweb.errors import InfraError
from stillweb.record.behaviors.behaviors import FRAME_PATIENCE
from stillweb.record.crawl.scope import LEADS_TO, page_url
from stillweb.record.explore.frontier import KEPT, ExploreFrontier
from stillweb.record.explore.journal import ExplorationJournal
from stillweb.record.explore.options import ExplorationContext
from stillweb.record.explore.plan import OPTIONS, SENT
from stillweb.record.explore.values import Values
from stillweb.urls import wire_url

__all__ = ["GetForm", "Input", "Lead", "asked_by", "leads_of", "note_leads", "open_links"]

_A_FORM = 60  # addresses of one form at most
_TOGGLED = frozenset(("checkbox", "radio"))
_TYPED = frozenset(("text", "search", "number", "email", "tel", "url", "date", "textarea"))
_SENDING = frozenset(("submit", "image"))
_NEVER_SENT = frozenset(("button", "reset", "file"))

# In an isolated world, through open shadow roots.
_LOOK = (
    "(() => {"
    + LEADS_TO
    + """
  const links = [], forms = [];
  const words = (element) =>
    (element.getAttribute("aria-label") || element.textContent || "").trim().slice(0, 120);
  const field = (e) => ({ name: e.name, type: e.type, value: e.value, on: Boolean(e.checked), id: e.id,
    placeholder: e.placeholder || "", required: Boolean(e.required),
    options: e.options ? [...e.options].map((option) => option.value) : [], told: words(e) || e.value });
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


@dataclass(frozen=True, slots=True)
class Lead:
    """An address that a page leads to, and how what leads there is named (`Control.told`)."""

    url: str
    told: str


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a form, as the DOM has it.

    Attributes:
        on: whether it is checked.
        names: by which people who write values may call it, besides its name.
        options: of a list, by their values.
        told: its words, if it sends the form.
    """

    name: str
    type: str
    value: str = ""
    on: bool = False
    required: bool = False
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    told: str = ""


@dataclass(frozen=True, slots=True)
class GetForm:
    """A form that is sent by GET."""

    action: str
    fields: tuple[Input, ...]


async def leads_of(page: Page, values: Values) -> list[Lead]:
    """Return where a page leads, in document order, links first; nothing if it does not answer."""
    found: list[Lead] = []
    with suppress(FrameGone, InfraError, TimeoutError):
        async with asyncio.timeout(FRAME_PATIENCE):
            probe = await PageProbe.of(page)
            told = await probe.evaluate_all(_LOOK, await probe.frames())
            for frame in (each for each in told if each):
                found += [Lead(page_url(url) or "", f'link "{words}"') for url, words in frame["links"]]
                for action, fields in frame["forms"]:
                    form = GetForm(page_url(action) or "", tuple(_input(each) for each in fields))
                    found += asked_by(form, values)
    return [lead for lead in dict.fromkeys(found) if lead.url]


def asked_by(form: GetForm, values: Values) -> list[Lead]:
    """Return what a form asks for: as it is, and with one field another; for each button that sends it."""
    buttons = [each for each in form.fields if each.type in _SENDING]
    # A script sends it without a button, when an option is chosen.
    pressed: list[Input | None] = [*buttons] if buttons else [None]
    if any(each.name for each in buttons):
        pressed.append(None)
    target = form.action.partition("?")[0]
    found = [
        Lead(f"{target}?{_encoded(pairs, button)}", f'button "{button.told}"' if button else "button")
        for pairs in _fillings(form.fields, values)
        for button in pressed
    ]
    return list(dict.fromkeys(found))[:_A_FORM] if target else []


def _fillings(fields: Sequence[Input], values: Values) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs that a form sends."""
    kept = [_as_is(each, values) for each in fields]

    def with_other(at: int, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [pair for number, own in enumerate(kept) for pair in (pairs if number == at else own)]

    yield with_other(-1, [])
    for at, each in enumerate(fields):
        if not each.name:
            continue
        if each.options:
            for option in each.options[:OPTIONS]:
                yield with_other(at, [(each.name, option)])
        elif each.type == "checkbox":
            yield with_other(at, [] if each.on else [(each.name, each.value)])
        elif each.type == "radio" and not each.on:
            yield [pair for number, own in enumerate(kept) for pair in _chosen(fields, number, at, own)]
        elif each.type in _TYPED:
            texts = values.named((each.name, *each.names), each.type)[:SENT]
            for text in texts:
                yield with_other(at, [(each.name, text)])


def _chosen(
    fields: Sequence[Input], number: int, at: int, own: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return what a field sends when another radio button of its group, or itself, is chosen."""
    each, chosen = fields[number], fields[at]
    if each.type != "radio" or each.name != chosen.name:
        return own
    return [(each.name, each.value)] if number == at else []


def _as_is(each: Input, values: Values) -> list[tuple[str, str]]:
    if not each.name or each.type in _NEVER_SENT or each.type in _SENDING:
        return []
    if each.type in _TOGGLED and not each.on:
        return []
    if each.required and not each.value and each.type in _TYPED:
        return [(each.name, values.named((each.name, *each.names), each.type)[0])]
    return [(each.name, each.value)]


def _encoded(pairs: list[tuple[str, str]], button: Input | None) -> str:
    """Return pairs as browsers send them (URL Standard §5.2)."""
    sent = [*pairs, *([(button.name, button.value)] if button and button.name else [])]
    return "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in sent)


def _escaped(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _input(told: Mapping[str, Any]) -> Input:
    names = tuple(told[each] for each in ("id", "placeholder") if told[each])
    own = (told["name"], told["type"], told["value"], told["on"], told["required"])
    return Input(*own, names, tuple(told["options"]), told["told"])


_A_CONTEXT = 20  # links; then a fresh one, since what a site remembers of its visitors grows
_LAST_ANSWERS = 5.0  # seconds for answers under way when a context is left


async def open_links(
    grounds: ExplorationContext,
    book: ExplorationJournal,
    frontier: ExploreFrontier,
    limit: int,
    is_late: Callable[[], bool],
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


async def note_leads(
    grounds: ExplorationContext, frontier: ExploreFrontier, walker: Walker, weight: float
) -> None:
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
