"""Derive findings from the scores and resource rows of a page. Pure functions.

A finding is an error if a score that it explains breaks its gate, otherwise a warning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from urllib.parse import urlsplit

from stillweb.collections.baselines import RecordedResponse, explains
from stillweb.diff.compare import dom
from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity, in_order
from stillweb.diff.compare.metrics import BodyAgreement, DiffLine, ResourceAgreement, ResourceRow, tokens
from stillweb.diff.compare.settings import passes
from stillweb.diff.report.report import PageDiff
from stillweb.model import GUESSES, MUTATIONS, Tier

_SHOWN = 160  # characters of a page's own text in an explanation
_MOST = 3  # elements or console messages named individually

# The scores that each kind of finding explains.
_EXPLAINS: Mapping[FindingKind, tuple[str, ...]] = {
    FindingKind.NOT_REPLAYED: ("status",),
    FindingKind.OTHER_VERSION: ("bodies", "console", "misses", "recall", "resources", "text", "interactive"),
    FindingKind.HALF_LOADED: ("loaded", "text", "resources"),
    FindingKind.MISSING_RESOURCE: ("misses", "recall", "resources"),
    FindingKind.LOST_MUTATION: ("misses", "recall", "resources"),
    FindingKind.DROPPED_REDIRECT: ("redirects", "misses", "resources", "status"),
    FindingKind.CHANGED_STATUS: ("status", "resources"),
    FindingKind.CHANGED_BODY: ("bodies",),
    FindingKind.NOT_REQUESTED: ("resources",),
    FindingKind.NEWLY_REQUESTED: ("resources",),
    FindingKind.GUESSED: ("fuzzy", "recall"),
    FindingKind.SCRIPT_ERROR: ("console",),
    FindingKind.TEXT: ("text", "order"),
    FindingKind.CONTROLS: ("interactive",),
    FindingKind.AXTREE: ("axtree",),
    FindingKind.DOM: ("dom",),
    FindingKind.MOVED: ("layout", "screenshot", "ssim"),
    FindingKind.PIXELS: ("screenshot", "ssim", "look"),
}
_NOUNS = {
    "stylesheet": "stylesheet", "script": "script", "image": "picture", "font": "font",
    "document": "document", "xhr": "API response", "fetch": "API response",
    "media": "media file", "eventsource": "event stream",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FindingContext:
    """Input of `find` besides the page.

    Attributes:
        collection: name for the suggested commands.
        gates: limits that separate errors from warnings.
        arrival: state of the page when it was recorded, None if unknown.
        moved: elements whose position changed.
        outline: element outline of the page, used to name the element at a position.
        between: True if both sides are recordings. Nothing is lost then, and no command is suggested.
    """

    collection: str
    gates: Mapping[str, float] = field(default_factory=dict)
    arrival: RecordedResponse | None = None
    moved: tuple[dom.MovedElement, ...] = ()
    outline: str = ""
    between: bool = False


def find(page: PageDiff, context: FindingContext) -> tuple[Finding, ...]:
    """Return the findings of a page, causes before effects."""
    finder = _Finder(page, context)
    causes = finder.changes() if context.between else finder.causes()
    return in_order([*causes, *finder.effects()])


@dataclass(frozen=True, slots=True)
class _Finder:
    page: PageDiff
    context: FindingContext

    def causes(self) -> Iterator[Finding]:
        page = self.page
        if page.error:
            text = f"The page could not be replayed: {page.error}."
            yield self._finding(FindingKind.NOT_REPLAYED, page.url, text, self._crawl_again())
        yield from self._half_loaded()
        for row in page.resources:
            yield from self._of_row(row)
        if page.scores.get("redirects", 1.0) < 1 and not any(_redirect_lost(row) for row in page.resources):
            text = f"The redirects to the document differ: {_changes(page.redirects)}."
            yield self._finding(FindingKind.DROPPED_REDIRECT, page.url, text, self._amend(page.url))
        for line in [line for line in page.console if line.kind == "+"][:_MOST]:
            text = (
                f"A script reports an error in the replay that the recording does not have: {_cut(line.text)}"
            )
            yield self._finding(FindingKind.SCRIPT_ERROR, _script_of(line.text) or page.url, text)

    def changes(self) -> Iterator[Finding]:
        for row in (row for row in self.page.resources if row.weight):
            noun = _noun(row)
            if row.agreement is ResourceAgreement.EXTRA:
                yield self._finding(
                    FindingKind.NEWLY_REQUESTED, row.url, f"The page now requests this {noun}."
                )
            elif row.agreement is ResourceAgreement.MISSING:
                text = f"The page no longer requests this {noun}."
                yield self._finding(FindingKind.NOT_REQUESTED, row.url, text)
            elif row.agreement is ResourceAgreement.DIFFERS:
                before, after = row.recorded or "none", row.replayed or "none"
                text = f"The status of the {noun} changed from {before} to {after}."
                yield self._finding(FindingKind.CHANGED_STATUS, row.url, text)
            if row.body is BodyAgreement.DIFFERS:
                yield self._finding(FindingKind.CHANGED_BODY, row.url, f"The body of the {noun} changed.")
        if self.page.redirects:
            text = f"The redirects to the document differ: {_changes(self.page.redirects)}."
            yield self._finding(FindingKind.DROPPED_REDIRECT, self.page.url, text)
        for line in [line for line in self.page.console if line.kind == "+"][:_MOST]:
            text = f"A script now reports an error: {_cut(line.text)}"
            yield self._finding(FindingKind.SCRIPT_ERROR, self.page.url, text)

    def effects(self) -> Iterator[Finding]:
        page, scores = self.page, self.page.scores
        if page.error or not page.compared:
            return
        if page.text:
            yield self._finding(FindingKind.TEXT, page.url, f"The text differs: {_changes(page.text)}.")
        if scores.get("interactive", 1.0) < 1:
            text = f"The interactive elements differ: {_changes(page.axtree)}."
            yield self._finding(FindingKind.CONTROLS, page.url, text)
        elif page.axtree:
            text = f"The accessibility tree differs: {_changes(page.axtree)}."
            yield self._finding(FindingKind.AXTREE, page.url, text)
        if page.dom:
            yield self._finding(FindingKind.DOM, page.url, f"The element tree differs: {_changes(page.dom)}.")
        yield from self._moved()
        yield from self._pixels()

    def _half_loaded(self) -> Iterator[Finding]:
        page, arrival = self.page, self.context.arrival
        pending = arrival.pending if arrival else ()
        if pending:
            many = f"{len(pending)} requests" if len(pending) > 1 else "a request"
            text = f"The page was recorded half-loaded: {many} had no response yet, first {_cut(pending[0])}."
            yield self._finding(FindingKind.HALF_LOADED, page.url, text, self._crawl_again())
            return
        early = [
            r for r in page.resources if r.agreement is ResourceAgreement.EXTRA and r.strict and r.weight >= 1
        ]
        if early and page.text and not any(line.kind == "-" and line.text.strip() for line in page.text):
            text = (
                "The page was recorded half-loaded: its replay also requests "
                f"{_cut(early[0].url)}, gets a response, and shows more than the baseline."
            )
            yield self._finding(FindingKind.HALF_LOADED, page.url, text, self._crawl_again())

    def _of_row(self, row: ResourceRow) -> Iterator[Finding]:
        if not row.weight and not (row.method in MUTATIONS and not row.weightless):
            return
        if row.tier in GUESSES:
            text = f"The {_noun(row)} was served by a guess: {row.reason}."
            yield self._finding(FindingKind.GUESSED, row.url, text, self._amend(row.url))
        if _redirect_lost(row):
            text = f"The recording has a redirect here ({row.recorded}), the replay got {_got(row)}."
            yield self._finding(FindingKind.DROPPED_REDIRECT, row.url, text, self._amend(row.url))
        elif row.unexplained or (row.agreement is not ResourceAgreement.AGREE and row.method in MUTATIONS):
            yield from self._lost(row)
        elif row.agreement is ResourceAgreement.DIFFERS and not row.missed:
            was = row.recorded or "none"
            text = f"The {_noun(row)} was recorded with status {was}, the replay got {_got(row)}."
            yield self._finding(FindingKind.CHANGED_STATUS, row.url, text, self._check())
        elif row.agreement is ResourceAgreement.MISSING and not explains(row.recorded):
            text = f"The recording requested this {_noun(row)}, the replay does not."
            yield self._finding(FindingKind.NOT_REQUESTED, row.url, text)
        if _other_version(row):
            text = (
                f"The {_noun(row)} has several versions, because the site changed while it was recorded. "
                "The replay served another one than the page got then."
            )
            yield self._finding(FindingKind.OTHER_VERSION, row.url, text, self._crawl_again())
        elif row.body is BodyAgreement.DIFFERS and not row.weightless:
            text = (
                f"The body of the {_noun(row)} differs from the one that the page got when it was recorded."
            )
            yield self._finding(FindingKind.CHANGED_BODY, row.url, text, self._check())

    def _lost(self, row: ResourceRow) -> Iterator[Finding]:
        if row.method in MUTATIONS:
            if row.agreement is ResourceAgreement.EXTRA and not row.missed:
                return
            how = f"got {_got(row)}" if row.replayed is not None else "was not sent in the replay"
            text = f"The {row.method} has status {row.recorded or 'none'} in the recording and {how}."
            yield self._finding(FindingKind.LOST_MUTATION, f"{row.method} {row.url}", text, self._resend())
            return
        seen = f"recorded with status {row.recorded}" if row.recorded else "never recorded"
        why = f" ({row.reason})" if row.reason else ""
        text = f"The {_noun(row)} was {seen} and has no response in the replay{why}."
        yield self._finding(FindingKind.MISSING_RESOURCE, row.url, text, self._amend(row.url))

    def _moved(self) -> Iterator[Finding]:
        for moved in self.context.moved[:_MOST]:
            (left, top, width, height), (x, y) = moved.after, moved.before[:2]
            more = (
                f" ({len(self.context.moved) - _MOST} more moved)" if len(self.context.moved) > _MOST else ""
            )
            text = f"An element moved from {x},{y} to {left},{top}{more}."
            box = (left, top, left + width, top + height)
            yield self._finding(FindingKind.MOVED, dom.short(moved.path), text, box=box)

    def _pixels(self) -> Iterator[Finding]:
        pixels = self.page.pixels
        if pixels is None or (pixels.score == 1 and pixels.ssim == 1):
            return
        where = dom.at(dom.parse(self.context.outline), pixels.box) if pixels.box else ""
        place = (
            f" within {pixels.box[0]},{pixels.box[1]} to {pixels.box[2]},{pixels.box[3]}"
            if pixels.box
            else ""
        )
        text = pixels.note or f"{pixels.differing:,} of {pixels.total:,} pixels differ{place}"
        yield self._finding(FindingKind.PIXELS, dom.short(where) or self.page.url, f"{text}.", box=pixels.box)

    def _finding(
        self,
        kind: FindingKind,
        subject: str,
        text: str,
        fix: str = "",
        *,
        box: tuple[int, int, int, int] | None = None,
    ) -> Finding:
        gates, scores = self.context.gates, self.page.scores
        broken = any(
            name in scores and name in gates and not passes(name, scores[name], gates[name])
            for name in _EXPLAINS[kind]
        )
        if kind is FindingKind.NOT_REPLAYED:
            broken = bool(gates)
        severity = FindingSeverity.ERROR if broken else FindingSeverity.WARNING
        return Finding(kind, severity, subject, text, fix, self.page.url, box=box)

    def _amend(self, url: str) -> str:
        return f"echo {shlex.quote(url)} | stillweb record amend {self.context.collection} --misses -"

    def _resend(self) -> str:
        name = self.context.collection
        return f"stillweb record proxy -c {name} --append   # then send the request again through this proxy"

    def _crawl_again(self) -> str:
        name, url = self.context.collection, shlex.quote(self.page.url)
        return f"stillweb record crawl {url} -c {name}-again --scope page"

    def _check(self) -> str:
        return f"stillweb collections check {self.context.collection}"


def _other_version(row: ResourceRow) -> bool:
    """Return True for code of another visit: everything else on the page may follow from it."""
    return (
        row.body is BodyAgreement.DIFFERS
        and row.tier == Tier.SEQUENCE
        and row.type in ("script", "stylesheet")
        and not row.weightless
    )


def _redirect_lost(row: ResourceRow) -> bool:
    redirected = row.recorded is not None and 300 <= row.recorded < 400 and row.recorded != 304
    return redirected and row.replayed != row.recorded and row.method not in MUTATIONS


def _got(row: ResourceRow) -> str:
    if row.replayed is None and not row.missed:
        return "nothing, because it did not send the request"
    if row.missed and row.reason:
        return f"no response ({row.reason})"
    return "no response" if row.missed or not row.replayed else f"status {row.replayed}"


def _noun(row: ResourceRow) -> str:
    if row.type in _NOUNS:
        return _NOUNS[row.type]
    suffix = urlsplit(row.url).path.rpartition(".")[2]
    return {"css": "stylesheet", "js": "script", "json": "API response"}.get(suffix, "resource")


def _script_of(message: str) -> str:
    found = re.search(r"\((https?://\S+?):\d+\)$", message)
    return found[1] if found else ""


def _changes(lines: tuple[DiffLine, ...]) -> str:
    """Return the first change of a diff: "'$14.95' became '$15.95'"."""
    removed = [line.text.strip() for line in lines if line.kind == "-" and line.text.strip()]
    added = [line.text.strip() for line in lines if line.kind == "+" and line.text.strip()]
    first = next(zip_longest(removed, added, fillvalue=""), ("", ""))
    if not any(first):
        return "only in white space"
    before, after = (f"“{_cut(_around(*pair))}”" for pair in (first, first[::-1]))
    if all(first):
        change = f"{before} became {after}"
    else:
        change = f"{before} was removed" if first[0] else f"{after} is new"
    rest = max(len(removed), len(added)) - 1
    return f"{change}, and {rest} more lines" if rest else change


def _around(text: str, other: str) -> str:
    """Return the part of a long line from shortly before its first difference."""
    if len(text) <= _SHOWN or not other:
        return text
    mine, theirs = tokens(text), tokens(other)
    at = next((i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), 0)
    start = text.find(mine[at]) if at < len(mine) else 0
    return text[max(0, start - _SHOWN // 4) :]


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
