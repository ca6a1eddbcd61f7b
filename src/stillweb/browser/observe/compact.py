"""A page as compact text: meaningful names, one line per element, text in between.

    # Basket
    [cart > coupon_field] textbox "Coupon" = "SPRING", required
    [cart > apply_button] button "Apply"

The format is the same for every site. A name consists of the element's context and its own label and role, so
it does not depend on the rest of the page. The context is landmarks, forms, dialogs, and the headings of list
and table entries. Duplicates are numbered, and each keeps its number. Actions accept a name in place of a bid
(`Bids.find`).
"""

from __future__ import annotations

import re
import unicodedata

from playwright.async_api import Page

from stillweb.browser.observe.bids import Bids
from stillweb.browser.observe.survey import Survey, SurveyItem

# Suffix of an element's name after its label; other roles are their own suffix.
_KINDS = {
    "textbox": "field", "searchbox": "field", "spinbutton": "field", "combobox": "list", "listbox": "list",
    "Date": "date", "DateTime": "date", "InputTime": "time", "ColorWell": "color", "menuitem": "item",
    "menuitemcheckbox": "item", "menuitemradio": "item", "treeitem": "item", "DisclosureTriangle": "toggle",
    "generic": "item", "image": "image", "gridcell": "cell", "Iframe": "frame",
}  # fmt: skip
_SCOPES = {
    "navigation": "nav", "form": "form", "dialog": "dialog", "alertdialog": "dialog", "search": "search",
    "region": "", "banner": "header", "contentinfo": "footer", "complementary": "aside", "toolbar": "toolbar",
    "menu": "menu", "tablist": "tabs", "radiogroup": "", "group": "", "table": "", "grid": "", "main": "",
}  # fmt: skip
_ENTRIES = frozenset(("listitem", "row", "article", "treeitem"))  # repeated; the heading identifies each one
_FIELDS = frozenset(("button", "input", "select", "textarea", "option", "summary"))  # on lines of their own
_DEPTH = 2  # scopes in a name
_LONG = 32  # characters of a segment
_NAME = 80  # characters of a label
_TEXT = 300  # characters of a text
_PIECES = 40  # elements and texts that are searched for the words in an element
_WORDS = re.compile(r"[^\w]+")
_REPORTED = (
    *("focused", "disabled", "required", "readonly"),
    *("checked", "selected", "pressed", "expanded", "current"),
)


def compact_text(page: Page, bids: Bids, survey: Survey) -> str:
    """Return a page as compact text, and register its names for `Bids.find`."""
    writer = _CompactWriter(page, bids, survey)
    for index, entering in survey.walk():
        item = survey.items[index]
        if not item.tag:
            writer.add(index, item, entering)
            continue
        flows = item.inline and item.tag not in _FIELDS
        if not flows:
            writer.flush()
        if entering and index not in writer.silent:
            writer.add_element(index, item)
            if item.acts and not flows:
                writer.flush()
    writer.flush()
    return "\n".join(writer.lines)


class _CompactWriter:
    """Finished lines, and the current line."""

    def __init__(self, page: Page, bids: Bids, survey: Survey) -> None:
        self.lines: list[str] = []
        self._page, self._bids, self._survey = page, bids, survey
        self._entries = _entry_labels(survey)
        self._words = {i: _words_in(survey, i) for i, item in enumerate(survey.items) if _by_words(item)}
        self.silent = _repeated_texts(survey, self._words)
        self._line: list[str] = []

    def add(self, index: int, item: SurveyItem, entering: bool) -> None:
        if entering and index not in self.silent:
            self._line.append(_cut_text(item.text))

    def add_element(self, index: int, item: SurveyItem) -> None:
        if item.acts:
            label = item.name or self._words.get(index, "")
            name = self._bids.name(self._page, item.bid, _base(self._survey, index, label, self._entries))
            self._line.append(f" [{name}] {_described(item, label if len(label) <= _NAME else item.name)} ")
        elif item.role == "heading" and item.name:
            self.lines.append("#" * int(item.states.get("level", 2)) + " " + _cut(item.name, _TEXT))
        elif item.role == "image" and item.name:
            self._line.append(f" ({_cut(item.name, _NAME)}) ")

    def flush(self) -> None:
        for line in "".join(self._line).split("\n"):
            if any(sign.isalnum() for sign in line):
                self.lines.append(" ".join(line.split()))
        self._line.clear()


def _by_words(item: SurveyItem) -> bool:
    """Whether the words inside name an interactive element that has no name."""
    return item.acts and not item.name and item.role == "generic"


def _repeated_texts(survey: Survey, words: dict[int, str]) -> set[int]:
    """Return the items whose text already appears in the line of an enclosing or neighbouring element."""
    silent: set[int] = set()
    named = {item.name for item in survey.acting() if item.name}
    for index, item in enumerate(survey.items):
        above = survey.items[item.parent] if item.parent >= 0 else None
        if item.tag == "label" and _words_in(survey, index) in named:
            silent.add(index)  # repeats the name of its field
        if above is None or item.acts or item.role == "heading":
            continue
        repeated = bool(above.name) and (above.acts or above.role == "heading")
        repeated = repeated or 0 < len(words.get(item.parent, "")) <= _NAME
        if item.parent in silent or repeated:
            silent.add(index)
    return silent


def _described(item: SurveyItem, label: str) -> str:
    line = item.role
    if label:
        line += f' "{_cut(label, _NAME)}"'
    if item.value and item.role != "option":
        line += f' = "{_cut(item.value, _NAME)}"'
    for state in _REPORTED:
        if state in item.states:
            line += f", {state}" if item.states[state] else f", not {state}"
    return line


def _base(survey: Survey, index: int, label: str, labels: dict[int, str]) -> str:
    """Return the base of an element's name: its enclosing scopes, and its own label and role."""
    item = survey.items[index]
    scopes: list[str] = []
    above = item.parent
    while above >= 0 and len(scopes) < _DEPTH:
        scope = _scope(survey.items[above], labels.get(above, ""))
        if scope and scope not in scopes and scope != _slug(label):
            scopes.append(scope)
        above = survey.items[above].parent
    return " > ".join([*reversed(scopes), _own(item, label)])


def _scope(item: SurveyItem, label: str) -> str:
    if item.acts and item.role in ("combobox", "listbox"):
        return _slug(item.name)
    if item.role in _ENTRIES:
        return _slug(item.attributes.get("aria-label", "") or label)
    if item.role not in _SCOPES and item.tag != "iframe":
        return ""
    name = item.name or item.attributes.get("id", "") or item.attributes.get("name", "")
    return _slug(name) or _SCOPES.get(item.role, "")


def _own(item: SurveyItem, label: str) -> str:
    kind = _KINDS.get(item.role, item.role.lower())
    if not label:
        attributes = item.attributes
        label = attributes.get("name") or attributes.get("id") or attributes.get("data-testid") or ""
    slug = _slug(label)
    return slug if slug.endswith(f"_{kind}") else f"{slug}_{kind}".strip("_")


def _words_in(survey: Survey, index: int) -> str:
    texts: list[str] = []
    todo = [index]
    while todo and len(texts) < _PIECES:
        here = todo.pop()
        texts.append(survey.items[here].text)
        todo.extend(reversed(survey.children[here]))
    return " ".join("".join(texts).split())


def _entry_labels(survey: Survey) -> dict[int, str]:
    """Return labels of list and table entries: a heading, else a header cell, else a link."""
    found: dict[int, tuple[int, str]] = {}
    for item in survey.items:
        rank = {"heading": 3, "rowheader": 2, "link": 1}.get(item.role, 0)
        if not rank or not item.name:
            continue
        above = item.parent
        while above >= 0 and survey.items[above].role not in _ENTRIES:
            above = survey.items[above].parent
        if above >= 0 and found.get(above, (0, ""))[0] < rank:
            found[above] = (rank, item.name)
    return {index: label for index, (_, label) in found.items()}


def _slug(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    slug = _WORDS.sub("_", folded).strip("_")
    if len(slug) <= _LONG:
        return slug
    cut = slug[:_LONG]
    return (cut.rpartition("_")[0] or cut).strip("_")


def _cut_text(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 1].rstrip() + "… "


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
