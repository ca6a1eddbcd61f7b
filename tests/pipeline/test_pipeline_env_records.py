"""An Env records by being given a recording proxy, and what it recorded replays to the same observations."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_site import LiveSite, live_site
from shared_sites import sites_up

from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env import Env, EnvOptions
from stillweb.errors import CollectionNotFound, InfraError, RecordError, UsageError
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.record import record_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.proxy.running import RecordingProxy
from stillweb.replay import ReplayClient, ReplayOptions, serve

pytestmark = [
    pytest.mark.browser,
    # mitmproxy 11 and what its default addons import, not us.
]
KINDS = ("axtree", "screenshot")

Choice = Callable[[Any], dict[str, Any]]  # from an observation to an action


@asynccontextmanager
async def recording(
    collection: Collection, ca: CertAuthority, options: RecordOptions
) -> AsyncIterator[RecordingProxy]:
    """Record until the end of the block, as `stillweb record proxy` does until Ctrl-C."""
    started: asyncio.Future[RecordingProxy] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(record_proxy(collection, ca, options, started.set_result))
    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield await started if started.done() else await task  # type: ignore[misc]
    finally:
        task.cancel()
        await asyncio.wait([task])


def click(role: str, name: str) -> Choice:
    def choose(observation: Any) -> dict[str, Any]:
        found = [node.bid for node in observation.nodes if node.role == role and name in node.name]
        return {"action": "click", "bid": found[0]}

    return choose


def go(url: str) -> Choice:
    return lambda _: {"action": "goto", "url": url}


async def episode(env: Env, url: str, choices: Sequence[Choice]) -> list[dict[str, Any]]:
    observation, info = await env.reset(url=url)
    seen = [shown(observation, info)]
    for choose in choices:
        observation, _, _, _, info = await env.step(choose(observation))
        seen.append(shown(observation, info))
    return seen


def shown(observation: Any, info: dict[str, Any]) -> dict[str, Any]:
    traffic = info["traffic"]
    return {
        "url": observation.url,
        **observation.digests,
        "action": info["action"],
        "misses": (traffic["misses"], traffic["missed"]),
    }


async def there_and_again(
    folder: Path, ca: CertAuthority, options: RecordOptions, level: str, url: str, choices: Sequence[Choice]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what an episode shows on the live site, and what the same actions show on its recording."""
    collection = Collection.create(folder / "collections", "site")
    stored = EnvOptions(trajectories=folder / "trajectories")
    async with (
        recording(collection, ca, options) as proxy,
        Env(proxy.url, level=level, observe=KINDS, options=stored) as env,
    ):
        live = await episode(env, url, choices)
    assert collection.manifest().state == "complete"
    assert check(collection) == []
    seal(collection)
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        Env(server.url, level=level, observe=KINDS) as env,
    ):
        replayed = await episode(env, url, choices)
    stamps = [json.loads(path.read_text("utf-8").splitlines()[0]) for path in trajectories(folder)]
    assert stamps, "no trajectory was kept"
    assert all('"recording"' in json.dumps(stamp) for stamp in stamps)
    return live, replayed


def trajectories(folder: Path) -> list[Path]:
    return sorted((folder / "trajectories").rglob("trajectory.jsonl"))


@pytest.mark.sites
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("level", "url", "choices"),
    [
        (
            "network",
            "https://docs.test/",
            [click("link", "Tutorial"), click("link", "Whetting"), lambda _: {"action": "back"}],
        ),
        (
            "clock",
            "https://shop.test/",
            [click("link", "Garden"), click("button", "Add to basket"), go("https://shop.test/basket/")],
        ),
    ],
    ids=["docs-network", "shop-clock"],
)
async def test_an_episode_on_a_live_site_replays(tmp_path: Path, ca, level: str, url: str, choices) -> None:
    site = url.split("/")[2].removesuffix(".test")
    live, replayed = await there_and_again(tmp_path, ca, sites_up(site), level, url, choices)

    assert replayed == live
    assert all(each["misses"] == (0, []) and each["action"]["status"] == "ok" for each in live)


@asynccontextmanager
async def live_env(
    folder: Path, ca: CertAuthority, site: LiveSite, **more: Any
) -> AsyncIterator[tuple[Any, ...]]:
    collection = Collection.create(folder / "collections", "site")
    options = RecordOptions(resolve=parse_all([site.resolve]))
    async with recording(collection, ca, options) as proxy:
        env = Env(proxy.url, **more)
        try:
            yield env, proxy, collection
        finally:
            await env.close()


async def test_sessions_end_with_their_episodes_and_limits_are_reported(tmp_path: Path, ca) -> None:
    async with (
        live_site() as site,
        live_env(tmp_path, ca, site) as (env, proxy, _),
        ReplayClient(proxy.url) as control_api,
    ):
        _, info = await env.reset(url="http://live.test/")
        assert (info["backend"], info["environment_id"]) == ("record", "recording")
        assert [each["id"] for each in await control_api.sessions()][1:] == [info["session"]]
        with pytest.raises(UsageError, match="fork"):
            await env.fork(2)
        await env.reset(url="http://live.test/")
        assert len(await control_api.sessions()) == 2  # the default one, and the episode's
        with pytest.raises(CollectionNotFound, match="other"):
            async with Env(proxy.url, "other") as other:
                await other.reset(url="http://live.test/")
        with pytest.raises(UsageError, match="live site"):
            await Env(proxy.url, level="exact").start()
        await env.close()
        assert len(await control_api.sessions()) == 1


async def test_a_site_that_is_down_and_an_archive_that_cannot_be_written_are_ours(tmp_path: Path, ca) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        no_one = LiveSite(taken.getsockname()[1])
    async with live_env(tmp_path / "down", ca, no_one) as (env, _, _):
        with pytest.raises(InfraError, match=r"refused|Connect"):
            await env.reset(url="http://live.test/")

    async with live_site() as site, live_env(tmp_path / "full", ca, site) as (env, proxy, collection):
        collection.archive.rmdir()
        collection.archive.write_text("in the way")
        with pytest.raises(InfraError):  # the recording has ended
            await env.reset(url="http://live.test/")
        with pytest.raises(RecordError, match="could not be written"):
            proxy.check()
        collection.archive.unlink()
