"""An export holds the whole collection, and programs that others wrote read it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
import platformdirs
import pytest
from playwright.async_api import async_playwright, expect

from stillweb.browser.launch import find_browser
from stillweb.collections.baselines import RecordedResponse, write_baseline
from stillweb.collections.check import check
from stillweb.collections.export import export
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import ProgramNotFound
from stillweb.model import Exchange, Request, Response
from stillweb.model import Page as RecordedPage
from stillweb.polling import poll
from stillweb.replay.pywb.process import find_pywb

HTML = (("Content-Type", "text/html; charset=utf-8"),)
SITE = "https://shop.example/"
RULES = "version: 1\nvolatile:\n  - {where: query, name: t, shape: seconds}\n"


def _page(title: str, body: str) -> Response:
    text = f"<!doctype html><head><title>{title}</title><style>p {{color: red}}</style></head>{body}"
    return Response(200, "OK", HTML, text.encode())


@pytest.fixture(scope="session")
def written_shop(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    collection = Collection.create(tmp_path_factory.mktemp("export"), "shop")
    with CollectionWriter(collection) as writer:
        home = _page(
            "Shop", "<p>Kettles and <b>teapots</b><script>hidden()</script><p><a href=/about>About</a>"
        )
        writer.write(Exchange(Request("GET", SITE), home, "20260101000003"))
        about = _page("About", "<p>We sell porcelain since 1908")
        writer.write(Exchange(Request("GET", SITE + "about"), about, "20260101000007"))
        for number in range(698):
            text = Response(200, "OK", (("Content-Type", "text/plain"),), b"%d" % number)
            writer.write(Exchange(Request("GET", f"{SITE}n/{number:03}"), text, "20260101000010"))
    pages = [
        RecordedPage(SITE, "20260101000001", "Shop", "page-0001", baseline="page-0001"),
        RecordedPage(SITE + "about", "20260101000005", "About"),
    ]
    collection.write_pages(pages)
    texts = {"text": "Kettles of copper", "axtree": "main", "dom": "<p>"}
    write_baseline(collection.baseline / "page-0001", b"PNG", texts, [], RecordedResponse(url=SITE))
    (collection.path / "rules.yaml").write_text(RULES)
    (collection.path / "traces").mkdir()
    (collection.path / "traces" / "buy.jsonl").write_text("{}\n")
    (collection.path / "certificate-clock.json").write_text('{"level": "clock"}')
    (collection.path / "notes.txt").write_text("stays here")
    return collection


@pytest.fixture
def shop(tmp_path: Path, written_shop: Collection) -> Collection:
    """A collection with 700 captures, two pages, one of them with a baseline, and files beside them."""
    shutil.copytree(written_shop.path, tmp_path / "root" / "shop")
    return Collection.open(tmp_path / "root", "shop")


def _lines(path: Path, member: str) -> list[dict[str, object]]:
    with zipfile.ZipFile(path) as archive:
        return [json.loads(line) for line in archive.read(member).splitlines()]


def test_no_member_has_a_zip64_field(tmp_path: Path, shop: Collection) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            local = content[info.header_offset : info.header_offset + 30]
            assert int.from_bytes(local[28:30], "little") == 0, f"{info.filename} has an extra field"
            assert int.from_bytes(local[4:6], "little") == 20


def test_a_har_lists_each_page_that_has_an_entry_once(tmp_path: Path, shop: Collection) -> None:
    """Readers of HARs (haralyzer) refuse a page that no entry names."""
    unrecorded = RecordedPage("file:///provenance.html", "20260101000009", "Provenance")
    again = RecordedPage(SITE + "about", "20260101000009", "About, again")
    shop.write_pages([*shop.page_list(), unrecorded, again])
    log = json.loads(export(shop, tmp_path / "shop.har").read_text("utf-8"))["log"]
    assert [page["title"] for page in log["pages"]] == ["Shop", "About"]
    assert [page["id"] for page in log["pages"]] == [
        each["pageref"] for each in log["entries"] if "pageref" in each
    ]
    # The schema of HAR 1.2 permits an address of either version, or none (har-validator refuses "").
    assert not any("serverIPAddress" in each for each in log["entries"])


def test_the_index_is_compressed_in_blocks_that_its_idx_names(tmp_path: Path, shop: Collection) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    with zipfile.ZipFile(path) as archive:
        packed = archive.read("indexes/index.cdx.gz")
        meta, *blocks = archive.read("indexes/index.idx").decode().splitlines()
        assert "indexes/index.cdxj" not in archive.namelist()
    assert gzip.decompress(packed) == shop.index_file.read_bytes()
    assert meta == '!meta 0 {"format": "cdxj-gzip-1.0", "filename": "index.cdx.gz"}'
    assert len(blocks) == 3
    for block in blocks:
        urlkey, timestamp, text = block.split(" ", 2)
        place = json.loads(text)
        member = packed[place["offset"] : place["offset"] + place["length"]]
        assert gzip.decompress(member).decode().startswith(f"{urlkey} {timestamp} ")
        assert place["digest"] == f"sha256:{hashlib.sha256(member).hexdigest()}"


def test_pages_have_their_text_and_the_time_of_their_record(tmp_path: Path, shop: Collection) -> None:
    head, home, about = _lines(export(shop, tmp_path / "shop.wacz"), "pages/pages.jsonl")
    assert head["hasText"] is True
    assert (home["ts"], home["text"]) == ("2026-01-01T00:00:03Z", "Kettles of copper")
    assert (about["ts"], about["text"]) == ("2026-01-01T00:00:07Z", "We sell porcelain since 1908")
    assert about["id"]
    [package] = [json.loads(zipfile.ZipFile(tmp_path / "shop.wacz").read("datapackage.json"))]
    assert package["mainPageDate"] == "2026-01-01T00:00:03Z"


def test_all_that_belongs_to_a_collection_returns_on_import(tmp_path: Path, shop: Collection) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    package = json.loads(zipfile.ZipFile(path).read("datapackage.json"))
    listed = {each["path"] for each in package["resources"]}
    assert {"stillweb/rules.yaml", "stillweb,traces/buy.jsonl", "stillweb/certificate-clock.json"} <= listed
    assert "stillweb,baseline,page-0001/text.txt" in listed
    assert not any("notes" in name for name in listed)
    report = import_files([path], tmp_path / "root", "again")
    assert report.defects == ()
    again = Collection.open(tmp_path / "root", "again")
    for name in ("rules.yaml", "traces/buy.jsonl", "certificate-clock.json", "baseline/page-0001/dom.txt.gz"):
        assert (again.path / name).read_bytes() == (shop.path / name).read_bytes()
    assert [page.baseline for page in again.page_list()] == ["page-0001", ""]
    assert check(again) == []
    assert seal(again).environment_id == seal(shop).environment_id


def test_an_import_into_a_collection_leaves_its_own_files(tmp_path: Path, shop: Collection) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    other = Collection.create(tmp_path / "root", "other")
    with CollectionWriter(other) as writer:
        writer.write(Exchange(Request("GET", "https://other.example/"), _page("Other", ""), "20250101000000"))
    (other.path / "rules.yaml").write_text("version: 1\n")
    (other.baseline / "page-0001").mkdir(parents=True)
    report = import_files([path], tmp_path / "root", "other", append=True)
    assert {each.what for each in report.defects if "rules" in each.what} == {
        "rules.yaml is not imported: the collection has rules.yaml"
    }
    assert (other.path / "rules.yaml").read_text() == "version: 1\n"
    assert (other.path / "traces" / "buy.jsonl").is_file()
    assert [page.baseline for page in other.page_list()] == ["", ""]


@pytest.mark.parametrize(
    "name",
    [
        *("stillweb/../manifest.json", "stillweb/archive/x", "stillweb/baseline/../../x", "stillweb//etc/x"),
        *("stillweb/rules.yaml/x", "stillweb/.secrets/x.jsonl", "stillweb/baseline/.x", "//", "/"),
        *("stillweb,..,..,baseline/x", "stillweb,archive/x.gz", "stillweb,,tmp/x", "x/stillweb/diff.yaml"),
    ],
)
def test_other_files_of_a_wacz_are_not_restored(tmp_path: Path, shop: Collection, name: str) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), "evil")
    import_files([path], tmp_path / "again", "again")
    found = [each for each in tmp_path.rglob("*") if each.is_file() and each.read_bytes() == b"evil"]
    assert found == []


def test_invalid_rules_are_reported_and_left_out(tmp_path: Path, shop: Collection) -> None:
    (shop.path / "rules.yaml").write_text("version: 1\nvolatile: [{where: nowhere}]\n")
    report = import_files([export(shop, tmp_path / "shop.wacz")], tmp_path / "root", "again")
    assert any("rules.yaml is not imported" in each.what for each in report.defects)
    assert not (tmp_path / "root" / "again" / "rules.yaml").exists()


# --- other readers ------------------------------------------------------------------------------------

REPLAYWEBPAGE = "2.5.3"


@pytest.fixture(scope="session")
def replaywebpage() -> Path:
    """The files of the npm package replaywebpage, packed once into the user's cache."""
    folder = platformdirs.user_cache_path("stillweb-tests") / f"replaywebpage-{REPLAYWEBPAGE}"
    if not (folder / "package" / "ui.js").exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", f"replaywebpage@{REPLAYWEBPAGE}", "--silent"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
        found = list(folder.glob("*.tgz"))
        if ran.returncode or not found:
            pytest.skip(f"npm pack replaywebpage@{REPLAYWEBPAGE} failed: {ran.stderr.strip()[-200:]}")
        with tarfile.open(found[0]) as archive:
            # Python has filters since 3.11.4, and Debian 12 has 3.11.2.
            archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / "package"


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Files with byte ranges, which wabac.js requests of a WACZ."""

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        value = self.headers.get("Range", "")
        if not value.startswith("bytes=") or not path.is_file():
            super().do_GET()
            return
        first, _, last = value.removeprefix("bytes=").partition("-")
        size = path.stat().st_size
        start = int(first) if first else size - int(last)
        stop = min(int(last) + 1 if first and last else size, size)
        self.send_response(206)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))


@pytest.fixture
def reader(tmp_path: Path, replaywebpage: Path):
    """URL of a server with ReplayWeb.page, and the folder that it serves."""
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("index.html", "ui.js", "sw.js"):
        os.symlink(replaywebpage / name, folder / name)
    handler = partial(_RangeHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()


@pytest.mark.browser
async def test_replayweb_page_lists_searches_and_shows_an_export(shop: Collection, reader) -> None:
    url, folder = reader
    export(shop, folder / "shop.wacz")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"{url}/?source={quote(f'{url}/shop.wacz', safe='')}#view=pages")
        listed = page.locator("wr-page-entry")
        await expect(listed).to_have_count(2, timeout=60_000)
        await page.get_by_placeholder("Search by Page URL").fill("porcelain")  # one page has it, in its text
        await expect(listed).to_have_count(1, timeout=30_000)
        await expect(listed).to_contain_text("shop.example/about")
        await page.goto(f"{url}/?source={quote(f'{url}/shop.wacz', safe='')}#view=pages&url={SITE}about")
        replayed = page.frame_locator("iframe[name='___wb_replay_top_frame'], wr-coll-replay iframe").first
        await expect(replayed.locator("p")).to_have_text("We sell porcelain since 1908", timeout=60_000)
        await browser.close()


@pytest.fixture
def pywb_tools() -> Path:
    try:
        return find_pywb().parent
    except ProgramNotFound as error:
        pytest.skip(str(error))


@pytest.mark.pywb
def test_pywb_adds_and_serves_an_export(shop: Collection, pywb_tools: Path, tmp_path: Path) -> None:
    path = export(shop, tmp_path / "shop.wacz")
    home = tmp_path / "pywb"
    home.mkdir()
    for command in (["init", "shop"], ["add", "--unpack-wacz", "shop", path]):
        program = pywb_tools / "wb-manager"
        subprocess.run([program, *command], cwd=home, check=True, capture_output=True, timeout=60)
    index = (home / "collections" / "shop" / "indexes" / "index.cdxj").read_bytes()
    assert len(index.splitlines()) == 700
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [pywb_tools / "wayback", "-b", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            def answers() -> bool:
                with suppress(httpx.TransportError):
                    return client.get("/").status_code == 200
                return False

            assert asyncio.run(poll(answers, timeout=60, interval=0.2))
            found = client.get(f"/shop/20260101000007id_/{SITE}about")
        assert (found.status_code, "We sell porcelain since 1908" in found.text) == (200, True)
    finally:
        process.terminate()
        process.wait(30)
