"""One decoder: its callers agree on every case, Chromium agrees where it should, and output is bounded."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from functools import partial

import brotli
import pytest
import zstandard
from contentcases import CASES, LONG, ContentCase
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import async_playwright

from stillweb.browser.launch import find_browser
from stillweb.collections.importers.pagefinder import _title
from stillweb.errors import LimitExceeded
from stillweb.http import codec
from stillweb.matching.captures import Entry
from stillweb.model import Exchange, Request, Response
from stillweb.record.redaction import redactor
from stillweb.replay.server import answer


def _by_replay(case: ContentCase) -> bytes | None:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {case.encoding}\r\n".encode()
    entry = Entry(
        *(b"", "GET", "https://x.example/", "20260101000000", 200, 0, 0),
        memoryview(head),
        memoryview(case.body),
        *(codec_of(case), "", b""),
    )
    made = answer.recorded(Request("GET", "https://x.example/"), entry)
    if codec_of(case) and made.body is entry.body:
        return None
    return bytes(made.body)


def codec_of(case: ContentCase) -> str:
    return "" if case.encoding == "identity" else case.encoding.lower()


CALLERS = {
    "replay": _by_replay,
    "collections": lambda case: codec.decode(case.body, case.encoding),
    "record": lambda case: redactor.decode(case.body, case.encoding),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("name", CASES)
def test_every_caller_decodes_alike(caller: str, name: str) -> None:
    case = CASES[name]
    found = CALLERS[caller](case)
    if case.plain is LONG:
        assert LONG.startswith(found)
        assert len(found) >= 260_000
    else:
        assert found == case.plain


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.plain is LONG])
def test_what_breaks_off_can_be_rejected(name: str) -> None:
    case = CASES[name]
    assert codec.decode(case.body, case.encoding, min_partial=None) is None
    assert codec.decode(case.body, case.encoding, min_partial=len(LONG)) is None


def test_a_title_is_found_in_a_page_that_breaks_off() -> None:
    body = gzip.compress(b"<title>Shop</title>" + LONG)[:-1000]
    response = Response(200, "OK", (("Content-Encoding", "gzip"),), body)
    assert _title(Exchange(Request("GET", "https://x.example/"), response, "20260101000000")) == "Shop"


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("name", ["gzip", "deflate", "bare deflate", "br", "zstd", "gzip, then br"])
def test_pieces_decode_to_the_same_bytes(name: str, pieces: int) -> None:
    case = CASES[name]
    step = codec.incremental(case.encoding)
    parts = [case.body[at : at + pieces] for at in range(0, len(case.body), pieces)]
    assert b"".join(map(step, parts)) == case.plain


@given(st.binary(max_size=2000), st.lists(st.sampled_from(["gzip", "br", "zstd", "deflate"]), max_size=3))
def test_encoding_round_trips(body: bytes, codings: list[str]) -> None:
    encoding = ", ".join(codings)
    assert codec.decode(codec.encode(body, encoding), encoding, min_partial=0) == body


@given(st.binary(max_size=300), st.sampled_from(["gzip", "br", "zstd", "deflate", "br, gzip"]))
def test_no_input_raises(body: bytes, encoding: str) -> None:
    codec.decode(body, encoding, min_partial=0)
    codec.has_encoding(body, encoding)


ZEROS = bytes(32 << 20)
BOMBS = {
    "gzip": gzip.compress(ZEROS),
    "gzip of many members": gzip.compress(ZEROS[: 1 << 20]) * 32,
    "deflate": zlib.compress(ZEROS),
    "br": brotli.compress(ZEROS, quality=5),
    "zstd": zstandard.compress(ZEROS),
    "br, gzip": gzip.compress(brotli.compress(ZEROS, quality=5)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_output_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = name.removesuffix(" of many members")
    assert len(codec.decode(BOMBS[name], encoding)) == len(ZEROS)
    monkeypatch.setenv(codec.LIMIT_VARIABLE, "8")
    with pytest.raises(LimitExceeded, match="more than 8 MiB") as raised:
        codec.decode(BOMBS[name], encoding)
    assert raised.value.option == "STILLWEB_MAX_DECODED_MIB"
    assert "STILLWEB_MAX_DECODED_MIB" in raised.value.hint
    assert codec.has_encoding(BOMBS[name], encoding)
    assert redactor.decode(BOMBS[name], encoding) is None
    assert _by_replay(ContentCase(encoding, BOMBS[name], None)) is None


def _serve(names: list[str], listener: socket.socket) -> None:
    def answer_requests(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                while stream.readline().strip():
                    pass
                path = line.split()[1][1:].decode()
                case = CASES[names[int(path)]] if path.isdecimal() else ContentCase("", b"<p>page", None)
                fields = f"Content-Length: {len(case.body)}\r\n"
                fields += f"Content-Encoding: {case.encoding}\r\n" if case.encoding else ""
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{fields}\r\n"
                connection.sendall(head.encode() + case.body)

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=partial(answer_requests, connection), daemon=True).start()


READ = """async path => {
    let read = 0;
    try {
        const reader = (await fetch(path)).body.getReader();
        for (;;) {
            const piece = await reader.read();
            if (piece.done) return read;
            read += piece.value.length;
        }
    } catch (error) { return -1; }
}"""


@pytest.mark.browser
async def test_chromium_decodes_alike() -> None:
    names = list(CASES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(names, listener), daemon=True).start()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            page = await browser.new_page()
            await page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
            found = {name: await page.evaluate(READ, f"/{number}") for number, name in enumerate(names)}
            await browser.close()
    for name, case in CASES.items():
        if case.plain is LONG:  # how much of the last block comes out differs by some bytes
            ours = codec.decode(case.body, case.encoding)
            assert abs(found[name] - len(ours)) < 1000, name
        else:
            expected = case.chromium if case.chromium is not None else len(case.plain or b"")
            assert found[name] == expected, name
