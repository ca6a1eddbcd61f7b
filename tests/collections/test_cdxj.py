"""The index: CDXJ round trip, bytewise order, and pywb's and cdxj-indexer's own index of the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.collections.indexing import index_lines
from stillweb.collections.layout import Collection
from stillweb.collections.warc.cdxj import format_line, parse_line, read_cdxj, read_in_file_order, write_lines
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import MalformedCdxj, ProgramNotFound
from stillweb.model import Capture, Exchange, Request, Response
from stillweb.replay.pywb.process import find_pywb

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = st.from_regex(r"[^\s]{1,30}", fullmatch=True).filter(lambda word: "\x85" not in word)


@st.composite
def captures(draw):
    has_request = draw(st.booleans())
    return Capture(
        urlkey=draw(st.from_regex(r"[\x22-\x7e][\x21-\x7e]{0,39}", fullmatch=True)),  # "!" begins a header
        timestamp=draw(st.from_regex(r"[0-9]{14}", fullmatch=True)),
        url=draw(text),
        method=draw(st.sampled_from(["GET", "POST", "DELETE"])),
        key=draw(st.binary(min_size=16, max_size=16)).hex(),
        status=draw(st.sampled_from([0, 200, 404])),
        mime=draw(text),
        digest=draw(text),
        source=draw(text),
        offset=draw(st.integers(0, 2**40)),
        length=draw(st.integers(0, 2**40)),
        request_offset=draw(st.integers(0, 2**40)) if has_request else -1,
        request_length=draw(st.integers(1, 2**40)) if has_request else 0,
    )


@given(captures())
def test_a_line_round_trips(capture):
    line = format_line(
        Capture(**{**as_dict(capture), "url": capture.url or "x", "source": capture.source or "x"})
    )
    assert line.count(b"\n") == 1
    assert format_line(parse_line(line)) == line
    found = parse_line(line)
    assert (found.urlkey, found.timestamp, found.offset, found.request_offset, found.key, found.method) == (
        capture.urlkey,
        capture.timestamp,
        capture.offset,
        capture.request_offset,
        capture.key,
        capture.method,
    )


def as_dict(capture: Capture) -> dict:
    return {name: getattr(capture, name) for name in Capture.__slots__}


@given(st.lists(captures(), max_size=8))
def test_a_file_is_sorted_bytewise_whatever_order_it_was_made_in(tmp_path_factory, given_captures):
    lines = [format_line(each) for each in given_captures if each.url and each.source]
    path = tmp_path_factory.mktemp("index") / "index.cdxj"
    write_lines(path, lines)
    first = path.read_bytes()
    write_lines(path, lines[::-1] + lines)
    assert path.read_bytes() == first
    assert first.splitlines() == sorted(set(first.splitlines()))
    assert [format_line(each) for each in read_cdxj(path)] == first.splitlines(keepends=True)


@pytest.mark.parametrize(
    "line", [b"x\n", b"com,a)/ 20240101000000 {\n", b"com,a)/ 20240101000000 {}\n", b"a 1 []\n", b"\xff\n"]
)
def test_a_line_that_is_none_is_named_with_its_offset(tmp_path, line):
    path = tmp_path / "index.cdxj"
    good = format_line(
        Capture("com,a)/", "20240101000000", "http://a.com/", "GET", "", 200, "", "", "f", 0, 1)
    )
    path.write_bytes(good + line)
    with pytest.raises(MalformedCdxj) as caught:
        list(read_cdxj(path))
    assert caught.value.offset == len(good)


def test_lines_of_other_tools_are_read(tmp_path):
    path = tmp_path / "index.cdxj"
    path.write_bytes(
        b'!meta 0 {"format": "cdxj-gzip-1.0"}\n\n'
        b'com,a)/ 20240101000000 {"url":"http://a.com/","status":"-","filename":"x","offset":"3"}\n'
    )
    [capture] = read_cdxj(path)
    assert (capture.status, capture.offset, capture.length, capture.method, capture.request_offset) == (
        0,
        3,
        0,
        "GET",
        -1,
    )


JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
TEXT = (("Content-Type", "text/plain;charset=UTF-8"),)
PARTS = b"".join(
    [
        b'--XX\r\nContent-Disposition: form-data; name="t"\r\n\r\nhello w\r\n',
        b'--XX\r\ncontent-disposition: form-data; name="f"; filename="a.bin"\r\n',
        b"Content-Type: application/octet-stream\r\n\r\n\x00\xff\r\n--XX--\r\n",
    ]
)
REQUESTS = [
    ("GET", "a?b=1", (), b""),
    ("POST", "a?b=1", JSON, b'{"a":1,"b":[1,2,{"c":true,"d":null}],"e":1.50,"f":2.0,"g":1e30}'),
    (
        "POST",
        "n",
        JSON,
        '{"A":null,"n":12345678901234567890123,"u":"\u00e9 x","":5,"l":[],"nest":{"A":"up"}}'.encode(),
    ),
    ("POST", "top", JSON, b"[1,2]"),
    ("POST", "bad", JSON, b'{"a":'),
    ("POST", "lines", JSON, b'{"a":1}\n{"a":2}'),
    ("POST", "big", JSON, json.dumps({"q": "x" * 5000, "id": 1}).encode()),
    ("POST", "f", FORM, b"q=a+b%26c&z=%C3%A9&Q=2&&x"),
    ("POST", "fb", FORM, b"q=\xff"),
    ("POST", "m", (("Content-Type", "multipart/form-data; boundary=XX"),), PARTS),
    ("POST", "mb", (("Content-Type", "multipart/form-data"),), b"--a b\r\n"),
    ("POST", "t", TEXT, b"just text"),
    ("POST", "tj", TEXT, b'{"k":"v"}'),
    ("POST", "o", (("Content-Type", "application/octet-stream"),), b"\x00\x01\xff"),
    ("POST", "none", (), b""),
    ("PUT", "p", JSON, b'{"a":1}'),
    ("PATCH", "p", JSON, b'{"a":1}'),
    ("DELETE", "d?x=1", (), b""),
    ("HEAD", "h", (), b""),
]


@pytest.fixture
def recorded(tmp_path) -> Collection:
    collection = Collection.create(tmp_path, "posts")
    with CollectionWriter(collection) as writer:
        for number, (method, path, headers, body) in enumerate(REQUESTS):
            headers = (*headers, ("Content-Length", str(len(body)))) if body else headers
            response = Response(
                200, "OK", (("Content-Type", "text/html; charset=utf-8"),), b"answer %d" % number
            )
            request = Request(method, f"https://x.example/{path}", headers, body)
            writer.write(Exchange(request, response, f"202401010000{number:02}"))
    return collection


def by_offset(lines: bytes) -> dict[str, tuple[str, dict]]:
    found = {}
    for line in lines.decode().splitlines():
        urlkey, timestamp, members = line.split(" ", 2)
        members = json.loads(members)
        found[members["offset"]] = (f"{urlkey} {timestamp}", members)
    return found


@pytest.mark.pywb
def test_pywb_indexes_the_same_keys(recorded):
    try:
        program = find_pywb().with_name("cdx-indexer")
    except ProgramNotFound as error:
        pytest.skip(f"{error}; {error.hint}")
    [path] = recorded.warc_files()
    ran = subprocess.run([program, "-j", "-p", "-s", path], capture_output=True, check=True)
    theirs, ours = by_offset(ran.stdout), by_offset(recorded.index_file.read_bytes())
    assert len(ours) == len(REQUESTS)
    for offset, (key, members) in ours.items():
        their_key, their_members = theirs[offset]
        assert key == their_key
        for name in ("url", "mime", "status", "length", "filename"):
            assert members[name] == their_members[name], name
        assert members.get("method", "GET") == their_members.get("method", "GET")
        assert members.get("requestBody", "") == (their_members.get("requestBody") or "")


ARCHIVES = ["iana.warc.gz", "flickr-commons.warc.gz", "solidaritenum.warc.gz", "browsertrix/dyn1.rec.warc.gz"]


@pytest.mark.shared
@pytest.mark.parametrize("name", ARCHIVES)
def test_cdxj_indexer_finds_the_same_captures(shared, name):
    path = shared / "archives" / name
    program = Path(sys.executable).with_name("cdxj-indexer")
    ran = subprocess.run([program, "--records", "response,revisit", path], capture_output=True, check=True)
    theirs = by_offset(ran.stdout)
    ours = {
        offset: each
        for offset, each in by_offset(b"".join(index_lines(path))).items()
        if "__wb_method" not in each[0]
    }
    assert len(ours) > 20
    for offset, (key, members) in ours.items():
        their_key, their_members = theirs[offset]
        assert key == their_key
        wanted = {k: v for k, v in their_members.items() if v}
        assert wanted.items() <= members.items()


def test_in_file_order_each_capture_is_read_once(tmp_path):
    places = [("b.warc.gz", 9), ("a.warc.gz", 100), ("b.warc.gz", 10), ("a.warc.gz", 20)]
    captures = [
        Capture(
            f"test,a)/{n}", "20260101000000", f"https://a.test/{n}", "GET", "", 200, "", "", source, offset, 1
        )
        for n, (source, offset) in enumerate(places)
    ]
    index = tmp_path / "index.cdxj"
    write_lines(index, map(format_line, captures))
    found = list(read_in_file_order(index))
    assert [(each.source, each.offset) for each in found] == [*places[::2], places[3], places[1]]
    assert sorted(found, key=lambda each: each.urlkey) == captures
    index.write_bytes(b"!meta {}\n\n" + index.read_bytes() + b"no line\n")
    with pytest.raises(MalformedCdxj, match=rf"index.cdxj:{index.stat().st_size - 8}: not a CDXJ line"):
        list(read_in_file_order(index))
