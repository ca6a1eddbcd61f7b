"""The adapter and a real Docker engine: an image of the stand-in, real volumes, signals and exit codes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from docker_engine import BASE_IMAGE, require_docker

from stillweb.clock import monotonic
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.errors import ProgramNotFound, RecordError, UsageError
from stillweb.record.browsertrix.run import BrowsertrixCrawl, CrawlerJob
from stillweb.record.browsertrix.settings import IMAGE as CRAWLER
from stillweb.record.browsertrix.settings import Container
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.proxy.resolve import parse_all

pytestmark = [pytest.mark.docker, pytest.mark.shared, pytest.mark.timeout(600)]

STANDIN = Path(__file__).parents[1] / "record" / "standin"
IMAGE = "stillweb-test-browsertrix:standin"
SEED = "http://docs.local:8480/tutorial/index.html"


@pytest.fixture(scope="module")
def image(shared, tmp_path_factory):
    """The stand-in as an image, on the base image that is here."""
    require_docker()
    context = tmp_path_factory.mktemp("image")
    shutil.copy(STANDIN / "crawl.py", context)
    shutil.copy(shared / "archives/browsertrix/docs25.wacz", context)
    package = Path(yaml.__file__).parent
    shutil.copytree(package, context / "yaml", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    crawl = context / "crawl"
    crawl.write_text('#!/bin/sh\nexec python3 /app/crawl.py "$@"\n')
    crawl.chmod(0o755)
    (context / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\n"
        "ENV ARCHIVE=/app/docs25.wacz\nCOPY . /app/\nRUN ln -s /app/crawl /usr/bin/crawl\n"
    )
    subprocess.run(["docker", "build", "-q", "-t", IMAGE, str(context)], check=True, capture_output=True)
    yield IMAGE
    subprocess.run(["docker", "image", "rm", "-f", IMAGE], capture_output=True)


def job(root: Path, image: str, *arguments: str, append: bool = False) -> CrawlerJob:
    container = Container(image=image, arguments=arguments)
    return CrawlerJob(root / "collections", "docs", [SEED], CrawlOptions(limit=3), container, append)


def containers() -> str:
    """The ids of our containers, running or not."""
    named = ["docker", "ps", "-aq", "--filter", "name=stillweb-browsertrix-docs"]
    return subprocess.run(named, capture_output=True, text=True, check=True).stdout


async def test_a_crawl_in_a_container_is_stopped_gone_on_with_and_imported(image, tmp_path):
    first = job(tmp_path, image, "-e", "HOLD=2")
    crawl, seen = BrowsertrixCrawl(first), asyncio.Event()
    running = asyncio.create_task(crawl.run(lambda event: event.pages and seen.set()))
    async with asyncio.timeout(120):
        await seen.wait()
    # The name belongs to the collection: a second crawl of it is refused by Docker or by us.
    with pytest.raises(UsageError, match="is still running"):
        await BrowsertrixCrawl(job(tmp_path, image, append=True)).run()
    crawl.interrupt()
    report = await running
    assert [page.seed for page in report.pages] == [True, False]
    collection = Collection.open(first.root, "docs")
    assert (collection.manifest().state, report.stopped) == ("partial", "a signal")
    report = await BrowsertrixCrawl(job(tmp_path, image, append=True)).run()
    assert len(report.pages) == 3
    assert collection.manifest().state == "complete"
    assert check(collection) == []
    assert containers() == ""


async def test_exit_codes_come_through_and_files_are_the_users(image, tmp_path):
    uid, gid = os.geteuid(), os.getegid()
    timed = job(tmp_path, image, "-e", "END=timelimit", "--user", f"{uid}:{gid}")
    report = await BrowsertrixCrawl(timed).run()
    assert (report.stopped, len(report.pages)) == ("the limit of time", 1)
    assert not (timed.root / ".browsertrix-docs").exists()
    with pytest.raises(ProgramNotFound, match="no program `crawl`"):
        await BrowsertrixCrawl(job(tmp_path / "b", BASE_IMAGE)).run()
    with pytest.raises(RecordError, match=r"run failed: .*no-such-option"):
        await BrowsertrixCrawl(job(tmp_path / "c", image, "--no-such-option")).run()


async def test_the_stand_in_works_as_the_owner_of_the_volume(image, tmp_path):
    """As browsertrix's image does; ours to keep is that the volume belongs to who calls."""
    if os.geteuid():
        pytest.skip("only root can give folders away")
    crawl = BrowsertrixCrawl(job(tmp_path, image, "-e", "HOLD=1", "-e", "SIGNALS=99"))
    running = asyncio.create_task(crawl.run())
    work, deadline = tmp_path / "collections/.browsertrix-docs", monotonic() + 60
    while not list(work.glob("collections/docs/archive/*")):
        assert monotonic() < deadline
        await asyncio.sleep(0.05)
    assert {path.stat().st_uid for path in work.rglob("*")} == {work.stat().st_uid}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert containers() == ""
    report = await BrowsertrixCrawl(job(tmp_path, image, append=True)).run()
    assert len(report.pages) == 3


class Site(ThreadingHTTPServer):
    """A site of two pages; the first one frames an address of this machine that no rule names."""

    class Handler(BaseHTTPRequestHandler):
        server: Site

        def do_GET(self) -> None:
            self.server.requests.append((self.headers["Host"], self.headers["Accept-Language"]))
            port = self.server.server_port
            private = f"<iframe src='http://127.0.0.1:{port}/secret'></iframe>"
            body = (
                f"<title>Lamps</title><a href='/brass'>Brass</a>{private}" if self.path == "/" else "<p>Brass"
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), self.Handler)


@pytest.fixture
def crawler():
    """The real crawler's image."""
    require_docker()
    if subprocess.run(["docker", "image", "inspect", CRAWLER], capture_output=True).returncode:
        pytest.skip(f"no image {CRAWLER} here: docker pull {CRAWLER}")


@pytest.fixture
def site():
    with Site() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


async def test_the_real_crawler_records_by_its_defaults_what_a_rule_with_a_port_names(
    crawler, site, tmp_path
):
    record = RecordOptions(resolve=parse_all([f"lamps.test:80=127.0.0.1:{site.server_port}"]))
    options = CrawlOptions(limit=3, record=record)
    one = CrawlerJob(tmp_path / "collections", "lamps", ["http://lamps.test/"], options)
    report = await BrowsertrixCrawl(one).run()
    assert {page.url for page in report.pages} == {"http://lamps.test/", "http://lamps.test/brass"}
    assert check(Collection.open(one.root, one.name)) == []
    # The frame was neither reached beside the proxy nor through it.
    assert {host for host, _ in site.requests} == {"lamps.test"}
    assert "en-US" in site.requests[-1][1]
