"""Look for many secrets in many bytes at once, and put their placeholders there.

Automata (Aho and Corasick) take their time to be built and next to none to run, and a crawl learns a cookie
with each page: those learned of late are looked for one by one, until they are enough for a new automaton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stillweb.matching.redaction import spellings

__all__ = ["Hit", "Search"]

_YOUNG = 64  # spellings
_ANYWHERE = 16  # characters; what is shorter counts only where no letter or digit stands beside it
_WORD = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a secret stood: offset and length in bytes, and its number in the order of `add`."""

    at: int
    length: int
    secret: int


class Search:
    """The secrets to look for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._old: list[tuple[bytes, bytes, int]] = []
        self._young: list[tuple[bytes, bytes, int]] = []
        self._automaton: Any = None

    def __contains__(self, secret: str) -> bool:
        return secret in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, secret: str, placeholder: str) -> int:
        """Add a secret; return its number, which it may have already."""
        if (number := self._numbers.get(secret)) is not None:
            return number
        number = self._numbers[secret] = len(self._numbers)
        self._young += [(form, put, number) for form, put in spellings(secret, placeholder).items()]
        if len(self._young) > _YOUNG and len(self._young) * 4 > len(self._old):
            self._age()
        return number

    def _age(self) -> None:
        from ahocorasick_rs import BytesAhoCorasick, MatchKind

        self._old += self._young
        self._young = []
        self._automaton = BytesAhoCorasick([form for form, _, _ in self._old], MatchKind.LeftmostLongest)

    def sub(self, text: bytes) -> tuple[bytes, list[Hit]]:
        """Return a text with placeholders where secrets stood, and where that is in what is returned."""
        found = sorted(self._found(text), key=lambda each: (each[0], -len(each[1][0])))
        if not found:
            return text, []
        pieces: list[bytes] = []
        hits: list[Hit] = []
        done = size = 0
        for at, (form, put, number) in found:
            if at < done:
                continue  # within one that began before it
            pieces += (text[done:at], put)
            size += at - done
            hits.append(Hit(size, len(put), number))
            size += len(put)
            done = at + len(form)
        pieces.append(text[done:])
        return b"".join(pieces), hits

    def _found(self, text: bytes) -> Iterator[tuple[int, tuple[bytes, bytes, int]]]:
        if self._automaton is not None:
            for pattern, start, _ in self._automaton.find_matches_as_indexes(text):
                if _stands_alone(text, start, self._old[pattern][0]):
                    yield start, self._old[pattern]
        for each in self._young:
            start = text.find(each[0])
            while start >= 0:
                if _stands_alone(text, start, each[0]):
                    yield start, each
                start = text.find(each[0], start + len(each[0]))


def _stands_alone(text: bytes, start: int, form: bytes) -> bool:
    if len(form) >= _ANYWHERE:
        return True
    end = start + len(form)
    return not (text[start - 1 : start] and text[start - 1] in _WORD and form[0] in _WORD) and not (
        text[end : end + 1] and text[end] in _WORD and form[-1] in _WORD
    )
