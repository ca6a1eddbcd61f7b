"""Walks a site by its controls: open, observe, act, and list the requests.

One `Walker` is one fresh context through one proxy. The explorer walks on the recording proxy; the check of
its map walks on the replay, by the same steps. Dialogs are dismissed by default: a confirmation usually
precedes an action that cannot be undone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, BrowserContext, Dialog, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity, Requested, is_ours
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.context import open_context
from stillweb.browser.driver import DOWNLOAD
from stillweb.browser.input import actions as browser_input
from stillweb.browser.input.controls import FormField, PageForm, PageState, state_of_survey
from stillweb.browser.input.elements import ActionFailed
from stillweb.browser.observe.bids import Bids
from stillweb.browser.observe.survey import survey
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.errors import InfraError
from stillweb.text import first_line

_ATTEMPTS = 3
_ACTION_MS = 30_000
_WHEEL = 700
_NO_PAGE = (DOWNLOAD, "ERR_ABORTED")  # a file to save, or an empty response
_TURNS = 20  # wheel turns, for a page that grows while it is scrolled

_FIELDS = """(() => {
  const forms = [], fields = [], hidden = [], nodes = [];
  const number = (form) => forms.includes(form) ? forms.indexOf(form) : forms.push(form) - 1;
  const walk = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) walk(element.shadowRoot);
      if (!element.matches("button, input, select, textarea")) continue;
      const { form, type } = element;
      if (type === "hidden") {
        if (form) hidden.push([number(form), element.name, element.value]);
        continue;
      }
      const sends = form && (type === "submit" || type === "image");
      nodes.push(element);
      fields.push([form ? number(form) : -1, type, Boolean(element.required),
        sends ? element.getAttribute("formmethod") ?? "" : null]);
    }
  };
  walk(document);
  const where = (form) => {
    try { return new URL(form.getAttribute("action") ?? "", document.baseURI).href; } catch { return ""; }
  };
  const how = (form) => (form.getAttribute("method") ?? "get").toLowerCase();
  return [JSON.stringify({ fields, hidden, forms: forms.map((form) => [how(form), where(form)]) }), ...nodes];
})()"""


@dataclass(frozen=True, slots=True)
class Act:
    """One action on a page.

    Attributes:
        do: "open" (a URL), "click", "hover", "select" (an option), "fill", "submit" (fields, then a
            button or, without one, Enter) or "scroll" (to the end).
        value: URL, option or text.
        fields: of "submit": keys and values, filled in this order.
    """

    do: str
    control: str = ""
    value: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, without empty members."""
        stored = {"do": self.do, "control": self.control, "value": self.value}
        present: dict[str, Any] = {name: value for name, value in stored.items() if value}
        return present | ({"fields": [list(each) for each in self.fields]} if self.fields else {})

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Act:
        fields = tuple((str(key), str(value)) for key, value in stored.get("fields", ()))
        return cls(str(stored["do"]), str(stored.get("control", "")), str(stored.get("value", "")), fields)


@asynccontextmanager
async def walking(
    browser: Browser,
    *,
    proxy: str,
    profile: Profile,
    pinning: Pinning,
    accept: bool = False,
    storage_state: Any = None,
) -> AsyncIterator[Walker]:
    """Open a fresh context and walk in it.

    Args:
        proxy: a recording proxy or a session of a replay.
        accept: whether dialogs are accepted.
        storage_state: initial cookies and local storage, in Playwright's format.

    Raises:
        InfraError: if the browser fails.
    """
    try:
        context = await open_context(
            browser, proxy=proxy, profile=profile, pinning=pinning, storage_state=storage_state
        )
    except PlaywrightError as error:
        raise InfraError(f"no new context: {error.message}") from error
    try:
        walker = Walker(context, accept=accept)
        await walker.begin()
        yield walker
    finally:
        with suppress(PlaywrightError):  # the browser has already ended
            await context.close()


class Walker:
    """A context, its front page, and the requests so far."""

    def __init__(self, context: BrowserContext, *, accept: bool = False) -> None:
        self.bids = Bids()
        self._context = context
        self._accept = accept
        self._activity = Activity(context)
        self._taken = 0
        self._pages: list[Page] = []
        context.on("page", self._on_page)

    @property
    def page(self) -> Page:
        """The open page that was opened last."""
        return self._pages[-1]

    async def begin(self) -> None:
        await self._context.new_page()

    async def look(self) -> PageState:
        """Return the state of the front page.

        Raises:
            InfraError: if the page is closed or has crashed.
        """
        for attempt in range(_ATTEMPTS):
            try:
                seen = await survey(self.page, self.bids)
                return state_of_survey(self.page.url, seen, await fields_of(self.page))
            except (FrameGone, PlaywrightError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise InfraError(f"{self.page.url}: {error}") from error
        raise AssertionError("unreachable")

    async def do(self, act: Act, state: PageState | None = None) -> str:
        """Act, and wait until the page has settled; return the reason of a failure, "" on success.

        Args:
            act: the action.
            state: of this load, to look up controls; not needed for "open" and "scroll".

        Raises:
            InfraError: if the browser or the proxy fails.
        """
        try:
            await self._perform(act, state)
        except ActionFailed as error:
            return error.reason
        except PlaywrightError as error:
            if is_ours(error.message):
                raise InfraError(first_line(error)) from error
            return first_line(error)
        finally:
            if not self._pages:
                await self._context.new_page()
        try:
            await settle(self.page, self._activity)
        except InfraError:
            if not self._pages or not self.page.is_closed():
                raise
        return ""

    def take_requests(self) -> list[Requested]:
        """Return the requests since the last call."""
        new = self._activity.requests[self._taken :]
        self._taken += len(new)
        return new

    async def _perform(self, act: Act, state: PageState | None) -> None:
        if act.do == "open":
            await self._open(act.value)
            return
        if act.do == "scroll":
            await self._scroll()
            return
        assert state is not None
        control = state.find(act.control)
        if act.do != "submit" and control is None:
            raise ActionFailed("the control is no longer on this page", "gone")
        bid = control.bid if control else ""
        match act.do:
            case "click":
                await browser_input.click(self.page, self.bids, bid)
            case "hover":
                await browser_input.hover(self.page, self.bids, bid)
            case "select":
                await browser_input.select_option(self.page, self.bids, bid, act.value)
            case "fill":
                await browser_input.fill(self.page, self.bids, bid, act.value)
            case "submit":
                await self._submit(act, state, bid)
            case _:
                raise ActionFailed(f"no action is called {act.do!r}", "unsuitable")

    async def _open(self, url: str) -> None:
        try:
            await self.page.goto(url, wait_until="commit", timeout=_ACTION_MS)
        except PlaywrightError as error:
            if not any(sign in error.message for sign in _NO_PAGE):
                raise

    async def _submit(self, act: Act, state: PageState, button: str) -> None:
        last = ""
        for key, value in act.fields:
            control = state.find(key)
            if control is None:
                raise ActionFailed("a field is no longer on this page", "gone")
            last = control.bid
            if control.tag == "select":
                await browser_input.select_option(self.page, self.bids, last, value)
            elif control.role in ("checkbox", "radio", "switch"):
                await browser_input.check(self.page, self.bids, last, checked=value != "false")
            else:
                await browser_input.fill(self.page, self.bids, last, value)
        if button:
            await browser_input.click(self.page, self.bids, button)
        else:
            await browser_input.press(self.page, "Enter", bids=self.bids, bid=last)

    async def _scroll(self) -> None:
        probe = await PageProbe.of(self.page)
        for _ in range(_TURNS):
            metrics = await probe.send("Page.getLayoutMetrics")
            seen, whole = metrics["cssLayoutViewport"], metrics["cssContentSize"]
            if seen["pageY"] + seen["clientHeight"] >= whole["height"] - 1:
                break
            await browser_input.scroll(self.page, 0, _WHEEL)

    def _on_page(self, page: Page) -> None:
        self._pages.append(page)
        page.on("close", lambda _: self._pages.remove(page) if page in self._pages else None)
        page.on("dialog", self._on_dialog)

    async def _on_dialog(self, dialog: Dialog) -> None:
        with suppress(PlaywrightError):  # the page closed together with its dialog
            # A "leave page?" dialog is accepted: leaving undoes nothing.
            if self._accept or dialog.type in ("alert", "beforeunload"):
                await dialog.accept()
            else:
                await dialog.dismiss()


async def fields_of(page: Page) -> dict[tuple[str, int], FormField]:
    """Return the fields of a page's frames, by frame and backend node id.

    Raises:
        FrameGone: if a frame navigates meanwhile.
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    found: dict[tuple[str, int], FormField] = {}
    for frame in await probe.frames():
        stored, nodes = await probe.evaluate_nodes(_FIELDS, frame)
        found |= _read_fields(frame.id, json.loads(stored), nodes)
    return found


def _read_fields(
    frame: str, stored: Mapping[str, Any], nodes: Sequence[int]
) -> dict[tuple[str, int], FormField]:
    hidden: dict[int, list[tuple[str, str]]] = {}
    for number, name, value in stored["hidden"]:
        hidden.setdefault(number, []).append((name, value))
    forms = [
        PageForm(number, frame, method, action, tuple(hidden.get(number, ())))
        for number, (method, action) in enumerate(stored["forms"])
    ]
    found = {}
    for node, (number, kind, required, sends) in zip(nodes, stored["fields"], strict=True):
        form = forms[number] if number >= 0 else None
        method = "" if sends is None or form is None else (sends.lower() or form.method)
        found[frame, node] = FormField(kind, form, required, method)
    return found
