from .client import OpenSession, ReplayClient, ReplayInfo
from .sealing import ensure_sealed, why_unsealed
from .server.server import ReplayOptions, ReplayServer, serve
from .server.session import Ledger, LedgerEntry
from .workers.cluster import ReplayCluster, serve_cluster

__all__ = [
    "Ledger",
    "LedgerEntry",
    "OpenSession",
    "ReplayClient",
    "ReplayCluster",
    "ReplayInfo",
    "ReplayOptions",
    "ReplayServer",
    "ensure_sealed",
    "serve",
    "serve_cluster",
    "why_unsealed",
]
