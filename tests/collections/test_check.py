"""Check finds what is wrong and where; repair takes it away and keeps every byte; export is a WACZ."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stillweb.collections.check import check, repair
from stillweb.collections.defects import Severity
from stillweb.collections.export import export
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.warc.reader import gzip_member, read_records
from stillweb.collections.warc.records import WarcRecord, serialise
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.model import Exchange, Page, Request, Response


@pytest.fixture
def collection(tmp_path):
    made = Collection.create(tmp_path / "root", "shop")
    with CollectionWriter(made) as writer:
        for number in range(4):
            request = Request("POST" if number == 2 else "GET", f"https://a.example/{number}", (), b"")
            response = Response(200, "OK", (("Content-Type", "text/html"),), b"page %d" % number)
            writer.write(Exchange(request, response, f"2024010100000{number}"))
    made.write_pages([Page("https://a.example/0", "20240101000000", id="p0")])
    return made


def the_file(collection: Collection) -> Path:
    [path] = collection.warc_files()
    return path


def third(collection: Collection) -> int:
    """Where the request of the third exchange lies: damage there leaves records before and after."""
    return sorted(each.request_offset for each in collection.captures())[2]


def flip_a_byte(collection: Collection) -> int:
    content, at = bytearray(the_file(collection).read_bytes()), third(collection)
    content[at + 40] ^= 0xFF
    the_file(collection).write_bytes(content)
    return at


def cut_the_tail(collection: Collection) -> int:
    path = the_file(collection)
    at = max(each.offset for each in collection.captures())
    path.write_bytes(path.read_bytes()[: at + 50])
    return at


def press_into_one_member(collection: Collection) -> int:
    path = the_file(collection)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))
    return 0


def pad(collection: Collection) -> int:
    path = the_file(collection)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(100))
    return size


def forge_a_body(collection: Collection) -> int:
    path = the_file(collection)
    records = list(read_records(path))
    forged = [r.block.replace(b"page 2", b"page X") for r in records]
    members = [
        gzip_member(serialise(WarcRecord(r.headers, block, r.version)))
        for r, block in zip(records, forged, strict=True)
    ]
    path.write_bytes(b"".join(members))
    at = next(i for i, r in enumerate(records) if r.block != forged[i])
    return sum(map(len, members[:at]))


def drop_the_index(collection: Collection) -> int:
    collection.index_file.unlink()
    return -1


def drop_a_line(collection: Collection) -> int:
    lines = collection.index_file.read_bytes().splitlines(keepends=True)
    collection.index_file.write_bytes(b"".join(lines[:-1]))
    return -1


def turn_the_index_round(collection: Collection) -> int:
    lines = collection.index_file.read_bytes().splitlines(keepends=True)
    collection.index_file.write_bytes(b"".join(lines[::-1]))
    return len(lines[-1])


def break_a_line(collection: Collection) -> int:
    lines = collection.index_file.read_bytes().splitlines(keepends=True)
    collection.index_file.write_bytes(b"".join([*lines, b"z) 20240101000000 {\n"]))
    return sum(map(len, lines))


def point_a_line_elsewhere(collection: Collection) -> int:
    text = collection.index_file.read_bytes()
    line = text.splitlines(keepends=True)[-1].replace(b'.warc.gz"', b'.gone.gz"')
    collection.index_file.write_bytes(text + line)
    return -1


def change_a_key(collection: Collection) -> int:
    text = collection.index_file.read_text()
    at = text.index('"key": "') + 8
    collection.index_file.write_text(text[:at] + "0" * 32 + text[at + 32 :])
    return -1


def ask_for_a_page_more(collection: Collection) -> int:
    collection.write_pages([*collection.page_list(), Page("https://a.example/none", "20240101000000")])
    return -1


# damage: (code found, captures left after repair, None where there is nothing to repair)
DAMAGES: dict[Callable[[Collection], int], tuple[str, int | None]] = {
    flip_a_byte: ("corrupt", 3),  # of a request: what it was, and so what was answered, is not known
    cut_the_tail: ("truncated", 3),
    press_into_one_member: ("not-chunked", 4),
    pad: ("junk", 4),
    forge_a_body: ("digest", None),
    drop_the_index: ("no-index", 4),
    drop_a_line: ("index-stale", 4),
    turn_the_index_round: ("index-order", 4),
    break_a_line: ("index-line", 4),
    point_a_line_elsewhere: ("index-foreign", 4),
    change_a_key: ("index-differs", 4),
    ask_for_a_page_more: ("no-capture", None),
}


def test_a_sound_collection_has_no_defects(collection):
    assert check(collection) == []
    assert repair(collection) == []
    assert not (collection.path / "damaged").exists()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_damage_is_found_and_repaired(collection, damage):
    code, left = DAMAGES[damage]
    offset = damage(collection)
    found = {each.code: each for each in check(collection)}
    assert code in found
    assert found[code].offset == offset
    if left is None:
        assert not found[code].repair or found[code].severity is Severity.WARNING
        return
    assert found[code].repair == "stillweb collections check shop --repair"
    before = {path.name: path.read_bytes() for path in collection.archive.iterdir()}
    assert repair(collection)
    assert {each.code for each in check(collection)} == ({"no-request"} if damage is flip_a_byte else set())
    assert sum(1 for _ in collection.exchanges()) == left
    stored = b"".join(path.read_bytes() for path in sorted(collection.path.glob("damaged/*")))
    for name, content in before.items():
        now = collection.archive / name
        assert now.read_bytes() == content or stored == content or now.read_bytes() + stored == content


def test_two_damages_are_both_repaired(collection):
    flip_a_byte(collection)
    cut_the_tail(collection)
    assert {"corrupt", "truncated"} <= {each.code for each in check(collection)}
    repair(collection)
    assert {each.code for each in check(collection)} == {"no-request"}
    assert sum(1 for _ in collection.exchanges()) == 2


@pytest.mark.parametrize("left", range(3))
def test_a_repair_that_is_killed_loses_no_record(collection, monkeypatch, left: int):
    flip_a_byte(collection)
    for name in ("rename", "replace", "unlink"):  # each step by which the repair moves a file
        whole = getattr(Path, name)

        def move(path: Path, *given: object, whole=whole, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return whole(path, *given, **named)

        monkeypatch.setattr(Path, name, move)
    with suppress(KeyboardInterrupt):
        repair(collection)
    monkeypatch.undo()
    repair(collection)
    assert sum(1 for _ in collection.exchanges()) == 3


def test_a_file_without_a_whole_record_is_moved_aside(collection):
    (collection.archive / "z.warc.gz").write_bytes(gzip_member(b"WARC/1.1\r\n")[:-3])
    repair(collection)
    assert check(collection) == []
    assert [path.name for path in (collection.path / "damaged").iterdir()] == ["z.warc.gz"]


def test_a_revisit_without_original_and_a_broken_manifest(collection):
    headers = (
        ("WARC-Type", "revisit"),
        ("WARC-Record-ID", "<urn:x:1>"),
        ("WARC-Target-URI", "https://a.example/r"),
        ("WARC-Date", "2024-01-01T00:00:00Z"),
        ("WARC-Payload-Digest", "sha256:" + "0" * 64),
    )
    (collection.archive / "z.warc.gz").write_bytes(gzip_member(serialise(WarcRecord(headers, b""))))
    collection.manifest_file.write_text("{")
    repair(collection)
    assert {each.code for each in check(collection)} == {"no-original", "manifest"}


def test_a_file_of_the_archive_that_is_no_archive(collection):
    (collection.archive / "z.warc").write_text("hello")
    assert "not-warc" in {each.code for each in check(collection)}


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("wacz")
    return subprocess.run([program, "validate", "-f", path], capture_output=True, text=True, check=False)


def test_an_export_is_a_valid_wacz_and_its_bytes_are_fixed(tmp_path, collection):
    first = export(collection, tmp_path / "a.wacz").read_bytes()
    for path in collection.path.rglob("*"):
        path.touch()
    assert export(collection, tmp_path / "b.wacz").read_bytes() == first
    ran = validate(tmp_path / "a.wacz")
    assert ran.returncode == 0, ran.stdout
    assert "is valid" in ran.stdout
    with zipfile.ZipFile(tmp_path / "a.wacz") as archive:
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
        package = json.loads(archive.read("datapackage.json"))
    assert package["wacz_version"] == "1.1.1"
    assert package["mainPageUrl"] == "https://a.example/0"
    assert not list(tmp_path.glob("*.part"))


def test_what_cannot_be_exported(tmp_path, collection):
    empty = Collection.create(tmp_path / "root", "empty")
    with pytest.raises(UsageError, match="no WARC file"):
        export(empty, tmp_path / "a.wacz")
    assert not (tmp_path / "a.wacz").exists()


def test_an_export_holds_what_a_killed_recording_did_not_index(tmp_path, collection):
    whole = export(collection, tmp_path / "whole.wacz").read_bytes()
    lines = collection.index_file.read_bytes().splitlines(keepends=True)
    collection.index_file.write_bytes(b"".join(lines[:1]))
    os.utime(collection.index_file, ns=(0, 0))
    assert export(collection, tmp_path / "a.wacz").read_bytes() == whole
    collection.index_file.unlink()
    assert export(collection, tmp_path / "b.wacz").read_bytes() == whole


@pytest.mark.shared
@pytest.mark.parametrize("name", ["browsertrix/docs25.wacz", "multi-wacz.wacz", "example-iana.warc"])
def test_exports_of_real_archives_are_valid(shared, tmp_path, name):
    import_files([shared / "archives" / name], tmp_path / "root", "x")
    ran = validate(export(Collection.open(tmp_path / "root", "x"), tmp_path / "x.wacz"))
    assert ran.returncode == 0, ran.stdout
