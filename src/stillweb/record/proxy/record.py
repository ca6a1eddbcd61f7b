"""A recording through the proxy alone: any client may send requests until a limit or a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.importers.pagefinder import find_pages
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.transports import learn_transports
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.recording import STOPPED, begin, repair_archive


async def record_proxy(
    collection: Collection,
    ca: CertAuthority,
    options: RecordOptions,
    on_start: Callable[[RecordingProxy], None],
    *,
    until_idle: float | None = None,
    time_limit: float | None = None,
) -> None:
    """Record what passes through a proxy until cancelled or until a limit.

    Args:
        on_start: called with the running proxy.
        until_idle: end after this many seconds without a request in flight; open streams do not count.
        time_limit: end after this many seconds.

    Raises:
        PortInUse: if the port is in use.
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
    manifest = begin(collection)  # its state is `partial` until the end
    repaired = repair_archive(collection, prior)
    try:
        with CollectionWriter(collection) as writer:
            async with recording_proxy(writer, ca, options) as recording:
                on_start(recording)
                for line in repaired:
                    recording.warn(f"repaired: {line}")
                with suppress(asyncio.CancelledError):  # Ctrl-C is the normal end
                    await _wait_until_end(recording, *limits)
    except OSError as error:
        raise RecordError(
            f"the index could not be written: {error}",
            hint=f"the archive is valid; free disk space, then: stillweb collections check {collection.name}",
        ) from error
    learn_transports(collection)
    if not collection.page_list():
        collection.write_pages(find_pages(collection, list(collection.captures())))
    # An interrupted crawl stays partial: it still resumes from here.
    if STOPPED not in manifest.extra or prior.state == "complete":
        collection.write_manifest(replace(manifest, state="complete"))


async def _wait_until_end(
    recording: RecordingProxy, until_idle: float | None, time_limit: float | None
) -> None:
    """Return when a limit is reached; raise when nothing can be written any more."""
    ends: list[Coroutine[Any, Any, None]] = [recording.broken()]
    if until_idle is not None:
        ends.append(recording.quiet(until_idle))
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait(tasks, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
