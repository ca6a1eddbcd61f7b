"""Ctrl-C: the first lets a command end cleanly, the second ends it."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from stillweb.cli.console import until_signal
from stillweb.errors import InfraError

PROGRAM = """
import asyncio
from stillweb.cli.console import until_signal

async def main():
    print("ready", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("ending", flush=True)
        if STUCK:
            await asyncio.Event().wait()

until_signal(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stuck", [False, True])
async def test_a_second_signal_ends_what_the_first_did_not(number, stuck):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"STUCK = {stuck}\n{PROGRAM}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert await program.stdout.readline() == b"ready\n"
    program.send_signal(number)
    assert await program.stdout.readline() == b"ending\n"
    if stuck:
        program.send_signal(number)
    _, errors = await program.communicate()
    assert program.returncode == (-number if stuck else 1)
    assert (b"Abort" in errors) is not stuck


DEADLINE = """
import asyncio, time
from stillweb.cli.console import on_signals

async def main():
    stopped = on_signals(deadline=2.0)
    print("ready", flush=True)
    await stopped.wait()
    if BLOCKED:
        time.sleep(60)
    await asyncio.sleep(3.0)

asyncio.run(main())
"""


@pytest.mark.parametrize("blocked", [False, True])
async def test_the_deadline_is_for_code_that_blocks_the_loop(blocked):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"BLOCKED = {blocked}\n{DEADLINE}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert await program.stdout.readline() == b"ready\n"
    program.send_signal(signal.SIGTERM)
    _, errors = await program.communicate()
    assert (program.returncode, b"Timeout" in errors) == (blocked, blocked)


async def _in_group(*coroutines):
    async with asyncio.TaskGroup() as group:
        for each in coroutines:
            group.create_task(each)


async def _fail(error):
    raise error


@pytest.mark.parametrize(
    ("other", "raised"),
    [(InfraError("proxy ended"), InfraError), (ZeroDivisionError("a fault of the program"), ExceptionGroup)],
)
def test_a_task_group_that_fails_by_known_errors_only_raises_the_first(other, raised):
    with pytest.raises(raised):
        until_signal(_in_group(_in_group(_fail(InfraError("browser ended")), _fail(other))))
