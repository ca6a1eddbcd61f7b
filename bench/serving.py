"""`stillweb replay serve` as a program of its own, for the benchmarks that measure or kill it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def program(
    *collections: str, root: Path, certs: Path, workers: int = 1, quiet: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """Run a server on free ports; yields it and what it says of itself. Ended on leaving, gently.

    `quiet` drops its messages to people.
    """
    command = (
        *(sys.executable, "-m", "stillweb", "replay", "serve", *collections, "--json"),
        *("--port", "0", "--session-ports", "any"),
        *("--collections", str(root), "--certs", str(certs)),
        *(("--workers", str(workers)) if workers > 1 else ()),
    )
    stderr = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True) as server:
        assert server.stdout is not None
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line == b"}\n":
                    break
            yield server, json.loads(b"".join(lines))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
