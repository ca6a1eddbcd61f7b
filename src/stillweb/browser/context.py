"""Open a browser context that is pinned: equal pinning and profile, equal world for the page.

The scripts in `js/` are given to the browser by CDP for every new document, before the page's
own, and never put into HTML: bodies stay as recorded and content security policies untouched.
No request is intercepted (Playwright's `route` switches the HTTP cache off).

Not covered, and said here so that nobody believes otherwise: workers keep real time and
randomness; so do `crypto.subtle` key generation, video, and the order of racing answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser, BrowserContext

from stillweb import clock
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.errors import UsageError


@dataclass(slots=True)
class PinnedState:
    """What the driver knows of a context that it pinned.

    Attributes:
        pinning: as asked for.
        door: name of the event by which the pinned clock is told to move.
        now: virtual time, in milliseconds since 1970.
    """

    pinning: Pinning
    door: str
    now: int


_states: WeakKeyDictionary[BrowserContext, PinnedState] = WeakKeyDictionary()


async def open_context(
    browser: Browser,
    *,
    proxy: str,
    profile: Profile,
    pinning: Pinning,
    storage_state: Any = None,
) -> BrowserContext:
    """Open a context whose traffic all goes to one proxy; the caller closes it.

    Args:
        browser: from `launch`.
        proxy: URL of the proxy, without user name and password: in Playwright these switch on
            interception for every request, and the HTTP cache off.
        profile: what sites see of the browser.
        pinning: what is pinned, from which seed and time.
        storage_state: cookies and local storage, as Playwright takes it.

    Raises:
        UsageError: if the proxy's URL carries credentials.
    """
    if "@" in proxy:
        raise UsageError(
            "a proxy URL with user name or password switches the browser's HTTP cache off",
            hint="give the session its own port",
        )
    width, height = profile.viewport
    context = await browser.new_context(
        # Playwright adds <-loopback> itself, so that loopback, too, goes to the proxy.
        proxy={"server": proxy},
        viewport={"width": width, "height": height},
        screen={"width": width, "height": height},
        user_agent=profile.user_agent or plain_user_agent(browser.version),
        locale=profile.locale,
        timezone_id=profile.timezone,
        color_scheme=profile.color_scheme,
        device_scale_factor=profile.device_scale_factor,
        is_mobile=profile.is_mobile,
        has_touch=profile.has_touch,
        reduced_motion="no-preference" if pinning.level is Level.LIVE else "reduce",
        service_workers="block",
        permissions=[],
        storage_state=storage_state,
    )
    state = PinnedState(pinning, door=f"stillweb-{clock.new_id()}", now=int(pinning.start.timestamp() * 1000))
    if script := _init_script(state):
        await context.add_init_script(script)
    _states[context] = state
    return context


def state_of(context: BrowserContext) -> PinnedState:
    """Return what the driver knows of a context.

    Raises:
        UsageError: if it was not opened by `open_context`.
    """
    try:
        return _states[context]
    except KeyError:
        raise UsageError("this browser context was not opened by stillweb.browser.open_context") from None


def plain_user_agent(version: str) -> str:
    """Return the user agent of a Chromium with a window, reduced to its major version as it does."""
    major = version.partition(".")[0]
    return (
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{major}.0.0.0 Safari/537.36"
    )


def _init_script(state: PinnedState) -> str:
    names = {Level.LIVE: (), Level.NETWORK: ("pin.js",), Level.CLOCK: ("pin.js", "clock.js")}
    scripts = [
        resources.files(__package__).joinpath("js", name).read_text("utf-8")
        for name in names[state.pinning.level]
    ]
    if not scripts:
        return ""
    pin = {"seed": state.pinning.seed, "door": state.door}
    if state.pinning.level is Level.CLOCK:
        pin["start"] = state.now
    calls = "".join(f"({script.strip()})(pin);\n" for script in scripts)
    return f"{{ const pin = {json.dumps(pin)};\n{calls}}}"
