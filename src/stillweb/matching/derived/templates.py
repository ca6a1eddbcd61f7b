"""Templates: one recorded text in which the values of a form are slots.

`split` cuts a recorded text into atoms: words, single other bytes, and slots where a value occurs in one of
its encodings. `agree` compares two recordings atom by atom. Their slots must be at the same places. Other
atoms must be equal, or be volatile: they differ between two recordings of the *same* value. They may also
be the time of their recordings, or ages of what the recorded visit made ("now" and "2s"). Numbers that
differ as the lengths of the values do become counts. Any other difference refuses the text: it depends on the
value in an unknown way, as a total, an excerpt or a message does. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from stillweb.matching.derived.encodings import MEASURES, NAMES, Encodings

# A signed token is one word: its parts have another length in each response.
_TOKEN = (
    rb"(?<=[\"'=\s])(?=[^\"'&;\s]*[0-9])(?=[^\"'&;\s]*[A-Z])(?=[^\"'&;\s]*[a-z])"
    rb"[A-Za-z0-9][A-Za-z0-9_.~=-]{39,}(?=[\"'&;\s])"
)
_UNITS = {
    **dict.fromkeys((b"s", b"sec", b"second"), 1),
    **dict.fromkeys((b"m", b"min", b"minute"), 60),
    **dict.fromkeys((b"h", b"hr", b"hour"), 3600),
    **dict.fromkeys((b"d", b"day"), 86400),
    **dict.fromkeys((b"w", b"week"), 7 * 86400),
    **dict.fromkeys((b"mo", b"month"), 30 * 86400),
    **dict.fromkeys((b"y", b"yr", b"year"), 365 * 86400),
}
_YOUNG = dict.fromkeys(
    (b"now", b"just now", b"right now", b"moments", b"a moment", b"a few seconds", b"less than a minute"), 60
)
_NO_UNITS = b" ago"  # of a program that leaves out units that are zero
_UNIT = rb"(?:secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?|mo|months?|yrs?|years?|[smhdwy])"
_GAP = rb"(?: |\xc2\xa0|&nbsp;)?"
# An age, as of a post, is one word: "just now" and "1 minute ago" have no equal number of words.
_AGE = (
    rb"(?<![A-Za-z0-9.#])(?:" + rb"|".join(_YOUNG) + rb"|(?=" + _NO_UNITS + rb")|(?:[0-9]{1,3}" + _GAP
    + rb"|(?:an?|one) (?=[a-z]{3}))" + _UNIT + rb"(?:,?" + _GAP + rb"(?:and )?[0-9]{1,2}" + _GAP + _UNIT
    + rb")?)(?: ago)?(?![A-Za-z0-9])"
)  # fmt: skip
_IS_AGE = re.compile(_AGE)
_AGE_PART = re.compile(rb"([0-9]{1,3}|an?|one)" + _GAP + rb"(" + _UNIT + rb")(?![A-Za-z0-9])")
_FINE = re.compile(_TOKEN + rb"|" + _AGE + rb"|[A-Za-z0-9]+|[^A-Za-z0-9]")
_KNOWN = frozenset(NAMES)
_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_CONTEXT = 24  # atoms of context in the reason of a refusal
_CLOCK = re.compile(rb"([0-2]?[0-9]):([0-5][0-9])(?::([0-5][0-9]))?")
_DIGITS = 9  # of a length
_SKEW = 90  # seconds by which a server's time of a response may differ from the recorder's
_LATE = 1  # seconds by which an age may be early
_VISIT = 2  # seconds before a write, in which its visitor logged in or opened the page


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value.

    Attributes:
        field: number of the form's field.
        encodings: names of the encodings that all recordings allow.
    """

    field: int
    encodings: frozenset[str]


@dataclass(frozen=True, slots=True)
class Count:
    """A place for a number that grows or falls with the length of a value.

    Attributes:
        formulas: field, measure, sign and summand: the number is sign times the measure plus the summand. All
            those that the recordings allow.
        low, high: least and greatest number in the recordings: beyond, a site may write another unit or sign.
        recordings: number of recordings of different values that the formulas explain.
    """

    formulas: frozenset[tuple[int, str, int, int]]
    low: int
    high: int
    recordings: int = 2

    def numbers(self, values: Sequence[Encodings]) -> set[int]:
        """Return the numbers that the formulas give."""
        return {sign * values[n].measure(name) + summand for n, name, sign, summand in self.formulas}

    def narrowed(self, values: Sequence[Encodings], number: int) -> Count | None:
        """Return the count that a further recording allows; None if no formula gives its number."""
        formulas = frozenset(
            each for each in self.formulas if each[2] * values[each[0]].measure(each[1]) + each[3] == number
        )
        low, high = min(self.low, number), max(self.high, number)
        return Count(formulas, low, high, self.recordings + 1) if formulas else None

    def text(self, values: Sequence[Encodings]) -> bytes | None:
        """Return the number; None if the formulas disagree or no recording has one like it."""
        numbers = self.numbers(values)
        number = numbers.pop()
        return b"%d" % number if not numbers and self.low <= number <= self.high else None


@dataclass(frozen=True, slots=True)
class Age:
    """A place for the age of something that the visit of each recording made, such as "2s" or "just now".

    Attributes:
        text: in the first recording.
        born: least and greatest second after the write, by all recordings.
    """

    text: bytes
    born: tuple[float, float]

    @classmethod
    def of(cls, text: bytes, since: float) -> Age | None:
        """Return the age that a text may be, `since` seconds after the write; None if it is none."""
        span = _age(text)
        born = (max(-_VISIT, since - span[1]), since - span[0] + _LATE) if span else (inf, -inf)
        return cls(text, born) if born[0] <= born[1] < inf else None

    def narrowed(self, text: bytes, since: float) -> Age | None:
        """Return the age that a further recording allows; None if it is not as old in both."""
        other = Age.of(text, since)
        born = (max(self.born[0], other.born[0]), min(self.born[1], other.born[1])) if other else (inf, -inf)
        return Age(self.text, born) if born[0] <= born[1] else None


Piece = bytes | Slot | Count
Atom = bytes | Slot | Count | Age
"""A word, an age, a single other byte, a slot, or a count."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with slots; its volatile parts are those of the first recording."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, atoms: Iterable[Atom]) -> Template:
        """Join atoms between slots."""
        pieces: list[Piece] = []
        literal: list[bytes] = []
        for each in atoms:
            atom = each.text if isinstance(each, Age) else each
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
        return tuple(piece for piece in self.pieces if isinstance(piece, Slot))

    def dump(self, sets: EncodingSets) -> list[Any]:
        """Return the template as JSON: texts in latin-1, slots as [field, number of a set]."""
        return [_dump(piece, sets) for piece in self.pieces]

    @classmethod
    def load(cls, stored: Sequence[Any], sets: Sequence[frozenset[str]]) -> Template:
        """Read what `dump` returned, with the sets that it numbered."""
        return cls(tuple(_load(piece, sets) for piece in stored))

    def check(self, fields: int) -> None:
        """Raise ValueError if a piece that was read names another field, an encoding or a measure."""
        for piece in self.pieces:
            if isinstance(piece, Slot):
                known = bool(piece.encodings) and piece.encodings <= _KNOWN
                named = [piece.field]
            elif isinstance(piece, Count):
                known = bool(piece.formulas) and all(name in MEASURES for _, name, _, _ in piece.formulas)
                named = [number for number, _, _, _ in piece.formulas]
                sizes = [size for _, _, *both in piece.formulas for size in both]
                known = known and all(type(each) is int for each in (*sizes, piece.low, piece.high))
            else:
                continue
            if not known or not all(type(number) is int and 0 <= number < fields for number in named):
                raise ValueError(f"a template has an unknown piece: {piece!r:.120}")


@dataclass(slots=True)
class EncodingSets:
    """Sets of encodings by number: the slots of a page share a few sets of hundreds of names."""

    numbers: dict[frozenset[str], int] = field(default_factory=dict)

    def number(self, names: frozenset[str]) -> int:
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
        since: seconds since the write of its visit.
    """

    atoms: list[Atom]
    at: float = 0.0
    since: float = inf
    volatile: set[int] = field(default_factory=set)
    values: Sequence[Encodings] = ()

    @property
    def counts(self) -> list[Count]:
        return [atom for atom in self.atoms if isinstance(atom, Count)]


def split(text: bytes, values: Sequence[Encodings], at: float = 0.0, since: float = inf) -> Split:
    """Cut a text into atoms; the longest encoding of a value wins at each place."""
    slots: dict[bytes, Slot] = {}
    for number, value in enumerate(values):
        for encoded, names in value.by_bytes().items():
            if encoded in text:  # one search for each is faster than a pattern of hundreds
                slots.setdefault(encoded, Slot(number, names))
    if not slots:
        return Split(_FINE.findall(text), at, since, values=values)
    pattern = b"|".join(_bounded(encoded) for encoded in sorted(slots, key=len, reverse=True))
    atoms: list[Atom] = []
    place = 0
    for match in re.finditer(pattern, text):
        atoms += _FINE.findall(text[place : match.start()])
        atoms.append(slots[match[0]])
        place = match.end()
    atoms += _FINE.findall(text[place:])
    return Split(atoms, at, since, values=values)


def _bounded(encoded: bytes) -> bytes:
    """Return the pattern of an encoding; a number is found only as a whole word: digits are everywhere."""
    pattern = re.escape(encoded)
    return rb"(?<![0-9A-Za-z])" + pattern + rb"(?![0-9A-Za-z])" if encoded.isdigit() else pattern


def volatile_between(first: Split, again: Split) -> set[int] | Difference:
    """Return the places that differ between two recordings of the same values.

    Places where only one of them has a slot are a difference: the recordings are not of one state.
    """
    if len(first.atoms) != len(again.atoms):
        return Difference("two recordings of the same value differ in more than single words")
    places = set()
    for place, (one, other) in enumerate(zip(first.atoms, again.atoms, strict=True)):
        both = isinstance(one, Slot) and isinstance(other, Slot) and one.field == other.field
        if both or (one == other) or _is_one_text(first, again, place):
            continue
        if not isinstance(one, bytes) or not isinstance(other, bytes) or not _same_kind(one, other):
            return Difference(f"two recordings of the same value differ: {_around(first, again, place)}")
        places.add(place)
    return places


def agree(base: Split, other: Split, volatile: set[int], *, counts: bool = False) -> list[Atom] | Difference:
    """Return the atoms of the first recording, its slots with the encodings that both allow.

    Args:
        base: the first recording.
        other: a recording of other values.
        volatile: places that differ between two recordings of the same values.
        counts: whether numbers may be lengths; two recordings alone do not prove it.
    """
    if why := _other_length(base, other, volatile):
        return Difference(why)
    atoms: list[Atom] = []
    for place in range(len(base.atoms)):
        atom = _common(base, other, place, may_differ=place in volatile, counts=counts)
        if isinstance(atom, str):
            return Difference(f"{atom}: {_around(base, other, place)}")
        atoms.append(atom)
    return atoms


def _common(base: Split, other: Split, place: int, *, may_differ: bool, counts: bool) -> Atom | str:
    """Return the atom that two recordings allow at a place, or why there is none."""
    one, two = base.atoms[place], other.atoms[place]
    if isinstance(one, Slot) and isinstance(two, Slot) and one.field == two.field:
        both = one.encodings & two.encodings
        return Slot(one.field, both) if both else "the value is written in no known encoding"
    if isinstance(one, Age):
        aged = one.narrowed(two, other.since) if isinstance(two, bytes) else None
        return aged or "an age depends on the value"
    if isinstance(one, Count) and isinstance(two, bytes) and _is_number(two):
        return one.narrowed(other.values, int(two)) or "a number depends on the value"
    if _is_one_text(base, other, place):
        return _literal(base, one)
    if not isinstance(one, bytes) or not isinstance(two, bytes):
        return "a value is in one recording only"
    if one == two or may_differ or _is_time(base, other, place):
        return one
    age = Age.of(one, base.since)
    differs = (age and age.narrowed(two, other.since)) or (counts and _count(base, other, one, two))
    return differs or "a part depends on the value"


def _other_length(base: Split, other: Split, volatile: set[int]) -> str:
    """Return where two recordings differ in their number of atoms, "" if they do not."""
    if len(base.atoms) == len(other.atoms):
        return ""
    place = next(
        (n for n, (a, b) in enumerate(zip(base.atoms, other.atoms, strict=False))
         if a != b and n not in volatile and (isinstance(a, bytes) or isinstance(b, bytes))
         and not isinstance(a, Count | Age)),
        min(len(base.atoms), len(other.atoms)),
    )  # fmt: skip
    return f"more than the value differs: {_around(base, other, place)}"


def _is_one_text(first: Split, second: Split, place: int) -> bool:
    """Return True for equal bytes that are a value in one recording only, by coincidence."""
    one, two = first.atoms[place], second.atoms[place]
    if isinstance(one, Slot) == isinstance(two, Slot):
        return False
    text = _literal(first, one)
    return bool(text) and text == _literal(second, two)


def _literal(split: Split, atom: Atom) -> bytes:
    """Return the bytes that an atom stands for in its recording; empty for a count."""
    if isinstance(atom, Slot):
        return split.values[atom.field].agreed(atom.encodings) or b""
    return atom if isinstance(atom, bytes) else b""


def render(template: Template, values: Sequence[Encodings]) -> bytes | None:
    """Return a text with values; None if the encodings of a slot give different bytes for its value."""
    parts: list[bytes] = []
    for piece in template.pieces:
        part = _rendered(piece, values)
        if part is None:
            return None
        parts.append(part)
    return b"".join(parts)


def _rendered(piece: Piece, values: Sequence[Encodings]) -> bytes | None:
    if isinstance(piece, Slot):
        return values[piece.field].agreed(piece.encodings)
    return piece.text(values) if isinstance(piece, Count) else piece


def _dump(piece: Piece, sets: EncodingSets) -> Any:
    if isinstance(piece, Slot):
        return [piece.field, sets.number(piece.encodings)]
    if isinstance(piece, Count):
        return {"formulas": sorted(map(list, piece.formulas)), "low": piece.low, "high": piece.high}
    return piece.decode("latin-1")


def _load(stored: Any, sets: Sequence[frozenset[str]]) -> Piece:
    if isinstance(stored, str):
        return stored.encode("latin-1")
    if isinstance(stored, dict):
        formulas = frozenset((n, name, sign, summand) for n, name, sign, summand in stored["formulas"])
        return Count(formulas, stored["low"], stored["high"])
    return Slot(stored[0], sets[stored[1]])


def _is_number(atom: bytes) -> bool:
    """Return True for a number without leading zeros that may be a length."""
    return atom.isdigit() and len(atom) <= _DIGITS and (atom[0] != ord("0") or atom == b"0")


def _count(base: Split, other: Split, one: bytes, two: bytes) -> Count | None:
    """Return the count that two numbers of recordings of different values may be; None if there is none."""
    if not (_is_number(one) and _is_number(two)):
        return None
    numbers = int(one), int(two)
    found = set()
    for number, (mine, theirs) in enumerate(zip(base.values, other.values, strict=True)):
        for name in MEASURES:
            lengths = mine.measure(name), theirs.measure(name)
            for sign in (1, -1):
                if lengths[0] != lengths[1] and numbers[1] - numbers[0] == sign * (lengths[1] - lengths[0]):
                    found.add((number, name, sign, numbers[0] - sign * lengths[0]))
    return Count(frozenset(found), min(numbers), max(numbers)) if found else None


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


def _age(text: bytes) -> tuple[float, float] | None:
    """Return least and greatest seconds of an age; sites round in different ways."""
    if not _IS_AGE.fullmatch(text):
        return None
    if (below := _YOUNG.get(text.removesuffix(b" ago"))) is not None:
        return 0, below
    if text == _NO_UNITS:
        return 0, 60
    stated, unit = 0.0, 0.0
    for number, name in _AGE_PART.findall(text):
        unit = _UNITS.get(name) or _UNITS[name.removesuffix(b"s")]
        stated += (int(number) if number.isdigit() else 1) * unit
    return max(0, stated - unit / 2), stated + unit


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
        atom.decode("utf-8", "replace")
        if isinstance(atom, bytes)
        else f"{{{atom.field + 1}}}"
        if isinstance(atom, Slot)
        else "{length}"
        for atom in (each.text if isinstance(each, Age) else each for each in atoms)
    )
    return re.sub(r"\s+", " ", "".join(texts)).strip()
