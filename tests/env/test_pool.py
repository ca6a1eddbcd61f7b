"""A pool's browsers: their states, and that none of their processes stays behind, whichever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from families import below, gone
from playwright.async_api import Error as PlaywrightError

from stillweb.env.vector.pool import BrowserPool, BrowserState, PoolOptions
from stillweb.errors import EnvClosed, InfraError, ProgramNotFound
from stillweb.polling import poll

pytestmark = [
    pytest.mark.browser,
    pytest.mark.usefixtures("own_browsers"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

PARENT = """
import asyncio, sys
from stillweb.env.vector.pool import BrowserPool
async def main():
    async with BrowserPool(()) as pool:
        lease = await pool.lease()
        page = await lease.browser.new_page()
        spinning = asyncio.ensure_future(page.evaluate("for (;;) {}"))
        known = pool.browsers()[0]
        print(known["pid"], known["driver_pid"], flush=True)
        await asyncio.wait([spinning])
asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["parent", "driver", "browser"])
async def test_actor_is_killed_no_process_stays_behind(victim):
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    browser, driver = map(int, (await parent.stdout.readline()).split())
    family = below(parent.pid)
    assert {browser, driver} < set(family)
    os.kill({"parent": parent.pid, "driver": driver, "browser": browser}[victim], signal.SIGKILL)
    assert await gone(family)
    await parent.communicate()


async def test_a_driver_that_is_killed_leaves_no_profile_and_no_process():
    async with BrowserPool(()) as pool:
        lease = await pool.lease()
        profile = pool._slots[0].process.profile
        assert profile.is_dir()
        [known] = pool.browsers()
        family = below(known["driver_pid"])
        os.kill(known["driver_pid"], signal.SIGKILL)
        assert await poll(lambda: lease.state is BrowserState.ENDED, timeout=30)
        assert await gone(family)
    assert not profile.exists()


async def test_a_driver_that_hangs_is_found_and_killed(monkeypatch):
    monkeypatch.setattr("stillweb.env.vector.pool._ANSWER_SECONDS", 0.2)
    async with BrowserPool(()) as pool:
        lease = await pool.lease()
        [known] = pool.browsers()
        family = below(known["driver_pid"])
        await lease.examine()
        assert lease.state is BrowserState.SERVING
        os.kill(known["driver_pid"], signal.SIGSTOP)
        await lease.examine()
        assert await poll(lambda: lease.state is BrowserState.ENDED, timeout=30)
        assert await gone(family)
        other = await pool.lease()
        assert (other.number, other.browser.is_connected()) == (1, True)


async def test_a_browser_serves_its_budget_and_drains_with_its_last_lease():
    async with BrowserPool((), PoolOptions(episodes=3)) as pool:
        one, two = await pool.lease(), await pool.lease()
        assert one.browser is two.browser
        assert two.renew()
        assert one.state is BrowserState.DRAINING
        assert not one.renew()
        three = await pool.lease()
        assert three.browser is not one.browser
        one.release()
        one.release()
        assert (one.browser.is_connected(), two.state) == (True, BrowserState.DRAINING)
        two.release()
        assert await poll(lambda: two.state is BrowserState.ENDED, timeout=30)
        assert [known["number"] for known in pool.browsers()] == [1]
        assert not two.browser.is_connected()
        assert three.browser.is_connected()


async def test_leases_are_spread_over_the_browsers_and_a_lost_one_is_replaced():
    async with BrowserPool((), PoolOptions(browsers=2)) as pool:
        leases = await asyncio.gather(*(pool.lease() for _ in range(4)))
        assert [lease.number for lease in leases] == [0, 1, 0, 1]
        os.kill(pool.browsers()[0]["pid"], signal.SIGKILL)
        assert await poll(lambda: leases[0].state in (BrowserState.LOST, BrowserState.ENDED), timeout=30)
        assert not leases[0].renew()
        assert leases[1].renew()
        with pytest.raises(PlaywrightError):
            await leases[2].browser.new_page()
        assert (await pool.lease()).number == 2


async def test_what_does_not_start_is_reported_and_the_next_lease_tries_again(tmp_path):
    with pytest.raises(ProgramNotFound):
        await BrowserPool((), PoolOptions(executable=tmp_path / "absent")).lease()
    crashing = tmp_path / "browser"
    crashing.write_text("#!/bin/sh\nexit 1\n")
    crashing.chmod(0o755)
    async with BrowserPool((), PoolOptions(executable=crashing)) as pool:
        for _ in range(2):
            with pytest.raises(InfraError, match="did not start"):
                await pool.lease()
        assert pool.browsers() == []
    with pytest.raises(EnvClosed):
        await pool.lease()


async def test_close_ends_a_browser_that_is_starting():
    pool = BrowserPool(())
    lease = asyncio.ensure_future(pool.lease())
    await asyncio.wait([lease], timeout=0.01)
    family = set(below(os.getpid())) - {os.getpid()}
    await pool.close()
    with pytest.raises(EnvClosed):
        await lease
    assert pool.browsers() == []
    assert family
