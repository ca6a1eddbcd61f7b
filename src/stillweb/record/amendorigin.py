"""The page that misses come from, open while they are asked for: its cookies, its tokens, its forms."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from playwright.async_api import Browser, BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity
from stillweb.browser.context import open_context, plain_user_agent
from stillweb.browser.probe import FrameGone, Probe
from stillweb.browser.settle import settle
from stillweb.browser.walk import fields_of
from stillweb.collections.bodies import FormBody, read_body
from stillweb.collections.rules import Rule, Rules
from stillweb.errors import InfraError
from stillweb.model import Request, header
from stillweb.record.amendask import browser_fields
from stillweb.record.amendtokens import LivePage, renewed, rules_for, token_places
from stillweb.record.visit import Setting

__all__ = ["Origin"]

_METAS = """(() => Object.fromEntries([...document.querySelectorAll("meta[name][content]")].map(
  (each) => [each.getAttribute("name"), each.getAttribute("content")])))()"""
_SEND = """([action, fields]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action, acceptCharset: "utf-8", hidden: true });
  for (const [name, value] of fields) {
    const field = document.createElement("textarea");
    Object.assign(field, { name, value });
    form.append(field);
  }
  document.body.append(form);
  HTMLFormElement.prototype.submit.call(form);
}"""


class Origin:
    """A page in a context of its own; the bare context if there is none.

    Args:
        browser: from `launch`.
        setting: of the recording.
        url: of the page; "" for none.

    Attributes:
        context: whose cookies are sent.
        fields: what its browser sends with any request.
    """

    def __init__(self, browser: Browser, setting: Setting, url: str) -> None:
        self._browser = browser
        self._setting = setting
        self._url = url
        self._page: Page | None = None
        self._activity: Activity | None = None
        self.context: BrowserContext | None = None
        self.fields: Mapping[str, str] = {}

    async def __aenter__(self) -> Origin:
        setting = self._setting
        agent = setting.profile.user_agent or plain_user_agent(self._browser.version)
        self.fields = {
            "user-agent": agent,
            "accept-language": setting.profile.locale,
            "accept-encoding": "gzip, deflate, br, zstd",
        }
        self.context = await open_context(
            self._browser,
            proxy=setting.proxy,
            profile=setting.profile,
            pinning=setting.pinning,
            storage_state=setting.login.state if setting.login else None,
        )
        if self._url:
            self._activity = Activity(self.context)
            await self._open(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.context is not None:
            with suppress(PlaywrightError):  # the browser is gone already
                await self.context.close()

    async def renewed(self, request: Request, referer: str, rules: Rules) -> tuple[Request, tuple[Rule, ...]]:
        """Return a request with the tokens that its page has now, and by which further rules replay finds it.

        Args:
            request: as it was missed.
            referer: the page that sent it, as it said; looked at where the page that is open has no token.
            rules: of the collection.
        """
        places = token_places(request, rules)
        document = header(request.headers, "sec-fetch-dest") == "document"
        if self._page is None or (document and not places):
            return request, ()
        made = renewed(request, places, await self._look())
        # A referrer policy may leave no more of it than the origin.
        if places and made.raw_body == request.raw_body and made.url == request.url and referer != self._url:
            if referer:
                await self._open(referer)
            made = renewed(request, places, await self._look())
        return made, rules_for(request, made, self._page.url, rules)

    async def submit(self, request: Request) -> bool:
        """Send a form from the page, so that what it leads to brings with it what that asks for.

        Returns:
            False if it cannot be sent so: it is no plain form, or there is no page.
        """
        body = read_body(header(request.headers, "content-type"), request.raw_body)
        document = header(request.headers, "sec-fetch-dest") == "document"
        if not isinstance(body, FormBody) or not document or not self._page or not self._activity:
            return False
        try:
            fields = [[name.decode(), value.decode()] for name, value in body.fields]
            await self._page.evaluate(_SEND, [request.url, fields])
            await settle(self._page, self._activity)
        except UnicodeDecodeError:
            return False
        except (PlaywrightError, InfraError):  # what came of it, the proxy knows
            pass
        return True

    async def _open(self, url: str) -> None:
        """Open a page in the context; without its cookies and tokens where it cannot be had."""
        assert self.context is not None
        assert self._activity is not None
        with suppress(PlaywrightError, InfraError):
            page = self._page or await self.context.new_page()
            answer = await page.goto(url, timeout=1000 * self._setting.page_timeout)
            self._page = page
            await settle(page, self._activity)
            if answer is not None:
                self.fields = {**self.fields, **browser_fields(await answer.request.all_headers())}

    async def _look(self) -> LivePage:
        assert self._page is not None
        assert self.context is not None
        cookies = {each["name"]: each["value"] for each in await self.context.cookies(self._page.url)}
        try:
            held = await fields_of(self._page)
            metas = await (await Probe.of(self._page)).evaluate(_METAS)
        except (PlaywrightError, FrameGone, InfraError):
            return LivePage(cookies=cookies)
        forms = {id(each.form): each.form for each in held.values() if each.form}
        return LivePage([(form.action, dict(form.hidden)) for form in forms.values()], metas, cookies)
