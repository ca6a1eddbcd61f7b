"""Several real workers behind one port: placing, merging, killing one under load, and the reports of that."""

from __future__ import annotations

import asyncio
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from small_sites import PAGES, SHOP, browser, free_ports, recorded

from stillweb.certs import CertAuthority
from stillweb.errors import CollectionNotFound, PortInUse, SessionLost, UsageError
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayCluster, ReplayOptions, serve_cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory, ca: CertAuthority
) -> AsyncIterator[ReplayCluster]:
    root = tmp_path_factory.mktemp("collections")
    collections = [recorded(root, "shop"), recorded(root, "blog", b"!")]
    options = ReplayOptions(port=0, session_ports=free_ports(12), drain=2)
    async with serve_cluster(collections, ca, options, workers=2) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def control_api(cluster: ReplayCluster) -> AsyncIterator[ReplayClient]:
    async with ReplayClient(cluster.url) as client:
        yield client


@asynccontextmanager
async def opened(control_api: ReplayClient, count: int) -> AsyncIterator[list[str]]:
    ids = [
        session.id for session in await asyncio.gather(*(control_api.open_session() for _ in range(count)))
    ]
    try:
        yield ids
    finally:
        for session_id in ids:
            await control_api.close_session(session_id)


async def shown(control_api: ReplayClient) -> dict[str, dict[str, object]]:
    return {str(session["id"]): session for session in await control_api.sessions()}


async def test_sessions_are_spread_and_shown_together(control_api: ReplayClient) -> None:
    async with opened(control_api, 6) as ids:
        listed = await shown(control_api)
        assert list(listed) == ["default", *sorted(ids, key=list(listed).index)]
        workers = [listed[each]["worker"] for each in ("default", *ids)]
        assert abs(workers.count(0) - workers.count(1)) == 1
        assert len({listed[each]["proxy"] for each in ids}) == 6
    assert list(await shown(control_api)) == ["default"]


async def test_every_session_answers_and_has_its_own_ledger(
    control_api: ReplayClient, ca: CertAuthority
) -> None:
    async def episode(number: int) -> None:
        session = await control_api.open_session("blog" if number % 2 else "shop")
        host, end = ("blog", b"!") if number % 2 else ("shop", b"")
        async with browser(session.proxy, ca) as web:
            for path in list(PAGES)[number : number + 6]:
                assert (await web.get(f"https://{host}.example{path}")).content == PAGES[path] + end
            assert (await web.get(f"https://{host}.example/none")).status_code == 404
        ledger = await control_api.ledger(session.id)
        assert (ledger.counts, len(ledger.misses)) == ({"exact": 6, "miss": 1}, 1)
        assert (await control_api.session(session.id))["requests"] == 7
        await control_api.reset_session(session.id)
        assert (await control_api.ledger(session.id)).entries == ()
        await control_api.close_session(session.id)
        with pytest.raises(UsageError, match="is closed"):
            await control_api.ledger(session.id)
        assert (await control_api.ledger(session.id, closed=True)).closed

    await asyncio.gather(*(episode(number) for number in range(8)))


async def test_a_session_s_worker_looks_up_and_cancels(control_api: ReplayClient) -> None:
    assert (await control_api.info()).features["cancel_navigations"]
    async with opened(control_api, 2) as ids:
        for each in ids:
            await control_api.cancel_navigations(each)
            assert await control_api.lookup(
                each, ["https://elsewhere.test/", "https://elsewhere.test/x"]
            ) == [
                False,
                False,
            ]
        with pytest.raises(UsageError, match="must be"):
            await control_api.ask("POST", f"/sessions/{ids[0]}/lookup", {"urls": "x"})


async def test_a_session_s_worker_allows_unrecorded_answers(control_api: ReplayClient) -> None:
    assert (await control_api.info()).features["answer_unrecorded"]
    async with opened(control_api, 2) as ids:
        for each in ids:
            await control_api.answer_unrecorded(each, derived=True, on_write="accept")
        with pytest.raises(UsageError, match="must be"):
            await control_api.ask("POST", f"/sessions/{ids[0]}/unrecorded", {"on_write": "always"})


async def test_by_user_name_a_connection_finds_its_worker(
    cluster: ReplayCluster, control_api: ReplayClient, ca: CertAuthority
) -> None:
    async with opened(control_api, 4) as ids:
        for session_id in ids:
            async with browser(cluster.url.replace("http://", f"http://{session_id}:@"), ca) as web:
                for url in (f"{SHOP}/p3", f"{SHOP}/p4", "http://shop.example/p5"):
                    assert (await web.get(url)).content == PAGES[url[-3:]]
            assert (await control_api.ledger(session_id)).counts == {"exact": 3}
        listed = await shown(control_api)
        assert {listed[each]["worker"] for each in ids} == {0, 1}
    async with browser(cluster.url.replace("http://", "http://nobody:@"), ca) as web:
        assert (await web.get("http://shop.example/p5")).status_code == 407


async def test_without_a_name_the_default_session_answers(
    cluster: ReplayCluster, control_api: ReplayClient, ca: CertAuthority
) -> None:
    await control_api.reset_session()
    async with browser(cluster.url, ca) as web:
        assert (await web.get(f"{SHOP}/p23")).content == PAGES["/p23"]
        assert (await web.get("http://shop.example/p1")).content == PAGES["/p1"]
    ledger = await control_api.ledger()
    assert [entry.url for entry in ledger.entries] == [f"{SHOP}/p23", "http://shop.example/p1"]
    assert (await shown(control_api))["default"]["proxy"] == cluster.url


async def test_a_nameless_request_on_a_named_connection_is_refused(
    cluster: ReplayCluster, control_api: ReplayClient
) -> None:
    """The default session may be another worker's, and what stands for it here has another cursor."""
    before = (await control_api.session("default"))["requests"]
    async with opened(control_api, 2) as ids:
        for session_id in ids:
            user = b64encode(f"{session_id}:".encode()).decode()
            sent = (
                f"GET http://shop.example/p1 HTTP/1.1\r\nHost: p\r\nProxy-Authorization: Basic {user}\r\n\r\n"
                "GET http://shop.example/p2 HTTP/1.1\r\nHost: p\r\n\r\n"
            )
            answered = await converse(cluster, sent.encode())
            assert answered.count(b"HTTP/1.1 200 ") == answered.count(b"HTTP/1.1 400 ") == 1
            assert (await control_api.session(session_id))["requests"] == 1
    assert (await control_api.session("default"))["requests"] == before


async def converse(cluster: ReplayCluster, *pieces: bytes) -> bytes:
    """Send pieces, the next one when the one before must have come; return what is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(cluster.url.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        assert await health(cluster) == 200
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("cut", [1, 30, 70])
async def test_a_request_may_come_in_pieces(cluster: ReplayCluster, cut: int) -> None:
    sent = (
        b"GET http://shop.example/p2 HTTP/1.1\r\nHost: shop.example\r\n\r\n"
        b"GET http://shop.example/p9 HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
    )
    answered = await converse(cluster, sent[:cut], sent[cut:])
    assert answered.count(b"HTTP/1.1 200 OK") == 2
    assert answered.endswith(PAGES["/p9"])


async def health(cluster: ReplayCluster) -> int:
    async with httpx.AsyncClient(trust_env=False) as web:
        return (await web.get(f"{cluster.url}/health")).status_code


async def test_what_is_no_request_is_refused(cluster: ReplayCluster) -> None:
    for sent in (b"\r\n\r\n", b"nonsense\r\n\r\n", b"x" * 70_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(cluster.url.rpartition(":")[2]))
        writer.write(sent)
        writer.write_eof()
        answered = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert answered == b"" or answered.startswith(b"HTTP/1.1 4")


async def test_errors_are_those_of_one_server(control_api: ReplayClient) -> None:
    with pytest.raises(CollectionNotFound, match="'nope' is not served here"):
        await control_api.open_session("nope")
    for ask in (
        control_api.ledger,
        control_api.session,
        control_api.reset_session,
        control_api.close_session,
    ):
        with pytest.raises(UsageError, match="no session nope"):
            await ask("nope")  # type: ignore[operator]
    with pytest.raises(UsageError, match="default session lives"):
        await control_api.close_session("default")


async def test_all_session_ports_may_be_taken(cluster: ReplayCluster, control_api: ReplayClient) -> None:
    async with opened(control_api, 12):
        with pytest.raises(PortInUse, match="12 sessions are open here"):
            await control_api.open_session()
    async with opened(control_api, 1):
        pass


async def test_figures_are_sums(cluster: ReplayCluster, control_api: ReplayClient, ca: CertAuthority) -> None:
    async def figure(name: str) -> float:
        async with httpx.AsyncClient(trust_env=False) as web:
            lines = (await web.get(f"{cluster.url}/metrics")).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))

    hits = 'stillweb_requests_total{collection="shop",tier="exact"}'
    before, sent = await figure(hits), await figure('stillweb_sent_bytes_total{collection="shop"}')
    async with opened(control_api, 4) as ids:
        for session_id in ids:
            async with browser((await shown(control_api))[session_id]["proxy"], ca) as web:  # type: ignore[arg-type]
                await web.get(f"{SHOP}/p7")
        assert await figure(hits) == before + 4
        assert await figure('stillweb_sent_bytes_total{collection="shop"}') == sent + 4 * len(PAGES["/p7"])
        assert await figure('stillweb_sessions{collection="shop"}') == 6  # of which two are default ones
        assert await figure('stillweb_answer_seconds_count{collection="shop"}') >= before + 4
        for number in (0, 1):
            assert await figure(f'stillweb_worker_up{{worker="{number}"}}') == 1
            assert await figure(f'stillweb_worker_resident_memory_bytes{{worker="{number}"}}') > 1e7


async def ready(cluster: ReplayCluster) -> tuple[int, dict[str, object]]:
    async with httpx.AsyncClient(trust_env=False) as web:
        response = await web.get(f"{cluster.url}/ready")
    return response.status_code, response.json()


class Client:
    """Requests all pages of a session in turn, over a new connection now and then, until it is stopped."""

    def __init__(self, proxy: str, ca: CertAuthority) -> None:
        self.proxy = proxy
        self.ca = ca
        self.right = self.wrong = self.failed = 0
        self.right_after = 0

    async def run(self, stop: asyncio.Event, killed: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with browser(self.proxy, self.ca) as web:
                    for path, body in PAGES.items():
                        response = await web.get(f"{SHOP}{path}")
                        fine = (response.status_code, response.content) == (200, body)
                        self.right += fine
                        self.wrong += not fine
                        self.right_after += fine and killed.is_set()
            except httpx.HTTPError:
                self.failed += 1
                if killed.is_set():
                    return


async def test_killing_a_worker_under_load_costs_its_own_sessions_alone(
    cluster: ReplayCluster, control_api: ReplayClient, ca: CertAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = await asyncio.gather(*(control_api.open_session("shop") for _ in range(6)))
    before = await shown(control_api)
    victim = cluster.workers[0]
    theirs = [each.id for each in sessions if before[each.id]["worker"] == 0]
    assert len(theirs) in (2, 3)
    # Half of them by port, half by user name at the public one.
    clients = {
        each.id: Client(each.proxy if number < 3 else cluster.url.replace("//", f"//{each.id}:@"), ca)
        for number, each in enumerate(sessions)
    }
    stop, killed = asyncio.Event(), asyncio.Event()
    running = [asyncio.create_task(each.run(stop, killed)) for each in clients.values()]
    assert await poll(lambda: all(each.right > 5 for each in clients.values()), timeout=30)
    os.kill(victim.pid, signal.SIGKILL)
    killed.set()
    others = [client for session_id, client in clients.items() if session_id not in theirs]
    dead = [client for session_id, client in clients.items() if session_id in theirs]
    assert await poll(lambda: all(each.right_after > 30 for each in others), timeout=30)
    assert await poll(lambda: victim.alive and victim.restarts == 1, timeout=60)
    stop.set()
    await asyncio.gather(*running)
    assert [client.wrong for client in clients.values()] == [0] * 6
    assert [client.failed for client in others] == [0] * len(others)
    assert [client.failed for client in dead] == [1] * len(dead)

    deaths = [record for record in caplog.records if record.message == "worker died"]
    assert [(each.worker, each.end, each.sessions) for each in deaths] == [  # type: ignore[attr-defined]
        (0, "it was ended by SIGKILL", len(theirs) + 1)
    ]
    assert (await ready(cluster))[0] == 200

    listed = await shown(control_api)
    assert {each for each, session in listed.items() if session["lost"]} == {"default", *theirs}
    for session_id in ("default", *theirs):
        for ask in (control_api.session, control_api.ledger):
            with pytest.raises(SessionLost, match="worker 0, which held the session, has died"):
                await ask(session_id)
    # New sessions never get the port of a lost one, at which its client may still knock.
    async with opened(control_api, 12 - len(sessions)) as newer:
        listed = await shown(control_api)
        ports = {listed[each]["proxy"] for each in newer}
        assert not ports & {each.proxy for each in sessions}
        assert {listed[each]["worker"] for each in newer} == {0, 1}
        for port in ports:
            async with browser(str(port), ca) as web:
                assert (await web.get(f"{SHOP}/p1")).content == PAGES["/p1"]
        with pytest.raises(PortInUse):
            await control_api.open_session()
    # Once its client has closed it, a lost session gives its port back.
    for session in sessions:
        await control_api.close_session(session.id)
    async with opened(control_api, 12):
        pass
    # The default session answers nothing until it is begun anew.
    async with browser(cluster.url, ca) as web:
        assert (await web.get("http://shop.example/p1")).status_code == 503
        with pytest.raises(httpx.ProxyError, match="503"):
            await web.get(f"{SHOP}/p1")
        await control_api.reset_session()
        assert (await web.get(f"{SHOP}/p1")).content == PAGES["/p1"]
    assert (await control_api.ledger()).counts == {"exact": 1}


async def test_a_worker_that_dies_again_is_waited_for_longer(
    cluster: ReplayCluster, control_api: ReplayClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = cluster.workers[1]
    for _ in range(2):
        restarts = worker.restarts
        os.kill(worker.pid, signal.SIGKILL)
        assert await poll(lambda: not worker.alive, timeout=10)
        status, readiness = await ready(cluster)
        if not worker.alive:
            assert (status, readiness["missing"]) == (503, ["worker 1"])
        assert await poll(lambda: worker.alive and worker.restarts == restarts + 1, timeout=60)  # noqa: B023
    pauses = [r.pause for r in caplog.records if r.message == "worker restarted"]  # type: ignore[attr-defined]
    assert pauses == [0.1, 0.2]
    async with opened(control_api, 3) as ids:
        assert {(await shown(control_api))[each]["worker"] for each in ids} == {0, 1}


async def test_a_worker_that_cannot_serve_says_why(tmp_path: Path, ca: CertAuthority) -> None:
    collection = recorded(tmp_path, "shop")
    (collection.pack / "manifest.json").write_text("{}")
    options = ReplayOptions(port=0, session_ports=None)
    with pytest.raises(Exception, match=r"manifest\.json.*does not match the sha256"):
        async with serve_cluster([collection], ca, options, workers=2):
            pass
