"""Selection of the forms to record with several texts: those that agents sent with own text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stillweb.collections.misses import Missed
from stillweb.model import MUTATIONS, Request, header
from stillweb.record.harvest.misses import only_reads
from stillweb.record.harvest.opened import OpenedPosts
from stillweb.record.redaction.find import sends_password

_SCRIPT_PAGES = 4  # pages whose scripts are examined; each opens in a browser
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, slots=True)
class WantedForms:
    """Forms that agents sent with own text, the most frequent first.

    Attributes:
        targets: URLs that they are sent to, without query.
        seconds: time after which no further form is begun.
    """

    targets: tuple[str, ...]
    script_pages: tuple[str, ...]
    seconds: float

    def may_be_on(self, url: str, body: bytes) -> bool:
        """Return False if a page cannot have one of the forms; it saves parsing the page."""
        if b"<form" not in body.lower():
            return False
        own = url.partition("?")[0]
        return any(
            target == own or urlsplit(target).path.rpartition("/")[2].encode() in body
            for target in self.targets
        )


@dataclass(slots=True)
class OwnText:
    """Missed writes of several walks; `opened` are POST requests that opening a page sends."""

    opened: OpenedPosts = field(default_factory=OpenedPosts)
    _targets: Counter[str] = field(default_factory=Counter)
    _script_pages: Counter[str] = field(default_factory=Counter)
    _taken: set[str] = field(default_factory=set)

    @property
    def is_new(self) -> bool:
        """True if a write was missed since the last call of `take` that was not missed before."""
        return not self._taken.issuperset((*self._targets, *self._script_pages))

    def add(self, misses: Iterable[Missed]) -> None:
        """Count the writes among some misses; a POST of JSON that only reads is none.

        Forms with a password have no template (docs/decisions/0035).
        """
        for miss in misses:
            if miss.method not in MUTATIONS or not miss.body_size or sends_password(miss.request()):
                continue
            by_script = miss.resource == "empty"
            if by_script and miss.whole and self._only_reads(miss.request()):
                continue
            if header(miss.fields, "content-type").startswith(_FORMS):
                self._targets[miss.url.partition("?")[0]] += miss.count
            if by_script and miss.last.page:
                self._script_pages[miss.last.page] += miss.count

    def _only_reads(self, request: Request) -> bool:
        return only_reads(request) or self.opened.cover(request)

    def take(self, seconds: float) -> WantedForms:
        """Return all forms so far, the most frequent first."""
        self._taken.update(self._targets, self._script_pages)
        pages = self._script_pages.most_common(_SCRIPT_PAGES)
        return WantedForms(
            tuple(target for target, _ in self._targets.most_common()),
            tuple(page for page, _ in pages),
            seconds,
        )
