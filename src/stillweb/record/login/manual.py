"""Logging in by hand, in a browser with a window; only the storage state is kept."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.context import open_context
from stillweb.browser.launch import find_browser, launch
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.errors import InfraError, ProgramNotFound, RecordError, UsageError
from stillweb.polling import poll
from stillweb.record.crawl.scope import seed_url
from stillweb.record.login.run import passing_proxy, shows
from stillweb.record.login.steps import Sign
from stillweb.record.options import RecordOptions

__all__ = ["ByHand", "full_browser", "log_in_by_hand"]

_A_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class ByHand:
    """What is to be done by hand.

    Attributes:
        url: where to begin.
        save: file for the storage state.
        until: ends it when a page shows this; None waits for Enter.
        record: how the site is reached.
        profile: what it sees of the browser.
    """

    url: str
    save: Path
    until: Sign | None
    record: RecordOptions
    profile: Profile


def full_browser() -> Path:
    """Return a browser that can have a window: chromium-headless-shell has none.

    Raises:
        ProgramNotFound: if there is none.
    """
    with suppress(ProgramNotFound):
        found = find_browser()
        if "headless" not in found.name:
            return found
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return Path(path)
    raise ProgramNotFound(
        "no browser with a window was found", hint="install chromium, or set STILLWEB_BROWSER to one"
    )


def _require_display() -> None:
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UsageError(
            "there is no display here for a browser with a window",
            hint="log in where there is a screen and copy the file; or: record crawl --login STEPS.yaml",
        )


async def log_in_by_hand(
    ca: CertAuthority, chosen: ByHand, on_open: Callable[[Page], None]
) -> dict[str, Any]:
    """Open a window, wait until somebody has logged in, and save the storage state.

    The site is reached as in a crawl, by a recording proxy; what passes it is thrown away.

    Raises:
        RecordError: if the window is closed before.
        ProgramNotFound: if there is no browser with a window.
        UsageError: if there is no display for a window.
        InfraError: if it does not start.
    """
    url = seed_url(chosen.url)
    _require_display()
    async with (
        passing_proxy(ca, chosen.record) as passing,
        launch(spki=ca.spki_hashes(), executable=full_browser(), headless=False) as browser,
    ):
        context = await open_context(
            browser, proxy=passing.url, profile=chosen.profile, pinning=Pinning(Level.LIVE, 0, now())
        )
        page = await context.new_page()
        await page.goto(url)
        on_open(page)
        state = await _until(browser, context, chosen.until)
    _save(chosen.save, state)
    return state


async def _until(browser: Browser, context: BrowserContext, until: Sign | None) -> dict[str, Any]:
    """Return the state once it is said, or seen, that somebody has logged in."""
    closed = asyncio.Event()
    browser.on("disconnected", lambda _: closed.set())
    context.on("close", lambda _: closed.set())
    said = asyncio.ensure_future(_shown(context, until) if until else _entered())
    shut = asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({said, shut}, return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            raise RecordError("the window was closed before the login was saved", hint="press Enter first")
        said.result()
        return dict(await context.storage_state())
    except PlaywrightError as error:
        raise RecordError(f"the browser ended: {str(error).partition(chr(10))[0]}") from error
    finally:
        said.cancel()
        shut.cancel()


async def _shown(context: BrowserContext, until: Sign) -> None:
    async def shown() -> bool:
        for page in context.pages:
            with suppress(PlaywrightError, InfraError):  # it is on its way elsewhere
                if await shows(page, until):
                    return True
        return False

    await poll(shown, timeout=_A_DAY, interval=0.3)


async def _entered() -> None:
    """Wait for a line on standard input."""
    loop = asyncio.get_running_loop()
    entered = asyncio.Event()
    loop.add_reader(sys.stdin, entered.set)
    try:
        await entered.wait()
        sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin)


def _save(path: Path, state: dict[str, Any]) -> None:
    """Write the state for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(state, file, indent=1)
    part.replace(path)
