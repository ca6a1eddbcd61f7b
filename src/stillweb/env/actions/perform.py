"""Carry out an action in the active tab.

One small coroutine per action, found by its name. What a page makes impossible (an element
that is gone, hidden or covered, an option that is not there, no page to go back to) is an
`ActionResult` with status `action_failed`; what browser or proxy make impossible is an
`InfraError`. Nothing here waits for the page to react: `settle` does, after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import is_ours
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.context import state_of
from stillweb.browser.driver import DOWNLOAD
from stillweb.browser.input import actions as browser_input
from stillweb.browser.input.elements import ActionFailed, Target
from stillweb.browser.input.pointer import Button
from stillweb.browser.observe.axtree import Bids
from stillweb.browser.profile import Level
from stillweb.env.actions.action import Action, ActionResult, ActionStatus
from stillweb.env.episode.tabs import Tabs, closed_itself
from stillweb.env.options import EnvOptions
from stillweb.errors import InfraError, TaskError

__all__ = ["NOT_ALLOWED", "allowed_files", "chosen_files", "open_start", "perform"]

NOT_ALLOWED = "not_allowed"
_LISTED = 20


def chosen_files(names: str, uploads: Sequence[Path]) -> list[Path]:
    """Return the files of these names, one on each line.

    Args:
        names: file names, or paths within the folders allowed.
        uploads: files and folders that are allowed.

    Raises:
        ActionFailed: of kind NOT_ALLOWED, for a name that is none of the files allowed.
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
    """Yield each file that is allowed, with the name that an agent knows it by."""
    for upload in uploads:
        root = upload.resolve()
        if root.is_file():
            yield upload.name, root
            continue
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path.relative_to(root).as_posix(), path.resolve()


# A navigation that became a download or an empty answer, or was overtaken by another one: no failure.
_ABORTED = "ERR_ABORTED"
_ARRIVAL_SECONDS = 3.0
_USUAL = EnvOptions()
# What whoever acted could have known: what names nothing is the model's invention, not the page's refusal.
_INVENTED = ("unknown_bid", "unknown_tab", "outside", "value_missing", NOT_ALLOWED)
_NO_PAGE = (_ABORTED, DOWNLOAD, "invalid URL", "ERR_UNSAFE_PORT", "ERR_INVALID_URL")


@dataclass(frozen=True, slots=True)
class _ActionScope:
    """Where an action happens."""

    action: Action
    tabs: Tabs
    bids: Bids
    uploads: Sequence[Path]

    @property
    def page(self) -> Page:
        return self.tabs.active

    @property
    def target(self) -> Target:
        """The bid or the place that the action names, "" for neither."""
        return self.action.point or self.action.bid


async def perform(action: Action, tabs: Tabs, bids: Bids, options: EnvOptions = _USUAL) -> ActionResult:
    """Carry out an action; one that takes longer than `options.action_seconds` has failed.

    At level EXACT it is given six times as many, and is then no failure of the page's: load must not decide
    what an agent sees.

    Raises:
        InfraError: if the browser or the proxy is gone, or too slow at EXACT.
    """
    seconds, page = options.action_seconds, tabs.active
    exact = _is_exact(page)
    seconds *= 6 if exact else 1
    try:
        async with asyncio.timeout(seconds):
            await tabs.attend(page)
            await _ACTIONS[action.action](_ActionScope(action, tabs, bids, options.uploads))
    except ActionFailed as error:
        status = ActionStatus.INVALID if error.kind in _INVENTED else ActionStatus.FAILED
        return ActionResult(status, error.reason)
    except InfraError:
        # A page may close itself by what is done to it: a popup whose button says so.
        if action.action not in _ON_ELEMENTS or not await closed_itself(page):
            raise
    except TimeoutError as error:
        late = f"{action.action} did not end within {seconds:g} s"
        if exact:
            raise InfraError(late, hint="fewer sessions at once, or reset") from error
        return ActionResult(ActionStatus.FAILED, late)
    finally:
        await tabs.ensure_one()
    return ActionResult()


def _is_exact(page: Page) -> bool:
    return state_of(page.context).pinning.level is Level.EXACT


async def open_start(page: Page, url: str) -> str:
    """Open an episode's first page; return the address that it was found at, after redirections.

    Raises:
        TaskError: if there is no page at the address, but a download, an empty answer or nonsense.
        InfraError: if it cannot be opened.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise TaskError(f"the start page {url!r} is no http or https address")
    try:
        response = await page.goto(url, wait_until="commit")
        return response.url if response else url
    except PlaywrightError as error:
        if not page.is_closed() and any(sign in error.message for sign in _NO_PAGE):
            # A browser or renderer that dies aborts what it was doing, and is told to be dead only then.
            await (await PageProbe.of(page)).send("Runtime.evaluate", expression="1")
            raise TaskError(f"the start page {url} is no page: {_first_line(error)}") from error
        raise InfraError(f"the start page {url} did not open: {_first_line(error)}") from error


def _first_line(error: PlaywrightError) -> str:
    return error.message.partition("\n")[0]


# --- navigation ------------------------------------------------------------------------------------


async def _goto(stage: _ActionScope) -> None:
    page, url = stage.page, stage.action.url
    if not _is_exact(page):
        await _navigate(page, page.goto(url, wait_until="commit"), url)
    elif failure := await (await PageProbe.of(page)).open(url):
        _judge(page, f"Page.goto: {failure} at {url}", url)


async def _reload(stage: _ActionScope) -> None:
    await _navigate(stage.page, stage.page.reload(wait_until="commit"))


async def _navigate(page: Page, navigation: Awaitable[object], url: str = "") -> None:
    try:
        await navigation
    except PlaywrightError as error:
        _judge(page, error.message, url)


def _judge(page: Page, failure: str, url: str) -> None:
    """Raise what a navigation's failure is, if it is one."""
    told = failure.partition("\n")[0]
    if is_ours(failure, url) or page.is_closed():
        raise InfraError(told)
    if _ABORTED not in failure and DOWNLOAD not in failure:
        raise ActionFailed(told, "navigation")


async def _history(stage: _ActionScope, by: int) -> None:
    # Playwright's go_back tells "nowhere to go" and "within the document" alike (None), so ask the browser.
    probe = await PageProbe.of(stage.page)
    history = await probe.send("Page.getNavigationHistory")
    index = history["currentIndex"] + by
    entries = history["entries"]
    # The first entry is the empty tab in which every episode begins.
    if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":
        raise ActionFailed(f"there is no page to go {'back' if by < 0 else 'forward'} to", "navigation")
    if await probe.travel(entries[index]["id"], _ARRIVAL_SECONDS):
        await probe.arrived(_ARRIVAL_SECONDS)


async def _back(stage: _ActionScope) -> None:
    await _history(stage, -1)


async def _forward(stage: _ActionScope) -> None:
    await _history(stage, +1)


# --- tabs ------------------------------------------------------------------------------------------


async def _new_tab(stage: _ActionScope) -> None:
    page = await stage.page.context.new_page()
    stage.tabs.activate(page)
    if stage.action.url:
        await _navigate(page, page.goto(stage.action.url, wait_until="commit"), stage.action.url)


async def _close_tab(stage: _ActionScope) -> None:
    await _tab(stage, stage.action.tab).close()


async def _switch_tab(stage: _ActionScope) -> None:
    page = _tab(stage, stage.action.tab)
    stage.tabs.activate(page)
    await page.bring_to_front()


def _tab(stage: _ActionScope, index: int | None) -> Page:
    if index is None:
        return stage.page
    pages = stage.tabs.pages
    if index >= len(pages):
        raise ActionFailed(f"there is no tab {index}; the tabs are 0 to {len(pages) - 1}", "unknown_tab")
    return pages[index]


# --- dialogs ---------------------------------------------------------------------------------------


async def _dialog(stage: _ActionScope) -> None:
    stage.tabs.answer_next(accept=stage.action.accept, text=stage.action.text or None)


# --- elements --------------------------------------------------------------------------------------


async def _click(stage: _ActionScope) -> None:
    act = stage.action
    await browser_input.click(
        stage.page, stage.bids, stage.target, button=cast(Button, act.button), modifiers=act.modifiers
    )


async def _dblclick(stage: _ActionScope) -> None:
    act = stage.action
    await browser_input.dblclick(
        stage.page, stage.bids, stage.target, button=cast(Button, act.button), modifiers=act.modifiers
    )


async def _hover(stage: _ActionScope) -> None:
    await browser_input.hover(stage.page, stage.bids, stage.target)


async def _mouse_down(stage: _ActionScope) -> None:
    button = cast(Button, stage.action.button)
    await browser_input.mouse_down(stage.page, stage.bids, stage.target, button=button)


async def _mouse_up(stage: _ActionScope) -> None:
    button = cast(Button, stage.action.button)
    await browser_input.mouse_up(stage.page, stage.bids, stage.target, button=button)


async def _drag(stage: _ActionScope) -> None:
    onto: Target = stage.action.to or (stage.action.dx, stage.action.dy)
    await browser_input.drag(stage.page, stage.bids, stage.target, onto)


async def _focus(stage: _ActionScope) -> None:
    await browser_input.focus(stage.page, stage.bids, stage.action.bid)


async def _fill(stage: _ActionScope) -> None:
    await _filled(stage, stage.action.value)
    await _enter(stage)


async def _filled(stage: _ActionScope, value: str) -> None:
    page, bids, target = stage.page, stage.bids, stage.target
    if value in ("true", "false"):
        try:
            return await browser_input.check(page, bids, target, checked=value == "true")
        except ActionFailed as error:
            if error.kind != "unsuitable":
                raise
    await browser_input.fill(page, bids, target, value)


async def _clear(stage: _ActionScope) -> None:
    await browser_input.fill(stage.page, stage.bids, stage.target, "")


async def _select(stage: _ActionScope) -> None:
    wanted = stage.action.value.split("\n") if stage.action.value else []
    await browser_input.select_option(stage.page, stage.bids, stage.target, wanted)


async def _press(stage: _ActionScope) -> None:
    await browser_input.press(stage.page, stage.action.key, bids=stage.bids, bid=stage.action.bid)


async def _key_down(stage: _ActionScope) -> None:
    await browser_input.key_down(stage.page, stage.action.key)


async def _key_up(stage: _ActionScope) -> None:
    await browser_input.key_up(stage.page, stage.action.key)


async def _type(stage: _ActionScope) -> None:
    await browser_input.type_text(stage.page, stage.action.text, bids=stage.bids, bid=stage.target)
    await _enter(stage)


async def _enter(stage: _ActionScope) -> None:
    if stage.action.enter:
        await browser_input.press(stage.page, "Enter")


async def _upload(stage: _ActionScope) -> None:
    files = chosen_files(stage.action.file, stage.uploads)
    await browser_input.upload(stage.page, stage.bids, stage.target, files)


async def _scroll(stage: _ActionScope) -> None:
    act = stage.action
    await browser_input.scroll(stage.page, act.dx, act.dy, bids=stage.bids, bid=stage.target)


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

# `wait` and `terminate` touch no page: the environment itself does them.
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
