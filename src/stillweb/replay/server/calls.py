"""Numbered calls over a WebSocket: a page counts its commands, and a reply has the number of its command.

JSON-RPC has `id` for that (JSON-RPC 2.0 §4), other protocols `_id`, `seq` or `req`. A session sends recorded
commands in another order, or repeats one, and so with other numbers than the recording. The recorded replies
are then sent with the session's numbers.

A member is taken for such a number only if the recordings of a URL prove it. In each connection it counts the
page's commands without a gap, from the same first number. Every received frame that has it repeats the number
of an earlier command. Most commands that were repeated got the same reply, apart from the number. The others
are answered as recorded only: once, and under the recorded number.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stillweb.collections.warc.frames import TEXT, Frame
from stillweb.matching.keys import body_key

_LARGEST = 64 * 1024  # bytes of a frame
_ALL = 4 * 1024 * 1024  # bytes of all frames; reading more would delay other sessions
_AHEAD = 8  # commands that a page may send before the one that it counted first


@dataclass(frozen=True, slots=True)
class NumberedCalls:
    """The numbered commands of a URL's recordings.

    Attributes:
        member: name of the number in commands and replies.
        first: number of a connection's first command.
        commands: recorded commands without their numbers, by their text.
        replies: by command without its number, the first reply to it; None if recordings differ.
    """

    member: str
    first: int
    commands: Mapping[bytes, bytes] = field(repr=False)
    replies: Mapping[bytes, Frame | None] = field(repr=False)

    @classmethod
    def of(cls, conversations: Sequence[Sequence[Frame]]) -> NumberedCalls | None:
        """Return what recordings prove, or None."""
        if sum(len(frame.payload) for frames in conversations for frame in frames) > _ALL:
            return None
        members = Counter(
            name
            for frames in conversations
            for frame in frames
            if frame.sent
            for name, value in _object(frame).items()
            if isinstance(value, int) and not isinstance(value, bool)
        )
        for member, count in members.most_common():
            if count > 1 and (found := _proved(member, conversations)):
                return found
        return None

    def number(self, frame: Frame) -> int | None:
        """Return the number of a frame, None if it has none."""
        return _number(self.member, frame)

    def command(self, frame: Frame) -> bytes:
        """Return a command without its number, to compare it."""
        return _without(self.member, frame)

    def renumbered(self, frame: Frame, number: int) -> Frame:
        """Return a frame with another number, and no other byte changed where that is possible."""
        found = list(re.finditer(rb'"%b"\s*:\s*(-?\d+)' % re.escape(self.member.encode()), frame.payload))
        if len(found) == 1:
            start, end = found[0].span(1)
            return replace(frame, payload=b"%b%d%b" % (frame.payload[:start], number, frame.payload[end:]))
        content = json.dumps(
            {**_object(frame), self.member: number}, ensure_ascii=False, separators=(",", ":")
        )
        return replace(frame, payload=content.encode("utf-8", "replace"))


class ConnectionCalls:
    """The numbers that one connection has used."""

    def __init__(self, calls: NumberedCalls) -> None:
        self.calls = calls
        self._numbers: dict[int, int] = {}  # of the recording: of the session, where they differ
        self._used: set[int] = set()

    def wanted(self, received: Frame) -> bytes | None:
        """Return a command without its number if it may be answered under another one than recorded."""
        if not self._counts(received):
            return None
        command = self.calls.command(received)
        differs = command in self.calls.replies and self.calls.replies[command] is None
        return None if differs else command

    def take(self, recorded: Frame, received: Frame) -> None:
        """Note that a command of the session stands for a recorded one."""
        before, now = self.calls.number(recorded), self.calls.number(received)
        if before is not None and now is not None:
            self._used.add(now)
            if before != now:
                self._numbers[before] = now

    def reply(self, received: Frame) -> Frame | None:
        """Return the reply to a command that the recordings of its connection do not hold any more."""
        number = self.calls.number(received)
        recorded = self.calls.replies.get(self.calls.command(received)) if self._counts(received) else None
        if number is None or recorded is None:
            return None
        self._used.add(number)
        return self.calls.renumbered(replace(recorded, ms=0), number)

    def as_called(self, frame: Frame) -> Frame:
        """Return a recorded frame of the site with the session's number."""
        number = self.calls.number(frame) if self._numbers else None
        now = None if number is None else self._numbers.get(number)
        return frame if now is None else self.calls.renumbered(frame, now)

    def _counts(self, received: Frame) -> bool:
        number = self.calls.number(received)
        if number is None or number in self._used:
            return False
        return self.calls.first <= number <= self.calls.first + len(self._used) + _AHEAD


def _proved(member: str, conversations: Sequence[Sequence[Frame]]) -> NumberedCalls | None:
    """Return the calls that a member numbers, None if it is not a number of calls."""
    firsts: set[int] = set()
    replies: dict[bytes, Frame | None] = {}
    repeated: set[bytes] = set()
    for frames in conversations:
        calls = _calls(member, frames)
        if calls is None:
            return None
        if calls:
            firsts.add(min(calls))
        for command, reply in calls.values():
            if reply is None:
                continue
            before = replies.setdefault(command, reply)
            if before is not None and before is not reply:
                is_equal = _without(member, before) == _without(member, reply)
                repeated.add(command)
                replies[command] = before if is_equal else None
    differing = sum(reply is None for reply in replies.values())
    is_proof = len(firsts) == 1 and len(replies) > 1 and len(repeated) > 2 * differing
    if not is_proof:
        return None
    sent = {frame.payload: frame for frames in conversations for frame in frames if frame.sent}
    commands = {
        text: _without(member, frame) for text, frame in sent.items() if _number(member, frame) is not None
    }
    return NumberedCalls(member, firsts.pop(), commands, replies)


def _calls(member: str, frames: Iterable[Frame]) -> dict[int, tuple[bytes, Frame | None]] | None:
    """Return command and reply of each number, None if the member does not count a connection's commands."""
    calls: dict[int, tuple[bytes, Frame | None]] = {}
    for frame in frames:
        number = _number(member, frame)
        if number is None:
            continue
        if frame.sent == (number in calls):
            return None  # the number of a command again, or a reply to none
        command, reply = calls.get(number, (b"", None))
        calls[number] = (_without(member, frame), None) if frame.sent else (command, reply or frame)
    is_count = not calls or max(calls) - min(calls) + 1 == len(calls)
    return calls if is_count else None


def _object(frame: Frame) -> dict[str, Any]:
    """Return the JSON object of a frame, an empty one if it is none."""
    if frame.opcode != TEXT or not frame.payload.startswith(b"{") or len(frame.payload) > _LARGEST:
        return {}
    try:
        content = json.loads(frame.payload)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(member: str, frame: Frame) -> int | None:
    value = _object(frame).get(member)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _without(member: str, frame: Frame) -> bytes:
    content = {name: value for name, value in _object(frame).items() if name != member}
    return body_key("application/json", json.dumps(content).encode())
