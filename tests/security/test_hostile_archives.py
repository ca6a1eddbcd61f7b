"""Archives that mean harm, read by the command line in a child process: typed errors, bounded cost.

`bench/hostile.py` runs the complete corpus; these are the archives that once were a traceback, a hang, too
much memory, or an escape sequence on the terminal.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import brotli
import pytest
from hostile_archives import SITE, HostileArchive, attacks, bombs, mutants, pair, records, warc
from isolated import attack, sealed_pack

from repetitions import times
from stillweb.certs import CertAuthority
from stillweb.collections.defects import Defect
from stillweb.collections.importers.importer import import_files
from stillweb.collections.indexing import index_file
from stillweb.collections.limits import load_json, open_picture
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import read_chunks
from stillweb.collections.warc.reader import read_record
from stillweb.collections.warc.records import Parsed, parse_record
from stillweb.errors import CollectionError, LimitExceeded, MalformedPack
from stillweb.http import codec
from stillweb.http.messages import parse_response
from stillweb.matching.rules import Rules
from stillweb.model import Request

ONCE_WRONG = (
    *(
        "cdxj-filename-1",
        "cdxj-filename-16",
        "cdxj-method-0",
        "cdxj-method-13",
        "cdxj-mime-3",
        "cdxj-url-2",
        "cdxj-length-20",
        "index-3",
    ),
    *("extra-amends.json-20", "folder-reachability.jsonl-20", "manifest-version-20", "pages-13", "pages-23"),
    *("har-escapes", "warc-uri-13", "zip-name-utf8", "arc-13"),
)
BOMBS = ("bomb-png", "bomb-marks", "bomb-har-json", "bomb-zip-bzip2")
MUTANTS = times(6, 12)


@pytest.fixture(scope="module")
def pack_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return sealed_pack(tmp_path_factory.mktemp("sealed"), warc(records()))


@pytest.fixture(scope="module")
def written() -> dict[str, HostileArchive]:
    return {each.name: each for each in attacks()}


def test_the_corpus_has_200_archives_and_names_each_once() -> None:
    names = [each.name for each in attacks()]
    assert len(names) == len(set(names)) > 200


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_an_attack_ends_in_a_message(
    name: str, ca: CertAuthority, written: dict[str, HostileArchive]
) -> None:
    assert attack(written[name], ca).wrong == []


@cache
def bomb(name: str) -> HostileArchive:
    return next(bombs(name))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_512_mib(name: str, ca: CertAuthority) -> None:
    assert attack(bomb(name), ca).wrong == []


def test_mutants_of_valid_archives(ca: CertAuthority, pack_files: dict[str, bytes]) -> None:
    wrong = {each.name: attack(each, ca).wrong for each in mutants("still", MUTANTS, pack_files)}
    assert {name: found for name, found in wrong.items() if found} == {}


# --- limits, without a process ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" * 100_000, ValueError),
        (b"9" * 5000, ValueError),
        (b"[" + b"[]," * (1 << 20) + b"0]", LimitExceeded),
        (b'"' + b"a" * (33 << 20) + b'"', LimitExceeded),
    ],
)
def test_json_of_an_archive_is_bounded(text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_json(text)


def test_the_limit_of_json_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"[" + b"[]," * (1 << 20) + b"0]"
    monkeypatch.setenv("STILLWEB_MAX_JSON_MIB", "64")
    assert len(load_json(text)) == (1 << 20) + 1


def test_a_picture_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    shot = bomb("bomb-png").files["a.warc.gz"]
    defects: list[Defect] = []
    blocks: list[bytes] = []
    (tmp_path / "a.warc.gz").write_bytes(shot)
    index_file(tmp_path / "a.warc.gz", defects.append, lambda each: blocks.append(each.block))
    picture = next(block for block in blocks if block.startswith(b"\x89PNG"))
    with pytest.raises(ValueError, match="12900 by 12900 pixels is too large"):
        open_picture(picture)


def test_a_coded_body_that_would_fill_the_browser_is_no_capture(tmp_path: Path) -> None:

    bomb = brotli.compress(bytes(40 << 20), quality=1)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(
        warc([*records(), *pair("/bomb", bomb, "Content-Encoding: br", "Content-Type: text/html")])
    )
    defects: list[Defect] = []
    urls = [capture.url for capture, _ in index_file(path, defects.append)]
    assert f"{SITE}/bomb" not in urls
    assert "coding-bomb" in {each.code for each in defects}
    assert codec.is_bomb(bomb, "br")
    assert codec.decode(bomb, ", ".join(["br"] * 9)) is None  # more codings than any server applies


def test_marks_of_a_stream_are_read_in_linear_time() -> None:
    block = b"event-stream: 1\r\n" + b"mutation: 1 20240101000000 1\r\n" * 100_000
    began = time.process_time()
    chunks = read_chunks(block)
    assert chunks is not None
    assert chunks.marks is not None
    assert len(chunks.marks) == 100_000
    assert time.process_time() - began < 20  # 100,000 copies of a growing tuple take minutes


def test_folded_fields_are_read_in_linear_time() -> None:
    """An import of 57 kB once held a processor for minutes: each line copied the value before it."""
    head = b"X: a" + b"\r\n b" * 1_000_000
    record = b"WARC/1.1\r\nWARC-Type: resource\r\nContent-Length: 1\r\n" + head[:1_000_000] + b"\r\n\r\nx"
    began = time.process_time()
    answer = parse_response(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\nbody")
    parsed = parse_record(record, 0)
    assert answer is not None
    assert answer.headers == (("X", "a" + " b" * 1_000_000),)
    assert isinstance(parsed, Parsed)
    assert parsed.record.headers[-1][1].startswith("a b b")
    assert time.process_time() - began < 15


# --- rules -----------------------------------------------------------------------------------------------


def test_a_glob_does_not_backtrack() -> None:
    rules = Rules.parse(
        "version: 1\nvolatile:\n"
        f"  - {{where: query, name: n, shape: any, host: '{'*a' * 40}b', path: '{'**a' * 40}b'}}\n"
        f"  - {{where: query, name: n, shape: any, path: '{'**a' * 40}b'}}\n"
    )
    began = time.process_time()
    assert rules.aliases(Request("GET", f"http://{'a' * 200}/{'a' * 4000}?n=1")) == ()
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("pattern", "path", "applies"),
    [
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/x/c", False),
        ("/a/**", "/a/b/c\udc80", True),
        ("/a\udc80", "/a\udc80", True),
        ("/a\udc80", "/a\udc81", False),
        ("/a.c", "/abc", False),
        ("/**/z", "/x\ny/z", True),
        ("/*/é", "/x/é", True),
    ],
)
def test_globs_match_as_described(pattern: str, path: str, applies: bool) -> None:
    from stillweb.matching.rules import _path_glob

    assert _path_glob(pattern)(path) is applies


@pytest.mark.parametrize(
    ("host", "name", "applies"),
    [
        ("*", "a.example", True),
        ("*.example", "example", True),
        ("*.example", "b.example", True),
        ("*.example", "bexample", False),
        ("A.example", "a.example", True),
        ("a*.ex*", "ab.example", True),
    ],
)
def test_host_globs_match_as_described(host: str, name: str, applies: bool) -> None:
    from stillweb.matching.rules import _host_glob

    assert _host_glob(host)(name) is applies


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nvolatile:\n" + "  - {where: query, name: t, shape: any}\n" * 40_000,
        f"version: 1\npolls:\n  - {{host: a, path: '{'x' * 1001}'}}\n",
    ],
)
def test_rules_beyond_their_limits_name_the_line(text: str) -> None:
    with pytest.raises(CollectionError, match=r"line \d+: .* at most"):
        Rules.parse(text)


# --- packs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"entries":', b'"entries":-'),
        (b'"entries":', b'"entries":9'),
        (b'"keys":', b'"keys":1'),
        (b'"bodies":', b'"bodies":true,"x":'),
        (b'"files":', b'"files":5,"x":'),
        (b'"blocks":', b'"blocks":[],"x":'),
        (b"{", b"[{"),
        (b"{", b'{"a":' + b"[" * 100_000 + b","),
    ],
)
def test_a_pack_whose_manifest_lies(
    tmp_path: Path, pack_files: dict[str, bytes], old: bytes, new: bytes
) -> None:

    for name, content in pack_files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    text = (tmp_path / "a/pack/manifest.json").read_bytes().replace(b'": ', b'":').replace(old, new, 1)
    (tmp_path / "a/pack/manifest.json").write_bytes(text)
    (tmp_path / "a/pack/digest").write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n")
    with pytest.raises(MalformedPack), Pack.open(tmp_path / "a/pack") as pack:
        pack.verify()


# --- processes ---------------------------------------------------------------------------------------------


def test_sigterm_during_an_import_leaves_no_folder(tmp_path: Path) -> None:
    given = tmp_path / "a.warc.gz"
    given.write_bytes(warc(records() * 4000))
    command = [sys.executable, "-m", "stillweb", "collections", "import", str(given), "-c", "a"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as program:
        while program.poll() is None and not list(tmp_path.glob("collections/.import-*")):
            os.sched_yield()
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 130
        assert program.stderr is not None
        assert program.stderr.read().strip().endswith(b"stopped")
    assert not list(tmp_path.glob("collections/*"))
    assert not list(tmp_path.glob("collections/.*"))


def test_an_index_does_not_raise_the_limit_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    path.write_bytes(next(bombs("bomb-member")).files["a.warc.gz"])
    with pytest.raises(LimitExceeded, match="ratio"):
        read_record(path, 0, 1 << 40)


def test_an_import_is_refused_in_one_piece(tmp_path: Path) -> None:
    bomb = next(bombs("bomb-member")).files["a.warc.gz"]
    (tmp_path / "a.warc.gz").write_bytes(bomb)
    with pytest.raises(LimitExceeded, match="ratio") as raised:
        import_files([tmp_path / "a.warc.gz"], tmp_path / "root", "a")
    assert raised.value.option == "STILLWEB_MAX_RATIO"
    assert not (tmp_path / "root").exists()
