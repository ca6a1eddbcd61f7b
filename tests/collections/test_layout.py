"""Collections as folders: names, manifests, page lists, and revisits read through."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection, list_collections
from stillweb.collections.manifest import Manifest
from stillweb.collections.warc.reader import gzip_member
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.errors import CollectionError, CollectionExists, CollectionNotFound, MissingRecord, UsageError
from stillweb.model import Page


@pytest.mark.parametrize("name", ["", "A", ".x", "a/b", "../x", "a b", "-a", "_index"])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(UsageError, match="not a valid collection name"):
        Collection.create(tmp_path, name)
    with pytest.raises(CollectionNotFound):
        Collection.open(tmp_path, name)


def test_a_name_not_there_is_answered_with_close_ones(tmp_path):
    for name in ("shop", "blog", "wiki"):
        Collection.create(tmp_path, name)
    assert [each.name for each in list_collections(tmp_path)] == ["blog", "shop", "wiki"]
    assert list_collections(tmp_path / "none") == []
    with pytest.raises(CollectionNotFound) as caught:
        Collection.open(tmp_path, "shp")
    assert caught.value.hint.startswith("use one of: shop, ")
    with pytest.raises(CollectionNotFound) as caught:
        Collection.open(tmp_path / "none", "shp")
    assert "import" in caught.value.hint


def test_create_refuses_what_is_there(tmp_path):
    Collection.create(tmp_path, "a")
    with pytest.raises(CollectionExists, match="'a' exists already in"):
        Collection.create(tmp_path, "a")


def test_a_manifest_round_trips_and_keeps_what_it_does_not_know(tmp_path):
    collection = Collection.create(tmp_path, "a")
    assert collection.manifest() == Manifest(name="a")
    manifest = Manifest(
        "a", recorded_at="20240101000000", seed=7, sources=({"name": "x"},), extra={"new": [1]}
    )
    collection.write_manifest(manifest)
    assert collection.manifest() == manifest
    assert json.loads(collection.manifest_file.read_bytes())["new"] == [1]
    assert [path.name for path in collection.path.glob("*.part")] == []


NESTED = '{"login": ' + "[" * 900 + "]" * 900 + "}"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 99}', '{"login": 1e999}', '{"login": [NaN]}', NESTED]
)
def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path, text):
    collection = Collection.create(tmp_path, "a")
    collection.manifest_file.write_text(text)
    with pytest.raises(CollectionError, match=r"manifest\.json"):
        collection.manifest()


def test_pages_round_trip_and_those_of_browsertrix_are_read(tmp_path):
    collection = Collection.create(tmp_path, "a")
    assert collection.page_list() == []
    pages = [
        Page(
            "https://a.example/",
            "20240101000000",
            "T\u00eftle",
            "1",
            status=200,
            baseline="1",
            extra={"x": "y"},
        ),
        Page("https://a.example/2", "20240101000001", id="2", seed=False, depth=1),
    ]
    collection.write_pages(pages)
    assert collection.page_list() == pages
    (collection.pages / "extraPages.jsonl").write_text(
        '{"format":"json-pages-1.0","id":"pages"}\nnot json\n'
        '{"id":"3","url":"https://a.example/3","ts":"2024-01-01T00:00:02.5Z","loadState":4,"depth":2}\n'
    )
    extra = Page("https://a.example/3", "20240101000002", id="3", seed=False, depth=2)
    assert collection.page_list() == [*pages, extra]
    collection.write_pages([extra])
    assert collection.page_list() == [extra]


def record(kind: str, uri: str, block: bytes, *fields: tuple[str, str], date: str = "2024-01-01T00:00:00Z"):
    headers = (
        ("WARC-Type", kind),
        ("WARC-Record-ID", f"<urn:x:{kind}:{uri}:{date}>"),
        ("WARC-Target-URI", uri),
        ("WARC-Date", date),
    )
    return WarcRecord((*headers, *fields), block)


def collection_of(tmp_path, *records: WarcRecord) -> Collection:
    collection = Collection.create(tmp_path, "a")
    members = b"".join(gzip_member(serialise(each)) for each in records)
    (collection.archive / "a.warc.gz").write_bytes(members)
    reindex(collection)
    return collection


ORIGINAL = record(
    "response",
    "https://a.example/",
    b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nbody",
    ("WARC-Payload-Digest", "sha1:AAA"),
)
LATER = "2024-01-02T00:00:00Z"
SAME = ("WARC-Profile", "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest")
UNMODIFIED = ("WARC-Profile", "http://netpreserve.org/warc/1.1/revisit/server-not-modified")
REVISITS = {
    "by URI and date": (
        record(
            "revisit",
            "https://a.example/other",
            b"HTTP/1.1 200 OK\r\nX-A: 2\r\n\r\n",
            SAME,
            ("WARC-Refers-To-Target-URI", "https://a.example/"),
            ("WARC-Refers-To-Date", "2024-01-01T00:00:00Z"),
            date=LATER,
        ),
        "2",
    ),
    "by digest": (
        record(
            "revisit",
            "https://b.example/",
            b"HTTP/1.1 200 OK\r\nX-A: 2\r\n\r\n",
            SAME,
            ("WARC-Payload-Digest", "sha1:AAA"),
            date=LATER,
        ),
        "2",
    ),
    "a 304 gives the answer it confirmed": (
        record(
            "revisit",
            "https://a.example/",
            b"HTTP/1.1 304 Not Modified\r\nX-A: 2\r\n\r\n",
            UNMODIFIED,
            date=LATER,
        ),
        "1",
    ),
    "without a head": (
        record("revisit", "https://a.example/", b"", SAME, ("WARC-Payload-Digest", "sha1:AAA"), date=LATER),
        "1",
    ),
}


@pytest.mark.parametrize("name", REVISITS)
def test_a_revisit_has_its_originals_body(tmp_path, name):
    revisit, wanted = REVISITS[name]
    collection = collection_of(tmp_path, revisit, ORIGINAL)
    [capture] = [each for each in collection.captures() if each.mime == "warc/revisit"]
    found = collection.read_capture(capture).response
    assert (found.status, found.raw_body, found.headers) == (200, b"body", (("X-A", wanted),))


def test_a_revisit_of_nothing_says_what_is_missing(tmp_path):
    revisit = record("revisit", "https://a.example/", b"", SAME, ("WARC-Payload-Digest", "sha1:BBB"))
    collection = collection_of(tmp_path, revisit)
    [capture] = collection.captures()
    with pytest.raises(MissingRecord, match="sha1:BBB") as caught:
        collection.read_capture(capture)
    assert "--append" in caught.value.hint


def test_a_revisit_is_found_whose_original_was_recorded_since_the_last_one(tmp_path):
    revisit, _ = REVISITS["without a head"]
    collection = collection_of(tmp_path, revisit)
    [capture] = collection.captures()
    with pytest.raises(MissingRecord):
        collection.read_capture(capture)
    (collection.archive / "later.warc.gz").write_bytes(gzip_member(serialise(ORIGINAL)))
    reindex(collection)
    assert collection.read_capture(capture).response.raw_body == b"body"


def test_a_file_that_is_gone_is_named(tmp_path):
    collection = collection_of(tmp_path, ORIGINAL)
    [capture] = collection.captures()
    with pytest.raises(MissingRecord, match=r"gone\.warc\.gz"):
        collection.read_capture(replace(capture, source="gone.warc.gz"))


def test_a_resource_record_of_a_url_is_a_capture_and_others_are_not(tmp_path):
    resource = record("resource", "https://a.example/r", b"<p>", ("Content-Type", "text/html"))
    urn = record("resource", "urn:text:https://a.example/r", b"text", ("Content-Type", "text/plain"))
    dns = record("response", "dns:a.example", b"20240101000000\n", ("Content-Type", "text/dns"))
    collection = collection_of(tmp_path, resource, urn, dns)
    [capture] = collection.captures()
    response = collection.read_capture(capture).response
    assert (response.status, response.headers, response.raw_body) == (
        200,
        (("Content-Type", "text/html"),),
        b"<p>",
    )


def request(uri: str, text: bytes, *fields: tuple[str, str]) -> WarcRecord:
    return record("request", uri, text, *fields)


REQUESTED = b"POST / HTTP/1.1\r\n\r\nbody"
ANSWERED = b"HTTP/1.1 200 OK\r\n\r\n"
URI = "https://a.example/"


@pytest.mark.parametrize(
    "records",
    [
        (request(URI, REQUESTED), record("response", URI, ANSWERED)),
        (record("response", URI, ANSWERED), request(URI, REQUESTED)),
        (
            request(URI, REQUESTED),
            record("response", URI + "2", ANSWERED),
            record(
                "response",
                URI,
                ANSWERED,
                ("WARC-Concurrent-To", f"<urn:x:request:{URI}:2024-01-01T00:00:00Z>"),
            ),
        ),
        (
            record("response", URI, ANSWERED),
            record("response", URI + "2", ANSWERED),
            request(URI, REQUESTED, ("WARC-Concurrent-To", f"<urn:x:response:{URI}:2024-01-01T00:00:00Z>")),
        ),
    ],
    ids=["before", "after", "named by the response", "named by the request"],
)
def test_a_response_finds_its_request(tmp_path, records):
    collection = collection_of(tmp_path, *records)
    methods = {each.url: each.method for each in collection.captures()}
    assert methods.pop(URI) == "POST"
    assert set(methods.values()) <= {"GET"}
    exchange = next(each for each in collection.exchanges() if each.request.url == URI)
    assert exchange.request.raw_body == b"body"


def test_a_request_beside_with_another_uri_is_not_taken(tmp_path):
    collection = collection_of(tmp_path, request(URI + "x", REQUESTED), record("response", URI, ANSWERED))
    assert [each.method for each in collection.captures()] == ["GET"]


def test_a_method_in_the_target_uri_is_undone(tmp_path):
    stored = record("response", URI + "?__wb_method=POST&__wb_post_data=aGk=", ANSWERED)
    collection = collection_of(tmp_path, stored)
    [capture] = collection.captures()
    assert (capture.url, capture.method) == (URI, "POST")
    assert "__wb_method=post" in capture.urlkey
    request = collection.read_capture(capture).request
    assert (request.method, request.url, request.raw_body) == ("POST", URI, b"hi")
