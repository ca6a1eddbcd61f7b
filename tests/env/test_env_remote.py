"""Episodes on a replay server that is not at 127.0.0.1, as one on another machine or in another container."""

from __future__ import annotations

import pytest
import pytest_asyncio
from small_site import ORIGIN

from stillweb.browser.launch import resolver_flag
from stillweb.env.env import Env
from stillweb.env.vector.vector import VectorEnv
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize(
    ("replay", "excluded"),
    [
        ("", []),
        ("http://127.0.0.1:8080", []),
        ("http://localhost:8080", []),
        ("http://replay:8080", ["replay"]),
        ("http://10.1.2.3:8080/", ["10.1.2.3"]),
        ("http://[fd00::1]:8080", ["[fd00::1]"]),
    ],
)
async def test_a_browser_resolves_the_host_of_its_proxy_alone(replay, excluded):
    rules = resolver_flag(replay).partition("=")[2].split(", ")
    assert rules == [
        "MAP * ~NOTFOUND",
        *(f"EXCLUDE {host}" for host in ["127.0.0.1", "localhost", *excluded]),
    ]


@pytest_asyncio.fixture(loop_scope="session")
async def remote(collection, ca):
    """A replay server at an address that a browser does not resolve by default."""
    async with serve([collection], ca, ReplayOptions(host="127.0.0.2", port=0, session_ports=None)) as server:
        yield server.url


async def test_an_environment_plays_on_it(remote):
    async with Env(remote) as env:
        observation, _ = await env.reset(url=ORIGIN + "/")
    assert observation.url == ORIGIN + "/"


async def test_browsers_of_a_vector_environment_reach_it(remote):
    async with VectorEnv(remote, 1) as env:
        observation, _ = await env.reset(0, url=ORIGIN + "/")
    assert observation.url == ORIGIN + "/"
