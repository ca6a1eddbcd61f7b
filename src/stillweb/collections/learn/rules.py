"""Learn volatile request parts, from two recordings of the same pages or within one.

A wrong rule causes wrong 200s, so the comparison is narrow and leaves much unlearned:

- a request of one recording that the other holds exactly is no evidence. Others are paired if they
  have the same status and media type and differ only in generated values: a time of the visit, a random
  number or a random name (`values`). Numbers of few digits and words never count;
- a location is volatile only if the recordings share no value there: a session's token is equal in all
  requests of one recording and never in both; a digest of a file's content is shared;
- values that a response gave to the page, or that may name a thing, are examined further (`guards`);
- times are volatile only if all of a request are the present of their visit. The times of a range ("the last
  hour") are compared by their distances (`pagetimes`), since another range has another answer.

A parameter may be a set: `modules=a|b|c`, whose elements have another order at another visit. Two requests
that differ only in that order prove it if their bodies consist of the same bytes. These may have another
order, as the parts of a bundle have. One pair of bodies that differ otherwise is a counterexample. An alias
then contains the sorted elements instead of the value.

Within one recording, such pairs, and values that are evidence alone, make rules of origin *guessed*. Equal
recordings give equal rules. (docs/decisions/0012-learned-volatility.md)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.learn.guards import (
    GIVEN,
    Observed,
    PlaceSighting,
    RequestPlace,
    Sights,
    by_likeness,
    given_values,
    objection,
    observe,
)
from stillweb.collections.learn.pagetimes import clock_rules
from stillweb.files import write_atomically
from stillweb.http.codec import decoded_body
from stillweb.matching.parts import Leaf, Where, is_csrf
from stillweb.matching.rules import ANY_PATH, Rule, RuleOrigin, Rules
from stillweb.matching.values import SET, ValueKind, elements, fits, kind_of, shape_of
from stillweb.model import Capture, Headers
from stillweb.urls import from_timestamp, wire_url

# Host, path, the other fields of the query with their positions, the parameter, its elements.
_Request = tuple[str, str, tuple[str, ...], str, tuple[str, ...]]


def set_rules(first: Collection, second: Collection) -> list[Rule]:
    """Return the rules for query parameters that two recordings prove to be sets."""
    ones, others = _requests(first), _requests(second)
    proofs: Counter[tuple[str, str, str]] = Counter()
    refuted: set[tuple[str, str, str]] = set()
    for request in ones.keys() & others.keys():
        host, path, _, name, _ = request
        for value, one in ones[request].items():
            for other_value, other in others[request].items():
                if value == other_value or (host, path, name) in refuted:
                    continue
                if _body(first, one) == _body(second, other):
                    proofs[host, path, name] += 1
                else:
                    refuted.add((host, path, name))
    return [
        Rule(
            Where.QUERY, name, SET, host, path, "GET", RuleOrigin.LEARNED,
            f"two recordings: {count} pairs differ in the order of the elements",
        )
        for (host, path, name), count in sorted(proofs.items())
        if (host, path, name) not in refuted
    ]  # fmt: skip


def _requests(collection: Collection) -> dict[_Request, dict[str, Capture]]:
    found: dict[_Request, dict[str, Capture]] = defaultdict(dict)
    for capture in collection.captures():
        if capture.method == "GET" and "?" in capture.url:
            for request, value in _sets(capture.url):
                found[request].setdefault(value, capture)
    return found


def _sets(url: str) -> Iterator[tuple[_Request, str]]:
    parts = urlsplit(wire_url(url))
    fields = parts.query.split("&")
    for number, field in enumerate(fields):
        name, _, raw = field.partition("=")
        value = unquote(raw)
        if fits(SET, value):
            others = tuple("" if at == number else each for at, each in enumerate(fields))
            yield (parts.hostname or "", parts.path, others, unquote(name), elements(value)), value


def _body(collection: Collection, capture: Capture) -> tuple[int, Counter[int] | None]:
    """Return the status of a capture, and how often each byte occurs in its decoded body."""
    response = collection.read_capture(capture).response
    body = decoded_body(response)
    return response.status, None if body is None else Counter(body)


# Fields of browsers and HTTP, cookies (replay sets the recorded ones), and credentials.
_COMMON = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length"),
        *(
            "content-type",
            "cookie",
            "date",
            "host",
            "if-match",
            "if-modified-since",
            "if-none-match",
            "range",
            "referer",
        ),
        *("te", "upgrade-insecure-requests", "user-agent"),
    }
)

_Twins = Iterable[tuple[Observed, Observed]]


def header_rules(twins: _Twins) -> list[Rule]:
    """Return rules for the request fields of a host whose values never agree.

    Args:
        twins: pairs of the same request in two recordings.
    """
    sights: dict[tuple[str, str], list[tuple[str, str] | None]] = defaultdict(list)
    for one, other in twins:
        theirs = {name.lower(): value for name, value in other.request.headers}
        for name, value in one.request.headers:
            twin = theirs.get(name.lower())
            if name.lower() not in _COMMON and twin is not None:
                varies = value != twin and kind_of(value, one.near) and kind_of(twin, other.near)
                sights[one.parts.host, name.lower()].append((value, twin) if varies else None)
    rules = []
    for (host, name), found in sorted(sights.items()):
        pairs = [pair for pair in found if pair is not None]
        if len(pairs) < len(found) or {one for one, _ in pairs} & {other for _, other in pairs}:
            continue
        shape = shape_of([text for pair in pairs for text in pair])
        evidence = f"two recordings: {len(pairs)} of {len(pairs)} pairs differ"
        rules.append(Rule(Where.HEADER, name, shape, host, origin=RuleOrigin.LEARNED, evidence=evidence))
    return rules


def differing_fields(twins: _Twins) -> tuple[tuple[str, int], ...]:
    """Return the names of response fields that differ between twins, and how often."""
    differing: Counter[str] = Counter()
    for one, other in twins:
        heads = _by_name(one.response_headers), _by_name(other.response_headers)
        differing.update(
            name for name in heads[0].keys() & heads[1].keys() if heads[0][name] != heads[1][name]
        )
    return tuple(sorted(differing.items()))


def _by_name(headers: Headers) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = defaultdict(list)
    for name, value in headers:
        fields[name.lower()].append(value)
    return fields


_HOUR = 3600.0
_UNKNOWN = "19700101"  # start of a page clock that no manifest states: no time is near it
ANOTHER_TIME = "a time that is not the page's present: another one is another range"
_MOST = 400  # of similar requests; larger groups are paired in order instead of by least difference
_GENERAL = 3  # paths of a host with the same rule make it a rule of the host

_Values = dict[tuple[Where, str, str], dict[str, set[str]]]


@dataclass(frozen=True, slots=True)
class RejectedRule:
    """A location that varied without becoming a rule, and why."""

    where: Where
    name: str
    host: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class LearnResult:
    """Result of a comparison.

    Attributes:
        rules: sorted; of origin learned or guessed.
        rejected: locations that varied and were not learned.
        requests: number compared, in each recording; for a single recording the second is 0.
        unmatched: number of them without an exact counterpart.
        pairs: of requests that differ in possibly volatile values only.
        response_headers: names of response fields that differ between exact counterparts, and how often.
        clock: start of the page clock of the recording, for rules of shape `clock`.
    """

    rules: tuple[Rule, ...]
    rejected: tuple[RejectedRule, ...] = ()
    requests: tuple[int, int] = (0, 0)
    unmatched: tuple[int, int] = (0, 0)
    pairs: int = 0
    response_headers: tuple[tuple[str, int], ...] = ()
    clock: datetime | None = None


def learn(first: Collection, second: Collection) -> LearnResult:
    """Compare two recordings of the same pages.

    Raises:
        CollectionError: if index, manifest or rules of one cannot be read.
    """
    ones, others = observe(first), observe(second)
    keys = {each.key for each in ones}, {each.key for each in others}
    left = [each for each in ones if each.key not in keys[1]]
    right = [each for each in others if each.key not in keys[0]]
    pairs = list(_pairs(left, right))
    sights = _sights(pairs, _known(first))
    values = _values(ones), _values(others)
    given = given_values(ones, sights, 0) | given_values(others, sights, 1)
    alike = by_likeness(ones)

    def refuse(place: RequestPlace, found: list[PlaceSighting]) -> str:
        texts = [text for sight in found for text in sight.texts]
        common = _shared(values, place, shape_of(texts))
        if common.keys() & set(texts) or any(place.path in paths for paths in common.values()):
            return "both recordings share a value of it"
        return objection(place, found, given, alike)

    rules, rejected = _decide(sights, refuse, RuleOrigin.LEARNED, lambda r: not _shared(values, r, r.shape))
    twins = _counterparts(ones, others)
    starts = [from_timestamp(each.manifest().recorded_at or _UNKNOWN) for each in (first, second)]
    ranges, others_times = _range_rules(pairs, starts[0], starts[1] - starts[0], _known(first))
    return LearnResult(
        rules=tuple(rules + ranges + header_rules(twins) + set_rules(first, second)),
        rejected=tuple(rejected + others_times),
        clock=starts[0] if ranges else None,
        requests=(len(ones), len(others)),
        unmatched=(len(left), len(right)),
        pairs=len(pairs),
        response_headers=differing_fields(twins),
    )


def learn_within(collection: Collection) -> LearnResult:
    """Guess rules from one recording: from repeated requests, and values near their capture's time.

    Raises:
        CollectionError: if index, manifest or rules cannot be read.
    """
    first_of = {each.key: each for each in reversed(observe(collection, _HOUR))}
    seen = list(first_of.values())[::-1]
    known = _known(collection)
    alike = by_likeness(seen)
    pairs = [pair for group in alike.values() for pair in pairwise(group)]
    sights = _sights(pairs, known)
    for place, sight in _by_own_shape(seen, known):
        sights.setdefault(place, []).append(sight)
    given = given_values(seen, sights, 0) | given_values(seen, sights, 1)
    values = _values(seen)

    def refuse(place: RequestPlace, found: list[PlaceSighting]) -> str:
        at = (place.where, place.name, place.host)
        texts = {text for sight in found for text in sight.texts}
        if texts & given:
            return GIVEN
        if any(len(values[at][text]) > 1 for text in texts) and not _all_times(found):
            return "requests that differ otherwise share a value of it"
        return objection(place, found, given, alike)

    rules, rejected = _decide(sights, refuse, RuleOrigin.GUESSED, lambda rule: True)
    return LearnResult(tuple(rules), tuple(rejected), (len(seen), 0), (len(seen), 0), len(pairs))


def merge(rules: Rules, learned: LearnResult) -> Rules:
    """Add learned rules to rules; they replace older ones of the same location, but no manual ones."""
    new = {_identity(rule): rule for rule in learned.rules}
    merged = []
    for rule in rules.own:
        fresh = new.get(_identity(rule))
        if fresh is None:
            merged.append(rule)
        elif rule.origin is RuleOrigin.MANUAL or (rule.origin, fresh.origin) == (
            RuleOrigin.LEARNED,
            RuleOrigin.GUESSED,
        ):
            merged.append(rule)
            del new[_identity(rule)]
    defaults = tuple(rule for rule in rules.volatile if rule.origin is RuleOrigin.DEFAULT)
    return replace(rules, volatile=(*merged, *new.values(), *defaults), clock=learned.clock or rules.clock)


def read_rules(collection: Collection) -> Rules:
    """Return the rules of a collection.

    Raises:
        CollectionError: if its `rules.yaml` is invalid, with the line.
    """
    path = collection.path / "rules.yaml"
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        text = ""
    return Rules.parse(text, file=path)


def write_rules(collection: Collection, rules: Rules) -> None:
    """Write the rules of a collection atomically; comments in the file are lost."""
    write_atomically(collection.path / "rules.yaml", rules.dump().encode())


# Pairing


def _pairs(left: list[Observed], right: list[Observed]) -> Iterator[tuple[Observed, Observed]]:
    """Yield similar requests of the two recordings, each once, with the least difference."""
    waiting = by_likeness(right)
    for one in left:
        candidates = waiting[one.likeness]
        if not candidates:
            continue
        few = candidates[:_MOST]
        best = min(range(len(few)), key=lambda number: (_distance(one, few[number]), number))
        yield one, candidates.pop(best)


def _distance(one: Observed, other: Observed) -> int:
    return sum(a.text != b.text for a, b in zip(one.leaves, other.leaves, strict=True))


def _sights(pairs: Iterable[tuple[Observed, Observed]], known: Rules) -> Sights:
    sights: Sights = {}
    for one, other in pairs:
        rows = zip(one.leaves, other.leaves, one.kinds, other.kinds, strict=True)
        differing = [row for row in rows if row[0].text != row[1].text]
        path = one.path_glob(row[0] for row in differing)
        taken = _taken(known, one) & _taken(known, other)
        is_range = _is_range(one, other)
        for leaf, twin, kind, twin_kind in differing:
            if is_range and kind is ValueKind.TIME:
                continue
            if kind and twin_kind and f"{leaf.where}:{leaf.name}" not in taken:
                sight = PlaceSighting(one, other, (leaf.text, twin.text), (kind, twin_kind))
                sights.setdefault(_place(one, leaf, path), []).append(sight)
    return sights


def _is_range(one: Observed, other: Observed) -> bool:
    """Return True if two requests differ in times, and not all of these are the present of their visit."""
    return any(
        kind is ValueKind.TIME and leaf.text != twin.text
        and not (one.holds_present(leaf) and other.holds_present(twin))
        for leaf, twin, kind in zip(one.leaves, other.leaves, one.kinds, strict=True)
    )  # fmt: skip


def _range_rules(
    pairs: Iterable[tuple[Observed, Observed]], start: datetime, later: timedelta, known: Rules
) -> tuple[list[Rule], list[RejectedRule]]:
    """Return the rules for times of ranges, and the places of others that are not compared."""
    ranges = [(one, other) for one, other in pairs if _is_range(one, other)]
    walks = [one.request for one, _ in ranges], [other.request for _, other in ranges]
    rules = clock_rules([walks], start, later, known)

    def has_rule(seen: Observed, leaf: Leaf) -> bool:
        return any(
            (rule.where, rule.name) == (leaf.where, leaf.name) and rule.applies(seen.parts) for rule in rules
        )

    others = {
        RejectedRule(leaf.where, leaf.name, one.parts.host, one.parts.path, ANOTHER_TIME)
        for one, other in ranges
        for leaf, twin, kind in zip(one.leaves, other.leaves, one.kinds, strict=True)
        if kind is ValueKind.TIME and leaf.text != twin.text and not has_rule(one, leaf)
    }
    return rules, sorted(others, key=repr)


def _by_own_shape(seen: Iterable[Observed], known: Rules) -> Iterator[tuple[RequestPlace, PlaceSighting]]:
    """Yield values that are evidence alone: the time of their visit, a random number, a UUID."""
    for each in seen:
        taken = _taken(known, each)
        for leaf, kind in zip(each.leaves, each.kinds, strict=True):
            own = kind is ValueKind.DRAW or (kind and fits("uuid", leaf.text))
            own = own or (kind is ValueKind.TIME and each.holds_present(leaf))
            if kind and own and f"{leaf.where}:{leaf.name}" not in taken:
                place = _place(each, leaf, each.path_glob([leaf]))
                yield place, PlaceSighting(each, each, (leaf.text, leaf.text), (kind, kind))


def _known(collection: Collection) -> Rules:
    """Return the rules that `learn` does not find itself."""
    rules = read_rules(collection)
    settled = (RuleOrigin.DEFAULT, RuleOrigin.MANUAL)
    return replace(rules, volatile=tuple(rule for rule in rules.volatile if rule.origin in settled))


def _taken(known: Rules, seen: Observed) -> frozenset[str]:
    """Return the locations that defaults and manual rules cover."""
    return frozenset(name for alias in known.aliases(seen.request) for name in alias.names)


def _place(seen: Observed, leaf: Leaf, path: str) -> RequestPlace:
    return RequestPlace(leaf.where, leaf.name, seen.parts.host, path, seen.parts.method)


# Judgement


def _decide(
    sights: Sights,
    refuse: Callable[[RequestPlace, list[PlaceSighting]], str],
    origin: RuleOrigin,
    everywhere: Callable[[Rule], bool],
) -> tuple[list[Rule], list[RejectedRule]]:
    """Return new rules and rejected locations.

    Args:
        sights: pairs in which values differ.
        refuse: returns why a location is not volatile.
        origin: of the rules.
        everywhere: whether to ignore other paths of the host as evidence against a rule of all its paths.
    """
    found: dict[Rule, list[PlaceSighting]] = {}
    rejected = []
    for place in sorted(sights, key=repr):
        if why := refuse(place, sights[place]):
            rejected.append(RejectedRule(place.where, place.name, place.host, place.path, why))
            continue
        shape = shape_of([text for sight in sights[place] for text in sight.texts])
        rule = Rule(place.where, place.name, shape, place.host, place.path, place.method, origin)
        found[rule] = sights[place]
    against = {(each.where, each.name, each.host) for each in rejected}
    general = _general(found, lambda r: (r.where, r.name, r.host) not in against and everywhere(r))
    return [replace(rule, evidence=_evidence(general[rule], origin)) for rule in general], rejected


def _all_times(sights: list[PlaceSighting]) -> bool:
    return all(kind is ValueKind.TIME for sight in sights for kind in sight.kinds)


def _evidence(sights: list[PlaceSighting], origin: RuleOrigin) -> str:
    source = "two recordings" if origin is RuleOrigin.LEARNED else "one recording"
    pairs = sum(sight.one is not sight.other for sight in sights)
    count = f"{pairs} pairs differ" if pairs else f"{len(sights)} values by their shape"
    kinds = ", ".join(sorted({kind for sight in sights for kind in sight.kinds}))
    paths = len({sight.one.parts.path for sight in sights})
    return f"{source}: {count} on {paths} paths; {kinds}"


def _values(seen: Iterable[Observed]) -> _Values:
    """Return, for each location of a host, its values and the paths of each."""
    values: _Values = defaultdict(lambda: defaultdict(set))
    for each in seen:
        for leaf in each.leaves:
            path = each.path_glob([leaf])
            values[leaf.where, leaf.name, each.parts.host][leaf.text].add(path)
    return values


def _shared(values: tuple[_Values, _Values], at: RequestPlace | Rule, shape: str) -> dict[str, set[str]]:
    """Return the values of a shape that both recordings share in a location of a host, and their paths."""
    one, other = (each[at.where, at.name, at.host] for each in values)
    return {value: one[value] | other[value] for value in one.keys() & other.keys() if fits(shape, value)}


def _general(
    found: dict[Rule, list[PlaceSighting]], everywhere: Callable[[Rule], bool]
) -> dict[Rule, list[PlaceSighting]]:
    """Replace equal rules of several paths by a rule of the host, unless it could name a thing elsewhere."""
    groups: dict[Rule, list[Rule]] = defaultdict(list)
    for rule in found:
        groups[rule if rule.where is Where.PATH else replace(rule, path=ANY_PATH)].append(rule)
    general: dict[Rule, list[PlaceSighting]] = {}
    for whole, group in groups.items():
        sights = [sight for rule in group for sight in found[rule]]
        named = any(kind is ValueKind.RANDOM for sight in sights for kind in sight.kinds)
        csrf = is_csrf(whole.where, whole.name, whole.method)
        if len(group) >= _GENERAL and (csrf or not named) and everywhere(whole):
            general[whole] = sights
        else:
            general |= {rule: found[rule] for rule in group}
    return general


def _identity(rule: Rule) -> tuple[str, ...]:
    return rule.where, rule.name, rule.host, rule.path, rule.method, rule.shape


def _counterparts(ones: list[Observed], others: list[Observed]) -> list[tuple[Observed, Observed]]:
    """Pair the n-th capture of each key in one recording with the n-th in the other."""
    by_key: dict[bytes, list[Observed]] = defaultdict(list)
    for each in reversed(others):
        by_key[each.key].append(each)
    return [(one, by_key[one.key].pop()) for one in ones if by_key[one.key]]
