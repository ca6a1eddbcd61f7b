"""HTTP messages in WARC blocks: framing that exists, framing that is only claimed, and back to blocks."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stillweb.http.codec import decode
from stillweb.http.messages import (
    dechunk,
    is_whole,
    parse_request,
    parse_response,
    request_block,
    response_block,
)
from stillweb.model import Request, Response, destination

BODY = b"hello, " * 100
ENCODED = {
    "gzip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "br": brotli.compress(BODY),
    "zstd": zstandard.compress(BODY),
}


def block(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_dechunk_undoes_chunking(parts):
    chunked = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    assert dechunk(chunked) == b"".join(parts)


@pytest.mark.parametrize(
    "body",
    [b"", b"<!doctype html>", b"5\r\nhel", b"abc\r\ndef", b"2\r\nabcdef", b"\x1f\x8b\x08\x00", b"0\n1\n2\n"],
)
def test_what_is_not_chunked_stays(body):
    assert dechunk(body) == body


@pytest.mark.parametrize("end", [b"", b"\r\n", b"X-Sum: 1\r\n\r\n", b"X-Sum: 1\r\nX: \r\n\r\n"])
def test_trailers_are_none_of_the_body(end):
    assert dechunk(b"2\r\nhi\r\n0\r\n" + end) == b"hi"


@pytest.mark.parametrize("length", ["¹", "1" * 5000, "-1", ""])
def test_a_length_that_is_no_number_is_not_whole(length):
    assert not is_whole(
        f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n<p>".encode("latin-1", "replace")
    )


def test_a_last_chunk_that_breaks_off_gives_what_there_is():
    assert dechunk(b"5\r\nhello\r\n5\r\nwo") == b"hellowo"


def test_claimed_chunking_is_believed_only_if_it_is_there():
    lines = ("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "X-A: 1")
    for body, wanted in ((b"5\r\nhello\r\n0\r\n\r\n", b"hello"), (b"plain body", b"plain body")):
        response = parse_response(block(*lines, body=body))
        assert response == Response(200, "OK", (("X-A", "1"),), wanted)


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r\n\r\n"])
def test_a_line_end_behind_the_content_length_is_none_of_the_body(end):
    response = parse_response(block("HTTP/1.1 200 OK", "content-length: 4", body=b"ab\r\n" + end))
    assert response.raw_body == b"ab\r\n"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["Content-Length: 2"], b"decoded\r\n"),  # a stale length
        (["Content-Length: 2"], b"abc"),
        (["Content-Length: 2"], b"ab\r\n\n"),
        (["Content-Length: 2"], b"ab \n"),
        (["Content-Length: 9"], b"short\r\n"),
        (["Content-Length: 2", "Content-Length: 2"], b"ab\r\n"),
        (["Content-Length: 2, 2"], b"ab\r\n"),
        (["Content-Length: +2"], b"ab\r\n"),
        (["Content-Length: \xb2"], b"ab\r\n"),
        (["Content-Length: 2", "Transfer-Encoding: gzip"], b"ab\r\n"),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], b"ab\r\n"),  # claimed, and not there
        ([], b"ab\r\n"),
    ],
)
def test_any_other_body_stays_whole(lines, body):
    assert parse_response(block("HTTP/1.1 200 OK", *lines, body=body)).raw_body == body


@pytest.mark.parametrize("encoding", ["br", "deflate"])
@pytest.mark.parametrize(
    "body",
    [
        b"ok",
        b"[]",
        b"{}",
        b"1",
        b"true",
        b"hello",
        b"GIF89a",
        b"\n<html>",
        b"WEBVTT\n\n",
        b'callback({"a":1})',
    ],
)
def test_a_short_text_is_not_encoded_though_a_decoder_would_wait_for_more(encoding, body):
    response = parse_response(block("HTTP/1.1 200 OK", f"Content-Encoding: {encoding}", body=body))
    assert (response.headers, response.raw_body) == ((), body)


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_content_encoding_is_stored_if_the_body_has_it(encoding):
    head = ("HTTP/1.1 200 OK", f"Content-Encoding: {encoding}")
    stored = parse_response(block(*head, body=ENCODED[encoding]))
    assert stored == Response(200, "OK", (("Content-Encoding", encoding),), ENCODED[encoding])
    assert decode(stored.raw_body, encoding) == BODY
    false = parse_response(block(*head, body=b"<html>not encoded at all, whatever the header says"))
    assert false.headers == ()


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ("HTTP/1.1 200 OK", 200, "OK"),
        ("HTTP/1.0 302 ", 302, ""),
        ("HTTP/1.1 404", 404, ""),
        ("HTTP/2 204 ", 204, ""),
        ("ICY 200 OK", 200, "OK"),
    ],
)
def test_status_lines(line, status, reason):
    response = parse_response(block(line, "A: b"))
    assert (response.status, response.reason, response.headers) == (status, reason, (("A", "b"),))


def test_line_ends_as_found():
    for end in ("\n", "\r\n", "\r\r\n"):
        text = end.join(["HTTP/1.1 200 OK", "A: b", " folded", "no colon", "", "body"]).encode()
        assert parse_response(text) == Response(200, "OK", (("A", "b folded"),), b"body")


def test_what_is_no_message_gives_none():
    assert parse_response(b"") is None
    assert parse_response(b"<html>") is None
    assert parse_request(b"", "http://a/") is None


tokens = st.from_regex(r"[A-Za-z][A-Za-z-]{0,10}", fullmatch=True).filter(
    lambda name: name.lower() not in ("transfer-encoding", "content-encoding")
)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126) | st.just("\xe9"), max_size=20)
headers = st.lists(st.tuples(tokens, values), max_size=4).map(tuple)


@given(st.integers(100, 599), headers, st.binary(max_size=60))
def test_a_response_round_trips(status, fields, body):
    response = Response(status, "Reason", fields, body)
    assert parse_response(response_block(response)) == response


@given(st.sampled_from(["GET", "POST", "DELETE"]), headers, st.binary(max_size=60))
def test_a_request_round_trips(method, fields, body):
    request = Request(method, "https://a.example/p?q=1", fields, body)
    assert parse_request(request_block(request), request.url) == request
    assert request_block(request).startswith(f"{method} /p?q=1 HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("url", ["https://a.example", "https://a.example?q=1/x", "https://a.example/#f"])
def test_a_request_target_starts_with_a_slash(url):
    target = request_block(Request("GET", url)).split(b" ")[1]
    assert target == {"https://a.example?q=1/x": b"/?q=1/x"}.get(url, b"/")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((("Sec-Fetch-Dest", "script"), ("Accept", "image/png")), "script"),
        ((("Upgrade-Insecure-Requests", "1"), ("Accept", "text/html")), "document"),
        ((("accept", "text/css,*/*;q=0.1"),), "style"),
        ((("Accept", "image/avif,image/webp,*/*;q=0.8"),), "image"),
        ((("Accept", "*/*"),), ""),
        ((), ""),
    ],
)
def test_the_destination_of_a_request_over_http_follows_from_its_other_fields(fields, expected):
    assert destination(fields) == expected
