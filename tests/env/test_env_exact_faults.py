"""A fault at level exact is soon an infrastructure error of that episode alone; nothing stays behind."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import pytest_asyncio

from stillweb.browser.cdp import connection
from stillweb.browser.cdp.connection import connection_of
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.launch import launch
from stillweb.browser.state import state_of
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env
from stillweb.env.vector.pool import BrowserProcess
from stillweb.env.vector.vector import VectorEnv
from stillweb.errors import EnvClosed, InfraError
from stillweb.model import Exchange, Request, Response
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, serve_cluster

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = "https://faults.test/"
PAGE = b"""<!doctype html><title>Faults</title><script>
const blob = (text) => new Worker(URL.createObjectURL(new Blob([text])));
const inFrame = (call) => new ResizeObserver(call).observe(document.body);
</script>
<button onclick="for (;;);">Click loops</button>
<button onclick="setTimeout(() => { for (;;); }, 100)">Timer loops</button>
<button onclick="inFrame(() => { for (;;); })">Frame loops</button>
<button onclick="blob('setTimeout(() => { for (;;); }, 100)')">Worker loops</button>
<button onclick="inFrame(() => { out.textContent = confirm('?') })">Frame asks</button>
<button onclick="inFrame(() => { document.title = 'Late'; close() })">Frame closes</button>
<button onclick="(async () => { for (let n = 0; n < 300; n++) await fetch('/data?' + n); })()">Fetch</button>
<a href="/" target="_blank">Popup</a><output id="out"></output>"""
THREADS = b"""<!doctype html><button onclick="Atomics.add(cells, 0, 1); Atomics.notify(cells, 0)">Notify</button><script>
const cells = new Int32Array(new SharedArrayBuffer(4));
const waits = ({ data }) => { for (let n = 0; ; n = data[0]) { postMessage(n); Atomics.wait(data, 0, n); } };
const worker = new Worker(URL.createObjectURL(new Blob([`onmessage = ${waits}`])));
worker.onmessage = ({ data }) => { document.title = `woke ${data}`; };
worker.postMessage(cells);
</script>"""
ISOLATED = (("Cross-Origin-Opener-Policy", "same-origin"), ("Cross-Origin-Embedder-Policy", "require-corp"))


def build(root):
    collection = Collection.create(root, "faults")
    with CollectionWriter(collection) as writer:
        pages = {"": ("text/html", PAGE), "threads": ("text/html", THREADS)} | {
            f"data?{n}": ("text/plain", b"data") for n in range(300)
        }
        for path, (mime, body) in pages.items():
            headers = (("Content-Type", mime), ("Content-Length", str(len(body))))
            headers += ISOLATED if path == "threads" else ()
            writer.write(
                Exchange(Request("GET", HOME + path), Response(200, "OK", headers, body), "20240506070809")
            )
    collection.write_manifest(Manifest(name="faults", recorded_at="20240506070809", seed=5))
    seal(collection)
    return collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return build(tmp_path_factory.mktemp("collections"))


@pytest.fixture(scope="module")
def exact():
    return True


@pytest_asyncio.fixture(loop_scope="session")
async def pair(replay, browser):
    """Two episodes side by side; whatever happens to the first, the second one continues."""
    async with (
        Env(replay.url, browser=browser, level="exact") as env,
        Env(replay.url, browser=browser, level="exact") as other,
    ):
        await env.reset(url=HOME)
        await other.reset(url=HOME)
        yield env, other
        await look(other)
        await env.reset(url=HOME)
        await look(env)
    assert browser.contexts == []
    assert [session["id"] for session in await replay.sessions()] == ["default"]
    connection = connection_of(browser)
    assert await poll(lambda: list(connection._sessions) == [connection.root.id], timeout=10)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "LOOP_SECONDS", 0.5)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.2)


async def press(env, name):
    observation = await env.observe("axtree")
    bid = next(node.bid for node in observation.nodes if node.name == name and node.bid)
    return await env.step({"action": "click", "bid": bid})


async def look(env):
    await env.step({"action": "scroll", "dy": 1})


async def test_a_worker_that_waits_for_another_thread_is_not_awaited(pair):
    env, _ = pair
    observation, info = await env.reset(url=HOME + "threads")
    for n in (0, 1):
        async with asyncio.timeout(30):
            while observation.title != f"woke {n}":  # the worker wakes at any time after the page's call
                observation, _, _, _, info = await env.step({"action": "scroll", "dy": 1})
        assert info["settle"]["settled"]
        assert info["determinism"]["flags"] == ["threads share memory, which they change in any order"]
        observation, _, _, _, info = await press(env, "Notify")


def page_of(env):
    """Return a page of an episode as the line knows it, and its exact."""
    exact = state_of(env._episode.context).exact
    (session,) = exact._pages.values()
    return session, exact


async def requested(env, count):
    """Wait until an episode's pages have begun so many requests."""
    episode = env._episode
    assert await poll(lambda: len(episode.activity.requests) >= count, timeout=30, interval=0.001)


async def test_a_page_that_has_crashed_is_reported_at_once(pair):
    env, other = pair
    session, _ = page_of(env)
    session.post("Page.crash")
    await session.gone.wait()
    with pytest.raises(InfraError, match="crashed"):
        await look(env)
    await look(other)


async def test_a_page_that_crashes_amid_a_step(pair):
    env, other = pair
    step = asyncio.ensure_future(press(env, "Fetch"))
    await requested(env, 20)
    page_of(env)[0].post("Page.crash")
    await look(other)
    with pytest.raises(InfraError, match="crashed"):
        await step


async def test_a_page_that_crashes_before_its_next_document_is_there(pair, monkeypatch):
    env, other = pair
    session, _ = page_of(env)
    probe = await PageProbe.of(env._episode.page)
    monkeypatch.setattr(probe._main_arrived, "set", lambda: None)
    with probe.expecting("Page.frameNavigated") as there:
        step = asyncio.ensure_future(env.step({"action": "goto", "url": env._episode.page.url}))
        await there
    session.post("Page.crash")
    with pytest.raises(InfraError, match="crashed"):
        await step
    await look(other)


@pytest.mark.parametrize("name", ["Click loops", "Timer loops", "Frame loops", "Worker loops"])
async def test_a_script_without_end_ends_its_page_alone(pair, impatient, name):
    env, other = pair
    step = asyncio.ensure_future(press(env, name))
    for _ in range(3):
        await press(other, "Popup")
    with pytest.raises(InfraError, match=r"of the processor|crashed"):
        await step


async def test_a_page_that_is_slow_is_no_page_that_loops(pair, impatient):
    busy = "(async () => { for (let i = 0; i < 60; i++) { await new Promise((go) => setTimeout(go)); for (let n = 0; n < 5e7; n++); } return 'ended'; })()"
    assert await (await PageProbe.of(pair[0]._episode.page)).evaluate(busy) == "ended"


async def test_a_frame_that_no_one_waits_for_any_more_is_ended_before_the_next(pair):
    env, other = pair
    (session, exact), (free, other_exact) = page_of(env), page_of(other)
    busy = "new ResizeObserver(() => { for (let n = 0; n < 1e9; n++); }).observe(document.body)"
    await session.send("Runtime.evaluate", {"expression": busy})
    first = asyncio.ensure_future(exact.frames.draw(session))
    await asyncio.wait([first], timeout=0.1)
    assert not first.done()
    (unfinished,) = connection_of(env._browser)._drawing
    first.cancel()
    second = asyncio.ensure_future(other_exact.frames.draw(free))
    await asyncio.wait([second, unfinished], return_when=asyncio.FIRST_COMPLETED)
    assert first.cancelled()
    assert unfinished.result() == {"hasDamage": False}
    assert not second.done()
    await second


@pytest.mark.parametrize("name", ["Frame asks", "Frame closes", "Popup"])
async def test_what_a_frame_may_do_ends_well(pair, name):
    *_, info = await press(pair[0], name)
    assert info["settle"]["settled"]
    assert len(info["dialogs"]) == (name == "Frame asks")


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.08, 0.3])
async def test_what_is_cancelled_leaves_nothing(pair, seconds):
    env, other = pair
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_again(env.step, {"action": "reload"}), seconds)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_again(env.reset, url=HOME), seconds)
    await look(other)


async def _again(call, *args, **named):
    while True:
        await call(*args, **named)


async def test_close_ends_a_step_amid_its_requests(pair):
    env, _ = pair
    sibling = env._sibling()
    await sibling.reset(url=HOME)
    step = asyncio.ensure_future(press(sibling, "Fetch"))
    await requested(sibling, 20)
    await sibling.close()
    with pytest.raises(EnvClosed):
        await step


async def _break(browser, what):
    process = await BrowserProcess.of(browser)
    if what == "line":
        connection_of(browser)._pipe.close()
    else:
        os.kill(getattr(process, what).pid, signal.SIGKILL)
    await process.release()


@pytest.mark.usefixtures("own_browsers")
@pytest.mark.parametrize("what", ["line", "browser", "driver"])
async def test_a_browser_that_is_lost_amid_a_step_is_replaced(replay, what):
    async with Env(replay.url, level="exact") as env:
        await env.reset(url=HOME)
        step = asyncio.ensure_future(press(env, "Fetch"))
        await requested(env, 20)
        await _break(env._browser, what)
        with pytest.raises(InfraError):
            await step
        await env.reset(url=HOME)
        await look(env)


@pytest.mark.usefixtures("own_browsers")
async def test_a_browser_without_its_line_is_replaced_before_it_is_closed(replay, monkeypatch):
    async def unclosed(_):
        await asyncio.Event().wait()

    async with Env(replay.url, level="exact") as env:
        await env.reset(url=HOME)
        monkeypatch.setattr(connection, "_close", unclosed)
        await _break(env._browser, "line")
        with pytest.raises(InfraError):
            await look(env)
        await env.reset(url=HOME)
        await look(env)


@pytest.mark.usefixtures("own_browsers")
async def test_a_shared_browser_that_has_ended_stays_an_infra_error(replay, ca):
    async with launch(spki=ca.spki_hashes(), exact=True) as mortal:
        env = Env(replay.url, browser=mortal, level="exact")
        await env.reset(url=HOME)
    for _ in range(2):
        with pytest.raises(InfraError):
            await env.reset(url=HOME)
    await env.close()


@pytest.mark.usefixtures("own_browsers")
async def test_a_vector_replaces_a_browser_whose_line_broke(replay):
    async with VectorEnv(replay.url, 2, level="exact") as vector:
        await asyncio.gather(*(vector.reset(i, url=HOME) for i in range(2)))
        await _break(vector._slots[0].lease.browser, "line")
        for i in range(2):
            with pytest.raises(InfraError):
                await vector.step(i, {"action": "reload"})
        starts = await asyncio.gather(*(vector.reset(i, url=HOME) for i in range(2)))
        assert {info["browser"] for _, info in starts} == {1}


async def test_a_worker_of_the_replay_that_dies_amid_a_step(collection, ca, browser):
    options = ReplayOptions(port=0, session_ports=None)
    async with (
        serve_cluster([collection], ca, options, workers=2) as cluster,
        ReplayClient(cluster.url) as control_api,
        Env(cluster.url, browser=browser, level="exact") as env,
    ):
        _, info = await env.reset(url=HOME)
        worker = cluster.workers[(await control_api.session(info["session"]))["worker"]]
        step = asyncio.ensure_future(press(env, "Fetch"))
        await requested(env, 20)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(InfraError):
            await step
        assert await poll(lambda: worker.alive, timeout=60)
        await env.reset(url=HOME)
        await look(env)
