"""Writes of a recorded shape with other values: misses by default, guesses if a session accepts them."""

from __future__ import annotations

import json

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.matching.parts import shape_key
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.session import Session

ORIGIN = "https://a.test"
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
ACCEPT = Policy(unrecorded=UnrecordedAnswers(on_write="accept"))
MULTIPART = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\n%b\r\n--x--\r\n'


def post(path: str, body: bytes | str, kind: str = FORM, method: str = "POST") -> Request:
    content = body.encode() if isinstance(body, str) else body
    return Request(method, ORIGIN + path, (("Content-Type", kind),), content)


RECORDED = (
    (Request("GET", f"{ORIGIN}/list"), b"empty"),
    (post("/add", "text=first&token=1"), b"added first"),
    (Request("GET", f"{ORIGIN}/list"), b"first"),
    (post("/add", "text=second&token=2"), b"added second"),
    (Request("GET", f"{ORIGIN}/list"), b"first, second"),
    (post("/api?v=1", '{"text": "a", "done": false, "tags": ["x"]}', JSON), b"created"),
    (post("/upload", MULTIPART % b"a", "multipart/form-data; boundary=x"), b"uploaded"),
    (post("/item/1", "text=a", method="PUT"), b"put"),
    (Request("GET", f"{ORIGIN}/about"), b"about"),
)


@pytest.fixture
def collection(tmp_path):
    made = Collection.create(tmp_path, "a")
    with CollectionWriter(made) as writer:
        for second, (request, body) in enumerate(RECORDED):
            response = Response(200, "OK", (("Content-Type", "text/html"),), body)
            writer.write(Exchange(request, response, f"202405060708{second:02}"))
    seal(made)
    return made


def session_of(collection, policy=ACCEPT):
    return Session("s", "a", Pack.open(collection.pack), policy)


def send(session, request):
    served = session.begin(request)
    session.finish(served)
    return str(served.match.tier), bytes(served.answer.body)


SAME_SHAPE = {
    "a form": (post("/add", "text=own+words&token=9"), b"added first"),
    "JSON": (post("/api?v=1", '{"tags": ["y"], "done": false, "text": "own"}', JSON), b"created"),
    "a query": (post("/api?v=2", '{"text": "own", "done": false, "tags": ["x"]}', JSON), b"created"),
    "multipart": (post("/upload", MULTIPART % b"own", "multipart/form-data; boundary=x"), b"uploaded"),
    "PUT": (post("/item/1", "text=own", method="PUT"), b"put"),
}
OTHER_SHAPES = {
    "a further field": post("/add", "text=own&token=1&more=1"),
    "a missing field": post("/add", "text=own"),
    "another path": post("/item/2", "text=a", method="PUT"),
    "another method": post("/item/1", "text=a", method="PATCH"),
    "another kind of body": post("/add", '{"text": "own", "token": "1"}', JSON),
    "a JSON number for a text": post("/api?v=1", '{"text": 1, "done": false, "tags": ["x"]}', JSON),
    "another truth value": post("/api?v=1", '{"text": "a", "done": true, "tags": ["x"]}', JSON),
    "a longer list": post("/api?v=1", '{"text": "a", "done": false, "tags": ["x", "y"]}', JSON),
    "another query": post("/api?w=1", '{"text": "a", "done": false, "tags": ["x"]}', JSON),
    "a read": Request("GET", f"{ORIGIN}/other"),
}


@pytest.mark.parametrize("kind", SAME_SHAPE)
def test_a_write_of_a_recorded_shape_is_a_guess_if_accepted(collection, kind):
    request, body = SAME_SHAPE[kind]
    assert send(session_of(collection), request) == ("guess", body)
    assert send(session_of(collection, Policy()), request)[0] == "miss"


@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_a_write_of_another_shape_is_a_miss(collection, kind):
    assert send(session_of(collection), OTHER_SHAPES[kind])[0] == "miss"


def test_what_depends_on_an_accepted_write_is_a_guess(collection):
    session = session_of(collection)
    page = Request("GET", f"{ORIGIN}/list")
    assert send(session, page) == ("sequence", b"empty")
    assert send(session, post("/add", "text=own&token=1")) == ("guess", b"added first")
    assert send(session, page) == ("guess", b"first")
    assert send(session, post("/add", "text=more&token=1")) == ("guess", b"added second")
    assert send(session, page) == ("guess", b"first, second")
    assert send(session, Request("GET", f"{ORIGIN}/about"))[0] == "exact"
    assert session.describe()["counts"] == {"sequence": 1, "guess": 4, "exact": 1}
    details = session.ledger().entries[1].asked
    assert details is not None
    assert "body" in details
    session.reset()
    assert send(session, page) == ("sequence", b"empty")


def test_recorded_writes_are_answered_as_without_the_option(collection):
    for policy in (Policy(), ACCEPT):
        session = session_of(collection, policy)
        assert [send(session, request)[1] for request, _ in RECORDED] == [body for _, body in RECORDED]
        assert "guess" not in session.describe()["counts"]


def test_the_key_of_a_shape_has_no_values():
    one, other = (post("/api?v=1", json.dumps({"a": text, "b": [1]}), JSON) for text in ("x", "y"))
    assert shape_key(one) == shape_key(other)
    assert shape_key(one) != shape_key(post("/api?v=1", '{"a": "x", "c": [1]}', JSON))


def test_a_session_chooses_its_answers_before_its_first_request(collection):
    session = session_of(collection, Policy())
    session.answer_unrecorded(UnrecordedAnswers(on_write="accept"))
    assert send(session, post("/add", "text=own&token=1"))[0] == "guess"
    with pytest.raises(UsageError, match="has answered requests already"):
        session.answer_unrecorded(UnrecordedAnswers(derived=True))
    session.reset()
    assert send(session, post("/add", "text=own&token=1"))[0] == "guess"
