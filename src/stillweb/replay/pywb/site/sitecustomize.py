"""Changes to the pywb process, which Python loads there before pywb; stillweb never imports this module.

It changes that process through Python and pyOpenSSL only, and imports no part of pywb:

- Listeners get TCP_NODELAY, which accepted sockets inherit on Linux. pywb's proxy sends each header line in
a packet of
  its own, and Nagle's algorithm would wait 40 ms for the client's delayed ACK.
- Connections to other machines are refused: a replay never reaches the network, whatever is configured.
- Keys that pyOpenSSL generates are the one leaf key of the CA. One SPKI hash then covers these
certificates, too, and
  making one needs no RSA key.
- The process dies with its parent, so a killed server leaves no pywb behind.
"""

from __future__ import annotations

import _socket
import importlib.machinery
import ipaddress
import os
import signal
import sys
from types import ModuleType
from typing import Any

LEAF_KEY_VARIABLE = "STILLWEB_LEAF_KEY"
PARENT_VARIABLE = "STILLWEB_PARENT"
_PR_SET_PDEATHSIG = 1  # prctl(2)


class _Socket(_socket.socket):
    """Base class of `socket.socket` and gevent's socket in this process."""

    __slots__ = ()

    def listen(self, *backlog: int) -> None:
        if self.family in (_socket.AF_INET, _socket.AF_INET6):
            self.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        super().listen(*backlog)

    def connect(self, address: Any) -> None:
        _refuse_remote(address)
        super().connect(address)

    def connect_ex(self, address: Any) -> int:
        _refuse_remote(address)
        return super().connect_ex(address)


def _refuse_remote(address: Any) -> None:
    if not isinstance(address, tuple) or address[0] == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConnectionRefusedError(f"replay opens no connection to {address[0]}")


class _SharedKey:
    """An import hook that changes `PKey` of `OpenSSL.crypto` and then removes itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "OpenSSL.crypto":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._share(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _share(self, crypto: Any) -> None:
        with open(self._path, "rb") as file:
            shared = crypto.load_privatekey(crypto.FILETYPE_PEM, file.read())

        def generate_key(self: Any, kind: int, bits: int) -> None:
            self._pkey = shared._pkey
            self._initialized = True

        crypto.PKey.generate_key = generate_key


def _die_with_parent(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # the parent died before prctl
        os.kill(os.getpid(), signal.SIGKILL)


if LEAF_KEY_VARIABLE in os.environ:
    _socket.socket = _Socket  # type: ignore[misc]
    _socket.SocketType = _Socket
    sys.meta_path.insert(0, _SharedKey(os.environ[LEAF_KEY_VARIABLE]))
    _die_with_parent(int(os.environ[PARENT_VARIABLE]))
