from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from stillweb.browser.activity import Requested
from stillweb.collections.baselines import read_baseline
from stillweb.collections.layout import Collection
from stillweb.model import Exchange, Request, Response
from stillweb.record.crawl.crawl import CrawlEvent, crawl
from stillweb.record.options import CrawlOptions
from stillweb.record.proxy.running import ProxyDigestCache, response_fingerprint

STYLE = "https://site.test/style.css"


def make_request(kind: str = "stylesheet", body: bytes = b"p {}") -> Requested:
    return Requested(STYLE, "GET", kind, 0.0, status=200, ended=True, body=sha256(body).hexdigest())


def exchange(body: bytes = b"p {}", **more) -> Exchange:
    response = Response(200, "OK", (("Content-Type", "text/css"),), body)
    return Exchange(Request("GET", STYLE), replace(response, **more), "20260101000000")


def after(*marks: bytes) -> ProxyDigestCache:
    same = ProxyDigestCache()
    for mark in marks:
        same.begin(STYLE)
        same.end(STYLE, mark)
    return same


def test_what_was_reported_once_holds_for_the_same_bytes():
    mark = response_fingerprint(exchange())
    same = after(mark)
    assert same.recall(make_request()) == ""  # nothing was learned
    same.learn(make_request(), b"p {}")
    same.begin(STYLE)
    same.end(STYLE, mark)
    assert same.recall(make_request()) == sha256(b"p {}").hexdigest()
    assert same.recall(make_request("fetch")) == ""  # which may be read by another charset


def test_an_answer_under_way_may_be_another_one():
    same = after(response_fingerprint(exchange()))
    same.learn(make_request(), b"p {}")
    same.begin(STYLE)
    assert same.recall(make_request()) == ""


@pytest.mark.parametrize(
    "other",
    [
        b"",  # it broke off, or was too long
        response_fingerprint(exchange(b"a {}")),
        response_fingerprint(exchange(status=404)),
        response_fingerprint(exchange(headers=(("Content-Type", "text/css; charset=utf-16"),))),
        response_fingerprint(exchange(headers=(("Content-Type", "text/css"), ("Content-Encoding", "gzip")))),
    ],
)
def test_after_another_answer_nothing_is_certain_any_more(other: bytes):
    mark = response_fingerprint(exchange())
    same = after(mark)
    same.learn(make_request(), b"p {}")
    for each in (other, mark):
        same.begin(STYLE)
        same.end(STYLE, each)
        assert same.recall(make_request()) == ""
    same.learn(make_request(), b"p {}")
    assert same.recall(make_request()) == ""


@pytest.mark.parametrize(("kind", "known"), [("stylesheet", False), ("image", True)])
def test_a_text_beyond_ascii_may_be_read_as_its_document_is(kind: str, known: bool):
    same = after(response_fingerprint(exchange("ü".encode())))
    same.learn(make_request(kind), "ü".encode())
    assert bool(same.recall(make_request(kind))) == known


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_baselines_say_what_each_page_got(tmp_path: Path, ca, site, answer) -> None:
    page = '<link rel=stylesheet href="/same.css"><script src="/turn.js"></script><a href="/%s">next</a>'
    for path, following in (("/", "a"), ("/a", "b"), ("/b", "")):
        site.page(path, page % following)
    turns = [b"turn = 0", b"turn = 1", b"turn = 0"]
    site.answers["/same.css"] = answer(b"p {}", "text/css")
    site.answers["/turn.js"] = answer(turns[0], "text/javascript")

    def turn(event: CrawlEvent) -> None:
        site.answers["/turn.js"] = answer(turns[event.pages % len(turns)], "text/javascript")

    collection = Collection.create(tmp_path, "site")
    options = CrawlOptions(record=site.options, jobs=1, behaviors=frozenset())
    report = await crawl(["https://site.test/"], collection, ca, options, turn)

    digests = [
        {entry.url.rpartition("/")[2]: entry.body for entry in read_baseline(folder).requests}
        for folder in (collection.baseline / page.baseline for page in report.pages)
    ]
    assert [each["turn.js"] for each in digests] == [sha256(turn).hexdigest() for turn in turns]
    assert {each["same.css"] for each in digests} == {sha256(b"p {}").hexdigest()}
