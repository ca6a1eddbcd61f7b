"""A collection sealed anew while an environment lives: the next episode is all of the new recording."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from small_site import ORIGIN, build

from stillweb.env.env import Env
from stillweb.replay import ReplayOptions, ensure_sealed, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_reset_takes_seed_and_pack_of_one_recording(tmp_path, ca, browser):
    collection = build(tmp_path)
    options = ReplayOptions(port=0, session_ports=None)
    async with serve([collection], ca, options) as server, Env(server.url, browser=browser) as env:
        _, before = await env.reset(url=ORIGIN + "/")
        collection.write_manifest(replace(collection.manifest(), seed=9))
        await asyncio.to_thread(ensure_sealed, collection)
        _, after = await env.reset(url=ORIGIN + "/")
        assert (before["seed"], after["seed"]) == (5, 9)
        assert before["environment_id"] != after["environment_id"]
        assert after["environment_id"] == (await server.info()).collections["small"]
