"""Search pages that answer every word alike, because a script in the browser searches.

Such a page is recorded once, and a rule lets replay ignore the typed word. Only a proof makes a rule. It
requests the page without a query, with words that no site has, with numbers, and with likely words of the
site. All bodies must have the same bytes. All recorded answers of the path must have that body too, whatever
their query is, since a rule holds for a path. A rule that a later recording contradicts is removed.

Only HTML counts. A server that searches returns an empty list, or its error, for many unlike words; a
document repeats the word, or differs from the document without a query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.http.codec import decoded_body
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, RuleOrigin, Rules
from stillweb.model import HTML_TYPES, Capture, Exchange

if TYPE_CHECKING:
    from stillweb.record.harvest.words import WordField

ANSWERED_ALIKE = 12
"""Words that a place must have answered alike before a proof is worth its requests."""

_MARK = "proof: every word has the answer of the page without a query"
_WORDS = 30  # of the site that a proof sends
# Texts that no page shows, and what servers read as a number, as nothing, or as an operator.
_SENTINELS = ("qzxwvkjh", "zzyqvxkwpjqhbf", "qzx vkj", "", "0", "1", "2", "10", "37", "a", '"', "*", "%")

Fetch = Callable[[str], Awaitable[Exchange | None]]


@dataclass(slots=True)
class _Answers:
    digest: bytes = b""
    number: int = 0


class ConstantPages:
    """Answers of search forms while they are recorded, and the rules that follow from them."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._answers: dict[WordField, _Answers | None] = {}  # None: it depends on the word, or was examined

    def note(self, place: WordField, exchange: Exchange) -> bool:
        """Take the answer to a word; return True if a proof is due."""
        answers = self._answers.setdefault(place, _Answers())
        if answers is None:
            return False
        digest = _digest(exchange)
        if not digest or answers.digest not in (b"", digest):
            self._answers[place] = None
            return False
        answers.digest = digest
        answers.number += 1
        return answers.number == ANSWERED_ALIKE

    async def prove(self, place: WordField, words: Iterable[str], fetch: Fetch) -> Rule | None:
        """Return the rule for a place if no text changes its page, else None.

        Args:
            place: a field that has answered some words alike.
            words: of the site, the likeliest first.
            fetch: sends a request; None if the site gave no answer.
        """
        answers, self._answers[place] = self._answers[place], None
        if answers is None:
            return None
        bare = place.form.action.partition("?")[0]
        urls = [bare]
        for text in (*_SENTINELS, *islice(words, _WORDS)):
            urls += (request.url for request in place.requests(text, 0.0))
        for url in dict.fromkeys(urls):
            exchange = await fetch(url)
            if exchange is None or _digest(exchange) != answers.digest:
                return None
        parts = urlsplit(bare)
        name = place.form.fields[place.at].name
        rule = Rule(
            Where.QUERY, name, "any", parts.hostname or "", parts.path, "GET", RuleOrigin.LEARNED, _MARK
        )  # fmt: skip
        self.rules.append(rule)
        return rule


def write_constant_rules(collection: Collection, proved: list[Rule]) -> list[Rule]:
    """Write proved rules, and remove those that recorded answers contradict; return the rules that hold."""
    rules = read_rules(collection)
    known = _constant_rules(rules)
    if not (known or proved):
        return []
    suspects = {(rule.host, rule.path) for rule in (*known, *proved)}
    holding = _with_one_answer(collection, suspects)
    valid = (r for r in rules.volatile if r.evidence != _MARK or (r.host, r.path) in holding)
    new = tuple(rule for rule in proved if (rule.host, rule.path) in holding)
    merged = merge(replace(rules, volatile=tuple(valid)), LearnResult(new))
    if merged.own != rules.own:
        write_rules(collection, merged)
    return _constant_rules(merged)


def _constant_rules(rules: Rules) -> list[Rule]:
    return [rule for rule in rules.own if rule.evidence == _MARK]


def _with_one_answer(collection: Collection, places: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the places, as (host, path), all of whose recorded answers are the same document."""
    stored: dict[tuple[str, str, int, str], Capture] = {}  # equal digests are equal bodies
    for capture in collection.captures():
        parts = urlsplit(capture.url)
        place = (parts.hostname or "", parts.path)
        if place in places and capture.method == "GET" and capture.status != HTTPStatus.NOT_MODIFIED:
            stored.setdefault((*place, capture.status, capture.digest), capture)
    answers: dict[tuple[str, str], set[bytes]] = {}
    for (host, path, *_), capture in stored.items():
        answers.setdefault((host, path), set()).add(_digest(collection.read_capture(capture)))
    return {place for place, found in answers.items() if len(found) == 1 and b"" not in found}


def _digest(exchange: Exchange) -> bytes:
    """Return a digest of a document's bytes, b"" for anything else."""
    if exchange.response.status != HTTPStatus.OK or exchange.response.mime not in HTML_TYPES:
        return b""
    body = decoded_body(exchange.response)
    return b"" if body is None else sha256(body).digest()
