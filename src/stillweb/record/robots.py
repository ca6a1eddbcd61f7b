"""What robots.txt asks of a crawl (RFC 9309), for those who want to heed it: `--robots`.

One file an origin, read when the first page of that origin is due. A site without one allows everything; one
that answers 5xx or not at all allows nothing (§2.3.1.4), which is told. A URL given is a person's wish and
visited in any case; what was found is not, if it is forbidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

from protego import Protego

from stillweb.errors import UpstreamUnreachable
from stillweb.record.fetch import AGENT, Fetcher
from stillweb.urls import origin_of

__all__ = ["Robots"]

_FORBIDS_ALL = "User-agent: *\nDisallow: /"
_MOST_DELAY = 60.0  # seconds; a file may ask for any


@dataclass(slots=True)
class Robots:
    """The robots.txt of the origins met so far.

    Attributes:
        fetcher: how they are read.
        unread: origin -> why its file could not be read.
    """

    fetcher: Fetcher
    unread: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Protego] = field(default_factory=dict)

    async def allows(self, url: str) -> bool:
        """Tell whether a page may be visited."""
        rules = await self._of(url)
        return bool(rules.can_fetch(url, AGENT))

    async def delay(self, url: str) -> float:
        """Return the seconds that the site wants between two pages; 0 if it does not say."""
        asked = (await self._of(url)).crawl_delay(AGENT)
        return min(float(asked or 0), _MOST_DELAY)

    async def sitemaps(self, url: str) -> list[str]:
        """Return the sitemaps that the file of a URL's origin names."""
        return list((await self._of(url)).sitemaps)

    async def _of(self, url: str) -> Protego:
        origin = origin_of(url)
        if origin not in self._read:
            self._read[origin] = Protego.parse(await self._text(origin))
        return self._read[origin]

    async def _text(self, origin: str) -> str:
        try:
            fetched = await self.fetcher.get(f"{origin}/robots.txt")
        except UpstreamUnreachable as error:
            self.unread[origin] = str(error)
            return _FORBIDS_ALL
        if fetched.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.unread[origin] = f"status {fetched.status}"
            return _FORBIDS_ALL
        return fetched.body.decode("utf-8", "replace") if fetched.status == HTTPStatus.OK else ""
