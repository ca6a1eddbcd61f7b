"""Packs by digest at a URL and in a machine's store: the same environment, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import fsspec
import pytest
from click.testing import CliRunner

from stillweb.cli.collections.commands import collections
from stillweb.collections.check import check, repair
from stillweb.collections.layout import Collection, list_collections
from stillweb.collections.learn.rules import learn_within
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack import cache as packstore
from stillweb.collections.pack.cache import PackStore, place
from stillweb.collections.pack.publish import FILES, PackRemote
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.versions import keep_version
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import (
    CollectionError,
    CollectionExists,
    CollectionNotFound,
    MalformedPack,
    MalformedWacz,
    PeerError,
    UsageError,
)
from stillweb.model import Exchange, Page, Request, Response
from stillweb.replay.sealing import ensure_sealed, why_unsealed


def recorded(root, name="shop", *, pages=4, size=2000):
    """Write and seal a collection: some bodies twice, one empty, a mutation between two answers."""
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for number in range(pages):
            for method, path, body in (
                ("GET", f"/{number}", f"page {number} of {name} ".encode() * (size // 10)),
                ("GET", f"/same{number}", b"shared body"),
                ("POST", "/cart", b""),
            ):
                response = Response(200, "OK", (("Content-Type", "text/plain"),), body)
                writer.write(
                    Exchange(Request(method, f"https://{name}.test{path}"), response, "20260203040506")
                )
    profile = {"viewport": [800, 600], "locale": "en-GB"}
    collection.write_manifest(Manifest(name=name, recorded_at="20260203040506", seed=9, profile=profile))
    return collection, seal(collection).environment_id


@pytest.fixture
def memory():
    """A depot in this program's memory, as a store of objects is one."""
    files = fsspec.filesystem("memory")
    yield "memory://depot/packs"
    if files.exists("/depot"):
        files.rm("/depot", recursive=True)


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path, memory):
    return memory if request.param == "memory" else f"file://{tmp_path}/share/packs"


def store_at(tmp_path, **given):
    return PackStore(tmp_path / "store", **given)


def answers(pack):
    return [
        (each.key, each.url, each.epoch, bytes(each.head), bytes(each.body))
        for each in map(pack.entry, range(len(pack)))
    ]


# --- the way of a pack -----------------------------------------------------------------------------


def test_a_pulled_pack_is_the_same_environment(tmp_path, url):
    collection, environment_id = recorded(tmp_path / "here")
    recorded(tmp_path / "here", "other")  # its bodies are in the same store
    pushed = PackRemote(url).push(collection.pack, "shop")
    assert (pushed.environment_id, pushed.written) == (environment_id, True)
    assert PackRemote(url).find("shop") == environment_id
    with store_at(tmp_path).hold(environment_id, PackRemote(url)) as folder, Pack.open(folder) as pulled:
        pulled.verify()
        with Pack.open(collection.pack) as sealed:
            assert answers(pulled) == answers(sealed)
            assert pulled.manifest == sealed.manifest
        assert pulled.environment_id == environment_id
        assert {path.name for path in folder.iterdir()} == set(FILES)


def test_to_push_again_writes_nothing_and_moves_the_name(tmp_path, memory):
    collection, first = recorded(tmp_path / "here")
    depot = PackRemote(memory)
    assert depot.push(collection.pack, "shop").written
    assert not depot.push(collection.pack, "shop").written
    with CollectionWriter(collection) as writer:
        writer.write(
            Exchange(
                Request("GET", "https://shop.test/new"), Response(200, "OK", (), b"new"), "20260203040507"
            )
        )
    second = seal(collection).environment_id
    assert depot.push(collection.pack, "shop").written
    assert first != second
    assert (depot.find("shop"), depot.find(first), depot.names()) == (second, first, {"shop": second})


def test_what_is_written_depends_on_the_pack_alone(tmp_path):
    one, environment_id = recorded(tmp_path / "one")
    recorded(tmp_path / "two", "other")
    two, same = recorded(tmp_path / "two")  # some of its bodies are in a segment of the other
    assert same == environment_id
    for collection, share in ((one, "a"), (two, "b")):
        PackRemote(f"file://{tmp_path}/{share}").push(collection.pack)
    for name in FILES:
        a, b = (tmp_path / share / "packs" / environment_id / name for share in "ab")
        assert a.read_bytes() == b.read_bytes()


class Broke(BaseException):
    """As a kill is."""


@pytest.mark.parametrize("at", [*FILES])
def test_a_push_that_breaks_off_leaves_nothing_to_be_taken(tmp_path, url, at, monkeypatch):
    collection, environment_id = recorded(tmp_path / "here")
    depot = PackRemote(url)
    real = depot._writing

    def breaks(path):
        if path.endswith(f"/{at}"):
            raise Broke
        return real(path)

    monkeypatch.setattr(depot, "_writing", breaks)
    with pytest.raises(Broke):
        depot.push(collection.pack, "shop")
    with pytest.raises(CollectionNotFound, match="no pack is named 'shop'"):
        PackRemote(url).find("shop")
    begun = at != "bodies.bin"  # the first one
    with pytest.raises(CollectionNotFound, match="was not completed" if begun else "is not at"):
        PackRemote(url).find(environment_id)
    assert PackRemote(url).push(collection.pack, "shop").written
    with store_at(tmp_path).hold(PackRemote(url).find("shop"), PackRemote(url)):
        pass


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_breaks_off_is_never_seen(tmp_path, url, again, monkeypatch):
    collection, environment_id = recorded(tmp_path / "here")
    if again:
        PackRemote(url).push(collection.pack)
    seen = Pack.entry

    def breaks(self, row):
        if row == 3:
            raise Broke
        return seen(self, row)

    monkeypatch.setattr(Pack, "entry", breaks)
    with pytest.raises(Broke):
        PackRemote(url).push(collection.pack, again=again)
    files, root = fsspec.url_to_fs(url)
    assert files.exists(f"{root}/packs/{environment_id}/bodies.bin") is again
    monkeypatch.undo()
    assert [path for path in files.find(root) if path.endswith(".part")] == []
    if again:
        with store_at(tmp_path).hold(environment_id, PackRemote(url)):
            pass


# --- what is wrong there ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES])
@pytest.mark.parametrize("how", ["flipped", "short", "gone"])
def test_what_is_broken_is_reported_by_file_and_never_stored(tmp_path, name, how):
    collection, environment_id = recorded(tmp_path / "here")
    depot = PackRemote(f"file://{tmp_path}/share")
    depot.push(collection.pack)
    file = tmp_path / "share" / "packs" / environment_id / name
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    match how:
        case "flipped":
            file.write_bytes(content)
        case "short":
            file.write_bytes(content[:-3])
        case "gone":
            file.unlink()
    store = store_at(tmp_path)
    error = CollectionNotFound if name == "digest" else MalformedPack
    with pytest.raises(error) as raised, store.hold(environment_id, depot):
        pass
    if name != "digest":
        assert f"file://{tmp_path}/share/packs/{environment_id}/" in str(raised.value)
        assert "--again" in raised.value.hint
        if how == "gone" or name == "manifest.json":
            assert str(raised.value).partition(": ")[0].endswith(name)
    assert store.packs() == {}
    assert list(store.root.glob(".pull-*")) == []
    depot.push(collection.pack, again=True)
    with store.hold(environment_id, depot) as folder, Pack.open(folder) as pack:
        pack.verify()


def test_a_pack_under_a_wrong_identifier_is_not_taken(tmp_path):
    collection, environment_id = recorded(tmp_path / "here")
    PackRemote(f"file://{tmp_path}/share").push(collection.pack)
    wrong = "0" * 64
    folder = tmp_path / "share" / "packs" / environment_id
    (folder / "digest").write_text(wrong + "\n")
    folder.rename(folder.with_name(wrong))
    taking = store_at(tmp_path).hold(wrong, PackRemote(f"file://{tmp_path}/share"))
    with pytest.raises(MalformedPack, match=f"its sha256 is {environment_id}") as raised, taking:
        pass
    assert "manifest.json: differs from its digest" in str(raised.value)


def test_urls_that_lead_nowhere_are_reported(tmp_path):
    collection, _ = recorded(tmp_path / "here")
    with pytest.raises(UsageError, match="nosuch"):
        PackRemote("nosuch://bucket/packs")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PeerError, match="cannot be"):
        PackRemote(f"file://{tmp_path}/file/packs").push(collection.pack, "shop")
    with pytest.raises(CollectionNotFound, match="no pack is named 'shop'") as raised:
        PackRemote(f"file://{tmp_path}/nowhere").find("shop")
    assert "collections push" in raised.value.hint


# --- the store -------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    """A depot of three packs of a size, their identifiers, and what one takes of the store."""
    depot = PackRemote(f"file://{tmp_path}/share")
    made = [recorded(tmp_path / "here", name, size=200_000) for name in ("one", "two", "six")]
    for collection, _ in made:
        depot.push(collection.pack, collection.name)
    ids = [environment_id for _, environment_id in made]
    return depot, ids, max(sum(depot.sizes(each).values()) for each in ids)


def test_the_pack_used_longest_ago_goes_and_none_in_use(tmp_path, three):
    depot, (one, two, six), size = three
    store = store_at(tmp_path, gib=2.5 * size / 2**30)
    with store.hold(one, depot):
        with store.hold(two, depot):
            pass
        with store.hold(six, depot):  # `one` is older, and in use
            assert set(store.packs()) == {one, six}
            with (
                pytest.raises(CollectionError, match="taken by packs in use") as raised,
                store.hold(two, depot),
            ):
                pass
            assert "--store-gib" in raised.value.hint
    with store.hold(two, depot):
        assert list(store.packs()) == [six, two]
    with store.hold(one, depot), store.hold(two):  # without a depot: it is here
        assert set(store.packs()) == {one, two}
    with pytest.raises(CollectionError, match="has no pack"), store.hold(six):
        pass


def test_what_does_not_fit_at_all_is_refused(tmp_path, three):
    depot, (one, *_), size = three
    taking = store_at(tmp_path, gib=0.5 * size / 2**30).hold(one, depot)
    with pytest.raises(CollectionError, match="--store-gib is less"), taking:
        pass


def test_a_disk_that_is_full_is_reported(tmp_path, three, monkeypatch):
    depot, (one, *_), _ = three
    monkeypatch.setattr(packstore.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CollectionError, match="1,000 are free"), store_at(tmp_path).hold(one, depot):
        pass


def test_a_copy_that_does_not_open_is_fetched_anew(tmp_path, three):
    depot, (one, *_), _ = three
    store = store_at(tmp_path)
    with store.hold(one, depot) as folder:
        (folder / "index.bin").write_bytes(b"")
    with store.hold(one, depot) as folder, Pack.open(folder) as pack:
        pack.verify()


FETCH = """
import sys
from pathlib import Path
from stillweb.collections.pack.cache import PackStore
from stillweb.collections.pack.publish import PackRemote
store, depot = PackStore(Path(sys.argv[1])), PackRemote(sys.argv[2])
read = []
print("ready", flush=True)
sys.stdin.readline()
with store.hold(sys.argv[3], depot, on_progress=lambda done, total: read.append(done)) as folder:
    print(len(read), folder, flush=True)
    sys.stdin.readline()
"""


def fetching(store, url, environment_id):
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, str(store), url, environment_id],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_many_programs_that_pull_at_once_fetch_once(tmp_path, three):
    depot, (one, two, _), size = three
    with ExitStack() as stack:
        programs = [stack.enter_context(fetching(tmp_path / "store", depot.url, one)) for _ in range(3)]
        stack.callback(lambda: [program.kill() for program in programs])
        for program in programs:
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            program.stdin.write("\n")
            program.stdin.flush()
        outputs = [program.stdout.readline().split() for program in programs]
        assert sorted(int(pieces) > 0 for pieces, _ in outputs) == [False, False, True]
        store = store_at(tmp_path, gib=1.5 * size / 2**30)
        with pytest.raises(CollectionError, match="in use"), store.hold(two, depot):
            pass
        for program in programs[1:]:
            program.communicate("\n")
        programs[0].kill()  # whose lock goes with it
        programs[0].communicate()
        with store.hold(two, depot):
            assert list(store.packs()) == [two]


@pytest.mark.parametrize("next_one", [0, 1])
def test_what_a_killed_pull_left_is_swept(tmp_path, three, next_one):
    depot, packs, _ = three
    store = store_at(tmp_path)
    left = store.root / f".pull-{packs[0]}" / "pack"
    left.mkdir(parents=True)
    (left / "bodies.bin").write_bytes(b"half")
    with store.hold(packs[next_one], depot):
        assert not left.exists()
    assert list(store.packs()) == [packs[next_one]]


# --- a collection that is a pack alone -------------------------------------------------------------


@pytest.fixture
def pulled(tmp_path, memory):
    collection, environment_id = recorded(tmp_path / "here")
    depot = PackRemote(memory)
    depot.push(collection.pack, "shop")
    with store_at(tmp_path).hold(environment_id, depot) as folder:
        return place(folder, tmp_path / "there", "shop"), collection


def test_a_pack_alone_is_a_collection_that_is_replayed_and_no_more(tmp_path, pulled):
    collection, original = pulled
    assert [each.name for each in list_collections(tmp_path / "there")] == ["shop"]
    collection = Collection.open(tmp_path / "there", "shop")
    assert why_unsealed(collection) == ""
    assert ensure_sealed(collection) is None
    manifest, recorded_one = collection.manifest(), original.manifest()
    for name in ("name", "recorded_at", "seed", "profile", "state"):
        assert getattr(manifest, name) == getattr(recorded_one, name)
    for refused in (seal, keep_version, learn_within, repair):
        with pytest.raises(CollectionError, match="consists of a pack only") as raised:
            refused(collection)
        assert "collections push" in raised.value.hint
    packstore.shutil.rmtree(tmp_path / "store")
    with Pack.open(collection.pack) as pack:
        pack.verify()


async def test_a_pack_alone_is_served_as_the_collection_was(pulled, tmp_path):
    from stillweb.certs import CertAuthority
    from stillweb.replay import ReplayClient, ReplayOptions, serve

    ca = CertAuthority.init(tmp_path / "ca")
    installed = []
    for collection in pulled:
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
            async with ReplayClient(server.url) as client:
                info = await client.info()
            reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
            writer.write(b"GET http://shop.test/2 HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n")
            installed.append((info.collections, await reader.read()))
            writer.close()
            manifest = info.manifests["shop"]
            installed[-1] += (manifest["seed"], manifest["recorded_at"], manifest["profile"])
    assert installed[0] == installed[1]
    assert b"page 2 of shop" in installed[0][1]


def test_what_is_placed_replaces_a_pack_and_nothing_else(tmp_path, pulled, memory):
    collection, _ = pulled
    other, environment_id = recorded(tmp_path / "other", "shop", pages=2)
    PackRemote(memory).push(other.pack)
    with store_at(tmp_path).hold(environment_id, PackRemote(memory)) as folder:
        assert place(folder, tmp_path / "there", "shop").path == collection.path
        with pytest.raises(CollectionExists, match="with its recording"):
            place(folder, tmp_path / "here", "shop")
    with Pack.open(collection.pack) as pack:
        assert pack.environment_id == environment_id
    assert [path.name for path in collection.path.iterdir()] == ["pack"]


@pytest.mark.parametrize("damage", ["", "cut"])
def test_what_belongs_to_a_collection_goes_with_its_pack(tmp_path, url, damage):
    collection, environment_id = recorded(tmp_path / "here", "shop")
    collection.write_pages([Page("http://shop.test/1", "20260101000000", "One")])
    for name in (
        "tasks/tasks.yaml",
        "traces/buy.jsonl",
        "baseline/page-1/text.txt",
        "certificate-exact.json",
    ):
        (collection.path / name).parent.mkdir(parents=True, exist_ok=True)
        (collection.path / name).write_text(name)
    remote = PackRemote(url)
    remote.push(collection.pack, "shop")
    with store_at(tmp_path).hold(environment_id, remote) as folder:
        there = place(folder, tmp_path / "there", "shop")
    assert remote.pull_extras(environment_id, there.path) == 0  # pushed by an older version
    remote.push_extras(environment_id, collection)
    if damage:
        path = f"{remote._root}/packs/{environment_id}/extras.zip"
        remote._files.pipe_file(path, remote._files.cat_file(path)[:-30])
        with pytest.raises(MalformedWacz, match="not a readable ZIP"):
            remote.pull_extras(environment_id, there.path)
        return
    assert remote.pull_extras(environment_id, there.path) == 5
    assert (there.path / "baseline/page-1/text.txt").read_text() == "baseline/page-1/text.txt"
    assert there.page_list() == collection.page_list()
    assert there.is_only_pack
    assert check(there) == []
    remote.push_extras(environment_id, there)
    assert PackRemote(url).pull_extras(environment_id, there.path) == 5


# --- the command line ------------------------------------------------------------------------------


def test_push_and_pull_by_the_command_line(tmp_path):
    recorded(tmp_path / "here")
    url, store = f"file://{tmp_path}/share", str(tmp_path / "store")

    def run(*words, root="there"):
        words = [*words, "--collections", str(tmp_path / root)]
        return CliRunner().invoke(collections, words, catch_exceptions=False).stdout

    first, second = (json.loads(run("push", "shop", url, "--json", root="here")) for _ in range(2))
    environment_id = first["environment_id"]
    assert (first["written"], second["written"]) == (True, False)
    assert run("pull", "shop", url, "--store", store).strip() == environment_id
    copy = json.loads(run("pull", environment_id, url, "-c", "copy", "--store", store, "--json"))
    assert (copy["name"], copy["environment_id"]) == ("copy", environment_id)
    rows = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert rows.keys() == {"copy", "shop"}
    assert (rows["shop"]["captures"], rows["shop"]["sealed"]) == (12, True)
    assert json.loads(run("check", "shop", "--json")) == []
    with pytest.raises(CollectionError, match="consists of a pack only"):
        run("seal", "shop")
    with pytest.raises(CollectionNotFound, match="no pack is named 'nothing'"):
        run("pull", "nothing", url, "--store", store)
