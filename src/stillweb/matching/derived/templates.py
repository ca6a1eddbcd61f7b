"""Templates: one recorded text in which the values of a form are slots.

`split` cuts a recorded text into atoms: words, single other bytes, and slots where a value occurs in one of
its encodings. `agree` compares two recordings atom by atom. Their slots must be at the same places; other
atoms must be equal, or be volatile: they differ between two recordings of the *same* value, or both are the
time of their recording. Any other difference refuses the text: it depends on the value in an unknown way, as
a total, an excerpt or a message does. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.matching.derived.encodings import Encodings

__all__ = [
    "Atom",
    "Difference",
    "EncodingSets",
    "Slot",
    "Split",
    "Template",
    "agree",
    "render",
    "split",
    "volatile_between",
]

_FINE = re.compile(rb"[A-Za-z0-9]+|[^A-Za-z0-9]")
_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_CONTEXT = 24  # atoms of context in the reason of a refusal
_CLOCK = re.compile(rb"([0-2]?[0-9]):([0-5][0-9])(?::([0-5][0-9]))?")
_SKEW = 90  # seconds by which a server's time of a response may differ from the recorder's


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value.

    Attributes:
        field: number of the form's field.
        encodings: names of the encodings that all recordings allow.
    """

    field: int
    encodings: frozenset[str]


Atom = bytes | Slot
"""A word, a single other byte, or a slot."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with slots; its volatile parts are those of the first recording."""

    pieces: tuple[bytes | Slot, ...]

    @classmethod
    def of(cls, atoms: Iterable[Atom]) -> Template:
        """Join atoms between slots."""
        pieces: list[bytes | Slot] = []
        literal: list[bytes] = []
        for atom in atoms:
            if isinstance(atom, bytes):
                literal.append(atom)
                continue
            if literal:
                pieces.append(b"".join(literal))
                literal = []
            pieces.append(atom)
        if literal:
            pieces.append(b"".join(literal))
        return cls(tuple(pieces))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots in order."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Slot))

    def dump(self, sets: EncodingSets) -> list[Any]:
        """Return the template as JSON: texts in latin-1, slots as [field, number of a set]."""
        return [
            piece.decode("latin-1")
            if isinstance(piece, bytes)
            else [piece.field, sets.number(piece.encodings)]
            for piece in self.pieces
        ]

    @classmethod
    def load(cls, stored: Sequence[Any], sets: Sequence[frozenset[str]]) -> Template:
        """Read what `dump` returned, with the sets that it numbered."""
        return cls(
            tuple(
                piece.encode("latin-1") if isinstance(piece, str) else Slot(piece[0], sets[piece[1]])
                for piece in stored
            )
        )


@dataclass(slots=True)
class EncodingSets:
    """Sets of encodings by number: the slots of a page share a few sets of hundreds of names."""

    numbers: dict[frozenset[str], int] = field(default_factory=dict)

    def number(self, names: frozenset[str]) -> int:
        """Return the number of a set, a new one if it has none."""
        return self.numbers.setdefault(names, len(self.numbers))


@dataclass(frozen=True, slots=True)
class Difference:
    """Why two recordings do not give one template; `text` is for people."""

    text: str


@dataclass(slots=True)
class Split:
    """A recorded text in atoms, and when it was recorded.

    Attributes:
        at: seconds since 1970.
    """

    atoms: list[Atom]
    at: float = 0.0
    volatile: set[int] = field(default_factory=set)


def split(text: bytes, values: Sequence[Encodings], at: float = 0.0) -> Split:
    """Cut a text into atoms; the longest encoding of a value wins at each place."""
    slots: dict[bytes, Slot] = {}
    for number, value in enumerate(values):
        for encoded, names in value.by_bytes().items():
            if encoded in text:  # one search for each is faster than a pattern of hundreds
                slots.setdefault(encoded, Slot(number, names))
    if not slots:
        return Split(_FINE.findall(text), at)
    pattern = b"|".join(_bounded(encoded) for encoded in sorted(slots, key=len, reverse=True))
    atoms: list[Atom] = []
    place = 0
    for match in re.finditer(pattern, text):
        atoms += _FINE.findall(text[place : match.start()])
        atoms.append(slots[match[0]])
        place = match.end()
    atoms += _FINE.findall(text[place:])
    return Split(atoms, at)


def _bounded(encoded: bytes) -> bytes:
    """Return the pattern of an encoding; a number is found only as a whole word: digits are everywhere."""
    pattern = re.escape(encoded)
    return rb"(?<![0-9A-Za-z])" + pattern + rb"(?![0-9A-Za-z])" if encoded.isdigit() else pattern


def volatile_between(first: Split, again: Split) -> set[int] | Difference:
    """Return the places that differ between two recordings of the same values.

    Places where a slot stands in one of them only are a difference: the recordings are not of one state.
    """
    if len(first.atoms) != len(again.atoms):
        return Difference("two recordings of the same value differ in more than single words")
    places = set()
    for place, (one, other) in enumerate(zip(first.atoms, again.atoms, strict=True)):
        if one == other:
            continue
        if isinstance(one, Slot) or isinstance(other, Slot) or not _same_kind(one, other):
            return Difference(f"two recordings of the same value differ: {_around(first, again, place)}")
        places.add(place)
    return places


def agree(base: Split, other: Split, volatile: set[int]) -> list[Atom] | Difference:
    """Return the atoms of the first recording, its slots with the encodings that both allow.

    Args:
        base: the first recording.
        other: a recording of other values.
        volatile: places that differ between two recordings of the same values.
    """
    if len(base.atoms) != len(other.atoms):
        place = next(
            (n for n, (a, b) in enumerate(zip(base.atoms, other.atoms, strict=False))
             if a != b and n not in volatile and not (isinstance(a, Slot) and isinstance(b, Slot))),
            min(len(base.atoms), len(other.atoms)),
        )  # fmt: skip
        return Difference(f"more than the value differs: {_around(base, other, place)}")
    atoms: list[Atom] = []
    for place, (one, two) in enumerate(zip(base.atoms, other.atoms, strict=True)):
        if isinstance(one, Slot) and isinstance(two, Slot) and one.field == two.field:
            both = one.encodings & two.encodings
            if not both:
                return Difference(f"the value is written in no known encoding: {_around(base, other, place)}")
            atoms.append(Slot(one.field, both))
        elif isinstance(one, Slot) or isinstance(two, Slot):
            return Difference(f"a value is in one recording only: {_around(base, other, place)}")
        elif one == two or place in volatile or _is_time(base, other, place):
            atoms.append(one)
        else:
            return Difference(f"a part depends on the value: {_around(base, other, place)}")
    return atoms


def render(template: Template, values: Sequence[Encodings]) -> bytes | None:
    """Return a text with values; None if the encodings of a slot give different bytes for its value."""
    parts: list[bytes] = []
    for piece in template.pieces:
        part = piece if isinstance(piece, bytes) else values[piece.field].agreed(piece.encodings)
        if part is None:
            return None
        parts.append(part)
    return b"".join(parts)


def _same_kind(one: bytes, other: bytes) -> bool:
    """Return True if two atoms are both words: punctuation that differs is structure, not a token."""
    return one[0] in _WORD and other[0] in _WORD


def _is_time(base: Split, other: Split, place: int) -> bool:
    """Return True if two words are a part of the time of their recordings.

    Either seconds (or milliseconds) since 1970, or hours, minutes and seconds of a clock in any time zone.
    """
    one, two = base.atoms[place], other.atoms[place]
    if not (isinstance(one, bytes) and isinstance(two, bytes) and one.isdigit() and two.isdigit()):
        return False
    passed = other.at - base.at
    for digits, unit in ((10, 1), (13, 1000)):
        if len(one) == len(two) == digits:
            times = [int(text) / unit for text in (one, two)]
            return all(
                abs(t - at) < 1.5 * 86400 for t, at in zip(times, (base.at, other.at), strict=True)
            ) and (abs(times[1] - times[0] - passed) <= _SKEW)
    clocks = [_clock_around(each, place) for each in (base, other)]
    if clocks[0] is None or clocks[1] is None:
        return False
    return abs((clocks[1] - clocks[0] - passed + 43200) % 86400 - 43200) <= _SKEW


def _clock_around(split: Split, place: int) -> int | None:
    """Return the second of the day of the clock that an atom is a part of; None if it is of none."""
    start = max(0, place - 4)
    text = b""
    offset = 0
    for number in range(start, min(len(split.atoms), place + 5)):
        atom = split.atoms[number]
        if number == place:
            offset = len(text)
        text += atom if isinstance(atom, bytes) else b"\0"
    for found in _CLOCK.finditer(text):
        if found.start() <= offset < found.end():
            return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0)
    return None


def _around(base: Split, other: Split, place: int) -> str:
    return " / ".join(
        repr(_text(each.atoms[max(0, place - _CONTEXT) : place + _CONTEXT])) for each in (base, other)
    )


def _text(atoms: Sequence[Atom]) -> str:
    texts = (
        f"{{{atom.field + 1}}}" if isinstance(atom, Slot) else atom.decode("utf-8", "replace")
        for atom in atoms
    )
    return re.sub(r"\s+", " ", "".join(texts)).strip()
