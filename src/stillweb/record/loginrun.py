"""Logging in, in a browser, and seeing that it holds.

The steps are taken under the recording's clock. Whether a login still holds is seen on every page that
shows its sign; of pages that do not, the page that must show it is asked, at most for every tenth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser import observe
from stillweb.browser.activity import Activity
from stillweb.browser.context import open_context
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.errors import InfraError, RecordError
from stillweb.polling import poll
from stillweb.record.login import Login, LoginStep, Sign, secrets_in_state

__all__ = ["Held", "Hold", "log_in", "shows"]

_STEP_SECONDS = 20.0
_RARELY = 10  # pages for one question whether the login holds


@dataclass(frozen=True, slots=True)
class Hold:
    """What a browser context of the recording is opened with."""

    proxy: str
    profile: Profile
    pinning: Pinning


@dataclass(slots=True)
class Held:
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

    async def see(self, browser: Browser, hold: Hold, page: Page) -> None:
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

    async def ask(self, browser: Browser, hold: Hold) -> None:
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


async def log_in(browser: Browser, hold: Hold, login: Login) -> Held:
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
        held = Held(login, dict(await context.storage_state()))
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
