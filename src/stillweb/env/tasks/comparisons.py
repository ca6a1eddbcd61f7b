"""Comparison functions of the evaluators. Pure.

Two benchmarks define their own comparisons, and tasks must score as in their harnesses: WARC-Bench
(`text_equal`, `json_equal`, `unescaped`) and WebArena (`evaluation_harness/evaluators.py`: `clean`,
`includes`, `holds_url`). Task files bring regular expressions, which RE2 runs in time linear in the text: a
pattern cannot hang a server.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlparse

import re2

from stillweb.matching.values import linear_regex
from stillweb.text import well_formed

# --- task files ------------------------------------------------------------------------------------

# Messages of RE2 for the constructs that need backtracking: look-around, back-references, conditions.
_BACKTRACKING = ("invalid perl operator", "invalid escape sequence", "invalid named capture")


@lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> Any:
    """Compile a regular expression of a task file with RE2.

    Raises:
        ValueError: if RE2 does not accept it.
    """
    try:
        return linear_regex(well_formed(pattern))
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args else "unknown error"
        hint = ""
        if reason.startswith(_BACKTRACKING):
            hint = (
                "; RE2 has no look-around, back-references or \\Z (https://github.com/google/re2/wiki/Syntax)"
            )
        raise ValueError(f"no regular expression: {reason}{hint}") from error


def matches_regex(pattern: str, text: str) -> bool:
    """Return True if the whole text matches."""
    return compile_regex(pattern).fullmatch(well_formed(text)) is not None


def matches_wildcard(pattern: str, text: str) -> bool:
    """Return True if the whole text matches a pattern with `*` and `?`; brackets are literal."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def canonical_json(value: Any, *, unordered: bool = False) -> str:
    """Return a text that is equal for equal JSON: 1 equals 1.0, but not true."""
    if isinstance(value, dict):
        items = [f"{key!r}:{canonical_json(value[key], unordered=unordered)}" for key in sorted(value)]
        return "{" + ",".join(items) + "}"
    if isinstance(value, list | tuple):
        items = [canonical_json(item, unordered=unordered) for item in value]
        return "[" + ",".join(sorted(items) if unordered else items) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value)


# --- WARC-Bench ------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescaped(text: str) -> str:
    """Return a text with its backslash escapes decoded."""

    def decode(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(decode, text)


def text_equal(answer: str, expected: str) -> bool:
    """Return True if two texts are equal, except for surrounding white space."""
    return answer.strip() == expected.strip()


def json_equal(answer: str, expected: str) -> bool:
    """Return True if two JSON texts are equal; values in them are compared as texts, lists as multisets."""
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    goal = json.loads(expected)
    if type(given) is not type(goal):
        return False
    if isinstance(goal, dict):
        return given.keys() == goal.keys() and all(
            text_equal(str(given[key]), str(goal[key])) for key in goal
        )
    if isinstance(goal, list):
        return Counter(map(str, given)) == Counter(map(str, goal))
    return bool(given == goal)


# --- WebArena --------------------------------------------------------------------------------------

# A word with its inner punctuation, or one sign. For a single letter or digit this splits as NLTK's
# word_tokenize does, which WebArena's harness uses.
_TOKEN = re.compile(r"\w+(?:[.:/'-]\w+|,\d+)*|[^\w\s]")


def clean(answer: str) -> str:
    """Return an answer in lower case, without surrounding white space and one pair of quotes."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            answer = answer[1:-1]
            break
    return answer.lower()


def includes(reference: str, text: str, *, alone: bool = False) -> bool:
    """Return True if a text includes a reference, both cleaned.

    A single letter or digit that is the only reference (`alone`) must be a word of its own.
    """
    wanted, given = clean(reference), clean(text)
    if alone and len(wanted) == 1 and not wanted.isspace():
        return wanted in _TOKEN.findall(given)
    return wanted in given


def holds_url(url: str, references: Sequence[str]) -> bool:
    """Return True if a URL contains host and path of one reference and the parameters of all.

    For each parameter name in any reference, the URL must have one of the values that the references give it.
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
