from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from stillweb.collections.export import export
from stillweb.collections.importers.importer import import_files
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.reader import gzip_member
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError
from stillweb.matching.captures import Entry, vary_digest
from stillweb.matching.keys import request_key
from stillweb.matching.rules import Rules
from stillweb.model import VISITED_AGAIN, Exchange, Page, Request, Response

A = "https://a.test/"
RULES = "version: 1\nvolatile:\n  - {where: query, name: t, shape: seconds}\n"
DIGESTED = ("manifest.json", "index.bin", "entries.bin")
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"


def _record(kind: str, url: str, block: bytes = b"", at: int = 0, **fields: str) -> bytes:
    headers = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:test:{kind}:{url}:{at}>",
        "WARC-Target-URI": url,
        "WARC-Date": f"2026-01-01T00:00:{at:02}Z",
        "Content-Type": "application/http" if kind in ("response", "request", "revisit") else "text/plain",
    } | {name.replace("_", "-"): value for name, value in fields.items()}
    return gzip_member(serialise(WarcRecord(tuple(headers.items()), block)))


def _request(
    url: str, line: str, at: int = 0, body: bytes = b"", content_type: str = "application/json"
) -> bytes:
    block = f"{line} HTTP/1.1\r\nContent-Type: {content_type}\r\n\r\n".encode() + body
    return _record("request", url, block, at)


@pytest.fixture
def make(tmp_path):
    def collection(*records: bytes, name: str = "site", file: str = "a.warc.gz") -> Collection:
        made = Collection.create(tmp_path, name)
        (made.archive / file).write_bytes(b"".join(records))
        reindex(made)
        return made

    return collection


def _entries(collection: Collection) -> list[Entry]:
    with Pack.open(collection.pack) as pack:
        pack.verify()
        entries = [pack.entry(row) for row in range(len(pack))]
        for row, entry in enumerate(entries):
            assert row in pack.lookup(entry.key)
        return sorted(entries, key=lambda entry: entry.order)


def _bodies(collection: Collection) -> list[bytes]:
    return [bytes(entry.body) for entry in _entries(collection)]


def test_a_recording_becomes_entries_in_recorded_order(tmp_path):
    collection = Collection.create(tmp_path, "shop")
    cart = A + "cart"
    post = Request("POST", cart, (("Content-Type", "application/json"),), b'{"item": 1, "n": 2}')
    story = [
        (
            Request("GET", cart),
            Response(200, "OK", (("Content-Type", "text/html; charset=utf-8"),), b"empty"),
        ),
        (post, Response(303, "See Other", (("Location", "/cart"), ("Content-Length", "0")))),
        (Request("GET", cart), Response(200, "OK", (("Content-Type", "text/html"),), b"one")),
        (Request("DELETE", cart), Response(204, "No Content")),
        (Request("GET", cart), Response(200, "OK", (("Content-Type", "text/html"),), b"empty")),
    ]
    with CollectionWriter(collection) as writer:
        for number, (request, response) in enumerate(story):
            writer.write(Exchange(request, response, f"2026010100000{number}"))
    info = seal(collection)
    assert (info.entries, info.bodies, info.warnings) == (5, 3, ())
    entries = _entries(collection)
    assert [(entry.method, entry.status, entry.epoch) for entry in entries] == [
        ("GET", 200, 0),
        ("POST", 303, 0),
        ("GET", 200, 1),
        ("DELETE", 204, 1),
        ("GET", 200, 2),
    ]
    assert bytes(entries[1].head) == b"HTTP/1.1 303 See Other\r\nLocation: /cart\r\n"
    with Pack.open(collection.pack) as pack:
        assert [bytes(pack.entry(row).body) for row in pack.lookup(request_key("GET", cart))] == [
            b"empty",
            b"one",
            b"empty",
        ]
        assert len(pack.lookup(request_key("POST", cart, "application/json", b'{"n":2,"item":1}'))) == 1
        assert pack.environment_id == info.environment_id
        files = sum((collection.pack / name).stat().st_size for name in DIGESTED)
        assert info.bytes == files + len(b"empty" + b"one")


def test_same_collection_same_bytes_wherever_it_lies(make, tmp_path):
    records = [_record("response", A + str(n), OK + b"%d" % (n % 3), at=n % 2) for n in range(20)]
    collection = make(*records)
    collection.write_manifest(Manifest(name="site", created="2026-01-01", seed=7, profile={"b": 1, "a": 2}))
    first = seal(collection)
    before = {file.name: file.read_bytes() for file in collection.pack.iterdir()}
    assert seal(collection) == first
    other = Collection(tmp_path / "elsewhere", "renamed")
    shutil.copytree(collection.path, other.path, ignore=shutil.ignore_patterns("pack", "indexes"))
    other.write_manifest(Manifest(name="renamed", created="2027-07-07", seed=7, profile={"a": 2, "b": 1}))
    assert seal(other).environment_id == first.environment_id
    assert {file.name: file.read_bytes() for file in other.pack.iterdir()} == before
    assert str(tmp_path).encode() not in b"".join(before.values())
    other.write_manifest(Manifest(name="renamed", seed=8, profile={"a": 2, "b": 1}))
    assert seal(other).environment_id != first.environment_id


def test_manifest_says_what_replay_must_repeat(make):
    collection = make(_record("response", A, OK, at=5), _record("response", A + "b", OK, at=3))
    (collection.path / "rules.yaml").write_text(RULES)
    seal(collection)
    with Pack.open(collection.pack) as pack:
        assert pack.manifest["recorded_at"] == "20260101000003"  # imports know no time of their own
        assert pack.manifest["rules"] == RULES
        assert "created" not in pack.manifest
    collection.write_manifest(Manifest(recorded_at="20250101000000", seed=3, profile={"locale": "de"}))
    seal(collection)
    with Pack.open(collection.pack) as pack:
        stored = {name: pack.manifest[name] for name in ("recorded_at", "seed", "profile")}
        assert stored == {"recorded_at": "20250101000000", "seed": 3, "profile": {"locale": "de"}}
    (collection.path / "rules.yaml").write_bytes(b"volatile: \xff")
    with pytest.raises(CollectionError, match=r"rules\.yaml:10: rules are not UTF-8"):
        seal(collection)


REVISIT_OF_A = {"WARC_Refers_To_Target_URI": A, "WARC_Refers_To_Date": "2026-01-01T00:00:00Z"}


def test_revisits_get_their_originals_body(make):
    digest = {"WARC_Payload_Digest": "sha1:AAAA"}
    collection = make(
        _record("response", A, OK + b"original", 0, **digest),
        _record("revisit", A, b"HTTP/1.1 200 OK\r\nX-New: 1\r\n\r\n", 1, **REVISIT_OF_A, **digest),
        _record("revisit", "https://b.test/", OK, 2, **REVISIT_OF_A, **digest),
        _record("revisit", "https://c.test/", b"", 3, **digest),
        _record("revisit", "https://d.test/", OK, 4, WARC_Payload_Digest="sha1:ZZZZ"),
    )
    info = seal(collection)
    assert _bodies(collection) == [b"original"] * 4
    assert (info.entries, info.bodies) == (4, 1)
    assert b"X-New: 1" in bytes(_entries(collection)[1].head)
    assert [warning for warning in info.warnings if "https://d.test/" in warning] == list(info.warnings)
    assert len(info.warnings) == 1
    assert "a.warc.gz:" in info.warnings[0]


def test_a_revisit_repeats_what_its_digest_says_and_not_what_else_was_there_at_that_time(make):
    options = b"HTTP/1.1 200 OK\r\n\r\npreflight"
    collection = make(
        _request(A, "OPTIONS / ", 0),
        _record("response", A, options, 0, WARC_Payload_Digest="sha1:AAAA"),
        _request(A, "POST /", 0, b"{}"),
        _record("response", A, OK + b"posted", 0, WARC_Payload_Digest="sha1:BBBB"),
        _record("revisit", A, OK, 1, **REVISIT_OF_A, WARC_Payload_Digest="sha1:BBBB"),
        _record("revisit", A + "x", OK, 2, **REVISIT_OF_A, WARC_Payload_Digest="sha1:CCCC"),
    )
    info = seal(collection)
    assert _bodies(collection) == [b"preflight", b"posted", b"posted"]
    assert [w.partition(" refers")[0].rpartition(" ")[2] for w in info.warnings] == [A + "x"]


@pytest.mark.parametrize("coding", [b"", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n"])
def test_a_revisit_of_another_payload_than_its_original_s_has_none(make, coding):
    packed = gzip.compress(b"payload", mtime=0)
    stored = {b"": b"payload", b"Transfer": b"7\r\npayload\r\n0\r\n\r\n"}.get(
        coding.partition(b"-")[0], packed
    )
    spelled = (
        hashlib.sha1(b"payload").digest(),
        hashlib.sha1(stored).digest(),
        hashlib.sha1(b"other").digest(),
    )
    collection = make(
        _record("response", A, b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n" + stored, 0),  # states no digest
        *(
            _record("revisit", f"{A}{at}", OK, at, **REVISIT_OF_A, WARC_Payload_Digest="sha1:" + text)
            for at, text in enumerate(
                (base64.b32encode(spelled[0]).decode(), spelled[1].hex(), spelled[2].hex()), 1
            )
        ),
    )
    info = seal(collection)
    assert [entry.url[-1] for entry in _entries(collection)] == ["/", "1", "2"]
    assert "which https://a.test/ does not have" in info.warnings[0]


def test_a_revisit_without_a_digest_is_not_of_the_empty_payload(make):
    collection = make(
        _record("response", A, b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", 0),
        _record("revisit", A + "page", OK, 1),
    )
    assert "refers to" in seal(collection).warnings[0]
    assert [entry.url for entry in _entries(collection)] == [A]


def test_a_server_confirms_only_what_the_same_request_brought(make):
    profile = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    collection = make(
        _record("response", A, OK + b"page", 0),
        _request(A, "POST /", 2, b"{}"),
        _record("response", A, OK + b"posted", 2),
        _record("revisit", A, b"HTTP/1.1 304 Not Modified\r\n\r\n", 3, WARC_Profile=profile),
    )
    seal(collection)
    assert _bodies(collection) == [b"page", b"posted", b"page"]


def test_a_revisit_has_the_coding_of_the_body_that_is_there(make):
    digest = {"WARC_Payload_Digest": "sha1:AAAA"}
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"page")
    collection = make(
        _record("response", A, packed, 0, **digest), _record("revisit", A + "b", OK, 1, **digest)
    )
    seal(collection)
    assert [entry.encoding for entry in _entries(collection)] == ["gzip", "gzip"]


def test_a_revisit_without_a_head_is_no_redirect_of_another_url(make):
    moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n"
    digest = {"WARC_Payload_Digest": "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"}
    collection = make(
        _record("response", A, moved, 0, **digest), _record("revisit", A + "b", b"", 1, **digest)
    )
    assert "is without a head" in seal(collection).warnings[0]
    assert [entry.url for entry in _entries(collection)] == [A]


def test_an_index_that_is_of_another_file_is_rebuilt(make):
    collection = make(_record("response", A + "a", OK + b"a"), _record("response", A + "b", OK + b"b"))
    file = next(iter(collection.warc_files()))
    records = [_record("response", A + "b", OK + b"b"), _record("response", A + "a", OK + b"a")]
    file.write_bytes(b"".join(records))
    os.utime(file, ns=(0, 0))  # copied in with its old time
    info = seal(collection)
    assert [(entry.url[-1:], bytes(entry.body)) for entry in _entries(collection)] == [
        ("b", b"b"),
        ("a", b"a"),
    ]
    assert len(info.warnings) == 1
    assert "but the record is of" in info.warnings[0]
    assert info.warnings[0].endswith("so it was rebuilt")


@pytest.mark.parametrize("members", [("request",), ("offset", "length")])
def test_an_index_that_joins_a_post_with_the_answer_to_another_is_rebuilt(make, members):
    collection = make(
        *(
            record
            for at in (0, 1)
            for record in (
                _request(A, "POST /", at, b'{"n": %d}' % at),
                _record("response", A, OK + b"answer %d" % at, at),
            )
        )
    )
    rows = [line.split(b" ", 2) for line in collection.index_file.read_bytes().splitlines()]
    first, second = (json.loads(row[2]) for row in rows)
    for name in members:
        first[name], second[name] = second[name], first[name]
    rows = [[*row[:2], json.dumps(each).encode()] for row, each in zip(rows, (first, second), strict=True)]
    collection.index_file.write_bytes(b"".join(b" ".join(row) + b"\n" for row in rows))
    assert seal(collection).warnings[0].endswith("so it was rebuilt")
    keys = [request_key("POST", A, "application/json", b'{"n": %d}' % at) for at in (0, 1)]
    with Pack.open(collection.pack) as pack:
        bodies = [bytes(pack.entry(row).body) for key in keys for row in pack.lookup(key)]
    assert bodies == [b"answer 0", b"answer 1"]
    assert seal(collection).warnings == ()


def test_ids_of_several_requests_do_not_join_an_answer_with_another_request(make):
    same = {"WARC_Record_ID": "<urn:test:same>", "WARC_Concurrent_To": "<urn:test:same>"}
    posted = b"POST / HTTP/1.1\r\n\r\n%d"
    pairs = [
        record
        for at in range(4)
        for record in (
            _record("request", A, posted % at, 0, **same),
            _record("response", A, OK + b"%d" % at, 0, **same),
        )
    ]
    collection = make(*pairs, *pairs)  # concatenated files repeat their ids
    seal(collection)
    with Pack.open(collection.pack) as pack:
        for at in range(4):
            rows = pack.lookup(request_key("POST", A, "", b"%d" % at))
            assert {bytes(pack.entry(row).body) for row in rows} == {b"%d" % at}
    collection = make(*pairs[::2], *pairs[1::2], name="apart")
    defects = []
    reindex(collection, defects.append)
    assert {each.code for each in defects} == {"no-request"}
    assert {capture.method for capture in collection.captures()} <= {"POST"}


def test_a_304_is_what_it_confirmed(make):
    confirmed = b"HTTP/1.1 304 Not Modified\r\n\r\n"
    collection = make(
        _record("response", A + "late", confirmed, 0),
        _record("response", A, OK + b"one", 0),
        _record("response", A, confirmed, 1),
        _record("response", A, OK + b"two", 2),
        _record("response", A, b"HTTP/1.1 500 Oops\r\n\r\nbroken", 3),
        _record("response", A, confirmed, 4),
        _record("response", A + "late", OK + b"late", 5),
        _record("response", A + "never", confirmed, 6),
    )
    info = seal(collection)
    entries = _entries(collection)
    assert 304 not in {entry.status for entry in entries}
    assert [bytes(entry.body) for entry in entries if entry.url == A] == [
        b"one",
        b"one",
        b"two",
        b"broken",
        b"two",
    ]
    assert [bytes(entry.body) for entry in entries if entry.url != A] == [b"late", b"late"]
    assert entries[0].timestamp == "20260101000000"
    assert len(info.warnings) == 1
    assert "304 of https://a.test/never" in info.warnings[0]


def test_a_206_stays_only_where_no_200_is(make):
    part = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/4\r\n\r\nab"
    collection = make(
        _record("response", A, part, 0),
        _record("response", A, OK + b"abcd", 1),
        _record("response", A + "part", part, 2),
        _record("response", A + "part", b"HTTP/1.1 404 Not Found\r\n\r\n", 3),
    )
    assert seal(collection).warnings == ()
    assert [(entry.url, entry.status) for entry in _entries(collection)] == [
        (A, 200),
        (A + "part", 206),
        (A + "part", 404),
    ]


def test_of_a_page_that_was_visited_again_the_later_document_counts(make, tmp_path):
    page = Page(A, "20260101000005", extra={VISITED_AGAIN: "the crawl continued"})
    records = (
        _request(A, "GET /", 1),
        _record("response", A, OK + b"given up", 1, WARC_Concurrent_To=f"<urn:test:request:{A}:1>"),
        _record("response", A + "kept", OK + b"kept", 1),
        _record("response", A + "kept", OK + b"later", 6),
        _record("response", A + "lost", OK + b"lost", 1),
        _request(A, "POST /", 2, b"{}"),
        _record("response", A, OK + b"posted", 2, WARC_Concurrent_To=f"<urn:test:request:{A}:2>"),
        _record("response", A, OK + b"page", 5),
    )
    collection = make(*records)
    collection.write_pages([page, replace(page, url=A + "kept", extra={}), replace(page, url=A + "lost")])
    warnings = seal(collection).warnings
    assert [line.partition("left out: ")[2] for line in warnings] == [f"{A}, which was visited again later"]
    assert _bodies(collection) == [b"kept", b"lost", b"posted", b"page", b"later"]

    # The mark goes where the collection goes; of a page that is listed twice, both visits stay.
    export(collection, tmp_path / "site.wacz")
    import_files([tmp_path / "site.wacz"], tmp_path, "copy")
    copy = Collection.open(tmp_path, "copy")
    assert copy.page_list()[0].extra == page.extra
    assert len(seal(copy).warnings) == 1
    assert _bodies(copy) == _bodies(collection)
    copy.write_pages([*copy.page_list(), replace(page, timestamp="20260101000001", extra={})])
    assert seal(copy).warnings == ()


def test_what_another_page_requested_stays_though_its_page_was_visited_again(tmp_path):
    collection = Collection.create(tmp_path, "site")
    story = (
        ((("HX-Request", "true"),), b"part", "20260101000001"),
        ((("User-Agent", "a"),), b"given up", "20260101000002"),
        ((("User-Agent", "b"),), b"page", "20260101000003"),
    )
    with CollectionWriter(collection) as writer:
        for fields, body, when in story:
            answer = Response(200, "OK", (("Content-Type", "text/html"), ("Vary", "User-Agent")), body)
            writer.write(Exchange(Request("GET", A, fields), answer, when))
    collection.write_pages([Page(A, "20260101000003", extra={VISITED_AGAIN: "status 503"})])
    seal(collection)
    assert _bodies(collection) == [b"part", b"page"]


def test_what_is_no_http_answer_is_left_out(make):
    collection = make(
        _record("warcinfo", "", b"software: x\r\n"),
        _record("response", "dns:a.test", b"a.test. 1 IN A 127.0.0.1"),
        _record("resource", "urn:pageinfo:https://a.test/", b"{}"),
        _record("metadata", A, b"outlink: x"),
        _record("resource", A + "r.txt", b"resource"),
        _record("response", A + "up", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
        _record("response", A + "bare", b"HTTP/1.1 404\r\nContent-Type: text/html\r\n\r\nno reason"),
        _record("response", A + "odd", b"HTTP/1.1 999 Denied\r\n\r\n"),
    )
    info = seal(collection)
    entries = {entry.url: entry for entry in _entries(collection)}
    assert sorted(entries) == [A + "bare", A + "odd", A + "r.txt"]
    assert bytes(entries[A + "r.txt"].head) == b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    assert bytes(entries[A + "bare"].head) == b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n"
    assert entries[A + "odd"].status == 999
    assert [warning.partition("left out: ")[2] for warning in info.warnings] == [f"status 101 of {A}up"]


def test_bodies_are_as_recorded_without_chunks_and_lies(make):
    packed = gzip.compress(b"hello", mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
    collection = make(
        _record(
            "response",
            A + "1",
            head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + packed[:5] + b"\r\n0\r\n\r\n",
        ),
        _record("response", A + "2", head + b"\r\n" + packed),
        _record("response", A + "3", head + b"\r\nhello"),
    )
    seal(collection)
    entries = _entries(collection)
    assert [(bytes(entry.body), entry.encoding) for entry in entries] == [
        (packed[:5], "gzip"),
        (packed, "gzip"),
        (b"hello", ""),
    ]
    assert all(b"hunked" not in bytes(entry.head) for entry in entries)


def test_requests_give_the_key(make):
    body = b'{"query":"mutation { add }","variables":{"n":1}}'
    collection = make(
        _request(A + "graphql", "POST /graphql", 0, body),
        _record("response", A + "graphql", OK + b"added", 0),
        _record("response", A + "p?a=1&__wb_method=POST&__wb_post_data=eD0x", OK + b"undone", 1),
    )
    seal(collection)
    with Pack.open(collection.pack) as pack:
        spelled = b'{"variables": {"n": 1}, "operationName": null, "query": "mutation { add }"}'
        assert len(pack.lookup(request_key("POST", A + "graphql", "application/json", spelled))) == 1
        assert len(pack.lookup(request_key("GET", A + "graphql"))) == 0
        assert len(pack.lookup(request_key("POST", A + "p?a=1", "", b"x=1"))) == 1


def test_a_damaged_record_costs_itself_alone(make):
    records = [_record("response", A + str(n), OK + b"x" * 300, n) for n in range(3)]
    collection = make(*records)
    file = collection.archive / "a.warc.gz"
    broken = bytearray(file.read_bytes())
    broken[len(records[0]) + 40] ^= 0xFF
    file.write_bytes(broken)
    index = collection.index_file
    index.write_bytes(
        index.read_bytes() + index.read_bytes().splitlines()[0].replace(b"a.warc", b"gone.warc") + b"\n"
    )
    info = seal(collection)
    assert [entry.url for entry in _entries(collection)] == [A + "0", A + "2"]
    assert len(info.warnings) == 2
    for name in ("/a.warc.gz", "/gone.warc.gz"):
        assert sum(name in warning for warning in info.warnings) == 1


def test_a_missing_or_old_index_is_made_anew(make):
    collection = make(_record("response", A, OK))
    collection.index_file.unlink()
    info = seal(collection)
    assert info.entries == 1
    assert "index.cdxj: was missing or older" in info.warnings[0]
    assert seal(collection).warnings == ()


def test_progress_is_reported(make):
    seen: list[int] = []
    seal(make(*(_record("response", A + str(n), OK) for n in range(3))), on_progress=seen.append)
    assert seen == [1, 2, 3]


def _warcs_of(path: Path, folder: Path) -> None:
    if path.suffix == ".wacz":
        with zipfile.ZipFile(path) as wacz:
            for name in wacz.namelist():
                if name.startswith("archive/") and "warc" in name:
                    (folder / Path(name).name).write_bytes(wacz.read(name))
    else:
        shutil.copy(path, folder)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "iana.warc.gz",
        "example-iana.warc",
        "svelte_toolbar.wacz",
        "browsertrix/dyn1.rec.warc.gz",
        "defects/post-test.warc.gz",
        "defects/example.arc",
        "defects/clipped.warc.gz",
        "defects/missing-http.warc.gz",
    ],
)
def test_real_archives(shared, tmp_path, name):
    collection = Collection.create(tmp_path, "real")
    _warcs_of(shared / "archives" / name, collection.archive)
    reindex(collection)
    info = seal(collection)
    assert seal(collection) == info
    captures = {capture.url for capture in collection.captures() if capture.status not in (0, 304)}
    with Pack.open(collection.pack) as pack:
        assert set(pack.urls()) >= captures - {warning.split(" of ")[-1] for warning in info.warnings}
        pack.verify()
        json.dumps(pack.manifest)


def test_an_answer_without_a_request_takes_none_of_its_neighbours(make):
    collection = make(
        _record("response", A, OK + b"page", 0),
        _request(A, "POST /", 2, b"{}"),
        _record("response", A, OK + b"posted", 2),
    )
    assert [(capture.method, capture.timestamp[-2:]) for capture in collection.captures()] == [
        ("GET", "00"),
        ("POST", "02"),
    ]


def test_the_answer_of_a_request_that_is_lost_passes_for_no_gets(tmp_path):
    collection = Collection.create(tmp_path, "site")
    with CollectionWriter(collection) as writer:
        answers = (("GET", b"page"), ("POST", b"posted"))
        captures = [
            writer.write(Exchange(Request(method, A), Response(200, "OK", (), body), "20260101000000"))
            for method, body in answers
        ]
    file = next(iter(collection.warc_files()))
    content = bytearray(file.read_bytes())
    content[captures[1].request_offset + 20] ^= 0xFF
    file.write_bytes(content)
    defects = []
    reindex(collection, defects.append)
    assert [capture.method for capture in collection.captures()] == ["GET"]
    assert ("no-request", captures[1].offset) in [(each.code, each.offset) for each in defects]


def test_answers_copied_without_their_requests_count_as_gets(make):
    collection = make(
        _record("response", A, OK, WARC_Concurrent_To="<urn:test:elsewhere:1>"),
        _record("response", A + "b", OK, WARC_Concurrent_To="<urn:test:elsewhere:2>"),
    )
    assert [capture.method for capture in collection.captures()] == ["GET", "GET"]


def test_a_page_that_broke_off_is_no_answer(make):
    def answered(length: int, status: bytes = b"200 OK") -> bytes:
        return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\npart" % (status, length)

    collection = make(
        _record("response", A, answered(1000), 0),
        _record("response", A, answered(4), 1),
        _record("response", A + "cut", answered(1000), 2),
        _record("response", A + "decoded", answered(30), 3),
        _record("response", A + "moved", answered(1000, b"302 Found"), 4),
        _request(A + "head", "HEAD /head", 5),
        _record("response", A + "head", answered(1000), 5),
    )
    info = seal(collection)
    assert [entry.url for entry in _entries(collection)] == [A, A + "decoded", A + "moved", A + "head"]
    assert [warning.partition("left out: ")[2] for warning in info.warnings] == [
        f"{A} broke off: 4 of 1000 bytes",
        f"{A}cut broke off: 4 of 1000 bytes",
    ]


def test_what_an_answer_varies_by_is_stored_with_what_the_request_had(make):
    vary = b"HTTP/1.1 200 OK\r\nVary: Accept-Encoding, X-Mode\r\nvary: Cookie , *\r\n\r\n"
    fields = b"GET %b HTTP/1.1\r\nX-Mode: dark\r\n%b\r\n"
    collection = make(
        _record("request", A, fields % (b"/", b"Authorization: Basic eDp5\r\n"), 0),
        _record("response", A, vary + b"page", 0),
        _record("request", A + "b", fields % (b"/b", b""), 1),
        _record("response", A + "b", OK + b"plain", 1),
        _record("response", A + "c", vary + b"its request was not recorded", 2),
    )
    seal(collection)
    assert [entry.varies for entry in _entries(collection)] == [
        (
            ("authorization", vary_digest("Basic eDp5")),
            ("cookie", vary_digest("")),
            ("x-mode", vary_digest("dark")),
        ),
        (("?x-mode", vary_digest("dark")),),
        (),
    ]


def test_what_else_the_page_has_set_is_stored_as_a_preference(make):
    fields = (
        b"X-Action: list\r\nX-Mode: dark\r\nRSC: 1\r\nX-Empty:\r\n"
        b"Host: a.test\r\nUser-Agent: b\r\nSec-CH-UA: c\r\nCache-Control: no-cache\r\nVia: 1.1 x\r\n"
        b"Traceparent: 00-1\r\nX-B3-TraceId: 2\r\nSentry-Trace: 3\r\nX-CSRF-Token: 4\r\nPriority: u=1\r\n"
    )
    collection = make(
        _record("request", A, b"GET / HTTP/1.1\r\n" + fields + b"\r\n", 0),
        _record("response", A, b"HTTP/1.1 200 OK\r\nVary: X-Mode\r\n\r\npage", 0),
    )
    seal(collection)
    [entry] = _entries(collection)
    assert dict(entry.varies) == {
        "?x-action": vary_digest("list"),
        "rsc": vary_digest("1"),
        "x-mode": vary_digest("dark"),
    }


def test_entries_are_found_under_what_the_rules_leave_of_their_requests(make):
    collection = make(
        _record("response", A + "?t=1760000000", OK + b"early", 0),
        _record("response", A + "?t=1760000009", OK + b"late", 1),
        _record("response", A + "?t=x", OK + b"other", 2),
    )
    (collection.path / "rules.yaml").write_text(RULES)
    seal(collection)
    [alias] = Rules.parse(RULES).aliases(Request("GET", A + "?t=1770000000"))
    with Pack.open(collection.pack) as pack:
        assert [bytes(pack.entry(row).body) for row in pack.lookup(alias.key)] == [b"early", b"late"]
        assert len(pack) == 3
        before = pack.environment_id
    (collection.path / "rules.yaml").write_text("version: 1\ndefaults: false\n")
    assert seal(collection).environment_id != before
    with Pack.open(collection.pack) as pack:
        assert list(pack.lookup(alias.key)) == []


def test_rules_that_cannot_be_read_are_reported_by_file_and_line(make):
    collection = make(_record("response", A, OK))
    (collection.path / "rules.yaml").write_text("version: 1\nvolatile:\n  - {where: nowhere}\n")
    with pytest.raises(CollectionError, match=r"rules\.yaml: line 3"):
        seal(collection)
    assert not collection.pack.exists()


def test_reads_keep_the_page_that_sent_them_and_navigations_do_not(tmp_path: Path):
    collection = Collection.create(tmp_path, "site")
    page = ("Referer", A)
    sent = [
        ("GET", "code.js", (page, ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "script"))),
        ("GET", "next", (page, ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"))),
        ("GET", "frame", (page, ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe"))),
        ("GET", "alone.js", (("Sec-Fetch-Mode", "no-cors"),)),
        ("POST", "save", (page, ("Sec-Fetch-Mode", "cors"))),
    ]
    with CollectionWriter(collection) as writer:
        for at, (method, path, fields) in enumerate(sent):
            writer.write(Exchange(Request(method, A + path, fields), Response(200), f"202601010000{at:02}"))
    seal(collection)
    with Pack.open(collection.pack) as pack:
        pages = {entry.url.removeprefix(A): entry.referer for entry in map(pack.entry, range(len(pack)))}
    named = vary_digest(A)
    assert pages == {"code.js": named, "next": b"", "frame": named, "alone.js": b"", "save": b""}
