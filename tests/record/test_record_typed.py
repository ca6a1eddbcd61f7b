"""Typed text: which words are recorded first, and search pages that do not depend on the word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed, Sighting
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Page, Request, Response
from stillweb.record.crawl.scope import Scope
from stillweb.record.harvest.constant import write_constant_rules
from stillweb.record.harvest.frontier import HarvestFrontier
from stillweb.record.harvest.harvest import harvest
from stillweb.record.harvest.misses import plain_requests
from stillweb.record.harvest.options import HarvestOptions
from stillweb.record.harvest.page import parse_page
from stillweb.record.harvest.typed import TypedText
from stillweb.record.harvest.words import WordRequests, typed_form
from stillweb.record.options import ScopeKind

HOME = "https://site.test/"
SCOPE = Scope.of(ScopeKind.HOST, [HOME])
WORDS = (
    "amber birch cedar daisy elder ferns gorse hazel irises jasmine kalmia lilac maple nettle olive poppy "
    "quince rowan sorrel thyme ulmus violet willow yarrow zinnia acacia beech clover dahlia ebony fuchsia"
)
_SEARCH = "<form action=/find><input name=q><button>Go</button></form>"


def of_page(html: str, url: str = HOME):
    return parse_page(url, html.encode())


# --- which words -----------------------------------------------------------------------------------


def test_the_largest_weight_that_waits_is_that_of_a_url_to_fetch() -> None:
    frontier = HarvestFrontier()
    frontier.add("hub", "", 1.0)
    hub = frontier.take()
    assert hub is not None
    frontier.lead(hub, ["a", "b"])
    frontier.add("hub", "", 9.0)  # links back to what was fetched
    a = frontier.take()
    assert a is not None
    frontier.lead(a, ["hub"])
    assert frontier.peek() == pytest.approx(frontier.weight_waiting())


def test_cycles_of_links_end() -> None:
    frontier = HarvestFrontier()
    frontier.add("a", "", 1.0)
    for _ in range(2):
        taken = frontier.take()
        assert taken is not None
        frontier.lead(taken, ["b" if taken.url == "a" else "a"])
    assert (frontier.take(), frontier.peek()) == (None, 0.0)


def test_a_search_form_is_the_same_on_every_page() -> None:
    bare = of_page("<form><input name=q id=x1></form>", f"{HOME}find").forms[0]
    again = of_page("<form><input name=q id=x2 value=lamp></form>", f"{HOME}find?q=lamp").forms[0]
    assert typed_form(bare) == typed_form(again)
    places = WordRequests()
    for number, form in enumerate((bare, again)):
        places.add_form(typed_form(form), f"{HOME}{number}")
    assert len(places.places) == 1


def test_recorded_words_do_not_use_up_a_choice() -> None:
    places = WordRequests()
    places.add_form(typed_form(of_page(_SEARCH).forms[0]), HOME)
    words = [("amber", 0.6), ("birch", 0.4)]
    found = places.take(lambda source: 1.0, words, 0.0, 1, {f"{HOME}find?q=amber"})
    assert [each.url for each in found] == [f"{HOME}find?q=birch"]


def test_words_of_a_missed_search_come_before_links_that_are_missed_less(tmp_path: Path) -> None:
    def urls(missed: list[Missed]) -> list[str]:
        frontier = HarvestFrontier()
        typed = TypedText(Collection.create(tmp_path / str(len(missed)), "site"), frontier, set(), 100)
        typed.add_page(HOME, of_page(f"<p>{WORDS}</p>{_SEARCH}"), 1.0)
        frontier.add(f"{HOME}link", "", 0.1)
        typed.add_requests(list(plain_requests(missed, unsafe=False)), [], missed, 100)
        return [each.url for each in typed.requests()]

    seen = Sighting("s", 1, page=HOME)
    searched = Missed(
        "site", "e", "GET", f"{HOME}find?q=olive", seen, seen, (), "", 0, count=50, resource="document"
    )
    assert urls([]) == []
    assert len(urls([searched])) > 25


def typed_on_pages(tmp_path: Path, form: str) -> TypedText:
    """Return the texts of five pages, each with a word of its own and a form."""
    frontier = HarvestFrontier()
    typed = TypedText(Collection.create(tmp_path, "site"), frontier, set(), 100)
    for number, word in enumerate(WORDS.split()[:5]):
        page = of_page(f"<p>{word}</p>{form.format(number)}", f"{HOME}{number}")
        typed.add_page(f"{HOME}{number}", page, 1.0)
        frontier.add_other(typed_form(page.forms[0]), 1.0)
    return typed


_ON_PAGE = "<form action=/find><input type=hidden name=id value={}><input name=q></form>"


def test_a_form_of_one_page_gets_the_words_of_this_page_first(tmp_path: Path) -> None:
    typed = typed_on_pages(tmp_path, _ON_PAGE)
    searched = [f"{HOME}find?id={number}&q={word}" for number, word in enumerate(WORDS.split()[:5])]
    assert {each.url for each in typed.requests()[:5]} == set(searched)

    again = TypedText(Collection.create(tmp_path, "again"), HarvestFrontier(), set(), 100)
    again.read_state({**typed.state(), "parsed": [f"{HOME}{number}" for number in range(5)]})
    assert {each.url for each in again.requests()[:5]} == set(searched)


def test_answers_of_a_form_do_not_change_which_words_it_gets(tmp_path: Path) -> None:
    typed = typed_on_pages(tmp_path, _ON_PAGE)
    for word in ("gorse", "hazel"):
        answer = f"{HOME}find?id=0&q={word}"
        typed.add_page(answer, of_page(f"<p>{word}</p>{_ON_PAGE.format(0)}", answer), 1.0)
    assert f"{HOME}find?id=0&q=amber" in {each.url for each in typed.requests()[:5]}


def test_a_missed_search_of_one_page_makes_those_of_the_others_likelier_too(tmp_path: Path) -> None:
    typed = typed_on_pages(tmp_path, _ON_PAGE)
    typed._frontier.add(f"{HOME}link", "", 100.0)
    assert typed.requests() == []
    seen = Sighting("s", 1, page=HOME)
    url = f"{HOME}find?id=0&q=olive"
    missed = Missed("site", "e", "GET", url, seen, seen, (), "", 0, count=90, resource="document")
    typed.add_requests([], [], [missed], 100)
    own = [f"{HOME}find?id={number}&q={word}" for number, word in enumerate(WORDS.split()[:5])]
    assert {each.url for each in typed.requests()[:5]} == set(own)


# --- a search that the browser does ----------------------------------------------------------------


async def searched(tmp_path: Path, ca, site, answer: Callable[[str], str]) -> Collection:
    """Harvest a site with a search, whose answer is given by the request target."""
    site.page("/", f"<p>{WORDS}</p>{_SEARCH}")
    site.answers["/find"] = lambda request: site.reply(answer(request.path))
    collection = Collection.create(tmp_path, "site")
    with CollectionWriter(collection) as writer:
        home = Response(200, headers=(("Content-Type", "text/html"),), raw_body=site.answers["/"].body)
        writer.write(
            Exchange(Request("GET", HOME, (("Sec-Fetch-Dest", "document"),)), home, "20260101000000")
        )
    collection.write_pages([Page(HOME, "20260101000000", seed=True)])
    await harvest(collection, ca, SCOPE, HarvestOptions(words=100, record=site.options))
    return collection


def keys(collection: Collection, *urls: str) -> set[bytes]:
    rules = read_rules(collection)
    return {alias.key for url in urls for alias in rules.aliases(Request("GET", url))}


async def test_a_page_that_answers_every_word_alike_answers_any_word(tmp_path: Path, ca, site) -> None:
    collection = await searched(tmp_path, ca, site, lambda target: "<script src=search.js></script>")
    (rule,) = read_rules(collection).own
    assert (rule.name, rule.host, rule.path, rule.shape) == ("q", "site.test", "/find", "any")
    assert len(keys(collection, f"{HOME}find?q=amber", f"{HOME}find?q=never+typed")) == 1
    assert len(keys(collection, f"{HOME}find?q=amber", f"{HOME}find?q=amber&page=2")) == 2


_DEPENDS = {
    "on one word of the site": lambda target: "found" if "fuchsia" in target else "nothing",
    "on a number": lambda target: "page 2" if "q=2" in target else "nothing",
    "on whether there is a query": lambda target: "results" if "q=" in target else "start",
    "by repeating the word": lambda target: target,
}


@pytest.mark.parametrize("how", list(_DEPENDS))
async def test_a_page_that_depends_on_its_query_has_no_rule(tmp_path: Path, ca, site, how: str) -> None:
    collection = await searched(tmp_path, ca, site, _DEPENDS[how])
    assert read_rules(collection).own == ()


async def test_a_recorded_answer_that_differs_removes_the_rule(tmp_path: Path, ca, site) -> None:
    collection = await searched(tmp_path, ca, site, lambda target: "<script src=search.js></script>")
    with CollectionWriter(collection) as writer:
        other = Response(200, headers=(("Content-Type", "text/html"),), raw_body=b"page 2")
        writer.write(Exchange(Request("GET", f"{HOME}find?all=1&q=amber"), other, "20260101000001"))
    assert write_constant_rules(collection, []) == []
    assert read_rules(collection).own == ()
