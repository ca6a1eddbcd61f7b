"""Archives of other programs: what they write beside the standard, and input that means harm."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import time
import zipfile
from pathlib import Path

import pytest
import zstandard

from stillweb.collections.check import check
from stillweb.collections.defects import Severity
from stillweb.collections.export import export
from stillweb.collections.importers.importer import ImportReport, import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import BINARY, TEXT, read_frames
from stillweb.collections.warc.reader import gzip_member, read_records
from stillweb.errors import LimitExceeded, MalformedHar, MalformedWacz, MalformedWarc, StillwebError
from stillweb.http.codec import decode
from stillweb.matching.keys import request_key
from stillweb.model import header

URL = "https://a.example/"
TOO_MUCH = 80 << 20  # any file may unpack to 64 MiB


def _import(path: Path, tmp_path: Path) -> tuple[Collection, ImportReport]:
    report = import_files([path], tmp_path / "root", "x")
    return Collection.open(tmp_path / "root", "x"), report


def _record(kind: str, block: bytes, url: str = URL) -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:x:{kind}:{url}>\r\nContent-Type: application/http; msgtype={kind}\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def _entry(url: str = URL, method: str = "GET", status: int = 200, **more: object) -> dict[str, object]:
    content = {"size": 4, "text": "body", "mimeType": "text/plain"}
    answer = {"status": status, "statusText": "", "headers": [], "httpVersion": "h2", "content": content}
    entry = {
        "startedDateTime": "2024-01-01T00:00:00.000Z",
        "request": {"method": method, "url": url, "headers": []},
        "response": answer,
    }
    for name, value in more.items():
        (entry if name.startswith("_") or name == "pageref" else answer)[name] = value
    return entry


def _har(*entries: dict[str, object], **log: object) -> bytes:
    return json.dumps({"log": {"version": "1.2", "entries": list(entries), **log}}).encode()


# --- WARC ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n", b"\n", b"\r\n\r\n\r\n"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_line_ends_behind_a_request_are_no_body(tmp_path: Path, end: bytes, method: str) -> None:
    given = tmp_path / "node-warc.warc"
    request = f"{method} / HTTP/1.1\r\nHost: a.example\r\n\r\n".encode() + end
    given.write_bytes(
        _record("request", request)
        + _record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>")
    )
    collection, _ = _import(given, tmp_path)
    assert seal(collection).entries == 1
    with Pack.open(collection.pack) as pack:
        assert len(pack.lookup(request_key(method, URL))) == 1


def test_a_first_line_that_repeats_its_protocol(tmp_path: Path) -> None:
    """Users of warcio pass the whole line as status, beside the protocol."""
    given = tmp_path / "twice.warc"
    given.write_bytes(
        _record("request", b"HTTP/1.1 GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        + _record("response", b"HTTP/1.1 HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>")
    )
    collection, _ = _import(given, tmp_path)
    seal(collection)
    with Pack.open(collection.pack) as pack:
        assert [pack.entry(row).status for row in pack.lookup(request_key("GET", URL))] == [200]


def test_a_body_that_is_no_line_end_stays_part_of_its_request(tmp_path: Path) -> None:
    given = tmp_path / "a.warc"
    request = b"POST / HTTP/1.1\r\nHost: a.example\r\n\r\n\r\n"
    given.write_bytes(_record("request", request) + _record("response", b"HTTP/1.1 200 OK\r\n\r\n<p>"))
    collection, _ = _import(given, tmp_path)
    [exchange] = collection.exchanges()
    assert exchange.request.raw_body == b"\r\n"


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=qTaz"
PARTS = 'Content-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'


def _archiveweb(requests: list[tuple[str, str, str]]) -> bytes:
    """Return exchanges as ArchiveWeb.page writes them: the request's body is in the target URI only."""
    records = b""
    for number, (method, query, fields) in enumerate(requests):
        url = f"{URL}api?__wb_method=POST&{query}"
        target = url.removeprefix("https://a.example")
        records += _record("response", b"HTTP/1.1 200 OK\r\n\r\nanswer %d" % number, url)
        records += _record("request", f"{method} {target} HTTP/1.1\r\n{fields}\r\n".encode(), url)
    return records


def test_a_body_that_is_in_the_target_uri_only_belongs_to_its_request(tmp_path: Path) -> None:
    """Each was taken for a POST without a body, which got the first of them, and a GET got the last."""
    multipart = f"Content-Type: {MULTIPART}\r\nContent-Length: 99\r\n"
    (tmp_path / "a.warc").write_bytes(
        _archiveweb(
            [
                ("POST", "ids=%5B1%5D&w=a+b", f"Content-Type: {FORM}\r\nContent-Length: 17\r\n"),
                ("POST", "ids=%5B1%5D&w=a+b", multipart),
                ("POST", "ids=%5B2%5D&w=a+b", multipart),
                ("POST", "__wb_post_data=eyJhIjoxfQ==", "Content-Type: application/json\r\n"),
                ("GET", "", f"Content-Length: 0\r\nContent-Type: {FORM}\r\n"),
            ]
        )
    )
    collection, _ = _import(tmp_path / "a.warc", tmp_path)
    seal(collection)
    parts = "".join("--B\r\n" + PARTS % pair for pair in (("ids", "[2]"), ("w", "a b"))) + "--B--\r\n"
    answers_by_request = {
        ("POST", FORM, b"ids=%5B1%5D&w=a+b"): [b"answer 0"],
        ("POST", "multipart/form-data; boundary=B", parts.encode()): [b"answer 2"],
        ("POST", "application/json", b'{"a": 1}'): [b"answer 3"],
        ("POST", "", b""): [b"answer 4"],
        ("GET", "", b""): [],
        ("POST", FORM, b"ids=%5B3%5D&w=a+b"): [],
    }
    with Pack.open(collection.pack) as pack:
        for (method, content_type, body), answers in answers_by_request.items():
            rows = pack.lookup(request_key(method, f"{URL}api", content_type, body))
            assert [bytes(pack.entry(row).body) for row in rows] == answers
    assert not [each for each in check(collection) if each.severity is not Severity.NOTICE]


def test_an_answer_to_a_request_whose_body_is_not_stored_is_left_out(tmp_path: Path) -> None:
    request = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 30\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\n\r\nsaved"
    (tmp_path / "a.warc").write_bytes(
        _record("request", request)
        + _record("response", answer)
        + _record("response", answer, f"{URL}other")
        + _record("request", request.replace(b" 30", b" 0"), f"{URL}other")
    )
    collection, report = _import(tmp_path / "a.warc", tmp_path)
    assert [(each.method, each.url) for each in collection.captures()] == [("POST", f"{URL}other")]
    assert "no-request-body" in {each.code for each in report.defects}


@pytest.mark.parametrize("dictionary", ["none", "raw", "compressed"])
def test_a_warc_in_zstandard_frames(tmp_path: Path, dictionary: str) -> None:
    parts = [
        _record("response", b"HTTP/1.1 200 OK\r\n\r\n<p>%d" % number, f"{URL}{number}") for number in range(9)
    ]
    samples = zstandard.ZstdCompressionDict(b"".join(parts), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    packer = zstandard.ZstdCompressor(dict_data=None if dictionary == "none" else samples)
    content = b"".join(map(packer.compress, parts))
    if dictionary != "none":
        stored = samples.as_bytes()
        stored = zstandard.compress(stored) if dictionary == "compressed" else stored
        content = b"\x5d\x2a\x4d\x18" + len(stored).to_bytes(4, "little") + stored + content
    (tmp_path / "a.warc.zst").write_bytes(content)
    collection, report = _import(tmp_path / "a.warc.zst", tmp_path)
    assert {each.code for each in report.defects} == {"zstd"}
    assert {e.request.url: e.response.raw_body for e in collection.exchanges()} == {
        f"{URL}{number}": b"<p>%d" % number for number in range(9)
    }
    assert [path.name for path in collection.warc_files()] == ["a.warc.gz"]


def test_a_cut_zstandard_file_keeps_its_complete_records(tmp_path: Path) -> None:
    parts = [
        _record("response", b"HTTP/1.1 200 OK\r\n\r\n" + os.urandom(500), URL + str(n)) for n in range(3)
    ]
    (tmp_path / "a.warc.zst").write_bytes(b"".join(map(zstandard.compress, parts))[:-300])
    _, report = _import(tmp_path / "a.warc.zst", tmp_path)
    assert report.captures == 2
    assert {each.code for each in report.defects} > {"zstd"}


@pytest.mark.parametrize("content", [b"\x28\xb5\x2f\xfd\xff\xff\xff", b"\x5d\x2a\x4d\x18\xff\xff\xff\x7fxx"])
def test_broken_zstandard_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.warc.zst").write_bytes(content)
    with pytest.raises(MalformedWarc, match="Zstandard"):
        _import(tmp_path / "a.warc.zst", tmp_path)


def test_zstandard_that_unpacks_to_too_much(tmp_path: Path) -> None:
    (tmp_path / "a.warc.zst").write_bytes(zstandard.compress(b"WARC/1.0\r\n" + bytes(TOO_MUCH)))
    with pytest.raises(LimitExceeded):
        _import(tmp_path / "a.warc.zst", tmp_path)


def test_a_revisit_without_its_original_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    (tmp_path / "a.warc").write_bytes(
        _record("response", head + b"<p>") + _record("revisit", head, URL + "again")
    )
    collection, report = _import(tmp_path / "a.warc", tmp_path)
    [defect] = [each for each in report.defects if each.code == "no-original"]
    assert "revisits without their original: 1;" in defect.what
    assert URL + "again" in defect.what
    assert seal(collection).entries == 1
    export(collection, tmp_path / "a.har")
    assert URL + "again" in caplog.text
    assert len(json.loads((tmp_path / "a.har").read_text())["log"]["entries"]) == 1


def test_responses_that_are_not_replayed_are_counted(tmp_path: Path) -> None:
    parts = [_record("response", b"x", "dns:a.example"), _record("resource", b"x", "file:///shot.png")]
    (tmp_path / "a.warc").write_bytes(b"".join([*parts, _record("response", b"HTTP/1.1 200 OK\r\n\r\n<p>")]))
    [defect] = [each for each in _import(tmp_path / "a.warc", tmp_path)[1].defects if each.code == "not-http"]
    assert "(dns 1, file 1)" in defect.what


def test_warc_headers_in_other_spellings(tmp_path: Path) -> None:
    record = _record("response", b"HTTP/1.1 200 OK\r\n\r\n<p>")
    folded = re.sub(rb"Content-Length: (\d+)", rb"content-length:\r\n \1", record)
    (tmp_path / "a.warc").write_bytes(
        folded.replace(b"WARC/1.0", b"warc/1.0") + record.replace(b"a.ex", b"b.ex")
    )
    assert _import(tmp_path / "a.warc", tmp_path)[1].captures == 2


ARC_HEAD = (
    b"filedesc://a.arc 0.0.0.0 20110101000000 text/plain 77\n1 0 InternetArchive\n"
    b"URL IP-address Archive-date Content-type Archive-length\n\n"
)
ARC_RECORD = b"http://a.example/ 1.2.3.4 20110101000000 text/html 22\nHTTP/1.0 200 OK\r\n\r\n<p>\n"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(ARC_HEAD + ARC_RECORD, id="as it should be"),
        pytest.param(ARC_RECORD, id="without the version block"),
        pytest.param(b"\n" + ARC_HEAD + ARC_RECORD, id="an empty line first"),
        pytest.param(ARC_HEAD + ARC_RECORD.replace(b"text/html", b""), id="without a media type"),
        pytest.param(ARC_HEAD.replace(b" 77\n", b" 78\n")[:-1] + ARC_RECORD, id="a length of one too many"),
        pytest.param(
            ARC_HEAD + b"metadata://b.example/x?a=1 1.2.3.4 20110101000000 text/plain 3\nabc\n" + ARC_RECORD,
            id="metadata between",
        ),
    ],
)
def test_arc_files_of_other_programs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.arc").write_bytes(content)
    collection, report = _import(tmp_path / "a.arc", tmp_path)
    assert [(e.request.url, e.response.raw_body) for e in collection.exchanges()] == [
        ("http://a.example/", b"<p>")
    ]
    assert not [each for each in report.defects if each.severity is Severity.ERROR]


@pytest.mark.parametrize("line", [b"a://x 123456789012 y ", b"a://", b"http://x 123456789012 1 2 3 4 5 "])
def test_a_search_for_arc_records_is_linear(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.arc").write_bytes(ARC_HEAD + ARC_RECORD + line * (1_000_000 // len(line)))
    began = time.process_time()
    assert _import(tmp_path / "a.arc", tmp_path)[1].captures == 1
    assert time.process_time() - began < 10


# --- HAR ----------------------------------------------------------------------------------------------


def test_a_har_with_a_byte_order_mark(tmp_path: Path) -> None:
    given = tmp_path / "bom.har"
    given.write_bytes(b"\xef\xbb\xbf" + _har(_entry()))
    assert _import(given, tmp_path)[1].captures == 1


def _attached(folder: Path) -> bytes:
    """Write bodies as Playwright attaches them, and return the HAR that names them."""
    (folder / "5f1d.html").write_bytes(b"<p>attached")
    (folder / "77aa.bin").write_bytes(b"\x00\x01")
    page = {"size": -1, "mimeType": "text/html", "_file": "5f1d.html"}
    made = _entry(URL + "post", "POST", content={"size": -1, "mimeType": "text/html", "_file": "5f1d.html"})
    made["request"]["postData"] = {"mimeType": "application/octet-stream", "params": [], "_file": "77aa.bin"}
    made["request"]["bodySize"] = 2
    return _har(_entry(content=page), made)


EMPTY_GZIP = {"Content-Encoding": "gzip", "Content-Length": "20"}


@pytest.mark.parametrize(
    ("answer", "is_stored"),
    [
        ({"headers": [{"name": "Content-Length", "value": "120"}]}, False),
        ({"headers": [{"name": "Content-Length", "value": "0"}], "bodySize": 310}, True),
        ({"bodySize": 4711}, False),
        ({"headers": [{"name": n, "value": v} for n, v in EMPTY_GZIP.items()]}, True),
        ({"bodySize": 20, "headers": [{"name": "Content-Encoding", "value": "gzip"}]}, True),
        ({"bodySize": -1, "headers": [{"name": "Transfer-Encoding", "value": "chunked"}]}, False),
        ({"bodySize": -1}, True),
        ({"status": 302, "headers": [{"name": "Location", "value": "/"}], "bodySize": 300}, True),
    ],
)
@pytest.mark.parametrize("content", [{"size": 0, "text": ""}, {"size": 0}])
def test_a_har_saved_without_bodies_gives_no_empty_answers(
    tmp_path: Path, answer: dict[str, object], content: dict[str, object], is_stored: bool
) -> None:
    """Firefox and BrowserMob Proxy state a size of 0 for bodies that they did not save."""
    entries = [_entry(**answer, content=content), _entry(URL + "kept", content={"size": 0}, bodySize=0)]
    (tmp_path / "a.har").write_bytes(_har(*entries))
    collection, report = _import(tmp_path / "a.har", tmp_path)
    assert [each.url for each in collection.captures()] == [URL] * is_stored + [URL + "kept"]
    assert any("saved without it" in each.what for each in report.defects) is not is_stored


def test_the_start_page_of_a_har_is_its_document(tmp_path: Path) -> None:
    """A page's first entry may be the beacon of the page before, or a service of the browser."""
    html = {"size": 4, "text": "body", "mimeType": "text/html; charset=utf-8"}
    entries = [
        _entry(URL + "beacon", "POST", pageref="p", content=html),
        _entry(URL + "site.css", pageref="p"),
        _entry(URL + "part", pageref="p", content=html, _resourceType="xhr"),
        _entry(
            URL + "moved", status=301, pageref="p", content=html, headers=[{"name": "Location", "value": "/"}]
        ),
        _entry(URL, pageref="p", content=html, _resourceType="document"),
        _entry(URL + "frame", pageref="p", content=html),
        _entry(URL + "json", pageref="r", content={"size": 2, "text": "{}"}, _resourceType="document"),
        _entry(URL + "data", pageref="q", content={"size": 2, "text": "{}", "mimeType": "application/json"}),
    ]
    (tmp_path / "a.har").write_bytes(
        _har(*entries, pages=[{"id": "p", "title": "P"}, {"id": "q"}, {"id": "r"}])
    )
    collection, _ = _import(tmp_path / "a.har", tmp_path)
    assert [(page.url, page.title) for page in collection.page_list()] == [(URL, "P"), (URL + "json", "")]


@pytest.mark.parametrize(
    ("change", "pages"),
    [
        ({"content": {"_file": "x" * 70_000}}, []),
        ({"content": True, "_resourceType": "document"}, [{"id": "p"}]),
        ({}, [{"title": "without an id"}]),
    ],
)
def test_odd_members_of_a_har_end_in_no_traceback(
    tmp_path: Path, change: dict[str, object], pages: list[dict[str, object]]
) -> None:
    (tmp_path / "a.har").write_bytes(_har(_entry(URL + "odd", **change), _entry(), pages=pages))
    _, report = _import(tmp_path / "a.har", tmp_path)
    assert report.captures >= 1


def test_a_redirect_without_header_fields_leads_to_the_url_that_the_har_names(tmp_path: Path) -> None:
    (tmp_path / "a.har").write_bytes(
        _har(
            _entry(status=302, content={"size": 0}, redirectURL="https://a.example/home"),
            _entry(URL + "odd", status=302, content={"size": 0}, redirectURL="/\r\nSet-Cookie: a=b"),
        )
    )
    collection, _ = _import(tmp_path / "a.har", tmp_path)
    found = [header(each.response.headers, "location") for each in collection.exchanges()]
    assert found == ["https://a.example/home", ""]


def test_a_har_in_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.har.gz").write_bytes(gzip.compress(_har(_entry())))
    _, report = _import(tmp_path / "a.har.gz", tmp_path)
    assert [(file.kind, file.captures) for file in report.files] == [("har", 1)]


def test_a_har_in_gzip_that_is_cut_or_unpacks_to_too_much(tmp_path: Path) -> None:
    (tmp_path / "cut.har.gz").write_bytes(gzip.compress(_har(_entry()))[:-9])
    with pytest.raises(MalformedHar, match="not readable as gzip"):
        _import(tmp_path / "cut.har.gz", tmp_path)
    (tmp_path / "bomb.har.gz").write_bytes(gzip.compress(b'{"log": {"entries": []}}' + bytes(TOO_MUCH)))
    with pytest.raises(LimitExceeded, match="unpacks to more than"):
        _import(tmp_path / "bomb.har.gz", tmp_path)


def test_bodies_attached_to_a_har_are_read_from_their_files(tmp_path: Path) -> None:
    given = tmp_path / "har"
    given.mkdir()
    (given / "site.har").write_bytes(_attached(given))
    collection, report = _import(given / "site.har", tmp_path)
    assert report.defects == ()
    bodies = {each.request.url: each for each in collection.exchanges()}
    assert bodies[URL].response.raw_body == b"<p>attached"
    assert bodies[URL + "post"].request.raw_body == b"\x00\x01"


def test_a_zip_of_a_har_and_its_bodies(tmp_path: Path) -> None:
    folder = tmp_path / "har"
    folder.mkdir()
    (folder / "har.har").write_bytes(_attached(folder))
    with zipfile.ZipFile(tmp_path / "site.har.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    collection, report = _import(tmp_path / "site.har.zip", tmp_path)
    assert [(each.kind, each.captures) for each in report.files] == [("har", 2)]
    assert {each.response.raw_body for each in collection.exchanges()} == {b"<p>attached"}


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "a/../../secret.txt", "gone.html", "", 5])
def test_a_har_reads_no_file_outside_of_its_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "har"
    folder.mkdir()
    (folder / "a.har").write_bytes(
        _har(_entry(), _entry(URL + "2", content={"size": -1, "mimeType": "text/html", "_file": name}))
    )
    collection, report = _import(folder / "a.har", tmp_path)
    assert [each.request.url for each in collection.exchanges()] == [URL]
    assert [each.code for each in report.defects] == ["no-body"]
    assert "entry 1" in report.defects[0].what


def test_a_304_that_carries_the_body_is_the_whole_answer(tmp_path: Path) -> None:
    given = tmp_path / "a.har"
    given.write_bytes(_har(_entry(status=304, statusText="Not Modified")))
    collection, _ = _import(given, tmp_path)
    [exchange] = collection.exchanges()
    assert (exchange.response.status, exchange.response.raw_body) == (200, b"body")
    assert seal(collection).warnings == ()


def test_fields_that_a_har_joins_by_line_ends_are_fields_of_their_own(tmp_path: Path) -> None:
    """Chrome and tools on CDP join the values of one name; joined by commas, cookies are broken."""
    given = tmp_path / "chrome.har"
    joined = [
        {"name": "set-cookie", "value": "a=1; Path=/\nb=2; Path=/"},
        {"name": "X-Note", "value": "x\n y"},
    ]
    given.write_bytes(_har(_entry(headers=joined)))
    collection, _ = _import(given, tmp_path)
    seal(collection)
    with Pack.open(collection.pack) as pack:
        head = bytes(pack.entry(0).head)
    assert re.findall(rb"(?i)(?<=\r\n)set-cookie: ([^\r]*)", head) == [b"a=1; Path=/", b"b=2; Path=/"]
    assert b"X-Note: x  y\r\n" in head


def test_a_form_that_a_har_lists_beside_an_empty_text(tmp_path: Path) -> None:
    """OWASP ZAP writes both; without the fields, the entry has no body."""
    given = tmp_path / "zap.har"
    entry = _entry(method="POST")
    fields = [{"name": "user", "value": "a b"}, {"name": "n", "value": "1"}]
    mime = "application/x-www-form-urlencoded"
    entry["request"] = {
        "method": "POST",
        "url": URL,
        "headers": [{"name": "Content-Type", "value": mime}],
        "bodySize": 12,
        "postData": {"mimeType": mime, "params": fields, "text": ""},
    }
    given.write_bytes(_har(entry))
    collection, report = _import(given, tmp_path)
    assert not report.defects
    seal(collection)
    with Pack.open(collection.pack) as pack:
        assert len(pack.lookup(request_key("POST", URL, mime, b"user=a+b&n=1"))) == 1


def test_websocket_messages_of_a_har(tmp_path: Path) -> None:
    messages = [
        {"type": "send", "time": 1704067200.5, "opcode": 1, "data": "hello"},
        {"type": "receive", "time": 1704067201.25, "opcode": 1, "data": "w\u00f6rld"},
        {"type": "receive", "time": 1704067202, "opcode": 2, "data": base64.b64encode(b"\x00\xff").decode()},
        {"type": "receive", "time": 1704067203, "opcode": 9, "data": ""},
    ]
    socket = _entry("wss://a.example/socket", status=101, content={"size": 0}, _webSocketMessages=messages)
    given = tmp_path / "a.har"
    given.write_bytes(_har(_entry(), socket))
    collection, report = _import(given, tmp_path)
    assert report.defects == ()
    assert check(collection) == []
    assert {each.url for each in collection.captures()} == {URL, "wss://a.example/socket"}
    [path] = collection.warc_files()
    [record] = [each for each in read_records(path) if each.target_uri.startswith("urn:websocket:")]
    frames = read_frames(record.block).frames
    assert [(each.ms, each.sent, each.opcode, each.payload) for each in frames] == [
        (500, True, TEXT, b"hello"),
        (1250, False, TEXT, "w\u00f6rld".encode()),
        (2000, False, BINARY, b"\x00\xff"),
    ]
    info = seal(collection)
    assert (info.entries, info.warnings) == (2, ())


def test_a_websocket_of_mitmproxy_has_an_https_url(tmp_path: Path) -> None:
    entry = _entry(status=101, content={"size": 0, "text": ""}, _resourceType="websocket")
    entry["_webSocketMessages"] = [{"type": "receive", "time": 1704067201.5, "opcode": 1, "data": "hello"}]
    (tmp_path / "a.har").write_bytes(_har(entry))
    [capture] = _import(tmp_path / "a.har", tmp_path)[0].captures()
    assert capture.url == "wss://a.example/"


@pytest.mark.parametrize("status", [-2, 0, 99])
def test_a_status_that_is_none_is_no_answer(tmp_path: Path, status: int) -> None:
    (tmp_path / "a.har").write_bytes(_har(_entry(), _entry(URL + "b", status=status)))
    _, report = _import(tmp_path / "a.har", tmp_path)
    assert (report.captures, [each.code for each in report.defects]) == (1, ["no-body"])


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        ({"size": 30, "compression": -26, "text": "body"}, True),  # mitmproxy: the size before decoding
        ({"size": 30, "compression": 26, "text": "body"}, False),
        ({"size": 15, "text": "a\nb\nc"}, False),
        ({"size": 9, "text": "a\nb\nc\n"}, True),  # Fiddler: line ends were converted
        ({"size": 109, "text": "a\nb\nc\n"}, False),
    ],
)
def test_sizes_that_other_programs_state(tmp_path: Path, content: dict[str, object], whole: bool) -> None:
    (tmp_path / "a.har").write_bytes(_har(_entry(), _entry(URL + "b", content=content)))
    assert _import(tmp_path / "a.har", tmp_path)[1].captures == 1 + whole


def test_an_entry_with_a_url_that_no_record_can_name(tmp_path: Path) -> None:
    given = tmp_path / "long.har"
    given.write_bytes(_har(_entry(), _entry(URL + "x" * 2_000_000)))
    collection, report = _import(given, tmp_path)
    [defect] = report.defects
    assert defect.what.endswith("x: its URL has 2000018 characters, of at most 65536")
    assert seal(collection).entries == 1


@pytest.mark.parametrize("status", ["1e400", "-1e400"])
def test_a_status_beyond_every_number(tmp_path: Path, status: str) -> None:
    given = tmp_path / "infinite.har"
    given.write_bytes(
        _har(_entry(), _entry(URL + "b", status=0)).replace(b'"status": 0', f'"status": {status}'.encode())
    )
    _, report = _import(given, tmp_path)
    assert [defect.code for defect in report.defects] == ["bad-entry"]


def test_an_entry_without_a_time_has_that_of_the_one_before(tmp_path: Path) -> None:
    late = _entry(URL + "b")
    del late["startedDateTime"]
    (tmp_path / "a.har").write_bytes(_har(_entry(), late))
    collection, report = _import(tmp_path / "a.har", tmp_path)
    assert {each.timestamp for each in collection.captures()} == {"20240101000000"}
    assert [each.code for each in report.defects] == ["bad-date"]


def test_a_har_without_bodies_says_why_of_each_entry(tmp_path: Path) -> None:
    given = tmp_path / "a.har"
    bare = {"size": 10, "mimeType": "text/html"}
    given.write_bytes(
        _har(_entry(content=bare), _entry(URL + "2", content=bare), _entry(URL + "3", status=0), {"x": 1})
    )
    with pytest.raises(MalformedWarc) as raised:
        import_files([given], tmp_path / "root", "x")
    text = str(raised.value)
    assert "4 entries" in text
    assert f"entry 0, {URL}: the response (200) has no body" in text
    assert f"entry 1, {URL}2: the response (200) has no body" in text
    assert f"entry 2, {URL}3: it was not answered" in text
    assert "entry 3 lacks" in text
    assert "record content" in raised.value.hint


def test_a_har_export_imports_as_the_same_exchanges(tmp_path: Path) -> None:
    messages = [{"type": "send", "time": 1704067200.5, "opcode": 1, "data": "hi"}]
    posted = _entry(URL + "post", "POST", content={"size": 2, "text": "AP8=", "encoding": "base64"})
    posted["request"]["postData"] = {"mimeType": "text/plain; charset=iso-8859-1", "text": "caf\u00e9"}
    latin = {"size": 1, "text": "\xe9", "mimeType": "text/html; charset=iso-8859-1"}
    given = tmp_path / "a.har"
    given.write_bytes(
        _har(
            _entry(pageref="p", statusText="OK"),
            _entry(URL + "latin", content=latin),
            posted,
            _entry("wss://a.example/s", status=101, content={"size": 0}, _webSocketMessages=messages),
            pages=[{"id": "p", "title": "Home", "startedDateTime": "2024-01-01T00:00:00Z"}],
        )
    )
    first, _ = _import(given, tmp_path)
    made = export(first, tmp_path / "b.har")
    assert export(first, tmp_path / "c.har").read_bytes() == made.read_bytes()
    report = import_files([made], tmp_path / "root", "y")
    assert report.defects == ()
    second = Collection.open(tmp_path / "root", "y")
    assert list(second.exchanges()) == list(first.exchanges())
    assert [(page.url, page.title) for page in second.page_list()] == [(URL, "Home")]
    assert seal(second).environment_id == seal(first).environment_id


@pytest.mark.shared
@pytest.mark.parametrize("name", ["svelte_toolbar.wacz", "books.toscrape.warc"])
def test_a_har_of_a_real_archive_has_the_same_bodies(shared: Path, tmp_path: Path, name: str) -> None:
    first, _ = _import(shared / "archives" / name, tmp_path)
    report = import_files([export(first, tmp_path / "b.har")], tmp_path / "root", "y")
    second = Collection.open(tmp_path / "root", "y")

    def bodies(collection: Collection) -> dict[tuple[str, str], bytes | None]:
        return {
            (each.request.method, each.request.url): decode(
                each.response.raw_body, header(each.response.headers, "content-encoding")
            )
            for each in collection.exchanges()
        }

    skipped = {each.what.partition(", ")[2].partition(": ")[0] for each in report.defects}
    there = bodies(second)
    assert there == {key: body for key, body in bodies(first).items() if key[1] not in skipped}
    assert len(there) >= 10


# --- rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"version: 1\nvolatile:\n  - {where: nowhere, name: a, shape: hex}\n", ":3"),
        (b"version: 7\n", ""),
        (b"\xff\xfe", ""),
        (b"version: [\n", ""),
    ],
)
def test_check_reports_rules_that_replay_rejects(tmp_path: Path, text: bytes, line: str) -> None:
    given = tmp_path / "a.har"
    given.write_bytes(_har(_entry()))
    collection, _ = _import(given, tmp_path)
    assert check(collection) == []
    (collection.path / "rules.yaml").write_bytes(text)
    [defect] = check(collection)
    assert (defect.severity.value, defect.code) == ("error", "rules")
    assert defect.file == str(collection.path / "rules.yaml")
    with pytest.raises(StillwebError):
        seal(collection)


# --- malformed and hostile ----------------------------------------------------------------------------


def _wacz(path: Path, members: dict[str, bytes], **package: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("datapackage.json", json.dumps({"profile": "data-package", **package}))
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


WARC = gzip_member(_record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>"))


@pytest.mark.parametrize("resources", [5, "x", {"a": 1}, [5, None, {"path": 5, "hash": 7}], None])
def test_resources_that_are_no_list(tmp_path: Path, resources: object) -> None:
    given = _wacz(tmp_path / "a.wacz", {"archive/a.warc.gz": WARC, "//": b"x"}, resources=resources)
    assert _import(given, tmp_path)[1].captures == 1


@pytest.mark.parametrize(
    "stillweb", [{"version": "x"}, {"sources": 5}, {"profile": 5, "extra": 1}, {"seed": []}]
)
def test_hostile_manifests(tmp_path: Path, stillweb: object) -> None:
    given = _wacz(tmp_path / "a.wacz", {"archive/a.warc.gz": WARC}, resources=[], stillweb=stillweb)
    assert _import(given, tmp_path)[1].captures == 1


@pytest.mark.parametrize("pages", [5, "x", [5, None, {"id": {}}], {"a": 1}])
def test_pages_of_a_har_that_are_none(tmp_path: Path, pages: object) -> None:
    given = tmp_path / "a.har"
    given.write_bytes(_har(_entry(), 5, [], pages=pages))
    assert _import(given, tmp_path)[1].captures == 1


def test_deep_json(tmp_path: Path) -> None:
    given = tmp_path / "a.har"
    given.write_bytes(b'{"log":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    with pytest.raises(MalformedHar):
        _import(given, tmp_path)
    wacz = tmp_path / "a.wacz"
    with zipfile.ZipFile(wacz, "w") as archive:
        archive.writestr("datapackage.json", b"[" * 200_000)
        archive.writestr("archive/a.warc.gz", WARC)
        archive.writestr("pages/pages.jsonl", b"[" * 200_000)
    assert _import(wacz, tmp_path)[1].captures == 1


def test_a_gzip_member_that_unpacks_to_too_much(tmp_path: Path) -> None:
    given = tmp_path / "bomb.warc.gz"
    given.write_bytes(gzip.compress(_record("response", b"HTTP/1.1 200 OK\r\n\r\n" + bytes(TOO_MUCH)), 9))
    with pytest.raises(LimitExceeded, match="ratio") as raised:
        _import(given, tmp_path)
    assert raised.value.option == "STILLWEB_MAX_RATIO"
    assert str(given) in str(raised.value)
    assert not list((tmp_path).glob("root/**/*"))


@pytest.mark.parametrize("name", ["archive/a.warc.gz", "datapackage.json", "pages/pages.jsonl"])
def test_a_zip_member_that_unpacks_to_too_much(tmp_path: Path, name: str) -> None:
    given = tmp_path / "bomb.wacz"
    with zipfile.ZipFile(given, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in {"archive/a.warc.gz", name}:
            archive.writestr(member, bytes(TOO_MUCH) if member == name else WARC)
    with pytest.raises(LimitExceeded, match="ratio") as raised:
        _import(given, tmp_path)
    assert raised.value.option == "STILLWEB_MAX_RATIO"
    assert not list((tmp_path).glob("root/**/*"))


def test_the_ratio_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "zeros.warc.gz"
    given.write_bytes(gzip.compress(_record("response", b"HTTP/1.1 200 OK\r\n\r\n" + bytes(TOO_MUCH)), 9))
    monkeypatch.setenv("STILLWEB_MAX_RATIO", "2000")
    assert _import(given, tmp_path)[1].captures == 1


def test_a_zip_without_an_archive_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "a.zip"
    with zipfile.ZipFile(given, "w") as archive:
        archive.writestr("readme.txt", b"x")
    with pytest.raises(MalformedWacz):
        _import(given, tmp_path)
