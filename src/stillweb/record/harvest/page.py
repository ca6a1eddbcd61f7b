"""References of an HTML document or a style sheet: links, forms, resources. Pure.

Parsing is Lexbor's (HTML Standard §13), URL resolution Ada's (URL Standard), so that both agree with
browsers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stillweb.record.crawl.scope import page_url
from stillweb.record.explore.links import HtmlForm, Input

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

__all__ = ["HtmlLink", "HtmlPage", "Resource", "css_urls", "parse_page"]

_WORD = re.compile(r"[^\W_]{3,30}")
_PHRASE = 40  # characters of a name that a visitor types whole
_CSS_URL = re.compile(r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^)"'\s]*))\s*\)""", re.IGNORECASE)
_CSS_IMPORT = re.compile(r"""@import\s+(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_REFRESH = re.compile(r"^\s*[\d.]*\s*[;,]?\s*(?:url\s*=\s*)?[\"']?([^\"']+)", re.IGNORECASE)
_FIELDS = "input:not([disabled]), button:not([disabled]), select:not([disabled]), textarea:not([disabled])"
_ELEMENTS = "a[href], area[href], input:not([type=hidden]), button, select, textarea, summary, [role=button]"
_NAMED = "title, h1, h2, h3, h4, a, td, th, dt, li, option, label, button"
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
_LINK_RELS = {
    "stylesheet": "style",
    "icon": "image",
    "apple-touch-icon": "image",
    "manifest": "manifest",
    "modulepreload": "script",
}
_DATA_IMAGE = re.compile(r"\.(?:avif|gif|jpe?g|png|svg|webp)(?:\?|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HtmlLink:
    """Where a link leads, in wire spelling, and its text."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A URL that a browser loads with the page, and its request destination."""

    url: str
    destination: str


@dataclass(slots=True)
class HtmlPage:
    """References of a document, in document order, each once; `elements` counts what a visitor can act on."""

    links: list[HtmlLink] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    forms: list[HtmlForm] = field(default_factory=list)
    posts: list[HtmlForm] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    elements: int = 0


def parse_page(url: str, html: bytes) -> HtmlPage:
    """Return what a document refers to.

    Args:
        url: of the document.
        html: decoded body; an encoding other than UTF-8 is not honoured in query strings.
    """
    from selectolax.lexbor import LexborHTMLParser  # of the extra stillweb[record]

    tree = LexborHTMLParser(html.decode("utf-8", "replace"))
    base = _base(tree, url)
    page = HtmlPage()
    page.links = list(dict.fromkeys(_links(tree, base)))
    page.resources = list(dict.fromkeys(_resources(tree, base)))
    page.forms = list(_forms(tree, base, "get"))
    page.posts = list(_forms(tree, base, "post"))
    page.elements = len(tree.css(_ELEMENTS))
    for node in tree.css("script, style, noscript, template"):
        node.decompose()
    page.words = set(_words(tree))
    return page


def _words(tree: LexborHTMLParser) -> Iterator[str]:
    """Yield the words that the accessibility tree of a page shows, and the short names of its elements."""
    texts = [tree.body.text(deep=True, separator=" ")] if tree.body else []
    for node in tree.css(_NAMED):
        name = " ".join(node.text(deep=True)[:400].split())
        if " " in name and len(name) <= _PHRASE:
            yield name
    for attribute in ("aria-label", "alt", "placeholder", "title"):
        texts += [_attribute(node, attribute) for node in tree.css(f"[{attribute}]")]
    if title := tree.css_first("title"):
        texts.append(title.text(deep=True))
    for text in texts:
        yield from _WORD.findall(text)


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


@lru_cache(maxsize=1 << 16)  # pages of a site repeat most of their links
def _joined(base: str, reference: str) -> str:
    """Return the http(s) URL in wire spelling that a reference leads to, "" if there is none."""
    return page_url(_absolute(base, reference)) or "" if reference else ""


def _attribute(node: Any, name: str) -> str:
    return node.attributes.get(name) or ""


def _links(tree: LexborHTMLParser, base: str) -> Iterator[HtmlLink]:
    for node in tree.css("a[href], area[href]"):
        if url := _joined(base, _attribute(node, "href")):
            text = _attribute(node, "aria-label") or node.text(deep=True).strip()
            yield HtmlLink(url, text[:120])
    for node in tree.css("meta[http-equiv]"):
        if _attribute(node, "http-equiv").lower() == "refresh":
            match = _REFRESH.match(_attribute(node, "content"))
            if match and (url := _joined(base, match[1].strip())):
                yield HtmlLink(url, "")


def _resources(tree: LexborHTMLParser, base: str) -> Iterator[Resource]:
    for reference, destination in _references(tree):
        if url := _joined(base, reference):
            yield Resource(url, destination)
    for node in tree.css("style"):
        yield from css_urls(base, node.text(deep=True))
    for node in tree.css("[style]"):
        yield from css_urls(base, _attribute(node, "style"))


def _references(tree: LexborHTMLParser) -> Iterator[tuple[str, str]]:
    """Yield references to resources, as written, with their destinations."""
    for node in tree.css(", ".join(_SOURCES)):
        for name, destination in _SOURCES[str(node.tag)]:
            for reference in _candidates(_attribute(node, name), srcset=name == "srcset"):
                yield reference, destination
    for node in tree.css("link[rel][href]"):
        for rel in _attribute(node, "rel").lower().split():
            if destination := _LINK_RELS.get(rel) or (_attribute(node, "as") if rel == "preload" else ""):
                yield _attribute(node, "href"), destination
    for node in tree.css("img"):
        yield from ((reference, "image") for reference in _late_images(node))


def _late_images(node: Any) -> Iterator[str]:
    """Yield image addresses in data attributes, where scripts that load images late keep them."""
    for name, value in node.attributes.items():
        if name.startswith("data-") and value and _DATA_IMAGE.search(value):
            yield from _candidates(value, srcset="srcset" in name)


def _candidates(value: str, *, srcset: bool) -> Iterable[str]:
    """Return the references in an attribute; a `srcset` holds several (HTML §4.8.4.2.1)."""
    if not srcset:
        return [value] if value else []
    return [part.split()[0].rstrip(",") for part in re.split(r",\s+", value.strip()) if part.split()]


def _forms(tree: LexborHTMLParser, base: str, method: str) -> Iterator[HtmlForm]:
    for node in tree.css("form"):
        plain = _attribute(node, "enctype").lower() in ("", "application/x-www-form-urlencoded")
        if (_attribute(node, "method") or "get").lower() != method or not plain:
            continue
        action = _joined(base, _attribute(node, "action") or base)
        if action:
            fields = tuple(_input(each) for each in node.css(_FIELDS))
            yield HtmlForm(action, fields, unaddressed=not _attribute(node, "action"))


def _input(node: Any) -> Input:
    attributes = node.attributes
    kind = {"select": "select-one", "textarea": "textarea"}.get(node.tag) or (
        _attribute(node, "type") or "text"
    )
    if node.tag == "button":
        kind = _attribute(node, "type") or "submit"
    options: tuple[str, ...] = ()
    value = _attribute(node, "value")
    if node.tag == "select":
        found = node.css("option")
        options = tuple(_option(each) for each in found)
        chosen = next((each for each in found if "selected" in each.attributes), found[0] if found else None)
        value = _option(chosen) if chosen else ""
    elif node.tag == "textarea":
        value = node.text(deep=True)
    elif kind in ("checkbox", "radio"):
        value = value or "on"
    names = tuple(_attribute(node, name) for name in ("id", "placeholder") if _attribute(node, name))
    return Input(
        _attribute(node, "name"),
        kind.lower(),
        value,
        "checked" in attributes,
        "required" in attributes,
        names,
        options,
        node.text(deep=True).strip() or value if kind in ("submit", "image") else "",
        int(longest) if (longest := _attribute(node, "maxlength")).isdecimal() else 0,
    )


def _option(node: Any) -> str:
    value = node.attributes.get("value")
    return str(node.text(deep=True)).strip() if value is None else str(value)
