"""Actions on a page by bid or point, with mouse and keyboard.

A node is scrolled into view and located. The uppermost element at that point must be the node itself or a
descendant; otherwise the action fails and names the obstacle. A point may be given in place of a bid.
`ActionFailed` describes the page, not an error of stillweb, so it is not a `StillwebError`; episodes turn it
into a value. No function waits for the page; call `settle` for that.

Apart from mouse moves and wheel (`pointer`), no function uses the page's timers or waits for frames, so a
stopped clock blocks nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.input.clipboard import own_clipboard
from stillweb.browser.input.elements import (
    ActionFailed,
    ActionTarget,
    Target,
    ask,
    clickable_point,
    find,
    locate,
    name_of,
    place,
    point_of,
    related,
    shown_parts,
)
from stillweb.browser.input.pointer import Button, Point, Pointer, hold_modifier
from stillweb.browser.observe.bids import Bids
from stillweb.errors import InfraError

_CHOOSER_SECONDS = 1.0  # for the event that a click opened a file chooser


async def click(
    page: Page, bids: Bids, bid: Target, *, button: Button = "left", count: int = 1, modifiers: str = ""
) -> None:
    """Click an element at its middle, or a point, while modifier keys joined by `+` are held.

    Raises:
        ActionFailed: if it is gone, disabled, invisible or covered.
    """
    at = await clickable_point(page, bids, bid)
    await (await Pointer.of(page, modifiers)).click(at, button, count)


async def dblclick(
    page: Page, bids: Bids, bid: Target, *, button: Button = "left", modifiers: str = ""
) -> None:
    await click(page, bids, bid, button=button, count=2, modifiers=modifiers)


async def hover(page: Page, bids: Bids, bid: Target) -> None:
    at = await point_of(page, bids, bid)
    await (await Pointer.of(page)).move(at)


async def mouse_down(page: Page, bids: Bids, bid: Target, *, button: Button = "left") -> None:
    at = await point_of(page, bids, bid)
    await (await Pointer.of(page)).down(at, button)


async def mouse_up(page: Page, bids: Bids, bid: Target, *, button: Button = "left") -> None:
    """Release a mouse button over an element, even if it is covered: the cover may be the dragged element."""
    at = await point_of(page, bids, bid, hit=False)
    await (await Pointer.of(page)).up(at, button)


async def fill(page: Page, bids: Bids, bid: Target, text: str) -> None:
    """Set the text of a field; the page receives `input` and `change`.

    Dates, times, colours and ranges are set by their value (`2024-01-31`, `13:45`, `#ff0000`, `7`).

    Raises:
        ActionFailed: if it is not a field, is read-only or disabled, or rejects the value.
    """
    element = await locate(page, bids, bid)
    result = await ask(element, "fill", text)
    if "failed" in result:
        raise element.failed(result["failed"], result["kind"])
    if not result["typed"]:
        return
    # Focused and selected: typed text replaces the value. Pages with suggestions listen to the keyboard, so
    # the last key is pressed and released around the inserted text.
    if text:
        await _send_key(element.probe, "rawKeyDown", text[-1])
        await page.keyboard.insert_text(text)
        await _send_key(element.probe, "keyUp", text[-1])
    elif not result["empty"]:
        await page.keyboard.press("Delete")
    with suppress(ActionFailed):  # a page may remove a field once it is filled
        await ask(element, "changed")


async def check(page: Page, bids: Bids, bid: Target, *, checked: bool = True) -> None:
    """Click a checkbox, radio button or switch unless it has the requested state."""
    element = await locate(page, bids, bid)
    state = await ask(element, "checked")
    if state is None:
        raise element.failed("is not a checkbox, radio button or switch", "unsuitable")
    if state != checked:
        await click(page, bids, bid)


async def select_option(page: Page, bids: Bids, bid: Target, options: str | Sequence[str]) -> None:
    """Select options of a list by value, else by label, replacing the current selection.

    Without options, select the option that the bid names.

    Raises:
        ActionFailed: if it is not a list, or lacks the options.
    """
    wanted = [options] if isinstance(options, str) else list(options)
    element = await locate(page, bids, bid)
    result = await ask(element, "select", wanted)
    if "failed" in result:
        raise element.failed(result["failed"], result["kind"])


async def press(page: Page, keys: str, *, bids: Bids | None = None, bid: str = "") -> None:
    """Press keys together, such as `Enter` or `Control+a`, in an element if one is given.

    Several combinations, separated by spaces, are pressed in sequence.
    """
    if bids is not None and bid:
        await focus(page, bids, bid)
    for combination in keys.split() or [keys]:
        await _keyboard(page, page.keyboard.press, combination)


async def key_down(page: Page, key: str) -> None:
    await _keyboard(page, page.keyboard.down, key)
    hold_modifier(page, key, down=True)


async def key_up(page: Page, key: str) -> None:
    await _keyboard(page, page.keyboard.up, key)
    hold_modifier(page, key, down=False)


async def type_text(page: Page, text: str, *, bids: Bids | None = None, bid: Target = "") -> None:
    """Type text key by key: at the focus, at the end of a field, or after a click on a point."""
    if bids is None or not bid:
        pass
    elif isinstance(bid, tuple):
        await click(page, bids, bid)
    else:
        await focus(page, bids, bid)
        await ask(await find(page, bids, bid), "caretToEnd")
    await _keyboard(page, page.keyboard.type, text)


async def focus(page: Page, bids: Bids, bid: str) -> None:
    element = await find(page, bids, bid)
    if not await ask(element, "focus"):
        raise element.failed("takes no keyboard focus", "unsuitable")


async def upload(page: Page, bids: Bids, bid: Target, files: Sequence[Path]) -> None:
    """Give files to a file field, or to the chooser that a click opens.

    Raises:
        ActionFailed: if a click opens no chooser, or it takes one file only.
    """
    element = await locate(page, bids, bid)
    if field := await related(element, "fileField"):
        many = await ask(field, "takesMany")
        await _give_files(element, {"objectId": field.object_id}, files, many=many)
        return
    probe = element.probe
    with probe.expecting("Page.fileChooserOpened") as opened:
        await probe.send("Page.setInterceptFileChooserDialog", enabled=True)
        try:
            await click(page, bids, bid)
            async with asyncio.timeout(_CHOOSER_SECONDS):
                chooser = await opened
        except TimeoutError:
            raise element.failed("opens no file chooser", "unsuitable") from None
        finally:
            await probe.send("Page.setInterceptFileChooserDialog", enabled=True, cancel=True)
    many = chooser["mode"] != "selectSingle"
    if "backendNodeId" not in chooser:
        raise element.failed("opens a chooser that belongs to no field", "unsuitable")
    await _give_files(element, {"backendNodeId": chooser["backendNodeId"]}, files, many=many)


async def scroll(page: Page, dx: float, dy: float, *, bids: Bids | None = None, bid: Target = "") -> None:
    """Turn the mouse wheel over an element, or over the middle of the page."""
    if bids is not None and bid:
        at = await point_of(page, bids, bid, hit=False)
    else:
        size = page.viewport_size or {"width": 2, "height": 2}
        at = size["width"] / 2, size["height"] / 2
    await (await Pointer.of(page)).wheel(at, dx, dy)


async def drag(page: Page, bids: Bids, bid: Target, target: str | Point) -> None:
    """Press on an element, move to another one or by an offset in pixels, and release.

    The page decides whether that is HTML drag and drop or handled by its own listeners.

    Raises:
        ActionFailed: if the viewport cannot show both.
    """
    start = await point_of(page, bids, bid)
    if isinstance(target, str):
        onto = await find(page, bids, target)
        end = await place(onto, hit=False)
        start = await point_of(page, bids, bid)  # scrolling to the target may have scrolled the source
        if not await shown_parts(onto, scroll=False):
            raise onto.failed(f"cannot be seen together with {name_of(bid)}", "invisible")
        end = await place(onto, hit=False, scroll=False)
    else:
        end = start[0] + target[0], start[1] + target[1]
    await (await Pointer.of(page)).drag(start, end)


async def _give_files(
    element: ActionTarget, field: dict[str, Any], files: Sequence[Path], *, many: bool
) -> None:
    if len(files) > 1 and not many:
        raise element.failed("takes one file only", "unsuitable")
    await element.probe.send("DOM.setFileInputFiles", files=[str(file) for file in files], **field)


async def _send_key(probe: PageProbe, kind: str, character: str) -> None:
    """Press or release the key of a character, without inserting the character."""
    upper = character.upper()
    plain = character.isascii() and character.isalnum()
    code = f"{'Digit' if upper.isdigit() else 'Key'}{upper}" if plain else ""
    number = {"windowsVirtualKeyCode": ord(upper)} if code else {}
    await probe.send("Input.dispatchKeyEvent", type=kind, key=character, code=code, **number)


async def _keyboard(page: Page, use: Callable[[str], Awaitable[None]], keys: str) -> None:
    try:
        async with own_clipboard(page, keys):
            await use(keys)
    except PlaywrightError as error:
        if "Unknown key" in error.message:
            raise ActionFailed(f"no key is called {keys!r}", "unsuitable") from error
        raise InfraError(f"{page.url}: {error.message}") from error
