"""Full-text search over recorded pages, and the listing of URLs and captures."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb.cli import cli
from stillweb.collections.importers.pagefinder import page_text
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.search import build_index, search
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.model import Exchange, Page, Request, Response

SITE = "https://shop.example"
PAGES = {
    "/": "<title>Shop</title><h1>Lamps</h1><p>Free shipping on brass lamps</p><script>var hidden</script>",
    "/lamp": "<title>Brass lamp</title><p>A lamp of brass. Crème brûlée colour.</p>",
    "/chair": "<title>Chair</title><p>No shipping, it is free to collect. AND OR NEAR</p>",
}


def add(
    collection: Collection, path: str, html: str, second: int, status: int = 200, method: str = "GET"
) -> None:
    with CollectionWriter(collection) as writer:
        response = Response(status, "OK", (("Content-Type", "text/html; charset=utf-8"),), html.encode())
        writer.write(Exchange(Request(method, SITE + path), response, f"202601010000{second:02d}"))


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    collection = Collection.create(tmp_path, "shop")
    for second, (path, html) in enumerate(PAGES.items()):
        add(collection, path, html, second)
    add(collection, "/gone", "<p>lamp gone</p>", 10, status=404)
    add(collection, "/form", "<p>lamp posted</p>", 11, method="POST")
    reindex(collection)
    return collection


def found(collection: Collection, query: str) -> list[str]:
    return [hit.url.removeprefix(SITE) for hit in search(collection, query)]


def test_pages_that_a_killed_recording_did_not_index_are_found(collection: Collection) -> None:
    assert found(collection, "table") == []
    index = collection.index_file.read_bytes()
    add(collection, "/table", "<p>a table</p>", 20)
    collection.index_file.write_bytes(index)
    os.utime(collection.index_file, ns=(0, 0))
    assert found(collection, "table") == ["/table"]


@pytest.mark.parametrize(
    ("query", "urls"),
    [
        ("brass", ["/lamp", "/"]),
        ("BRASS lamps", ["/"]),
        ('"free shipping"', ["/"]),
        ("free shipping", ["/", "/chair"]),
        ("creme brulee", ["/lamp"]),
        ("AND", ["/chair"]),
        ("near or", ["/chair"]),
        ("hidden", []),
        ("gone", []),
        ("posted", []),
        ('lamp" OR "chair', []),
        ("- brass *", ["/lamp", "/"]),
    ],
)
def test_pages_that_hold_all_words(collection: Collection, query: str, urls: list[str]) -> None:
    assert sorted(found(collection, query)) == sorted(urls)
    assert found(collection, query)[:1] == urls[:1]


def test_a_hit_shows_title_and_context(collection: Collection) -> None:
    (hit,) = search(collection, "brûlée")
    assert (hit.url, hit.timestamp, hit.title) == (f"{SITE}/lamp", "20260101000001", "Brass lamp")
    assert "Crème brûlée" in hit.snippet
    assert hit.score > 0


@pytest.mark.parametrize("query", ["", "  ", '"" - *', "\0"])
def test_a_query_without_a_word_is_wrong_use(collection: Collection, query: str) -> None:
    with pytest.raises(UsageError, match="no word"):
        search(collection, query)


def test_the_text_of_a_baseline_counts_before_that_of_the_html(collection: Collection) -> None:
    folder = collection.baseline / "page-1"
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("Rendered by a script")
    collection.write_pages([Page(f"{SITE}/", "20260101000000", title="Home", baseline="page-1")])
    assert found(collection, "rendered") == ["/"]
    assert found(collection, "home") == ["/"]
    assert found(collection, "shipping") == ["/chair"]


def test_a_word_is_found_although_no_space_is_rendered_beside_it(collection: Collection) -> None:
    add(
        collection,
        "/menu",
        "<nav><a>Tables</a><a>Mirrors</a><a>Rugs</a></nav> <i hidden>rendered sofas</i>",
        30,
    )
    reindex(collection)
    folder = collection.baseline / "page-1"
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("TablesMirrorsRugs\nMenu")
    collection.write_pages([Page(f"{SITE}/menu", "20260101000030", title="Menu", baseline="page-1")])
    assert found(collection, "mirrors menu") == ["/menu"]
    assert found(collection, "sofas") == []


@pytest.mark.parametrize("texts", [("early", "late"), ("late", "early")])
def test_the_last_version_of_one_second_counts(collection: Collection, texts: tuple[str, str]) -> None:
    for text in texts:  # the index has them in the order of their digests
        add(collection, "/news", f"<p>{text}</p>", 30)
    assert [found(collection, text) for text in texts] == [[], ["/news"]]


def test_the_index_is_built_once_and_again_after_a_change(collection: Collection) -> None:
    path = build_index(collection)
    first = path.stat().st_ino
    assert build_index(collection).stat().st_ino == first
    add(collection, "/lamp", "<p>A lamp of steel</p>", 20)
    reindex(collection)
    os.utime(collection.index_file, ns=(1, 1))
    assert found(collection, "steel") == ["/lamp"]
    assert "/lamp" not in found(collection, "brass")
    assert [each.name for each in collection.path.glob(".search*")] == []


def test_a_damaged_index_is_built_again(collection: Collection) -> None:
    path = build_index(collection)
    path.write_bytes(b"no database")
    assert found(collection, "chair") == ["/chair"]
    path.unlink()
    sqlite3.connect(path).close()
    assert found(collection, "chair") == ["/chair"]


def test_equal_collections_give_equal_results(collection: Collection) -> None:
    first = search(collection, "lamp")
    (collection.path / "search.sqlite").unlink()
    assert all(search(collection, "lamp") == first for _ in range(5))


def run(collection: Collection, *arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(cli, [*arguments, "--collections", str(collection.path.parent)])
    return ran.exit_code, ran.output


def test_the_command_prints_pages_and_fails_without_one(collection: Collection) -> None:
    status, printed = run(collection, "search", "shop", "brass", "lamp", "--json")
    assert status == 0
    assert json.loads(printed[printed.index("[") :])[0]["url"] == f"{SITE}/lamp"
    status, printed = run(collection, "search", "shop", "zebra")
    assert status == 1
    assert "no page of shop" in printed


def test_urls_of_all_collections_are_listed_by_pattern(collection: Collection) -> None:
    other = Collection.create(collection.path.parent, "other")
    add(other, "/lamp", "other", 0)
    reindex(other)
    status, printed = run(collection, "collections", "list", "--urls", "--match", "*/lamp*", "--json")
    assert status == 0
    assert [(each["collection"], each["captures"]) for each in json.loads(printed)] == [
        ("other", 1),
        ("shop", 1),
    ]


def test_the_captures_of_a_url_are_shown(collection: Collection) -> None:
    add(collection, "/lamp", "newer", 30)
    reindex(collection)
    status, printed = run(collection, "collections", "show", "shop", f"{SITE}/lamp", "--json")
    assert status == 0
    shown = json.loads(printed)
    assert [each["timestamp"] for each in shown] == ["20260101000001", "20260101000030"]
    assert ["Content-Type", "text/html; charset=utf-8"] in shown[0]["response"]["headers"]
    assert run(collection, "collections", "show", "shop", f"{SITE}/lamp", "--body") == (0, "newer")
    ran = CliRunner().invoke(
        cli, ["collections", "show", "shop", f"{SITE}/none", "--collections", str(collection.path.parent)]
    )
    assert isinstance(ran.exception, UsageError)
    assert "does not hold" in str(ran.exception)


def text_of(html: str) -> str:
    return page_text(Response(200, "OK", (("Content-Type", "text/html; charset=utf-8"),), html.encode()))


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>one<p>two  three</p>", "one\ntwo three"),
        ("<head><title>t</title></head>one<script>'<p>no'</script>two<style>p{}</style>", "one\ntwo"),
        ("<head><title>t</title><body></head>one", "one"),
        ("one<!-- <p>no --><noscript>no</noscript><svg><text>no</text></svg>two", "one\ntwo"),
        ("<a title=\"x>y\" href='>'>one</a> <p don't>two</p>", "one\ntwo"),
        ("a &lt; b < c<!doctype html><?php no ?></ no>d", "a < b < c\nd"),
        ("one<script>two", "one"),
        ("one<!-- two", "one"),
        ("one<a href='two", "one"),
        ("<SCRIPT>no</Script >one", "one"),
    ],
)
def test_the_text_of_a_document_is_what_a_page_shows(html: str, text: str) -> None:
    assert text_of(html) == text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["<a ", "<a b='", "<div>", "<!--", "<script>", "</", "< ", "&#"])
def test_the_text_of_a_hostile_document_takes_linear_time(part: str) -> None:
    """The standard library's parser took 38 s for 50 kB of the first one."""
    text_of(part * (4_000_000 // len(part)))
