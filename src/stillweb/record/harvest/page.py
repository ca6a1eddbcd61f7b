"""References of an HTML document or a style sheet: links, forms, resources. Pure.

Parsing is Lexbor's (HTML Standard §13), URL resolution Ada's (URL Standard), so that both agree with
browsers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stillweb.matching.parts import Where, is_csrf
from stillweb.record.crawl.scope import page_url
from stillweb.record.harvest.tree import parse_tree
from stillweb.record.htmlforms import HtmlForm, Input

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

_WORD = re.compile(r"[^\W_]{3,30}")
_PHRASE = 40  # characters of a name that a visitor types whole
_CSS_URL = re.compile(r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^)"'\s]*))\s*\)""", re.IGNORECASE)
_CSS_IMPORT = re.compile(r"""@import\s+(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_REFRESH = re.compile(r"^\s*[\d.]*\s*[;,]?\s*(?:url\s*=\s*)?[\"']?([^\"']+)", re.IGNORECASE)
_FIELDS = "input:not([disabled]), button:not([disabled]), select:not([disabled]), textarea:not([disabled])"
_DISABLED = ", ".join(
    f"fieldset[disabled] > :not(legend) {tag}, fieldset[disabled] > {tag}"
    for tag in ("input", "button", "select", "textarea")
)
_ELEMENTS = "a[href], area[href], input:not([type=hidden]), button, select, textarea, summary, [role=button]"
_TITLES = frozenset(("title", "h1", "h2", "h3", "h4", "td", "th", "dt", "option"))
_NAMED = ", ".join((*sorted(_TITLES), "li", "label", "button", "a[aria-label]"))  # other links are known
_NAMES = ("aria-label", "alt", "placeholder", "title")
_NAMING = ", ".join(f"[{name}]" for name in _NAMES)
# Attributes that name a resource, by element, with the request destination that browsers send (Fetch §3.2.7).
_SOURCES = {
    "script": (("src", "script"),),
    "img": (("src", "image"), ("srcset", "image")),
    "source": (("src", "video"), ("srcset", "image")),
    "video": (("src", "video"), ("poster", "image")),
    "audio": (("src", "audio"),),
    "track": (("src", "track"),),
    "iframe": (("src", "iframe"),),
    "frame": (("src", "frame"),),
    "embed": (("src", "embed"),),
    "object": (("data", "object"),),
    "input": (("src", "image"),),
    "image": (("href", "image"), ("xlink:href", "image")),
    "body": (("background", "image"),),
}
_REFERRING = ", ".join(
    ("a[href]", "area[href]", "meta[http-equiv]", "link[rel][href]", "style", "[style]", *_SOURCES)
)
_LINK_RELS = {
    "stylesheet": "style",
    "icon": "image",
    "apple-touch-icon": "image",
    "manifest": "manifest",
    "modulepreload": "script",
}
# URLs that the URL Standard and `wire_url` spell alike, which takes half of the time to find out.
_ON_THE_WIRE = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]+)?/[\x21\x23-\x3b\x3d\x3f-\x7e]*")
_SCRIPTED = ("data-", "hx-", "up-")  # attributes that scripts read
_TABLE_PARTS = frozenset(("table", "thead", "tbody", "tfoot", "tr"))
_DATA_IMAGE = re.compile(r"\.(?:avif|gif|jpe?g|png|svg|webp)(?:\?|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HtmlLink:
    """Where a link leads, in wire spelling, and its text.

    Attributes:
        marks: classes and names of data attributes, by which scripts find the links that they load.
    """

    url: str
    text: str
    marks: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Resource:
    """A URL that a browser loads with the page, and its request destination."""

    url: str
    destination: str


@dataclass(slots=True)
class HtmlPage:
    """References of a document, in document order, each once.

    Attributes:
        words: of all its text, and short names of its elements.
        shown: those of titles, headings, table cells and options.
        elements: number of elements that a visitor can act on.
        unread: whether the document was too costly to parse.
    """

    links: list[HtmlLink] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    forms: list[HtmlForm] = field(default_factory=list)
    posts: list[HtmlForm] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    elements: int = 0
    unread: bool = False


def parse_page(url: str, html: bytes) -> HtmlPage:
    """Return what a document refers to; nothing, with `unread` set, if it would take too long to parse.

    Args:
        html: decoded body; an encoding other than UTF-8 is not honoured in query strings.
    """
    tree = parse_tree(html.decode("utf-8", "replace"))
    if tree is None:
        return HtmlPage(unread=True)
    base = _base(tree, url)
    page = HtmlPage()
    found = _References(base)
    for node in tree.css(_REFERRING):
        found.take(node)
    page.links = list(dict.fromkeys([*found.links, *found.refreshes]))
    page.resources = list(dict.fromkeys(found.resources()))
    for method, form in _forms(tree, base):
        (page.posts if method == "post" else page.forms).append(form)
    page.posts += _forms_of_links(found.sent, page.posts, tree)
    page.elements = len(tree.css(_ELEMENTS))
    for node in tree.css("script, style, noscript, template"):
        node.decompose()
    page.words, page.shown = _words(tree, {link.text for link in page.links})
    return page


def _words(tree: LexborHTMLParser, links: set[str]) -> tuple[set[str], set[str]]:
    """Return the words that the accessibility tree of a page shows, with the short names of its elements.

    The second set holds those of elements that name what the page is about.
    """
    words: set[str] = set()
    shown: set[str] = set()
    texts = {tree.body.text(deep=True, separator=" ")} if tree.body else set()
    named = {(text, False) for text in links}  # pages repeat most of their names
    for node in tree.css(_NAMED):
        named.add((node.text(deep=True)[:400], node.tag in _TITLES))
    for node in tree.css(_NAMING):
        attributes = node.attributes
        texts.update(attributes.get(name) or "" for name in _NAMES)
    for text, is_title in named:
        name = " ".join(text.split())
        if " " in name and len(name) <= _PHRASE:
            words.add(name)
            shown |= {name} if is_title else set()
        if is_title:
            shown.update(_WORD.findall(name))
    if title := tree.css_first("title"):
        texts.add(title.text(deep=True))
    for text in texts:
        words.update(_WORD.findall(text))
    return words, shown


def css_urls(url: str, css: str) -> list[Resource]:
    """Return what a style sheet imports and refers to."""
    found = [Resource(_joined(url, a or b), "style") for a, b in _CSS_IMPORT.findall(css)]
    for parts in _CSS_URL.findall(css):
        target = _joined(url, next((part for part in parts if part), ""))
        font = re.search(r"\.(?:woff2?|ttf|otf|eot)(?:[?#]|$)", target, re.IGNORECASE)
        found.append(Resource(target, "font" if font else "style" if ".css" in target else "image"))
    return [each for each in dict.fromkeys(found) if each.url]


def _base(tree: LexborHTMLParser, url: str) -> str:
    node = tree.css_first("base[href]")
    return _absolute(url, _attribute(node, "href")) or url if node else url


def _absolute(base: str, reference: str) -> str:
    """Return a reference as an absolute URL, "" if it is not one."""
    import ada_url  # of the extra stillweb[record]

    try:
        return ada_url.join_url(base, reference)
    except ValueError:
        return ""


def _joined(base: str, reference: str) -> str:
    """Return the http(s) URL in wire spelling that a reference leads to, "" if there is none."""
    # A hash route is another page to a browser, and the same document to a server.
    return _joined_reference(base, reference.partition("#")[0]) if reference else ""


@lru_cache(maxsize=1 << 16)  # pages of a site repeat most of their links
def _joined_reference(base: str, reference: str) -> str:
    url = _absolute(base, reference or base).partition("#")[0]
    if _ON_THE_WIRE.fullmatch(url):
        return url
    return page_url(url) or ""


def _attribute(node: Any, name: str) -> str:
    return node.attributes.get(name) or ""


@dataclass(slots=True)
class _References:
    """References in the order in which a page's links and resources are listed.

    One traversal collects all kinds: each costs a third of a millisecond on a long page.
    """

    base: str
    links: list[HtmlLink] = field(default_factory=list)
    refreshes: list[HtmlLink] = field(default_factory=list)
    sent: list[tuple[str, HtmlLink]] = field(default_factory=list)
    _sources: list[tuple[str, str]] = field(default_factory=list)
    _linked: list[tuple[str, str]] = field(default_factory=list)
    _late: list[tuple[str, str]] = field(default_factory=list)
    _styles: list[Resource] = field(default_factory=list)

    def resources(self) -> Iterator[Resource]:
        """Yield the resources."""
        for reference, destination in (*self._sources, *self._linked, *self._late):
            if url := _joined(self.base, reference):
                yield Resource(url, destination)
        yield from self._styles

    def take(self, node: Any) -> None:
        """Take the references of an element."""
        tag, attributes = str(node.tag), node.attributes
        if tag in ("a", "area"):
            self._take_link(node, attributes)
        elif tag == "meta":
            self._take_refresh(attributes)
        elif tag == "link":
            self._take_linked(attributes)
        elif tag == "style":
            self._styles += css_urls(self.base, node.text(deep=True))
        for name, destination in _SOURCES.get(tag, ()):
            for reference in _candidates(attributes.get(name) or "", srcset=name == "srcset"):
                self._sources.append((reference, destination))
        if tag == "img":
            self._late += ((reference, "image") for reference in _late_images(attributes))
        if "url(" in (style := attributes.get("style") or ""):
            self._styles += css_urls(self.base, style)

    def _take_link(self, node: Any, attributes: dict[str, str | None]) -> None:
        reference = attributes.get("href")
        if reference and (url := _joined(self.base, reference)):
            text = attributes.get("aria-label") or node.text(deep=True).strip()
            # A menu's button links to a place of its own page: that a script requests this page says nothing.
            marks = () if reference.startswith("#") else _marks(attributes)
            link = HtmlLink(url, text[:120], marks)
            method = (attributes.get("data-method") or "").lower()
            if method in ("", "get"):
                self.links.append(link)
            else:
                self.sent.append((method, link))

    def _take_refresh(self, attributes: dict[str, str | None]) -> None:
        if (attributes.get("http-equiv") or "").lower() != "refresh":
            return
        match = _REFRESH.match(attributes.get("content") or "")
        if match and (url := _joined(self.base, match[1].strip())):
            self.refreshes.append(HtmlLink(url, ""))

    def _take_linked(self, attributes: dict[str, str | None]) -> None:
        for rel in (attributes.get("rel") or "").lower().split():
            if destination := _LINK_RELS.get(rel) or (attributes.get("as") if rel == "preload" else ""):
                self._linked.append((attributes.get("href") or "", destination))


def _marks(attributes: dict[str, str | None]) -> tuple[str, ...]:
    named = (name for name in attributes if name.startswith(_SCRIPTED))
    return (*dict.fromkeys((attributes.get("class") or "").split()), *named)


def _late_images(attributes: dict[str, str | None]) -> Iterator[str]:
    """Yield image addresses in data attributes, where scripts that load images late keep them."""
    for name, value in attributes.items():
        if name.startswith("data-") and value and _DATA_IMAGE.search(value):
            yield from _candidates(value, srcset="srcset" in name)


def _candidates(value: str, *, srcset: bool) -> Iterable[str]:
    """Return the references in an attribute; a `srcset` holds several (HTML §4.8.4.2.1)."""
    if not srcset:
        return [value] if value else []
    return [part.split()[0].rstrip(",") for part in re.split(r",\s+", value.strip()) if part.split()]


def _forms(tree: LexborHTMLParser, base: str) -> Iterator[tuple[str, HtmlForm]]:
    """Yield the forms that are sent as a query or as form data, each with its method in lower case.

    Buttons may name a target of their own (HTML §4.10.19.6). Each target is a form.
    """
    fields = _fields_of_forms(tree)
    for form in tree.css("form"):
        own = fields.get(form.mem_id, [])
        for target in dict.fromkeys(_target(form, each) for each in own if _sends(each)) or [_target(form)]:
            sent = [each for each in own if not _sends(each) or _target(form, each) == target]
            if found := _form(sent, base, *target):
                yield found


def _forms_of_links(
    links: Iterable[tuple[str, HtmlLink]], forms: Sequence[HtmlForm], tree: LexborHTMLParser
) -> Iterator[HtmlForm]:
    """Yield the forms that scripts make of links with `data-method`, a convention of several frameworks.

    Rails names the token field in `meta` elements and the method in a field. Otherwise the token is that of
    the page's forms.
    """
    metas = {
        _attribute(each, "name"): _attribute(each, "content") for each in tree.css("meta[name][content]")
    }
    param, token = metas.get("csrf-param"), metas.get("csrf-token", "")
    known = next(
        (each for form in forms for each in form.fields if is_csrf(Where.FORM, each.name, "POST")), None
    )
    for method, link in links:
        # Controls that delete are known by their names, and "Remove" may be one.
        text = f"delete: {link.text}" if method == "delete" else link.text
        button = Input("", "submit", description=text)
        if param:
            named = (Input("_method", "hidden", method), Input(param, "hidden", token))
            yield HtmlForm(link.url, (*named, button))
        elif method == "post":
            yield HtmlForm(link.url, (*([known] if known else []), button))


_Target = tuple[str, str, str]  # action, method, encoding


def _target(form: Any, button: Any = None) -> _Target:
    def of(name: str) -> str:
        own = button.attributes.get(f"form{name}") if button is not None else None
        return _attribute(form, name) if own is None else str(own)

    return of("action"), of("method").lower() or "get", of("enctype").lower()


def _form(
    fields: Sequence[Any], base: str, reference: str, method: str, encoding: str
) -> tuple[str, HtmlForm] | None:
    multipart = encoding == "multipart/form-data" and method == "post"
    plain = multipart or encoding in ("", "application/x-www-form-urlencoded")
    action = _joined(base, reference or base)
    if not plain or not action or method not in ("get", "post"):
        return None
    inputs = tuple(one for each in fields for one in _inputs(each))
    return method, HtmlForm(action, inputs, unaddressed=not reference, multipart=multipart)


def _fields_of_forms(tree: LexborHTMLParser) -> dict[int, list[Any]]:
    """Return the enabled fields by their form owner (HTML §4.10.17.3), in tree order."""
    named = {_attribute(form, "id"): form.mem_id for form in reversed(tree.css("form[id]"))}
    inside = {each.mem_id: form.mem_id for form in tree.css("form") for each in form.css(_FIELDS)}
    inside = _fields_in_tables(tree, inside) | inside
    disabled = {each.mem_id for each in tree.css(_DISABLED)}
    found: dict[int, list[Any]] = {}
    for each in tree.css(_FIELDS):
        is_named = "form" in each.attributes
        owner = named.get(_attribute(each, "form")) if is_named else inside.get(each.mem_id)
        if owner is not None and each.mem_id not in disabled:
            found.setdefault(owner, []).append(each)
    return found


def _fields_in_tables(tree: LexborHTMLParser, inside: Mapping[int, int]) -> dict[int, int]:
    """Return the form owners of fields behind a form that begins between the rows of a table.

    The parser closes such a form immediately, and takes it as the owner of the fields that follow (HTML
    §13.2.6.4.9). The tree does not show where its end tag was. Here it owns those of its table.
    """
    found: dict[int, int] = {}
    owner: int | None = None
    members: set[int] = set()
    for node in tree.css(f"form, {_FIELDS}"):
        if node.tag != "form":
            if owner is not None and node.mem_id in members and node.mem_id not in inside:
                found[node.mem_id] = owner
        elif node.child is None and node.parent is not None and node.parent.tag in _TABLE_PARTS:
            table = node.parent
            while table.tag != "table" and table.parent is not None:
                table = table.parent
            owner, members = node.mem_id, {each.mem_id for each in table.css(_FIELDS)}
        else:
            owner = None
    return found


def _sends(node: Any) -> bool:
    return _type(node) in ("submit", "image")


def _type(node: Any) -> str:
    kind = {"select": "select-one", "textarea": "textarea"}.get(node.tag) or _attribute(node, "type").lower()
    return kind or ("submit" if node.tag == "button" else "text")


def _inputs(node: Any) -> Iterator[Input]:
    """Yield a field; of a list one for each chosen option, or one that sends nothing."""
    one = _input(node)
    if node.tag != "select":
        yield one
        return
    options = node.css("option")
    enabled = [each for each in options if not _is_disabled(each)]
    chosen = [each for each in options if "selected" in each.attributes]
    many = "multiple" in node.attributes
    if not many:
        chosen = chosen[-1:] or enabled[:1]
    values = [_option(each) for each in chosen if each in enabled]
    one = replace(
        one,
        options=tuple(map(_option, enabled)),
        type="select-one" if values and not many else "select-multiple",
    )
    yield replace(one, value=values[0] if values else "", on=many and bool(values))
    for value in values[1:]:
        yield replace(one, value=value, on=True, options=())


def _is_disabled(option: Any) -> bool:
    group = option.parent
    return "disabled" in option.attributes or (group.tag == "optgroup" and "disabled" in group.attributes)


def _input(node: Any) -> Input:
    attributes, kind = node.attributes, _type(node)
    value = node.text(deep=True) if node.tag == "textarea" else _attribute(node, "value")
    if kind in ("checkbox", "radio") and "value" not in attributes:
        value = "on"
    names = tuple(_attribute(node, name) for name in ("id", "placeholder") if _attribute(node, name))
    return Input(
        _attribute(node, "name"),
        kind,
        value or _default(node, kind),
        "checked" in attributes,
        "required" in attributes,
        names,
        description=node.text(deep=True).strip() or value if kind in ("submit", "image") else "",
        longest=int(longest) if (longest := _attribute(node, "maxlength")).isdecimal() else 0,
    )


def _default(node: Any, kind: str) -> str:
    """Return the value that a browser gives a field without one (HTML §4.10.5.1)."""
    if kind == "hidden" and _attribute(node, "name").lower() == "_charset_":
        return "UTF-8"
    if kind == "range":
        low, high = (_number(node, name, default) for name, default in (("min", 0.0), ("max", 100.0)))
        return f"{low + max(0.0, high - low) / 2:g}"
    return "#000000" if kind == "color" else ""


def _number(node: Any, name: str, default: float) -> float:
    try:
        return float(_attribute(node, name))
    except ValueError:
        return default


def _option(node: Any) -> str:
    value = node.attributes.get("value")
    return str(node.text(deep=True)).strip() if value is None else str(value)
