"""How a recorded answer is fitted to a request: codings, ranges, heads."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stillweb.http.codec import accepts, decode
from stillweb.matching.captures import Entry
from stillweb.matching.noise import NoiseTable, default_noise
from stillweb.matching.ranges import ByteRange, recorded_span, requested_span
from stillweb.model import Request
from stillweb.replay.server import answer

BODY = b"0123456789" * 10


def entry(
    status: int = 200, fields: str = "", body: bytes = BODY, encoding: str = "", method: str = "GET"
) -> Entry:
    head = f"HTTP/1.1 {status} As Recorded\r\n" + "".join(f"{line}\r\n" for line in fields.split("|") if line)
    return Entry(
        key=b"",
        method=method,
        url="https://x.example/",
        timestamp="20260101000000",
        status=status,
        epoch=0,
        order=0,
        head=memoryview(head.encode()),
        body=memoryview(body),
        encoding=encoding,
        mime="",
        body_sha256=b"",
    )


def make_request(method: str = "GET", **fields: str) -> Request:
    return Request(
        method, "https://x.example/", tuple((name.replace("_", "-"), value) for name, value in fields.items())
    )


def test_a_head_goes_out_as_recorded_with_its_length() -> None:
    made = answer.recorded(make_request(), entry(fields="Set-Cookie: a=1|Set-Cookie: b=2|ETag: x"))
    assert made.head == (
        b"HTTP/1.1 200 As Recorded\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nETag: x\r\n"
        b"Content-Length: 100\r\n"
    )
    assert bytes(made.body) == BODY


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        ("a=1; Expires=Fri, 02 Jan 2026 00:00:00 GMT; Path=/", "a=1; Path=/"),
        ("a=1; path=/;expires=Fri, 02-Jan-26 00:00:00 GMT", "a=1; path=/"),
        ("a=1; Max-Age=60; Secure", "a=1; Secure"),
        ("a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; max-age=60", "a=1"),
        ("a=; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Path=/", None),
        ("a=; Expires=Fri, 02 Jan 2026 00:00:00 GMT; Max-Age=0", None),
        ("a=; max-age=-1", None),
        ("a=1; Expires=never; Path=/", "a=1; Path=/"),
    ],
)
def test_recorded_cookies_are_sent_without_expiry(recorded: str, sent: str | None) -> None:
    made = answer.recorded(make_request(), entry(204, fields=f"set-cookie: {recorded}|ETag: x"))
    assert made.head.decode() == f"HTTP/1.1 204 As Recorded\r\nset-cookie: {sent or recorded}\r\nETag: x\r\n"


def test_a_body_is_a_view_of_the_pack_not_a_copy() -> None:
    stored = entry()
    assert answer.recorded(make_request(), stored).body is stored.body


@pytest.mark.parametrize("status", [204, 304])
def test_what_has_no_body_has_no_length(status: int) -> None:
    made = answer.recorded(make_request(), entry(status))
    assert b"Content-Length" not in made.head
    assert made.body == b""


def test_a_205_is_framed_though_it_has_no_body() -> None:
    made = answer.recorded(make_request(), entry(205))
    assert (made.head[-19:], made.body) == (b"Content-Length: 0\r\n", b"")


def test_a_recorded_head_request_does_not_claim_a_length() -> None:
    assert b"Content-Length" not in answer.recorded(make_request("HEAD"), entry(method="HEAD", body=b"")).head


CODED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]),
    "deflate": zlib.compress(BODY),
    "br": brotli.compress(BODY),
    "zstd": zstandard.compress(BODY[:50]) + zstandard.compress(BODY[50:]),
    "br, gzip": gzip.compress(brotli.compress(BODY)),
}


@pytest.mark.parametrize("encoding", CODED)
def test_a_coding_is_removed_for_who_does_not_take_it(encoding: str) -> None:
    coded = entry(fields=f"Content-Encoding: {encoding}|X-Last: 1", body=CODED[encoding], encoding=encoding)
    stored = answer.recorded(make_request(Accept_Encoding="gzip, x-gzip, deflate, br;q=0.5, zstd"), coded)
    assert stored.body is coded.body
    assert b"Content-Encoding" in stored.head
    plain = answer.recorded(make_request(), coded)
    assert plain.body == BODY
    assert plain.head == b"HTTP/1.1 200 As Recorded\r\nX-Last: 1\r\nContent-Length: 100\r\n"


def test_bare_deflate_is_read_too() -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert decode(packer.compress(BODY) + packer.flush(), "deflate") == BODY


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "x-unknown"])
@pytest.mark.parametrize("body", [b"no such thing", b""])
def test_a_damaged_body_goes_out_as_recorded(encoding: str, body: bytes) -> None:
    made = answer.recorded(
        make_request(), entry(fields=f"Content-Encoding: {encoding}", body=body, encoding=encoding)
    )
    assert bytes(made.body) == body
    assert b"Content-Encoding" in made.head


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate"])
def test_a_body_that_breaks_off_is_damaged(encoding: str) -> None:
    assert decode(CODED[encoding][:-5], encoding, min_partial=None) is None


@pytest.mark.parametrize(
    ("accepted", "encoding", "expected"),
    [
        ("", "gzip", False),
        ("", "identity", True),
        ("gzip, br", "br", True),
        ("gzip;q=0, *", "gzip", False),
        ("*", "zstd", True),
        ("GZIP;Q=1.0", "Gzip", True),
        ("gzip", "gzip, br", False),
        ("gzip;q=much", "gzip", False),
    ],
)
def test_accepted_codings(accepted: str, encoding: str, expected: bool) -> None:
    assert accepts(accepted, encoding) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 1, 100)),
        ("bytes=90-", ByteRange(90, 100, 100)),
        ("bytes=90-500", ByteRange(90, 100, 100)),
        ("bytes=-10", ByteRange(90, 100, 100)),
        ("bytes=-500", ByteRange(0, 100, 100)),
        ("bytes=100-", ByteRange(100, 100, 100)),
        ("bytes=-0", ByteRange(100, 100, 100)),
        ("bytes=9-3", None),
        ("bytes=0-1,5-6", None),
        ("bytes=-", None),
        ("lines=0-1", None),
        ("bytes=" + "9" * 40 + "-", None),
        ("", None),
    ],
)
def test_ranges_requested(value: str, expected: ByteRange | None) -> None:
    assert requested_span(value, 100) == expected


@given(st.integers(0, 120), st.integers(0, 120))
def test_a_range_is_cut_from_the_whole(first: int, last: int) -> None:
    made = answer.recorded(make_request(Range=f"bytes={first}-{last}"), entry())
    if last < first:
        assert (made.status, bytes(made.body)) == (200, BODY)
    elif first >= len(BODY):
        assert (made.status, bytes(made.body)) == (416, b"")
        assert b"Content-Range: bytes */100\r\n" in made.head
    else:
        assert (made.status, bytes(made.body)) == (206, BODY[first : last + 1])
        assert made.head.startswith(b"HTTP/1.1 206 Partial Content\r\n")
        assert b"Content-Range: bytes %d-%d/100\r\n" % (first, min(last, 99)) in made.head


def test_a_recorded_part_is_cut_and_numbered_anew() -> None:
    part = entry(206, "Content-Range: bytes 100-199/1000|X-Last: 1")
    made = answer.recorded(make_request(Range="bytes=110-119"), part)
    assert (made.status, bytes(made.body)) == (206, BODY[10:20])
    assert made.head.count(b"Content-Range") == 1
    assert b"Content-Range: bytes 110-119/1000\r\n" in made.head


@pytest.mark.parametrize(
    ("accepted", "requested_range", "status", "content_range", "body"),
    [
        ("gzip", "bytes=0-3", 206, "0-3/{}", gzip.compress(BODY, mtime=0)[:4]),
        ("identity", "bytes=40-43", 206, "40-43/100", BODY[40:44]),
        ("identity", "", 200, "", BODY),
    ],
)
def test_a_coded_part_that_is_the_whole_is_cut_after_decoding(
    accepted: str, requested_range: str, status: int, content_range: str, body: bytes
) -> None:
    coded = gzip.compress(BODY, mtime=0)
    fields = f"Content-Encoding: gzip|Content-Range: bytes 0-{len(coded) - 1}/{len(coded)}"
    held = entry(206, fields=fields, body=coded, encoding="gzip")
    made = answer.recorded(make_request(Accept_Encoding=accepted, Range=requested_range), held)
    assert (made.status, bytes(made.body)) == (status, body)
    numbers = f"Content-Range: bytes {content_range.format(len(coded))}\r\n" if content_range else ""
    assert (numbers.encode() in made.head) is True
    assert (b"Content-Range" in made.head) is bool(content_range)


@pytest.mark.parametrize(
    ("fields", "status", "requested_range"),
    [
        ("Accept-Ranges: none", 200, "bytes=0-9"),
        ("Content-Range: items 0-9/100", 206, "items=0-9"),
        ("Content-Range: 0-9/*", 200, "0-9"),
    ],
)
def test_no_bytes_are_cut_where_the_site_cuts_none(fields: str, status: int, requested_range: str) -> None:
    made = answer.recorded(make_request(Range=requested_range), entry(status, fields))
    assert (made.status, bytes(made.body)) == (status, BODY)
    assert f"{fields}\r\n".encode() in made.head


def test_a_part_that_is_the_whole_answers_who_requested_no_range() -> None:
    made = answer.recorded(make_request(), entry(206, "Content-Range: bytes 0-99/100"))
    assert (made.status, bytes(made.body)) == (200, BODY)
    assert made.head == b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize(("condition", "status"), [('"v1"', 206), ('"v2"', 200)])
def test_if_range_is_compared_with_what_was_recorded(condition: str, status: int) -> None:
    made = answer.recorded(make_request(Range="bytes=0-9", If_Range=condition), entry(fields='ETag: "v1"'))
    assert made.status == status


@pytest.mark.parametrize(
    "head", [b"", b"\r\nContent-Range: bytes 0-1/*\r\n", b"X-Content-Range: bytes 0-1/2\r\n"]
)
def test_a_part_that_does_not_say_of_what(head: bytes) -> None:
    assert recorded_span(head) is None


@pytest.mark.parametrize(
    ("url", "noise"),
    [
        ("https://update.googleapis.com/service/update2/json?x", True),
        ("http://r4---sn-4g5e6nez.gvt1.com/edgedl/release2/x", True),
        ("https://www.google-analytics.com/j/collect?v=1", True),
        ("https://www.google-analytics.com/analytics.js", False),
        ("https://www.googletagmanager.com/gtag/js?id=G-1", False),
        ("https://shop.example/favicon.ico", True),
        ("https://shop.example/favicon.ico?v=2", True),
        ("https://shop.example/img/favicon.ico", False),
        ("https://shop.example/collect", False),
        ("https://www.facebook.com/tr/?id=1", True),
        ("https://www.facebook.com/trends", False),
        ("https://evilgoogle-analytics.com/collect", False),
        ("not a url", False),
    ],
)
def test_the_table_of_noise(url: str, noise: bool) -> None:
    assert bool(default_noise().why(url)) is noise


def test_every_rule_of_noise_names_a_host_or_a_path() -> None:
    for rule in default_noise().rules:
        assert rule.why
        assert not (rule.host.fullmatch("any.example") and rule.path.fullmatch("/any"))


def test_a_table_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 1"):
        NoiseTable.parse("version: 2\nnoise: []\n")
