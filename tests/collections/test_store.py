"""Packs of one root share bodies; what a pack names stays, whatever is sealed, killed or removed."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillweb.collections import renames
from stillweb.collections.check import check
from stillweb.collections.layout import Collection, list_collections
from stillweb.collections.pack import format as packformat
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack, pack_stamp
from stillweb.collections.pack.seal import seal
from stillweb.collections.pack.store import BodyStore, remove_collection
from stillweb.collections.pack.writer import PackWriter
from stillweb.collections.versions import keep_version
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import MalformedPack
from stillweb.files import DISK_FULL
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ensure_sealed, why_unsealed

DIGESTED = ("manifest.json", "index.bin", "entries.bin", "digest")


def _body(number: int) -> bytes:
    return random.Random(number).randbytes(3000) if number else b""


def _record(root: Path, name: str, bodies: list[int]) -> Collection:
    collection = Collection(root, name)
    if not collection.path.exists():
        Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for place, number in enumerate(bodies):
            response = Response(200, "OK", (("Content-Type", "text/plain"),), _body(number))
            request = Request("GET", f"https://a.test/{place}/{number}")
            writer.write(Exchange(request, response, f"202601010000{place:02}"))
    return collection


def _bodies(collection: Collection) -> list[bytes]:
    with Pack.open(collection.pack) as pack:
        pack.verify()
        return [bytes(pack.entry(row).body) for row in range(len(pack))]


def _segments(root: Path) -> list[Path]:
    return sorted((root / ".store").glob("*.bodies"))


def _digested(collection: Collection) -> dict[str, bytes]:
    return {name: (collection.pack / name).read_bytes() for name in DIGESTED}


@pytest.mark.parametrize("command", [seal, partial(keep_version, version="v")], ids=["seal", "keep"])
def test_a_command_on_a_full_disk_says_so_and_leaves_no_file(
    tmp_path: Path, command: Callable[[Collection], object]
) -> None:
    collection = _record(tmp_path, "a", [1, 2])
    (collection.baseline / "p").mkdir(parents=True)
    (collection.baseline / "p" / "screenshot.png").write_bytes(bytes(3000))
    before = sorted(tmp_path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # in place of a full disk
    try:
        with pytest.raises(OSError, match="too large") as raised:
            command(collection)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno in DISK_FULL
    left = {path for path in tmp_path.rglob("*") if path.is_file()} - {*before}
    assert {path.name for path in left} <= {"lock"}


def test_two_collections_have_common_bodies_once(tmp_path):
    one = _record(tmp_path, "one", [1, 2, 3])
    seal(one)
    size = sum(file.stat().st_size for file in _segments(tmp_path))
    two = _record(tmp_path, "two", [3, 2, 1, 2, 0])
    info = seal(two)
    assert sum(file.stat().st_size for file in _segments(tmp_path)) == size
    three = _record(tmp_path, "three", [3, 4])
    seal(three)
    assert sum(file.stat().st_size for file in _segments(tmp_path)) == size + 3000 + 8
    assert info.bodies == 4
    for collection, numbers in ((one, [1, 2, 3]), (two, [3, 2, 1, 2, 0]), (three, [3, 4])):
        assert _bodies(collection) == [_body(number) for number in numbers]
        assert not (collection.pack / "bodies.bin").exists()


def test_what_is_in_the_store_does_not_matter_to_the_environment(tmp_path):
    alone = _record(tmp_path / "a", "site", [1, 2, 3, 2])
    info = seal(alone)
    _record(tmp_path / "b", "other", [7, 3, 1])
    seal(Collection(tmp_path / "b", "other"))
    shutil.copytree(alone.path, tmp_path / "b" / "site", ignore=shutil.ignore_patterns("pack"))
    beside = Collection(tmp_path / "b", "site")
    assert seal(beside) == info
    assert _digested(beside) == _digested(alone)
    assert (beside.pack / "places.bin").read_bytes() != (alone.pack / "places.bin").read_bytes()
    assert _bodies(beside) == _bodies(alone)


def test_sealing_again_writes_no_body_again(tmp_path):
    site = _record(tmp_path, "site", [1, 2])
    info = seal(site)
    before = _segments(tmp_path)
    assert seal(site) == info
    assert _segments(tmp_path) == before
    _record(tmp_path, "site", [5])
    seal(site)
    assert len(_segments(tmp_path)) == 2
    assert [file.name for file in _segments(tmp_path) if file in before] == [before[0].name]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["record", "seal", "remove", "collect"]),
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
    ),
    min_size=3,
    max_size=10,
)


@given(operations=OPERATIONS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_pack_names_is_never_removed_and_what_none_names_is(operations, tmp_path):
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    root.mkdir()
    sealed: dict[str, list[bytes]] = {}
    for what, name, numbers in operations:
        collection = Collection(root, name)
        if what == "record":
            _record(root, name, numbers)
        elif what == "collect":
            BodyStore(root).collect()
        elif collection.path.exists() and what == "remove":
            remove_collection(collection.path)
            sealed.pop(name, None)
        elif collection.path.exists():
            seal(collection)
            sealed[name] = _bodies(collection)
        for each, bodies in sealed.items():
            assert _bodies(Collection(root, each)) == bodies
    for name in sealed:
        remove_collection(root / name)
    assert not sealed or list((root / ".store").iterdir()) == []


def test_nothing_is_removed_while_a_seal_runs(tmp_path):
    site = _record(tmp_path, "site", [1])
    seal(site)
    shutil.rmtree(site.path)
    store = BodyStore(tmp_path)
    with store.sharing(), store.sharing():  # two simultaneous seals
        assert store.collect() == 0
        assert len(_segments(tmp_path)) == 1
    assert store.collect() > 3000
    assert _segments(tmp_path) == []


def test_nothing_is_removed_when_a_pack_cannot_report_what_it_needs(tmp_path):
    site, other = _record(tmp_path, "site", [1]), _record(tmp_path, "other", [2])
    seal(site)
    seal(other)
    places = site.pack / "places.bin"
    content = bytearray(places.read_bytes())
    content[30] ^= 1
    places.write_bytes(content)
    before = _segments(tmp_path)
    with pytest.raises(MalformedPack, match=r"places\.bin"):
        BodyStore(tmp_path).collect()
    with pytest.raises(MalformedPack):
        remove_collection(other.path)
    assert _segments(tmp_path) == before
    assert "places.bin" in why_unsealed(site)
    ensure_sealed(site)
    assert _bodies(site) == [_body(1)]
    assert len(_segments(tmp_path)) == 1


def test_a_broken_body_is_not_built_upon(tmp_path):
    site = _record(tmp_path, "site", [1, 2])
    seal(site)
    [segment] = _segments(tmp_path)
    content = bytearray(segment.read_bytes())
    content[20] ^= 0x40
    segment.write_bytes(content)
    with Pack.open(site.pack) as pack, pytest.raises(MalformedPack) as caught:
        pack.entry(0)
    assert (caught.value.path, caught.value.offset) == (segment, 8)
    [defect] = check(site)
    assert (defect.code, defect.file, defect.offset) == ("pack", str(segment), 8)
    assert defect.repair == "stillweb collections seal site"
    seal(site)
    assert _bodies(site) == [_body(1), _body(2)]
    assert check(site) == []


@pytest.mark.parametrize("kind", ["bodies", "table"])
def test_a_store_with_a_broken_file_is_still_of_use(tmp_path, kind):
    site = _record(tmp_path, "site", [1])
    seal(site)
    [segment] = _segments(tmp_path)
    segment.with_suffix(f".{kind}").write_bytes(b"")
    again = _record(tmp_path, "again", [1, 2])
    seal(again)
    assert _bodies(again) == [_body(1), _body(2)]


def test_a_collection_that_was_copied_alone_says_so_and_is_sealed_again(tmp_path):
    site = _record(tmp_path / "a", "site", [1, 2])
    seal(site)
    before = _digested(site)
    shutil.copytree(site.path, tmp_path / "b" / "site")
    copy = Collection(tmp_path / "b", "site")
    with pytest.raises(MalformedPack, match="is missing, but the pack has bodies in it"):
        Pack.open(copy.pack)
    assert "is missing" in why_unsealed(copy)
    ensure_sealed(copy)
    assert _digested(copy) == before
    assert _bodies(copy) == [_body(1), _body(2)]


def test_a_pack_of_another_version_is_sealed_again(tmp_path, monkeypatch):
    site = _record(tmp_path, "site", [1])
    with monkeypatch.context() as old:
        old.setattr(packformat, "VERSION", 1)
        seal(site)
    assert "pack has version 1, this program reads 2" in why_unsealed(site)
    assert ensure_sealed(site) is not None
    assert _bodies(site) == [_body(1)]


def test_a_linked_collection_has_the_store_of_where_it_lies(tmp_path):
    site = _record(tmp_path / "a", "site", [1])
    seal(site)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "linked").symlink_to(site.path)
    linked = Collection(tmp_path / "b", "linked")
    assert why_unsealed(linked) == ""
    assert _bodies(linked) == [_body(1)]
    seal(linked)
    assert not (tmp_path / "b" / ".store").exists()
    remove_collection(linked.path)
    assert _bodies(site) == [_body(1)]


def test_collecting_leaves_a_running_seal_alone_where_a_link_leads(tmp_path):
    site = _record(tmp_path / "a", "site", [1])
    other = _record(tmp_path / "b", "other", [1])
    (tmp_path / "b" / "linked").symlink_to(site.path)
    seal(site, on_progress=lambda _: seal(other) and None)
    assert _bodies(site) == [_body(1)]


def test_the_store_is_no_collection(tmp_path):
    seal(_record(tmp_path, "site", [1]))
    assert [each.name for each in list_collections(tmp_path)] == ["site"]


KILLED = """
import sys, time
from pathlib import Path
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
def stop(count):
    if count == 3:
        print("here", flush=True)
        sys.stdin.read()
seal(Collection(Path(sys.argv[1]), "site"), on_progress=stop)
"""


def test_who_is_killed_while_sealing_leaves_the_old_pack_and_a_store_of_use(tmp_path):
    site = _record(tmp_path, "site", [1, 2])
    seal(site)
    before = _digested(site)
    _record(tmp_path, "site", [3, 4, 5])
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sealing:
        assert sealing.stdout.readline() == b"here\n"
        assert BodyStore(tmp_path).collect() == 0
        sealing.send_signal(signal.SIGKILL)
    assert any(path.name.startswith(".new-") for path in (tmp_path / ".store").iterdir())
    assert any(path.name.startswith(".pack-") for path in site.path.iterdir())
    assert _digested(site) == before
    assert _bodies(site) == [_body(1), _body(2)]
    assert ensure_sealed(site).entries == 5
    assert sorted(_bodies(site)) == sorted(_body(number) for number in range(1, 6))
    assert not [p for p in (*site.path.iterdir(), *(tmp_path / ".store").iterdir()) if p.name.startswith(".")]


def test_a_pack_is_replaced_under_those_who_read_it(tmp_path):
    site = _record(tmp_path, "site", [1, 2, 3])
    seal(site)
    with Pack.open(site.pack) as old:
        stamps = {pack_stamp(site.pack)}

        def reseal() -> None:
            for seed in range(12):
                site.manifest_file.write_text(f'{{"seed": {seed}}}')
                seal(site)
                stamps.add(pack_stamp(site.pack))

        thread = threading.Thread(target=reseal)
        thread.start()
        seen = set()
        while thread.is_alive():
            with Pack.open(site.pack) as pack:
                seen.add(pack.environment_id)
                assert [bytes(pack.entry(row).body) for row in range(3)] == [_body(1), _body(2), _body(3)]
        thread.join()
        assert len(stamps) == 13
        assert [bytes(old.entry(row).body) for row in range(3)] == [_body(1), _body(2), _body(3)]
    assert len(seen) > 1


def test_no_pack_has_a_stamp_of_zeros(tmp_path):
    assert pack_stamp(tmp_path / "nowhere") == (0, 0)


def test_what_is_sealed_can_be_read_by_others(tmp_path):
    seal(_record(tmp_path, "site", [1]))
    for file in (tmp_path / ".store").iterdir():
        assert os.stat(file).st_mode & 0o777 == 0o644


def test_a_flipped_byte_in_a_table_costs_space_and_nothing_else(tmp_path):
    info = seal(_record(tmp_path, "site", [1, 2]))
    site = Collection(tmp_path, "site")
    [segment] = _segments(tmp_path)
    table = segment.with_suffix(".table")
    original = table.read_bytes()
    for at in range(0, len(original), 5):
        table.write_bytes(original[:at] + bytes([original[at] ^ 0x11]) + original[at + 1 :])
        assert seal(site) == info
        assert _bodies(site) == [_body(1), _body(2)]
        if table.exists():
            table.write_bytes(original)


def test_seals_at_once_share_the_store(tmp_path):
    names = ("a", "b", "c")
    for name in names:
        _record(tmp_path, name, [1, 2, 3])
    wanted = {name: [_body(1), _body(2), _body(3)] for name in names}

    def work(name: str) -> None:
        for number in range(4, 7):
            _record(tmp_path, name, [number, 9])
            wanted[name] += [_body(number), _body(9)]
            seal(Collection(tmp_path, name))
            BodyStore(tmp_path).collect()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert sorted(_bodies(Collection(tmp_path, name))) == sorted(wanted[name])


@pytest.mark.parametrize("before", [[], [7]])
def test_a_pack_that_appears_or_goes_between_look_and_move_is_replaced(tmp_path, monkeypatch, before):
    site = _record(tmp_path, "site", [1, *before])
    if before:
        seal(site)
    look, looked = Path.exists, []

    def exists(path: Path) -> bool:
        found = look(path)
        if path == site.pack and not looked:
            looked.append(found)
            if before:
                shutil.rmtree(path)
            else:
                seal(site)
                _record(tmp_path, "site", [7])
        return found

    monkeypatch.setattr(Path, "exists", exists)
    entry = PackEntry.of("GET", "https://a.test/second", Response(200, "OK", (), _body(2)))
    with PackWriter(site.pack, BodyStore(tmp_path)) as writer:
        writer.add(entry)
        writer.finish({})
    assert looked == [bool(before)]
    assert _bodies(site) == [_body(2)]
    assert not [path.name for path in site.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("at_once", [True, False])
def test_folders_change_names(tmp_path, monkeypatch, at_once):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not at_once:  # a system that has no renameat2
        monkeypatch.setattr(renames.ctypes, "CDLL", lambda name: object())
    renames.exchange(tmp_path / "one", tmp_path / "two")
    assert {p.parent.name: p.read_text() for p in tmp_path.glob("*/file")} == {"one": "two", "two": "one"}
    assert len(list(tmp_path.iterdir())) == 2
