"""Derived answers of one session: after the ordinary match of a request, the branch that it is on.

A session starts at the start state of the graph. A request that no recording answers may be a form's request
with other values. If a branch leads from the session's state by that form, the session is on it, and its
pages answer reads from then on. A page of the site that no recording shows after the write is a miss, though
an earlier recording of it exists: it would show the state before. Writes that recordings answer are followed
too, so that a form after one of them has a state. After a write that no branch knows, the state is unknown:
forms are misses, and so are the pages of the branch. A recorded POST after a derived write stands only if it
shows no content, such as a redirect: a list that is read by POST would lack the write. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Protocol

from stillweb.http.codec import decode
from stillweb.http.cookies import cookies_deleted, cookies_sent, cookies_set
from stillweb.matching.captures import Entry
from stillweb.matching.derived.branch import (
    ActiveBranch,
    Branch,
    DerivationRefused,
    RenderedAnswer,
    holds_whole,
    path_of,
    read_key,
)
from stillweb.matching.derived.domain import MADE
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import GUESSES, MUTATIONS, Match, Request, Tier, header
from stillweb.urls import host_of, other_scheme, wire_url

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
    def traces(self) -> frozenset[str]:
        """Names of cookies with which pages note that they were visited."""
        return frozenset(name for branch in self.all for name in branch.traces)

    @cached_property
    def opening(self) -> frozenset[bytes]:
        """Request keys of the POST requests that only read, as the recordings of a form show."""
        return frozenset().union(*(branch.opening for branch in self.all))

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Hosts whose pages depend on a session's own writes."""
        return frozenset(host_of(branch.write.url) for branch in self.all if not branch.searches)


@dataclass(slots=True)
class DerivedAnswers:
    """The state of one session in the graph of branches.

    Attributes:
        active: branch whose pages answer reads, None before the first write that a branch answered.
        known: branch of writes that recordings answered so far; their recordings answer reads too.
        lost: whether the session has made a write that no branch knows.
        trail: URLs of the pages visited so far that set a cookie in `Branches.traces`, without repetitions of
            the last one.
        deleted: names of the cookies that an answer has deleted and none has set since, as a logout does.
    """

    branches: Branches
    index: _Index
    active: ActiveBranch | None = None
    known: ActiveBranch | None = None
    lost: bool = False
    trail: list[str] = field(default_factory=list)
    deleted: frozenset[str] = frozenset()

    def answer(self, request: Request, match: Match, epoch: int) -> tuple[Match, Entry | None] | None:
        """Return what replaces the ordinary match of a request; None if that stands.

        Args:
            match: as the resolver found it.
            epoch: of the session before the request.
        """
        if self.active is not None and (request.method in ("GET", "HEAD") or self._only_reads(request)):
            found = self._read(self.active, request, match)
            if found is not None:
                return found
        if match.tier is Tier.MISS:
            return self._form(request, match)
        if match.tier in GUESSES or self._is_elsewhere(request, match, epoch):
            # A proved answer goes before a guess, and before the recording of another state.
            found = self._form(request, match)
            return found if found is not None and found[1] is not None else self._stale(request, match)
        return None

    def _stale(self, request: Request, match: Match) -> tuple[Match, None] | None:
        """Return a miss for a recorded POST that shows the site without the branch's write, else None."""
        if self.active is None or match.entry < 0 or match.tier in GUESSES:
            return None
        entry = self.index.entry(match.entry)
        shows = not 300 <= entry.status < 400 and entry.body and entry.mime in _PAGES
        own_site = host_of(request.url) == host_of(self.active.branch.write.url)
        return _miss(self._not_shown(self.active)) if shows and own_site else None

    @staticmethod
    def _not_shown(active: ActiveBranch) -> str:
        return f"no recording shows this after the write of form {active.branch.name!r}"

    def note_visit(self, request: Request, entry: Entry) -> None:
        """Extend the trail by a page that was answered, and note which cookies it deletes."""
        head = bytes(entry.head)
        stated = cookies_set(head)
        if stated:
            self.deleted = self.deleted.difference(stated) | cookies_deleted(head, entry.timestamp)
        if self.branches.traces.intersection(stated):
            url = wire_url(request.url)
            if request.method == "GET" and self.trail[-1:] != [url]:
                self.trail.append(url)

    def note_write(self, request: Request, match: Match) -> None:
        """Follow another write that was answered; after an unknown one, the branch's pages are misses."""
        if request.method not in MUTATIONS or match.tier in (Tier.DERIVED, Tier.BRANCH):
            return
        if self._only_reads(request):
            return
        guessed = match.tier in GUESSES
        followed = None if self.lost or guessed or self.active is not None else self._followed(request)
        if self.active is not None:
            self.active.spoiled = self.active.spoiled or (
                f"{request.method} {request.url} followed the write of form {self.active.branch.name!r}, "
                "and no recording has both"
            )
        self.known = followed
        self.lost = followed is None

    def _only_reads(self, request: Request) -> bool:
        return bool(self.branches.opening) and read_key(request) in self.branches.opening

    def _followed(self, request: Request) -> ActiveBranch | None:
        """Return the branch of a recorded write from the session's state; None if there is none."""
        for branch, values in self._recognised(request):
            if not isinstance(values, DerivationRefused) and not branch.searches:
                return ActiveBranch(branch, values)
        return None

    def _is_elsewhere(self, request: Request, match: Match, epoch: int) -> bool:
        """Return True for a write whose recording was made after other writes than the session's."""
        if request.method not in MUTATIONS or match.entry < 0 or self._state is None:
            return False
        return self.active is not None or self.index.entry(match.entry).epoch != epoch

    @property
    def _state(self) -> ActiveBranch | None:
        return self.active or self.known

    def _recognised(self, request: Request) -> Iterator[tuple[Branch, tuple[str, ...] | DerivationRefused]]:
        """Yield the branches from the session's state that recognise a request, with its values."""
        state = self._state
        path, before = (state.branch.path, state.values) if state else ((), ())
        for branch in self.branches.by_path.get(path_of(request), ()):
            if branch.after == path and (values := branch.read_write(request, before)) is not None:
                yield branch, values

    def depends_on_writes(self, request: Request) -> bool:
        """Return True if the answer to a read may depend on a session's derived writes."""
        return host_of(request.url) in self.branches.hosts

    def _read(
        self, active: ActiveBranch, request: Request, match: Match
    ) -> tuple[Match, Entry | None] | None:
        recorded = self.index.entry(match.entry).url if match.entry >= 0 else ""
        if not recorded and self.index.lookup(read_key(request)):
            return None  # recorded with other request fields, such as another Accept
        found = active.read(request, self.trail, recorded)
        if found is None:
            return None
        if ended := self._ended_login(active.branch, request):
            return _miss(ended)
        if isinstance(found, RenderedAnswer):
            return self._given(active, request, found)
        if found.reason:
            return _miss(found.reason)
        if host_of(request.url) != host_of(active.branch.write.url) or match.entry < 0:
            return None
        if self.index.entry(match.entry).mime not in _PAGES:
            return None
        return _miss(self._not_shown(active))

    def _form(self, request: Request, match: Match) -> tuple[Match, Entry | None] | None:
        if self.lost:
            unknown = "this session has written before, and no recording has both writes"
            return _miss(f"{match.reason}; form: {unknown}") if self._is_form(request) else None
        refused = ""
        for branch, values in self._recognised(request):
            why = (
                values.reason
                if isinstance(values, DerivationRefused)
                else self._objection(branch, request, values)
            )
            if why or isinstance(values, DerivationRefused):
                refused = refused or why
                continue
            active = ActiveBranch(branch, values)
            answer = active.answer_write() if active.certain() else None
            if answer is None:
                refused = refused or "the page's spelling of the value is not certain"
                continue
            if not branch.searches:
                self.active, self.known = active, None
            return self._given(active, request, answer)
        refused = refused or self._not_from_here(request)
        return _miss(f"{match.reason}; form: {refused}") if refused else None

    def _not_from_here(self, request: Request) -> str:
        """Return a reason if only other states have the form of a request, else ""."""
        state = self._state
        if state is None or not self._is_form(request):
            return ""
        return f"this session has written before, and no recording has it after form {state.branch.name!r}"

    def _is_form(self, request: Request) -> bool:
        """Return True if a request is a form's request in some state."""
        known = self.branches.by_path.get(path_of(request), ())
        return any(branch.read_write(request, [""] * branch.own) is not None for branch in known)

    def _ended_login(self, branch: Branch, request: Request) -> str:
        """Return a reason if an answer deleted a cookie that the recordings of the form sent, else ""."""
        lost = min((branch.write.cookies & self.deleted).difference(cookies_sent(request)), default="")
        return f"cookie {lost!r} was deleted, and the recordings of the form sent it" if lost else ""

    def _objection(self, branch: Branch, request: Request, values: Sequence[str]) -> str:
        if ended := self._ended_login(branch, request):
            return ended
        if branch.searches:
            found = next(filter(None, map(self.branches.vocabulary.may_find, values)), "")
            return f"the search may find {found!r}" if found else ""
        own = zip(values[branch.own :], branch.fields[branch.own :], strict=True)
        typed = [value for value, each in own if each.domain.kind != MADE]
        if any(map(self.branches.vocabulary.has_text, typed)):
            return "a value is a text of a recorded page, which the site may treat as taken"
        for name, text in branch.volatile_texts(request):
            if text and not self._is_known(branch, request, text):
                return f"hidden field {name!r} has a value that its recorded page does not hold"
        return ""

    def _is_known(self, branch: Branch, request: Request, text: str) -> bool:
        """Return True if a page that has the form holds the value of a hidden field."""
        pages = [
            page
            for page in dict.fromkeys(
                (header(request.headers, "referer"), branch.write.page, *branch.write.sources)
            )
            if page
        ]
        if self.active is not None and any(self.active.holds(page, text) for page in pages):
            return True
        return any(holds_whole(body, text) for page in pages for body in self._bodies(page))

    def _bodies(self, url: str) -> Iterable[bytes]:
        for spelled in filter(None, (url, other_scheme(url))):
            for row in self.index.lookup(request_key("GET", spelled)):
                entry = self.index.entry(row)
                yield decode(entry.body, entry.encoding) or b""

    def _given(
        self, active: ActiveBranch, request: Request, answer: RenderedAnswer
    ) -> tuple[Match, Entry | None]:
        reason = f"form {', then '.join(map(repr, active.branch.path))}"
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
        return Match(Tier.DERIVED if active.values else Tier.BRANCH, reason=reason), entry


def _miss(reason: str) -> tuple[Match, None]:
    return Match(Tier.MISS, reason=reason), None
