"""Collections that are sealed anew while they are served, under load, by the real seal."""

from __future__ import annotations

import asyncio
import gc
import shutil
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from small_sites import PAGES, SHOP, browser, record_again, recorded

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import CollectionNotFound
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, ensure_sealed, serve, serve_cluster
from stillweb.replay.client import OpenSession


@pytest.fixture
def shop(tmp_path: Path) -> Collection:
    return recorded(tmp_path, "shop", b" old")


OPTIONS = ReplayOptions(port=0, session_ports=None, drain=1)


@asynccontextmanager
async def served(shop: Collection, ca: CertAuthority) -> AsyncIterator[tuple[ReplayServer, ReplayClient]]:
    async with serve([shop], ca, OPTIONS) as server, ReplayClient(server.url) as control_api:
        yield server, control_api


async def page(proxy: str, ca: CertAuthority, path: str = "/p3") -> bytes:
    async with browser(proxy, ca) as web:
        return (await web.get(SHOP + path)).content


async def test_a_session_keeps_its_pack_and_the_next_one_gets_the_new(
    shop: Collection, ca: CertAuthority
) -> None:
    async with served(shop, ca) as (server, control_api):
        first = await control_api.open_session()
        older = (await control_api.info()).collections["shop"]
        await asyncio.to_thread(record_again, shop, b" new")
        second = await control_api.open_session()
        newer = (await control_api.info()).collections["shop"]
        assert (first.environment_id, second.environment_id) == (older, newer)
        assert older != newer
        for proxy, end in ((first.proxy, b" old"), (second.proxy, b" new"), (server.url, b" old")):
            assert await page(proxy, ca) == PAGES["/p3"] + end
        await control_api.reset_session(first.id)
        assert await page(first.proxy, ca, "/p4") == PAGES["/p4"] + b" old"
        await control_api.reset_session()  # the default session takes it up here
        assert await page(server.url, ca) == PAGES["/p3"] + b" new"
        assert (await control_api.session("default"))["environment_id"] == newer


async def test_a_pack_is_closed_with_its_last_session(shop: Collection, ca: CertAuthority) -> None:
    def mapped() -> bool:
        return "(deleted)" in "".join(
            line for line in Path("/proc/self/maps").read_text().splitlines(True) if str(shop.path) in line
        )

    async with served(shop, ca) as (_, control_api):
        first = await control_api.open_session()
        await asyncio.to_thread(record_again, shop, b" new")
        assert (await control_api.reload("shop"))["newer"]
        await control_api.reset_session()
        assert await page(first.proxy, ca) == PAGES["/p3"] + b" old"
        assert mapped()
        await control_api.close_session(first.id)
        assert await poll(lambda: not mapped(), timeout=10)


async def test_nothing_of_the_first_pack_is_left_after_a_swap(shop: Collection, ca: CertAuthority) -> None:
    """Without the collector: a server freezes what it began with."""
    async with served(shop, ca) as (server, control_api):
        first = await control_api.open_session()
        gc.disable()
        try:
            pack = weakref.ref(server._registries["shop"].current.pack)
            for proxy in (server.url, first.proxy):
                assert await page(proxy, ca) == await page(proxy, ca) == PAGES["/p3"] + b" old"
            await asyncio.to_thread(record_again, shop, b" new")
            assert (await control_api.reload("shop"))["newer"]
            await control_api.reset_session()
            await control_api.close_session(first.id)
            assert await poll(lambda: pack() is None, timeout=10)
        finally:
            gc.enable()


async def test_sealing_anew_under_load_mixes_nothing(shop: Collection, ca: CertAuthority) -> None:
    seen: dict[str, set[bytes]] = {}
    wrong: list[str] = []
    stop = asyncio.Event()

    async def client(session: OpenSession) -> None:
        ends = seen[session.id] = set()
        async with browser(session.proxy, ca) as web:
            while not stop.is_set():
                for path, body in PAGES.items():
                    response = await web.get(SHOP + path)
                    if response.status_code != 200 or not response.content.startswith(body):
                        wrong.append(path)
                    ends.add(response.content[len(body) :])

    async with served(shop, ca) as (_, control_api):
        running, generations = [], []

        def all_answered() -> bool:
            return all(seen.get(session.id) for session, _ in generations)

        for generation in (b" old", b" v2", b" v3"):
            if running:
                await asyncio.to_thread(record_again, shop, generation)
            sessions = [await control_api.open_session() for _ in range(2)]
            generations += [(session, generation) for session in sessions]
            running += [asyncio.create_task(client(session)) for session in sessions]
            assert await poll(all_answered, timeout=20)
        stop.set()
        await asyncio.gather(*running)
        assert wrong == []
        assert [seen[session.id] for session, _ in generations] == [{end} for _, end in generations]
        assert len({session.environment_id for session, _ in generations}) == 3


async def test_a_damaged_new_pack_is_refused_and_named(
    shop: Collection, ca: CertAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(shop, ca) as (server, control_api), httpx.AsyncClient(trust_env=False) as web:
        older = (await control_api.info()).collections
        await asyncio.to_thread(record_again, shop, b" new")
        manifest = shop.pack / "manifest.json"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole.replace(b'"entries": 24', b'"entries": 25') + b" ")
        for _ in range(2):
            session = await control_api.open_session()
            assert await page(session.proxy, ca) == PAGES["/p3"] + b" old"
        assert (await control_api.info()).collections == older
        readiness = (await web.get(f"{server.url}/ready")).json()
        assert (readiness["ready"], list(readiness["refused"])) == (True, ["shop"])
        assert "manifest.json" in readiness["refused"]["shop"]
        assert (await control_api.reload("shop"))["refused"] == readiness["refused"]["shop"]
        errors = [record for record in caplog.records if record.message == "newer pack is refused"]
        assert len(errors) == 1

        shutil.rmtree(shop.pack)  # for a moment there is none
        assert (await control_api.open_session()).environment_id == older["shop"]
        await asyncio.to_thread(ensure_sealed, shop)
        reloaded = await control_api.reload("shop")
        assert (reloaded["newer"], reloaded["refused"]) == (True, "")
        assert await page((await control_api.open_session()).proxy, ca) == PAGES["/p3"] + b" new"
        assert (await web.get(f"{server.url}/ready")).json()["refused"] == {}


async def test_only_what_is_served_can_be_reloaded(shop: Collection, ca: CertAuthority) -> None:
    async with served(shop, ca) as (_, control_api):
        with pytest.raises(CollectionNotFound, match="'blog' is not served here"):
            await control_api.reload("blog")


async def test_all_workers_take_a_new_pack_up(shop: Collection, ca: CertAuthority) -> None:
    async with (
        serve_cluster([shop], ca, OPTIONS, workers=2) as cluster,
        ReplayClient(cluster.url) as control_api,
    ):
        older = [await control_api.open_session() for _ in range(2)]
        await asyncio.to_thread(record_again, shop, b" new")
        assert (await control_api.reload("shop"))["newer"]
        newer = [await control_api.open_session() for _ in range(2)]
        assert len({each["worker"] for each in await control_api.sessions()}) == 2
        for session in older:
            assert await page(session.proxy, ca) == PAGES["/p3"] + b" old"
        for session in newer:
            assert await page(session.proxy, ca) == PAGES["/p3"] + b" new"
            assert session.environment_id == (await control_api.info()).collections["shop"]
