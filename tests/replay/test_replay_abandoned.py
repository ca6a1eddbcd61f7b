"""Sessions that their clients left without closing them give way once no port is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from small_sites import free_ports, recorded, serving

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import PortInUse
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions
from stillweb.replay.onmiss.front import Front, FrontOptions, serve_front
from stillweb.replay.server import listeners


@asynccontextmanager
async def in_front(collection: Collection, ca: CertAuthority, ports: range) -> AsyncIterator[Front]:
    async with serve_front([collection], ca, FrontOptions(port=0, session_ports=ports)) as (front, _):
        yield front


@pytest.fixture(params=["native", "workers", pytest.param("front", marks=pytest.mark.pywb)])
async def url(request, ca: CertAuthority, tmp_path: Path):
    collection, ports = recorded(tmp_path, "shop"), free_ports(2)
    if request.param == "front":
        server = in_front(collection, ca, ports)
    else:
        server = serving(request.param, [collection], ca, ReplayOptions(port=0, session_ports=ports))
    async with server as running:
        yield running.url


async def test_the_session_that_was_left_the_longest_gives_way(url: str, monkeypatch) -> None:
    async with ReplayClient(url) as client:
        used, left = [await client.open_session() for _ in range(2)]
        with pytest.raises(PortInUse, match="2 sessions are open"):
            await client.open_session()  # a client may pause for some minutes
        monkeypatch.setattr(listeners, "_ABANDONED", 0.1)
        async with httpx.AsyncClient(proxy=used.proxy, trust_env=False) as browser:
            await browser.get("http://shop.example/p1")  # the connection stays open

            async def is_idle() -> bool:
                return (await client.session(left.id))["idle"] >= 0.1

            assert await poll(is_idle, timeout=10)
            assert (await client.session(used.id))["idle"] == 0
            another = await client.open_session()
            assert {each["id"] for each in await client.sessions()} == {"default", used.id, another.id}
            with pytest.raises(PortInUse):
                await asyncio.gather(*(client.open_session() for _ in range(3)))
        assert used.id in {each["id"] for each in await client.sessions()}
