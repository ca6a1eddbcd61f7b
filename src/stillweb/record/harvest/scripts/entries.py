"""Requests for entries of lists that no visitor chose. Pure.

An application in one page requests a list as JSON, and then the details of the entry that a visitor chose.
No HTML links to those of the others. A request names its entry by a segment of its path, a parameter, or a
value of its JSON body. If a recorded list holds that value among others, the others are entries as well.

Short values (1, open) are in many lists by chance. Two requests for different entries of the same list show
that they come from it. One is enough for a long identifier, and for a parameter or path that is named after
the list (`experiment_id=5` or `/experiments/5` for `experiments`). No number of examples shows it of short
numbers in a parameter of another name: pages, sizes of pages and limits (`page_size=15`) are identifiers of
entries by chance. A request may repeat several values of its entry: a name and a version, or a run
and the job that it belongs to. Then those of another entry take their places together.

JSON also has URLs, such as those of downloads, whole or from the root of their host. If one was requested,
the others that have its name (`tarball`) are requested too. Images are requested in any case: the view that
reads the JSON shows them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from stillweb.record.harvest.misses import SWITCHED, UNIQUE, PlainRequest, path_form
from stillweb.record.harvest.scripts.bundles import destination_of

T = TypeVar("T")

_DIRECTIONS = SWITCHED.keys() - {"true", "false"}
_PROOFS = 2  # entries that show that their values come from a list
_IDENTIFIER = re.compile(r"(?!.*//)[\w.~:@+/ -]{1,80}")
_URL = re.compile(r"(?:https?://[^/\s]+)?/(?!/)\S{0,400}$")
_SEPARATOR = re.compile(r"[\W_]+")
_KEYS = frozenset(
    ("id", "key", "name", "slug", "uid", "uuid", "code", "value", "type", "statu", "state", "title", "")
)
_IDS = ("id", "ids", "key", "pk", "no", "nr", "number")  # ends of names of parameters that name an entry
_SHORT = re.compile(r"[0-9]{1,4}")
_MOST_OF_A_LIST = 200  # entries; an agent sees those at its start
_EFFORT = 20_000  # requests for entries that are made; one with a long body counts as several
_LONG = 50  # bytes of a body
_NAMED = 30  # texts of one request that may name an entry; the state of a whole view is in some bodies

ListSource = tuple[str, str]
"""A list: its request, with {} for what varies, and the names that lead to the value in the answer."""

_Row = dict[str, str]


@dataclass(slots=True)
class ListedValues:
    """The values that entries of recorded lists have.

    Attributes:
        lists: values of each list, in the order of their recording, with the whole entry.
        sources: lists that hold a value.
        urls: URLs of all answers, made absolute, by the last name that leads to them.
    """

    lists: dict[ListSource, dict[str, _Row]] = field(default_factory=lambda: defaultdict(dict))
    sources: dict[str, set[ListSource]] = field(default_factory=lambda: defaultdict(set))
    urls: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    _varying: dict[ListSource, tuple[int, frozenset[str]]] = field(default_factory=dict)

    def add(self, url: str, answer: Any) -> None:
        """Take the JSON answer to a request."""
        parts = urlsplit(url)
        path = path_form(parts.path, "{}")
        for names, text, entry in _texts_of("", answer, None):
            if _URL.match(text):
                self.urls[names.rpartition(".")[2]][urljoin(url, text)] = None
            source = (f"{parts.netloc}{path}", names)
            if (
                entry is not None
                and _IDENTIFIER.fullmatch(text)
                and len(self.lists[source]) < _MOST_OF_A_LIST
            ):
                self.lists[source].setdefault(text, entry)
                self.sources[text].add(source)

    def varying(self, source: ListSource) -> frozenset[str]:
        """Return the names under which entries of a list have different values, such as no common type."""
        entries = self.lists[source]
        size, names = self._varying.get(source, (0, frozenset()))
        if size != len(entries):
            seen: dict[str, str] = {}
            rows = [row.items() for row in entries.values()]
            names = frozenset(
                name for row in rows for name, text in row if seen.setdefault(name, text) != text
            )
            names |= {name for name in seen if any(name not in row for row in entries.values())}
            self._varying[source] = len(entries), names
        return names

    def linked(self, requested: AbstractSet[str]) -> Iterator[str]:
        """Yield the URLs that have a name under which another URL was requested."""
        for found in self.urls.values():
            if not requested.isdisjoint(found):
                yield from (url for url in found if url not in requested)

    def images(self, requested: AbstractSet[str]) -> Iterator[str]:
        """Yield the URLs of images that were not requested."""
        for url in dict.fromkeys(url for found in self.urls.values() for url in found):
            if destination_of(url) == "image" and url not in requested:
                yield url


def _texts_of(path: str, content: Any, entry: _Row | None) -> Iterator[tuple[str, str, _Row | None]]:
    """Yield texts and integers with the names that lead to them, and the entry of a list that holds them."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts_of(f"{path}.{key}", value, entry)
    elif isinstance(content, list):
        for value in content:
            yield from _texts_of(path, value, dict(_row_of(path, value)))
    elif isinstance(content, str | int) and content is not True and content is not False:
        yield path, str(content), entry


def _row_of(path: str, content: Any) -> Iterator[tuple[str, str]]:
    """Yield the values of an entry, without those of lists in it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _row_of(f"{path}.{key}", value)
    elif isinstance(content, str | int) and content is not True and content is not False:
        yield path, str(content)


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of a request that may name an entry: segments of its path, and values of its parameters.

    Several segments are one text if a listed value holds slashes.

    Attributes:
        names: the name of each text: that of its parameter, or the segment before it.
    """

    request: PlainRequest
    segments: tuple[str, ...]
    values: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, request: PlainRequest, listed: AbstractSet[str]) -> _Texts:
        left = urlsplit(request.url).path.split("/")
        segments: list[str] = []
        while left:
            taken = (count for count in (3, 2) if unquote("/".join(left[:count])) in listed)
            count = next(taken, 1)
            segments.append("/".join(left[:count]))
            left = left[count:]
        pairs = _parameters(request)
        names = (*map(unquote, ["", *segments[:-1]]), *(name for name, _ in pairs))
        return cls(request, tuple(segments), tuple(value for _, value in pairs), names)

    @property
    def all(self) -> list[str]:
        """The texts in order, decoded."""
        return [*map(unquote, self.segments), *self.values]

    def with_values(self, new: Mapping[str, str]) -> PlainRequest:
        """Return the request with other texts wherever it has the given ones."""
        parts = urlsplit(self.request.url)
        path = "/".join(
            quote(new[old], safe="~:@+" if "%2f" in raw.lower() else "~:@+/") if old in new else raw
            for raw, old in zip(self.segments, map(unquote, self.segments), strict=True)
        )
        moved = replace(self.request, url=urlunsplit(parts._replace(path=path)))
        old = _parameters(moved)
        pairs = [(name, new.get(value, value)) for name, value in old]
        return moved if pairs == old else moved.with_pairs(pairs)


def _parameters(request: PlainRequest) -> list[tuple[str, str]]:
    return request.pairs if request.body is not None or "?" in request.url else []


@dataclass(slots=True)
class _Kind:
    """Requests that differ in the value at one place; `values` has an example of each.

    Attributes:
        rest: places that have other values of the same entry, with their names in it.
    """

    at: int
    rest: tuple[tuple[int, str], ...] = ()
    values: dict[str, _Texts] = field(default_factory=dict)

    def entries(self, listed: ListedValues) -> Iterator[PlainRequest]:
        """Yield the requests for the other entries of the shortest list that the values come from."""
        counts = Counter(source for value in self.values for source in listed.sources[value])
        most = max(counts.values())
        example = next(reversed(self.values.values()))
        texts = example.all
        sources = [source for source, count in counts.items() if count == most]
        if self.rest:
            names = {name for _, name in self.rest}
            sources = [each for each in sources if names <= listed.lists[each].get(texts[self.at], {}).keys()]
        named = [source for source in sources if _is_named(example.names[self.at], source)]
        if not sources or (not named and (self._is_count(example) or not self._is_proved(most))):
            return
        # Many lists hold 1, 2, 3.
        shortest = min(named or sources, key=lambda source: (len(listed.lists[source]), source))
        entries = listed.lists[shortest]
        known = set(texts) - {texts[self.at], ""}
        own = {name: text for name, text in entries.get(texts[self.at], {}).items() if text in known}

        def is_unlike(entry: _Row) -> bool:  # an entry of another project, where the request names one
            return any(entry.get(name) != text for name, text in own.items())

        for value, entry in sorted(entries.items(), key=lambda each: is_unlike(each[1])):
            if value not in self.values and all(name in entry for _, name in self.rest):
                rest = {texts[place]: entry[name] for place, name in self.rest}
                yield example.with_values({**rest, texts[self.at]: value})

    def _is_count(self, example: _Texts) -> bool:
        """Return whether the values may be pages or limits: short numbers, and no name of an entry."""
        is_parameter = self.at >= len(example.segments)
        called = example.names[self.at].lower()
        return is_parameter and not called.endswith(_IDS) and all(map(_SHORT.fullmatch, self.values))

    def _is_proved(self, examples: int) -> bool:
        """Return whether the values come from a list by more than chance."""
        if not self.rest:
            return examples >= _PROOFS or UNIQUE.fullmatch(next(iter(self.values))) is not None
        # A text that is the same in all examples belongs to the kind, whatever the entries hold.
        found = [example.all for example in self.values.values()]
        return examples >= _PROOFS and all(len({each[place] for each in found}) > 1 for place, _ in self.rest)


def requests_for_entries(
    requests: Iterable[PlainRequest],
    listed: ListedValues,
    is_known: Callable[[PlainRequest], bool] = lambda request: False,
) -> list[PlainRequest]:
    """Return the requests for entries that no request named, of all paths and kinds in turn, each once.

    Args:
        requests: of scripts.
        listed: values of recorded lists.
        is_known: returns whether a request was sent before.
    """
    found: dict[str, PlainRequest] = {}
    left, posted = _EFFORT, Counter[tuple[str, str]]()
    by_place: dict[tuple[str, str], list[_Kind]] = defaultdict(list)
    for kind in _kinds_of(requests, listed):
        by_place[_place_of(next(iter(kind.values.values())).request)].append(kind)
    # One path may have hundreds of kinds: a dialog with many switches.
    for entry in in_turn(in_turn(kind.entries(listed) for kind in group) for group in by_place.values()):
        if left <= 0:
            break
        left -= 1 + len(entry.body or b"") // _LONG
        place = _place_of(entry)
        is_over = entry.body is not None and posted[place] >= _MOST_OF_A_LIST
        if entry.key not in found and not is_over and not is_known(entry):
            found[entry.key] = entry
            posted[place] += 1
    return list(found.values())


def _kinds_of(requests: Iterable[PlainRequest], listed: ListedValues) -> list[_Kind]:
    """Return the kinds of requests that name entries, with examples."""
    kinds: dict[tuple[Any, ...], _Kind] = {}
    for request in requests:
        example = _Texts.of(request, listed.sources.keys())
        texts = example.all
        named = [number for number, text in enumerate(texts) if text in listed.sources]
        for at in named[:_NAMED]:
            for rest in dict.fromkeys([(), *_rests(texts, at, listed)]):
                marked = {texts[at]: "{}", **{texts[place]: name for place, name in rest}}
                alike = tuple(marked.get(text, text) for text in texts)
                key = (request.method, urlsplit(request.url).netloc, _names(request), at, rest, alike)
                kinds.setdefault(key, _Kind(at, rest)).values[texts[at]] = example
    return list(kinds.values())


def other_orders(request: PlainRequest, answer: Any) -> Iterator[PlainRequest]:
    """Yield the requests for a list by the other members of its entries, if a value is the name of one.

    A view orders a list by the column that a visitor chose. A minus before the name reverses the order,
    unless another parameter has the direction.
    """
    columns = list(dict.fromkeys(_columns_of(answer)))
    pairs = request.pairs
    signs = ("",) if any(value in _DIRECTIONS for _, value in pairs) else ("", "-")
    for at, (name, value) in enumerate(pairs):
        if value.removeprefix("-") in columns:
            for other in (sign + column for sign in signs for column in columns):
                if other != value:
                    yield request.with_pairs([*pairs[:at], (name, other), *pairs[at + 1 :]])


def _columns_of(content: Any) -> Iterator[str]:
    """Yield the names of the single values of the entries of lists."""
    if isinstance(content, dict):
        for value in content.values():
            yield from _columns_of(value)
    elif isinstance(content, list):
        for name, value in content[0].items() if content and isinstance(content[0], dict) else ():
            if not isinstance(value, dict | list):
                yield name


def in_turn(sources: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yield the first element of each source, then the second of each, until all have ended."""
    waiting = [iter(source) for source in sources]
    while waiting:
        for source in list(waiting):
            try:
                element = next(source)
            except StopIteration:
                waiting.remove(source)
                continue
            yield element


def _place_of(request: PlainRequest) -> tuple[str, str]:
    return request.method, path_form(urlsplit(request.url).path, "{}")


def _is_named(name: str, source: ListSource) -> bool:
    """Return whether the name of a text in requests is that of the values of a list."""
    at, names = source
    *owners, member = (_singular(each) for each in names.split("."))
    # Many interfaces wrap each list: `/projects` has its entries under `results`, or `data.items`.
    of_url = _singular(at.rstrip("/").rpartition("/")[2])
    called = {member} - _KEYS
    for owner in {next(filter(None, reversed(owners)), of_url), of_url} - {""}:
        called |= {f"{owner}{member}", *([owner] if member in _KEYS | {f"{owner}id", f"{owner}name"} else [])}
    return _singular(name.rpartition(".")[2]) in called - {""}


def _singular(name: str) -> str:
    """Return a name in lower case without separators and plural: `experiment_ids` is `experimentid`."""
    return re.sub(r"ies$|s$", lambda end: "y" if end[0] != "s" else "", _SEPARATOR.sub("", name.lower()))


def _rests(texts: list[str], at: int, listed: ListedValues) -> Iterator[tuple[tuple[int, str], ...]]:
    """Yield the places of a request that repeat other values of the entry that one place names.

    A value that all entries share, such as their type, says nothing. An empty one is no value.
    """
    known = set(texts) - {texts[at], ""}
    for source in sorted(listed.sources[texts[at]]):
        varying = listed.varying(source)
        name_of = {
            text: name
            for name, text in reversed(listed.lists[source][texts[at]].items())
            if text in known and name in varying
        }
        if rest := tuple((place, name_of[text]) for place, text in enumerate(texts) if text in name_of):
            yield rest


def _names(request: PlainRequest) -> tuple[str, ...]:
    return tuple(name for name, _ in request.pairs)
