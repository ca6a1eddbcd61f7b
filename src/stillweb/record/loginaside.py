"""Logging in beside a recording: by a proxy whose exchanges are thrown away.

The pages of a crawl are to be the first that its archive has of them: what a login loads on its way would
be found before them, as of the same user, and show another time. So the state is made aside, and
the login is recorded when the crawl is through (`loginrun`).
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.writer import CollectionWriter
from stillweb.record.login import Login
from stillweb.record.loginrun import Held, Hold, log_in
from stillweb.record.options import RecordOptions
from stillweb.record.proxy import RecordingProxy, recording_proxy

__all__ = ["log_in_aside", "passing_proxy"]


@asynccontextmanager
async def passing_proxy(ca: CertAuthority, options: RecordOptions) -> AsyncIterator[RecordingProxy]:
    """Run a recording proxy that leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="stillweb-") as scratch:
        passing = Collection.create(Path(scratch), "login")
        with CollectionWriter(passing) as writer:
            async with recording_proxy(writer, ca, replace(options, port=0)) as proxy:
                yield proxy


async def log_in_aside(
    ca: CertAuthority,
    login: Login,
    pinning: tuple[Profile, Pinning],
    seed: str,
    record: RecordOptions,
    *,
    executable: Path | None = None,
) -> Held:
    """Return the login that a recording uses; its steps are taken now.

    Args:
        ca: signs for the sites.
        login: how.
        pinning: of the recording.
        seed: page that shows whether a storage state holds, if nobody said another.
        record: how the sites are reached.
        executable: of the browser; None to look for one.

    Raises:
        RecordError: if a step fails, or what shows the login is not there in the end.
    """
    held = Held(login, login.state, (login.sign.at or seed) if login.sign else "")
    if not (login.steps or held.at):
        return held
    async with (
        passing_proxy(ca, record) as proxy,
        launch(spki=ca.spki_hashes(), executable=executable) as browser,
    ):
        hold = Hold(proxy.url, *pinning)
        if login.steps:
            return await log_in(browser, hold, login)
        await held.ask(browser, hold)
        return held
