"""A root of hundreds of segments is sealed and served with few descriptors; none is skipped in silence."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stillweb.collections.pack import store as stores
from stillweb.collections.pack.bodies import MOST_SEGMENTS, segments_of
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.store import BodyStore, read_tables
from stillweb.collections.pack.writer import PackWriter
from stillweb.errors import CollectionError
from stillweb.model import Response

MANY = 150
SPARE = MOST_SEGMENTS + 20  # descriptors beyond those that are open already


def _body(number: int) -> bytes:
    return f"body {number} ".encode() * 100


def _seal(root: Path, name: str, numbers: range | list[int]) -> Path:
    """Make the pack of a collection by its captures alone."""
    pack = root / name / "pack"
    pack.parent.mkdir(exist_ok=True)
    with PackWriter(pack, BodyStore(root)) as writer:
        for number in numbers:
            response = Response(200, "OK", (("Content-Type", "text/plain"),), _body(number))
            writer.add(PackEntry.of("GET", f"https://a.test/{number:04}", response))
        writer.finish({})
    return pack


def _bodies(pack: Path) -> list[bytes]:
    with Pack.open(pack) as opened:
        opened.verify()
        return [bytes(opened.entry(row).body) for row in _rows(opened)]


def _rows(pack: Pack) -> list[int]:
    return [pack.rows_of(url)[0] for url in pack.urls()]


@contextmanager
def _few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + SPARE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of so many segments that they cannot all be open."""
    with monkeypatch.context() as quick:
        quick.setattr(os, "fsync", lambda descriptor: None)
        for number in range(MANY):
            _seal(tmp_path, f"site{number}", [number])
    assert len(BodyStore(tmp_path).segments()) == MANY
    return tmp_path


def test_a_root_of_many_segments_is_sealed_and_its_packs_name_few(root: Path) -> None:
    with _few_descriptors():
        pack = _seal(root, "all", range(MANY + 1))
        assert len(segments_of(pack)) == MOST_SEGMENTS
        assert _bodies(pack) == [_body(number) for number in range(MANY + 1)]
        size = sum(file.stat().st_size for file in (root / ".store").glob("*.bodies"))
        again = _seal(root, "again", range(MANY + 1))
        assert _bodies(again) == _bodies(pack)
    assert sum(file.stat().st_size for file in (root / ".store").glob("*.bodies")) == size
    assert BodyStore(root).collect() == 0
    for number in range(MANY):
        assert _bodies(root / f"site{number}" / "pack") == [_body(number)]


def test_a_pack_that_names_hundreds_of_segments_is_served(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(stores, "MOST_SEGMENTS", MANY + 1)
        pack = _seal(root, "all", range(MANY))
    assert len(segments_of(pack)) == MANY
    with _few_descriptors():
        assert _bodies(pack) == [_body(number) for number in range(MANY)]


def test_how_many_segments_there_are_does_not_matter_to_the_environment(root: Path, tmp_path_factory) -> None:
    alone = tmp_path_factory.mktemp("alone")
    packs = [_seal(each, "all", range(MANY)) for each in (root, alone)]
    assert len({(pack / "digest").read_bytes() for pack in packs}) == 1


@pytest.mark.parametrize("kind", ["bodies", "table"])
def test_a_segment_that_cannot_be_read_is_not_passed_over(tmp_path: Path, kind: str) -> None:
    _seal(tmp_path, "one", [1])
    [name] = BodyStore(tmp_path).segments()
    file = tmp_path / ".store" / f"{name}.{kind}"
    file.unlink()
    file.mkdir()
    with pytest.raises(CollectionError, match="cannot be read") as caught:
        _seal(tmp_path, "two", [1])
    assert caught.value.path == tmp_path / ".store" / f"{name}.bodies"
    assert "seal NAME" in caught.value.hint
    assert not (tmp_path / "two" / "pack").exists()


def test_a_segment_that_is_gone_meanwhile_or_of_another_kind_is_left_out(tmp_path: Path) -> None:
    _seal(tmp_path, "one", [1])
    [name] = BodyStore(tmp_path).segments()
    with ExitStack() as files:
        assert len(read_tables(tmp_path / ".store", ["0" * 32, name], files)) == 1
    (tmp_path / ".store" / f"{name}.bodies").write_bytes(b"something else that is long enough")
    assert _bodies(_seal(tmp_path, "two", [1])) == [_body(1)]
