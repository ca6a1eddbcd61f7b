"""Writing exchanges: valid WARC at every moment, an index equal to one made anew, rotation."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from stillweb.collections.check import check, repair
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.reader import read_records
from stillweb.collections.warc.writer import CollectionWriter, is_fresh
from stillweb.model import Exchange, Request, Response


def exchange(number: int, method: str = "GET", body: bytes = b"") -> Exchange:
    request = Request(method, f"https://a.example/{number}", (("Host", "a.example"),), body)
    response = Response(200, "OK", (("Content-Type", "text/html; charset=utf-8"),), b"page %d" % number)
    return Exchange(request, response, f"202401010000{number:02}", remote_ip="192.0.2.1", protocol="h2")


@pytest.fixture
def collection(tmp_path):
    return Collection.create(tmp_path, "rec")


def test_what_is_written_is_read_back(collection):
    written = [exchange(0), exchange(1, "POST", b'{"a":1}'), exchange(2, "DELETE")]
    with CollectionWriter(collection) as writer:
        captures = [writer.write(each) for each in written]
    assert sorted(collection.captures(), key=lambda each: each.timestamp) == captures
    assert [collection.read_capture(each) for each in captures] == written
    assert list(collection.exchanges()) == written
    assert check(collection) == []


def test_the_index_at_close_is_the_index_made_anew(collection):
    with CollectionWriter(collection) as writer:
        writer.write(exchange(0))
        writer.write(exchange(1, "PUT", b"x"))
    with CollectionWriter(collection) as writer:
        writer.write(exchange(2))
    before = collection.index_file.read_bytes()
    assert before.count(b"\n") == 3
    collection.index_file.unlink()
    repair(collection)
    assert collection.index_file.read_bytes() == before


def test_files_start_with_warcinfo_and_rotate(collection):
    with CollectionWriter(collection, rotate=1500) as writer:
        for number in range(6):
            writer.write(exchange(number))
    files = collection.warc_files()
    assert len(files) > 1
    for path in files:
        records = list(read_records(path))
        assert records[0].type == "warcinfo"
        assert records[0].get("WARC-Filename") == path.name
        request, answered = records[1:3]
        assert (request.type, answered.type) == ("request", "response")
        assert answered.concurrent_to == (request.id,)
        assert answered.get("WARC-Payload-Digest").startswith("sha256:")
    assert sum(1 for _ in collection.captures()) == 6
    program = Path(sys.executable).with_name("warcio")
    checked = subprocess.run([program, "check", *files], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_a_killed_recording_leaves_whole_exchanges(collection):
    """A real process is killed in the middle; whole exchanges remain, and the next writer indexes them."""
    program = f"""
import os, signal, sys
from pathlib import Path
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
writer = CollectionWriter(Collection(Path({str(collection.root)!r}), "rec"))
for number in range(100):
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    writer.write(Exchange(Request("GET", f"https://a.example/{{number}}"), Response(200), "20240101000000"))
"""
    ran = subprocess.run([sys.executable, "-c", program], check=False)
    assert ran.returncode == -9
    assert not is_fresh(collection)
    assert [each.code for each in check(collection)] == ["no-index"]
    with CollectionWriter(collection) as writer:
        writer.write(exchange(50))
    assert sum(1 for _ in collection.captures()) == 8
    assert check(collection) == []


@pytest.mark.parametrize("cut", [1, 5, 60, 200])
def test_an_exchange_is_there_as_a_whole_or_not(collection, cut):
    """A kill within the single write: the request may be left alone, the answer never."""
    with CollectionWriter(collection) as writer:
        first = writer.write(exchange(0))
        writer.write(exchange(1, "POST", b"x"))
    [path] = collection.warc_files()
    path.write_bytes(path.read_bytes()[:-cut])
    codes = {each.code for each in check(collection)}
    assert "truncated" in codes
    assert "index-foreign" in codes or cut < 9  # without its trailer the answer itself is whole
    changed = repair(collection)
    assert changed
    assert check(collection) == []
    assert next(collection.captures()) == first or cut < 9
    assert any((collection.path / "damaged").iterdir())


def test_a_header_in_latin_1_and_an_unframed_body_survive(collection):
    fields = (("X-Name", "caf\xe9"), ("Transfer-Encoding", "chunked"))
    given = Exchange(
        Request("GET", "https://a.example/"),
        Response(200, "OK", fields, b"5\r\nnot chunked"),
        "20240101000000",
    )
    with CollectionWriter(collection) as writer:
        found = collection.read_capture(writer.write(given))
    assert found.response == Response(200, "OK", fields[:1], b"5\r\nnot chunked")


def test_a_writer_that_wrote_nothing_leaves_nothing(collection):
    with CollectionWriter(collection):
        pass
    assert collection.warc_files() == []
    assert not collection.index_file.exists()


def test_every_record_has_digests_as_ours_and_its_bytes_as_given(collection):
    """Left to itself, warcio makes SHA-1 digests and spells fields that are not ASCII anew."""
    odd = Exchange(
        Request(
            "POST", "https://a.example/?q=\xe9", (("Cookie", "a=\xe9"), ("Cookie", "b=1; c")), b"\xff\r\n\r\n"
        ),
        Response(299, "", (("X-A", "\xe9; x=\xe9"), ("x-a", ""), ("Content-Length", "2")), b"\r\n"),
        "20240101000000",
    )
    with CollectionWriter(collection) as writer:
        captures = [writer.write(odd), writer.write(exchange(1))]
    assert [collection.read_capture(each) for each in captures] == [odd, exchange(1)]
    [path] = collection.warc_files()
    records = list(read_records(path))
    for record in records:
        assert record.version == "WARC/1.1"
        assert record.get("WARC-Block-Digest") == f"sha256:{sha256(record.block).hexdigest()}"
        stated = [value for name, value in record.headers if name.endswith("-Digest")]
        assert all(value.startswith("sha256:") for value in stated)
        assert len(stated) == (1 if record.type == "warcinfo" else 2)
    assert records[1].block.startswith(
        b"POST /?q=\xe9 HTTP/1.1\r\nCookie: a=\xe9\r\nCookie: b=1; c\r\n\r\n\xff"
    )
    assert records[2].block == (
        b"HTTP/1.1 299 \r\nX-A: \xe9; x=\xe9\r\nx-a: \r\nContent-Length: 2\r\n\r\n\r\n"
    )
    assert check(collection) == []


def test_a_url_that_is_no_text_is_written_as_it_is_read_back(collection):
    given = ["https://a.example/\udce9", "https://a.example/\ud83d"]  # a byte; half a character, from JSON
    wanted = ["https://a.example/%E9", "https://a.example/%EF%BF%BD"]
    with CollectionWriter(collection) as writer:
        captures = [
            writer.write(Exchange(Request("GET", url), Response(200), "20240101000000")) for url in given
        ]
    assert [capture.url for capture in captures] == wanted
    assert [collection.read_capture(capture).request.url for capture in captures] == wanted
    before = collection.index_file.read_bytes()
    reindex(collection)
    assert collection.index_file.read_bytes() == before
