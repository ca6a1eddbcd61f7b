"""HTML trees of documents that do not take hours or all memory to build.

Lexbor takes time quadratic in the depth of nested elements and in the attributes of one. Every tree builder
repeats open formatting elements in each block (HTML Standard §13.2.4.3). A document may hide end tags in
attributes, comments and scripts, so tags are found as the standard's tokenizer finds them (§13.2.5).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

_ALWAYS_PARSED = 1 << 15  # characters that parse within a second, whatever they are
_MAX_DEPTH = 512  # elements: Chromium nests no deeper
_MAX_REPEATED = 1 << 20  # elements
_MAX_ATTRIBUTES = 256  # of one element
_MARKUP = re.compile(r"<[a-zA-Z/!?]")
_NAME = r"<(/?)([a-zA-Z][^\s/>]*+)"
_VALUE = r"""\s*+=\s*+(?:"[^"]*+"|'[^']*+'|(?!["'])[^\s>]*+)"""
_TAG = re.compile(rf"{_NAME}((?:[\s/]++|[^\s/>][^\s/>=]*+(?:{_VALUE})?+)*+)>")
_ATTRIBUTE = re.compile(rf"[^\s/>][^\s/>=]*+(?:{_VALUE})?+")
_COMMENT_END = re.compile(r"--!?>")
_RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
}
_FORMATTING = frozenset(
    ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"]
)
# Elements without content, and those that the next one of their kind ends.
_FLAT_NAMES = """
    area base basefont bgsound body br col colgroup dd dt embed frame head hr html image img input keygen li
    link meta optgroup option p param rb rp rt rtc source tbody td tfoot th thead tr track wbr
"""
_FLAT = frozenset(_FLAT_NAMES.split())


def parse_tree(html: str) -> LexborHTMLParser | None:
    """Return the tree of a document; None if it would take too long to build."""
    from selectolax.lexbor import LexborHTMLParser  # of the extra stillweb[record]

    return None if is_costly(html) else LexborHTMLParser(html)


def is_costly(html: str) -> bool:
    """Return True if a document nests deeper than Chromium allows, or repeats too many elements."""
    if len(html) <= _ALWAYS_PARSED:
        return False
    depth = repeated = 0
    formatting: Counter[str] = Counter()
    for step, name, attributes in _tags(html):
        if name in _FORMATTING:
            formatting[name] = max(0, formatting[name] + step)
        elif step > 0:
            repeated += formatting.total()
        if name not in _FLAT:
            depth = max(0, depth + step)
        if depth > _MAX_DEPTH or repeated > _MAX_REPEATED or _has_many(attributes):
            return True
    return False


def _tags(html: str) -> Iterator[tuple[int, str, str]]:
    """Yield 1 for a start tag or -1 for an end tag, the element's name, and its attributes."""
    position = cdata = 0
    while markup := _MARKUP.search(html, position):
        start = markup.start()
        tag = _TAG.match(html, start)
        if tag is None:
            if html.startswith("<![CDATA[", start):  # text in SVG and MathML, a comment elsewhere
                cdata = _after(html, "]]>", start)
            position = _after_comment(html, start)
            continue
        name = tag[2].lower()
        position = tag.end() if tag[1] else _after_raw_text(html, name, tag.end())
        if not (tag[1] and start < cdata):
            yield -1 if tag[1] else 1, name, tag[3]


def _has_many(attributes: str) -> bool:
    if len(attributes) <= 2 * _MAX_ATTRIBUTES:
        return False
    return sum(1 for _ in _ATTRIBUTE.finditer(attributes)) > _MAX_ATTRIBUTES


def _after_raw_text(html: str, name: str, position: int) -> int:
    """Return the position of the end tag of an element whose content is text; the position for others."""
    if name not in _RAW:
        return position
    end = _RAW[name].search(html, position)
    while name == "script" and end and _is_double_escaped(html[position : end.start()]):
        position = end.end()
        end = _RAW[name].search(html, position)
    return end.start() if end else len(html)


def _is_double_escaped(text: str) -> bool:
    """Return True if the script data holds `<!-- <script`, whose end tag does not end the script."""
    comment = text.rfind("<!--")
    return comment >= 0 and "-->" not in text[comment:] and "<script" in text[comment:].lower()


def _after_comment(html: str, start: int) -> int:
    if not html.startswith("<!--", start):
        return _after(html, ">", start)
    if html.startswith((">", "->"), start + 4):
        return start + 5
    end = _COMMENT_END.search(html, start + 4)
    return end.end() if end else len(html)


def _after(text: str, end: str, start: int) -> int:
    found = text.find(end, start)
    return len(text) if found < 0 else found + len(end)
