"""Proofs by the site that a value of recorded requests does not choose their answer.

- A script numbers its requests, for a rule of shape `counter` (`matching.counters`). The numbers of
  DataTables have known names (https://datatables.net/manual/server-side). Under such a name a site may still
  have something else, as a lottery has its draws. So recorded requests are sent again with two other numbers.
  The answers must have the same bytes apart from the number, which they must repeat.
- A script adds a cache-buster: a time, a random number or a random name. One recording shows only that such
  values differ (`collections.learn`). So recorded requests are sent again, with the recorded values and with
  two others, a time also of another month. All answers must be alike apart from times and tokens in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.http.codec import decoded_body
from stillweb.matching.counters import NUMBERS, renumbered
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.placeholders import Placeholders
from stillweb.matching.rules import Rule, RuleOrigin, Rules
from stillweb.matching.values import COUNTER, fits, kind_of, masked, shape_of
from stillweb.model import Exchange, Request
from stillweb.record.harvest.misses import OF_VISIT, PlainRequest, path_form
from stillweb.record.harvest.scripts.rows import with_values
from stillweb.urls import from_timestamp

_EVIDENCE = "proof: other numbers have the same answer with their number"
_STEPS = (1, 90)  # from the recorded number to those that are sent
_EXAMPLES = 2  # requests of one kind that are sent again

Fetch = Callable[[PlainRequest], Awaitable[Exchange | None]]
_Kind = tuple[str, str, str]  # host, glob of paths, parameter


@dataclass(slots=True)
class NumberedRequests:
    """Recorded requests whose JSON answer repeats their number."""

    _examples: dict[_Kind, list[PlainRequest]] = field(default_factory=lambda: defaultdict(list))

    def note(self, request: PlainRequest, answer: Any) -> None:
        """Take a recorded request of a script, and its answer."""
        if request.body is not None or not isinstance(answer, dict):
            return
        for name, value in parse_qsl(urlsplit(request.url).query):
            if name in NUMBERS and value.isdecimal() and str(answer.get(name)) == value:
                self._examples[_kind_of(request.url, name)].append(request)

    async def prove(self, collection: Collection, fetch: Fetch) -> None:
        """Write the rules that hold for the site now.

        Args:
            fetch: sends a request; None if the site gave no answer.
        """
        rules = read_rules(collection)
        known = {(rule.host, rule.path, rule.name) for rule in rules.own}
        proved = [
            Rule(Where.QUERY, name, COUNTER, host, path, "GET", RuleOrigin.LEARNED, _EVIDENCE)
            for (host, path, name), examples in self._examples.items()
            if (host, path, name) not in known and await _holds(examples[:_EXAMPLES], name, fetch)
        ]
        if proved:
            write_rules(collection, merge(rules, LearnResult(tuple(proved))))


def _kind_of(url: str, name: str) -> _Kind:
    parts = urlsplit(url)
    return parts.hostname or "", path_form(parts.path, "*"), name


_Example = tuple[PlainRequest, str]  # with its value
_MOST_PLACES = 30
_NAMED_SHAPES = ("milliseconds", "seconds", "microseconds", "draw", "uuid")
_SENT_AGAIN = 4  # recorded values of one kind of request
_QUERY = frozenset((Where.QUERY,))
_FAR = 40 * 86_400  # seconds
_EVIDENCE_OF_OTHERS = "proof: other values have the same answer"


@dataclass(slots=True)
class NonceRequests:
    """Recorded GET requests of scripts with a value that the script may have generated.

    A name that has other values too, such as words, is no place: it may be a search. Values under a name must
    be times, random numbers or UUIDs, since visitors type other texts; one without a name may be any token.
    """

    rules: Rules
    recorded_at: str
    _values: dict[_Kind, list[str]] = field(default_factory=lambda: defaultdict(list))
    _examples: dict[_Kind, dict[bytes, list[_Example]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _chosen: set[_Kind] = field(default_factory=set)

    def note(self, request: PlainRequest) -> None:
        """Take a recorded request."""
        parts = Parts.of(Request("GET", request.url))
        generated = set(self._generated(request.url))
        for leaf in parts.leaves(_QUERY):
            place = _kind_of(request.url, leaf.name)
            if leaf in generated:
                self._values[place].append(leaf.text)
                self._examples[place][parts.without({leaf: ""})].append((request, leaf.text))
            else:
                self._chosen.add(place)

    def _generated(self, url: str) -> Iterator[Leaf]:
        """Yield the fields of a query that a script may have generated, and that no rule covers."""
        request = Request("GET", url)
        dropped = self.rules.dropped(request)
        near = (from_timestamp(self.recorded_at).timestamp(),)
        for leaf in Parts.of(request).leaves(_QUERY):
            is_typed = leaf.name and not any(fits(shape, leaf.text) for shape in _NAMED_SHAPES)
            if is_typed or OF_VISIT.search(leaf.name) or kind_of(leaf.text, near) is None:
                continue
            if f"{leaf.where}:{leaf.name}" not in dropped:
                yield leaf

    async def prove(self, collection: Collection, missed: Iterable[str], fetch: Fetch) -> None:
        """Write the rules that hold for the site now; see `NumberedRequests.prove`.

        Args:
            missed: URLs; places without a miss are left out.
        """
        wanted = {_kind_of(url, leaf.name) for url in missed for leaf in self._generated(url)}
        proved = []
        for place in sorted(wanted, key=lambda place: (-len(self._values[place]), place))[:_MOST_PLACES]:
            texts = set(self._values[place])
            if place in self._chosen or len(texts) < 2:
                continue
            kinds = sorted(self._examples[place].values(), key=len, reverse=True)[:_EXAMPLES]
            if all([await _are_alike(each[:_SENT_AGAIN], fetch) for each in kinds]):
                host, path, name = place
                shape = shape_of(sorted(texts))
                proved.append(
                    Rule(Where.QUERY, name, shape, host, path, "GET", RuleOrigin.LEARNED, _EVIDENCE_OF_OTHERS)
                )
        if proved:
            write_rules(collection, merge(read_rules(collection), LearnResult(tuple(proved))))


async def _are_alike(examples: list[_Example], fetch: Fetch) -> bool:
    """Return whether requests that differ in a value have the same answer, also with other values."""
    request, own = examples[0]
    answers = set()
    for text in (*(value for _, value in examples), *_other_values(own)):
        exchange = await fetch(with_values(request, {own: text}))
        if exchange is None or exchange.response.status != HTTPStatus.OK:
            return False
        answers.add((exchange.response.mime, masked(decoded_body(exchange.response) or b"")))
        if len(answers) > 1:
            return False
    return True


def _other_values(text: str) -> Iterator[str]:
    """Yield two other values of the same form; of a time one soon after it and one long before."""
    for shape, per_second in (("milliseconds", 1000), ("seconds", 1), ("microseconds", 1_000_000)):
        if fits(shape, text) and text.isdecimal():
            yield from (str(int(text) + step * per_second) for step in (7, -_FAR))
            return
    lead = 2 if fits("draw", text) else 0  # "0." stays
    for key in (b"first", b"second"):
        yield text[:lead] + Placeholders(key).of(text[lead:])


async def _holds(examples: list[PlainRequest], name: str, fetch: Fetch) -> bool:
    for request in examples:
        pairs = request.pairs
        number = int(dict(pairs)[name])
        answers = set()
        for step in _STEPS:
            sent = str(number + step)
            other = [(each, sent if each == name else value) for each, value in pairs]
            exchange = await fetch(request.with_pairs(other))
            if exchange is None or exchange.response.status != HTTPStatus.OK:
                return False
            answers.add(renumbered(decoded_body(exchange.response) or b"", name, sent, "0"))
        if len(answers) > 1 or None in answers:
            return False
    return True
