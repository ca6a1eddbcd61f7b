"""Clients that know nothing of stillweb, as `stillweb run` starts them (docs/how-to/clients.md)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

URL = "https://shop.example/api"
RECORDED = '{"name":"recorded"}'

PYTHON = {
    "requests": f"import requests; print(requests.get('{URL}').text)",
    "httpx": f"import httpx; print(httpx.get('{URL}').text)",
    "aiohttp": f"""
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session, session.get('{URL}') as response:
        print(await response.text())
asyncio.run(main())""",
    "urllib3": f"""
import os, urllib3
print(urllib3.ProxyManager(os.environ['HTTPS_PROXY']).request('GET', '{URL}').data.decode())""",
    "scrapy": f"""
import scrapy
from scrapy.crawler import CrawlerProcess
class Spider(scrapy.Spider):
    name = 'spider'
    start_urls = ['{URL}']
    def parse(self, response):
        print(response.text)
process = CrawlerProcess({{'LOG_LEVEL': 'ERROR'}})
process.crawl(Spider)
process.start()""",
}
JAVA = f"""
public class Client {{
  public static void main(String[] none) throws Exception {{
    System.out.println(new String(new java.net.URL("{URL}").openStream().readAllBytes()));
  }}
}}"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clients")
    collection = Collection.create(root / "collections", "shop")
    with CollectionWriter(collection) as writer:
        response = Response(200, "OK", (("Content-Type", "application/json"),), RECORDED.encode())
        writer.write(Exchange(Request("GET", URL), response, "20260101000000"))
    reindex(collection)
    CertAuthority.init(root / "certs")
    return root


def answered(place: Path, *command: object) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "stillweb", "run", "--", *map(str, command)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.strip()


def program(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("client", PYTHON)
def test_python_clients(python_of, place: Path, client: str) -> None:
    assert answered(place, python_of("clients"), "-c", PYTHON[client]) == RECORDED


@pytest.mark.parametrize("command", [("curl", "-s"), ("wget", "-qO-")])
def test_command_line_clients(place: Path, command: tuple[str, ...]) -> None:
    assert answered(place, program(command[0]), *command[1:], URL) == RECORDED


def test_java(place: Path) -> None:
    source = place / "Client.java"
    source.write_text(JAVA)
    assert answered(place, program("java"), source) == RECORDED


def test_node_fetch(place: Path) -> None:
    node = program("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < 24:
        pytest.skip(f"fetch of Node {version.strip()} reads no proxy variables")
    assert answered(place, node, "-e", f"fetch('{URL}').then(r => r.text()).then(console.log)") == RECORDED
