"""Domain of a template: the unrecorded values that look like recorded ones.

A site may treat values alike only if they look alike: it links `CamelCase`, shortens long texts and rejects
short ones. A value is therefore cut into words and the separators between them. Words must have recorded
shapes. Separators must be recorded ones, and at the start or end of a value, recorded there. Capitals must
be at the start, later, or both, as recorded: a site may write only names without capitals in title case.
Lengths of the value and of its words, and the number of words, must be within the recorded ones. So must the
value itself, in alphabetical order: a list that the site sorts shows it at the recorded place. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from stillweb.matching.values import SHAPES, fits, shape_of

Kind = str
"""Kind of a field: one of `FieldKind`."""

FieldKind = ("text", "number", "date", "email")

MADE: Kind = "made"
"""Kind of a value that the page's script makes up or computes; its domain has one shape of
`stillweb.matching.values`, or least and greatest number."""

_RUNS = re.compile(r"(\w+)", re.UNICODE)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[a-z]{2,}")
_START, _END = "^", "$"
_ENDS_OF_SPAN = 2


def shape(word: str) -> str:
    """Return a word with each run of characters of one class as one letter: "Tumblex42" is "Aa9"."""
    classes = [_class(char) for char in word]
    # Two capitals are not one: "Add" is an ordinary word, "ADD" may be an acronym that a site marks.
    return "".join(
        each
        for number, each in enumerate(classes)
        if number == 0 or each != classes[number - 1] or each == "A"
    )


def _class(char: str) -> str:
    if char.isascii():
        return "9" if char.isdigit() else "A" if char.isupper() else "a" if char.isalpha() else char
    # Scripts differ in length in UTF-8 and in the tables that sites fold characters with.
    return f"<{unicodedata.category(char)}{len(char.encode('utf-8', 'surrogatepass'))}>"


def _cut(value: str) -> tuple[list[str], list[str]]:
    """Return words and separators of a value; separators at an edge are marked."""
    parts = _RUNS.split(value)
    words, between = parts[1::2], parts[2:-1:2]
    edges = [_START + parts[0]] * bool(parts[0]) + [parts[-1] + _END] * bool(parts[-1] and words)
    return words, [*between, *edges]


def _capitals(words: Iterable[str]) -> str:
    """Return the initial of a value's first word as "A" or "a"; then "A" if a later word has a capital."""
    cased = ["A" if word[0].isupper() else "a" for word in words if word[0].isupper() or word[0].islower()]
    return "".join((*cased[:1], *sorted(set(cased[1:]))[:1]))


_ORDERS: tuple[Callable[[str], str], ...] = (str.casefold, str)
"""How sites compare texts when they sort: without regard to case, or by code point."""


@dataclass(frozen=True, slots=True)
class ValueDomain:
    """The values that recordings cover.

    Attributes:
        shapes: of words.
        separators: texts between words; at the start of the value after "^", at its end before "$".
        length, word, words: least and greatest length of values and words in characters, number of words.
        between: first and last text, without and with regard to case; () for other kinds. A sorted list shows
            a text between these at the place where it shows the recorded ones.
        low, high: least and greatest number, or first and last date in days; None for texts.
        capitals: which words of texts begin with one (`_capitals`); empty if any may, as in earlier packs.
    """

    kind: Kind
    shapes: frozenset[str]
    separators: frozenset[str]
    length: tuple[int, int]
    word: tuple[int, int]
    words: tuple[int, int]
    low: int | None = None
    high: int | None = None
    between: tuple[tuple[str, str], ...] = ()
    capitals: frozenset[str] = frozenset()

    @classmethod
    def of(cls, kind: Kind, values: Sequence[str]) -> ValueDomain:
        """Return the domain that some recorded values span."""
        if kind == MADE:
            shapes = frozenset({shape_of(list(values))})
            made = [_number("number", value) for value in values] if shapes == {"any"} else [None]
            known = [number for number in made if number is not None]
            span = (min(known), max(known)) if len(known) == len(made) else (None, None)
            return cls(kind, shapes, frozenset(), _range(map(len, values)), (0, 0), (0, 0), *span)
        cuts = [_cut(value) for value in values]
        words = [word for found, _ in cuts for word in found]
        numbers = [_number(kind, value) for value in values]
        ordered = [number for number in numbers if number is not None]
        low, high = (min(ordered), max(ordered)) if len(ordered) == len(values) else (None, None)
        orders = _ORDERS if kind in ("text", "email") else ()
        return cls(
            kind,
            frozenset(map(shape, words)),
            frozenset(each for _, found in cuts for each in found),
            _range(map(len, values)),
            (1, max(map(len, words), default=0)),
            _range(len(found) for found, _ in cuts),
            low,
            high,
            tuple(_ends(map(order, values)) for order in orders),
            frozenset(_capitals(found) for found, _ in cuts) if kind == "text" else frozenset(),
        )

    def refuses(self, value: str) -> str:
        """Return why no recording covers a value; "" if one does."""
        if self.kind == MADE:
            if self.low is not None or "any" in self.shapes:
                return self._refuses_number(value)
            known = any(fits(each, value) for each in self.shapes)
            return "" if known else "is unlike the recorded ones"
        if self.kind in ("number", "date"):
            return self._refuses_number(value)
        if why := self._refuses_whole(value):
            return why
        words, separators = _cut(value)
        if not self.length[0] <= len(value) <= self.length[1]:
            return f"has {len(value)} characters, recorded are {self.length[0]} to {self.length[1]}"
        if not self.words[0] <= len(words) <= self.words[1]:
            return f"has {len(words)} words, recorded are {self.words[0]} to {self.words[1]}"
        if why := self._refuses_words(words):
            return why
        unknown = sorted({each for each in separators if each not in self.separators})
        return f"has {unknown[0][:20]!r} between its words, and no recording has" if unknown else ""

    def _refuses_words(self, words: Sequence[str]) -> str:
        for word in words:
            if len(word) > self.word[1]:
                return f"has a word of {len(word)} characters, recorded are up to {self.word[1]}"
            if shape(word) not in self.shapes:
                return f"has a word like {word[:20]!r}, and no recording has one of that shape"
        if self.capitals and _capitals(words) not in self.capitals:
            return "has capitals at other places than the recorded values"
        return ""

    def _refuses_whole(self, value: str) -> str:
        if self.kind == "email" and not _EMAIL.fullmatch(value):
            return "is not an e-mail address"
        for order, (first, last) in zip(_ORDERS, self.between, strict=False):
            if not first <= order(value) <= last:
                return "is before or after the recorded values in alphabetical order"
        return ""

    def _refuses_number(self, value: str) -> str:
        number = _number(self.kind, value)
        if number is None or self.low is None or self.high is None:
            return f"is not a {self.kind} as recorded"
        if not self.low <= number <= self.high:
            return f"is outside of the recorded {self.kind}s"
        return ""

    def dump(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "shapes": sorted(self.shapes),
            "separators": sorted(self.separators),
            "length": list(self.length),
            "word": list(self.word),
            "words": list(self.words),
            "low": self.low,
            "high": self.high,
            "between": [list(ends) for ends in self.between],
            "capitals": sorted(self.capitals),
        }

    @classmethod
    def load(cls, stored: dict[str, Any]) -> ValueDomain:
        shapes, separators = (frozenset(stored[name]) for name in ("shapes", "separators"))
        length, word, words = (tuple(stored[name]) for name in ("length", "word", "words"))
        between = tuple((first, last) for first, last in stored.get("between", ()))
        numbers = (
            *length,
            *word,
            *words,
            *(each for each in (stored["low"], stored["high"]) if each is not None),
        )
        capitals = frozenset(stored.get("capitals", ()))
        ends = (end for ends in between for end in ends)
        texts = (stored["kind"], *shapes, *separators, *capitals, *ends)
        if not all(type(each) is int for each in numbers) or not all(isinstance(each, str) for each in texts):
            raise ValueError("a domain has a text or a number of another type")
        if any(len(span) != _ENDS_OF_SPAN for span in (length, word, words)):
            raise ValueError("a domain has a span without two ends")
        if stored["kind"] == MADE and not shapes <= SHAPES.keys():
            raise ValueError("a domain has an unknown shape")
        spans = (length, word, words, stored["low"], stored["high"], between, capitals)
        return cls(stored["kind"], shapes, separators, *spans)


def _number(kind: Kind, value: str) -> int | None:
    """Return a number, or the ordinal of a date; None if the value is not in its plain spelling."""
    if kind in ("number", MADE):
        return int(value) if re.fullmatch(r"0|[1-9][0-9]{0,14}", value, re.ASCII) else None
    if kind == "date" and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value, re.ASCII):
        try:
            return date.fromisoformat(value).toordinal()
        except ValueError:
            return None
    return None


def _ends(values: Iterable[str]) -> tuple[str, str]:
    found = sorted(values)
    return (found[0], found[-1]) if found else ("", "")


def _range(numbers: Iterable[int]) -> tuple[int, int]:
    found = list(numbers)
    return (min(found), max(found)) if found else (0, 0)
