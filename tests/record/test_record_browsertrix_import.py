"""Imports of genuine browsertrix output, and their comparison and replay."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from stillweb.browser.observe.snapshot import PageSnapshot
from stillweb.collections.baselines import Absences, BaselineTool, read_baseline
from stillweb.collections.importers.browsertrix import has_scroll_bar
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.warc.reader import gzip_member
from stillweb.diff.compare.metrics import Fetch
from stillweb.diff.compare.pages import ComparisonContext, compare
from stillweb.diff.compare.visit import ReplayedPage

ORIGIN = BaselineTool("browsertrix", "1.14.1")
HOME = "http://site.test/"


def record(kind: str, uri: str, block: bytes, content: str, date: str = "2026-11-21T10:00:05Z") -> bytes:
    head = f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{abs(hash((uri, date)))}>\r\n"
    head += f"WARC-Target-URI: {uri}\r\nWARC-Date: {date}\r\nContent-Type: {content}\r\n"
    return gzip_member(f"{head}Content-Length: {len(block)}\r\n\r\n".encode() + block + b"\r\n\r\n")


def answer(url: str) -> bytes:
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hello"
    return record("response", url, http, "application/http; msgtype=response", "2026-11-21T10:00:00Z")


def png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


INFO = record(
    "warcinfo", "", b"software: Browsertrix-Crawler 1.14.1 (with warcio.js)\r\n", "application/warc-fields"
)


def wacz(path: Path, members: list[bytes], pages: list[dict[str, object]]) -> Path:
    lines = [json.dumps(line) for line in [{"format": "json-pages-1.0", "id": "pages"}, *pages]]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/rec.warc.gz", b"".join([INFO, *members]))
        archive.writestr("pages/pages.jsonl", "\n".join(lines))
        archive.writestr("logs/crawl.log", "{}\n")
        archive.writestr("datapackage.json", '{"resources": []}')
    return path


def page(
    url: str = HOME, ident: str = "one", ts: str = "2026-11-21T10:00:00Z", **more: object
) -> dict[str, object]:
    return {"id": ident, "url": url, "ts": ts, "title": "T", "status": 200, "loadState": 4} | more


@pytest.mark.shared
def test_pages_have_baselines_of_picture_text_and_requests(shared, tmp_path):
    report = import_files([shared / "archives/browsertrix/docs25.wacz"], tmp_path, "docs")
    collection = Collection.open(tmp_path, "docs")
    pages = collection.page_list()
    assert (report.captures, len(pages), report.defects) == (45, 25, ())
    assert [each.seed for each in pages] == [True, *[False] * 24]
    assert {each.depth for each in pages} == {0, 1}
    assert [each.status for each in pages].count(404) == 1
    assert pages[0].title == "The Python Tutorial — Python 3.11.2 documentation"
    for each in pages:
        baseline = read_baseline(collection.baseline / each.baseline)
        assert (baseline.origin, baseline.axtree, baseline.arrival) == (ORIGIN, None, None)
        assert baseline.text
        with Image.open(baseline.picture) as picture:
            assert each.extra["viewport"] == "{}x{}".format(*picture.size)
            assert not has_scroll_bar(picture)
        assert each.url in {request.url for request in baseline.requests}
    assert {each.extra["viewport"] for each in pages} == {"1905x1080", "1920x1080"}
    assert [path.name for path in collection.logs.iterdir()] == ["20261121132501975.log"]
    manifest = collection.manifest()
    assert manifest.profile["viewport"] == [1920, 1080]
    assert manifest.extra["crawler"] == {"program": "browsertrix", "version": "1.14.1"}
    # No request has a `urn:` URL; neither stillweb nor pywb finds any of it.
    assert b"urn:" not in collection.index_file.read_bytes()
    assert len(collection.warc_files()) == 3


@pytest.mark.shared
def test_texts_in_a_page_list_and_recorded_failures_count_too(shared, tmp_path):
    folder = shared / "archives/browsertrix"
    import_files([folder / "dyn1.rec.warc.gz", folder / "dyn1.pages.jsonl"], tmp_path, "dyn")
    collection = Collection.open(tmp_path, "dyn")
    [only] = collection.page_list()
    baseline = read_baseline(collection.baseline / only.baseline)
    assert baseline.picture is None
    assert baseline.text.startswith("Dynamic\n/api/post")
    methods = {(request.method, request.url) for request in baseline.requests}
    assert ("POST", "http://docs.local:8481/api/post") in methods
    assert ("DELETE", "http://docs.local:8481/api/del") in methods
    absences = Absences(collection)
    assert absences.why("GET", "http://docs.local:8481/favicon.ico") == "recorded with status 405"
    assert absences.why("GET", "http://docs.local:8481/") == ""


def test_failed_pages_and_pages_without_an_answer_are_reported(tmp_path):
    lost, failed = f"{HOME}lost", f"{HOME}failed"
    pages = [page(), page(lost, "two"), page(failed, "three", status=0, loadState=0)]
    report = import_files([wacz(tmp_path / "a.wacz", [answer(HOME)], pages)], tmp_path / "c", "x")
    defects = {(each.code, each.what) for each in report.defects}
    assert ("no-capture", f"page {lost} has no capture") in defects
    assert ("page-failed", f"page {failed} was not loaded when it was crawled; it is left out") in defects
    assert [each.url for each in Collection.open(tmp_path / "c", "x").page_list()] == [HOME, lost]


def test_a_page_crawled_twice_has_its_own_of_each(tmp_path):
    members = [
        answer(HOME),
        *(
            record("resource", f"urn:text:{HOME}", words, "text/plain", date)
            for words, date in ((b"later", "2026-11-21T12:00:07Z"), (b"first", "2026-11-21T10:00:07Z"))
        ),
    ]
    pages = [page(), page(ident="two", ts="2026-11-21T12:00:00Z")]
    import_files([wacz(tmp_path / "a.wacz", members, pages)], tmp_path / "c", "x")
    collection = Collection.open(tmp_path / "c", "x")
    texts = [read_baseline(collection.baseline / each.baseline).text for each in collection.page_list()]
    assert texts == ["first", "later"]


def test_several_in_one_and_one_after_another_keep_what_each_brought(tmp_path):
    view = record("resource", f"urn:view:{HOME}", png(Image.new("RGB", (40, 30), "red")), "image/png")
    one = wacz(tmp_path / "one.wacz", [answer(HOME), view], [page()])
    two = wacz(tmp_path / "two.wacz", [answer(f"{HOME}b")], [page(f"{HOME}b", "../two")])
    with zipfile.ZipFile(tmp_path / "multi.wacz", "w") as archive:
        for path in (one, two):
            archive.write(path, f"archive/{path.name}")
        archive.writestr("datapackage.json", '{"resources": []}')
    import_files([tmp_path / "multi.wacz"], tmp_path / "c", "multi")
    import_files([one], tmp_path / "c", "turn")
    import_files([two, one], tmp_path / "c", "turn", append=True)
    for name in ("multi", "turn"):
        collection = Collection.open(tmp_path / "c", name)
        assert [each.url for each in collection.page_list()] == [HOME, f"{HOME}b"]
        assert [bool(each.baseline) for each in collection.page_list()] == [True, False]
        assert [path.name for path in collection.baseline.iterdir()] == ["one"]
        assert len(list(collection.logs.iterdir())) == (3 if name == "turn" else 2)


@pytest.mark.parametrize("block", [b"", b"no picture", b"\x89PNG\r\n\x1a\n broken"])
def test_what_cannot_be_read_is_no_baseline_and_no_failure(tmp_path, block):
    members = [
        answer(HOME),
        record("resource", f"urn:view:{HOME}", block, "image/png"),
        record("resource", f"urn:pageinfo:{HOME}", b"[1", "application/json"),
    ]
    import_files([wacz(tmp_path / "a.wacz", members, [page()])], tmp_path / "c", "x")
    collection = Collection.open(tmp_path / "c", "x")
    [only] = collection.page_list()
    baseline = read_baseline(collection.baseline / only.baseline)
    assert (baseline.picture, baseline.text, baseline.requests) == (None, None, ())


def test_archives_of_others_get_no_baseline(tmp_path):
    view = record("resource", f"urn:view:{HOME}", png(Image.new("RGB", (40, 30))), "image/png")
    path = tmp_path / "a.wacz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/rec.warc.gz", answer(HOME) + view)
        archive.writestr("pages/pages.jsonl", json.dumps(page()))
    import_files([path], tmp_path / "c", "x")
    [only] = Collection.open(tmp_path / "c", "x").page_list()
    assert (only.baseline, only.extra.get("recordedBy")) == ("", None)


def test_comparison_takes_what_the_baseline_has_and_says_so(tmp_path):
    pageinfo = {"pageid": "one", "urls": {HOME: {"status": 200, "type": "document"},
                                      f"{HOME}late.png": {"status": 200, "type": "fetch"},
                                      f"{HOME}gone.js": {"status": 404, "type": "script"}}}  # fmt: skip
    picture = Image.new("RGB", (80, 60), "white")
    members = [
        answer(HOME),
        record("resource", f"urn:view:{HOME}", png(picture), "image/png"),
        record("resource", f"urn:text:{HOME}", b"hello\nhidden", "text/plain"),
        record("resource", f"urn:pageinfo:{HOME}", json.dumps(pageinfo).encode(), "application/json"),
    ]
    import_files([wacz(tmp_path / "a.wacz", members, [page()])], tmp_path / "c", "x")
    collection = Collection.open(tmp_path / "c", "x")
    [only] = collection.page_list()
    fetches = (
        Fetch(HOME, "GET", "document", 200, "exact", ""),
        Fetch(f"{HOME}gone.js", "GET", "script", 404, "miss", ""),
        Fetch(f"{HOME}unseen.js", "GET", "script", 404, "miss", ""),
    )
    seen = ReplayedPage(
        200, PageSnapshot(HOME, png(picture), "hello", "tree", "dom"), fetches, document_text="hello\nhidden"
    )
    bench = ComparisonContext("x", tmp_path / "pictures")
    found = compare(only, collection.baseline / only.baseline, seen, bench)
    assert found.scores.keys() == {"status", "recall", "hits", "misses", "fuzzy", "text", "order", "look"}
    assert (found.scores["text"], found.scores["look"], found.scores["misses"]) == (1.0, 1.0, 1.0)
    assert [finding.kind.value for finding in found.findings] == ["missing-resource"]
    assert "made by browsertrix 1.14.1;" in " ".join(found.notes)
    other = Image.new("RGB", (80, 60), "black")
    changed = ReplayedPage(200, PageSnapshot(HOME, png(other)), fetches[:2], document_text="bye")
    found = compare(only, collection.baseline / only.baseline, changed, bench)
    assert found.scores["look"] == 0.0
    assert found.scores["text"] < 0.5
    assert {finding.kind.value for finding in found.findings} == {"changed-text", "changed-pixels"}


@pytest.mark.parametrize("edge", [0, 3])
def test_a_scroll_bar_is_known_by_its_thumb(edge):
    plain = Image.new("RGB", (200, 100), "white")
    assert not has_scroll_bar(plain)
    plain.paste((252, 252, 252), (185, 0, 200, 100))
    assert not has_scroll_bar(plain)
    plain.paste((139, 139, 139), (188, 10 + edge, 197, 60))
    assert has_scroll_bar(plain)
    plain.paste((0, 0, 0), (190, 50, 200, 54))
    assert not has_scroll_bar(plain)
