"""Bodies that a URL repeats are written once; files rotate; other tools read all of it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import brotli
import pytest

from stillweb.collections.check import check
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.redactions import Redaction, sum_of
from stillweb.collections.warc import exchanges
from stillweb.collections.warc.reader import read_record, read_records
from stillweb.collections.warc.records import WarcRecord
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

LONG = brotli.compress("".join(map(str, range(3000))).encode(), quality=1)
LONGER = brotli.compress("".join(map(str, range(3001))).encode(), quality=1)
SHORT = brotli.compress(b"short")
HEAD = (("Content-Encoding", "br"), ("Content-Type", "text/html"), ("X-At", "1"))


def exchange(
    second: int, url: str = "https://a.example/", body: bytes = LONG, method: str = "GET"
) -> Exchange:
    request = Request(method, url, (("Host", "a.example"),))
    response = Response(200, "OK", (*HEAD[:2], ("X-At", str(second))), body)
    return Exchange(request, response, f"202401010000{second:02}", remote_ip="192.0.2.1", protocol="h2")


@pytest.fixture
def collection(tmp_path):
    return Collection.create(tmp_path, "rec")


def kinds(collection: Collection) -> list[str]:
    return [r.type for path in collection.warc_files() for r in read_records(path) if r.type != "warcinfo"]


def test_a_repeated_body_is_a_revisit_and_is_read_as_it_was(collection):
    given = [exchange(1), exchange(2), exchange(3, "https://a.example/b"), exchange(4, method="POST")]
    given += [exchange(5, body=SHORT), exchange(6, body=SHORT), exchange(7, body=LONGER)]
    with CollectionWriter(collection) as writer:
        captures = [writer.write(each) for each in given]
    assert kinds(collection) == ["request", "response", "request", "revisit", *["request", "response"] * 5]
    assert [collection.read_capture(each) for each in captures] == given
    assert check(collection) == []
    before = collection.index_file.read_bytes()
    reindex(collection)
    assert collection.index_file.read_bytes() == before
    [path] = collection.warc_files()
    records = list(read_records(path))
    original, revisit = records[2], records[4]
    assert revisit.get("WARC-Profile").endswith("/revisit/identical-payload-digest")
    assert revisit.get("WARC-Refers-To-Target-URI") == original.target_uri
    assert revisit.get("WARC-Refers-To-Date") == original.get("WARC-Date")
    assert revisit.get("WARC-Payload-Digest") == original.get("WARC-Payload-Digest")
    assert revisit.concurrent_to == (records[3].id,)
    assert revisit.block.endswith(b"X-At: 2\r\n\r\n")


@pytest.mark.parametrize(("limit", "reads"), [(1 << 20, 1), (0, 2)])
def test_an_original_is_read_once_for_revisits_in_turn_if_it_is_not_too_large(
    collection, monkeypatch, limit, reads
):
    given = [exchange(number) for number in (1, 2, 3)]
    with CollectionWriter(collection) as writer:
        original, *revisits = [writer.write(each) for each in given]
    offsets: list[int] = []

    def counted(path: Path, offset: int, length: int) -> WarcRecord:
        offsets.append(offset)
        return read_record(path, offset, length)

    monkeypatch.setattr(exchanges, "read_record", counted)
    monkeypatch.setattr(exchanges, "_RECENT", limit)
    assert [collection.read_capture(each) for each in revisits] == given[1:]
    assert offsets.count(original.offset) == reads


def test_what_another_run_wrote_is_referred_to_and_replay_is_reported_nothing_of_it(collection, tmp_path):
    for second in (1, 2, 3):
        with CollectionWriter(collection) as writer:
            writer.write(exchange(second))
    plain = Collection.create(tmp_path / "plain", "rec")
    with CollectionWriter(plain, revisits=False) as writer:
        for second in (1, 2, 3):
            writer.write(exchange(second))
    assert kinds(collection).count("revisit") == 2
    assert kinds(plain).count("revisit") == 0
    packs = []
    for each in (collection, plain):
        seal(each)
        with Pack.open(each.pack) as pack:
            packs.append([(bytes(entry.head), entry.body_sha256) for entry in map(pack.entry, range(3))])
    assert packs[0] == packs[1]


def test_files_rotate_and_say_who_recorded_with_what(collection):
    manifest = replace(
        collection.manifest(), recorded_at="20240101000000", seed=7, profile={"locale": "de-DE"}
    )
    collection.write_manifest(manifest)
    with CollectionWriter(collection) as writer:
        writer.settle(rotate=2 * len(LONG), operator="the\r\narchive team")
        for number in range(5):
            writer.write(exchange(number, f"https://a.example/{number}"))
        writer.write(exchange(9, "https://a.example/0"))  # of another file
    files = collection.warc_files()
    assert 2 <= len(files) <= 5
    for path in files:
        first = next(iter(read_records(path)))
        fields = dict(line.split(": ", 1) for line in first.block.decode().splitlines())
        assert fields["operator"] == "the archive team"
        assert fields["isPartOf"] == "rec"
        assert json.loads(fields["settings"]) == {
            "locale": "de-DE",
            "recorded_at": "20240101000000",
            "seed": 7,
        }
    assert kinds(collection).count("revisit") == 1
    assert check(collection) == []
    assert warcio_check(files) == (0, "")


def warcio_check(files) -> tuple[int, str]:
    """Run `warcio check` as it is where the package Brotli, with which it fails, is not installed."""
    program = "import sys; sys.modules['brotli'] = None\nfrom warcio.cli import main; main(sys.argv[1:])"
    ran = subprocess.run(
        [sys.executable, "-c", program, "check", *map(str, files)], capture_output=True, text=True
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_warcio_finds_a_wrong_digest_in_what_it_passes_otherwise(collection):
    with CollectionWriter(collection) as writer:
        writer.write(exchange(1))
    [path] = collection.warc_files()
    assert warcio_check([path]) == (0, "")
    plain = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(plain.replace(b"X-At: 1", b"X-At: 2")))
    assert warcio_check([path])[0] == 1


def test_redactions_are_listed_by_record_and_summed_in_the_manifest(collection):
    cookie = ("cookie", "cookie", "sid", "a.example")
    taken = [
        Redaction("response head", *cookie, ((40, 8), (60, 8))),
        Redaction("request head", *cookie, ((9, 8),)),
    ]
    taken.append(Redaction("request body", "password", "form", "p", "a.example", placeholder="xyzz"))
    with CollectionWriter(collection) as writer:
        writer.write(exchange(1), redactions=taken)
    [path] = collection.warc_files()
    _, request, answered = read_records(path)
    lines = [json.loads(line) for line in collection.redactions_file.read_text().splitlines()]
    assert [line["record"] for line in lines] == [answered.id, request.id, request.id]
    assert lines[0]["spans"] == [[40, 8], [60, 8]]
    with collection.redactions_file.open("ab") as file:
        file.write(b'{"rec')  # a kill
    collection.write_manifest(collection.manifest())
    found = collection.manifest().redactions
    assert found == sum_of(collection.redactions_file)
    assert [(row["kind"], row["count"], row.get("placeholders")) for row in found] == [
        ("cookie", 3, None),
        ("password", 1, ["xyzz"]),
    ]


def test_records_are_written_anew_with_their_digests_and_those_of_their_revisits(collection):
    with CollectionWriter(collection) as writer:
        for second in (1, 2):
            writer.write(exchange(second))
        writer.write(exchange(3, "https://a.example/other"))

        def change(record):
            if record.type == "response" and record.target_uri == "https://a.example/":
                return replace(record, block=record.block.replace(LONG, LONG[::-1]))
            return None

        writer.rewrite(change)
        writer.write(exchange(4, body=LONG[::-1]))
    assert check(collection) == []
    found = sorted(collection.captures(), key=lambda each: each.timestamp)
    bodies = [collection.read_capture(each).response.raw_body for each in found]
    assert bodies == [LONG[::-1], LONG[::-1], LONG, LONG[::-1]]
    assert not list(collection.archive.glob("*.part"))
