"""Derived answers of one session: after the ordinary match of a request, the branch that it is on.

Before a session has written anything, a request that no recording answers may be a form's request with other
values. It then puts the session on that branch, and its pages answer reads from then on. A page of the site
that no recording shows after the write is a miss, though an earlier recording of it exists: it would show the
state before. After any other write the branch is spoiled, and its pages are misses. Pure.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Protocol

from stillweb.http.codec import decode
from stillweb.matching.captures import Entry
from stillweb.matching.derived.branch import ActiveBranch, Branch, Refused, Rendered, path_of
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import MUTATIONS, Match, Request, Tier, header
from stillweb.urls import host_of, other_scheme

__all__ = ["Branches", "DerivedAnswers"]

_PAGES = frozenset({"text/html", "application/xhtml+xml", "application/json", "application/xml", "text/xml"})


class _Index(Protocol):
    def lookup(self, key: bytes) -> Sequence[int]: ...

    def entry(self, row: int) -> Entry: ...


@dataclass(frozen=True)
class Branches:
    """The branches of a pack, and the words of its documents."""

    all: tuple[Branch, ...]
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    @cached_property
    def by_path(self) -> dict[str, tuple[Branch, ...]]:
        """Branches by method and URL of their write, without query."""
        found: dict[str, tuple[Branch, ...]] = {}
        for branch in self.all:
            found[branch.write.path] = (*found.get(branch.write.path, ()), branch)
        return found

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Hosts whose pages depend on a session's own writes."""
        return frozenset(host_of(branch.write.url) for branch in self.all if not branch.searches)


@dataclass(slots=True)
class DerivedAnswers:
    """The branch that one session is on, None before its first derived write."""

    branches: Branches
    index: _Index
    active: ActiveBranch | None = None

    def answer(self, request: Request, match: Match, epoch: int) -> tuple[Match, Entry | None] | None:
        """Return what replaces the ordinary match of a request; None if that stands.

        Args:
            request: from the client.
            match: as the resolver found it.
            epoch: of the session before the request; 0 if it has repeated no recorded write.
        """
        reads = request.method in ("GET", "HEAD")
        if self.active is not None and reads:
            found = self._read(self.active, request, match)
            if found is not None:
                return found
        if match.tier is not Tier.MISS:
            return None
        return self._form(request, match, epoch)

    def note_write(self, request: Request, match: Match) -> None:
        """Spoil the branch after another write that was answered."""
        if self.active is not None and request.method in MUTATIONS and match.tier is not Tier.DERIVED:
            self.active.spoiled = self.active.spoiled or (
                f"{request.method} {request.url} followed the write of form {self.active.branch.name!r}, "
                "and no recording has both"
            )

    def depends_on_writes(self, request: Request) -> bool:
        """Return True if the answer to a read may depend on a session's derived writes."""
        return host_of(request.url) in self.branches.hosts

    def _read(
        self, active: ActiveBranch, request: Request, match: Match
    ) -> tuple[Match, Entry | None] | None:
        found = active.read(request)
        if found is None:
            return None
        if isinstance(found, Rendered):
            return self._given(active, request, found)
        if found.reason:
            return _miss(found.reason)
        if host_of(request.url) != host_of(active.branch.write.url) or match.entry < 0:
            return None
        if self.index.entry(match.entry).mime not in _PAGES:
            return None
        return _miss(f"no recording shows this page after the write of form {active.branch.name!r}")

    def _form(self, request: Request, match: Match, epoch: int) -> tuple[Match, Entry | None] | None:
        refused = ""
        for branch in self.branches.by_path.get(path_of(request), ()):
            values = branch.read_write(request)
            if values is None:
                continue
            why = (
                values.reason
                if isinstance(values, Refused)
                else self._objection(branch, request, values, epoch)
            )
            if why or isinstance(values, Refused):
                refused = refused or why
                continue
            active = ActiveBranch(branch, values)
            answer = active.answer_write() if active.certain() else None
            if answer is None:
                refused = refused or "the page's spelling of the value is not certain"
                continue
            if not branch.searches:
                self.active = active
            return self._given(active, request, answer)
        return _miss(f"{match.reason}; form: {refused}") if refused else None

    def _objection(self, branch: Branch, request: Request, values: Sequence[str], epoch: int) -> str:
        if self.active is not None or epoch:
            return "this session has written before, and no recording has both writes"
        if branch.searches:
            found = next(filter(None, map(self.branches.vocabulary.may_find, values)), "")
            return f"the search may find {found!r}" if found else ""
        if any(map(self.branches.vocabulary.has_text, values)):
            return "a value is a text of a recorded page, which the site may treat as taken"
        for name, text in branch.volatile_texts(request):
            if text and not self._is_known(branch, request, text):
                return f"hidden field {name!r} has a value that its recorded page does not hold"
        return ""

    def _is_known(self, branch: Branch, request: Request, text: str) -> bool:
        """Return True if a recorded page that has the form holds the value of a hidden field."""
        pages = dict.fromkeys((header(request.headers, "referer"), branch.write.page))
        return any(text in body for page in pages if page for body in self._bodies(page))

    def _bodies(self, url: str) -> Iterable[str]:
        for spelled in filter(None, (url, other_scheme(url))):
            for row in self.index.lookup(request_key("GET", spelled)):
                entry = self.index.entry(row)
                body = decode(entry.body, entry.encoding) or b""
                yield html.unescape(body.decode("utf-8", "replace"))

    def _given(self, active: ActiveBranch, request: Request, answer: Rendered) -> tuple[Match, Entry | None]:
        reason = f"form {active.branch.name!r}"
        entry = Entry(
            key=b"",
            method=request.method if request.method != "HEAD" else "GET",
            url=request.url,
            timestamp=active.branch.timestamp,
            status=answer.status,
            epoch=0,
            order=-1,
            head=memoryview(answer.head),
            body=memoryview(answer.body),
            encoding="",
            mime=answer.mime,
            body_sha256=sha256(answer.body).digest(),
        )
        return Match(Tier.DERIVED, reason=reason), entry


def _miss(reason: str) -> tuple[Match, None]:
    return Match(Tier.MISS, reason=reason), None
