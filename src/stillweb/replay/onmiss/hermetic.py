"""The native server behind the front, a child process: `Hermetic` starts and ends it, `main` is the child.

A line of JSON on stdin configures the child. A line on its stdout reports its URL, or its error; the last
line its totals. It ends when stdin ends, however its parent ended. It holds its misses until the parent
concludes them. Like every native server it opens no connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import ReplayError, StillwebError
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.replay.server import runtime
from stillweb.replay.server.runtime import error_from_json, error_to_json, run
from stillweb.replay.server.server import ReplayOptions, serve

logger = logging.getLogger(__name__)

_START = 60.0  # seconds until it listens, on a busy machine
_GRACE = 30.0  # seconds until it ends


@dataclass(frozen=True, slots=True)
class HermeticOptions:
    """How the hermetic server serves.

    Attributes:
        ledger: file to which it appends every response.
        policy: fields of `Policy`: `guessed`, `fuzzy`, `pace`, `unrecorded`.
        log: format and level of its log, as for `configure_logging`.
    """

    ledger: Path | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, str] = ("text", "warning")


class Hermetic:
    """The native server as a child process.

    Attributes:
        url: of its control API and default session; no other process knows it.
        totals: responses by tier, once it has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.url = ""
        self.totals: dict[str, int] = {}
        self._process = process

    @classmethod
    async def start(
        cls, collections: Sequence[Collection], ca: CertAuthority, options: HermeticOptions
    ) -> Hermetic:
        """Start the process and wait until it listens.

        Args:
            collections: sealed; the first is that of the default session.

        Raises:
            StillwebError: the error that it reports.
            ReplayError: if it does not listen for another reason; see stderr.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stillweb.replay.onmiss.hermetic"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the front; the child ends with its stdin
        )
        running = cls(process)
        config = {
            "collections": [[str(each.root), each.name] for each in collections],
            "certs": str(ca.ca_file.parent),
            "ledger": str(options.ledger) if options.ledger else None,
            "policy": options.policy,
            "log": options.log,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode() + b"\n")
        try:
            async with asyncio.timeout(_START):
                running.url = await running._reported("url")
        except TimeoutError:
            await running.stop()
            raise ReplayError(f"the replay server did not start within {_START:g} s") from None
        except BaseException:
            await running.stop()
            raise
        return running

    async def _reported(self, what: str) -> Any:
        assert self._process.stdout is not None
        try:
            reported: dict[str, Any] = json.loads(await self._process.stdout.readline() or b"{}")
        except ValueError as error:
            raise ReplayError(f"the replay server reported invalid JSON: {error}") from error
        if "error" in reported:
            raise error_from_json(reported)
        if what not in reported:
            raise ReplayError(
                "the replay server ended before it listened", hint="stillweb collections check NAME"
            )
        return reported[what]

    async def wait(self) -> None:
        """Wait until it ends, which it does on its own only if it fails.

        Raises:
            ReplayError: when it has ended.
        """
        status = await self._process.wait()
        raise ReplayError(f"the replay server behind the front ended with status {status}")

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                if self.url and self._process.returncode is None:
                    self.totals = await self._reported("totals")
                await self._process.wait()
        except (TimeoutError, StillwebError) as error:
            logger.warning("the replay server does not end properly: %s", error)
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()


# The child.


async def _run() -> int:
    try:
        await _serve()
    except StillwebError as error:
        _report(error_to_json(error))
        return error.exit_code
    return 0


async def _serve() -> None:
    config: dict[str, Any] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    runtime.configure_logging(*config["log"])
    collections = [Collection.open(Path(root), name) for root, name in config["collections"]]
    options = ReplayOptions(
        port=0,
        session_ports=None,
        ledger=Path(config["ledger"]) if config["ledger"] else None,
        policy=_policy(config["policy"]),
        drain=1,
        hold_misses=True,
    )
    async with serve(collections, CertAuthority.load(Path(config["certs"])), options) as server:
        _report({"url": server.url})
        await asyncio.to_thread(sys.stdin.read)
        totals = dict(server.totals)
    _report({"totals": totals})


def _policy(given: dict[str, Any]) -> Policy:
    unrecorded = UnrecordedAnswers(**given.get("unrecorded", {}))
    return Policy(default_noise(), **(given | {"unrecorded": unrecorded}))


def _report(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until stdin ends."""
    sys.exit(run(_run()))


if __name__ == "__main__":
    main()
