"""Secrets through the recording proxy, from a site that sends them late, and over several runs."""

from __future__ import annotations

import gzip
import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.warc.reader import read_records
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.files import write_atomically
from stillweb.matching.placeholders import key_file
from stillweb.model import header
from stillweb.record.options import SecretsOptions
from stillweb.record.proxy.proxy import recording_proxy

TOKEN = "zZ9yY8xX7wW6vV5uU4tT3"
SID = "ab12CD34ef56gh78IJ90"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@asynccontextmanager
async def recorded(collection: Collection, ca, options):
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options) as recording,
            httpx.AsyncClient(proxy=recording.url, verify=trusted, timeout=20) as client,
        ):
            yield client


@pytest.fixture
def collection(tmp_path) -> Collection:
    return Collection.create(tmp_path / "collections", "site")


def holds(folder: Path, text: str) -> list[str]:
    """Return where a text is to be found in a folder, bodies decoded."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".gz" and path.parent.name == "archive":
            for record in read_records(path):
                plain = repr(record.headers).encode() + record.block
                at = record.block.find(b"\x1f\x8b")
                plain += gzip.decompress(record.block[at:]) if at >= 0 else b""
                found += [f"{path.name}:{record.offset}"] if text.encode() in plain else []
        elif path.is_file():
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found += [str(path)] if text.encode() in content else []
    return found


async def test_what_was_written_before_it_was_known_is_gone_over(collection, ca, site):
    """A token in a script and in a link, where it is unknown as one; then it is sent as a token."""
    script = f"setup('{TOKEN}')".encode()
    packed = gzip.compress(script, mtime=0)
    site.page("/", f"<a href='/x?v={TOKEN}'>x</a>")
    site.page("/x", "there" * 400)
    site.page("/api", "ok")
    site.answers["/a.js"] = replace(
        site.answers["/"], body=packed, type="text/javascript", headers=(("Content-Encoding", "gzip"),)
    )
    async with recorded(collection, ca, site.options) as client:
        for path in ("/", "/a.js", f"/x?v={TOKEN}", f"/x?v={TOKEN}"):
            assert (await client.get(f"https://site.test{path}")).status_code == 200
        write_atomically(
            collection.pages / "pages.jsonl", json.dumps({"url": f"https://site.test/x?v={TOKEN}"}).encode()
        )
        picture = collection.baseline / "p1" / "dom.txt.gz"
        write_atomically(picture, gzip.compress(f"[data-x={TOKEN}]".encode()))
        assert holds(collection.path, TOKEN)
        await client.get("https://site.test/api", headers={"Authorization": f"Bearer {TOKEN}"})
    assert holds(collection.path, TOKEN) == []
    assert check(collection) == []
    found = {each.url: collection.read_capture(each) for each in collection.captures()}
    api = found["https://site.test/api"]
    placeholder = header(api.request.headers, "authorization").removeprefix("Bearer ")
    assert len(placeholder) == len(TOKEN)
    assert found[f"https://site.test/x?v={placeholder}"].response.raw_body.startswith(b"<!doctype html>")
    body = gzip.decompress(found["https://site.test/a.js"].response.raw_body)
    assert body == f"setup('{placeholder}')".encode()
    assert placeholder in gzip.decompress(picture.read_bytes()).decode()
    assert [record.type for path in collection.warc_files() for record in read_records(path)].count(
        "revisit"
    ) == 1


async def test_runs_that_add_to_a_recording_draw_the_same_and_so_does_each_time(collection, ca, site):
    site.page("/", "hi", headers=(("Set-Cookie", f"sid={SID}; HttpOnly"),))
    site.page("/login", "hi")
    for _ in range(2):
        async with recorded(collection, ca, replace(site.options, warc_size=1)) as client:
            for _ in range(2):
                await client.get("https://site.test/")
                await client.post("https://site.test/login", content=b"user=ann&password=demo", headers=FORM)
    bodies, cookies = set(), set()
    for capture in collection.captures():
        found = collection.read_capture(capture)
        bodies.add(found.request.raw_body)
        cookies |= {header(found.response.headers, "set-cookie"), header(found.request.headers, "cookie")}
    assert len(bodies - {b""}) == 1
    assert len({each.partition(";")[0] for each in cookies - {""}}) == 1
    assert len(collection.warc_files()) == 8
    assert holds(collection.path, SID) == holds(collection.path, "password=demo") == []
    assert key_file(collection.root, collection.name).stat().st_mode & 0o777 == 0o600
    collection.write_manifest(collection.manifest())
    [password] = [row for row in collection.manifest().redactions if row["kind"] == "password"]
    assert (password["count"], len(password["placeholders"])) == (4, 1)


async def test_stored_secrets_are_stored_and_said_to_be(collection, ca, site):
    site.page("/", "hi", headers=(("Set-Cookie", f"sid={SID}; HttpOnly"),))
    options = replace(site.options, secrets=SecretsOptions(keep=True))
    async with recorded(collection, ca, options) as client:
        await client.get("https://site.test/")
    assert holds(collection.path, SID)
    assert not key_file(collection.root, collection.name).exists()
    collection.write_manifest(collection.manifest())
    assert [row["kind"] for row in collection.manifest().redactions] == ["kept"]


async def test_given_secrets_are_known_before_the_first_request(collection, ca, site):
    site.page("/", f"your key: {TOKEN}")
    options = replace(site.options, secrets=SecretsOptions(given=(TOKEN,)))
    async with recorded(collection, ca, options) as client:
        response = await client.get("https://site.test/")
    assert TOKEN in response.text  # who records sees what the site says
    assert holds(collection.path, TOKEN) == []
