"""The recording of whatever goes through a proxy, from its beginning to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.importers.pagefinder import find_pages
from stillweb.collections.layout import Collection, locked
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import RecordingProxy, recording_proxy
from stillweb.record.recording import STOPPED, begin, mend

__all__ = ["record_by_proxy"]


async def record_by_proxy(
    collection: Collection,
    ca: CertAuthority,
    options: RecordOptions,
    on_start: Callable[[RecordingProxy], None],
    *,
    until_idle: float | None = None,
    time_limit: float | None = None,
) -> None:
    """Record what goes through a proxy until cancelled, or until one of the limits.

    Args:
        collection: to write into.
        ca: signs for the sites.
        options: how to listen and reach them.
        on_start: given the running proxy.
        until_idle: seconds without a request in flight after which it ends; open streams do not count.
        time_limit: seconds after which it ends.

    Raises:
        PortInUse: if the port is taken.
        RecordError: if an exchange could not be written.
        CollectionError: if another process records into the collection.
    """
    with locked(collection):
        await _record(collection, ca, options, on_start, (until_idle, time_limit))


async def _record(
    collection: Collection,
    ca: CertAuthority,
    options: RecordOptions,
    on_start: Callable[[RecordingProxy], None],
    limits: tuple[float | None, float | None],
) -> None:
    prior = collection.manifest()
    manifest = begin(collection)  # it says `partial` until the end
    mended = mend(collection, prior)
    try:
        with CollectionWriter(collection) as writer:
            async with recording_proxy(writer, ca, options) as recording:
                on_start(recording)
                for line in mended:
                    recording.warn(f"mended: {line}")
                with suppress(asyncio.CancelledError):  # Ctrl-C is the way to end it
                    await _until_over(recording, *limits)
    except OSError as error:
        raise RecordError(
            f"the index could not be written: {error}",
            hint=f"what was recorded is valid; make room, then: stillweb collections check {collection.name}",
        ) from error
    if not collection.page_list():
        collection.write_pages(find_pages(collection, list(collection.captures())))
    if STOPPED not in manifest.extra:  # else a crawl is to be gone on with, before and after this
        collection.write_manifest(replace(manifest, state="complete"))


async def _until_over(recording: RecordingProxy, until_idle: float | None, time_limit: float | None) -> None:
    """Return when a limit is reached; raise when nothing can be written any more."""
    ends: list[Coroutine[Any, Any, None]] = [recording.broken()]
    if until_idle is not None:
        ends.append(recording.quiet(until_idle))
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        over, _ = await asyncio.wait(tasks, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        for task in over:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
