"""A writer that adds only what a collection cannot answer, so that nothing answers otherwise than before.

A page that is visited for one missing script asks for forty things that are there; a second capture of any of
them would be another turn in its sequence, or be preferred for its fields. Such exchanges are left out,
and so is a second answer to what this run has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stillweb.collections.layout import Collection
from stillweb.collections.redactions import Redaction
from stillweb.collections.warc.frames import RecordFrames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.captures import MEANT
from stillweb.matching.rules import Rule, Rules
from stillweb.model import BUSY, MUTATIONS, Capture, Exchange, Request
from stillweb.record.amend.plan import SealedIndex, identity, keys_of

__all__ = ["NewOnlyWriter", "WriteOutcome"]


class WriteOutcome:
    """What came of a request.

    Attributes:
        status: of the answer.
        mime: without parameters.
        kept: whether it is in the collection, now or since before.
    """

    __slots__ = ("kept", "mime", "status")

    def __init__(self, status: int, mime: str, kept: bool) -> None:
        self.status, self.mime, self.kept = status, mime, kept


class NewOnlyWriter(CollectionWriter):
    """Writes what is new.

    Args:
        collection: to add to.
        known: what it answers.
        rules: of the collection.
        wanted: requests, by identity, that are missed though another capture of their key is there.

    Attributes:
        answers: by identity, what has come through so far.
        last: by method and URL, the same: what was redacted has another identity than what was asked.
        added: captures written.
    """

    def __init__(
        self, collection: Collection, known: SealedIndex, rules: Rules, wanted: Iterable[str]
    ) -> None:
        super().__init__(collection, prefix="amend")
        self._known = known
        self._rules = rules
        self._wanted = frozenset(wanted)
        self._written: set[bytes] = set()
        self.answers: dict[str, WriteOutcome] = {}
        self.last: dict[tuple[str, str], WriteOutcome] = {}
        self.added = 0

    @property
    def rules(self) -> Rules:
        """The rules of the collection, with those learned since."""
        return self._rules

    def learn(self, rules: tuple[Rule, ...]) -> None:
        """Take note of what else varies by itself, before anything is written in which it does."""
        self._rules = replace(self._rules, volatile=self._rules.volatile + rules)

    def has(self, request: Request) -> bool:
        """Whether this run has brought what answers a request.

        A page's own request may have had fields that the ledger does not keep: without fields that bear
        meaning, the same key is the same request.
        """
        answer = self.answers.get(identity(request))
        if answer is not None:
            return answer.kept
        plain = not any(name.lower() in MEANT for name, _ in request.headers)
        return plain and not self._written.isdisjoint(keys_of(request, self._rules))

    def write(
        self, exchange: Exchange, beside: RecordFrames | None = None, redactions: Iterable[Redaction] = ()
    ) -> Capture:
        """Append an exchange if it is new; what is left out lies nowhere, at offset -1."""
        request, response = exchange.request, exchange.response
        name = identity(request)
        before = self.answers.get(name)
        if before and before.kept:
            self.last[request.method, request.url] = before
            return _nowhere(exchange)
        # What a site was too busy for is to be asked again, and not to be replayed for ever.
        failed = response.status in BUSY or (request.method in MUTATIONS and response.status >= 400)
        # In this run, too, a key is written once; what differs in its fields only is wanted by name.
        keys = frozenset(keys_of(request, self._rules))
        there = name not in self._wanted and (self._known.holds(request) or bool(keys & self._written))
        answer = WriteOutcome(response.status, response.mime, kept=not failed)
        self.answers[name] = self.last[request.method, request.url] = answer
        if failed or there:
            return _nowhere(exchange)
        self._written |= keys
        self.added += 1
        return super().write(exchange, beside, redactions)


def _nowhere(exchange: Exchange) -> Capture:
    request, response = exchange.request, exchange.response
    where = (request.url, request.method, "", response.status, response.mime, "", "")
    return Capture("", exchange.timestamp, *where, offset=-1, length=0)
