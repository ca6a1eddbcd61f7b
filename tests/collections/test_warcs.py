"""WARC reading and writing: identity, a cut at every byte, damages of each container, warcio as oracle."""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from stillweb.collections.defects import Severity
from stillweb.collections.warc import reader as warcs
from stillweb.collections.warc.reader import gzip_member, read_record, read_records, sniff
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.errors import MalformedWarc

names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: name.lower() != "content-length"
)
values = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40).map(
    lambda text: text.strip(" \t\x85\xa0")
)
blocks = st.binary(max_size=200) | st.sampled_from(
    [b"WARC/1.0\r\n", b"\r\n\r\n", b"\n\nWARC/1.1\r\nWARC-Type: x\r\n"]
)


@st.composite
def records(draw):
    block = draw(blocks)
    fields = draw(st.lists(st.tuples(names, values), max_size=5))
    at = draw(st.integers(0, len(fields)))
    headers = (*fields[:at], ("Content-Length", str(len(block))), *fields[at:])
    return WarcRecord(headers, block, draw(st.sampled_from(["WARC/1.0", "WARC/1.1"])))


def content(record: WarcRecord) -> tuple:
    return record.version, record.headers, record.block


def response(number: int, body: bytes = b"") -> WarcRecord:
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + (body or b"page %d" % number)
    return WarcRecord(
        (
            ("WARC-Type", "response"),
            ("WARC-Record-ID", f"<urn:uuid:00000000-0000-4000-8000-{number:012}>"),
            ("WARC-Target-URI", f"https://a.example/{number}"),
            ("WARC-Date", "2024-01-01T00:00:00Z"),
            ("WARC-Block-Digest", f"sha256:{hashlib.sha256(block).hexdigest()}"),
            ("Content-Length", str(len(block))),
        ),
        block,
    )


def read(path: Path) -> tuple[list[WarcRecord], list]:
    heard: list = []
    return list(read_records(path, heard.append)), [each for each in heard if each.code != "plain"]


@pytest.mark.parametrize("pack", [gzip_member, bytes], ids=["gzip", "plain"])
@given(written=st.lists(records(), min_size=1, max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_is_read(tmp_path, pack, written):
    path = tmp_path / "x.warc"
    path.write_bytes(b"".join(pack(serialise(record)) for record in written))
    found, defects = read(path)
    assert [content(record) for record in found] == [content(record) for record in written]
    assert defects == []
    for record in found:
        assert read_record(path, record.offset, record.length) == record


@pytest.mark.parametrize("pack", [gzip_member, bytes], ids=["gzip", "plain"])
def test_a_cut_at_any_byte_costs_one_defect_and_no_whole_record(tmp_path, pack):
    parts = [pack(serialise(response(number))) for number in range(3)]
    ends = [sum(map(len, parts[: number + 1])) for number in range(3)]
    whole = b"".join(parts)
    path = tmp_path / "cut.warc"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found, defects = read(path)
        before = sum(end <= cut for end in ends)
        assert [record.id[-1] for record in found[:before]] == [str(number) for number in range(before)], cut
        # In a last member that lacks its trailer the record itself may be whole: it is read and reported.
        assert len(found) - before in (0, 1)
        at_boundary = cut in ends
        assert len(defects) == (0 if at_boundary else 1), (cut, defects)
        if defects:
            assert defects[0].offset == ([0, *ends][before] if cut else 0)
            assert defects[0].code in ("truncated", "no-end")
            assert defects[0].repair


def test_without_a_listener_the_whole_records_come_before_the_error(tmp_path):
    path = tmp_path / "cut.warc.gz"
    members = [gzip_member(serialise(response(number))) for number in range(2)]
    path.write_bytes(b"".join(members)[:-20])
    reading = read_records(path)
    assert next(reading).target_uri == "https://a.example/0"
    with pytest.raises(MalformedWarc, match="breaks off") as caught:
        list(reading)
    assert caught.value.offset == len(members[0])
    assert caught.value.path == path


def test_a_gzip_of_one_member_is_read_and_reported_once(tmp_path):
    path = tmp_path / "x.warc.gz"
    path.write_bytes(gzip.compress(b"".join(serialise(response(number)) for number in range(4))))
    found, defects = read(path)
    assert len(found) == 4
    assert [(each.code, each.offset, each.severity) for each in defects] == [
        ("not-chunked", 0, Severity.ERROR)
    ]


def test_a_record_spread_over_members_is_put_together(tmp_path):
    text = serialise(response(0, b"x" * 500))
    path = tmp_path / "x.warc.gz"
    first, second, third = (gzip_member(part) for part in (text[:300], text[300:600], text[600:]))
    path.write_bytes(first + second + third + gzip_member(serialise(response(1))))
    found, defects = read(path)
    assert [content(record) for record in found] == [content(response(0, b"x" * 500)), content(response(1))]
    assert [(each.code, each.offset) for each in defects] == [("split-record", 0)]


def test_a_corrupt_member_costs_its_record_only(tmp_path):
    members = [bytearray(gzip_member(serialise(response(number)))) for number in range(3)]
    members[1][60] ^= 0xFF
    path = tmp_path / "x.warc.gz"
    path.write_bytes(b"".join(members))
    found, defects = read(path)
    assert [record.target_uri[-1] for record in found] == ["0", "2"]
    assert [(each.code, each.offset) for each in defects] == [("corrupt", len(members[0]))]


def test_padding_behind_the_last_member_is_reported(tmp_path):
    member = gzip_member(serialise(response(0)))
    path = tmp_path / "x.warc.gz"
    path.write_bytes(member + bytes(512))
    found, defects = read(path)
    assert len(found) == 1
    assert [(each.code, each.offset) for each in defects] == [("junk", len(member))]


def test_a_wrong_content_length_costs_no_other_record(tmp_path):
    text = serialise(response(0)).replace(b"Content-Length: 50", b"Content-Length: 40")
    assert b"Content-Length: 40" in text
    text = text.replace(b"WARC-Block-Digest", b"X-Block-Digest")
    path = tmp_path / "x.warc"
    path.write_bytes(text + serialise(response(1)))
    found, defects = read(path)
    assert [record.target_uri[-1] for record in found] == ["0", "1"]
    assert [(each.code, each.offset) for each in defects] == [("junk", 0)]


def test_a_content_length_too_small_is_repaired_by_the_digest(tmp_path):
    text = serialise(response(0)).replace(b"Content-Length: 50", b"Content-Length: 40")
    path = tmp_path / "x.warc"
    path.write_bytes(text + serialise(response(1)))
    found, defects = read(path)
    assert [record.block for record in found] == [response(0).block, response(1).block]
    assert [(each.code, each.offset) for each in defects] == [("bad-length", 0)]


def test_a_record_without_content_length_costs_no_other_record(tmp_path):
    text = serialise(response(0)).replace(b"Content-Length: 50\r\n", b"")
    path = tmp_path / "x.warc"
    path.write_bytes(text + serialise(response(1)))
    found, defects = read(path)
    assert [record.target_uri[-1] for record in found] == ["1"]
    assert [(each.code, each.offset) for each in defects] == [("bad-record", 0)]


def test_a_large_member_goes_by_way_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(warcs, "_SPOOL", 1000)
    path = tmp_path / "x.warc.gz"
    big = response(0, bytes(range(256)) * 4000)
    path.write_bytes(gzip_member(serialise(big)) + gzip_member(serialise(response(1))))
    found, defects = read(path)
    assert [content(record) for record in found] == [content(big), content(response(1))]
    assert defects == []


def test_header_quirks(tmp_path):
    path = tmp_path / "x.warc"
    path.write_bytes(
        b"WARC/1.0\r\nwarc-type: RESPONSE\r\nWARC-Target-URI: <http://a.example/a b\xff>\r\n"
        b"WARC-Date: 2008-10-294T05:21:46-0700\r\nX-Folded: one\r\n  two\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
    )
    record = next(read_records(path))
    assert record.type == "response"
    assert record.target_uri == "http://a.example/a%20b%FF"
    assert record.timestamp == "20081020122146"
    assert record.get("x-folded") == "one two"


def arc_of(*blocks: tuple[str, bytes]) -> bytes:
    head = b"1 0 test\nURL IP-address Archive-date Content-type Archive-length\n\n"
    text = b"filedesc://x.arc 0.0.0.0 20140216050221 text/plain %d\n%s\n" % (len(head), head)
    for line, block in blocks:
        text += b"%s %d\n%s\n" % (line.encode(), len(block), block)
    return text


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_arc_records_become_warc_records(tmp_path, pack):
    http = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    text = arc_of(
        ("http://a.example/with space?q 93.184.216.119 20140216050221 text/html", http),
        ("dns:a.example 0.0.0.0 20140216050222 text/dns", b"20140216050222\na.example. 60 IN A 1.2.3.4\n"),
        ("http://a.example/2 93.184.216.119 20140216050223 text/html 200 - - 0 x.arc", http),
    )
    path = tmp_path / "x.arc"
    path.write_bytes(pack(text))
    assert sniff(path) == "arc"
    found, defects = read(path)
    assert [each.code for each in defects] == (["not-chunked"] if pack is gzip.compress else [])
    assert [record.type for record in found] == ["warcinfo", "response", "resource", "response"]
    assert found[1].target_uri == "http://a.example/with%20space?q"
    assert found[1].timestamp == "20140216050221"
    assert found[1].get("WARC-IP-Address") == "93.184.216.119"
    assert found[1].block == http
    assert found[3].target_uri == "http://a.example/2"
    assert [record.id for record in found] == [record.id for record in read(path)[0]]


def test_an_arc_record_whose_line_ends_were_converted_is_saved_by_its_http_length(tmp_path):
    text = arc_of(
        ("http://a.example/ 1.2.3.4 20140216050221 text/html", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello")
    )
    path = tmp_path / "x.arc"
    path.write_bytes(text.replace(b"text/html 40", b"text/html 43"))
    found, defects = read(path)
    assert found[1].block.endswith(b"hello\n")
    assert [each.code for each in defects] == ["bad-length"]


@pytest.mark.parametrize("junk", [b"hello", b"\x1f\x8b\x08garbage", b"PK\x03\x04", b"\n\n\n", b"{}"])
def test_what_is_no_archive_gives_one_defect(tmp_path, junk):
    path = tmp_path / "x.warc"
    path.write_bytes(junk)
    found, defects = read(path)
    assert found == []
    assert sniff(path) == ""
    assert len(defects) == (0 if not junk.strip() else 1)


@given(st.binary(max_size=300))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_bytes_make_the_reader_fail(tmp_path, junk):
    path = tmp_path / "x.warc"
    for text in (junk, serialise(response(0))[:-7] + junk, gzip_member(serialise(response(0))) + junk):
        path.write_bytes(text)
        read(path)


SOUND = [
    "books.toscrape.warc",
    "example-iana.warc",
    "flickr-commons.warc.gz",
    "iana.warc.gz",
    "kiwix-with-redirects.warc.gz",
    "lil-projects.warc.gz",
    "solidaritenum.warc.gz",
    "browsertrix/dyn1.rec.warc.gz",
    "defects/warcfile.warc",
]


@pytest.mark.shared
@pytest.mark.parametrize("name", SOUND)
def test_warcio_reads_the_same(shared, name):
    path = shared / "archives" / name
    with path.open("rb") as file:
        archive = ArchiveIterator(file, no_record_parse=True)
        theirs = []
        for record in archive:
            uri = record.rec_headers.get_header("WARC-Target-URI")
            block = record.raw_stream.read()
            place = (archive.get_record_offset(), archive.get_record_length())
            theirs.append((record.rec_type, uri or "", hashlib.sha256(block).hexdigest(), *place))
    ours = [
        (r.type, r.get("WARC-Target-URI"), hashlib.sha256(r.block).hexdigest(), r.offset, r.length)
        for r in read_records(path, lambda defect: None)
    ]
    if path.suffix == ".warc":  # warcio counts line ends between plain records otherwise
        ours, theirs = [each[:4] for each in ours], [each[:4] for each in theirs]
    assert ours == theirs


def test_warcio_reads_what_we_write():
    text = b"".join(gzip_member(serialise(response(number))) for number in range(3))
    bodies = [
        record.content_stream().read() for record in ArchiveIterator(io.BytesIO(text), check_digests=True)
    ]
    assert bodies == [b"page 0", b"page 1", b"page 2"]
