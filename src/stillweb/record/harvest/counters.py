"""Proof that a script only numbers its requests, for a rule of shape `counter` (`matching.counters`).

The numbers of DataTables have known names (https://datatables.net/manual/server-side). Under such a name a
site may still have something else, as a lottery has its draws. So recorded requests are sent again with two
other numbers. The answers must have the same bytes apart from the number, which they must repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.http.codec import decoded_body
from stillweb.matching.counters import NUMBERS, renumbered
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, RuleOrigin
from stillweb.matching.values import COUNTER
from stillweb.model import Exchange
from stillweb.record.harvest.misses import PlainRequest, path_form

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
