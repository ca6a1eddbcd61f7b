"""How answers, texts and addresses are compared: pure functions, one for each idea of sameness.

Those of WARC-Bench and of WebArena are kept as their own harnesses have them, oddities included, since a
reward that differs from theirs compares with nobody's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlparse

__all__ = ["clean", "holds_url", "includes", "json_equal", "text_equal", "unescaped"]

# --- WARC-Bench ------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescaped(text: str) -> str:
    """Return a text with its backslash escapes undone."""

    def plain(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(plain, text)


def text_equal(answer: str, expected: str) -> bool:
    """Return whether two texts are equal but for white space around them."""
    return answer.strip() == expected.strip()


def json_equal(answer: str, expected: str) -> bool:
    """Return whether an answer, as JSON, is what is expected: values compared as texts."""
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    goal = json.loads(expected)
    if type(given) is not type(goal):
        return False
    if isinstance(goal, dict):
        return given.keys() == goal.keys() and all(_texts_equal(given[key], goal[key]) for key in goal)
    if isinstance(goal, list):
        return Counter(map(str, given)) == Counter(map(str, goal))
    return bool(given == goal)


def _texts_equal(given: Any, goal: Any) -> bool:
    return str(given).strip() == str(goal).strip()


# --- WebArena --------------------------------------------------------------------------------------

# A word with what may stand within it, or one sign: as far as a single letter or digit is concerned,
# this cuts as NLTK's word_tokenize does, which its harness uses.
_TOKEN = re.compile(r"\w+(?:[.:/'-]\w+|,\d+)*|[^\w\s]")


def clean(answer: str) -> str:
    """Return an answer without white space and a pair of quotes around it, in lower case."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            answer = answer[1:-1]
            break
    return answer.lower()


def includes(reference: str, text: str, *, alone: bool = False) -> bool:
    """Return whether a text includes a reference, both cleaned.

    A single letter or digit that is all that is asked for (`alone`) must be a word of its own.
    """
    wanted, given = clean(reference), clean(text)
    if alone and len(wanted) == 1 and not wanted.isspace():
        return wanted in _TOKEN.findall(given)
    return wanted in given


def holds_url(url: str, references: Sequence[str]) -> bool:
    """Return whether an address holds host and path of a reference, and the parameters of all.

    Of each parameter that any reference has, one of the values that the references give it must be there.
    """
    given_base, given_query = _base_and_query(url)
    wanted: dict[str, set[str]] = {}
    bases = []
    for reference in references:
        base, query = _base_and_query(reference)
        bases.append(base)
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    return any(base in given_base for base in bases) and all(
        any(value in given_query.get(name, []) for value in values) for name, values in wanted.items()
    )


def _base_and_query(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlparse(url.rstrip("/"))
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)
