"""Serve sealed collections as a proxy in which real URLs replay frozen.

`serve` is the native back-end, `ReplayClient` talks to it (and to the pywb back-end). What is listed
in `__all__` is imported when it is first asked for, so that the client does not load the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillweb.replay.client import OpenSession, ReplayClient, ReplayInfo
    from stillweb.replay.cluster import Cluster, serve_cluster
    from stillweb.replay.sealing import ensure_sealed, why_unsealed
    from stillweb.replay.server import ReplayOptions, ReplayServer, serve
    from stillweb.replay.session import Ledger, LedgerEntry

__all__ = [
    "Cluster",
    "Ledger",
    "LedgerEntry",
    "OpenSession",
    "ReplayClient",
    "ReplayInfo",
    "ReplayOptions",
    "ReplayServer",
    "ensure_sealed",
    "serve",
    "serve_cluster",
    "why_unsealed",
]

_HOMES = {
    "Cluster": "cluster",
    "Ledger": "session",
    "LedgerEntry": "session",
    "OpenSession": "client",
    "ReplayClient": "client",
    "ReplayInfo": "client",
    "ReplayOptions": "server",
    "ReplayServer": "server",
    "ensure_sealed": "sealing",
    "serve": "server",
    "serve_cluster": "cluster",
    "why_unsealed": "sealing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
