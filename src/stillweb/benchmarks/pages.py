"""Pages of a recording as a reader sees them: links, facts, tables, listings, forms. Pure.

`read_page` parses one HTML document with Lexbor. It keeps what a task can be about and drops what no reader
sees: scripts, templates, hidden elements. Texts have collapsed white space.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from stillweb.record.harvest.tree import parse_tree
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

PRICE = re.compile(r"(?P<before>[£$€])\s?(?P<number>\d[\d,]*(?:\.\d\d)?)|(?P<after>\d[\d.]*,\d\d)\s?€")
_INVISIBLE = "script, style, noscript, template, [hidden], [aria-hidden=true], svg, head > *:not(title)"
_HIDDEN_STYLE = re.compile(r"display:\s*none|visibility:\s*hidden")
_PERMALINK = re.compile(r"[¶🔗\ue000-\uf8ff\u200b\ufeff]+|(?<!\S)[#§]+(?!\S)|[#§]+$")
_SECTION_MARK = re.compile(r"\s*\[([^\[\]]{1,30})\]$")  # "[edit]" after a heading
_CARDS = "article, li, tr, [class*=product], [class*=card], [class*=item]"
_NOWHERE = re.compile(r"#|javascript:|$", re.IGNORECASE)
_NAMED_MENU = ("aria-controls", "data-target", "data-bs-target", "href")
_SENT = {"submit": "button", "image": "button"}
_ROLES = {
    "text": "textbox",
    "email": "textbox",
    "tel": "textbox",
    "url": "textbox",
    "search": "searchbox",
    "number": "spinbutton",
    "textarea": "textbox",
    "select": "combobox",
    "checkbox": "checkbox",
    "radio": "radio",
}
_INPUTS = "input, select, textarea, button"
_NEXT = re.compile(r"next( page)?\W*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SORT_MARKS = " ▲▼△▽↑↓⇅↕"  # of the column that a table is sorted by
ENTRY = 9
_LONGEST = 400  # characters of a text that is kept
_LONGEST_LABEL = 40


@dataclass(frozen=True, slots=True)
class SiteOpener:
    """A control that probably opens a menu: role, accessible name, and number among those of that name.

    Attributes:
        outer: the control that opens the menu with this control.
    """

    role: str
    name: str
    number: int = 0
    outer: SiteOpener | None = None


@dataclass(frozen=True, slots=True)
class SiteLink:
    """A link: URL without fragment, accessible name, and its number among the links of that name.

    Attributes:
        title: name of the link if styles hide its text, "" without another one.
        within: whether the link leads to a place within its page, by a fragment.
        opener: control that opens the menu with the link, if the link is in one.
    """

    url: str
    name: str
    number: int = 0
    title: str = ""
    within: bool = False
    opener: SiteOpener | None = None


@dataclass(frozen=True, slots=True)
class SiteFact:
    """A value that a page gives for an attribute of a subject.

    Attributes:
        shape: "pair" (label and value), "cell" (table cell) or "price" (of a listed item).
        context: name of the table of a cell.
    """

    subject: str
    attribute: str
    value: str
    shape: str
    context: str = ""


@dataclass(frozen=True, slots=True)
class SiteTable:
    """A table with a header row; `sorters` has the URL behind each column's header, "" without a link."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sorters: tuple[str, ...] = ()

    @property
    def key(self) -> int | None:
        """The first column whose entries are words and differ from each other; None without one."""
        for index in range(len(self.columns)):
            keys = [fold(row[index]) for row in self.rows if row[index]]
            if len(keys) > 1 and len(set(keys)) == len(keys) and all(_WORD.search(key) for key in keys):
                return index
        return None


@dataclass(frozen=True, slots=True)
class SiteItem:
    """An entry of a list with a price, such as a product."""

    name: str
    url: str
    price: str


@dataclass(frozen=True, slots=True)
class SiteControl:
    """A field or button of a form.

    Attributes:
        role, label: accessible role and name; the label is "" if the page gives none.
        name, value: as the form sends them.
        kind: type of the control; "hidden", "select" and "textarea" included.
        options: (value, label) of a drop-down list.
    """

    role: str
    label: str
    name: str
    kind: str
    value: str = ""
    required: bool = False
    checked: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The label as a sentence quotes it: without a colon or the mark of required fields at its end."""
        return self.label.rstrip(" :*") or self.label


@dataclass(frozen=True, slots=True)
class SiteForm:
    """A form: absolute action without fragment, method in capitals, controls in order.

    Attributes:
        item: name of the listed item that the form belongs to.
        number: number of its first button among the page's buttons of the same name.
    """

    action: str
    method: str
    controls: tuple[SiteControl, ...]
    item: str = ""
    number: int = 0

    @property
    def button(self) -> SiteControl | None:
        """The first button that sends the form and has a name."""
        return next((each for each in self.controls if each.kind == "submit" and each.label), None)


@dataclass(frozen=True, slots=True)
class SitePage:
    """A recorded page.

    Attributes:
        subject: what the page is about: its only main heading, or its title.
        headings: (level, text) in order; `ENTRY` is the level of names of other pages in a list.
        parted: numbers of the headings after a block with several, beside which the page may show them.
        content: digest of the text; pages with the same text are one page with several URLs.
    """

    url: str
    title: str
    subject: str
    headings: tuple[tuple[int, str], ...] = ()
    parted: frozenset[int] = frozenset()
    links: tuple[SiteLink, ...] = ()
    facts: tuple[SiteFact, ...] = ()
    tables: tuple[SiteTable, ...] = ()
    items: tuple[SiteItem, ...] = ()
    forms: tuple[SiteForm, ...] = ()
    paginated: bool = False
    text: str = ""
    content: str = ""


def fold(text: str) -> str:
    """Return a text without white space, icon characters and case, as accessible names are compared."""
    return "".join(text.split()).translate(ICONS).casefold()


ICONS = dict.fromkeys([*range(0xE000, 0xF900), 0x200B, 0x200C, 0x200D, 0xFEFF, 0xAD])


def read_page(url: str, html: str) -> SitePage:
    """Return what a document shows to a reader; nothing if it would take too long to parse."""
    tree = parse_tree(html)
    if tree is None:
        return SitePage(url=url, title="", subject="")
    for node in tree.css(_INVISIBLE):
        node.decompose()
    for node in tree.css("[style]"):
        if _HIDDEN_STYLE.search(_attribute(node, "style")):
            node.decompose()
    title = _text(tree.css_first("title"))
    nodes = [node for node in tree.css("h1, h2, h3, h4, h5, h6") if _heading(node)]
    headings = tuple(_headings(nodes, url))
    main = [text for level, text in headings if level == 1]
    subject = main[0] if len(main) == 1 else title
    tables = tuple(_tables(tree, url, subject))
    items = tuple(_items(tree, url))
    facts = [*_pairs(tree, subject), *_cells(tables), *_prices(items)]
    text = " ".join(tree.body.text(deep=True, separator=" ").split()) if tree.body else ""
    return SitePage(
        url=url,
        title=title,
        subject=subject,
        headings=headings,
        parted=frozenset(_parted(nodes)),
        links=tuple(_links(tree, url)),
        facts=tuple(dict.fromkeys(facts)),
        tables=tables,
        items=items,
        forms=tuple(_forms(tree, url, {item.url: item.name for item in items})),
        paginated=_is_paginated(tree, url),
        text=text,
        content=sha256(fold(text).encode("utf-8", "replace")).hexdigest(),
    )


def _text(node: Any) -> str:
    return _PERMALINK.sub("", " ".join(node.text(deep=True)[:_LONGEST].split())).strip() if node else ""


def _attribute(node: Any, name: str) -> str:
    return node.attributes.get(name) or ""


@lru_cache(maxsize=1024)  # several parts of a page read the same links
def _joined(base: str, reference: str) -> str:
    try:
        joined = urljoin(base, reference.strip())
        return wire_url(joined).partition("#")[0] if joined.startswith("http") else ""
    except ValueError:
        return ""


def _headings(nodes: Sequence[Any], base: str) -> Iterator[tuple[int, str]]:
    for node in nodes:
        level = int(str(node.tag)[1])
        yield (ENTRY if level > 1 and _is_entry(node, base) else level), _heading(node)


def _parted(nodes: Sequence[Any]) -> Iterator[int]:
    """Yield the numbers of headings outside of a block that has the heading before and another one."""
    around = [[each.mem_id for each in _ancestors(node)] for node in nodes]
    counts = Counter(block for blocks in around for block in blocks)
    for number, (before, after) in enumerate(pairwise(around), 1):
        if any(counts[block] > 1 for block in before if block not in after):
            yield number


def _ancestors(node: Any) -> Iterator[Any]:
    while (node := node.parent) is not None:
        yield node


def _is_entry(heading: Any, base: str) -> bool:
    """Return whether a heading is the name of another page in a list of pages, not of a section."""
    links = [*heading.css("a[href]"), *([heading.parent] if heading.parent.tag == "a" else [])]
    whole = [link for link in links if _text(link) == _text(heading)]
    return any(_joined(base, _attribute(link, "href")) not in ("", base) for link in whole)


def _heading(node: Any) -> str:
    """Return a heading's text without small print, or a link in brackets such as "[edit]", at its end."""
    text = _text(node)
    if small := node.css_first("small"):
        text = text.removesuffix(_text(small)).rstrip() or text
    mark = _SECTION_MARK.search(text)
    if mark and any(_text(link) and _text(link) in mark[1] for link in node.css("a[href]")):
        return text[: mark.start()]
    return text


# --- links -----------------------------------------------------------------------------------------


def _links(tree: LexborHTMLParser, base: str) -> Iterator[SiteLink]:
    menus = _Menus(tree)
    numbers: Counter[str] = Counter()
    for node in tree.css("a[href]"):
        name = _link_name(node)
        if not name:
            continue
        number = numbers[fold(name)]
        numbers[fold(name)] += 1
        if _attribute(node, "target") not in ("", "_self"):
            continue
        reference = _attribute(node, "href")
        if not reference.startswith("#") and (url := _joined(base, reference)):
            title = " ".join(_attribute(node, "title").split())
            title = "" if fold(title) == fold(name) else title
            yield SiteLink(url, name, number, title, within="#" in reference, opener=menus.opener(node))


class _Menus:
    """Controls that open menus: buttons, and links that lead nowhere.

    A control opens the element that it names in an attribute, or the next list or block beside it. An element
    with the main heading is no menu: a link to it skips navigation. Styles, which show menus, are not read.
    """

    def __init__(self, tree: LexborHTMLParser) -> None:
        numbers: Counter[tuple[str, str]] = Counter()
        self._controls: dict[int, tuple[str, str, int]] = {}
        self._of_element: dict[str, Any] = {}
        for node in tree.css("a[href], button"):
            role = _attribute(node, "role") or ("button" if node.tag == "button" else "link")
            name = _link_name(node)
            number = numbers[role, fold(name)]
            numbers[role, fold(name)] += 1
            if not name or (node.tag == "a" and not _NOWHERE.match(_attribute(node, "href"))):
                continue
            self._controls[node.mem_id] = (role, name, number)
            for attribute in _NAMED_MENU:
                if identifier := _attribute(node, attribute).removeprefix("#"):
                    self._of_element.setdefault(identifier, node)

    def opener(self, node: Any) -> SiteOpener | None:
        """Return the control of the innermost menu around an element."""
        above = node.parent
        while above is not None and above.tag not in ("body", "html"):
            control = self._of_element.get(_attribute(above, "id")) or self._before(above)
            if control is not None and control.mem_id != node.mem_id and _opens(control, above):
                return SiteOpener(*self._controls[control.mem_id], outer=self.opener(control))
            above = above.parent
        return None

    def _before(self, node: Any) -> Any:
        before = node.prev if node.tag in ("ul", "ol", "div", "nav") else None
        while before is not None and before.tag.startswith("-"):  # text or comment
            before = before.prev
        return before if before is not None and before.mem_id in self._controls else None


def _opens(control: Any, element: Any) -> bool:
    """Return whether an element can be a menu: it has neither its control, as a whole page has, nor an h1."""
    above = control.parent
    while above is not None and above.mem_id != element.mem_id:
        above = above.parent
    return above is None and not element.css_first("h1")


def _link_name(node: Any) -> str:
    if label := _attribute(node, "aria-label"):
        return " ".join(label.split())
    if text := " ".join(node.text(deep=True).split()):
        return text
    return " ".join(_attribute(each, "alt") for each in node.css("img")).strip()


def _is_paginated(tree: LexborHTMLParser, url: str) -> bool:
    """Return whether a page is a part of a list; chapters that name their next chapter are none."""
    if tree.css_first(".pagination a[href], .pager a[href], [class*=paginat] a[href]"):
        return True
    for node in tree.css("a[href], link[rel=next]"):
        if _attribute(node, "rel") == "next" or _NEXT.fullmatch(_text(node)):
            target = _joined(url, _attribute(node, "href"))
            if same_path(target, url) or re.search(r"\bpage\b", target):
                return True
    return False


# --- facts -----------------------------------------------------------------------------------------


def _pairs(tree: LexborHTMLParser, subject: str) -> Iterator[SiteFact]:
    """Yield the facts of two-column tables with row headers, of definition lists, and of "Label: value"."""
    for row in tree.css("tr"):
        cells = [node for node in row.iter() if node.tag in ("td", "th")]
        named = [cell.tag for cell in cells] == ["th", "td"] and _label(_text(cells[0]))
        if named and not cells[1].css_first(_INPUTS):
            yield SiteFact(subject, _label(_text(cells[0])), _text(cells[1]), "pair")
    for listed in tree.css("dl"):
        parts = [node for node in listed.iter() if node.tag in ("dt", "dd")]
        for term, value, after in zip(parts, parts[1:], [*parts[2:], None], strict=False):
            single = after is None or after.tag == "dt"
            named = (term.tag, value.tag) == ("dt", "dd") and single and _label(_text(term))
            if named and not value.css_first(_INPUTS):
                yield SiteFact(subject, _label(_text(term)), _text(value), "pair")
    for node in tree.css("div, p, li, span, td"):
        if labelled := _labelled(node):
            yield SiteFact(subject, *labelled, "pair")


def _labelled(node: Any) -> tuple[str, str] | None:
    """Return label and value of an element with "Label: value", the label in an element of its own."""
    children = list(node.iter())
    if not 1 <= len(children) <= 2 or children[0].tag == "a" or any(children[0].iter()):
        return None
    label = _label(_text(children[0]))
    if not 0 < len(label) <= _LONGEST_LABEL or node.css_first(_INPUTS):
        return None
    match = re.fullmatch(rf"{re.escape(label)}\s?:\s*(.+)", _text(node))
    return (label, match[1]) if match else None


def _label(text: str) -> str:
    return text.rstrip(" :").strip()


def _tables(tree: LexborHTMLParser, base: str, subject: str) -> Iterator[SiteTable]:
    for node in tree.css("table"):
        if len(node.css("table")) > 1:
            continue  # a table of the layout; `css` returns the node itself, too
        rows = [[cell for cell in row.iter() if cell.tag in ("td", "th")] for row in node.css("tr")]
        rows = [row for row in rows if row]
        if len(rows) < 3 or len(rows[0]) < 2 or any(cell.tag == "td" for cell in rows[0]):
            continue
        if any(_attribute(cell, "colspan") or _attribute(cell, "rowspan") for row in rows for cell in row):
            continue
        body = [tuple(map(_cell_text, row)) for row in rows[1:] if len(row) == len(rows[0])]
        if len(body) == len(rows) - 1:
            heads = [cell.css_first("a[href]") for cell in rows[0]]
            sorters = tuple(_joined(base, _attribute(head, "href")) if head else "" for head in heads)
            columns = tuple(_label(_text(cell)).strip(_SORT_MARKS) for cell in rows[0])
            name = _table_name(node)
            name = name if re.match(r"[^\W\d_]", name) else subject  # not "44 rows"
            yield SiteTable(name, columns, tuple(body), sorters)


def _cell_text(cell: Any) -> str:
    """Return a cell's text; "" if it has several parts, such as a name with a badge, which read as one."""
    return "" if cell.css_first("br, small, div + *, p + p, [class*=badge], [class*=label]") else _text(cell)


def _table_name(node: Any) -> str:
    """Return a table's caption, or the heading before it, "" if it has neither."""
    if caption := node.css_first("caption"):
        return _text(caption)
    while node is not None:
        before = node.prev
        while before is not None:
            if before.tag in ("h1", "h2", "h3", "h4"):
                return _heading(before)
            if before.tag in ("div", "header") and not before.css_first("p, ul, ol, table, form"):
                headings = before.css("h1, h2, h3, h4")  # a heading with its buttons
                if len(headings) == 1:
                    return _heading(headings[0])
            before = before.prev
        node = node.parent
    return ""


def _cells(tables: tuple[SiteTable, ...]) -> Iterator[SiteFact]:
    """Yield the cells of tables that have a column which names the rows."""
    for table in tables:
        key = table.key
        named = [column for column in table.columns if column]
        if key is None or len(set(named)) < len(named):
            continue
        for row in table.rows:
            for column, value in zip(table.columns, row, strict=True):
                if column and column != table.columns[key] and row[key]:
                    yield SiteFact(row[key], column, value, "cell", table.name)


# --- listings --------------------------------------------------------------------------------------


def _items(tree: LexborHTMLParser, base: str) -> list[SiteItem]:
    """Return listed items with a name, a link and exactly one price, the innermost element of each."""
    found: dict[str, SiteItem] = {}
    for node in tree.css(_CARDS):
        text = " ".join(node.text(deep=True, separator=" ").split())
        prices = {match[0] for match in PRICE.finditer(text)}
        if len(prices) != 1 or len(text) > 4 * _LONGEST:
            continue
        links = [each for each in node.css("a[href]") if _item_name(each)]
        targets = {_joined(base, _attribute(each, "href")) for each in links}
        if len(targets) != 1 or not (url := targets.pop()):
            continue
        name = max(map(_item_name, links), key=len)
        found[url] = SiteItem(name, url, prices.pop())
    return list(found.values())


def _item_name(link: Any) -> str:
    text = " ".join(link.text(deep=True).split())
    if text.endswith(("...", "…")):
        return " ".join(_attribute(link, "title").split())
    return "" if PRICE.search(text) else text


def _prices(items: tuple[SiteItem, ...]) -> Iterator[SiteFact]:
    for item in items:
        yield SiteFact(item.name, "price", item.price, "price")


# --- forms -----------------------------------------------------------------------------------------


def _forms(tree: LexborHTMLParser, base: str, items: Mapping[str, str]) -> Iterator[SiteForm]:
    numbers: Counter[str] = Counter()
    for node in tree.css("form"):
        action = _joined(base, _attribute(node, "action") or base)
        controls = tuple(each for each in (_control(tree, c) for c in node.css(_FIELDS)) if each)
        form = SiteForm(
            action, (_attribute(node, "method") or "get").upper(), controls, _item_of(node, base, items)
        )
        if form.button:
            form = replace(form, number=numbers[fold(form.button.label)])
        numbers.update(fold(each.label) for each in controls if each.kind in ("submit", "button"))
        if action:
            yield form


def _item_of(node: Any, base: str, items: Mapping[str, str]) -> str:
    """Return the name of the item in the innermost element around a form that links one item."""
    above = node.parent
    while above is not None and above.tag != "body":
        named = {items.get(_joined(base, _attribute(a, "href")), "") for a in above.css("a[href]")} - {""}
        if named:
            return named.pop() if len(named) == 1 else ""
        above = above.parent
    return ""


_FIELDS = "input:not([disabled]), button:not([disabled]), select:not([disabled]), textarea:not([disabled])"


def _control(tree: LexborHTMLParser, node: Any) -> SiteControl | None:
    kind = node.tag if node.tag in ("select", "textarea") else _attribute(node, "type").lower()
    kind = kind or ("submit" if node.tag == "button" else "text")
    value = _attribute(node, "value")
    options: tuple[tuple[str, str], ...] = ()
    if kind == "select":
        options = tuple((_option(each), _text(each)) for each in node.css("option"))
        chosen = next((each for each in node.css("option") if "selected" in each.attributes), None)
        value = _option(chosen) if chosen else options[0][0] if options else ""
    elif kind == "textarea":
        value = node.text(deep=True)
    return SiteControl(
        role=_SENT.get(kind) or _ROLES.get(kind, ""),
        label=_control_name(tree, node, kind),
        name=_attribute(node, "name"),
        kind=kind,
        value=value,
        required="required" in node.attributes,
        checked="checked" in node.attributes,
        options=options,
    )


def _option(node: Any) -> str:
    value = node.attributes.get("value")
    return _text(node) if value is None else str(value)


def _control_name(tree: LexborHTMLParser, node: Any, kind: str) -> str:
    """Return the accessible name, as far as attributes and labels give it (accname 1.2 §4.3)."""
    if label := _attribute(node, "aria-label"):
        return " ".join(label.split())
    if kind in _SENT or node.tag == "button":
        return " ".join((node.text(deep=True).strip() or _attribute(node, "value")).split())
    identifier = _attribute(node, "id")
    if identifier and re.fullmatch(r"[\w-]+", identifier):
        labels = [_text(each) for each in tree.css(f'label[for="{identifier}"]')]
        if any(labels):
            return " ".join(filter(None, labels))
    above = node.parent
    while above is not None and above.tag != "form":
        if above.tag == "label":
            return _text(above)
        above = above.parent
    return " ".join((_attribute(node, "title") or _attribute(node, "placeholder")).split())


def same_path(url: str, other: str) -> bool:
    """Return whether two URLs differ in their query only."""
    one, two = urlsplit(url), urlsplit(other)
    return (one.netloc, one.path) == (two.netloc, two.path)
