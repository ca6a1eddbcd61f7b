"""The hermetic server as a child process of the front: started, watched, ended with it (`hermetic`)."""

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
from stillweb.replay.server.process import failure

__all__ = ["Hermetic", "HermeticOptions"]

logger = logging.getLogger(__name__)

_START = 60.0  # seconds that it may take until it listens: machines are busy
_GRACE = 30.0  # and to end


@dataclass(frozen=True, slots=True)
class HermeticOptions:
    """How it serves.

    Attributes:
        ledger: file to which it appends every answer.
        policy: of strict matching, as `Policy` has it: `guessed`, `fuzzy`, `pace`.
        log: form and level of its log, as `logs.configure` has them.
    """

    ledger: Path | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, str] = ("text", "warning")


class Hermetic:
    """The native server as a child process.

    Attributes:
        url: of its control API and default session; only we know it.
        totals: answers by tier, once it has ended.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.url = ""
        self.totals: dict[str, int] = {}
        self._process = process

    @classmethod
    async def start(
        cls, collections: Sequence[Collection], ca: CertAuthority, options: HermeticOptions
    ) -> Hermetic:
        """Start it and wait until it listens.

        Args:
            collections: sealed; the first is that of the default session.
            ca: what it signs with.
            options: how it serves.

        Raises:
            StillwebError: what it cannot serve for, as it has told.
            ReplayError: if it does not listen for another cause, of which stderr may tell.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stillweb.replay.onmiss.hermetic"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )
        running = cls(process)
        told = {
            "collections": [[str(each.root), each.name] for each in collections],
            "certs": str(ca.ca_file.parent),
            "ledger": str(options.ledger) if options.ledger else None,
            "policy": options.policy,
            "log": options.log,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode() + b"\n")
        try:
            async with asyncio.timeout(_START):
                running.url = await running._said("url")
        except TimeoutError:
            await running.stop()
            raise ReplayError(f"the replay server did not start within {_START:g} s") from None
        except BaseException:
            await running.stop()
            raise
        return running

    async def _said(self, what: str) -> Any:
        assert self._process.stdout is not None
        try:
            said: dict[str, Any] = json.loads(await self._process.stdout.readline() or b"{}")
        except ValueError as error:
            raise ReplayError(f"the replay server said what is no JSON: {error}") from error
        if "error" in said:
            raise failure(said)
        if what not in said:
            raise ReplayError(
                "the replay server ended before it listened", hint="stillweb collections check NAME"
            )
        return said[what]

    async def wait(self) -> None:
        """Wait until it ends, which it only does by itself if it fails.

        Raises:
            ReplayError: when it has ended.
        """
        status = await self._process.wait()
        raise ReplayError(f"the replay server behind the front ended with status {status}")

    async def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                if self.url and self._process.returncode is None:
                    self.totals = await self._said("totals")
                await self._process.wait()
        except (TimeoutError, StillwebError) as error:
            logger.warning("the replay server does not end as it should: %s", error)
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
