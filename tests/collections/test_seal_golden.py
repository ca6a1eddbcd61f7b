"""A change to the decisions of seal must raise `SEALING`, or packs that were sealed before stay in use."""

from __future__ import annotations

import gzip
import os
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb.cli import cli
from stillweb.collections.layout import Collection
from stillweb.collections.pack import seal as seals
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.rules import default_rules_digest
from stillweb.model import Capture, Exchange, Headers, Request, Response

HINT = (
    "packs are sealed by other rules now: raise SEALING (collections/seal.py), and write here what is found"
)
RULES = (
    "version: 1\ndefaults: false\nvolatile:\n"
    "  - {where: query, name: t, shape: seconds}\n  - {where: json, name: at, shape: seconds}\n"
)
HTML = (("Content-Type", "text/html"),)
JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
PARTS = (("Content-Type", "multipart/form-data; boundary=x"),)
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
OK = Response(200, "OK", HTML, b"page")
VARY = Response(200, "OK", (("Vary", "X-Mode, Cookie, *"),))
MADE = Response(201, "Made", (*JSON, ("Alt-Svc", "h3")), b"{}")
SET = (("Authorization", "a"), ("X-Api-Key", "b"), ("X-Mode", "c"), ("Cookie", "d"), ("Traceparent", "e"))
EXCHANGES: tuple[tuple[str, str, Headers, bytes, Response], ...] = (
    ("GET", "", (), b"", OK),
    ("GET", "", (), b"", Response(304, "Not Modified", HTML)),
    ("HEAD", "", (), b"", Response(200, "OK", (*HTML, ("Content-Length", "4")))),
    ("GET", "set", SET, b"", OK),
    ("GET", "vary", (*SET, ("Accept", "text/html")), b"", VARY),
    ("GET", "accept", (("Accept", "application/json"),), b"", OK),
    ("GET", "?b=1&a=%7e&t=1760000000", (), b"", OK),
    ("GET", "?b=1&a=%7e&t=1760000009#f", (), b"", OK),
    ("POST", "json", JSON, b'{"b": 1, "at": 1760000000}', MADE),
    ("POST", "form", FORM, b"b=1&a=2", OK),
    ("PUT", "parts", PARTS, PART, Response(204)),
    ("GET", "part", (("Range", "bytes=0-1"),), b"", Response(206, "Partial", HTML, b"pa")),
    ("GET", "cut", (), b"", Response(200, "OK", (("Content-Length", "1000"),), b"cut")),
    ("GET", "moved", (), b"", Response(302, "", (("Location", "/"), ("Connection", "close")))),
    ("GET", "part.js", (("Referer", "https://golden.test/"), ("Sec-Fetch-Mode", "no-cors")), b"", OK),
)  # fmt: skip
DEPENDS = {1, 11, 12}  # 304, 206 and what is cut off: other records decide what becomes of them
_ENTRIES = {
    "0 GET https://golden.test/": "23f1667528ebdabc",
    "1 GET https://golden.test/": "23f1667528ebdabc",
    "2 HEAD https://golden.test/": "17201d30ec826563",
    "3 GET https://golden.test/set": "fb130df88e3a7c15",
    "4 GET https://golden.test/vary": "2ac81b2b4656be35",
    "5 GET https://golden.test/accept": "d8d4b6268ff73ae2",
    "6 GET https://golden.test/?b=1&a=%7e&t=1760000000": "e4992c2ff07562c9",
    "7 GET https://golden.test/?b=1&a=%7e&t=1760000009#f": "89884fc1252bd64f",
    "8 POST https://golden.test/json": "412654fa3dbe1ca0",
    "9 POST https://golden.test/form": "8fdbbec650b79ed2",
    "10 PUT https://golden.test/parts": "05cd25cd05e641be",
    "11 GET https://golden.test/part": "4a1911b3bc8889e3",
    "12 GET https://golden.test/moved": "6b4c1576025fa05b",
}
GOLDEN: dict[int, dict[str, str]] = {
    1: _ENTRIES | {"keys and aliases": "9567dd116e4aa18b"},
    2: _ENTRIES | {"keys and aliases": "a308b052211596b8"},
    3: _ENTRIES
    | {"13 GET https://golden.test/part.js": "f5ff146ce4522616", "keys and aliases": "b805d4374768d90d"},
}


def _write(collection: Collection, exchanges: range) -> None:
    with CollectionWriter(collection) as writer:
        for at in exchanges:
            method, path, fields, body, response = EXCHANGES[at]
            request = Request(method, f"https://golden.test/{path}", fields, body)
            writer.write(Exchange(request, response, f"202601010000{at:02}"))


def _digested(collection: Collection) -> dict[str, bytes]:
    names = ("manifest.json", "index.bin", "entries.bin")
    return {name: (collection.pack / name).read_bytes() for name in names}


def _read_by_seal(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Seal a collection, and return the seconds of the records that this reads."""
    read: list[str] = []
    with monkeypatch.context() as spy:
        read_capture = Collection.read_capture

        def note(self: Collection, capture: Capture) -> Exchange:
            read.append(capture.timestamp[-2:])
            return read_capture(self, capture)

        spy.setattr(Collection, "read_capture", note)
        seals.seal(collection)
    return read


@pytest.mark.parametrize("first", range(len(EXCHANGES)))
def test_a_seal_reads_new_files_and_makes_the_same_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    # Whatever is sealed first: a 304 or a range may depend on what is recorded later.
    collection = Collection.create(tmp_path, "golden")
    (collection.path / "rules.yaml").write_text(RULES)
    _write(collection, range(first))
    seals.seal(collection)
    _write(collection, range(first, len(EXCHANGES)))
    read = _read_by_seal(collection, monkeypatch)
    assert {int(each) for each in read} == {*range(first, len(EXCHANGES)), *(DEPENDS & {*range(first)})}
    found = _digested(collection)
    (collection.pack / "origins.bin").unlink()
    assert len(_read_by_seal(collection, monkeypatch)) == len(EXCHANGES) + 1  # the range is read twice
    assert _digested(collection) == found


def test_the_command_reads_all(tmp_path: Path) -> None:
    collection = Collection.create(tmp_path, "golden")
    _write(collection, range(1))
    seals.seal(collection)
    before = _digested(collection)
    [file] = collection.warc_files()
    times, body = file.stat().st_mtime_ns, file.read_bytes()
    file.write_bytes(b"x" * len(body))  # damaged, which neither size nor time shows
    os.utime(file, ns=(times, times))
    seals.seal(collection)
    assert _digested(collection) == before
    ran = CliRunner().invoke(cli, ["collections", "seal", "golden", "--collections", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert _digested(collection) != before


@pytest.mark.parametrize("change", ["rules", "sealing", "time of a file", "size of a file", "origins"])
def test_a_seal_reads_all_where_the_last_pack_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    collection = Collection.create(tmp_path, "golden")
    _write(collection, range(3))
    seals.seal(collection)
    [file], origins = collection.warc_files(), collection.pack / "origins.bin"
    if change == "rules":
        (collection.path / "rules.yaml").write_text(RULES)
    elif change == "sealing":
        monkeypatch.setattr(seals, "SEALING", seals.SEALING + 1)
    elif change == "time of a file":
        os.utime(file)
    elif change == "size of a file":
        times = file.stat().st_mtime_ns
        file.write_bytes(file.read_bytes() + gzip.compress(b""))
        os.utime(file, ns=(times, times))
    else:
        origins.write_bytes(origins.read_bytes().replace(b"00000", b"00001"))
    assert len(_read_by_seal(collection, monkeypatch)) == 3


def _found(root: Path) -> dict[str, str]:
    collection = Collection.create(root, "golden")
    (collection.path / "rules.yaml").write_text(RULES)
    _write(collection, range(len(EXCHANGES)))
    seals.seal(collection)
    found = {}
    with Pack.open(collection.pack) as pack:
        for row in range(len(pack)):
            entry = pack.entry(row)
            said = repr((entry.key, entry.varies, bytes(entry.head), entry.body_sha256, entry.epoch))
            if entry.referer:
                said += repr(entry.referer)
            found[f"{row} {entry.method} {entry.url}"] = sha256(said.encode()).hexdigest()[:16]
        found["keys and aliases"] = sha256(repr(pack.manifest["files"]["index.bin"]).encode()).hexdigest()[
            :16
        ]
    return found


def test_what_is_sealed_changes_with_sealing_only(tmp_path: Path) -> None:
    assert _found(tmp_path) == GOLDEN.get(seals.SEALING), HINT


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("pack.seal", "MEANT", frozenset({"authorization"})),
        ("pack.seal", "page_set", lambda name: False),
        ("pack.seal", "is_navigation", lambda request: True),
        ("pack.seal", "request_key", lambda method, url, *body: sha256(url.encode()).digest()[:16]),
        ("pack.seal", "_cut", lambda response: ""),
        ("pack.writer", "_DROPPED", frozenset({"connection", "content-length"})),
    ],
)
def test_the_golden_set_sees_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str, value: object
) -> None:
    monkeypatch.setattr(f"stillweb.collections.{place}.{name}", value)
    assert _found(tmp_path) != GOLDEN[seals.SEALING]


def test_the_default_rules_have_the_digest_that_packs_of_format_2_state():
    # A renamed class must not change environment ids; a changed default rule does, on purpose.
    assert default_rules_digest() == "c5a0b268d70a444a6664fa06912b624a05c48cf0d30804b4e06c405c1499ca05"
