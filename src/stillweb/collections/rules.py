"""Rules of a collection: which parts of its requests vary by themselves, and which reads are polls.

`rules.yaml` is data that people read and edit (docs/volatility.md); the defaults that hold on every site are
`volatile.yaml` beside this file. A volatile rule names one place of a request and the shape that its value
must have, both when recorded and when asked for. `Rules.aliases` gives the keys of a request without
its volatile values: a pack finds an entry under them too, and replay asks for them after the exact key.

An alias loses the values and nothing else: place, shape and every other byte stay in the key, and the
key space is not that of exact keys. Rules of origin *guessed* make a second alias in a space of their own,
which strict replay never asks for. A value that has not the rule's shape is not volatile.

Pure and sans-io: the resolver asks at every request that has no exact answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files

from stillweb.collections import rulesfile
from stillweb.collections.keys import KEY_SIZE
from stillweb.collections.parts import Leaf, Parts, Where
from stillweb.collections.rulesfile import Members
from stillweb.collections.shapes import SHAPES, fits
from stillweb.model import Request, header

__all__ = ["Alias", "Origin", "Poll", "Rule", "Rules", "default_rules"]

_IN_BODY = frozenset({Where.FORM, Where.JSON, Where.MULTIPART})
ANY_HOST = "*"
ANY_PATH = "**"


class Origin(StrEnum):
    """How a rule came to be."""

    DEFAULT = "default"  # comes with stillweb
    LEARNED = "learned"  # two recordings of the same pages disagree there
    GUESSED = "guessed"  # one recording makes it likely
    MANUAL = "manual"  # somebody wrote it


@dataclass(frozen=True, slots=True)
class Rule:
    """One place of requests whose value varies by itself.

    Attributes:
        name: of parameter, field or header; a JSON path; the number of a path segment from 1.
        shape: one of `SHAPES`.
        host: glob; `*.x.org` covers x.org too.
        path: glob; `*` is within a segment, `**` crosses them.
        method: "" for any.
        evidence: what the rule rests on, for people.
    """

    where: Where
    name: str
    shape: str
    host: str = ANY_HOST
    path: str = ANY_PATH
    method: str = ""
    origin: Origin = Origin.MANUAL
    evidence: str = ""

    def applies(self, parts: Parts) -> bool:
        """Return whether the rule is about requests like this."""
        return (
            (not self.method or self.method == parts.method)
            and bool(_host_glob(self.host).fullmatch(parts.host))
            and bool(_path_glob(self.path).fullmatch(parts.path))
        )


@dataclass(frozen=True, slots=True)
class Poll:
    """Reads that change by themselves: repeated, they take the next recording.

    Attributes:
        query: glob over the whole query; "" for any or none.
    """

    host: str
    path: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """A further key of a request.

    Attributes:
        key: 16 bytes, in a key space of its own.
        guessed: whether a guessed rule had a part in it.
        names: the places taken out, `query:_`.
    """

    key: bytes
    guessed: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold for a collection: its own, and the defaults after them.

    Attributes:
        defaults: whether stillweb's own rules hold too.
    """

    volatile: tuple[Rule, ...] = ()
    declared_polls: tuple[Poll, ...] = ()
    defaults: bool = field(default=False, kw_only=True)
    _by_place: dict[Where, dict[str, list[Rule]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for rule in self.volatile:
            self._by_place.setdefault(rule.where, {}).setdefault(rule.name, []).append(rule)

    @classmethod
    def parse(cls, text: str, *, file: str | os.PathLike[str] = "rules.yaml") -> Rules:
        """Read the text of a collection's `rules.yaml`, "" if it has none, and add the defaults.

        Raises:
            CollectionError: if it is no such text, with file and line.
        """
        loaded = rulesfile.parse(text, file)
        rules = cls(
            tuple(_rule(members, Origin.MANUAL) for members in loaded.volatile),
            tuple(_poll(members) for members in loaded.polls),
            defaults=loaded.defaults,
        )
        if not rules.defaults:
            return rules
        return replace(rules, volatile=rules.volatile + default_rules())

    @property
    def own(self) -> tuple[Rule, ...]:
        """The volatile rules without stillweb's own."""
        return tuple(rule for rule in self.volatile if rule.origin is not Origin.DEFAULT)

    def dump(self) -> str:
        """Return the rules but for stillweb's own as text, equal for equal rules, which `parse` reads."""
        lines = rulesfile.Lines(defaults=self.defaults)
        lines.section("volatile", (_rule_members(rule) for rule in sorted(self.own, key=_rank)))
        lines.section("polls", (_poll_members(poll) for poll in self.declared_polls))
        return lines.text()

    def aliases(self, request: Request) -> tuple[Alias, ...]:
        """Return the keys of a request without its volatile values; none if it has no such value.

        First the strict one, then the one that takes guessed rules in, if they have anything to say.
        """
        wheres = self._wheres(request)
        if not wheres:
            return ()
        parts = Parts.of(request)
        strict: dict[Leaf, str] = {}
        guessed: dict[Leaf, str] = {}
        for leaf in parts.leaves(frozenset(w for w in wheres if w not in _IN_BODY or self._any(w, parts))):
            rules = self._by_place[leaf.where].get(leaf.name, ())
            fit = _first_fit((rule for rule in rules if rule.applies(parts)), leaf.text)
            if fit is not None:
                (guessed if fit.origin is Origin.GUESSED else strict)[leaf] = fit.shape
        found = [_alias(parts, strict, guessed=False)] if strict else []
        if guessed:
            found.append(_alias(parts, strict | guessed, guessed=True))
        return tuple(found)

    def _wheres(self, request: Request) -> set[Where]:
        """Return where rules may have something to say, at little cost: sealing asks for every capture."""
        url, known = request.url, self._by_place
        if "://" not in url:
            return set()
        wheres = {Where.PATH} & known.keys()
        if request.raw_body:
            wheres |= _IN_BODY & known.keys()
        if Where.QUERY in known and "?" in url:
            fields = url.partition("?")[2].split("&")
            names = {text.partition("=")[0] if "=" in text else "" for text in fields}
            # Names under escapes are compared later.
            if not url.isascii() or "%" in "".join(names) or names & known[Where.QUERY].keys():
                wheres.add(Where.QUERY)
        return wheres

    def _any(self, where: Where, parts: Parts) -> bool:
        return any(rule.applies(parts) for rules in self._by_place[where].values() for rule in rules)

    def ignores(self, request: Request, name: str) -> bool:
        """Return whether a header field of a request varies by itself, by a rule that is not guessed."""
        rules = [
            rule
            for field_name, found in self._by_place.get(Where.HEADER, {}).items()
            for rule in found
            if field_name.lower() == name.lower() and rule.origin is not Origin.GUESSED
        ]
        if not rules:
            return False
        parts, value = Parts.of(request), header(request.headers, name)
        return any(fits(rule.shape, value) and rule.applies(parts) for rule in rules)

    def polls(self, url: str) -> bool:
        """Return whether reads of a URL are declared to change by themselves."""
        if not self.declared_polls:
            return False
        parts = Parts.of(Request("GET", url))
        return any(
            _host_glob(poll.host).fullmatch(parts.host)
            and _path_glob(poll.path).fullmatch(parts.path)
            and (not poll.query or _path_glob(poll.query).fullmatch(parts.query or ""))
            for poll in self.declared_polls
        )


@lru_cache(maxsize=1)
def default_rules() -> tuple[Rule, ...]:
    """Return the rules that come with stillweb."""
    file = files("stillweb.collections").joinpath("volatile.yaml")
    loaded = rulesfile.parse(file.read_text("utf-8"), "volatile.yaml")
    return tuple(_rule(members, Origin.DEFAULT) for members in loaded.volatile)


def _first_fit(rules: Iterable[Rule], text: str) -> Rule | None:
    """Return the rule that counts for a value: a guess only where nothing better is known."""
    fitting = [rule for rule in rules if fits(rule.shape, text)]
    return min(fitting, key=lambda rule: rule.origin is Origin.GUESSED, default=None)


def _alias(parts: Parts, taken: dict[Leaf, str], *, guessed: bool) -> Alias:
    person = b"guessed" if guessed else b"volatile"
    key = blake2b(parts.without(taken), digest_size=KEY_SIZE, person=person).digest()
    return Alias(key, guessed, tuple(dict.fromkeys(f"{leaf.where}:{leaf.name}" for leaf in taken)))


@lru_cache(maxsize=4096)
def _host_glob(pattern: str) -> re.Pattern[str]:
    pattern = pattern.lower()
    if pattern.startswith("*.") and "*" not in pattern[2:]:
        return re.compile(f"(?:.*\\.)?{re.escape(pattern[2:])}")
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


@lru_cache(maxsize=4096)
def _path_glob(pattern: str) -> re.Pattern[str]:
    across = (
        "[^/]*".join(re.escape(text) for text in part.split("*")) for part in re.split(r"\*\*+", pattern)
    )
    return re.compile("(?s:.*)".join(across))


def _rule(members: Members, origin: Origin) -> Rule:
    where = Where(members.one_of("where", list(Where)))
    name = members.text("name")
    if where is Where.PATH and not re.fullmatch(r"[1-9][0-9]{0,3}", name):
        raise members.error("name", "of a path rule is the number of a segment, from 1")
    known = [Origin.DEFAULT] if origin is Origin.DEFAULT else [Origin.MANUAL, Origin.LEARNED, Origin.GUESSED]
    given = members.one_of("origin", known, origin)
    return Rule(
        where,
        name,
        members.one_of("shape", list(SHAPES)),
        members.text("host", ANY_HOST),
        members.text("path", ANY_PATH),
        members.text("method", "").upper(),
        Origin(given),
        members.text("evidence", ""),
    )


def _poll(members: Members) -> Poll:
    return Poll(members.text("host"), members.text("path"), members.text("query", ""))


def _rule_members(rule: Rule) -> dict[str, str]:
    members = {"where": str(rule.where), "name": rule.name, "shape": rule.shape}
    if rule.host != ANY_HOST:
        members["host"] = rule.host
    if rule.path != ANY_PATH:
        members["path"] = rule.path
    if rule.method:
        members["method"] = rule.method
    members["origin"] = str(rule.origin)
    if rule.evidence:
        members["evidence"] = rule.evidence
    return members


def _poll_members(poll: Poll) -> dict[str, str]:
    members = {"host": poll.host, "path": poll.path}
    return members | {"query": poll.query} if poll.query else members


def _rank(rule: Rule) -> tuple[str, ...]:
    order = (Origin.MANUAL, Origin.LEARNED, Origin.GUESSED, Origin.DEFAULT)
    return (
        str(order.index(rule.origin)),
        rule.host,
        rule.path,
        rule.method,
        rule.where,
        rule.name,
        rule.shape,
    )
