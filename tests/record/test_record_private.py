"""A recording does not reach private addresses, by whichever name, spelling or redirect a page chooses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UpstreamUnreachable
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.fetch import Fetcher
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.proxy.upstream import AddressRefused, UpstreamResolver, address_kind

SPELLINGS = (
    *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0"),
    *("127.8.9.10", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::1]", "[::]"),
)


@dataclass
class LocalService:
    """Plain HTTP on all loopback addresses: a page for `page.test`, a secret for every other host."""

    port: int = 0
    page: str = ""
    hosts: list[str] = field(default_factory=list)

    def stolen(self) -> list[str]:
        return [host for host in self.hosts if not host.startswith("page.test")]

    @property
    def options(self) -> RecordOptions:
        return RecordOptions(resolve=parse_all([f"page.test=127.0.0.1:{self.port}"]))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        host = head.lower().partition("\r\nhost: ")[2].partition("\r\n")[0]
        self.hosts.append(host)
        path = head.split(" ")[1]
        extra, body = "", self.page if host.startswith("page.test") else "<h1>secret</h1>"
        if path.startswith("/go/"):
            extra = f"Location: http://{path.removeprefix('/go/')}:{self.port}/redirected\r\n"
        status = "302 Found" if extra else "200 OK"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{extra}Access-Control-Allow-Origin: *\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        writer.close()


@pytest_asyncio.fixture
async def service() -> AsyncIterator[LocalService]:
    running = LocalService()
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    running.port = listener.getsockname()[1]
    async with await asyncio.start_server(running.answer, sock=listener):
        yield running


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.create(tmp_path / "collections", "site")


async def request(proxy: str, url: str) -> tuple[int, str]:
    """Send one request as text, so that no client rewrites the host; return the status and the location."""
    host, _, port = proxy.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    authority = url.split("/")[2]
    writer.write(f"GET {url} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.read()).decode("latin-1").partition("\r\n\r\n")[0]
    writer.close()
    fields = dict(line.partition(": ")[::2] for line in head.split("\r\n")[1:])
    return (int(head.split()[1]) if head else 0), fields.get("Location", "")


async def recorded(
    collection: Collection, ca: CertAuthority, options: RecordOptions, url: str
) -> tuple[int, dict[str, str]]:
    """Request a URL through a recording proxy; return the status (0 without a response) and the failures."""
    with CollectionWriter(collection) as writer:
        async with recording_proxy(writer, ca, options) as recording:
            status, location = await request(recording.url, url)
            if location:
                status, _ = await request(recording.url, location)
        return status, recording.failed


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_request_to_this_machine_is_refused_in_every_spelling(
    collection, ca, service, spelling
) -> None:
    status, failed = await recorded(
        collection, ca, service.options, f"http://{spelling}:{service.port}/admin"
    )

    assert (status, service.hosts, list(collection.captures())) == (0, [], [])
    assert any("not recorded" in why for why in failed.values())


@pytest.mark.parametrize("target", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_a_redirect_to_this_machine_is_refused(collection, ca, service, target) -> None:
    status, _ = await recorded(collection, ca, service.options, f"http://page.test/go/{target}")

    assert status == 0
    assert service.stolen() == []
    assert [capture.status for capture in collection.captures()] == [302]


async def test_a_public_name_with_a_private_address_is_refused(collection, ca, service, monkeypatch) -> None:
    lookup = socket.getaddrinfo

    def spoofed(host: Any, *arguments: Any, **options: Any) -> Any:
        return lookup("127.0.0.1" if host == "attacker.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", spoofed)

    status, failed = await recorded(
        collection, ca, service.options, f"http://attacker.example:{service.port}/"
    )

    assert (status, service.hosts) == (0, [])
    assert "attacker.example has the address 127.0.0.1, which is loopback" in next(iter(failed.values()))


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch) -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])

    def rebinding(host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in next(answers)]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *_, **__: rebinding(host, port))
    resolver = UpstreamResolver(())

    assert await resolver.resolve("rebinding.example", 80) == ("93.184.215.14", 80)
    with pytest.raises(AddressRefused, match="loopback"):
        await resolver.resolve("rebinding.example", 80)


async def test_another_address_of_a_host_follows_one_that_failed(monkeypatch) -> None:
    found = ["192.168.0.9", "93.184.215.14", "93.184.215.15"]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *_, **__: [(2, 1, 6, "", (each, port)) for each in found]
    )
    resolver = UpstreamResolver(())

    assert await resolver.resolve("site.example", 80) == ("93.184.215.14", 80)
    resolver.mark_unreachable("93.184.215.14")
    assert await resolver.resolve("site.example", 80) == ("93.184.215.15", 80)


async def test_the_user_may_permit_private_addresses(collection, ca, service) -> None:
    everything = replace(service.options, allow_private=True)
    one_host = replace(service.options, resolve=parse_all(["127.0.0.1=127.0.0.1"]))

    for options in (everything, one_host):
        status, _ = await recorded(collection, ca, options, f"http://127.0.0.1:{service.port}/")
        assert status == 200
    status, _ = await recorded(collection, ca, one_host, f"http://localhost:{service.port}/")
    assert status == 0


async def test_the_url_of_an_ipv6_site_has_brackets(collection, ca, service) -> None:
    options = replace(service.options, allow_private=True)

    status, _ = await recorded(collection, ca, options, f"http://[::1]:{service.port}/a")

    assert status == 200
    assert [capture.url for capture in collection.captures()] == [f"http://[::1]:{service.port}/a"]


@pytest.mark.browser
@pytest.mark.parametrize("allowed", [False, True])
async def test_a_crawled_page_reaches_no_local_service(collection, ca, service, allowed) -> None:
    own = f"127.0.0.1:{service.port}"
    mapped = f"[::ffff:7f00:1]:{service.port}"
    service.page = f"""<!doctype html><title>attack</title><iframe src="http://{own}/frame"></iframe>
      <img src="http://localhost:{service.port}/image.png"><img src="http://{mapped}/mapped.png">
      <img src="/go/127.0.0.1"><script>
      fetch("http://{own}/fetch").catch(() => 0);
      new WebSocket("ws://{own}/socket");
      </script>"""
    options = CrawlOptions(
        limit=1, behaviors=frozenset(), record=replace(service.options, allow_private=allowed)
    )

    report = await crawl(["http://page.test/"], collection, ca, options)

    assert [page.url for page in report.pages] == ["http://page.test/"]
    recorded_hosts = {capture.url.split("/")[2] for capture in collection.captures()}
    if allowed:
        assert {own, mapped} <= recorded_hosts
    else:
        assert service.stolen() == []
        assert recorded_hosts == {"page.test"}
        assert any("loopback" in why for why in report.failed_requests.values())


@pytest.mark.browser
async def test_a_seed_at_a_private_address_names_the_option_that_permits_it(collection, ca, service) -> None:
    options = CrawlOptions(limit=1, behaviors=frozenset(), retries=0)

    with pytest.raises(UpstreamUnreachable, match="loopback") as caught:
        await crawl([f"http://127.0.0.1:{service.port}/"], collection, ca, options)

    assert "--allow-private" in caught.value.hint
    assert service.hosts == []


async def test_robots_txt_and_sitemaps_follow_no_redirect_to_this_machine(service) -> None:
    async with Fetcher(service.options) as fetcher:
        assert (await fetcher.get("http://page.test/robots.txt")).status == 200
        for url in (f"http://127.0.0.1:{service.port}/", "http://page.test/go/127.0.0.1"):
            with pytest.raises(UpstreamUnreachable, match="loopback"):
                await fetcher.get(url)

    assert service.stolen() == []


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("2002:7f00:1::", "loopback"),  # 6to4
        ("64:ff9b::7f00:1", "loopback"),  # NAT64
        ("10.0.0.7", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("100.64.0.1", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("192.0.0.192", "metadata"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("::127.0.0.1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("nonsense", "malformed"),
        ("93.184.215.14", ""),
        ("2606:4700::1111", ""),
        ("64:ff9b::808:808", ""),
        ("[2606:4700::1111]", ""),
    ],
)
def test_addresses_have_a_kind(address: str, kind: str) -> None:
    assert address_kind(address) == kind
