"""A plain request through the recording proxy, with what a browser would send beside the page's fields."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx
from playwright.async_api import BrowserContext

from stillweb.certs import CertAuthority
from stillweb.model import Request
from stillweb.urls import wire_url

__all__ = ["Asker", "asker", "browser_fields"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOPS = 8
# Of the browser's fields, those that do not depend on what is asked for.
_BROWSERS = (
    "user-agent",
    "accept-language",
    "accept-encoding",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
)
# Set anew: of one message, or of whoever asked then.
_REPLACED = frozenset({"host", "content-length", "connection", "cookie", "referer", "transfer-encoding"})


def browser_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return what a browser sends with any request, from the fields of one that it has sent."""
    return {name: fields[name] for name in _BROWSERS if fields.get(name)}


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends requests.

    Attributes:
        client: that goes through the recording proxy.
        timeout: seconds for one.
    """

    client: httpx.AsyncClient
    timeout: float

    async def ask(
        self, request: Request, browsers: Mapping[str, str], referer: str, context: BrowserContext | None
    ) -> tuple[list[str], str]:
        """Ask, and follow redirects as a browser does; return the URLs asked for and why there is no answer.

        Args:
            request: with the fields that the client had.
            browsers: fields that the browser adds.
            referer: "" for none.
            context: whose cookies are sent; None for none.
        """
        asked: list[str] = []
        for _ in range(_HOPS):
            asked.append(request.url)
            fields = await _fields(request, browsers, referer, context)
            try:
                async with self.client.stream(
                    request.method,
                    request.url,
                    headers=fields,
                    content=request.raw_body or None,
                    timeout=self.timeout,
                ) as response:
                    async for _chunk in response.aiter_raw():
                        pass
            except httpx.TimeoutException:
                return asked, f"no answer within {self.timeout:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return asked, str(error) or type(error).__name__
            location = response.headers.get("location", "")
            if response.status_code not in _REDIRECTS or not location:
                return asked, ""
            target = wire_url(urljoin(request.url, location).partition("#")[0])
            if target in asked or not target.startswith(("http://", "https://")):
                return asked, ""
            request = _onward(request, response.status_code, target)
        return asked, ""


@asynccontextmanager
async def asker(proxy: str, ca: CertAuthority, timeout: float) -> AsyncIterator[Asker]:
    """Open a client whose traffic goes through a recording proxy."""
    trust = ssl.create_default_context(cafile=str(ca.ca_file))
    async with httpx.AsyncClient(proxy=httpx.Proxy(proxy), verify=trust, trust_env=False) as client:
        client.headers.clear()  # nothing of its own: the site is to see a browser
        yield Asker(client, timeout)


async def _fields(
    request: Request, browsers: Mapping[str, str], referer: str, context: BrowserContext | None
) -> Sequence[tuple[str, str]]:
    own = [(name, value) for name, value in request.headers if name.lower() not in _REPLACED]
    names = {name.lower() for name, _ in own}
    fields = [*((name, value) for name, value in browsers.items() if name not in names), *own]
    if "accept" not in names:
        fields.append(("accept", "*/*"))
    if referer:
        fields.append(("referer", referer))
    cookies = await context.cookies(request.url) if context else []
    if cookies:
        fields.append(("cookie", "; ".join(f"{each['name']}={each['value']}" for each in cookies)))
    return fields


def _onward(request: Request, status: int, url: str) -> Request:
    """Return the request after a redirect (Fetch §4.4); 303 and, of a POST, 301 and 302 make a GET of it."""
    if (status == 303 and request.method != "HEAD") or (status in (301, 302) and request.method == "POST"):
        body_fields = ("content-type", "content-length", "origin")
        kept = tuple(field for field in request.headers if field[0].lower() not in body_fields)
        return Request("GET", url, kept)
    return Request(request.method, url, request.headers, request.raw_body)
