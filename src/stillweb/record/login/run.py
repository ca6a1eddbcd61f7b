"""Logins before a recording, through a proxy whose exchanges are discarded.

The crawl's visits must be the first captures of their pages. Pages loaded during a login would precede them,
for the same user and with another clock. So the steps run through a discarding proxy first, and `crawl`
records the login after its last page. A manual login uses a browser with a window; only its storage state is
stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity
from stillweb.browser.context import open_context
from stillweb.browser.launch import find_browser, launch
from stillweb.browser.observe import page as observe
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import InfraError, ProgramNotFound, RecordError, UsageError
from stillweb.files import write_atomically
from stillweb.model import BUSY, Exchange, Request, Response, header
from stillweb.polling import poll
from stillweb.record.crawl.scope import seed_url
from stillweb.record.login.steps import Login, LoginIndicator, LoginStep, secrets_in_state
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.redaction.redactor import Secrets
from stillweb.scratch import scratch_folder
from stillweb.text import first_line

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


async def record_login(
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
    write_atomically(chosen.save, json.dumps(state, indent=1).encode("ascii"), mode=0o600)
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
        raise RecordError(f"the browser ended: {first_line(error)}") from error
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


_NO_TIME = "20250101000000"
_FLAGS = (("HttpOnly", "httpOnly"), ("Secure", "secure"))


def redacted_state(state: Mapping[str, Any], secrets: Secrets | None) -> dict[str, Any]:
    """Return the state with placeholders for secrets; unchanged if secrets are kept."""
    if secrets is None:
        return dict(state)
    cookies = [{**cookie, "value": _cookie(cookie, secrets)} for cookie in state.get("cookies", ())]
    origins = [
        {
            **origin,
            "localStorage": [
                {**entry, "value": _entry(origin["origin"], entry, secrets)}
                for entry in origin.get("localStorage", ())
            ],
        }
        for origin in state.get("origins", ())
    ]
    return {"cookies": cookies, "origins": origins}


def _cookie(cookie: Mapping[str, Any], secrets: Secrets) -> str:
    scheme = "https" if cookie.get("secure") else "http"
    url = cookie.get("url") or f"{scheme}://{str(cookie.get('domain', '')).removeprefix('.')}/"
    pair = f"{cookie['name']}={cookie['value']}"
    line = [pair, *(flag for flag, member in _FLAGS if cookie.get(member))]
    secrets.redact(_exchange(url, (), (("Set-Cookie", "; ".join(line)),), b""))  # learns the value
    made = secrets.redact(_exchange(url, (("Cookie", pair),), (), b""))[0]
    return header(made.request.headers, "cookie").partition("=")[2]


def _entry(origin: str, entry: Mapping[str, Any], secrets: Secrets) -> str:
    body = json.dumps({entry["name"]: entry["value"]}).encode()
    exchange = _exchange(f"{origin}/", (), (("Content-Type", "application/json"),), body)
    made = secrets.redact(exchange)[0]
    return str(next(iter(json.loads(made.response.raw_body).values())))


def _exchange(
    url: str, sent: tuple[tuple[str, str], ...], given: tuple[tuple[str, str], ...], body: bytes
) -> Exchange:
    return Exchange(Request("GET", url, sent), Response(200, "OK", given, body), _NO_TIME)


_STEP_SECONDS = 20.0
_CHECK_INTERVAL = 10  # pages between two checks of the login


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Settings of a recording's browser contexts."""

    proxy: str
    profile: Profile
    pinning: Pinning


@dataclass(slots=True)
class LoginSession:
    """A login in use by a recording.

    Attributes:
        login: how it was made.
        state: Playwright storage state with which every context starts.
        at: URL of the page that shows the indicator; "" without an indicator.
    """

    login: Login
    state: Mapping[str, Any]
    at: str = ""
    _unconfirmed: list[str] = field(default_factory=list)
    _pages: int = 0
    _last_check: int = -_CHECK_INTERVAL
    _checking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that a recording must not write: inputs of the login and its cookies and tokens."""
        return (*self.login.secrets, *secrets_in_state(self.state))

    async def check_page(self, browser: Browser, settings: ContextSettings, page: Page) -> None:
        """Check whether a page shows the indicator; if not, check the page at `at` from time to time.

        Raises:
            RecordError: if the login is no longer valid.
        """
        indicator = self.login.indicator
        if indicator is None or not self.at:
            return
        self._pages += 1
        if not indicator.url and await is_shown(page, indicator):
            self._unconfirmed.clear()
            return
        self._unconfirmed.append(page.url)
        async with self._checking:
            if self._pages - self._last_check >= _CHECK_INTERVAL:
                self._last_check = self._pages
                await self.check(browser, settings)

    async def check(self, browser: Browser, settings: ContextSettings) -> None:
        """Load the page that must show the indicator.

        Raises:
            RecordError: if it does not show it.
        """
        indicator = self.login.indicator
        if indicator is None or not self.at:
            return
        context = await open_context(
            browser,
            proxy=settings.proxy,
            profile=settings.profile,
            pinning=settings.pinning,
            storage_state=self.state,
        )
        try:
            activity = Activity(context)
            page = await context.new_page()
            await page.goto(self.at)
            await settle(page, activity)
            if await is_shown(page, indicator):
                self._unconfirmed.clear()
                return
            unsure = (
                f"; possibly anonymous since {', '.join(self._unconfirmed[:5])}" if self._unconfirmed else ""
            )
            hidden = " (it matches hidden elements only)" if await _is_hidden(page, indicator) else ""
            raise RecordError(
                f"not logged in: {page.url} does not show {indicator}{hidden}{unsure}",
                hint=f"renew {self.login.source}, then the same command with --append continues",
            )
        finally:
            await context.close()


class _SiteBusy(Exception):
    """A step failed for a reason that may pass: no connection, or a busy site."""


async def log_in(browser: Browser, settings: ContextSettings, login: Login) -> LoginSession:
    """Run the steps of a login.

    An attempt that fails because the site does not respond or is busy (`model.BUSY`) is repeated from the
    first step. A missing indicator is not retried: a site may lock an account after wrong passwords.

    Raises:
        RecordError: if a step fails or the indicator is missing at the end.
    """
    left = login.retries
    while True:
        try:
            return await _attempt(browser, settings, login)
        except _SiteBusy as error:
            if not left or not browser.is_connected():
                raise RecordError(str(error), hint="check that the site is up") from error
            left -= 1


async def _attempt(browser: Browser, settings: ContextSettings, login: Login) -> LoginSession:
    context = await open_context(
        browser, proxy=settings.proxy, profile=settings.profile, pinning=settings.pinning
    )
    try:
        activity = Activity(context)
        page = await context.new_page()
        for number, step in enumerate(login.steps, 1):
            location = f"{login.source}: step {number} ({step})"
            try:
                await run_step(page, activity, step)
            except (PlaywrightError, InfraError) as error:
                raise _step_error(location, error, page, activity) from error
            except TimeoutError as error:  # not the cause: it is an OSError, as of a full disk
                raise _step_error(location, error, page, activity) from None
            if status := _busy_status(activity):
                raise _SiteBusy(f"{location}: {page.url} has status {status}")
        session = LoginSession(login, dict(await context.storage_state()))
        if indicator := login.indicator:
            session.at = indicator.at or page.url
            if not await is_shown(page, indicator):
                await session.check(browser, settings)
        return session
    finally:
        await context.close()


def _step_error(location: str, error: Exception, page: Page, activity: Activity) -> Exception:
    what = first_line(error) if str(error) else f"not done within {_STEP_SECONDS:g} s"
    if status := _busy_status(activity):
        return _SiteBusy(f"{location}: {page.url} has status {status}")
    no_connection = "net::ERR_" in what or page.url.startswith("chrome-error:")
    if no_connection or isinstance(error, InfraError):
        return _SiteBusy(f"{location}: {what}")
    return RecordError(f"{location}: {what}", hint=f"the page is {page.url}; look at it in a browser")


def _busy_status(activity: Activity) -> int:
    """Return the status of the newest document if it says that the site is busy, else 0."""
    statuses = [each.status for each in activity.requests if each.resource_type == "document" and each.status]
    return statuses[-1] if statuses and statuses[-1] in BUSY else 0


async def run_step(page: Page, activity: Activity, step: LoginStep) -> None:
    """Perform a step and wait until the page has settled."""
    timeout = 1000 * _STEP_SECONDS
    if step.goto:
        await page.goto(step.goto, timeout=timeout)
    elif step.fill:
        await page.fill(step.fill.selector, step.fill.value, timeout=timeout)
    elif step.click:
        await page.click(step.click, timeout=timeout)
    elif step.check:
        await page.check(step.check, timeout=timeout)
    elif step.press and step.press.selector:
        await page.press(step.press.selector, step.press.key, timeout=timeout)
    elif step.press:
        await page.keyboard.press(step.press.key)
    await settle(page, activity, cap=_STEP_SECONDS)
    if (indicator := step.wait_for) and not await is_shown(page, indicator):
        await _wait_for(page, activity, indicator)


async def _wait_for(page: Page, activity: Activity, indicator: LoginIndicator) -> None:
    async def shown() -> bool:
        await settle(page, activity, cap=_STEP_SECONDS)
        return await is_shown(page, indicator)

    if not await poll(shown, timeout=_STEP_SECONDS):
        raise TimeoutError


async def is_shown(page: Page, indicator: LoginIndicator) -> bool:
    """Return True if a page shows an indicator now; text is compared ignoring case, which styles may change.

    Raises:
        PlaywrightError: if the selector is invalid.
    """
    if indicator.url:
        return indicator.url in page.url
    if indicator.selector:
        return await page.locator(indicator.selector).filter(visible=True).count() > 0
    if indicator.text.casefold() in (await observe.page_text(page)).casefold():
        return True
    # The label of `<input type=submit>` is a value, which Playwright matches and `innerText` lacks.
    return await page.get_by_text(indicator.text).filter(visible=True).count() > 0


async def _is_hidden(page: Page, indicator: LoginIndicator) -> bool:
    return bool(indicator.selector) and await page.locator(indicator.selector).count() > 0


@asynccontextmanager
async def discarding_proxy(ca: CertAuthority, options: RecordOptions) -> AsyncIterator[RecordingProxy]:
    """Run a recording proxy whose exchanges are deleted afterwards."""
    with scratch_folder() as scratch:
        scratch_collection = Collection.create(scratch, "login")
        with CollectionWriter(scratch_collection) as writer:
            async with recording_proxy(writer, ca, replace(options, port=0)) as proxy:
                yield proxy


async def log_in_separately(
    ca: CertAuthority,
    login: Login,
    pinning: tuple[Profile, Pinning],
    seed: str,
    record: RecordOptions,
    *,
    executable: Path | None = None,
) -> LoginSession:
    """Log in through a discarding proxy and return the session for a recording.

    Args:
        seed: page to check a storage state with, if its indicator names none.
        executable: browser executable; None to look for one.

    Raises:
        RecordError: if a step fails or the indicator is missing at the end.
    """
    session = LoginSession(login, login.state, (login.indicator.at or seed) if login.indicator else "")
    if not (login.steps or session.at):
        return session
    async with (
        discarding_proxy(ca, record) as proxy,
        launch(spki=ca.spki_hashes(), executable=executable) as browser,
    ):
        settings = ContextSettings(proxy.url, *pinning)
        if login.steps:
            return await log_in(browser, settings, login)
        await session.check(browser, settings)
        return session
