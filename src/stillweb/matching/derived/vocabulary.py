"""Words and texts of a collection's documents. Pure.

A search for a word of a document finds something. A site may refuse a name that exists. A value that is a
whole text of a document (an element, an attribute, a JSON string) is therefore not like other values.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

_WORD = re.compile(r"[^\W_]+")
# For `bytes.translate`: each ASCII character that is in no word becomes a space.
_SPACED = bytes(32 if code < 128 and not chr(code).isalnum() else code for code in range(256))
_GRAM = 4
_TEXTS = tuple(map(re.compile, (r">([^<>]{1,100})<", r'"([^"<>]{1,100})"', r"'([^'<>]{1,100})'")))
_DIGEST = 5  # bytes: with 100,000 known runs, one of ten million others has the digest of a known one


@dataclass(slots=True)
class Vocabulary:
    """Words and short texts of some documents, as digests.

    Attributes:
        words: in lower case; empty after `load`.
        runs: digests of the runs of four characters of words; of a shorter word, of the word.
        texts: digests of whole short texts, in lower case.
    """

    words: set[str] = field(default_factory=set)
    runs: set[bytes] = field(default_factory=set)
    texts: set[bytes] = field(default_factory=set)

    def add(self, document: str) -> None:
        """Add the words and texts of a document."""
        new = _words(document) - self.words
        self.words |= new
        self.runs.update(_digest(run) for word in new for run in _runs(word))
        found = {text for pattern in _TEXTS for text in pattern.findall(document)}
        self.texts.update(digest for text in found if (digest := _text_digest(text)))

    def has_word(self, word: str) -> bool:
        """Return True if a document has a word; not after `load`."""
        return word.casefold() in self.words

    def may_find(self, value: str) -> str:
        """Return a word of a value that a search may find in the documents, "" if none may be found.

        Searches find parts and inflections of words. A word is therefore safe only if its first four
        characters occur in no word of the documents.
        """
        words = [word.casefold() for word in _WORD.findall(value)]
        if not words:
            return value or " "
        return next((word for word in words if len(word) < _GRAM or _digest(word[:_GRAM]) in self.runs), "")

    def has_text(self, value: str) -> bool:
        """Return True if a value is a whole text of a document, in any case."""
        return _text_digest(value) in self.texts

    def dump(self) -> list[str]:
        return [b"".join(sorted(each)).hex() for each in (self.runs, self.texts)]

    @classmethod
    def load(cls, stored: Iterable[str]) -> Vocabulary:
        runs, texts = ({packed[at : at + _DIGEST] for at in range(0, len(packed), _DIGEST)}
                       for packed in map(bytes.fromhex, stored))  # fmt: skip
        return cls(runs=runs, texts=texts)


def _words(document: str) -> set[str]:
    """Return the words of a document in lower case."""
    # `_WORD` alone takes four times as long, and all documents of a collection are read.
    parts = set(document.encode("utf-8", "surrogatepass").translate(_SPACED).split())
    texts = [part.decode("utf-8", "surrogatepass") for part in parts]
    return {word.casefold() for text in texts for word in ([text] if text.isascii() else _WORD.findall(text))}


@lru_cache(maxsize=100_000)  # the pages of a site have most of their texts in common
def _text_digest(text: str) -> bytes:
    normal = " ".join(html.unescape(text).split()).casefold()
    return _digest(normal) if normal else b""


def _runs(word: str) -> Iterable[str]:
    return (word[at : at + _GRAM] for at in range(max(1, len(word) - _GRAM + 1)))


def _digest(run: str) -> bytes:
    return blake2b(run.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
