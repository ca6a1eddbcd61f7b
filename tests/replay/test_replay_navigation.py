"""Navigations that miss: which requests are navigations, what they get; which URLs a session answers."""

from __future__ import annotations

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.resolver import Policy
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.session import Session

ORIGIN = "https://a.test"


@pytest.fixture
def session(tmp_path):
    collection = Collection.create(tmp_path, "a")
    with CollectionWriter(collection) as writer:
        for path, status in (("/", 200), ("/gone", 404), ("/empty", 204)):
            writer.write(Exchange(Request("GET", ORIGIN + path), Response(status), "20240506070809"))
    seal(collection)
    with Pack.open(collection.pack) as pack:
        yield Session("s", "a", pack, Policy())


NAVIGATIONS = {
    "a tab": {"mode": "navigate", "dest": "document"},
    "a tab, by a form": {"method": "POST", "mode": "navigate", "dest": "document"},
    "a frame, by the user": {"mode": "navigate", "dest": "iframe", "user": "?1"},
    "over http": {"upgrade": "1"},
}
OTHERS = {
    "the first document of a frame": {"mode": "navigate", "dest": "iframe"},
    "fetch": {"mode": "cors", "dest": "empty"},
    "fetch with the field of a navigation": {"mode": "cors", "dest": "empty", "upgrade": "1"},
    "an image": {"mode": "no-cors", "dest": "image"},
    "a script over http": {},
}


def status(session, path, method="GET", **given):
    names = {"mode": "Sec-Fetch-Mode", "dest": "Sec-Fetch-Dest", "user": "Sec-Fetch-User"}
    names["upgrade"] = "Upgrade-Insecure-Requests"
    headers = tuple((names[name], value) for name, value in given.items())
    served = session.begin(Request(method, ORIGIN + path, headers))
    session.finish(served)
    entry = session.ledger().entries[-1]
    assert entry.status == served.answer.status
    return entry.status, entry.tier


@pytest.mark.parametrize("kind", [*NAVIGATIONS, *OTHERS])
def test_what_a_miss_gets(session, kind):
    request = (NAVIGATIONS | OTHERS)[kind]
    assert status(session, "/absent", **request) == (404, "miss")
    session.cancels_navigations = True
    assert status(session, "/absent", **request) == (204 if kind in NAVIGATIONS else 404, "miss")
    session.reset()
    assert status(session, "/absent", **request) == (204 if kind in NAVIGATIONS else 404, "miss")


def test_what_is_recorded_is_answered_as_before(session):
    session.cancels_navigations = True
    for path, recorded in (("/", 200), ("/gone", 404), ("/empty", 204)):
        assert status(session, path, **NAVIGATIONS["a tab"]) == (recorded, "exact")


def test_a_lookup_changes_nothing(session):
    urls = [ORIGIN + path for path in ("/", "/absent", "/gone")] + ["https://b.test/", "http://a.test/"]
    assert session.lookup(urls) == [True, False, True, False, True]
    assert (session.ledger().entries, session.in_flight) == ((), 0)
