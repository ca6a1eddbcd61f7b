"""How a driver that has died is known."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.driver import as_playwright_error, is_driver_gone, playwright_driver
from stillweb.errors import InfraError


async def write_to_a_program_that_has_ended():
    program = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    program.kill()
    await program.wait()
    for _ in range(1000):
        program.stdin.write(b"x" * 4096)
        await asyncio.sleep(0)


def test_uvloops_error_is_known():
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(RuntimeError) as raised:
        runner.run(write_to_a_program_that_has_ended())
    assert is_driver_gone(raised.value)


def test_uvloops_error_becomes_playwrights():
    uvloop = pytest.importorskip("uvloop")

    async def write():
        with as_playwright_error():
            await write_to_a_program_that_has_ended()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(PlaywrightError):
        runner.run(write())


def test_asyncios_own_loop_has_none():
    asyncio.run(write_to_a_program_that_has_ended())


def test_other_errors_are_others():
    assert not is_driver_gone(RuntimeError("no running event loop"))
    assert not is_driver_gone(ValueError("the handler is closed"))


async def test_a_driver_that_does_not_start_is_named_with_what_the_system_says(monkeypatch, tmp_path):
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho 'libatomic.so.1: cannot open shared object file' >&2\nexit 127\n")
    node.chmod(0o755)
    for module in ("playwright._impl.transport", "stillweb.browser.driver"):
        monkeypatch.setattr(f"{module}.compute_driver_executable", lambda: (str(node), "cli.js"))
    with pytest.raises(InfraError, match=r"driver did not start: libatomic.so.1") as raised:
        async with playwright_driver():
            pytest.fail("the driver is a program that ends")
    assert "libatomic1" in raised.value.hint
