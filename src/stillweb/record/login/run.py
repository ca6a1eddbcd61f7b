"""Logging in beside a recording: by a proxy whose exchanges are thrown away.

The pages of a crawl are to be the first that its archive has of them: what a login loads on its way would
be found before them, as of the same user, and show another time. So the state is made aside, and
the login is recorded when the crawl is through (`loginrun`).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity
from stillweb.browser.context import open_context
from stillweb.browser.launch import launch
from stillweb.browser.observe import page as observe
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import InfraError, RecordError
from stillweb.polling import poll
from stillweb.record.login.steps import Login, LoginStep, Sign, secrets_in_state
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import RecordingProxy, recording_proxy

__all__ = ["LoginCheck", "LoginSession", "log_in", "log_in_aside", "passing_proxy", "shows"]

_STEP_SECONDS = 20.0
_RARELY = 10  # pages for one question whether the login holds


@dataclass(frozen=True, slots=True)
class LoginCheck:
    """What a browser context of the recording is opened with."""

    proxy: str
    profile: Profile
    pinning: Pinning


@dataclass(slots=True)
class LoginSession:
    """A login that was made, while a crawl uses it.

    Attributes:
        login: how it was made.
        state: Playwright's storage state; every page's context starts with it.
        at: the page that shows that it holds; "" if nobody said by what to see that.
    """

    login: Login
    state: Mapping[str, Any]
    at: str = ""
    _unsure: list[str] = field(default_factory=list)
    _pages: int = 0
    _asked: int = -_RARELY
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What a recording must not write: what the login was given, and what it was let in by."""
        return (*self.login.secrets, *secrets_in_state(self.state))

    async def see(self, browser: Browser, hold: LoginCheck, page: Page) -> None:
        """Look whether a page shows that the login holds; ask another one if it does not.

        Raises:
            RecordError: if it does not hold any more.
        """
        sign = self.login.sign
        if sign is None or not self.at:
            return
        self._pages += 1
        if not sign.url and await shows(page, sign):
            self._unsure.clear()
            return
        self._unsure.append(page.url)
        async with self._asking:
            if self._pages - self._asked >= _RARELY:
                self._asked = self._pages
                await self.ask(browser, hold)

    async def ask(self, browser: Browser, hold: LoginCheck) -> None:
        """Load the page that must show that the login holds.

        Raises:
            RecordError: if it does not show it.
        """
        sign = self.login.sign
        if sign is None or not self.at:
            return
        context = await open_context(
            browser, proxy=hold.proxy, profile=hold.profile, pinning=hold.pinning, storage_state=self.state
        )
        try:
            activity = Activity(context)
            page = await context.new_page()
            await page.goto(self.at)
            await settle(page, activity)
            if await shows(page, sign):
                self._unsure.clear()
                return
            since = f"; not sure of {', '.join(self._unsure[:5])}" if self._unsure else ""
            raise RecordError(
                f"not logged in: {page.url} does not show {sign}{since}",
                hint=f"make {self.login.source} anew, then the same with --append goes on",
            )
        finally:
            await context.close()


async def log_in(browser: Browser, hold: LoginCheck, login: Login) -> LoginSession:
    """Take the steps of a login.

    Raises:
        RecordError: if one fails, or what shows the login is not there in the end; says which.
    """
    context = await open_context(browser, proxy=hold.proxy, profile=hold.profile, pinning=hold.pinning)
    try:
        activity = Activity(context)
        page = await context.new_page()
        for number, step in enumerate(login.steps, 1):
            place = f"{login.source}: step {number} ({step})"
            try:
                await _take(page, activity, step)
            except (PlaywrightError, InfraError) as error:
                raise RecordError(
                    f"{place}: {_first_line(error)}", hint=f"the page is {page.url}; look at it in a browser"
                ) from error
            except TimeoutError:
                raise RecordError(
                    f"{place}: not within {_STEP_SECONDS:g} s", hint=f"the page is {page.url}"
                ) from None
        held = LoginSession(login, dict(await context.storage_state()))
        if sign := login.sign:
            held.at = sign.at or page.url
            if not await shows(page, sign):
                await held.ask(browser, hold)
        return held
    finally:
        await context.close()


async def _take(page: Page, activity: Activity, step: LoginStep) -> None:
    within = 1000 * _STEP_SECONDS
    if step.goto:
        await page.goto(step.goto, timeout=within)
    elif step.fill:
        await page.fill(step.fill.selector, step.fill.value, timeout=within)
    elif step.click:
        await page.click(step.click, timeout=within)
    elif step.check:
        await page.check(step.check, timeout=within)
    elif step.press and step.press.selector:
        await page.press(step.press.selector, step.press.key, timeout=within)
    elif step.press:
        await page.keyboard.press(step.press.key)
    await settle(page, activity, cap=_STEP_SECONDS)
    if (wanted := step.wait_for) and not await shows(page, wanted):
        await _until_shown(page, activity, wanted)


async def _until_shown(page: Page, activity: Activity, wanted: Sign) -> None:
    async def shown() -> bool:
        await settle(page, activity, cap=_STEP_SECONDS)
        return await shows(page, wanted)

    if not await poll(shown, timeout=_STEP_SECONDS):
        raise TimeoutError


async def shows(page: Page, sign: Sign) -> bool:
    """Whether a page shows a sign now; texts in any case, as styles may change it.

    Raises:
        PlaywrightError: if the selector is none.
    """
    if sign.url:
        return sign.url in page.url
    if sign.selector:
        return await page.locator(sign.selector).first.is_visible()
    return sign.text.casefold() in (await observe.page_text(page)).casefold()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
) -> LoginSession:
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
    held = LoginSession(login, login.state, (login.sign.at or seed) if login.sign else "")
    if not (login.steps or held.at):
        return held
    async with (
        passing_proxy(ca, record) as proxy,
        launch(spki=ca.spki_hashes(), executable=executable) as browser,
    ):
        hold = LoginCheck(proxy.url, *pinning)
        if login.steps:
            return await log_in(browser, hold, login)
        await held.ask(browser, hold)
        return held
