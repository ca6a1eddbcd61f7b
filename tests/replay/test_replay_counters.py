"""Requests that a script numbers: any number has the recorded answer, with the number of the request."""

from __future__ import annotations

import gzip
import json

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError
from stillweb.matching.counters import renumbered
from stillweb.matching.resolver import Policy
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.session import Session

SITE = "https://a.test/"
RULES = "version: 1\nvolatile:\n  - {where: query, name: draw, shape: counter, path: '/rows/*'}\n"
GZIP = (("Content-Encoding", "gzip"), ("Content-Type", "application/json"))
JSON = (("Content-Type", "application/json"),)
RECORDED = (
    ("rows/a?draw=1&start=0", GZIP, gzip.compress(b'{"draw": 1, "data": [[1, "x"]]}')),
    ("rows/a?draw=2&start=9", JSON, b'{"draw":"2","data":[]}'),
    ("rows/b?draw=1&start=0", JSON, b'{"data": []}'),
    ("rows/c?draw=1&start=0", JSON, b'{"draw": 1, "data": [{"draw": 1}]}'),
    ("other?draw=1", JSON, b'{"draw": 1}'),
)


@pytest.fixture
def session(tmp_path):
    made = Collection.create(tmp_path, "a")
    with CollectionWriter(made) as writer:
        for second, (path, fields, body) in enumerate(RECORDED):
            response = Response(200, "OK", fields, body)
            writer.write(Exchange(Request("GET", SITE + path), response, f"202405060708{second:02}"))
    (made.path / "rules.yaml").write_text(RULES)
    seal(made)
    return Session("s", "a", Pack.open(made.pack), Policy())


def send(session: Session, path: str) -> tuple[str, bytes]:
    accept = (("Accept-Encoding", "gzip"),)
    served = session.begin(Request("GET", SITE + path, accept))
    session.finish(served)
    if "content-encoding" not in served.answer.head.decode().lower():
        assert b"Content-Length: %d\r\n" % len(served.answer.body) in served.answer.head
    return str(served.match.tier), bytes(served.answer.body)


def test_an_answer_has_the_number_of_its_request(session) -> None:
    tier, body = send(session, "rows/a?draw=17&start=0")
    assert (tier, json.loads(body)) == ("normalised", {"draw": 17, "data": [[1, "x"]]})
    assert send(session, "rows/a?draw=5&start=9") == ("normalised", b'{"draw":"5","data":[]}')
    assert gzip.decompress(send(session, "rows/a?draw=1&start=0")[1]) == b'{"draw": 1, "data": [[1, "x"]]}'


@pytest.mark.parametrize(
    "path",
    [
        "rows/a?draw=3&start=5",  # another request
        "rows/a?draw=x&start=0",  # no number
        "rows/b?draw=3&start=0",  # its answer repeats no number
        "rows/c?draw=3&start=0",  # or another one, too
        "other?draw=3",  # without a rule
        "rows/a?draw=3&draw=4&start=0",
    ],
)
def test_other_requests_are_misses(session, path: str) -> None:
    assert send(session, path) == ("miss", b"")


def test_only_the_number_of_the_answer_changes() -> None:
    assert renumbered(b'{"sEcho" : 3 ,"a":[3]}', "sEcho", "3", "11") == b'{"sEcho" : 11 ,"a":[3]}'
    for body in (b'{"sEcho": 4}', b'{"sEcho": 33}', b'{"a": 3}', b'{"sEcho": "3}', b"", b"3"):
        assert renumbered(body, "sEcho", "3", "11") is None


def test_a_counter_is_in_the_query() -> None:
    with pytest.raises(CollectionError, match="counter is for the query only"):
        Rules.parse("version: 1\nvolatile:\n  - {where: form, name: draw, shape: counter}\n")
