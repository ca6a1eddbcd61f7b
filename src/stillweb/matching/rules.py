"""Rules of a collection: which parts of its requests are volatile, and which reads are polls.

Users read and edit `rules.yaml` (docs/reference/rules.md); the defaults for every site are in `volatile.yaml`
beside this file. A volatile rule names one location in a request and the shape that its value must have, both
when recorded and when requested. `Rules.aliases` returns the keys of a request without its volatile values: a
pack finds an entry under them too, and replay looks them up after the exact key.

An alias loses the values and nothing else: location, shape and every other byte stay in the key, in a key
space separate from exact keys. A value with shape `set` loses the order of its elements only. Rules of
origin *guessed* make a second alias in a third key space, which strict replay never uses. A value without the
rule's shape is not volatile. Times with shape `clock` make an alias of their own (`pagetimes`).

Pure: the resolver calls this for every request without an exact match.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b, sha256
from importlib.resources import files

import yaml

from stillweb.errors import CollectionError
from stillweb.matching.keys import KEY_SIZE
from stillweb.matching.pagetimes import Instant, TimedText, distances, microseconds
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.values import CLOCK, COUNTER, SET, SHAPES, elements, fits, linear_regex
from stillweb.model import Request, header

VERSION = "1"
_HINT = "docs/reference/rules.md describes the format of a rule"
_MAX_TEXT = 1 << 20  # characters; YAML takes 100 times as much memory
_MAX_GLOB = 1000  # characters
_BARE = re.compile(r"[A-Za-z0-9_/.][A-Za-z0-9_/.-]*")
_SECTIONS = ("version", "defaults", "clock", "volatile", "polls")
_KNOWN = {
    "volatile": frozenset({"where", "name", "shape", "host", "path", "method", "origin", "evidence"}),
    "polls": frozenset({"host", "path", "query"}),
}


@dataclass(frozen=True, slots=True)
class _RulesLine:
    file: str | os.PathLike[str]
    line: int

    def error(self, what: str) -> CollectionError:
        return CollectionError(f"line {self.line}: {what}", path=self.file, hint=_HINT)


@dataclass(frozen=True, slots=True)
class RuleMembers:
    """The members of one rule, as texts; errors name the line."""

    values: Mapping[str, str]
    place: _RulesLine

    def error(self, name: str, what: str) -> CollectionError:
        """Return an error that names the line of the rule and one of its members."""
        return self.place.error(f"{name} {what}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a member.

        Raises:
            CollectionError: if it is missing and has no default.
        """
        value = self.values.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        return value

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return a member whose value must be one of some words."""
        value = self.text(name, default)
        if value not in choices:
            raise self.error(name, f"is {value!r}, not one of {', '.join(choices)}")
        return value


@dataclass(frozen=True, slots=True)
class RulesFile:
    """The content of a file, not yet interpreted."""

    volatile: tuple[RuleMembers, ...] = ()
    polls: tuple[RuleMembers, ...] = ()
    defaults: bool = True
    clock: datetime | None = None


def parse(text: str, file: str | os.PathLike[str]) -> RulesFile:
    """Parse the text of a rules file; an empty one has no rules.

    Raises:
        CollectionError: if it has another format, with file and line.
    """
    if len(text) > _MAX_TEXT:
        raise _RulesLine(file, 1).error(f"{len(text)} characters of rules, {_MAX_TEXT} at most")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _RulesLine(file, line).error(f"not YAML ({error.problem})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise _RulesLine(file, 1).error(f"not YAML ({error})") from None
    if root is None:
        return RulesFile()
    top = _mapping(root, file, frozenset(_SECTIONS))
    version = _scalar(top["version"], file) if "version" in top else "none"
    if version != VERSION:
        raise _RulesLine(file, 1).error(f"version is {version}, this stillweb reads {VERSION}")
    defaults = _scalar(top["defaults"], file) if "defaults" in top else "true"
    if defaults not in ("true", "false"):
        raise _at(top["defaults"], file).error(f"defaults is {defaults!r}, not true or false")
    volatile, polls = (_rules(top.get(name), file, _KNOWN[name]) for name in ("volatile", "polls"))
    clock = _date(top["clock"], file) if "clock" in top else None
    return RulesFile(volatile, polls, defaults == "true", clock)


def _rules(
    node: yaml.Node | None, file: str | os.PathLike[str], known: frozenset[str]
) -> tuple[RuleMembers, ...]:
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null")):
        return ()
    if not isinstance(node, yaml.SequenceNode):
        raise _at(node, file).error("not a list of rules")
    found = []
    for item in node.value:
        members = {name: _scalar(value, file) for name, value in _mapping(item, file, known).items()}
        found.append(RuleMembers(members, _at(item, file)))
    return tuple(found)


def _mapping(node: yaml.Node, file: str | os.PathLike[str], known: frozenset[str]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _at(node, file).error("not a mapping of names to values")
    members: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _scalar(key, file)
        if name not in known or name in members:
            what = "occurs twice" if name in members else f"is not one of {', '.join(sorted(known))}"
            raise _at(key, file).error(f"{name!r} {what}")
        members[name] = value
    return members


def _scalar(node: yaml.Node, file: str | os.PathLike[str]) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _at(node, file).error("a list or mapping where a text is due")
    return str(node.value)


def _date(node: yaml.Node, file: str | os.PathLike[str]) -> datetime:
    text = _scalar(node, file)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise _at(node, file).error(f"clock is {text!r}, not a time such as 2026-11-26T14:30:01Z") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _at(node: yaml.Node, file: str | os.PathLike[str]) -> _RulesLine:
    return _RulesLine(file, node.start_mark.line + 1)


def _rule_line(members: Mapping[str, str]) -> str:
    return "  - {" + ", ".join(f"{key}: {_spelled(value)}" for key, value in members.items()) + "}"


def _spelled(text: str) -> str:
    if _BARE.fullmatch(text):
        return text
    # YAML reads JSON's escapes, but not its surrogate pairs as one character.
    return '"' + "".join(char if ord(char) > 0xFFFF else json.dumps(char)[1:-1] for char in text) + '"'


_IN_BODY = frozenset({Where.FORM, Where.JSON, Where.MULTIPART})
ANY_HOST = "*"
ANY_PATH = "**"


class RuleOrigin(StrEnum):
    """Origin of a rule."""

    DEFAULT = "default"  # comes with stillweb
    LEARNED = "learned"  # two recordings of the same pages disagree there
    GUESSED = "guessed"  # likely, from one recording
    MANUAL = "manual"  # written by a user


@dataclass(frozen=True, slots=True)
class Rule:
    """One location in requests whose value is volatile.

    Attributes:
        name: of parameter, field or header; a JSON path; the number of a path segment from 1.
        shape: one of `SHAPES`.
        host: glob; `*.x.org` covers x.org too.
        path: glob; `*` is within a segment, `**` crosses segments.
        method: "" for any.
        evidence: what the rule is based on, for people.
    """

    where: Where
    name: str
    shape: str
    host: str = ANY_HOST
    path: str = ANY_PATH
    method: str = ""
    origin: RuleOrigin = RuleOrigin.MANUAL
    evidence: str = ""

    def applies(self, parts: Parts) -> bool:
        """Return True if method, host and path of a request match."""
        return (
            (not self.method or self.method == parts.method)
            and _host_glob(self.host)(parts.host)
            and _path_glob(self.path)(parts.path)
        )


@dataclass(frozen=True, slots=True)
class Poll:
    """Reads whose response changes on its own: repeated, they take the next capture.

    Attributes:
        query: glob over the whole query; "" for any or none.
    """

    host: str
    path: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class KeyAlias:
    """A further key of a request.

    Attributes:
        key: 16 bytes, in a key space of its own.
        guessed: whether a guessed rule contributed.
        names: the removed locations, as in `query:_`.
    """

    key: bytes
    guessed: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockAlias:
    """A further key of a request that holds the page's time.

    Attributes:
        key: 16 bytes, in a key space of its own.
        now: the time of the request that is the page's present.
        names: the locations of its times.
    """

    key: bytes
    now: Instant
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a collection: its own, then the defaults.

    Attributes:
        defaults: whether stillweb's default rules apply too.
        clock: start of the page clock of the recording, for times of shape `clock`.
    """

    volatile: tuple[Rule, ...] = ()
    declared_polls: tuple[Poll, ...] = ()
    defaults: bool = field(default=False, kw_only=True)
    clock: datetime | None = field(default=None, kw_only=True)
    _by_place: dict[Where, dict[str, list[Rule]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _shapes: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for rule in self.volatile:
            self._shapes.add(rule.shape)
            self._by_place.setdefault(rule.where, {}).setdefault(rule.name, []).append(rule)

    @classmethod
    def parse(cls, text: str, *, file: str | os.PathLike[str] = "rules.yaml") -> Rules:
        """Parse a collection's `rules.yaml`, "" if it has none, and add the defaults.

        Raises:
            CollectionError: if the text has another format, with file and line.
        """
        loaded = parse(text, file)
        rules = cls(
            tuple(_rule(members, RuleOrigin.MANUAL) for members in loaded.volatile),
            tuple(_poll(members) for members in loaded.polls),
            defaults=loaded.defaults,
            clock=loaded.clock,
        )
        for members, rule in zip(loaded.volatile, rules.volatile, strict=True):
            if rule.shape == CLOCK and (rules.clock is None or rule.where is Where.HEADER):
                why = "is not for header fields" if rules.clock else "needs `clock:`, the recording's time"
                raise members.error("shape", f"{CLOCK} {why}")
            if rule.shape == COUNTER and rule.where is not Where.QUERY:
                raise members.error("shape", f"{COUNTER} is for the query only")
        if not rules.defaults:
            return rules
        return replace(rules, volatile=rules.volatile + default_rules())

    @property
    def own(self) -> tuple[Rule, ...]:
        """The volatile rules without the defaults."""
        return tuple(rule for rule in self.volatile if rule.origin is not RuleOrigin.DEFAULT)

    def dump(self) -> str:
        """Return the rules without the defaults as text that `parse` reads; equal rules give equal text."""
        lines = [f"version: {VERSION}", *([] if self.defaults else ["defaults: false"])]
        lines += [f"clock: {self.clock.isoformat()}"] if self.clock else []
        volatile = [_rule_line(_rule_members(rule)) for rule in sorted(self.own, key=_rank)]
        polls = [_rule_line(_poll_members(poll)) for poll in self.declared_polls]
        lines += ["volatile:", *volatile] if volatile else []
        lines += ["polls:", *polls] if polls else []
        return "\n".join(lines) + "\n"

    def aliases(self, request: Request) -> tuple[KeyAlias, ...]:
        """Return the keys of a request without its volatile values; none if it has no such value.

        The strict alias comes first, then the alias that includes guessed rules, if any apply.
        """
        parts, fitting = self._fitting(request)
        strict: dict[Leaf, str] = {}
        guessed: dict[Leaf, str] = {}
        for leaf, rule in fitting:
            if rule.shape != CLOCK:
                taken = guessed if rule.origin is RuleOrigin.GUESSED else strict
                taken[leaf] = _form(rule, leaf, {**strict, **guessed})
        found = [_alias(parts, strict, guessed=False)] if strict and parts else []
        if guessed and parts:
            found.append(_alias(parts, strict | guessed, guessed=True))
        return tuple(found)

    def dropped(self, request: Request) -> frozenset[str]:
        """Return the places of a request ("query:_") that strict matching leaves out."""
        return frozenset(name for alias in self.aliases(request) if not alias.guessed for name in alias.names)

    def counters(self, request: Request) -> tuple[str, ...]:
        """Return the parameters of a request whose number its answer repeats."""
        if COUNTER not in self._shapes:
            return ()
        return tuple(leaf.name for leaf, rule in self._fitting(request)[1] if rule.shape == COUNTER)

    def clock_alias(self, request: Request) -> ClockAlias | None:
        """Return the key of a request by the distances of its times from the page's present.

        Returns:
            None if it has no such time, or none near the time of the recording.
        """
        if self.clock is None:
            return None
        parts, fitting = self._fitting(request)
        texts = {
            leaf: text
            for leaf, rule in fitting
            if rule.shape == CLOCK and (text := TimedText.of(leaf.text)) is not None
        }
        times = {(leaf, at): time for leaf, text in texts.items() for at, time in enumerate(text.times)}
        inside = {key for key in times if not texts[key[0]].is_whole}
        found = distances(times, microseconds(self.clock), inside)
        if found is None or parts is None:
            return None
        now, by_time = found
        written = {
            leaf: text.written(by_time[leaf, at] for at in range(len(text.times)))
            for leaf, text in texts.items()
        }
        # With its place, since `without` sorts the forms.
        forms = {leaf: f"{form} {leaf.where} {json.dumps(leaf.at)}" for leaf, form in written.items()}
        others: dict[Leaf, str] = {}
        for leaf, rule in fitting:
            if rule.shape != CLOCK and rule.origin is not RuleOrigin.GUESSED:
                others[leaf] = _form(rule, leaf, others)
        key = blake2b(parts.without(others | forms), digest_size=KEY_SIZE, person=CLOCK.encode()).digest()
        return ClockAlias(key, now, _names(forms))

    def _fitting(self, request: Request) -> tuple[Parts | None, list[tuple[Leaf, Rule]]]:
        """Return the parts of a request, and its values to which a rule applies."""
        wheres = self._wheres(request)
        if not wheres:
            return None, []
        parts = Parts.of(request)
        found = []
        for leaf in parts.leaves(frozenset(w for w in wheres if w not in _IN_BODY or self._any(w, parts))):
            rules = self._by_place[leaf.where].get(leaf.name, ())
            fit = _first_fit((rule for rule in rules if rule.applies(parts)), leaf.text)
            if fit is not None:
                found.append((leaf, fit))
        return parts, found

    def _wheres(self, request: Request) -> set[Where]:
        """Return the locations that rules may concern. Cheap: sealing calls it for every capture."""
        url, known = request.url, self._by_place
        if "://" not in url:
            return set()
        wheres = {Where.PATH} & known.keys()
        if request.raw_body:
            wheres |= _IN_BODY & known.keys()
        if Where.QUERY in known and "?" in url:
            fields = url.partition("?")[2].split("&")
            names = {text.partition("=")[0] if "=" in text else "" for text in fields}
            # Names with escapes are compared later.
            if not url.isascii() or "%" in "".join(names) or names & known[Where.QUERY].keys():
                wheres.add(Where.QUERY)
        return wheres

    def _any(self, where: Where, parts: Parts) -> bool:
        return any(rule.applies(parts) for rules in self._by_place[where].values() for rule in rules)

    def ignores(self, request: Request, name: str) -> bool:
        """Return True if a rule that is not guessed declares a header field of a request volatile."""
        rules = [
            rule
            for field_name, found in self._by_place.get(Where.HEADER, {}).items()
            for rule in found
            if field_name.lower() == name.lower() and rule.origin is not RuleOrigin.GUESSED
        ]
        if not rules:
            return False
        parts, value = Parts.of(request), header(request.headers, name)
        return any(fits(rule.shape, value) and rule.applies(parts) for rule in rules)

    def polls(self, url: str) -> bool:
        """Return True if reads of a URL are declared as polls."""
        if not self.declared_polls:
            return False
        parts = Parts.of(Request("GET", url))
        return any(
            _host_glob(poll.host)(parts.host)
            and _path_glob(poll.path)(parts.path)
            and (not poll.query or _path_glob(poll.query)(parts.query or ""))
            for poll in self.declared_polls
        )


@lru_cache(maxsize=1)
def default_rules() -> tuple[Rule, ...]:
    """Return the rules that come with stillweb."""
    file = files("stillweb.matching").joinpath("volatile.yaml")
    loaded = parse(file.read_text("utf-8"), "volatile.yaml")
    return tuple(_rule(members, RuleOrigin.DEFAULT) for members in loaded.volatile)


@lru_cache(maxsize=1)
def only_defaults() -> Rules:
    """Return the rules of a collection without a `rules.yaml`."""
    return Rules.parse("")


def default_rules_digest() -> str:
    """Return the sha256 (hex) that a pack's manifest states for the default rules.

    Packs of format 2 hash the `repr` that the rules had when the format was made. The text is spelled out
    here, so that a class can be renamed and environment ids stay the same.
    """
    text = ", ".join(
        f"Rule(where=<Where.{rule.where.name}: {rule.where.value!r}>, name={rule.name!r}, "
        f"shape={rule.shape!r}, host={rule.host!r}, path={rule.path!r}, method={rule.method!r}, "
        f"origin=<Origin.{rule.origin.name}: {rule.origin.value!r}>, evidence={rule.evidence!r})"
        for rule in default_rules()
    )
    return sha256(f"({text})".encode()).hexdigest()


def _first_fit(rules: Iterable[Rule], text: str) -> Rule | None:
    """Return the rule that applies to a value: a guessed rule only if no other fits."""
    fitting = [rule for rule in rules if fits(rule.shape, text)]
    return min(fitting, key=lambda rule: rule.origin is RuleOrigin.GUESSED, default=None)


def _alias(parts: Parts, taken: dict[Leaf, str], *, guessed: bool) -> KeyAlias:
    person = b"guessed" if guessed else b"volatile"
    key = blake2b(parts.without(taken), digest_size=KEY_SIZE, person=person).digest()
    return KeyAlias(key, guessed, _names(taken))


def _form(rule: Rule, leaf: Leaf, others: Mapping[Leaf, str]) -> str:
    """Return what stays of a value: of a second set also its place, so that two sets are not exchanged."""
    if rule.shape != SET:
        return rule.shape
    place = f" {leaf.where} {leaf.at}" if any(form.startswith(SET) for form in others.values()) else ""
    return f"{SET}{place} {json.dumps(elements(leaf.text))}"


def _names(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{leaf.where}:{leaf.name}" for leaf in leaves))


Matcher = Callable[[str], bool]


@lru_cache(maxsize=4096)
def _host_glob(pattern: str) -> Matcher:
    pattern = pattern.lower()
    if pattern.startswith("*.") and "*" not in pattern[2:]:
        return _matcher(rf"(?:.*\.)?{re.escape(pattern[2:])}")
    return _matcher(".*".join(map(re.escape, pattern.split("*"))))


@lru_cache(maxsize=4096)
def _path_glob(pattern: str) -> Matcher:
    if pattern == ANY_PATH:
        return lambda _: True
    across = ("[^/]*".join(map(re.escape, part.split("*"))) for part in re.split(r"\*\*+", pattern))
    return _matcher("(?s:.*)".join(across))


def _matcher(regex: str) -> Matcher:
    """Return a function that compares whole texts in linear time: globs come from archives, too."""
    compiled = linear_regex(regex.encode("utf-8", "surrogatepass"))  # URLs may hold lone surrogates
    return lambda text: compiled.fullmatch(text.encode("utf-8", "surrogatepass")) is not None


def _glob(members: RuleMembers, name: str, default: str | None = None) -> str:
    pattern = members.text(name, default)
    if len(pattern) > _MAX_GLOB:
        raise members.error(name, f"has {len(pattern)} characters, {_MAX_GLOB} at most")
    return pattern


def _rule(members: RuleMembers, origin: RuleOrigin) -> Rule:
    where = Where(members.one_of("where", list(Where)))
    name = members.text("name")
    if where is Where.PATH and not re.fullmatch(r"[1-9][0-9]{0,3}", name):
        raise members.error("name", "of a path rule is the number of a segment, from 1")
    known = (
        [RuleOrigin.DEFAULT]
        if origin is RuleOrigin.DEFAULT
        else [RuleOrigin.MANUAL, RuleOrigin.LEARNED, RuleOrigin.GUESSED]
    )
    given = members.one_of("origin", known, origin)
    return Rule(
        where,
        name,
        members.one_of("shape", list(SHAPES)),
        _glob(members, "host", ANY_HOST),
        _glob(members, "path", ANY_PATH),
        members.text("method", "").upper(),
        RuleOrigin(given),
        members.text("evidence", ""),
    )


def _poll(members: RuleMembers) -> Poll:
    return Poll(_glob(members, "host"), _glob(members, "path"), _glob(members, "query", ""))


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
    order = (RuleOrigin.MANUAL, RuleOrigin.LEARNED, RuleOrigin.GUESSED, RuleOrigin.DEFAULT)
    return (
        str(order.index(rule.origin)),
        rule.host,
        rule.path,
        rule.method,
        rule.where,
        rule.name,
        rule.shape,
    )
