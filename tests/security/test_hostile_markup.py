"""Documents that no tree builder reads in time: they are recognised in linear time, and not parsed."""

from __future__ import annotations

import time

import pytest

from stillweb.benchmarks.pages import read_page
from stillweb.record.harvest.page import parse_page
from stillweb.record.harvest.tree import is_costly

SIZE = 8 << 20
URL = "https://a.example/"

# Repeated to 8 MB; Lexbor takes hours for each, or all memory.
COSTLY = {
    "elements": "<div>",
    "formatting": "<b>",
    "end tag in an attribute": '<br a="</div>"><div>',
    "end tag in a comment": "<div><!--</div>-->",
    "end tag in a script": "<div><script></div></script>",
    "end tag in an escaped script": "<div><script><!--<script></script></div></script>",
    "end tag in CDATA": "<g><![CDATA[></g>]]>",
    "quote that opens no value": '<br "><div>',
    "quote without a name": '<br ="><div>',
    "attributes": "<i " + " ".join(f"a{number}" for number in range(400)) + "></i>",
    "repeated formatting": "<p>" + "".join(f"<b id={number}>" for number in range(400)) + "<p>x" * 9999,
}
# Never a whole tag: nothing is nested, and no character may be read again and again.
UNCLOSED = (
    "<",
    "<a ",
    "<a",
    '<a b="',
    "<a b='\"",
    "<!--",
    "<script>",
    "<a b  ",
    "<![CDATA[",
    "<script><!--<script></script>",
)


def repeated(text: str) -> str:
    return text * (SIZE // len(text) + 1)


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_document_is_not_parsed(name: str) -> None:
    html = repeated(COSTLY[name])
    began = time.process_time()
    page = parse_page(URL, b"<a href=/link>" + html.encode())
    assert page.unread
    assert not page.links
    assert read_page(URL, html).text == ""
    assert time.process_time() - began < 10  # 0.6 s at most, and hours without the check


@pytest.mark.parametrize("text", UNCLOSED)
def test_the_check_is_linear(text: str) -> None:
    began = time.process_time()
    assert not is_costly(repeated(text))
    assert time.process_time() - began < 10  # 0.5 s at most


@pytest.mark.parametrize(
    "html",
    [
        "<p>text" * 9999,
        "<ul>" + "<li><a href=/a>x</a>" * 9999,
        "<table>" + "<tr><td><b>x</b>" * 9999,
        "<div>" * 500 + "x" + "</div>" * 500 + "<!-- <div> -->" * 9999,
        "<script>" + "'<div>';" * 9999 + "</script>",
        f"<img src='data:image/png;base64,{'A = ' * 9999}'>" * 9,
    ],
)
def test_large_pages_are_parsed(html: str) -> None:
    page = parse_page(URL, f"{html}<a href=/last>last</a>".encode())
    assert not page.unread
    assert f"{URL}last" in {link.url for link in page.links}
