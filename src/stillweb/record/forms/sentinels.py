"""Values that occur nowhere in a collection, to recognise in what a site answers. Pure.

The first values are short. The first begins with "Aa" and the second with "zy", so that a list that the site
sorts shows them at different places. The further ones differ from them in everything that a site may compute:
length, number and kind of words, first letter. Each further set shows more of what people write: capitals,
sentences, short before long, quotes, markup, lines, letters beyond ASCII, a number first. One kind in each: a
site that treats one of them in its own way loses that set alone. No value occurs in another field's. A
second number or date is greater than all values of the first: sites check ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date, timedelta
from itertools import count
from typing import Any

from stillweb import clock
from stillweb.matching.derived.branch import overlap
from stillweb.matching.derived.domain import Kind

NEEDED = 2
"""Sets of values without which nothing is proved."""
NO_VALUES = "its fields are too short for values that do not occur in one another"
_CONSONANTS, _VOWELS = "bdfgklmnprtvz", "aeiou"
_ATTEMPTS = 200  # to find a word that begins as wanted
_NUMBERS = (
    (17, 23, 14, 19, 29, 11, 31, 8, 27, 5, 37, 3, 13),
    (46, 58, 64, 85, 54, 65, 48, 56, 84, 49, 68, 94, 95),
    (200, 770, 272, 720, 227, 702, 277, 707, 220, 700, 722, 207, 270),
)
"""Of the first, second and third number of a form."""
_DATES = (
    "2031-05-27",
    "2033-11-28",
    "2030-02-09",
    "2033-03-18",
    "2032-08-21",
    "2034-01-30",
    "2035-12-02",
    "2036-03-13",
    "2029-07-05",
    "2031-09-14",
    "2032-04-26",
    "2034-10-15",
    "2030-06-24",
)
_NEXT_DATE = timedelta(days=3714)  # from the date of one field to that of the next: all are later

_MAILS = (
    "{0}@{1}.example",
    "{1}{2}7@{3}.{4}.example",
    "{0}@{3:.3}.test",
    "{7}{1}@{9}.example",
    "{3}-{4}.{6}_{7}@{8}.{5}.example",
    "{5}9@{6}.example",
    "{7}+{8}@{9}.example",
    "{2}41.{7}8@{4}.example",
    "{4}.{2}@{6}.example",
    "{3}.{5}@{8}.example",
    "{9}@{2}.example",
    "{1}.{2}_41@{5}.example",
    "{5}.{9}@{4}.example",
)
_LINES = "{7} {2} {3} {4} {5}, {1} {6}.\r\n{8} {9} {1} {2} {3} {4} {5} {6} 2026 {8} {9} {0}.\r\n\r\n{1} {4}."
LEVELS: tuple[tuple[str, int], ...] = (
    ("{0}", 0),
    ("{1}{2}", 0),
    ("{2} {1} 41 {3}", 0),
    ("{12} {4} {3}", 0),
    ("{18}, {2}. {0} - {1}!", 0),
    ("{9}; {1}: I {3} {4}?", 0),
    ("{3} {4}, {2} {1}. {0} {5} - {6} {7}! {1} {2}? {8} {4} 9, {9}.", 0),
    ("{4} ({1}): {2}'s {3}; {0}-{5}", 0),
    ('{5} & {2} "{3}" {4} / {1} #{6} 50% {7} + {8} = {0}', 0),
    ("{6} < {2} > {3}; {4} {1}", 0),
    (_LINES, 40),
    ("{4}\u00e9 \u2013 \u00e4{2}, {3}\u00fc{0}\u2019s {1}", 0),
    ("1 {5} {2}, {8}.", 0),
)
"""Patterns of texts, each with the length that a field must admit.

"{0}" is short; it and "{10}" to "{19}", the words "{0}" to "{9}" again, are capitalised. Almost each pattern
begins with another word, and words begin with different letters, so that an initial shows.
"""
_LONG = 6  # the level of a long text in one line
_TITLE = "{6} {3} {2}"


def sentinels(
    kinds: Sequence[tuple[Kind, int]],
    known: Collection[str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, ...]]:
    """Yield sets of values, one value for each field.

    The last set of several texts has a short one in the first field, and long ones in the others: a site may
    shorten titles and no texts.

    Args:
        kinds: kind of each field, and its longest value in characters; 0 for no limit.
        known: words that occur in the collection, in lower case.
        check: called for each field; it raises to end the search for words.
    """
    rng = clock.seeded("sentinels", 0)
    joined = "\n".join(known)  # one search is faster than one for each word
    taken: set[str] = set()
    words = []
    for number in range(len(kinds)):
        check()
        mine = [_word(rng, 3, joined, taken, [], "aa")]
        for n in range(9):  # other lengths in each field: a page may hold the length of one
            mine.append(_word(rng, 5 + n + number % 2, joined, taken, mine, "" if n else "zy"))
        words.append(mine)
    names = [kind for kind, _ in kinds]
    order = [names[:number].count(kind) for number, kind in enumerate(names)]  # among fields of its kind
    for level, (pattern, needed) in enumerate(LEVELS):
        texts = []
        for (kind, longest), mine, nth in zip(kinds, words, order, strict=True):
            text = _shortened(_value(kind, level, pattern, mine, nth), kind, longest)
            if kind == "text" and needed and longest and longest < needed * 10:
                text = _value(kind, _LONG, LEVELS[_LONG][0], mine)[:longest].rsplit(" ", 1)[0]
            texts.append(text)
        if not overlap(texts):
            yield tuple(texts)
    if (plain := [number for number, (kind, _) in enumerate(kinds) if kind == "text"])[1:]:
        patterns = dict.fromkeys(plain, LEVELS[_LONG][0]) | {plain[0]: _TITLE}
        texts = [
            _shortened(
                _value(kind, _LONG, patterns.get(number, ""), words[number], order[number]), kind, longest
            )
            for number, (kind, longest) in enumerate(kinds)
        ]
        if not overlap(texts):
            yield tuple(texts)


def _shortened(text: str, kind: Kind, longest: int) -> str:
    return text[:longest].rsplit(" ", 1)[0] if kind == "text" and longest and len(text) > longest else text


def _value(kind: Kind, level: int, pattern: str, words: Sequence[str], nth: int = 0) -> str:
    if kind == "number":
        return str(_numbers(level, nth + 1)[nth])
    if kind == "date":
        return (date.fromisoformat(_DATES[level]) + nth * _NEXT_DATE).isoformat()
    if kind == "email":
        return _MAILS[level].format(*words)
    capitalised = [word.capitalize() for word in words]
    return pattern.format(capitalised[0], *words[1:], *capitalised)


def _numbers(level: int, many: int) -> list[int]:
    """Return numbers of which none occurs in another one."""
    found = [table[level] for table in _NUMBERS[:many]]
    for nth in range(len(_NUMBERS), many):
        start = 1000 * nth + 37 * level
        found.append(next(n for n in count(start) if not any(str(each) in str(n) for each in found)))
    return found


def _word(rng: Any, length: int, known: str, taken: set[str], beside: Sequence[str], start: str) -> str:
    """Return a word that is in no known word, in which no other one is, and with an initial of its own.

    It begins with `start` and has the given length, unless the other words leave none: few words of three
    letters begin alike, and a form may have more fields than there are such words.
    """
    initials = {other[0] for other in beside}
    for attempt in count():
        begin = start if attempt < _ATTEMPTS else ""
        longer = length + max(0, attempt // _ATTEMPTS - 1)
        word = "".join(rng.choice(_VOWELS if n % 2 else _CONSONANTS) for n in range(longer))
        if longer == 3:
            word = rng.choice("qxzv") + rng.choice("yuo") + rng.choice("qxvzk")
        if begin:
            word = begin + (rng.choice("qxvzkjw") if longer == 3 else word[len(begin) :])
        clash = word[0] in initials or any(word in other or other in word for other in taken)
        if not clash and word not in known:
            taken.add(word)
            return word
    raise AssertionError("unreachable")
