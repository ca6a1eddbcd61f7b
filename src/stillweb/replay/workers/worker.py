"""`python -m stillweb.replay.workers.worker FD`: one worker, a complete replay server.

The supervisor sends its configuration on standard input. Over the channel FD the worker reports that it is
ready and receives connections; it answers the control API on a Unix socket of its own. After SIGTERM it
finishes current responses. The end of the channel means that the supervisor is gone, and ends the worker
immediately. Ctrl-C is ignored: the terminal sends it to the supervisor, too.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import StillwebError
from stillweb.http.control import DEFAULT_SESSION
from stillweb.http.wire import refusal
from stillweb.replay.server import runtime
from stillweb.replay.server.runtime import error_to_json, run
from stillweb.replay.server.server import ReplayOptions, ReplayServer, serve
from stillweb.replay.workers.channel import Channel
from stillweb.replay.workers.router import AdoptedConnection, session_of


@dataclass(frozen=True, slots=True)
class ReplayWorkerConfig:
    """Configuration of a worker; pickled between two processes of one installation.

    Attributes:
        number: from 0.
        collections: root and name of each.
        certs: folder of the CA.
        options: with a private socket, and ports that the supervisor chooses.
        log: format and level.
    """

    number: int
    collections: Sequence[tuple[Path, str]]
    certs: Path
    options: ReplayOptions
    log: tuple[runtime.Format, str]

    def pack(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def unpack(packed: bytes) -> ReplayWorkerConfig:
        config = pickle.loads(packed)
        assert isinstance(config, ReplayWorkerConfig)
        return config


class _Worker:
    def __init__(self, config: ReplayWorkerConfig, end: socket.socket) -> None:
        self._config = config
        self._ends = asyncio.Event()
        self._server: ReplayServer | None = None
        self._channel = Channel(end, on_connection=self._arrive, on_closed=self._orphaned)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    async def run(self) -> int:
        config = self._config
        collections = [Collection(root, name) for root, name in config.collections]
        try:
            async with serve(collections, CertAuthority.load(config.certs), config.options) as server:
                self._server = server
                gc.freeze()  # a collection over the loaded packs takes tens of ms, while responses wait
                self._report({"ready": True})
                await self._ends.wait()
        except StillwebError as error:
            self._report(error_to_json(error))
            return error.exit_code
        self._report({"answered": dict(server.totals)})
        self._channel.close()
        return 0

    def _end(self) -> None:
        if not self._ends.is_set():  # later connections are refused
            self._ends.set()
            self._report({"ending": True})

    def _report(self, message: Mapping[str, Any]) -> None:
        self._channel.send(json.dumps(message).encode())

    def _arrive(self, descriptor: int, data: bytes) -> None:
        client = socket.socket(fileno=descriptor)
        if self._server is None or self._ends.is_set():  # it was sent before the supervisor had read `ending`
            with client, suppress(OSError):
                client.send(refusal(503))
            return
        self._server.spawn(_adopt(self._server, client, data))

    def _orphaned(self) -> None:
        private = self._config.options.private
        if private is not None:  # the supervisor would have removed its folder
            shutil.rmtree(private.parent, ignore_errors=True)
        os._exit(1)  # no requests will come, and every line of the ledger is written


async def _adopt(server: ReplayServer, client: socket.socket, data: bytes) -> None:
    client.setblocking(False)
    target = server.public if session_of(data) == DEFAULT_SESSION else server.named
    loop = asyncio.get_running_loop()
    with suppress(OSError):  # the client disconnected meanwhile
        await loop.connect_accepted_socket(lambda: AdoptedConnection(target, data), client)


async def _run(config: ReplayWorkerConfig, end: socket.socket) -> int:
    return await _Worker(config, end).run()


def main() -> None:
    """Serve until SIGTERM or the end of the channel."""
    config = ReplayWorkerConfig.unpack(sys.stdin.buffer.read())
    runtime.configure_logging(*config.log, worker=config.number)
    sys.exit(run(_run(config, socket.socket(fileno=int(sys.argv[1])))))


if __name__ == "__main__":
    # Under its own name, so that pickled classes are found.
    importlib.import_module("stillweb.replay.workers.worker").main()
