"""Which names go by secrets, and which values look drawn; pure, from the reviewed file `secrets.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

__all__ = ["JWT", "Names", "strong", "strong_password"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
JWT = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,8192}\.eyJ[A-Za-z0-9_-]{2,16384}\.([A-Za-z0-9_-]{16,2048})"
)
_NO_TOKEN = re.compile(r"[\s<>(){}\[\]]|://|[^\x21-\x7e]")
_FILE = re.compile(r".*\.(?:js|mjs|css|html?|php|json|png|jpe?g|gif|svg|webp|woff2?|ico|map)", re.IGNORECASE)
_UNIFORM = re.compile(r"[0-9.:,TZ+-]*")  # numbers, dates, versions
_SHORT = 16  # from here on a value of letters alone may be drawn


@dataclass(frozen=True, slots=True)
class Names:
    """The names that go by secrets: those of the file, more, and exceptions; any case.

    Attributes:
        redact, spare: as `SecretsOptions` has them, in lower case.
    """

    redact: frozenset[str] = frozenset()
    spare: frozenset[str] = frozenset()

    def kind(self, name: str) -> str:
        """Return `password` or `token` for the name of a secret, else ""."""
        lower = name.lower()
        if lower in self.spare:
            return ""
        if lower in self.redact:
            return "password"
        return _kind(name)

    def password(self, name: str) -> bool:
        """Whether what a request has under a name is secret whatever it looks like."""
        return self.kind(name) == "password"


@cache
def _table() -> Any:
    return yaml.safe_load(files("stillweb.record").joinpath("secrets.yaml").read_text("utf-8"))


@cache
def _kind(name: str) -> str:
    words = [word.lower() for word in _WORD.findall(name[:128])]
    run = "".join(words)
    table = _table()
    if set(words) & set(table["never"]["words"]):
        return ""
    for kind in ("password", "token"):
        rule = table[kind]
        if (
            set(words) & set(rule["words"])
            or run in rule.get("whole", ())
            or run.startswith(tuple(rule.get("starts", ("\0",))))
            or run.endswith(tuple(rule["ends"]))
        ):
            return kind
    return ""


def strong(value: str) -> bool:
    """Whether a value looks drawn at random, so that no other text will be like it by chance."""
    if len(value) < 8 or len(value) > 8192 or _NO_TOKEN.search(value):
        return False
    if _UNIFORM.fullmatch(value) or _FILE.fullmatch(value):
        return False
    if len(set(value)) < (6 if len(value) < _SHORT else 8):
        return False
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if len(value) < _SHORT:
        return kinds >= 2 and _turns(value) >= 3
    # A name written in words (`sign-in-with-email`, `OrderHistoryPanel`) has few turns between its kinds.
    return kinds >= 2 and _turns(value) >= 4


def _turns(value: str) -> int:
    """Return how often letters and digits take turns, and capitals come within words."""
    return len(re.findall(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])|[a-z](?=[A-Z])|[A-Z](?=[A-Z][a-z])", value))


def strong_password(value: str) -> bool:
    """Whether a password is unlike any word, so that it may be looked for in all that is written."""
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]", "[^A-Za-z0-9]"))
    return len(value) >= 8 and kinds >= 2 and len(set(value)) >= 6
