from __future__ import annotations

import dataclasses
import gc
import random
import tracemalloc
import weakref
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillweb.collections.pack import format as packformat
from stillweb.collections.pack import reader as packindex
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack, response_head
from stillweb.errors import MalformedPack, UsageError
from stillweb.matching.captures import vary_digest
from stillweb.matching.keys import request_key
from stillweb.model import Response

DIGESTED = ("manifest.json", "index.bin", "entries.bin", "digest")
GOLDEN = "52b5c37f4674bf64d1ee262e263136f3e9e7f333027130c0d699d2e736294609"
PATHS = [
    f"https://{host}{path}" for host in ("a.test", "b.test:8443") for path in ("/", "/p", "/p?q=1", "/p?q=2")
]


def _entry(method="GET", url="https://a.test/", body=b"x", **more) -> PackEntry:
    request_body = more.pop("request_body", b"")
    response = Response(more.pop("status", 200), "OK", (("Content-Type", "text/plain"),), body)
    values = {"timestamp": "20260101000000", "source": "a.warc.gz", "offset": 0} | more
    return PackEntry(request_key(method, url, "", request_body), method, url, response=response, **values)


ENTRIES = st.lists(
    st.builds(
        _entry,
        method=st.sampled_from(["GET", "POST", "DELETE"]),
        url=st.sampled_from(PATHS),
        body=st.binary(max_size=8),
        timestamp=st.sampled_from(["20260101000000", "20260101000001"]),
        offset=st.integers(0, 2),
        request_body=st.sampled_from([b"", b"1", b"2"]),
    ),
    max_size=30,
)
_RUN = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _files(pack: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(pack.iterdir())}


@given(entries=ENTRIES)
@_RUN
def test_lookup_is_a_linear_scan(entries, tmp_path):
    info = build_pack(entries, {"name": "t"}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        assert (len(pack), info.entries) == (len(entries), len(entries))
        pack.verify()
        rows = [pack.entry(row) for row in range(len(pack))]
        in_order = sorted(rows, key=lambda entry: entry.order)
        assert [entry.timestamp for entry in in_order] == sorted(entry.timestamp for entry in entries)
        keys = {entry.key for entry in entries} | {
            b"\0" * 16,
            b"\xff" * 16,
            request_key("GET", "https://c.test/"),
        }
        for key in keys:
            scanned = [entry.order for entry in in_order if entry.key == key]
            assert [rows[row].order for row in pack.lookup(key)] == scanned
            assert sorted(bytes(rows[row].body) for row in pack.lookup(key)) == sorted(
                entry.response.raw_body for entry in entries if entry.key == key
            )
        for number, entry in enumerate(in_order):
            assert entry.order == number
            assert entry.epoch == sum(before.method != "GET" for before in in_order[:number])
            assert entry.body_sha256 == sha256(entry.body).digest()
        assert info.bodies == len({entry.response.raw_body for entry in entries})


@given(entries=ENTRIES, seed=st.integers())
@_RUN
def test_order_of_arrival_does_not_matter(entries, seed, tmp_path):
    shuffled = random.Random(seed).sample(entries, len(entries))
    first = build_pack(entries, {"b": 1, "a": [2]}, tmp_path / "one")
    second = build_pack(shuffled, {"a": [2], "b": 1}, tmp_path / "two")
    assert first == second
    one, two = (_files(tmp_path / name) for name in ("one", "two"))
    assert {name: one[name] for name in DIGESTED} == {name: two[name] for name in DIGESTED}
    assert len(one["places.bin"]) == len(two["places.bin"])
    assert sorted(one.get("bodies.bin", b"")) == sorted(two.get("bodies.bin", b""))


@given(entries=ENTRIES)
@_RUN
def test_url_questions_are_answered_as_by_a_scan(entries, tmp_path):
    build_pack(entries, {}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        assert sorted(pack.urls()) == sorted({entry.url for entry in entries})
        for url in [*PATHS, "https://c.test/p"]:
            methods = tuple(sorted({entry.method for entry in entries if entry.url == url}))
            assert pack.methods_of(url) == methods
            like = {entry.url for entry in entries if entry.url.partition("?")[0] == url.partition("?")[0]}
            assert set(pack.urls_like(url)) == like
            assert len(pack.rows_of(url)) == sum(entry.url == url for entry in entries)


def test_explain(tmp_path):
    entries = [
        _entry("POST", "https://a.test/api", request_body=b"1"),
        _entry("PUT", "https://a.test/api"),
        _entry("GET", "https://a.test/s?q=1"),
        _entry("GET", "https://a.test/s?q=2"),
        _entry("GET", "http://plain.test/"),
    ]
    build_pack(entries, {}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        assert pack.explain("GET", "https://a.test/api") == "recorded with POST, PUT only"
        assert pack.explain("POST", "https://A.test:443/api") == "other body recorded"
        assert pack.explain("GET", "https://a.test/s?q=3") == "same path recorded with other query: 2"
        assert pack.explain("GET", "https://a.test/s") == "same path recorded with other query: 2"
        assert pack.explain("GET", "https://a.test/s?") == "same path recorded with other query: 2"
        assert pack.explain("GET", "https://a.test/none") == "path not recorded, of its host: 4"
        assert pack.explain("GET", "https://a.tes/api") == "host not recorded"
        assert pack.explain("GET", "https://plain.test/") == "recorded over http only, not https"


@pytest.fixture
def sealed(tmp_path):
    build_pack([_entry(url=url, body=url.encode() * 9) for url in PATHS], {"name": "t"}, tmp_path / "pack")
    return tmp_path / "pack"


def _read_all(path: Path) -> None:
    with Pack.open(path) as pack:
        for row in range(len(pack)):
            pack.entry(row)


def _flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << (at % 8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["manifest.json", "digest"])
def test_every_byte_of_the_manifest_is_guarded(sealed, name):
    original = (sealed / name).read_bytes()
    for at in range(len(original)):
        _flip(sealed / name, at)
        with pytest.raises(MalformedPack) as caught:
            Pack.open(sealed)
        assert (str(caught.value.path), caught.value.hint != "") == (
            str(sealed / ("manifest.json" if name == "digest" else name)),
            True,
        )
        (sealed / name).write_bytes(original)
    Pack.open(sealed).close()


@pytest.mark.parametrize("name", ["index.bin", "entries.bin", "places.bin", "bodies.bin"])
def test_every_byte_of_the_other_files_is_guarded(sealed, name):
    original = (sealed / name).read_bytes()
    for at in range(0, len(original), 3):
        _flip(sealed / name, at)
        with pytest.raises(MalformedPack) as caught:
            _read_all(sealed)
        assert caught.value.path == sealed / name
        assert caught.value.offset <= at
        (sealed / name).write_bytes(original)


def test_a_broken_body_is_reported_when_it_is_served_and_not_before(sealed):
    with Pack.open(sealed) as pack:
        wanted = pack.entry(0)
        at = (sealed / "bodies.bin").read_bytes().index(bytes(wanted.body))
    _flip(sealed / "bodies.bin", at)
    with Pack.open(sealed) as pack:
        with pytest.raises(MalformedPack, match=rf"bodies\.bin:{at}: body of GET .* differs from its sha256"):
            pack.entry(0)
        with pytest.raises(MalformedPack):  # the second time too
            pack.entry(0)
        assert [pack.entry(row).status for row in range(1, len(pack))] == [200] * 7
        with pytest.raises(MalformedPack):
            pack.verify()


@pytest.mark.parametrize(
    "name", ["index.bin", "entries.bin", "places.bin", "bodies.bin", "manifest.json", "digest"]
)
@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_files_cut_off_or_missing(sealed, name, how):
    file = sealed / name
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: -1 if how == "cut" else 0])
    with pytest.raises(MalformedPack):
        Pack.open(sealed)


def test_another_version_is_refused(sealed):
    text = (sealed / "manifest.json").read_bytes().replace(b'"version": 2', b'"version": 3')
    (sealed / "manifest.json").write_bytes(text)
    (sealed / "digest").write_text(sha256(text).hexdigest() + "\n")
    with pytest.raises(MalformedPack, match="version 3"):
        Pack.open(sealed)


def test_no_pack_at_all(tmp_path):
    with pytest.raises(MalformedPack, match="manifest"):
        Pack.open(tmp_path / "nowhere")


def test_views_outlive_the_pack(sealed):
    pack = Pack.open(sealed)
    entry = pack.entry(0)
    pack.close()
    assert bytes(entry.head).startswith(b"HTTP/1.1 200 OK\r\n")
    assert bytes(entry.body)


def test_an_empty_pack(tmp_path):
    build_pack([], {}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        assert (len(pack), list(pack.urls()), len(pack.lookup(b"\0" * 16))) == (0, [], 0)
        assert pack.explain("GET", "https://a.test/") == "host not recorded"
        with pytest.raises(IndexError):
            pack.entry(0)


def test_a_new_pack_replaces_the_old_one_and_leaves_no_litter(sealed):
    with Pack.open(sealed) as old:
        build_pack([_entry()], {}, sealed)
        assert bytes(old.entry(0).head)  # who has it open keeps it
    with Pack.open(sealed) as new:
        assert len(new) == 1
    assert [path.name for path in sealed.parent.iterdir()] == ["pack"]


def test_a_failed_build_leaves_the_old_pack(sealed):
    before = _files(sealed)

    def entries():
        yield _entry()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        build_pack(entries(), {}, sealed)
    with pytest.raises(UsageError):
        build_pack([dataclasses.replace(_entry(), timestamp="2026")], {}, sealed)
    assert _files(sealed) == before
    assert [path.name for path in sealed.parent.iterdir()] == ["pack"]


def test_heads_are_what_replay_sends():
    response = Response(
        404,
        "",
        (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", "3"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "keep-alive"),
            ("Proxy-Authenticate", "Basic"),
            ("NEL", "{}"),
            ("alt-svc", 'h3=":443"'),
            ("Stillweb-MISS", "0-1"),
            ("Content-Encoding", "gzip"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("X-Folded", "one\r\n two\r\nInjected: yes"),
            ("bad name", "x"),
            ("X-Latin", "\xe9"),
            ("X-Wide", "\u20ac"),
        ),
    )
    assert response_head(response) == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html; charset=utf-8\r\nContent-Encoding: gzip\r\n"
        b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Folded: one two Injected: yes\r\nX-Latin: \xe9\r\n"
        b"X-Wide: \xe2\x82\xac\r\n"
    )
    assert response_head(Response(799)) == b"HTTP/1.1 799 \r\n"


def test_opening_makes_no_object_per_entry(tmp_path):
    traced = []
    for count in (10, 3000):
        build_pack(
            (_entry(url=f"https://a.test/{n}", offset=n) for n in range(count)), {}, tmp_path / str(count)
        )
        Pack.open(tmp_path / str(count)).close()
        tracemalloc.start()
        with Pack.open(tmp_path / str(count)):
            traced.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert traced[1] < traced[0] + 4096


def test_questions_about_a_busy_url_do_not_read_all_its_rows(tmp_path, monkeypatch):
    many = [_entry(url="https://a.test/poll", body=b"%d" % n, offset=n) for n in range(2000)]
    build_pack([*many, _entry("POST", "https://a.test/poll")], {}, tmp_path / "pack")
    reads = []
    for name in ("site_at", "scheme_and_method_at"):
        original = getattr(packformat, name)
        monkeypatch.setattr(packformat, name, lambda *at, read=original: (reads.append(at), read(*at))[1])
    with Pack.open(tmp_path / "pack") as pack:
        assert pack.methods_of("https://a.test/poll") == ("GET", "POST")
        assert pack.explain("PUT", "https://a.test/poll") == "recorded with GET, POST only"
    assert 0 < len(reads) < 200


def test_a_body_behind_an_empty_one_is_verified_too(tmp_path):
    redirect = _entry(url="https://a.test/old", body=b"", status=302)
    build_pack([redirect, _entry(body=b"behind", offset=1)], {}, tmp_path / "pack")
    _flip(tmp_path / "pack" / "bodies.bin", -1)
    with Pack.open(tmp_path / "pack") as pack:
        rows = {len(pack.entry(row).body): row for row in pack.lookup(redirect.key)}
        assert list(rows) == [0]
        with pytest.raises(MalformedPack, match="differs from its sha256"):
            pack.entry(pack.lookup(_entry().key)[0])


def test_an_entry_is_found_under_its_aliases_too(tmp_path):
    shared, own = b"\x80" * 16, b"\x00" * 15 + b"\x01"
    early = _entry(url="https://a.test/?t=1", aliases=(shared, own, shared), timestamp="20260101000000")
    late = _entry(url="https://a.test/?t=2", aliases=(shared,), timestamp="20260101000001")
    info = build_pack([late, early, _entry(timestamp="20250101000000")], {}, tmp_path / "pack")
    assert info.entries == 3
    with Pack.open(tmp_path / "pack") as pack:
        assert len(pack) == 3
        assert list(pack.lookup(shared)) == [1, 2]
        assert list(pack.lookup(own)) == list(pack.lookup(early.key)) == [1]
        assert [pack.entry(row).url[-3:] for row in pack.lookup(shared)] == ["t=1", "t=2"]
        assert [pack.entry(row).order for row in range(3)] == [0, 1, 2]
        assert pack.rows_of("https://a.test/?t=1") == [1]
        pack.verify()


def test_an_entry_keeps_what_it_varies_by(tmp_path):
    varies = (("accept-language", vary_digest("de")), ("authorization", vary_digest("")))
    build_pack([_entry(varies=varies), _entry(url="https://a.test/p")], {}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        found = {pack.entry(row).url: pack.entry(row).varies for row in range(2)}
        assert found == {"https://a.test/": varies, "https://a.test/p": ()}
    assert vary_digest(" de ") == vary_digest("de") != vary_digest("")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of the index so small that a test's index has many."""
    monkeypatch.setattr(packformat, "BLOCK", 64)
    monkeypatch.setattr(packindex, "BLOCK", 64)
    monkeypatch.setattr(packindex, "BLOCK_BITS", 6)


def test_a_block_is_compared_when_it_is_touched_and_not_before(tmp_path, small_blocks):
    entries = [_entry(url=f"https://a.test/{n}", offset=n, body=b"%d" % n) for n in range(300)]
    build_pack(entries, {}, tmp_path / "pack")
    index = tmp_path / "pack" / "index.bin"
    original = index.read_bytes()
    detected, quiet = [], 0
    for at in range(packformat.INDEX_HEADER.size, len(original), 211):
        _flip(index, at)
        with Pack.open(tmp_path / "pack") as pack:
            for entry in entries[::30]:
                try:
                    quiet += [pack.entry(row).url for row in pack.lookup(entry.key)] == [entry.url]
                except MalformedPack as error:
                    detected.append(error.path == index and error.offset <= at < error.offset + 64)
            with pytest.raises(MalformedPack):
                pack.verify()
        index.write_bytes(original)
    assert detected
    assert all(detected)
    assert quiet == len(range(packformat.INDEX_HEADER.size, len(original), 211)) * 10 - len(detected)
    assert quiet > 10 * len(detected)


@given(entries=ENTRIES)
@_RUN
def test_lookups_cross_blocks(entries, tmp_path, small_blocks):
    build_pack(entries, {}, tmp_path / "pack")
    with Pack.open(tmp_path / "pack") as pack:
        for entry in entries:
            rows = pack.lookup(entry.key)
            assert len(rows) == sum(other.key == entry.key for other in entries)
            assert all(pack.entry(row).key == entry.key for row in rows)


def test_the_format_is_what_its_version_says(tmp_path):
    """A change to the bytes of a pack must raise `VERSION`, or packs of the old form are misread."""
    fields = (("Content-Type", "text/html"), ("Vary", "Cookie"))
    entries = [
        PackEntry(
            bytes([n]) * 16,
            ("GET", "POST")[n % 2],
            f"https://a.test/{n}",
            f"2026010100000{n}",
            Response(200, "OK", fields, b"body %d" % (n // 2)),
            aliases=(bytes([n, 255]) * 8,),
            varies=(("cookie", vary_digest(str(n))),),
        )
        for n in range(5)
    ]
    info = build_pack(entries, {"name": "golden"}, tmp_path / "pack")
    assert (packformat.VERSION, info.environment_id) == (2, GOLDEN)


def test_a_closed_pack_is_gone_without_the_collector(tmp_path):
    build_pack([_entry()], {"name": "t"}, tmp_path / "pack")
    gc.disable()
    try:
        pack = Pack.open(tmp_path / "pack")
        assert bytes(pack.entry(0).body) == b"x"
        pack.close()
        with pytest.raises(ValueError, match="row 0 of a pack that is closed"):
            pack.entry(0)
        there = weakref.ref(pack)
        del pack
        assert there() is None
    finally:
        gc.enable()
