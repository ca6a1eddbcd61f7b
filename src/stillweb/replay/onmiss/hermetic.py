"""`python -m stillweb.replay.onmiss.hermetic`: the native server as a child of the program in front of it.

It is told what to serve by a line of JSON on stdin, says where it listens, or why it does not, by a line on
stdout, ends when stdin does, however its parent ended, and says on a last line what it answered. Its
misses are held for the parent to conclude. As any native server it has no way to connect to anything.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import StillwebError
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy
from stillweb.replay.server import process as logs
from stillweb.replay.server.process import as_told, run
from stillweb.replay.server.server import ReplayOptions, serve

__all__ = ["main"]


async def _run() -> int:
    try:
        await _serve()
    except StillwebError as error:
        _say(as_told(error))
        return error.exit_code
    return 0


async def _serve() -> None:
    told: dict[str, Any] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    logs.configure(*told["log"])
    collections = [Collection.open(Path(root), name) for root, name in told["collections"]]
    options = ReplayOptions(
        port=0,
        session_ports=None,
        ledger=Path(told["ledger"]) if told["ledger"] else None,
        policy=Policy(default_noise(), **told["policy"]),
        drain=1,
        hold_misses=True,
    )
    async with serve(collections, CertAuthority.load(Path(told["certs"])), options) as server:
        _say({"url": server.url})
        await asyncio.to_thread(sys.stdin.read)
        totals = dict(server.totals)
    _say({"totals": totals})


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until stdin ends."""
    sys.exit(run(_run()))


if __name__ == "__main__":
    main()
