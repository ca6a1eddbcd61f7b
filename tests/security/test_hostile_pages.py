"""Pages that take without end are stopped with a typed outcome, and other episodes of the browser run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from stillweb.browser.launch import MEMORY_VARIABLE, launch
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env
from stillweb.env.episode import tabs
from stillweb.errors import InfraError
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.server import ReplayOptions, ReplayServer, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ORIGIN = "https://greedy.test"
RECORDED = "20240506070809"
# A step begins each of them, so that the reset of the page is an ordinary one.
PAGES = {
    "/": "<title>Neighbour</title><button>Go</button>",
    "/tabs": "<button onclick='for (let n = 0; n < 12; n++) window.open(`/`)'>Go</button>",
    "/dialogs": "<button onclick='for (let n = 0; n < 1000; n++) alert(n)'>Go</button>",
    "/memory": """<button>Go</button><script>
let held = [], refused = 0;
document.querySelector("button").onclick = () => {
  for (let n = 0; n < 24; n++) {
    try { held.push(new Uint8Array(256 << 20).fill(1)); } catch (error) { refused++; }
  }
  document.title = `held ${held.length}, refused ${refused}`;
};</script>""",
    "/canvases": """<button>Go</button><p></p><script>
document.querySelector("button").onclick = () => {
  for (let n = 0; n < 3; n++) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 4096;
    const gl = canvas.getContext("webgl");
    for (let texture = 0; gl && texture < 20; texture++) {
      gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 4096, 4096, 0, gl.RGBA, gl.UNSIGNED_BYTE, null);
    }
    gl?.clear(gl.COLOR_BUFFER_BIT);
    document.querySelector("p").append(canvas);
  }
};</script>""",
}
LIMIT_MIB = 1500


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, ca: CertAuthority
) -> AsyncIterator[tuple[ReplayServer, CertAuthority]]:
    folder: Path = tmp_path_factory.mktemp("greedy")
    collection = Collection.create(folder, "greedy")
    with CollectionWriter(collection) as writer:
        for path, text in PAGES.items():
            body = b"<!doctype html>" + text.encode()
            fields = (("Content-Type", "text/html"), ("Content-Length", str(len(body))))
            exchange = Exchange(Request("GET", ORIGIN + path), Response(200, "OK", fields, body), RECORDED)
            writer.write(exchange)
    collection.write_manifest(Manifest(name="greedy", recorded_at=RECORDED, seed=5))
    seal(collection)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as opened:
        yield opened, ca


async def click(env: Env) -> tuple[str, str]:
    """Click the page's only button; return the title, and the status of the action."""
    shown = await env.observe("axtree")
    bid = next(node.bid for node in shown.nodes if node.role == "button")
    observation, *_, info = await env.step({"action": "click", "bid": bid})
    return observation.title, info["action"]["status"]


async def click_twice(env: Env) -> None:
    """Click twice: an event may arrive after the step that caused it."""
    await click(env)
    await click(env)


@pytest.mark.parametrize("path", ["/tabs", "/dialogs"])
async def test_a_flood_ends_the_episode_and_no_other(
    server: tuple[ReplayServer, CertAuthority], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    replay, ca = server
    monkeypatch.setattr(tabs, "MAX_TABS", 8)  # 64 tabs take seconds to open
    async with (
        launch(spki=ca.spki_hashes()) as browser,
        Env(replay.url, browser=browser) as greedy,
        Env(replay.url, browser=browser) as neighbour,
    ):
        await neighbour.reset(url=ORIGIN + "/")
        await greedy.reset(url=ORIGIN + path)
        with pytest.raises(InfraError, match=rf"exceeded a limit of its episode: more than \d+ .*{path[1:]}"):
            await click_twice(greedy)
        assert await click(neighbour) == ("Neighbour", "ok")
        observation, _ = await greedy.reset(url=ORIGIN + "/")
        assert observation.title == "Neighbour"


async def test_the_memory_of_a_page_is_bounded(
    server: tuple[ReplayServer, CertAuthority], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, ca = server
    monkeypatch.setenv(MEMORY_VARIABLE, str(LIMIT_MIB))
    async with (
        launch(spki=ca.spki_hashes()) as browser,
        Env(replay.url, browser=browser) as greedy,
        Env(replay.url, browser=browser) as neighbour,
    ):
        await neighbour.reset(url=ORIGIN + "/")
        await greedy.reset(url=ORIGIN + "/memory")
        try:
            title, _ = await click(greedy)
        except InfraError as error:  # Chromium ends a renderer that lacks memory elsewhere
            title = str(error)
        numbers = [int(word) for word in title.replace(",", "").split() if word.isdecimal()]
        assert "crashed" in title or (sum(numbers) == 24 and numbers[0] * 256 < LIMIT_MIB), title
        assert await click(neighbour) == ("Neighbour", "ok")


async def test_a_page_that_exhausts_the_drawing_process_ends_no_other_episode(
    server: tuple[ReplayServer, CertAuthority], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, ca = server
    monkeypatch.setenv(MEMORY_VARIABLE, str(LIMIT_MIB))
    async with (
        launch(spki=ca.spki_hashes(), exact=True) as browser,
        Env(replay.url, browser=browser, level="exact") as greedy,
        Env(replay.url, browser=browser, level="exact") as neighbour,
    ):
        await neighbour.reset(url=ORIGIN + "/")
        await greedy.reset(url=ORIGIN + "/canvases")
        with suppress(InfraError):
            await click(greedy)
        assert await click(neighbour) == ("Neighbour", "ok")
