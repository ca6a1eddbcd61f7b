"""`python -m stillweb.replay.onmiss.hermetic`: the native server as a child process of the front.

A line of JSON on stdin configures it. A line on stdout reports its URL, or its error; the last line its
totals. It ends when stdin ends, however its parent ended. It holds its misses until the parent concludes
them. Like every native server it opens no connection.
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
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.replay.server import process as logs
from stillweb.replay.server.process import error_to_json, run
from stillweb.replay.server.server import ReplayOptions, serve


async def _run() -> int:
    try:
        await _serve()
    except StillwebError as error:
        _report(error_to_json(error))
        return error.exit_code
    return 0


async def _serve() -> None:
    config: dict[str, Any] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    logs.configure(*config["log"])
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
