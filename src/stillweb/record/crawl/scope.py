"""Scope of a crawl and spelling of its links; pure.

Links are compared in wire spelling. A hash route (`#/users`) is a page of its own, a `#section` is not. A
seed is always in scope. `include` and `exclude` patterns match anywhere in the link; `exclude` wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from stillweb.errors import UsageError
from stillweb.model import Exchange, header
from stillweb.record.options import ScopeKind
from stillweb.urls import host_of, origin_of, page_address

# Links with these endings are downloads; a navigation to one shows nothing.
_FILES = re.compile(
    r"\.(7z|apk|avi|bin|bz2|csv|deb|dmg|docx?|epub|exe|gz|iso|jar|mov|mp[34]|msi|ods|odt|ogg|pdf|pptx?|"
    r"rar|rpm|tar|tgz|txz|wav|webm|whl|xlsx?|xz|zip|zst)$",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?![0-9])")  # `site.test:8080` has a port, not a scheme


LEADS_TO = """const leadsTo = (element, attribute) => {
    try {
      const url = new URL(attribute, document.baseURI).href;
      return typeof element.href === "string" ? element.href : url;
    } catch { return ""; }
  };"""
"""JavaScript function that resolves a link as the browser does, which differs from urljoin.

`href` of an HTML link also applies the page's encoding; `href` of an SVG link is not a string.
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """Condition for the links that a crawl follows.

    Attributes:
        kind: how far from a seed.
        seeds: seeds in wire spelling.
    """

    kind: ScopeKind
    seeds: tuple[str, ...]
    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(
        cls,
        kind: ScopeKind,
        seeds: Iterable[str],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> Scope:
        """Make a scope from command-line values.

        Raises:
            UsageError: if a seed is not an http(s) URL or a pattern is not a regular expression.
        """
        return cls(
            ScopeKind(kind),
            tuple(seed_url(seed) for seed in seeds),
            tuple(_compiled(pattern, "include") for pattern in include),
            tuple(_compiled(pattern, "exclude") for pattern in exclude),
        )

    def contains(self, url: str) -> bool:
        """Return True if the crawl follows a link, given in wire spelling."""
        if url in self.seeds:
            return True
        if any(pattern.search(url) for pattern in self.exclude):
            return False
        if self.include and not any(pattern.search(url) for pattern in self.include):
            return False
        return any(self._near(url, seed) for seed in self.seeds)

    def _near(self, url: str, seed: str) -> bool:
        if self.kind is ScopeKind.PAGE:
            return url == seed
        if self.kind is ScopeKind.PREFIX:
            return origin_of(url) == origin_of(seed) and urlsplit(url).path.startswith(_folder(seed))
        host, home = host_of(url), host_of(seed)
        if self.kind is ScopeKind.HOST:
            return host == home
        domain = home.removeprefix("www.")
        return host == domain or host.endswith("." + domain)


def seed_url(text: str) -> str:
    """Return a seed in wire spelling; a bare host name means https.

    Raises:
        UsageError: if it is not an http(s) URL.
    """
    text = text.strip()
    if not _SCHEME.match(text):
        text = f"https://{text}"
    if not text.lower().startswith(("http://", "https://")) or not host_of(text):
        raise UsageError(
            f"not an http or https URL: {text!r}", hint="give a URL such as https://site.example/"
        )
    return page_address(text)


def page_link(href: str, base: str) -> str | None:
    """Return the target of a listed link in wire spelling; None if it is not http(s)."""
    try:
        return page_url(urljoin(base, href.strip()))
    except ValueError:  # "http://[" and the like
        return None


def location_of(exchange: Exchange) -> str:
    """Return where a redirect leads, "" if the response is none."""
    if exchange.response.status not in (301, 302, 303, 307, 308):
        return ""
    return page_link(header(exchange.response.headers, "location"), exchange.request.url) or ""


def page_url(url: str) -> str | None:
    """Return an absolute URL in wire spelling; None if it is not http(s)."""
    if not url.lower().startswith(("http://", "https://")) or not host_of(url):
        return None
    return page_address(url)


def is_file(url: str) -> bool:
    """Return True if the path of a link ends like a download."""
    return _FILES.search(urlsplit(url).path) is not None


def page_links(links: Iterable[tuple[str, str]]) -> list[str]:
    """Return the distinct targets of (href, base) pairs in document order."""
    found = (page_link(href, base) for href, base in links)
    return list(dict.fromkeys(url for url in found if url is not None))


def _folder(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[0] + "/"


def _compiled(pattern: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--{option} {pattern!r} is not a regular expression: {error}") from error
