"""Importing: every shared archive with its captures, every defect with its outcome, and failures."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from stillweb.collections.check import check
from stillweb.collections.export import export
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.reader import gzip_member, read_records
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.errors import (
    CollectionError,
    CollectionExists,
    MalformedHar,
    MalformedWacz,
    MalformedWarc,
    StillwebError,
    UsageError,
)
from stillweb.matching.keys import request_key
from stillweb.model import header

# file: captures, pages, codes of the reported defects
ARCHIVES = {
    "books.toscrape.warc": (30, 1, {"plain", "no-end"}),
    "example-iana.warc": (58, 6, set()),
    "example.wacz": (14, 1, set()),
    "flickr-commons.warc.gz": (63, 1, set()),
    "iana.warc.gz": (171, 16, set()),
    "kiwix-with-redirects.warc.gz": (51, 3, set()),
    "lil-projects.warc.gz": (27, 1, {"not-http"}),
    "material_ui.wacz": (82, 1, set()),
    "multi-wacz.wacz": (4, 2, set()),
    "safari.har": (19, 1, set()),
    # Its datapackage.json states another SHA-256 than its WARC has; `wacz validate` says so too.
    "scoop-example.wacz": (31, 1, {"digest", "not-http"}),
    "solidaritenum.warc.gz": (94, 1, set()),
    "svelte_gantt.wacz": (9, 1, set()),
    "svelte_toolbar.wacz": (12, 1, set()),
    "synthetic_train.wacz": (10, 1, set()),
    "triwest.wacz": (32, 1, set()),
    "wellcare.wacz": (60, 1, set()),
    "browsertrix/docs25.wacz": (45, 25, set()),
    "browsertrix/dyn1.rec.warc.gz": (39, 5, set()),
}

# Imported: captures, records in the archive, codes reported by import, codes reported by check afterwards.
DEFECTS = {
    # The crawler wrote the block's digest as the payload's, and the day of the year for the day.
    "clueweb-quirk.warc.gz": (29, 30, set(), {"digest"}),
    "example-bad-non-chunked.warc.gz": (2, 6, {"not-chunked"}, {"digest"}),
    "example-resource.warc.gz": (1, 3, set(), set()),
    # Line ends were converted: the record is 12 bytes shorter than it says, its HTTP message whole.
    "example-space-in-url.arc": (1, 2, {"bad-length", "arc"}, set()),
    # The response's Content-Length is two too small; its digest shows where the block ends.
    "example-trunc.warc": (1, 4, {"plain", "bad-length"}, set()),
    "example-url-agnostic-orig.warc.gz": (1, 2, {"no-end"}, set()),
    "example-url-agnostic-revisit.warc.gz": (1, 2, {"no-end", "no-original"}, {"no-original"}),
    "example-wget-1-14.warc.gz": (1, 6, set(), set()),
    "example-wpull.warc.gz": (1, 4, set(), set()),
    # The gzip members end in the middle of records.
    "example-wrong-chunks.warc.gz": (1, 2, {"no-end", "split-record"}, {"digest"}),
    "example.arc": (1, 2, {"arc"}, set()),
    "example.warc": (2, 6, {"plain"}, set()),
    "missing-status-text.warc": (1, 1, {"plain"}, set()),
    "post-test-more.warc": (3, 6, set(), set()),
    "post-test.warc.gz": (3, 6, set(), set()),
    "warcfile.warc": (16, 50, {"plain"}, set()),
    "warcfile.warc.gz": (16, 50, set(), set()),
}
REFUSED = {
    # Lengths of -1 and "abc"; the one record that can be read has a block of one line end.
    "bad.arc": r"holds no response.*1 records read; not an ARC 1 or 2 record header.*at offset 0",
    # Three records of type `unknown`.
    "block-sized-records.warc": r"holds no response.*3 records read\)",
    "block-sized-records.warc.gz": r"holds no response.*3 records read\)",
    # Its only record is cut off.
    "clipped.warc.gz": r"holds no response.*0 records read; the file breaks off within .* at offset 0",
    # Four requests.
    "example-digest.warc": r"holds no response.*4 records read\)",
    # A picture of file:///, which is requested from no proxy.
    "example-space-in-target-uri.warc.gz": r"holds no response.*2 records read\)",
    # A response and a request whose blocks are empty.
    "missing-http.warc.gz": r"holds no response.*2 records read; the response record .* no HTTP response",
}


def codes(defects) -> set[str]:
    return {each.code for each in defects}


@pytest.mark.shared
@pytest.mark.parametrize("name", ARCHIVES)
def test_every_archive_is_imported(shared, tmp_path, name):
    captures, pages, defects = ARCHIVES[name]
    report = import_files([shared / "archives" / name], tmp_path, "x")
    assert (report.captures, report.pages, codes(report.defects)) == (captures, pages, defects)
    collection = Collection.open(tmp_path, "x")
    assert sum(1 for exchange in collection.exchanges() if exchange.response.status) == captures
    assert check(collection) == []
    manifest = collection.manifest()
    assert manifest.state == "complete"
    assert manifest.profile["user_agent"]
    assert len(manifest.recorded_at) == 14
    [source] = manifest.sources
    assert source["sha256"] == hashlib.sha256((shared / "archives" / name).read_bytes()).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.shared
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_reported_and_what_is_whole_is_imported(shared, tmp_path, name):
    captures, records, defects, left = DEFECTS[name]
    report = import_files([shared / "archives" / "defects" / name], tmp_path, "x")
    assert (report.captures, codes(report.defects)) == (captures, defects)
    collection = Collection.open(tmp_path, "x")
    assert len(list(collection.captures())) == captures
    assert sum(1 for path in collection.warc_files() for _ in read_records(path)) == records
    assert codes(check(collection)) == left


@pytest.mark.shared
@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_nothing_to_replay_is_refused(shared, tmp_path, name):
    with pytest.raises(MalformedWarc, match=REFUSED[name]) as caught:
        import_files([shared / "archives" / "defects" / name], tmp_path, "x")
    assert name in str(caught.value)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.shared
def test_every_shared_file_has_an_expected_outcome(shared):
    there = {path.name for path in (shared / "archives" / "defects").iterdir()}
    assert there == {*DEFECTS, *REFUSED}
    there = {path.name for path in (shared / "archives").iterdir() if path.is_file()} - {"README.md"}
    assert there == {name for name in ARCHIVES if "/" not in name}


@pytest.mark.shared
def test_browsertrix_output_as_a_folder(shared, tmp_path):
    report = import_files([shared / "archives" / "browsertrix"], tmp_path, "x")
    assert {each.kind for each in report.files} == {"wacz", "warc", "pages", "skipped"}
    assert (report.captures, report.pages) == (84, 26)
    collection = Collection.open(tmp_path, "x")
    assert [each.seed for each in collection.page_list()].count(True) == 2
    assert collection.manifest().recorded_at == "20261121132502"
    kinds = {
        record.target_uri.split(":")[1] for record in all_records(collection) if record.type == "resource"
    }
    assert kinds == {"view", "text", "pageinfo"}
    methods = {each.method for each in collection.captures()}
    assert methods == {"GET", "POST", "PUT", "DELETE"}


def all_records(collection: Collection) -> list[WarcRecord]:
    return [record for path in collection.warc_files() for record in read_records(path)]


@pytest.mark.shared
def test_a_revisit_resolves_once_its_original_is_appended(shared, tmp_path):
    defects = shared / "archives" / "defects"
    import_files([defects / "example-url-agnostic-revisit.warc.gz"], tmp_path, "x")
    import_files([defects / "example-url-agnostic-orig.warc.gz"], tmp_path, "x", append=True)
    collection = Collection.open(tmp_path, "x")
    assert check(collection) == []
    bodies = {exchange.response.raw_body for exchange in collection.exchanges()}
    assert len(bodies) == 1


# Small archives made here.


def response(
    uri: str, body: bytes = b"<title>A &amp; B</title>", date: str = "2024-01-01T00:00:00Z"
) -> bytes:
    headers = (
        ("WARC-Type", "response"),
        ("WARC-Record-ID", f"<urn:x:{uri}:{date}>"),
        ("WARC-Target-URI", uri),
        ("WARC-Date", date),
    )
    return serialise(WarcRecord(headers, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + body))


def warc(*uris: str) -> bytes:
    return b"".join(gzip_member(response(uri)) for uri in uris)


def wacz(method: int = zipfile.ZIP_STORED, /, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_valid_warc_keeps_its_bytes(tmp_path):
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/", "https://a.example/2"))
    report = import_files([given], tmp_path / "root", "x")
    [stored] = Collection.open(tmp_path / "root", "x").warc_files()
    assert stored.read_bytes() == given.read_bytes()
    assert not report.files[0].rewritten


@pytest.mark.parametrize(
    "content",
    [
        response("https://a.example/") + response("https://a.example/2"),
        gzip.compress(response("https://a.example/") + response("https://a.example/2")),
    ],
    ids=["plain", "one member"],
)
def test_other_containers_become_a_member_a_record_and_lose_nothing(tmp_path, content):
    given = write(tmp_path / "a.warc", content)
    report = import_files([given], tmp_path / "root", "x")
    collection = Collection.open(tmp_path / "root", "x")
    assert report.files[0].rewritten
    before = [(each.headers, each.block) for each in read_records(given, lambda defect: None)]
    found = all_records(collection)
    assert [
        (tuple(h for h in each.headers if h in headers), each.block)
        for each, (headers, _) in zip(found, before, strict=True)
    ] == before
    assert len({each.offset for each in found}) == 2
    assert check(collection) == []


def test_a_body_ends_at_its_content_length_though_the_record_counts_a_line_end_more(tmp_path):
    font = b"wOF2" + bytes(range(256))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: font/woff2\r\nContent-Length: %d\r\n\r\n" % len(font)
    headers = (
        ("WARC-Type", "response"),
        ("WARC-Record-ID", "<urn:x:font>"),
        ("WARC-Target-URI", "https://a.example/f.woff2"),
        ("WARC-Date", "2024-01-01T00:00:00Z"),
    )
    given = write(tmp_path / "a.warc.gz", gzip_member(serialise(WarcRecord(headers, head + font + b"\r\n"))))
    import_files([given], tmp_path / "root", "x")
    collection = Collection.open(tmp_path / "root", "x")
    [exchange] = collection.exchanges()
    assert exchange.response.raw_body == font
    seal(collection)
    with Pack.open(collection.pack) as pack:
        assert bytes(pack.entry(0).body) == font


BYTES_IN_URIS = {  # as the record has it: as a browser requests it
    b"/caf\xe9?q=\xff": "/caf%E9?q=%FF",
    b"/\xed\xa0\xbd": "/%ED%A0%BD",  # half a surrogate pair, as CESU-8 spells it
    b"/\xc3\xa9": "/%C3%A9",
    b"/\xf0\x9f\x98": "/%F0%9F%98",  # a character cut off
}


def test_urls_with_bytes_that_are_no_text(tmp_path):
    records = [response(f"https://a.example/@{number}") for number in range(len(BYTES_IN_URIS))]
    texts = [
        text.replace(b"Target-URI: https://a.example/@%d" % number, b"Target-URI: https://a.example" + path)
        for number, (text, path) in enumerate(zip(records, BYTES_IN_URIS, strict=True))
    ]
    given = write(tmp_path / "a.warc.gz", b"".join(map(gzip_member, texts)))
    root = tmp_path / "root"
    report = import_files([given], root, "x")
    assert (report.captures, report.defects) == (4, ())
    collection = Collection.open(root, "x")
    collection.index_file.read_bytes().decode("utf-8")  # pywb reads it as such
    assert check(collection) == []
    assert seal(collection).warnings == ()
    with Pack.open(collection.pack) as pack:
        for wanted in BYTES_IN_URIS.values():
            assert len(pack.lookup(request_key("GET", f"https://a.example{wanted}"))) == 1
    again = import_files([export(collection, tmp_path / "x.wacz")], root, "y")
    assert again.captures == 4


def test_a_har_with_half_a_character_in_its_urls(tmp_path):
    request = {"method": "GET", "url": "https://a.example/\ud83d", "headers": []}
    answer = {"status": 200, "statusText": "\ud83d", "headers": [], "httpVersion": "h2"}
    entry = {"request": request, "response": {**answer, "content": {"text": "x", "mimeType": "text/plain"}}}
    entry |= {"startedDateTime": "2024-01-01T00:00:00Z", "pageref": "p"}
    log = {"log": {"entries": [entry], "pages": [{"id": "p", "title": "cut \ud83d"}]}}
    given = write(tmp_path / os.fsdecode(b"caf\xe9.har"), json.dumps(log).encode())
    assert import_files([given], tmp_path / "root", "x").captures == 1
    collection = Collection.open(tmp_path / "root", "x")
    assert [each.url for each in collection.captures()] == ["https://a.example/%EF%BF%BD"]
    [page] = collection.page_list()
    assert (page.url, page.title) == ("https://a.example/%EF%BF%BD", "cut \ud83d")
    assert collection.manifest().sources[0]["name"] == given.name
    assert check(collection) == []
    assert seal(collection).entries == 1
    assert import_files([export(collection, tmp_path / "x.wacz")], tmp_path / "root", "y").pages == 1


@pytest.mark.shared
def test_bodies_of_an_archive_that_counts_line_ends_are_as_long_as_stated(shared, tmp_path):
    import_files([shared / "archives" / "books.toscrape.warc"], tmp_path, "books")
    lengths = [
        (int(stated), len(each.response.raw_body))
        for each in Collection.open(tmp_path, "books").exchanges()
        if (stated := header(each.response.headers, "content-length"))
    ]
    assert len(lengths) == 26
    assert (43572, 43572) in lengths
    assert all(stated == got for stated, got in lengths)


def test_a_cut_warc_is_imported_without_its_tail(tmp_path):
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/", "https://a.example/2")[:-30])
    report = import_files([given], tmp_path / "root", "x")
    assert report.captures == 1
    assert [(each.code, each.file) for each in report.defects] == [("truncated", str(given))]
    assert check(Collection.open(tmp_path / "root", "x")) == []


def test_nested_wacz_and_names_that_collide(tmp_path):
    inner = wacz(**{"archive/data.warc.gz": warc("https://b.example/"), "pages/pages.jsonl": b""})
    outer = wacz(**{"one.wacz": inner, "deep/two.wacz": wacz(**{"three.wacz": inner})})
    report = import_files([write(tmp_path / "m.wacz", outer)], tmp_path / "root", "x")
    collection = Collection.open(tmp_path / "root", "x")
    assert report.captures == 2
    assert [path.name for path in collection.warc_files()] == ["data.warc.gz", "three-data.warc.gz"]
    assert len(list(collection.exchanges())) == 2


def test_a_wacz_member_that_is_not_what_the_package_says(tmp_path):
    resources = [{"path": "archive/a.warc.gz", "hash": "sha256:" + "0" * 64}]
    package = json.dumps({"wacz_version": "1.1.1", "resources": resources}).encode()
    members = {
        "archive/a.warc.gz": warc("https://a.example/"),
        "datapackage.json": package,
        "raw/x.warc.gz": b"?",
    }
    report = import_files([write(tmp_path / "a.wacz", wacz(**members))], tmp_path / "root", "x")
    assert report.captures == 1
    assert codes(report.defects) == {"digest"}


def test_pages_of_a_wacz_seeds_first(tmp_path):
    line = '{"format":"json-pages-1.0","id":"pages"}\n{"id":"%s","url":"https://a.example/%s","ts":"2024-01-01T00:00:00Z"}\n'
    members = {
        "pages/extraPages.jsonl": (line % ("b", "b")).encode(),
        "pages/pages.jsonl": (line % ("a", "a")).encode(),
        "archive/a.warc.gz": warc("https://a.example/a", "https://a.example/b"),
    }
    import_files([write(tmp_path / "a.wacz", wacz(**members))], tmp_path / "root", "x")
    pages = Collection.open(tmp_path / "root", "x").page_list()
    assert [(page.id, page.seed) for page in pages] == [("a", True), ("b", False)]


def test_pages_are_found_where_none_are_listed(tmp_path):
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/", "https://a.example/2"))
    import_files([given], tmp_path / "root", "x")
    collection = Collection.open(tmp_path / "root", "x")
    assert [(page.url, page.title, page.seed) for page in collection.page_list()] == [
        ("https://a.example/", "A & B", True),
        ("https://a.example/2", "A & B", False),
    ]
    assert collection.manifest().recorded_at == "20240101000000"


def entry(url: str, method: str = "GET", **answer: object) -> dict:
    response = {
        "status": 200,
        "statusText": "OK",
        "headers": [],
        "content": {"size": 2, "text": "hi"},
    } | answer
    request = {"method": method, "url": url, "headers": [{"name": ":authority", "value": "a"}]}
    return {"startedDateTime": "2024-01-01T00:00:00.5+01:00", "request": request, "response": response}


def test_har_bodies_headers_and_entries_that_are_no_capture(tmp_path):
    gzipped = [{"name": "Content-Encoding", "value": "gzip"}, {"name": "content-length", "value": "99"}]
    posted = entry("https://a.example/p", "POST")
    posted["request"]["postData"] = {"mimeType": "application/json", "text": '{"a":1}'}
    entries = [
        entry("https://a.example/#f", headers=gzipped),
        entry("https://a.example/b", content={"size": 3, "text": "AAH/", "encoding": "base64"}),
        entry(
            "https://a.example/l",
            content={"size": 1, "text": "\xe9", "mimeType": "text/html; charset=iso-8859-1"},
        ),
        posted,
        entry("https://a.example/none", content={"size": 5}),
        entry("https://a.example/blocked", status=0),
        entry("wss://a.example/socket", status=101),
        entry(
            "https://a.example/r",
            status=302,
            content={"size": 9},
            headers=[{"name": "Location", "value": "/"}],
        ),
        {"request": {}},
    ]
    har = write(tmp_path / "a.har", json.dumps({"log": {"version": "1.2", "entries": entries}}).encode())
    report = import_files([har], tmp_path / "root", "x")
    assert report.captures == 5
    assert sorted(each.code for each in report.defects) == ["bad-entry", "no-body", "no-body", "no-body"]
    collection = Collection.open(tmp_path / "root", "x")
    found = {exchange.request.url.rpartition("/")[2]: exchange for exchange in collection.exchanges()}
    assert found[""].response.raw_body == b"hi"
    assert found[""].response.headers == (("Content-Length", "2"),)
    assert found[""].request.headers == ()
    assert found[""].timestamp == "20231231230000"
    assert found["b"].response.raw_body == b"\x00\x01\xff"
    assert found["l"].response.raw_body == b"\xe9"
    assert found["p"].request.raw_body == b'{"a":1}'
    assert found["r"].response.status == 302
    assert [path.name for path in collection.warc_files()] == ["a.warc.gz"]


def test_pages_that_no_http_client_requests_are_not_listed(tmp_path):
    line = '{"id":"%s","url":"%s","ts":"2024-01-01T00:00:00Z"}\n'
    listed = '{"format":"json-pages-1.0","id":"pages"}\n' + line % ("a", "file:///screenshot.png")
    members = {"archive/a.warc.gz": warc("https://a.example/a")}
    both = wacz(**members, **{"pages/pages.jsonl": (listed + line % ("b", "https://a.example/a")).encode()})
    report = import_files([write(tmp_path / "a.wacz", both)], tmp_path / "root", "both")
    assert [page.id for page in Collection.open(tmp_path / "root", "both").page_list()] == ["b"]
    assert codes(report.found) == {"not-http"}
    # Without another page in the list, the pages are found in the records.
    none = wacz(**members, **{"pages/pages.jsonl": listed.encode()})
    import_files([write(tmp_path / "b.wacz", none)], tmp_path / "root", "found")
    assert [page.url for page in Collection.open(tmp_path / "root", "found").page_list()] == [
        "https://a.example/a"
    ]


def test_har_entries_of_which_a_part_is_missing_are_no_capture(tmp_path):
    def failed(number: int, method: str = "GET", error: str = "", **content: object) -> dict:
        made = entry(f"https://a.example/{number}", method, content=content)
        return made | {"response": made["response"] | {"_error": error}}

    unknown = entry("https://a.example/4", "POST")
    unknown["request"]["bodySize"] = 12
    empty = entry("https://a.example/5", "POST")
    empty["request"]["bodySize"] = 0
    entries = [
        failed(0, error="net::ERR_ABORTED", size=0),
        failed(1, size=9, text="cut"),
        failed(2, size=9, text="AAH/", encoding="base64"),
        failed(3, size=8, text="wide"),
        unknown,
        empty,
        failed(6, size=7, text="mark"),
        failed(7, size=0, text="size unknown"),
        failed(8, text="no base64!", encoding="base64"),
        failed(9, text={"a": 1}),
    ]
    har = write(tmp_path / "a.har", json.dumps({"log": {"version": "1.2", "entries": entries}}).encode())
    report = import_files([har], tmp_path / "root", "x")
    defects = [each.what.partition(": ")[2] for each in report.defects]
    assert defects == [
        "it failed (net::ERR_ABORTED)",
        "the response (200) is cut: 3 of 9 bytes",
        "the response (200) is cut: 3 of 9 bytes",
        "the POST has no body, but should have 12 bytes",
        "the response (200) has no body",
        "the response (200) has no body",
    ]
    stored = {each.url[-1] for each in Collection.open(tmp_path / "root", "x").captures()}
    assert stored == {"3", "5", "6", "7"}


WRONG = {
    "not-json.har": (b"{", MalformedHar, "not JSON"),
    "no-log.har": (b'{"a": 1}', MalformedHar, r"without log\.entries"),
    "empty.har": (b'{"log": {"entries": []}}', MalformedWarc, "holds no response"),
    "empty.warc.gz": (b"", CollectionError, "is empty"),
    "text.txt": (b"hello", CollectionError, "neither WARC, ARC, WACZ, HAR"),
    "cut.zip": (b"PK\x03\x04 cut", MalformedWacz, "not a readable ZIP"),
    "bzip2.zip": (
        wacz(zipfile.ZIP_BZIP2, **{"archive/a.warc": b"x"}),
        MalformedWacz,
        "only stored and deflated",
    ),
    "other.zip": (wacz(**{"a.txt": b"x"}), MalformedWacz, "not a WACZ"),
    "hollow.wacz": (wacz(**{"archive/a.warc.gz": b""}), MalformedWarc, "holds no response"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_failed_import_names_the_file_and_leaves_nothing(tmp_path, name):
    content, error, message = WRONG[name]
    good = write(tmp_path / "good.warc.gz", warc("https://a.example/"))
    given = write(tmp_path / name, content)
    root = tmp_path / "root"
    with pytest.raises(error, match=message) as caught:
        import_files([given], root, "x")
    assert name in str(caught.value)
    assert not root.exists()
    if error is not MalformedWarc:
        with pytest.raises(error, match=message):
            import_files([good, given], root, "x")
        assert not root.exists()


def test_a_failed_append_leaves_the_collection_as_it_was(tmp_path):
    root = tmp_path / "root"
    import_files([write(tmp_path / "a.warc.gz", warc("https://a.example/"))], root, "x")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StillwebError):
        import_files([write(tmp_path / "b.zip", b"PK\x03\x04")], root, "x", append=True)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_append_adds_and_a_second_import_is_refused(tmp_path):
    root = tmp_path / "root"
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/"))
    import_files([given], root, "x")
    with pytest.raises(CollectionExists, match="'x'") as caught:
        import_files([given], root, "x")
    assert "--append" in caught.value.hint
    import_files([given], root, "x", append=True)
    import_files([write(tmp_path / "b.warc.gz", warc("https://b.example/"))], root, "x", append=True)
    collection = Collection.open(root, "x")
    assert [path.name for path in collection.warc_files()] == ["a-2.warc.gz", "a.warc.gz", "b.warc.gz"]
    assert len(list(collection.exchanges())) == 3
    assert len(collection.manifest().sources) == 3
    assert check(collection) == []


def test_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        import_files([tmp_path / "none.warc"], tmp_path, "x")
    with pytest.raises(UsageError, match="not a valid collection name"):
        import_files([tmp_path], tmp_path, "No Name")
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_at_the_files_size(tmp_path):
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/", "https://a.example/2"))
    progress: list[tuple[str, int, int]] = []
    import_files([given], tmp_path / "root", "x", on_progress=lambda *each: progress.append(each))
    size = given.stat().st_size
    assert [each[1] for each in progress] == sorted(each[1] for each in progress)
    assert progress[-1] == ("a.warc.gz", size, size)


def test_an_export_imports_as_the_same_collection(tmp_path):
    given = write(tmp_path / "a.warc.gz", warc("https://a.example/", "https://a.example/2"))
    import_files([given], tmp_path / "root", "x")
    first = Collection.open(tmp_path / "root", "x")
    import_files([export(first, tmp_path / "x.wacz")], tmp_path / "root", "y")
    second = Collection.open(tmp_path / "root", "y")
    assert list(second.captures()) == list(first.captures())
    assert second.page_list() == first.page_list()
    assert second.manifest().recorded_at == first.manifest().recorded_at
    assert second.manifest().created == first.manifest().created
