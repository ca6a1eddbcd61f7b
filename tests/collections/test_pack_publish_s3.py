"""Packs by digest on S3, spoken by s3fs to a server of moto's; skipped where they are not installed."""

from __future__ import annotations

import fsspec
import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.cache import PackStore
from stillweb.collections.pack.publish import FILES, PackRemote
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionNotFound, PeerError
from stillweb.model import Exchange, Request, Response

pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")


@pytest.fixture
def files(monkeypatch):
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    _, port = running.get_host_and_port()
    named = {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**named, "ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    opened = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    opened.mkdir("bucket")
    yield opened
    opened.rm("bucket", recursive=True)  # what the server holds is the process's
    running.stop()


@pytest.fixture
def collection(tmp_path):
    made = Collection.create(tmp_path / "collections", "shop")
    with CollectionWriter(made) as writer:
        for number in range(3):
            response = Response(200, "OK", (("Content-Type", "text/plain"),), b"%d" % number * 10_000)
            writer.write(Exchange(Request("GET", f"https://a.test/{number}"), response, "20260101000000"))
    seal(made)
    return made


class Broke(BaseException):
    """As a kill is."""


def test_a_pack_goes_there_and_comes_back(files, collection, tmp_path):
    depot = PackRemote("s3://bucket/packs")
    pushed = depot.push(collection.pack, "shop")
    assert not depot.push(collection.pack, "shop").written
    assert depot.names() == {"shop": pushed.environment_id}
    there = {path.rpartition("/")[2] for path in files.find(f"bucket/packs/packs/{pushed.environment_id}")}
    assert there == set(FILES)
    with PackStore(tmp_path / "store").hold(depot.find("shop"), depot) as folder, Pack.open(folder) as pack:
        pack.verify()
        assert pack.environment_id == pushed.environment_id


def test_a_push_that_breaks_off_shows_nothing(files, collection, monkeypatch):
    seen = Pack.entry

    def breaks(self, row):
        if row == 2:
            raise Broke
        return seen(self, row)

    monkeypatch.setattr(Pack, "entry", breaks)
    with pytest.raises(Broke):
        PackRemote("s3://bucket/packs").push(collection.pack, "shop")
    assert files.find("bucket") == []
    with pytest.raises(CollectionNotFound, match="no pack is named 'shop'"):
        PackRemote("s3://bucket/packs").find("shop")


def test_what_s3_refuses_is_reported(files, collection, monkeypatch):
    with pytest.raises(PeerError, match="bucket does not exist"):
        PackRemote("s3://nosuch/packs").push(collection.pack, "shop")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(PeerError, match="s3://bucket/packs: cannot be read"):
        PackRemote("s3://bucket/packs").find("shop")
