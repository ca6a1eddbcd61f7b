"""Real clients, recorded through the proxy and then answered by the replay: the same bytes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import shutil
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import brotli
import httpx
import pytest
from playwright.async_api import async_playwright

from stillweb.browser import find_browser
from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import ProgramNotFound
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.replay.server.server import ReplayOptions, serve

# mitmproxy 11 and what its default addons import, not us.
ORIGIN = "https://site.test"
TEXT = "".join(f"line {number} of a page\n" for number in range(500)).encode()
PAGE = b"""<!doctype html><title>page</title><p id=out></p><script>
Promise.all([fetch("/packed"), fetch("/form", {method: "POST", body: "a=1&b=2"})])
  .then((all) => Promise.all(all.map((each) => each.text())))
  .then((texts) => { document.getElementById("out").textContent = texts.join("|").length });
</script>"""

Seen = list[tuple[int, str]]
Client = Callable[[str, Path, Path], Awaitable[Seen]]  # of a proxy's URL, the CA's file and a folder


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def run(*command: str, **environment: str) -> bytes:
    program = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    out, err = await asyncio.wait_for(program.communicate(), 30)
    assert program.returncode == 0, err.decode()
    return out


def needed(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


async def curl(proxy: str, ca: Path, folder: Path) -> Seen:
    """A kept connection, then HEAD, a range, uploads whole and in chunks, both encodings, and HTTP/2."""
    program = needed("curl")
    content = folder / "upload"
    content.write_bytes(bytes(range(256)) * 6000)  # 1.5 MB: curl says Expect: 100-continue
    calls = (
        (f"{ORIGIN}/plain", f"{ORIGIN}/plain?2"),
        ("--head", f"{ORIGIN}/plain"),
        ("--range", "5-99", f"{ORIGIN}/part"),
        ("--upload-file", str(content), f"{ORIGIN}/form"),
        ("--upload-file", str(content), "--header", "Transfer-Encoding: chunked", f"{ORIGIN}/form?chunks"),
        ("--data", "a=1&b=2", f"{ORIGIN}/form?posted"),
        ("--header", "Accept-Encoding: gzip", f"{ORIGIN}/packed?gzip"),
        ("--compressed", f"{ORIGIN}/packed?any"),
        ("--http2", f"{ORIGIN}/plain?h2"),
        ("--header", 'If-None-Match: "a"', f"{ORIGIN}/plain?validated"),
    )
    seen = []
    for call in calls:
        base = (
            program,
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--proxy",
            proxy,
            "--cacert",
            str(ca),
        )
        out = await run(*base, "--suppress-connect-headers", "--write-out", "\n%{http_code}", *call)
        body, _, status = out.rpartition(b"\n")
        if "--head" in call:
            body = body.splitlines()[0]  # the other fields are the server's own
        seen.append((int(status), digest(body)))
    return seen


async def python_httpx(proxy: str, ca: Path, folder: Path) -> Seen:
    async with httpx.AsyncClient(
        proxy=proxy, verify=ssl.create_default_context(cafile=ca), http2=True, timeout=20
    ) as client:
        answers = [
            await client.get(f"{ORIGIN}/plain"),
            await client.get(f"{ORIGIN}/packed"),
            await client.head(f"{ORIGIN}/plain"),
            await client.get(f"{ORIGIN}/part", headers={"Range": "bytes=7-70"}),
            await client.post(f"{ORIGIN}/form", data={"a": "1", "b": "2"}),
            await client.post(f"{ORIGIN}/form?file", files={"f": ("name.txt", b"content")}),
        ]
    return [(answer.status_code, digest(answer.content)) for answer in answers]


REQUESTS = """
import hashlib, sys, requests
origin, proxy = sys.argv[1:]
with requests.Session() as session:
    session.proxies = {"http": proxy, "https": proxy}
    for answer in (session.get(origin + "/plain"), session.get(origin + "/packed"),
                   session.post(origin + "/form", data={"a": "1"}),
                   session.post(origin + "/form", json={"a": 1})):
        print(answer.status_code, hashlib.sha256(answer.content).hexdigest())
"""


def lines(out: bytes) -> Seen:
    return [(int(status), found) for status, found in (line.split() for line in out.decode().splitlines())]


async def python_requests(proxy: str, ca: Path, folder: Path) -> Seen:
    return lines(await run(sys.executable, "-c", REQUESTS, ORIGIN, proxy, REQUESTS_CA_BUNDLE=str(ca)))


async def node_fetch(proxy: str, ca: Path, folder: Path) -> Seen:
    script = str(Path(__file__).with_name("fetch.mjs"))
    requests = (f"GET:{ORIGIN}/plain", f"GET:{ORIGIN}/packed", f"POST:{ORIGIN}/form")
    return lines(await run(needed("node"), script, proxy, *requests, NODE_EXTRA_CA_CERTS=str(ca)))


async def chromium(proxy: str, ca: Path, folder: Path) -> Seen:
    """Playwright as anybody writes it, certificates not checked."""
    try:
        browser_file = find_browser()
    except ProgramNotFound as error:
        pytest.skip(str(error))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_file, proxy={"server": proxy})
        page = await browser.new_page(ignore_https_errors=True)
        answer = await page.goto(f"{ORIGIN}/page")
        assert answer is not None
        await page.wait_for_function("document.getElementById('out').textContent")
        seen = [(answer.status, digest(await answer.body())), (0, await page.inner_text("#out"))]
        await browser.close()
    return seen


@pytest.fixture
def served(site, answer):
    """The site with pages that differ by request headers."""

    def packed(request):
        offered = request.headers.get("accept-encoding", "")
        for coding, pack in (("br", brotli.compress), ("gzip", lambda body: gzip.compress(body, mtime=0))):
            if coding in offered:
                return answer(pack(TEXT), "text/plain", headers=(("Content-Encoding", coding),))
        return answer(TEXT, "text/plain")

    def part(request):
        if "range" not in request.headers:
            return answer(TEXT, "text/plain")
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        said = ("Content-Range", f"bytes {first}-{last}/{len(TEXT)}")
        return answer(TEXT[int(first) : int(last) + 1], "text/plain", 206, (said,))

    site.answers["/plain"] = answer(TEXT, "text/plain", headers=(("ETag", '"a"'),))
    site.answers["/packed"] = packed
    site.answers["/part"] = part
    site.answers["/page"] = answer(PAGE)
    site.answers["/form"] = lambda request: answer(digest(request.body).encode(), "text/plain")
    return site


@pytest.mark.parametrize(
    "client",
    [
        curl,
        python_httpx,
        python_requests,
        node_fetch,
        pytest.param(chromium, marks=pytest.mark.browser),
    ],
)
async def test_a_client_is_answered_by_the_replay_as_it_was_by_the_site(
    tmp_path: Path, ca: CertAuthority, served, client: Client
) -> None:
    collection = Collection.create(tmp_path / "collections", "site")
    with CollectionWriter(collection) as writer:
        async with recording_proxy(writer, ca, served.options) as recording:
            live = await client(recording.url, ca.ca_file, tmp_path)
            async with asyncio.timeout(10):
                await recording.idle()
    requests = len(served.requests)
    assert recording.exchanges == requests >= len(live) - 1
    assert recording.failed == {}
    assert check(collection) == []
    assert seal(collection).warnings == ()

    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        replayed = await client(server.url, ca.ca_file, tmp_path)

    assert replayed == live
    assert len(served.requests) == requests  # the site was not asked again
