"""A replay server for the length of a command: one that runs already, or one that is started for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from stillweb.certs import CertAuthority
from stillweb.cli.console import stderr
from stillweb.collections.layout import Collection
from stillweb.replay import ReplayOptions, ensure_sealed, serve, why_unsealed


@asynccontextmanager
async def replayed(
    collection: Collection, certs_dir: Path, *, backend: str = "native", proxy: str = ""
) -> AsyncIterator[str]:
    """Give the URL of a replay of a collection: `proxy` if there is one, else one started on free ports.

    It is sealed first if need be, and that is said.
    """
    if proxy:
        yield proxy
        return
    ca = CertAuthority.load_or_init(certs_dir)
    await _sealed(collection)
    async with served(collection, ca, backend) as url:
        yield url


@asynccontextmanager
async def replayed_together(collections: Sequence[Collection], certs_dir: Path) -> AsyncIterator[str]:
    """Give the URL of one replay of several collections, started on free ports; the first is the default."""
    ca = CertAuthority.load_or_init(certs_dir)
    for collection in collections:
        await _sealed(collection)
    async with serve(collections, ca, ReplayOptions(port=0, session_ports=None)) as native:
        yield native.url


async def _sealed(collection: Collection) -> None:
    if why := why_unsealed(collection):
        stderr().print(f"sealing {collection.name}: {why}", markup=False)
        await asyncio.to_thread(ensure_sealed, collection)


@asynccontextmanager
async def served(collection: Collection, ca: CertAuthority, backend: str) -> AsyncIterator[str]:
    """Serve a sealed collection by a back-end, on free ports; gives the URL."""
    if backend == "pywb":
        from stillweb.replay.pywb.backend import serve_pywb  # starts a program that few have

        async with serve_pywb([collection], ca) as server:
            yield server.url
        return
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as native:
        yield native.url
