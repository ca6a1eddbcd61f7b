"""Manual login in a browser with a window; only the storage state is stored."""

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
from stillweb.record.login.run import discarding_proxy, is_shown
from stillweb.record.login.steps import LoginIndicator
from stillweb.record.options import RecordOptions

__all__ = ["ManualLogin", "full_browser", "log_in_manually"]

_A_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class ManualLogin:
    """A manual login.

    Attributes:
        url: page to start with.
        save: file for the storage state.
        until: indicator that ends the login; None waits for Enter.
        record: how the site is reached.
        profile: what the site sees of the browser.
    """

    url: str
    save: Path
    until: LoginIndicator | None
    record: RecordOptions
    profile: Profile


def full_browser() -> Path:
    """Return a browser that can open a window, which chromium-headless-shell cannot.

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
            "no display for a browser with a window",
            hint="log in on a machine with a screen and copy the file; or: record crawl --login STEPS.yaml",
        )


async def log_in_manually(
    ca: CertAuthority, chosen: ManualLogin, on_open: Callable[[Page], None]
) -> dict[str, Any]:
    """Open a window, wait for the login, and save the storage state.

    The site is reached through a recording proxy, as in a crawl; its exchanges are discarded.

    Raises:
        RecordError: if the window is closed first.
        ProgramNotFound: if no browser can open a window.
        UsageError: if there is no display.
        InfraError: if the browser does not start.
    """
    url = seed_url(chosen.url)
    _require_display()
    async with (
        discarding_proxy(ca, chosen.record) as proxy,
        launch(spki=ca.spki_hashes(), executable=full_browser(), headless=False) as browser,
    ):
        context = await open_context(
            browser, proxy=proxy.url, profile=chosen.profile, pinning=Pinning(Level.LIVE, 0, now())
        )
        page = await context.new_page()
        await page.goto(url)
        on_open(page)
        state = await _wait_for_login(browser, context, chosen.until)
    _save(chosen.save, state)
    return state


async def _wait_for_login(
    browser: Browser, context: BrowserContext, until: LoginIndicator | None
) -> dict[str, Any]:
    """Return the state when the user presses Enter or the indicator appears."""
    closed = asyncio.Event()
    browser.on("disconnected", lambda _: closed.set())
    context.on("close", lambda _: closed.set())
    done = asyncio.ensure_future(_wait_for_indicator(context, until) if until else _wait_for_enter())
    closing = asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({done, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise RecordError("the window was closed before the login was saved", hint="press Enter first")
        done.result()
        return dict(await context.storage_state())
    except PlaywrightError as error:
        raise RecordError(f"the browser ended: {str(error).partition(chr(10))[0]}") from error
    finally:
        done.cancel()
        closing.cancel()


async def _wait_for_indicator(context: BrowserContext, until: LoginIndicator) -> None:
    async def shown() -> bool:
        for page in context.pages:
            with suppress(PlaywrightError, InfraError):  # the page is navigating
                if await is_shown(page, until):
                    return True
        return False

    await poll(shown, timeout=_A_DAY, interval=0.3)


async def _wait_for_enter() -> None:
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
    """Write the state with permissions for its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(state, file, indent=1)
    part.replace(path)
