"""The handshake of a recorded WebSocket: which connection it is, and when a page's frame is the recorded one.

Each connection of a URL takes the next recording, past the end the last again. The answer's own fields are
made anew; subprotocol, compression and cookies are as recorded, where the page offers them. What
plays from there on is a `SocketScript`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from http import HTTPStatus

from wsproto.extensions import PerMessageDeflate

from stillweb.collections.entries import Entry
from stillweb.collections.framepack import WEBSOCKET, of_cookies, open_frames, socket_key
from stillweb.collections.frames import CLOSE, TEXT, End, Frame, Frames
from stillweb.collections.keys import body_key
from stillweb.errors import MalformedPack
from stillweb.model import Match, Request, Tier, header
from stillweb.replay import answer as answers
from stillweb.replay.answer import Answer
from stillweb.replay.resolver import Policy
from stillweb.replay.script import Scripted
from stillweb.replay.session import Served, Session
from stillweb.replay.socketscript import SocketScript
from stillweb.replay.wire import status_line

__all__ = ["begin"]

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_SCHEMES = {"http": "ws", "https": "wss"}
_OTHER = {"ws": "wss", "wss": "ws"}
# The handshake's own, made anew; the rest (a cookie, the subprotocol) is as recorded.
_OURS = re.compile(rb"(?:sec-websocket-(?:accept|extensions)|content-length):", re.IGNORECASE)
_FIELD = rb"(?:\A|\r\n)%b:[ \t]*([^\r\n]*)"


def begin(session: Session, handshake: Request) -> Served:
    """Answer a handshake; one that is not recorded is a miss.

    Args:
        session: counts the connections of a URL, and takes the ledger's lines.
        handshake: under an http or https URL.
    """
    request = _as_socket(handshake)
    try:
        found, note = _recordings(session, request.url)
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
    frames = open_frames(bytes(entry.body))
    sent = sum(frame.sent for frame in frames.frames)
    counted = f"{len(frames.frames) - sent} frames of the site, {sent} of the page"
    deflate = _deflate(request, entry)
    script = SocketScript(
        frames if used < len(entries) else _left_open(frames),
        _Sameness(request.url, session.policy),
        _Misses(session, request.url, session.life),
        deflate=deflate[0] if deflate else None,
        paced=session.policy.pace == "recorded",
    )
    answer = Scripted(101, _head(entry, key, deflate[1] if deflate else ""), script=script)
    return session.begin_as(request, _match(entries, used, note, counted), answer)


def _as_socket(request: Request) -> Request:
    """Return the request of a handshake under the URL of the WebSocket."""
    scheme, separator, rest = request.url.partition("://")
    return replace(request, url=f"{_SCHEMES.get(scheme.lower(), scheme)}{separator}{rest}")


def _recordings(session: Session, url: str) -> tuple[list[Entry], str]:
    """Return the recorded connections of a URL, else of the same over the other scheme."""
    scheme, _, rest = url.partition("://")
    other = _OTHER.get(scheme, "")
    for spelled, note in ((url, ""), (f"{other}://{rest}", f"recorded over {other}")):
        if rows := session.pack.lookup(socket_key(spelled)):
            return [session.pack.entry(row) for row in rows], note
    return [], ""


def _match(entries: Sequence[Entry], used: int, note: str, counted: str) -> Match:
    count = len(entries)
    chosen = entries[min(used, count - 1)]
    place = f"connection {used + 1} of {count}" if count > 1 and used < count else ""
    if used >= count:
        place = f"past the end: {'its only' if count == 1 else f'the last of {count}'} connection again"
    tier = Tier.SEQUENCE if count > 1 else Tier.EXACT
    return Match(tier, chosen.order, "; ".join(filter(None, (note, place, counted))))


def _left_open(frames: Frames) -> Frames:
    """Return frames without the site's end: past the recordings a page would open it again for ever."""
    kept = tuple(frame for frame in frames.frames if frame.sent or frame.opcode != CLOSE)
    return Frames(kept, End.OPEN)


def _is_key(key: str) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16  # RFC 6455 §4.2.1
    except ValueError:
        return False


def _field(entry: Entry, name: bytes) -> str:
    found = re.search(_FIELD % name, bytes(entry.head), re.IGNORECASE)
    return found[1].decode("latin-1").strip() if found else ""


def _offered(request: Request) -> set[str]:
    """Return the subprotocols that a page may be answered with; "" is none."""
    offers = (value for name, value in request.headers if name.lower() == "sec-websocket-protocol")
    return {"", *(each.strip() for value in offers for each in value.split(","))}


def _deflate(request: Request, entry: Entry) -> tuple[PerMessageDeflate, str] | None:
    """Return compression as it was agreed on, if it was and is offered now (RFC 7692 §7)."""
    agreed = _field(entry, b"sec-websocket-extensions")
    offer = header(request.headers, "sec-websocket-extensions")
    if not agreed.lower().startswith(PerMessageDeflate.name) or "," in agreed:
        return None
    if PerMessageDeflate.name not in offer:
        return None
    if "client_max_window_bits" in agreed and "client_max_window_bits" not in offer:
        return None  # RFC 7692 §7.1.2.2: only who offered it may be told it
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
    """Whether a page's frame is the recorded one."""

    url: str
    policy: Policy

    def __call__(self, recorded: Frame, came: Frame) -> bool:
        if recorded.opcode != came.opcode or recorded.payload == came.payload:
            return recorded.opcode == came.opcode
        if recorded.opcode != TEXT:
            return False
        if _by_value(recorded.payload) == _by_value(came.payload):
            return True
        return bool(self._aliases(recorded) & self._aliases(came))

    def _aliases(self, frame: Frame) -> set[bytes]:
        found = self.policy.rules.aliases(_as_request(self.url, frame.payload))
        return {alias.key for alias in found if self.policy.guessed or not alias.guessed}


def _by_value(payload: bytes) -> bytes:
    return body_key("application/json", payload)


def _as_request(url: str, payload: bytes) -> Request:
    """Return a page's frame as the request that rules and ledgers know."""
    return Request(WEBSOCKET, url, (("Content-Type", "application/json"),), payload)


@dataclass(frozen=True, slots=True)
class _Misses:
    """Puts the frames that nothing expected on the ledger."""

    session: Session
    url: str
    life: int

    def __call__(self, number: int, frame: Frame, why: str) -> None:
        request = _as_request(self.url, frame.payload)
        match = Match(Tier.MISS, reason=f"frame {number} of the page: {why}")
        served = self.session.begin_as(request, match, Answer(0, b""))
        self.session.finish(replace(served, life=self.life))
