"""Pinned browser contexts: equal pinning and profile give the page an equal environment.

CDP gives the scripts in `js/` to every new document before the page's own. They never appear in the HTML, so
that bodies stay as recorded and content security policies stay intact. Below EXACT no request is intercepted,
since Playwright's `route` disables the HTTP cache.

Not pinned below EXACT: time and randomness of workers, `crypto.subtle` key generation, video, and the order
of concurrent responses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

from playwright.async_api import Browser, BrowserContext

from stillweb import clock
from stillweb.browser.cdp.connection import CdpError, connection_of, has_connection
from stillweb.browser.exact.context import ExactContext, Scripts
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.browser.shared_workers import shared_workers_of
from stillweb.browser.state import PinnedState, states
from stillweb.errors import InfraError, UsageError

_CHROME = re.compile(r"Chrom(?:e|ium)/(\d+)((?:\.\d+)*)")
_EDGE = re.compile(r"Edg(?:A|iOS)?/")
_ANDROID = re.compile(r"Android ([\d.]+)(?:; ([^;)]+?))?(?: Build/[^)]*)?\)")
_MAC = re.compile(r"Mac OS X ([\d_.]+)")
_GREASE = {"brand": "Not)A;Brand", "version": "24"}  # GREASE: not a real brand; all browsers send it


def client_hints(user_agent: str, version: str) -> dict[str, Any] | None:
    """Return a user agent's metadata as CDP takes it, None for browsers without client hints (not Chromium).

    Args:
        version: of the browser in use, such as "156.0.8078.79", for user agents that name the major version
            only.
    """
    chrome = _CHROME.search(user_agent)
    if chrome is None:
        return None
    major = chrome[1]
    full = major + chrome[2]
    if re.fullmatch(r"\d+(\.0)*", full):
        full = version if version.partition(".")[0] == major else f"{major}.0.0.0"
    names = ["Chromium", "Microsoft Edge" if _EDGE.search(user_agent) else "Google Chrome"]
    mobile = " Mobile" in user_agent
    android = "Android" in user_agent
    return {
        "brands": [{"brand": name, "version": major} for name in names] + [_GREASE],
        "fullVersionList": [{"brand": name, "version": full} for name in names]
        + [_GREASE | {"version": "24.0.0.0"}],
        "fullVersion": full,
        **_platform(user_agent),
        "architecture": "" if android else "x86",
        "bitness": "" if android else "64",
        "mobile": mobile,
        "wow64": False,
        "formFactors": ["Mobile" if mobile else "Tablet" if android else "Desktop"],
    }


def _platform(user_agent: str) -> dict[str, str]:
    if found := _ANDROID.search(user_agent):
        model = found[2] or ""
        version = ".".join([*found[1].split("."), "0", "0"][:3])
        # "K" is the model of every device (user agent reduction).
        return {"platform": "Android", "platformVersion": version, "model": "" if model == "K" else model}
    if found := _MAC.search(user_agent):
        return {"platform": "macOS", "platformVersion": found[1].replace("_", "."), "model": ""}
    if "Windows NT" in user_agent:
        return {"platform": "Windows", "platformVersion": "10.0.0", "model": ""}
    name = "Chrome OS" if "CrOS" in user_agent else "Linux"
    return {"platform": name, "platformVersion": "", "model": ""}


async def open_context(
    browser: Browser,
    *,
    proxy: str,
    profile: Profile,
    pinning: Pinning,
    storage_state: Any = None,
    script: str = "",
) -> BrowserContext:
    """Open a context that sends all traffic to one proxy; the caller closes it.

    Args:
        proxy: URL of the proxy, without user name and password: with these Playwright intercepts every
            request and disables the HTTP cache.
        storage_state: cookies and local storage, in Playwright's format.
        script: runs in every document after the pinning and before the page's own scripts.

    Raises:
        UsageError: if the proxy's URL carries credentials, or the browser was not launched for this level.
        InfraError: if the connection to the browser is broken.
    """
    if "@" in proxy:
        raise UsageError(
            "a proxy URL with user name or password switches the browser's HTTP cache off",
            hint="give the session its own port",
        )
    if has_connection(browser) != (pinning.level is Level.EXACT):
        raise UsageError(
            f"a browser started {'' if has_connection(browser) else 'not '}for level 'exact' cannot open "
            f"a context at level {pinning.level.value!r}",
            hint=f"stillweb.browser.launch(..., exact={pinning.level is Level.EXACT})",
        )
    state = PinnedState(
        pinning,
        control=f"stillweb-{clock.new_id()}",
        now=int(pinning.start.timestamp() * 1000),
        script=script,
        mark=f"stillweb-{clock.new_id()}",
    )
    agent = profile.user_agent or plain_user_agent(browser.version)
    state.hints = client_hints(agent, browser.version)
    make_context = partial(_new_context, browser, proxy, profile, pinning.level, storage_state)
    if pinning.level is Level.EXACT:
        context = await _new_exact_context(browser, state, make_context)
    else:
        state.shared_workers = await shared_workers_of(browser)
        context = await make_context()
    # At EXACT, ExactContext adds them: Playwright would add lines of its own, which `Error.stack` counts.
    if state.exact is None and (script := scripts_for(state)):
        await context.add_init_script(script)
    states[context] = state
    return context


async def _new_context(
    browser: Browser, proxy: str, profile: Profile, level: Level, storage_state: Any
) -> BrowserContext:
    width, height = profile.viewport
    return await browser.new_context(
        # Playwright adds <-loopback>, so that loopback addresses go to the proxy, too.
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
        reduced_motion="no-preference" if level is Level.LIVE else "reduce",
        service_workers="block",
        permissions=[],
        storage_state=storage_state,
    )


async def _new_exact_context(
    browser: Browser, state: PinnedState, make_context: Callable[[], Awaitable[BrowserContext]]
) -> BrowserContext:
    """Make a context and its controller; CDP identifies the new context only by comparing lists."""
    connection = connection_of(browser)
    async with connection.contexts:
        try:
            before = set(await connection.browser_contexts())
            context = await make_context()
            new = set(await connection.browser_contexts()) - before
        except CdpError as error:  # the browser has ended
            raise InfraError(f"no new context: {error.message}", hint="reset") from error
        if len(new) != 1:
            await context.close()
            raise InfraError(f"{len(new)} new contexts where one was made", hint="reset")
    (identifier,) = new
    state.exact = ExactContext(
        connection,
        identifier,
        Scripts(partial(scripts_for, state), partial(script_for_worker, state)),
        state.control,
    )
    context.on("close", lambda _: state.exact.close() if state.exact else None)
    return context


def plain_user_agent(version: str) -> str:
    """Return the user agent of a Chromium with a window, reduced to its major version."""
    major = version.partition(".")[0]
    return (
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{major}.0.0.0 Safari/537.36"
    )


_EXACT = ("pin.js", "time.js", "hold.js", "databases.js", "arrivals.js", "sockets.js")  # in any realm


def scripts_for(state: PinnedState) -> str:
    """Return the script that runs first in every document of a context, "" at level LIVE."""
    names = {
        Level.LIVE: (),
        Level.NETWORK: ("pin.js",),
        Level.CLOCK: ("pin.js", "time.js", "clock.js"),
        Level.EXACT: (*_EXACT, "parsing.js", "clock.js"),
    }
    pin: dict[str, Any] = {"seed": state.pinning.seed, "control": state.control, "hints": state.hints}
    if state.pinning.level.keeps_clock:
        pin["start"] = state.now
        pin["exact"] = state.pinning.level is Level.EXACT
    is_exact = state.pinning.level is Level.EXACT
    if is_exact:
        pin["mark"] = state.mark
    source = "pin.source = () => `(${run})()`;\n" if is_exact else ""
    script = _script(names[state.pinning.level], pin, source)
    if state.script:
        script = f"{{ {script}\n{state.script} }}"
    if not is_exact:
        return script
    # Once per window: during `open()` both Playwright and ExactContext add it, and the opener may be earlier.
    return f"(function run() {{ if (StyleSheetList[{json.dumps(state.mark)}]?.()) return;\n{script}}})()"


def script_for_worker(state: PinnedState, name: str) -> str:
    """Return the script that runs first in a worker, at level EXACT; `name` distinguishes workers."""
    pin = {
        "seed": state.pinning.seed,
        "control": state.control,
        "hints": state.hints,
        "start": state.now,
        "name": name,
    }
    return _script((*_EXACT, "worker.js"), pin)


def _script(names: Sequence[str], pin: Mapping[str, Any], setup: str = "") -> str:
    scripts = [resources.files(__package__).joinpath("js", name).read_text("utf-8") for name in names]
    if not scripts:
        return ""
    calls = "".join(f"({script.strip()})(pin);\n" for script in scripts)
    return f"{{ const pin = {json.dumps(pin)};\n{setup}{calls}}}"
