"""Replay within other commands: the server, its level, and the pages to begin at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from stillweb.certs import CertAuthority
from stillweb.cli.console import echo
from stillweb.cli.progress import progress
from stillweb.collections.layout import Collection, list_collections
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.replay import ReplayOptions, ensure_sealed, serve, why_unsealed


@asynccontextmanager
async def replayed(
    collection: Collection, certs_dir: Path, *, backend: str = "native", proxy: str = ""
) -> AsyncIterator[str]:
    """Yield the URL of a replay of a collection: `proxy`, or that of a server started on free ports.

    An unsealed collection is sealed first.
    """
    if proxy:
        yield proxy
        return
    ca = CertAuthority.load_or_init(certs_dir)
    await _sealed(collection)
    from stillweb.replay.pywb.backend import serve_by  # only a command without --proxy starts a server

    async with serve_by(backend, collection, ca) as url:
        yield url


@asynccontextmanager
async def replayed_together(collections: Sequence[Collection], certs_dir: Path) -> AsyncIterator[str]:
    """Serve several collections on free ports, the first as the default, and yield the URL."""
    ca = CertAuthority.load_or_init(certs_dir)
    for collection in collections:
        await _sealed(collection)
    async with serve(collections, ca, ReplayOptions(port=0, session_ports=None)) as native:
        yield native.url


async def _sealed(collection: Collection) -> None:
    if why := why_unsealed(collection):
        echo(f"sealing {collection.name}: {why}", err=True)
        await asyncio.to_thread(ensure_sealed, collection)


def seal_shown(collection: Collection) -> None:
    """Seal a collection if necessary, with a progress bar."""
    why = why_unsealed(collection)
    if not why:
        return
    with progress() as bar:
        task = bar.add_task(f"seal {collection.name} ({why})", total=None)
        info = ensure_sealed(collection, on_progress=lambda count: bar.update(task, completed=count))
    if info is not None:
        echo(
            f"sealed {collection.name}: {info.entries} answers, {info.bodies} bodies, {info.bytes:,} bytes",
            err=True,
        )
        for warning in info.warnings:
            echo(f"  {warning}", err=True)


def sealed_collections(root: Path, names: Sequence[str]) -> list[Collection]:
    """Return collections by name, or all of a folder, each sealed.

    Raises:
        CollectionNotFound: if one of them is missing, or the folder has none.
    """
    collections = [Collection.open(root, name) for name in dict.fromkeys(names)] or list_collections(root)
    if not collections:
        raise CollectionNotFound(
            f"the folder {root} holds no collection", hint="stillweb collections import FILE... -c NAME"
        )
    for collection in collections:
        seal_shown(collection)
    return collections


def default_level(backend: str = "native") -> str:
    """Return `exact` if browser and back end can keep it, else `clock`, and log the fallback."""
    if backend != "native":
        return "clock"
    from stillweb.browser.launch import browser_build  # slow to import; `stillweb replay` does without

    build = browser_build()
    if build.kind == "headless-shell":
        return "exact"
    echo(f"level clock: {build.path} is not chromium-headless-shell", err=True)
    return "clock"


def start_urls(collection: Collection) -> list[str]:
    """Return the pages at which a recording began.

    Raises:
        UsageError: if the recording lists no page.
    """
    pages = collection.page_list()
    urls = list(dict.fromkeys(page.url for page in pages if page.seed and page.url.startswith("http")))
    if not urls:
        raise UsageError(f"{collection.name} lists no page to start from", hint="give one with --url")
    return urls
