"""A writer that adds only what a collection cannot answer, so that existing answers do not change.

A page visited for one missing script requests forty resources that are recorded. A second capture of any of
them would be another element of its sequence, or be preferred for its fields. Such exchanges are omitted, as
is a second response to a request that this run has written.

The handshake of a WebSocket does not say what is new in its conversation. It is written if the page sent a
frame that no recording of the URL holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stillweb.collections.layout import Collection
from stillweb.collections.redactions import Redaction
from stillweb.collections.warc.frames import CLOSE, RecordFrames, is_socket_url, read_frames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.captures import MEANT
from stillweb.matching.rules import Rule, Rules
from stillweb.model import BUSY, MUTATIONS, Capture, Exchange, Request
from stillweb.record.amend.plan import SealedIndex, identity, keys_of
from stillweb.record.tokens import issues_token

# Refusals that are due to the state of the resource (RFC 9110 §15.5) and not to a missing token: not allowed,
# conflict, gone. A page itself would get the same.
_OF_THE_RESOURCE = frozenset((405, 409, 410))


class WriteOutcome:
    """Outcome of a request.

    Attributes:
        mime: media type without parameters.
    """

    __slots__ = ("mime", "recorded", "status")

    def __init__(self, status: int, mime: str, recorded: bool) -> None:
        self.status, self.mime, self.recorded = status, mime, recorded


class NewOnlyWriter(CollectionWriter):
    """Collection writer that omits known requests.

    Args:
        wanted: identities of missed requests whose key has another capture.
        refusals: whether error responses to POST and the like are written too: they are the site's answer if
            the page itself sent the request.

    Attributes:
        answers: outcomes so far, by identity.
        last: outcomes by method and URL, because redaction changes a request's identity.
        added: number of captures written.
    """

    def __init__(
        self,
        collection: Collection,
        known: SealedIndex,
        rules: Rules,
        wanted: Iterable[str],
        *,
        refusals: bool = False,
    ) -> None:
        super().__init__(collection, prefix="amend")
        self._known = known
        self._rules = rules
        self._wanted = set(wanted)
        self._refusals = refusals
        self._written: set[bytes] = set()
        self._frames: dict[str, set[tuple[int, bytes]]] = {}
        self.answers: dict[str, WriteOutcome] = {}
        self.last: dict[tuple[str, str], WriteOutcome] = {}
        self.added = 0

    @property
    def rules(self) -> Rules:
        """The rules of the collection, with those learned in this run."""
        return self._rules

    def learn(self, rules: tuple[Rule, ...]) -> None:
        """Add volatile rules before an exchange with such a value is written."""
        self._rules = replace(self._rules, volatile=self._rules.volatile + rules)

    def want(self, request: Request) -> None:
        """Let a missed request be written although its key has another capture."""
        self._wanted.add(identity(request))

    def has(self, request: Request) -> bool:
        """Return True if this run has recorded a response to a request.

        The request of a page itself may have fields that the ledger omits. Without meaningful fields, the
        same key is the same request.
        """
        answer = self.answers.get(identity(request))
        if answer is not None:
            return answer.recorded
        plain = not any(name.lower() in MEANT for name, _ in request.headers)
        return plain and not self._written.isdisjoint(keys_of(request, self._rules))

    def write(
        self, exchange: Exchange, beside: RecordFrames | None = None, redactions: Iterable[Redaction] = ()
    ) -> Capture:
        """Append an exchange if it is new; an omitted one has offset -1."""
        request, response = exchange.request, exchange.response
        frames = beside if is_socket_url(request.url) else None
        is_new = frames is not None and self._has_new_frames(request.url, frames)
        name = identity(request)
        before = self.answers.get(name)
        if before and before.recorded and not is_new:
            self.last[request.method, request.url] = before
            return _omitted(exchange)
        # A busy site must be asked again, and its error must not be replayed.
        refusal = response.status >= 400 and response.status not in _OF_THE_RESOURCE
        refusal = refusal or issues_token(response)
        refused = request.method in MUTATIONS and refusal and not self._refusals
        failed = refused or response.status in BUSY
        # This run also writes each key once; requests that differ only in their fields are wanted by
        # identity.
        keys = frozenset(keys_of(request, self._rules))
        is_wanted = is_new or name in self._wanted
        there = not is_wanted and (self._known.holds(request) or bool(keys & self._written))
        answer = WriteOutcome(response.status, response.mime, recorded=not failed)
        self.answers[name] = self.last[request.method, request.url] = answer
        if failed or there:
            return _omitted(exchange)
        self._written |= keys
        self.added += 1
        return super().write(exchange, beside, redactions)

    def _has_new_frames(self, url: str, beside: RecordFrames) -> bool:
        """Return whether a conversation of a recorded WebSocket holds a frame that its recordings lack."""
        if url not in self._frames:
            self._frames[url] = self._known.sent_frames(url)
        known = self._frames[url]
        sent = {(each.opcode, each.payload) for each in read_frames(beside.block).frames if each.sent}
        is_new = not {each for each in sent if each[0] != CLOSE} <= known
        known |= sent
        return is_new


def _omitted(exchange: Exchange) -> Capture:
    request, response = exchange.request, exchange.response
    where = (request.url, request.method, "", response.status, response.mime, "", "")
    return Capture("", exchange.timestamp, *where, offset=-1, length=0)
