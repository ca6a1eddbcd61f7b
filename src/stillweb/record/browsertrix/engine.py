"""Docker, and whether it can run the image: each way in which it cannot is an error with its next step."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable

from stillweb.errors import ProgramNotFound, RecordError
from stillweb.record.browsertrix.settings import Container

__all__ = ["ensure_image"]

_OTHERWISE = "or record with stillweb's own browser: --engine browser"


async def ensure_image(container: Container, say: Callable[[str], None]) -> None:
    """Make sure that the image is there; pull it if it is not.

    Raises:
        ProgramNotFound: if there is no Docker.
        RecordError: if its daemon does not answer us, or the image cannot be had.
    """
    program = container.program
    if shutil.which(program) is None:
        raise ProgramNotFound(
            f"--engine browsertrix needs {program}, which is not installed",
            hint=f"https://docs.docker.com/engine/install/, {_OTHERWISE}",
        )
    code, said = await _ask(program, "version", "--format", "{{.Server.Version}}")
    if code:
        raise _no_daemon(program, said)
    code, _ = await _ask(program, "image", "inspect", "--format", "{{.Id}}", container.image)
    if not code:
        return
    say(f"pulling {container.image}: it is not here yet, and large")
    code, said = await _ask(program, "pull", container.image)
    if code:
        hint = f"try it by hand: {program} pull {container.image}; or name one that is here by --image"
        raise RecordError(f"the image {container.image} cannot be pulled: {_last(said)}", hint=hint)


def _no_daemon(program: str, said: str) -> RecordError:
    if "permission denied" in said.lower():
        what, hint = "may not be used by this user", "sudo usermod -aG docker $USER, and log in again"
    else:
        what, hint = "is installed, but its daemon does not answer", "sudo systemctl start docker"
    return RecordError(f"{program} {what}: {_last(said)}", hint=f"{hint}; {_OTHERWISE}")


async def _ask(*call: str) -> tuple[int, str]:
    """Run a command of Docker; return its status and what it said to stderr."""
    process = await asyncio.create_subprocess_exec(
        *call,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    return process.returncode or 0, errors.decode("utf-8", "replace")


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"
