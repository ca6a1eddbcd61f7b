"""Full-text search over the pages of a collection: SQLite FTS5 in `search.sqlite` beside the archive.

A document is a recorded HTML page: the last response with status 200 to a GET of its URL. Its text is that of
the page's baseline, which a browser has rendered, else that of the HTML. Words are compared without case and
diacritics; a text without spaces between words (Chinese, Japanese) is found by whole runs only. Equal
collections give equal results in equal order. The index is built when it is first needed, and again after the
collection has changed.
"""

from __future__ import annotations

import os
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from stillweb import clock
from stillweb.collections.importers.pagefinder import page_text
from stillweb.collections.indexing import refresh_index
from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError, UsageError
from stillweb.model import Capture, Page
from stillweb.urls import wire_url

FILE = "search.sqlite"

_VERSION = 2
_OK = 200
_TITLE_WEIGHT = 8.0
_SNIPPET_WORDS = 24
_WORD = re.compile(r'"([^"]*)"|(\S+)')
_LETTERS = re.compile(r"\w+")
_MOST_JOINED, _MOST_CHARS = 32, 500_000  # of a hostile page
_SCHEMA = """
CREATE TABLE about (stamp TEXT);
CREATE VIRTUAL TABLE pages USING fts5 (
  url UNINDEXED, timestamp UNINDEXED, title, text, joined, tokenize = "unicode61 remove_diacritics 2"
);
"""
# Only the best rows get an excerpt: it costs twice as much as the score, and a common word is on most pages.
# Rows were inserted in the order of their URLs.
_QUERY = f"""
WITH best AS MATERIALIZED (
  SELECT rowid AS id, bm25(pages, 0, 0, {_TITLE_WEIGHT}, 1, 1) AS score
  FROM pages WHERE pages MATCH :query ORDER BY score, rowid LIMIT :limit
)
SELECT url, timestamp, title, snippet(pages, 3, '', '', '…', {_SNIPPET_WORDS}) AS excerpt, score
FROM best CROSS JOIN pages ON pages.rowid = best.id
WHERE pages MATCH :query ORDER BY score, id
"""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A page that holds all words of a query.

    Attributes:
        snippet: part of the text around a match.
        score: BM25; larger is better.
    """

    url: str
    timestamp: str
    title: str
    snippet: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """A page as it is indexed.

    Attributes:
        joined: words that stand in the text without a space between them.
    """

    url: str
    timestamp: str
    title: str
    text: str
    joined: str = ""


def search(
    collection: Collection, query: str, *, limit: int = 10, on_progress: Callable[[int], None] | None = None
) -> list[SearchHit]:
    """Return the pages that hold all words and "quoted phrases" of a query, best first.

    Raises:
        UsageError: if the query has no word, or the collection has no archive.
    """
    _expression(query)  # a query without a word is refused before the index is built
    with closing(open_index(collection, on_progress)) as index:
        return find(index, query, limit)


def open_index(
    collection: Collection, on_progress: Callable[[int], None] | None = None
) -> sqlite3.Connection:
    """Return the index, built if necessary; it does not change while it is open.

    Raises:
        UsageError: if the collection has no archive.
    """
    path = build_index(collection, on_progress)
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)


def find(index: sqlite3.Connection, query: str, limit: int) -> list[SearchHit]:
    """Return the pages of an open index, see `search`.

    Raises:
        UsageError: if the query has no word.
    """
    rows = index.execute(_QUERY, {"query": _expression(query), "limit": limit}).fetchall()
    return [
        SearchHit(url, timestamp, title, " ".join(excerpt.split()), round(-score, 6))
        for url, timestamp, title, excerpt, score in rows
    ]


def _expression(query: str) -> str:
    """Return the FTS5 expression of a query: each word is quoted, so that none is an operator."""
    words = [phrase or word for phrase, word in _WORD.findall(query)]
    searched = [word for word in words if any(each.isalnum() for each in word)]
    if not searched:
        raise UsageError(f"{query!r} has no word", hint='stillweb search NAME lamp "free shipping"')
    return " ".join('"{}"'.format(word.replace('"', "").replace("\0", "")) for word in searched)


def build_index(collection: Collection, on_progress: Callable[[int], None] | None = None) -> Path:
    """Build the index unless it is current; return its path.

    Args:
        collection: with an archive.
        on_progress: called with the number of documents so far.

    Raises:
        UsageError: if the collection consists of a pack only.
    """
    collection.require_archive()
    refresh_index(collection)
    path, stamp = collection.path / FILE, _stamp(collection)
    if _stamp_in(path) == stamp:
        return path
    fresh = path.with_name(f".{FILE}.{clock.new_id()}")
    try:
        with closing(sqlite3.connect(fresh)) as database:
            database.executescript(f"PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; {_SCHEMA}")
            for count, each in enumerate(_documents(collection), 1):
                database.execute("INSERT INTO pages VALUES (?, ?, ?, ?, ?)", astuple(each))
                if on_progress:
                    on_progress(count)
            database.execute("INSERT INTO about VALUES (?)", (stamp,))
            database.commit()
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def _stamp(collection: Collection) -> str:
    """Return a text that changes with the index of captures, the pages or the baselines."""
    watched = (
        collection.index_file,
        *(collection.pages / f"{name}.jsonl" for name in ("pages", "extraPages")),
    )
    facts = [path.stat() if path.exists() else None for path in (*watched, collection.baseline)]
    return f"{_VERSION} " + " ".join(f"{each.st_mtime_ns}:{each.st_size}" if each else "-" for each in facts)


def _stamp_in(path: Path) -> str:
    """Return the stamp of an index; "" if it is missing or damaged."""
    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return str(database.execute("SELECT stamp FROM about").fetchone()[0])
    except (sqlite3.Error, TypeError):
        return ""


def _documents(collection: Collection) -> Iterator[SearchDocument]:
    """Yield the documents in the order of their URLs."""
    pages = {wire_url(page.url): page for page in collection.each_page()}
    for url, capture in sorted(_last_captures(collection).items()):
        page = pages.get(url)
        rendered, markup = _baseline_text(collection, page), _html_text(collection, capture)
        if text := rendered or markup:
            title = (page.title if page else "") or text.partition("\n")[0]
            joined = _joined_words(rendered, markup)
            yield SearchDocument(capture.url, capture.timestamp, *map(_clean, (title, text, joined)))


def _joined_words(rendered: str, markup: str) -> str:
    """Return words of the HTML that stand in the rendered text without a space between them, as in menus."""
    own = sorted(set(_LETTERS.findall(rendered.casefold())))
    words = _LETTERS.findall(markup[:_MOST_CHARS].casefold())
    found: dict[str, None] = {}
    for begin, joined in enumerate(words):
        for end in range(begin + 1, min(begin + _MOST_JOINED, len(words))):
            joined += words[end]
            at = bisect_left(own, joined)
            if at == len(own) or not own[at].startswith(joined):
                break
            if own[at] == joined:
                found |= dict.fromkeys(words[begin : end + 1])
    return " ".join(found)


def _last_captures(collection: Collection) -> dict[str, Capture]:
    found: dict[str, Capture] = {}
    for each in collection.captures():
        if each.method != "GET" or each.status != _OK or "html" not in each.mime:
            continue
        url = wire_url(each.url)
        if url not in found or each.in_time() > found[url].in_time():
            found[url] = each
    return found


def _baseline_text(collection: Collection, page: Page | None) -> str:
    if page is None or not page.baseline:
        return ""
    path = collection.baseline / page.baseline / "text.txt"
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _html_text(collection: Collection, capture: Capture) -> str:
    try:
        return page_text(collection.read_capture(capture).response)
    except CollectionError:  # `collections check` reports it
        return ""


def _clean(text: str) -> str:
    """Return a text without lone surrogates, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")
