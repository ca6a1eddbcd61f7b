"""Handshake of a recorded WebSocket: which recorded connection it is.

Each connection of a URL takes the next recording; past the end, the last one again. The handshake's own
fields are made again; subprotocol, compression and cookies are as recorded, where the page offers them.
`SocketScript` then plays the frames.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha1
from http import HTTPStatus
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from wsproto.extensions import PerMessageDeflate

from stillweb.collections.pack.frames import WEBSOCKET, of_cookies, open_frames, socket_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import CLOSE, TEXT, ConnectionEnd, Frame, Frames, is_socket_url
from stillweb.errors import MalformedPack
from stillweb.http.wire import status_line
from stillweb.matching.captures import Entry
from stillweb.matching.keys import body_key
from stillweb.matching.resolver import Policy
from stillweb.matching.rules import Rules
from stillweb.model import Match, Request, Tier, header
from stillweb.replay.server import answer as answers
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.calls import NumberedCalls
from stillweb.replay.server.gates import SessionGates, gates_of
from stillweb.replay.server.socketscript import Recording, SocketScript

if TYPE_CHECKING:
    from stillweb.replay.server.session import ServedRequest, Session


_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_SCHEMES = {"http": "ws", "https": "wss"}
_OTHER_VALUES = "recorded with other volatile values"
_OTHER = {"ws": "wss", "wss": "ws"}
# Fields that are made again; the others (a cookie, the subprotocol) are as recorded.
_OURS = re.compile(rb"(?:sec-websocket-(?:accept|extensions)|content-length):", re.IGNORECASE)
_FIELD = rb"(?:\A|\r\n)%b:[ \t]*([^\r\n]*)"


def begin(session: Session, handshake: Request) -> ServedRequest:
    """Answer a handshake under an http or https URL; one that is not recorded is a miss."""
    request = _as_socket(handshake)
    try:
        found, note = _recordings(session, session.state.connections.renamed(request.url))
    except MalformedPack as error:
        return session.begin_as(request, *session.damaged(request, error))
    entries = of_cookies(found, request)
    key = header(request.headers, "sec-websocket-key").strip()
    if not entries or not _is_key(key):
        return session.begin(request)
    used = sum(session.state.uses.get(entry.order, 0) for entry in entries)
    entry = entries[min(used, len(entries) - 1)]
    protocol = _field(entry, b"sec-websocket-protocol")
    if protocol not in _offered(request):
        reason = f"recorded with the subprotocol {protocol!r}, which is not offered"
        return session.begin_as(request, Match(Tier.MISS, reason=reason), answers.empty(request, 404))
    session.state.uses[entry.order] = session.state.uses.get(entry.order, 0) + 1
    if entry.status != HTTPStatus.OK:
        refused = answers.recorded(request, entry)
        return session.begin_as(request, _match(entries, used, note, "refused"), refused)
    try:
        frames, gates = _open(entry, session)
    except MalformedPack as error:
        return session.begin_as(request, *session.damaged(request, error))
    sent = sum(frame.sent for frame in frames.frames)
    counted = f"{len(frames.frames) - sent} frames of the site, {sent} of the page"
    deflate = _deflate(request, entry)
    script = SocketScript(
        frames if used < len(entries) else left_open(frames),
        _Sameness(request.url, session.policy),
        _Misses(session, request.url, session.resets),
        deflate=deflate[0] if deflate else None,
        paced=session.policy.pace == "recorded",
        gates=gates,
    )
    script.number_calls(_calls_of(session.pack, found))
    script.others = lambda: _others(found, entry, session)
    answer = ScriptedResponse(101, _head(entry, key, deflate[1] if deflate else ""), script=script)
    return session.begin_as(request, _match(entries, used, note, counted), answer)


def _open(entry: Entry, session: Session) -> Recording:
    frames = open_frames(bytes(entry.body))
    end = frames.end_ms if frames.end is ConnectionEnd.SITE else 0
    last = max((frame.ms for frame in frames.frames), default=0)
    gates = gates_of(entry, frames.marks, max(last, end), session.pack, session.policy)
    return frames, SessionGates(gates, lambda: session.state, session.page_clock)


_CALLS: WeakKeyDictionary[Pack, dict[tuple[int, ...], NumberedCalls | None]] = WeakKeyDictionary()


def _calls_of(pack: Pack, entries: Iterable[Entry]) -> NumberedCalls | None:
    """Return the numbered commands of recordings of one URL; damaged ones are left out."""
    opened = [entry for entry in entries if entry.status == HTTPStatus.OK]
    known, orders = _CALLS.setdefault(pack, {}), tuple(entry.order for entry in opened)
    if orders not in known:
        conversations = []
        for entry in opened:
            with suppress(MalformedPack):
                conversations.append(open_frames(bytes(entry.body)).frames)
        known[orders] = NumberedCalls.of(conversations)
    return known[orders]


def _others(entries: Iterable[Entry], used: Entry, session: Session) -> Iterator[Recording]:
    """Yield the other recordings; a damaged one is left out."""
    for entry in entries:
        if entry.order != used.order and entry.status == HTTPStatus.OK:
            with suppress(MalformedPack):
                yield _open(entry, session)


def _as_socket(request: Request) -> Request:
    """Return the request of a handshake under the URL of the WebSocket."""
    scheme, separator, rest = request.url.partition("://")
    return replace(request, url=f"{_SCHEMES.get(scheme.lower(), scheme)}{separator}{rest}")


def _recordings(session: Session, url: str) -> tuple[list[Entry], str]:
    """Return the recorded connections of a URL, else of the same URL under the other scheme."""
    scheme, _, rest = url.partition("://")
    other = _OTHER.get(scheme, "")
    rows = [row for spelled in _alike(session, url) for row in session.pack.lookup(socket_key(spelled))]
    alike = sorted((session.pack.entry(row) for row in rows), key=lambda entry: entry.order)
    whole = _whole(alike, _Sameness(url, session.policy))
    for spelled, note in ((url, ""), (f"{other}://{rest}", f"recorded over {other}")):
        if exact := [session.pack.entry(row) for row in session.pack.lookup(socket_key(spelled))]:
            chosen = [entry for entry in exact if not alike or entry.order in whole]
            if chosen:
                return chosen, note
    return [entry for entry in alike if entry.order in whole], _OTHER_VALUES if alike else ""


def _whole(entries: Sequence[Entry], same: Callable[[Frame, Frame], bool]) -> set[int]:
    """Return the orders of the connections that were not cut short.

    A visit that leaves a page early records the beginning of a conversation only. It is not used if another
    recording begins equally and continues. Their URLs, which name a random session, do not distinguish them.
    """
    if len(entries) < 2:
        return {entry.order for entry in entries}
    talks = {
        entry.order: open_frames(bytes(entry.body)) for entry in entries if entry.status == HTTPStatus.OK
    }
    sent = {
        order: [each for each in talk.frames if each.sent and each.opcode != CLOSE]
        for order, talk in talks.items()
    }

    def is_cut(order: int) -> bool:
        own = sent[order]
        return talks[order].end is ConnectionEnd.CLIENT and any(
            len(longer) > len(own)
            and len(talks[other].frames) > len(talks[order].frames)
            and all(same(a, b) for a, b in zip(longer, own, strict=False))
            for other, longer in sent.items()
        )

    return {entry.order for entry in entries if entry.order not in sent or not is_cut(entry.order)}


_ALIASES: WeakKeyDictionary[Pack, tuple[Rules, dict[bytes, list[str]]]] = WeakKeyDictionary()


def _alike(session: Session, url: str) -> list[str]:
    """Return the recorded WebSocket URLs that equal a URL except in volatile parts (a SockJS session)."""
    rules, pack = session.policy.rules, session.pack
    wanted = [alias.key for alias in rules.aliases(Request("GET", url)) if not alias.guessed]
    if not wanted:
        return []
    known = _ALIASES.get(pack)
    if known is None or known[0] != rules:
        found: dict[bytes, list[str]] = {}
        for recorded in pack.urls():
            if is_socket_url(recorded):
                for alias in rules.aliases(Request("GET", recorded)):
                    if not alias.guessed:
                        found.setdefault(alias.key, []).append(recorded)
        known = _ALIASES[pack] = (rules, found)
    return [spelled for key in wanted for spelled in known[1].get(key, ())]


def _match(entries: Sequence[Entry], used: int, note: str, counted: str) -> Match:
    count = len(entries)
    chosen = entries[min(used, count - 1)]
    place = f"connection {used + 1} of {count}" if count > 1 and used < count else ""
    if used >= count:
        place = f"past the end: {'its only' if count == 1 else f'the last of {count}'} connection again"
    tier = Tier.SEQUENCE if count > 1 else Tier.EXACT
    return Match(tier, chosen.order, "; ".join(filter(None, (note, place, counted))))


def left_open(frames: Frames) -> Frames:
    """Return frames without the site's end: past the recordings a page would reopen it forever."""
    left = tuple(frame for frame in frames.frames if frame.sent or frame.opcode != CLOSE)
    return replace(frames, frames=left, end=ConnectionEnd.OPEN)


def _is_key(key: str) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16  # RFC 6455 §4.2.1
    except ValueError:
        return False


def _field(entry: Entry, name: bytes) -> str:
    found = re.search(_FIELD % name, bytes(entry.head), re.IGNORECASE)
    return found[1].decode("latin-1").strip() if found else ""


def _offered(request: Request) -> set[str]:
    """Return the subprotocols that the page accepts; "" is none."""
    offers = (value for name, value in request.headers if name.lower() == "sec-websocket-protocol")
    return {"", *(each.strip() for value in offers for each in value.split(","))}


def _deflate(request: Request, entry: Entry) -> tuple[PerMessageDeflate, str] | None:
    """Return the recorded compression if the page offers it now (RFC 7692 §7)."""
    agreed = _field(entry, b"sec-websocket-extensions")
    offer = header(request.headers, "sec-websocket-extensions")
    if not agreed.lower().startswith(PerMessageDeflate.name) or "," in agreed:
        return None
    if PerMessageDeflate.name not in offer:
        return None
    if "client_max_window_bits" in agreed and "client_max_window_bits" not in offer:
        return None  # RFC 7692 §7.1.2.2: only a client that offered it may get it
    deflate = PerMessageDeflate()
    try:
        deflate.finalize(agreed)
    except (ValueError, IndexError):
        return None
    return deflate, agreed


def _head(entry: Entry, key: str, deflate: str) -> bytes:
    accept = b64encode(sha1(key.encode("ascii") + _GUID, usedforsecurity=False).digest())
    lines = [b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + accept]
    if deflate:
        lines.append(b"Sec-WebSocket-Extensions: " + deflate.encode("latin-1"))
    lines += [line for line in bytes(entry.head).split(b"\r\n")[1:] if line and not _OURS.match(line)]
    return status_line(101) + b"".join(line + b"\r\n" for line in lines)


@dataclass(frozen=True, slots=True)
class _Sameness:
    """Comparison of a page's frame with a recorded one."""

    url: str
    policy: Policy

    def __call__(self, recorded: Frame, received: Frame) -> bool:
        if recorded.opcode != received.opcode or recorded.payload == received.payload:
            return recorded.opcode == received.opcode
        if recorded.opcode != TEXT:
            return False
        if _by_value(recorded.payload) == _by_value(received.payload):
            return True
        return bool(self._aliases(recorded) & self._aliases(received))

    def _aliases(self, frame: Frame) -> set[bytes]:
        found = self.policy.rules.aliases(_as_request(self.url, frame.payload))
        return {alias.key for alias in found if self.policy.guessed or not alias.guessed}


def _by_value(payload: bytes) -> bytes:
    return body_key("application/json", payload)


def _as_request(url: str, payload: bytes) -> Request:
    """Return a page's frame as a request, for rules and ledgers."""
    return Request(WEBSOCKET, url, (("Content-Type", "application/json"),), payload)


@dataclass(frozen=True, slots=True)
class _Misses:
    """Records frames that were not recorded as misses on the ledger."""

    session: Session
    url: str
    resets: int

    def __call__(self, number: int, frame: Frame, why: str) -> None:
        request = _as_request(self.url, frame.payload)
        match = Match(Tier.MISS, reason=f"frame {number} of the page: {why}")
        served = self.session.begin_as(request, match, PreparedResponse(0, b""))
        self.session.finish(replace(served, resets=self.resets))
