"""Where a page leads by address: its links, and what its GET forms ask for when they are sent.

Who opens a page only to have it recorded does not try what is on it. But what a link leads to, and what a
form that is sent by GET asks for with one field filled or one option chosen, is known without trying it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from playwright.async_api import Page

from stillweb.browser.probe import FrameGone, Probe
from stillweb.errors import InfraError
from stillweb.record.behaviours import FRAME_PATIENCE
from stillweb.record.exploreplan import OPTIONS, SENT
from stillweb.record.explorevalues import Values
from stillweb.record.scope import LEADS_TO, page_url

__all__ = ["GetForm", "Input", "Lead", "asked_by", "leads_of"]

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
            probe = await Probe.of(page)
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
