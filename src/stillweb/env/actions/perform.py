"""Perform an action in the active tab.

There is one coroutine per action name. A failure caused by the page is an `ActionResult` with status
`action_failed`: a hidden or covered element, a missing option, no page to go back to. A failure of browser or
proxy is an `InfraError`. These functions do not wait for the page's reaction; `settle` does after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import is_ours
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.driver import DOWNLOAD
from stillweb.browser.input import actions as browser_input
from stillweb.browser.input.elements import ActionFailed, Target, find, shown_parts
from stillweb.browser.input.pointer import Button
from stillweb.browser.observe.bids import Bids
from stillweb.browser.profile import Level
from stillweb.browser.state import state_of
from stillweb.env.actions.action import Action, ActionResult, ActionStatus
from stillweb.env.episode.tabs import Tabs, closed_itself
from stillweb.env.options import EnvOptions
from stillweb.errors import InfraError, TaskError
from stillweb.text import first_line

NOT_ALLOWED = "not_allowed"
_LISTED = 20


def chosen_files(names: str, uploads: Sequence[Path]) -> list[Path]:
    """Return the files with these names.

    Args:
        names: file names, or paths within the allowed folders, one on each line.
        uploads: allowed files and folders.

    Raises:
        ActionFailed: with kind NOT_ALLOWED, for a name that is not allowed.
    """
    known = dict(allowed_files(uploads))
    chosen = []
    for name in filter(None, map(str.strip, names.splitlines())):
        if name not in known:
            listed = ", ".join(sorted(known)[:_LISTED]) or "none"
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            raise ActionFailed(f"there is no file {name!r} to upload; there are: {listed}{more}", NOT_ALLOWED)
        chosen.append(known[name])
    return chosen


def allowed_files(uploads: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield each allowed file with its name for the agent."""
    for upload in uploads:
        root = upload.resolve()
        if root.is_file():
            yield upload.name, root
            continue
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path.relative_to(root).as_posix(), path.resolve()


# A navigation that became a download or an empty response, or was replaced by another one: no failure.
_ABORTED = "ERR_ABORTED"
_ARRIVAL_SECONDS = 3.0
_POINT = 3.0  # CSS pixels on each side of a point
_DEFAULTS = EnvOptions()
# Errors that the agent could have avoided: the action names something that does not exist.
_UNKNOWN = ("unknown_bid", "unknown_tab", "outside", "value_missing", NOT_ALLOWED)
_NO_PAGE = (
    *(_ABORTED, DOWNLOAD, "invalid URL", "ERR_UNSAFE_PORT", "ERR_INVALID_URL"),
    "ERR_RESPONSE_HEADERS_TOO_BIG",  # Chromium takes 256 KiB
)


@dataclass(frozen=True, slots=True)
class _ActionScope:
    """An action and its environment."""

    action: Action
    tabs: Tabs
    bids: Bids
    uploads: Sequence[Path]

    @property
    def page(self) -> Page:
        return self.tabs.active

    @property
    def target(self) -> Target:
        """Bid or coordinates of the action, "" for neither."""
        return self.action.point or self.action.bid


async def perform(action: Action, tabs: Tabs, bids: Bids, options: EnvOptions = _DEFAULTS) -> ActionResult:
    """Perform an action.

    Load must not influence what an agent sees, so that an action that takes longer than
    `options.action_seconds` is no failure of the action. At level EXACT the timeout is six times as long.

    Raises:
        InfraError: if the browser or the proxy is gone or too slow.
    """
    page = tabs.active
    seconds = options.action_seconds * (6 if _is_exact(page) else 1)
    try:
        async with asyncio.timeout(seconds):
            await tabs.attend(page)
            await _ACTIONS[action.action](_ActionScope(action, tabs, bids, options.uploads))
    except ActionFailed as error:
        status = ActionStatus.INVALID if error.kind in _UNKNOWN else ActionStatus.FAILED
        return ActionResult(status, error.reason)
    except InfraError:
        # An action may make its page close itself, such as a popup's close button.
        if action.action not in _ON_ELEMENTS or not await closed_itself(page):
            raise
    except TimeoutError as error:
        late = f"{action.action} did not end within {seconds:g} s"
        raise InfraError(late, hint="use fewer simultaneous sessions, or reset") from error
    finally:
        await tabs.ensure_one()
    return ActionResult()


async def target_box(action: Action, tabs: Tabs, bids: Bids) -> tuple[float, float, float, float] | None:
    """Return left, top, width and height of an action's element or point; None if the viewport hides it."""
    if action.point:
        x, y = action.point
        return x - _POINT, y - _POINT, 2 * _POINT, 2 * _POINT
    if not action.bid:
        return None
    with suppress(ActionFailed, InfraError, PlaywrightError):  # the action itself reports the failure
        parts = await shown_parts(await find(tabs.active, bids, action.bid), scroll=False)
        if parts:
            xs = [x for _, quad in parts for x in quad[::2]]
            ys = [y for _, quad in parts for y in quad[1::2]]
            return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)
    return None


def _is_exact(page: Page) -> bool:
    return state_of(page.context).pinning.level is Level.EXACT


async def open_start(page: Page, url: str) -> str:
    """Open an episode's first page; return its URL after redirects.

    Raises:
        TaskError: if the URL is invalid or leads to no page, but to a download or an empty response.
        InfraError: if the page cannot be opened.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise TaskError(f"the start page {url!r} is not an http or https URL")
    try:
        response = await page.goto(url, wait_until="commit")
        if exact := state_of(page.context).exact:
            return exact.landed or url
        return response.url if response else url
    except PlaywrightError as error:
        if not page.is_closed() and any(sign in error.message for sign in _NO_PAGE):
            # A crash of browser or renderer aborts the navigation first and is reported afterwards.
            await (await PageProbe.of(page)).send("Runtime.evaluate", expression="1")
            raise TaskError(f"the start page {url} is not a page: {first_line(error)}") from error
        raise InfraError(f"the start page {url} did not open: {first_line(error)}") from error


# --- navigation ------------------------------------------------------------------------------------


async def _goto(scope: _ActionScope) -> None:
    page, url = scope.page, scope.action.url
    if not _is_exact(page):
        await _navigate(page, page.goto(url, wait_until="commit"), url)
    elif failure := await (await PageProbe.of(page)).open(url):
        _raise_failure(page, f"Page.goto: {failure} at {url}", url)


async def _reload(scope: _ActionScope) -> None:
    await _navigate(scope.page, scope.page.reload(wait_until="commit"))


async def _navigate(page: Page, navigation: Awaitable[object], url: str = "") -> None:
    try:
        await navigation
    except PlaywrightError as error:
        _raise_failure(page, error.message, url)


def _raise_failure(page: Page, failure: str, url: str) -> None:
    """Raise InfraError or ActionFailed for a navigation's failure, unless it was only aborted."""
    line = first_line(failure)
    if is_ours(failure, url) or page.is_closed():
        raise InfraError(line)
    if _ABORTED not in failure and DOWNLOAD not in failure:
        raise ActionFailed(line, "navigation")


async def _history(scope: _ActionScope, by: int) -> None:
    # Playwright's go_back returns None both without a history entry and within the document.
    probe = await PageProbe.of(scope.page)
    history = await probe.send("Page.getNavigationHistory")
    index = history["currentIndex"] + by
    entries = history["entries"]
    # The first entry is the empty tab of the episode's start.
    if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":
        raise ActionFailed(f"there is no page to go {'back' if by < 0 else 'forward'} to", "navigation")
    if await probe.travel(entries[index]["id"], _ARRIVAL_SECONDS):
        await probe.arrived(_ARRIVAL_SECONDS)


async def _back(scope: _ActionScope) -> None:
    await _history(scope, -1)


async def _forward(scope: _ActionScope) -> None:
    await _history(scope, +1)


# --- tabs ------------------------------------------------------------------------------------------


async def _new_tab(scope: _ActionScope) -> None:
    page = await scope.page.context.new_page()
    scope.tabs.activate(page)
    if scope.action.url:
        await _navigate(page, page.goto(scope.action.url, wait_until="commit"), scope.action.url)


async def _close_tab(scope: _ActionScope) -> None:
    await _tab(scope, scope.action.tab).close()


async def _switch_tab(scope: _ActionScope) -> None:
    page = _tab(scope, scope.action.tab)
    scope.tabs.activate(page)
    await page.bring_to_front()


def _tab(scope: _ActionScope, index: int | None) -> Page:
    if index is None:
        return scope.page
    pages = scope.tabs.pages
    if index >= len(pages):
        raise ActionFailed(f"there is no tab {index}; the tabs are 0 to {len(pages) - 1}", "unknown_tab")
    return pages[index]


# --- dialogs ---------------------------------------------------------------------------------------


async def _dialog(scope: _ActionScope) -> None:
    scope.tabs.answer_next(accept=scope.action.accept, text=scope.action.text or None)


# --- elements --------------------------------------------------------------------------------------


async def _click(scope: _ActionScope) -> None:
    act = scope.action
    await browser_input.click(
        scope.page, scope.bids, scope.target, button=cast(Button, act.button), modifiers=act.modifiers
    )


async def _dblclick(scope: _ActionScope) -> None:
    act = scope.action
    await browser_input.dblclick(
        scope.page, scope.bids, scope.target, button=cast(Button, act.button), modifiers=act.modifiers
    )


async def _hover(scope: _ActionScope) -> None:
    await browser_input.hover(scope.page, scope.bids, scope.target)


async def _mouse_down(scope: _ActionScope) -> None:
    button = cast(Button, scope.action.button)
    await browser_input.mouse_down(scope.page, scope.bids, scope.target, button=button)


async def _mouse_up(scope: _ActionScope) -> None:
    button = cast(Button, scope.action.button)
    await browser_input.mouse_up(scope.page, scope.bids, scope.target, button=button)


async def _drag(scope: _ActionScope) -> None:
    onto: Target = scope.action.to or (scope.action.dx, scope.action.dy)
    await browser_input.drag(scope.page, scope.bids, scope.target, onto)


async def _focus(scope: _ActionScope) -> None:
    await browser_input.focus(scope.page, scope.bids, scope.action.bid)


async def _fill(scope: _ActionScope) -> None:
    await _set_value(scope, scope.action.value)
    await _enter(scope)


async def _set_value(scope: _ActionScope, value: str) -> None:
    page, bids, target = scope.page, scope.bids, scope.target
    if value in ("true", "false"):
        try:
            return await browser_input.check(page, bids, target, checked=value == "true")
        except ActionFailed as error:
            if error.kind != "unsuitable":
                raise
    await browser_input.fill(page, bids, target, value)


async def _clear(scope: _ActionScope) -> None:
    await browser_input.fill(scope.page, scope.bids, scope.target, "")


async def _select(scope: _ActionScope) -> None:
    wanted = scope.action.value.split("\n") if scope.action.value else []
    await browser_input.select_option(scope.page, scope.bids, scope.target, wanted)


async def _press(scope: _ActionScope) -> None:
    await browser_input.press(scope.page, scope.action.key, bids=scope.bids, bid=scope.action.bid)


async def _key_down(scope: _ActionScope) -> None:
    await browser_input.key_down(scope.page, scope.action.key)


async def _key_up(scope: _ActionScope) -> None:
    await browser_input.key_up(scope.page, scope.action.key)


async def _type(scope: _ActionScope) -> None:
    await browser_input.type_text(scope.page, scope.action.text, bids=scope.bids, bid=scope.target)
    await _enter(scope)


async def _enter(scope: _ActionScope) -> None:
    if scope.action.enter:
        await browser_input.press(scope.page, "Enter")


async def _upload(scope: _ActionScope) -> None:
    files = chosen_files(scope.action.file, scope.uploads)
    await browser_input.upload(scope.page, scope.bids, scope.target, files)


async def _scroll(scope: _ActionScope) -> None:
    act = scope.action
    await browser_input.scroll(scope.page, act.dx, act.dy, bids=scope.bids, bid=scope.target)


_ON_ELEMENTS: dict[str, Callable[[_ActionScope], Awaitable[None]]] = {
    "click": _click,
    "dblclick": _dblclick,
    "hover": _hover,
    "drag": _drag,
    "mouse_down": _mouse_down,
    "mouse_up": _mouse_up,
    "focus": _focus,
    "fill": _fill,
    "clear": _clear,
    "select": _select,
    "type": _type,
    "press": _press,
    "key_down": _key_down,
    "key_up": _key_up,
    "upload": _upload,
    "scroll": _scroll,
}

# The environment itself performs `wait` and `terminate`.
_ACTIONS: dict[str, Callable[[_ActionScope], Awaitable[None]]] = {
    **_ON_ELEMENTS,
    "goto": _goto,
    "back": _back,
    "forward": _forward,
    "reload": _reload,
    "new_tab": _new_tab,
    "close_tab": _close_tab,
    "switch_tab": _switch_tab,
    "dialog": _dialog,
}
