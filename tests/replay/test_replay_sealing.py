"""A pack is stale though no file looks younger than it: clocks tick coarsely, copies keep their times."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack import seal as seals
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.reader import gzip_member
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import MalformedPack
from stillweb.matching.keys import request_key
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ensure_sealed, why_unsealed

NEW = "https://shop.example/new"


def exchange(url: str = NEW) -> Exchange:
    return Exchange(Request("GET", url), Response(200, "OK", (), b"of " + url.encode()), "20260101000000")


@pytest.fixture
def shop(tmp_path: Path) -> Collection:
    collection = Collection.create(tmp_path, "shop")
    with CollectionWriter(collection) as writer:
        writer.write(exchange("https://shop.example/"))
    ensure_sealed(collection)
    return collection


def level_times(collection: Collection) -> None:
    """Make every file as old as the pack: the clock of the file system has not ticked since it was sealed."""
    sealed_at = (collection.pack / "digest").stat().st_mtime_ns
    for path in collection.path.rglob("*"):
        os.utime(path, ns=(sealed_at, sealed_at))


def by_recording(collection: Collection, tmp_path: Path) -> None:
    with CollectionWriter(collection) as writer:
        writer.write(exchange())


def by_import(collection: Collection, tmp_path: Path) -> None:
    other = Collection.create(tmp_path, "other")
    by_recording(other, tmp_path)
    import_files(other.warc_files(), tmp_path, "shop", append=True)


def by_a_recording_that_was_killed(collection: Collection, tmp_path: Path) -> None:
    index = collection.index_file.read_bytes()
    by_recording(collection, tmp_path)
    collection.index_file.write_bytes(index)


def by_a_copy(collection: Collection, tmp_path: Path) -> None:
    other = Collection.create(tmp_path, "other")
    by_recording(other, tmp_path)
    shutil.copy2(other.warc_files()[0], collection.archive / "copied.warc.gz")


@pytest.mark.parametrize("append", [by_recording, by_import, by_a_recording_that_was_killed, by_a_copy])
def test_what_is_appended_is_replayed(
    shop: Collection, tmp_path: Path, append: Callable[[Collection, Path], None]
) -> None:
    level_times(shop)
    assert why_unsealed(shop) == ""
    append(shop, tmp_path)
    level_times(shop)
    assert why_unsealed(shop).endswith("changed since it was sealed")
    assert ensure_sealed(shop) is not None
    with Pack.open(shop.pack) as pack:
        [row] = pack.lookup(request_key("GET", NEW))
        assert bytes(pack.entry(row).body) == b"of " + NEW.encode()
    assert why_unsealed(shop) == ""


def test_what_is_appended_while_it_is_sealed_is_noticed_after(shop: Collection, tmp_path: Path) -> None:
    (shop.pack / "digest").unlink()
    ensure_sealed(shop, on_progress=lambda _: by_recording(shop, tmp_path))
    level_times(shop)
    assert "changed since" in why_unsealed(shop)


def test_settings_and_rules_count_by_what_they_say(shop: Collection) -> None:
    for seed in (1, 2):
        shop.manifest_file.write_text(json.dumps({"seed": seed, "notes": "of no account"}))
        level_times(shop)
        assert why_unsealed(shop) == "manifest.json (seed) changed since it was sealed"
        ensure_sealed(shop)
    shop.manifest_file.write_text(json.dumps({"seed": 2, "notes": "other"}))
    level_times(shop)
    assert why_unsealed(shop) == ""
    (shop.path / "rules.yaml").write_text("volatile: [cb]\n")
    level_times(shop)
    assert why_unsealed(shop) == "rules.yaml changed since it was sealed"


def test_rules_that_are_edited_while_it_is_sealed_count_from_the_next_seal_on(shop: Collection) -> None:
    file = shop.path / "rules.yaml"
    rule = "version: 1\nvolatile:\n  - {where: query, name: NAME, shape: seconds}\n"
    old, new = (rule.replace("NAME", name) for name in ("old", "new"))
    with CollectionWriter(shop) as writer:
        writer.write(exchange(NEW + "?old=1760000000&new=1760000000"))
    for before, after in ((old, new), (new, new)):
        file.write_text(before)
        ensure_sealed(shop, on_progress=lambda _, text=after: file.write_text(text) and None)
        level_times(shop)
        with Pack.open(shop.pack) as pack:
            assert pack.manifest["rules"] == before
            times = "?old=1760000009&new=1760000000" if before == old else "?old=1760000000&new=1760000009"
            [alias, *_] = Rules.parse(before).aliases(Request("GET", NEW + times))
            assert len(pack.lookup(alias.key)) == 1
        assert why_unsealed(shop) == ("" if before == after else "rules.yaml changed since it was sealed")


def test_a_pack_that_was_sealed_by_other_rules_is_sealed_again(
    shop: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for older in (0, seals.SEALING + 1):
        with monkeypatch.context() as other:
            other.setattr(seals, "SEALING", older)
            seals.seal(shop)
            level_times(shop)
            assert why_unsealed(shop) == ""
        assert why_unsealed(shop) == "it was sealed by other rules than this program's"
        assert ensure_sealed(shop) is not None
        assert why_unsealed(shop) == ""


def test_an_archive_compressed_otherwise_is_the_same_environment(shop: Collection) -> None:
    with Pack.open(shop.pack) as pack:
        before = pack.environment_id
    [path] = shop.warc_files()
    members = gzip.decompress(path.read_bytes()).split(b"\r\n\r\nWARC/1.1")
    texts = [members[0], *(b"WARC/1.1" + member for member in members[1:])]
    path.write_bytes(b"".join(gzip_member(text.removesuffix(b"\r\n\r\n") + b"\r\n\r\n") for text in texts))
    info = ensure_sealed(shop)
    assert info is not None
    assert info.environment_id == before


def test_a_pack_whose_archive_was_taken_away_is_served_as_it_is(shop: Collection) -> None:
    for path in shop.warc_files():
        path.unlink()
    level_times(shop)
    assert why_unsealed(shop) == ""
    places = shop.pack / "places.bin"
    places.write_bytes(places.read_bytes()[:-1])
    with pytest.raises(MalformedPack, match="places"):
        ensure_sealed(shop)
    assert len(places.read_bytes()) > 0


def test_a_pack_that_says_nothing_of_its_sources_goes_by_time(shop: Collection, tmp_path: Path) -> None:
    (shop.pack / "sources.json").unlink()
    level_times(shop)
    assert why_unsealed(shop) == ""
    by_recording(shop, tmp_path)
    sealed_at = (shop.pack / "digest").stat().st_mtime_ns
    os.utime(shop.index_file, ns=(sealed_at + 1, sealed_at + 1))
    assert why_unsealed(shop) == "index.cdxj changed since it was sealed"
