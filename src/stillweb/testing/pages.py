"""A page of Playwright's synchronous API in a session's proxy.

The browser has the flags of recordings and episodes, the context has the recorded profile and time zone, and
randomness is seeded (level `network`). Time is the machine's: a clock that only `settle` advances would stop
during Playwright's own waits. Tests that need more determinism use an environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, Playwright

from stillweb import clock
from stillweb.browser.context import plain_user_agent, scripts_for
from stillweb.browser.launch import FLAGS, find_browser, resolver_flag
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.browser.state import PinnedState
from stillweb.testing.replayed import Replayed


@contextmanager
def open_page(playwright: Playwright, replayed: Replayed, *, seed: int) -> Iterator[Page]:
    """Start a browser and open a page in a session's proxy; both close on exit."""
    flags = [*FLAGS, resolver_flag(), "--ignore-certificate-errors-spki-list=" + ",".join(replayed.spki)]
    browser = playwright.chromium.launch(executable_path=find_browser(), args=flags, chromium_sandbox=False)
    try:
        context = browser.new_context(**context_options(replayed, browser.version))
        context.add_init_script(pin_script(seed))
        yield context.new_page()
        context.close()
    finally:
        browser.close()


def context_options(replayed: Replayed, version: str) -> dict[str, Any]:
    """Return the arguments of `new_context` for the recorded profile."""
    profile = Profile.from_dict(replayed.manifest.get("profile") or {})
    width, height = profile.viewport
    return {
        "proxy": {"server": replayed.proxy},
        "viewport": {"width": width, "height": height},
        "screen": {"width": width, "height": height},
        "user_agent": profile.user_agent or plain_user_agent(version),
        "locale": profile.locale,
        "timezone_id": profile.timezone,
        "color_scheme": profile.color_scheme,
        "device_scale_factor": profile.device_scale_factor,
        "is_mobile": profile.is_mobile,
        "has_touch": profile.has_touch,
        "service_workers": "block",
    }


def pin_script(seed: int) -> str:
    """Return the script that seeds random numbers in every document."""
    pinning = Pinning(Level.NETWORK, seed, clock.now())
    return scripts_for(PinnedState(pinning, control=f"stillweb-{clock.new_id()}", now=0))
