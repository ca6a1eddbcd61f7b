"""Requests that scripts send for links, forms and entries of lists, and files that they name.

A script may load a part of a page instead of following a link. Its request repeats the query of the link, or
the fields of a GET form, and adds parameters of its own. Recorded requests and the pages that sent them show
such a kind of request. Other pages of the same kind then send it for their links too.

Kinds are generalised from examples. A parameter may have any value if the examples have several. It may have
that of the page's own URL if all examples have theirs. Otherwise it has the one value of the examples.

An application in one page requests a list as JSON, and then the details of the entry that a visitor chose.
No HTML links to those of the others. A request names its entry by a segment of its path, a parameter, or a
value of its JSON body. If a recorded list holds that value among others, the others are entries as well.

Short values (1, open) are in many lists by chance. Two requests for different entries of the same list show
that they come from it. One is enough for a long identifier, and for a parameter or path that is named after
the list (`experiment_id=5` or `/experiments/5` for `experiments`). A request may repeat several values of its
entry, such as a name and a version. Then those of another entry take their places together.

JSON also has whole URLs, such as those of downloads. If one was requested, the others that have its name
(`tarball`) are requested too.

Scripts name images in strings, and chunks in the tables of a bundler. A page requests such a file only once a
visitor has used the control that needs it. Strings and tables do not say to which folder they belong.
Recorded files do: if at least two of a group were requested, the others are expected beside them.

`ScriptRequests` reads the collection; all else is pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from stillweb.collections.layout import Collection
from stillweb.http.codec import decoded_body
from stillweb.model import Capture, Request
from stillweb.record.harvest.combined import combined_requests
from stillweb.record.harvest.fetch import recorded_data
from stillweb.record.harvest.loaded import LoadedLinks
from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.harvest.page import HtmlPage, parse_page
from stillweb.record.harvest.rows import attribute_texts, requests_for_rows
from stillweb.urls import host_of

_PAGES, _LINKS = 300, 600  # pages whose links scripts may follow; requests for these links
_FILES = 1_000  # files that scripts name
_ENTRIES = 600  # requests for entries of lists, and for URLs in data
_ROW_PAGES = 60  # pages whose rows are read
_SHOWN = 500  # requests that are compared with the rows of their pages
_LEAST = 2  # parameters of a link that its script repeats
_EXAMPLES = 40  # requests that are compared with the links of their pages, of each URL and parameters

JAVASCRIPT = frozenset({"text/javascript", "application/javascript", "application/x-javascript"})

_PROOFS = 2  # recorded files that show where a group is
_KINDS = {
    "script": ("js", "mjs"),
    "style": ("css",),
    "image": ("svg", "png", "jpg", "jpeg", "gif", "webp", "avif", "ico"),
    "font": ("woff", "woff2", "ttf"),
}
_DESTINATIONS = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
_STRING = re.compile(rf"""(["'`])([\w./~@+-]{{3,200}}\.(?:{"|".join(_DESTINATIONS)}))\1""")
# webpack: {506:"4f046460a98cf2c3",600:"6c7f5825d4b3a07f"}[e], with quotes or without.
_TABLE = re.compile(r"""\{(?:["']?[\w~./-]{1,80}["']?:["'][\w.-]{4,80}["'],?){2,}\}""")
_WORD = re.compile(r"[\w-]+")
_HASH = re.compile(r"(?=[\w-]*[0-9])[\w-]{6,}")
_KEY, _DIGEST = "\0", "\1"  # marks
_PAIR = re.compile(r"""["']?([\w~./-]{1,80}?)["']?:["']([\w.-]{4,80})["']""")

_UNIQUE = re.compile(r"(?=.*[0-9])[\w-]{8,}")
_IDENTIFIER = re.compile(r"(?!.*//)[\w.~:@+/ -]{1,80}")
_URL = re.compile(r"https?://[^/\s]+/\S{0,400}$")
_VARIABLE = re.compile(r"[0-9]|^.{25,}$")
_SEPARATOR = re.compile(r"[\W_]+")
_KEYS = frozenset(
    ("id", "key", "name", "slug", "uid", "uuid", "code", "value", "type", "statu", "state", "title", "")
)
_MOST_OF_A_LIST = 200  # entries; an agent sees those at its start

_Pairs = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Values:
    """Values of some parameters in several examples, without parameters that an example lacks."""

    seen: dict[str, set[str]] | None = None

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        own = dict(pairs)
        known = self.seen
        if known is None:
            self.seen = {name: {value} for name, value in own.items()}
        else:
            self.seen = {name: known[name] | {own[name]} for name in known if name in own}

    @property
    def names(self) -> set[str]:
        """Names of the parameters."""
        return set(self.seen or {})

    def admit(self, pairs: Iterable[tuple[str, str]], like: dict[str, str]) -> bool:
        """Return whether other pairs may stand for the examples; values of `like` are accepted too."""
        own = dict(pairs)
        return all(
            name in own and (len(seen) > 1 or own[name] in seen or own[name] == like.get(name))
            for name, seen in (self.seen or {}).items()
        )


@dataclass(slots=True)
class ScriptedKind:
    """Requests of one script that repeat the query of a link.

    Attributes:
        request: an example.
        before, after: pairs that the script adds around those of the link.
        page_path, link_path: scheme, host and path of pages and links.
    """

    request: PlainRequest
    before: _Pairs
    after: _Pairs
    page_path: str
    link_path: str
    names: frozenset[str]
    pages: set[str] = field(default_factory=set)
    _on_pages: _Values = field(default_factory=_Values)
    _in_links: _Values = field(default_factory=_Values)
    _as_page: set[str] = field(default_factory=set)

    def add(self, page: str, link: _Pairs) -> None:
        """Take an example."""
        own = dict(_query_of(page))
        same = {name for name, value in link if own.get(name) == value}
        self._as_page = same & self._as_page if self.pages else same
        self.pages.add(page)
        self._on_pages.add(own.items())
        self._in_links.add(link)

    def is_on(self, page: str) -> bool:
        """Return whether a page is like those of the examples.

        One example does not show which parameters vary; then pages with the same parameters are alike.
        """
        if _path_of(page) != self.page_path:
            return False
        query = _query_of(page)
        if len(self.pages) > 1:
            return self._on_pages.admit(query, {})
        return page in self.pages or (bool(query) and {name for name, _ in query} == self._on_pages.names)

    def request_for(self, page: str, url: str) -> PlainRequest | None:
        """Return the request that a page's script sends for a link, None if it is unlike the examples."""
        link = _query_of(url)
        if _path_of(url) != self.link_path or {name for name, _ in link} != self.names:
            return None
        own = dict(_query_of(page))
        if not self._in_links.admit(link, {name: own[name] for name in self._as_page if name in own}):
            return None
        found = self.request.with_pairs([*self.before, *link, *self.after])
        return replace(found, referer=page)


def learn_kinds(
    requests: Iterable[PlainRequest], links_of: Callable[[str], Iterable[str]]
) -> list[ScriptedKind]:
    """Return the kinds of requests that repeat links of their pages.

    Args:
        requests: of scripts.
        links_of: URLs that the links and GET forms of a page lead to; empty for an unknown page.
    """
    alike: dict[tuple[Any, ...], list[PlainRequest]] = defaultdict(list)
    for request in requests:
        if request.referer:
            names = tuple(name for name, _ in request.pairs)
            alike[request.method, request.place, names].append(request)
    kinds: dict[tuple[Any, ...], ScriptedKind] = {}
    for group in alike.values():
        for request in group[:_EXAMPLES]:
            page = request.referer.partition("#")[0]
            for key, link in _repeated(request, links_of(page)):
                before, after, link_path = key
                whole = (request.method, _path_of(request.url), _path_of(page), frozenset(dict(link)), *key)
                kind = kinds.setdefault(
                    whole,
                    ScriptedKind(request, before, after, _path_of(page), link_path, frozenset(dict(link))),
                )
                kind.add(page, link)
    return list(kinds.values())


def _repeated(
    request: PlainRequest, links: Iterable[str]
) -> Iterator[tuple[tuple[_Pairs, _Pairs, str], _Pairs]]:
    """Yield the longest query of a page's links that a request repeats, with the pairs around it."""
    pairs = tuple(request.pairs)
    best: tuple[tuple[_Pairs, _Pairs, str], _Pairs] | None = None
    for url in links:
        link, path = _query_of(url), _path_of(url)
        shorter = len(link) < len(pairs) or path != _path_of(request.url) or request.body is not None
        if len(link) < _LEAST or not shorter or (best is not None and len(link) <= len(best[1])):
            continue
        at = next((n for n in range(len(pairs) - len(link) + 1) if pairs[n : n + len(link)] == link), None)
        if at is not None:
            best = (pairs[:at], pairs[at + len(link) :], path), link
    if best is not None:
        yield best


def _query_of(url: str) -> _Pairs:
    return tuple(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _path_of(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


ListSource = tuple[str, str]
"""A list: its request, with {} for what varies, and the names that lead to the value in the answer."""

_Row = dict[str, str]


@dataclass(slots=True)
class ListedValues:
    """The values that entries of recorded lists have.

    Attributes:
        lists: values of each list, in the order of their recording, with the whole entry.
        sources: lists that hold a value.
        urls: absolute URLs of all answers, by the last name that leads to them.
    """

    lists: dict[ListSource, dict[str, _Row]] = field(default_factory=lambda: defaultdict(dict))
    sources: dict[str, set[ListSource]] = field(default_factory=lambda: defaultdict(set))
    urls: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, url: str, answer: Any) -> None:
        """Take the JSON answer to a request."""
        parts = urlsplit(url)
        path = "/".join("{}" if _VARIABLE.search(each) else each for each in parts.path.split("/"))
        for names, text, entry in _texts_of("", answer, None):
            if _URL.match(text):
                self.urls[names.rpartition(".")[2]][text] = None
            source = (f"{parts.netloc}{path}", names)
            if (
                entry is not None
                and _IDENTIFIER.fullmatch(text)
                and len(self.lists[source]) < _MOST_OF_A_LIST
            ):
                self.lists[source].setdefault(text, entry)
                self.sources[text].add(source)

    def linked(self, requested: AbstractSet[str]) -> Iterator[str]:
        """Yield the URLs that have a name under which another URL was requested."""
        for found in self.urls.values():
            if not requested.isdisjoint(found):
                yield from (url for url in found if url not in requested)


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
    """

    request: PlainRequest
    segments: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, request: PlainRequest, listed: AbstractSet[str]) -> _Texts:
        left = urlsplit(request.url).path.split("/")
        segments: list[str] = []
        while left:
            taken = (count for count in (3, 2) if unquote("/".join(left[:count])) in listed)
            count = next(taken, 1)
            segments.append("/".join(left[:count]))
            left = left[count:]
        return cls(request, tuple(segments), tuple(value for _, value in _parameters(request)))

    @property
    def all(self) -> list[str]:
        """The texts in order, decoded."""
        return [*map(unquote, self.segments), *self.values]

    @property
    def names(self) -> list[str]:
        """The name of each text: that of its parameter, or the segment before it."""
        before = ["", *self.segments[:-1]]
        return [*map(unquote, before), *(name for name, _ in _parameters(self.request))]

    def with_others(self, new: Mapping[str, str]) -> PlainRequest:
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
        named = [source for source in sources if not self.rest and _is_named(example.names[self.at], source)]
        if not named and not self._is_proved(most):
            return
        # Many lists hold 1, 2, 3.
        shortest = min(named or sources, key=lambda source: (len(listed.lists[source]), source))
        for value, entry in listed.lists[shortest].items():
            if value not in self.values and all(name in entry for _, name in self.rest):
                rest = {texts[place]: entry[name] for place, name in self.rest}
                yield example.with_others({**rest, texts[self.at]: value})

    def _is_proved(self, examples: int) -> bool:
        """Return whether the values come from a list by more than chance."""
        if not self.rest:
            return examples >= _PROOFS or _UNIQUE.fullmatch(next(iter(self.values))) is not None
        # A text that is the same in all examples belongs to the kind, whatever the entries hold.
        found = [example.all for example in self.values.values()]
        return examples >= _PROOFS and all(len({each[place] for each in found}) > 1 for place, _ in self.rest)


def requests_for_entries(requests: Iterable[PlainRequest], listed: ListedValues) -> list[PlainRequest]:
    """Return the requests for entries that no request named, of all kinds in turn, each once.

    Args:
        requests: of scripts.
        listed: values of recorded lists.
    """
    kinds: dict[tuple[Any, ...], _Kind] = {}
    for request in requests:
        example = _Texts.of(request, listed.sources.keys())
        texts = example.all
        named = [number for number, text in enumerate(texts) if text in listed.sources]
        for at in named:
            for rest in dict.fromkeys([(), *_rests(texts, at, listed)]):
                marked = {texts[at]: "{}", **{texts[place]: name for place, name in rest}}
                alike = tuple(marked.get(text, text) for text in texts)
                key = (request.method, urlsplit(request.url).netloc, _names(request), at, rest, alike)
                kinds.setdefault(key, _Kind(at, rest)).values[texts[at]] = example
    found: dict[str, PlainRequest] = {}
    waiting = [kind.entries(listed) for kind in kinds.values()]
    while waiting:
        for each in list(waiting):
            if (entry := next(each, None)) is None:
                waiting.remove(each)
            else:
                found.setdefault(entry.key, entry)
    return list(found.values())


def _is_named(name: str, source: ListSource) -> bool:
    """Return whether the name of a text in requests is that of the values of a list."""
    at, names = source
    *owners, member = (_singular(each) for each in names.split("."))
    owner = next(filter(None, reversed(owners)), "") or _singular(at.rstrip("/").rpartition("/")[2])
    called = {f"{owner}{member}", *([owner] if member in _KEYS | {f"{owner}id", f"{owner}name"} else [])}
    return _singular(name.rpartition(".")[2]) in (called | ({member} - _KEYS)) - {""}


def _singular(name: str) -> str:
    """Return a name in lower case without separators and plural: `experiment_ids` is `experimentid`."""
    return re.sub(r"ies$|s$", lambda end: "y" if end[0] != "s" else "", _SEPARATOR.sub("", name.lower()))


def _rests(texts: list[str], at: int, listed: ListedValues) -> Iterator[tuple[tuple[int, str], ...]]:
    """Yield the places of a request that repeat other values of the entry that one place names.

    A value that all entries share, such as their type, says nothing.
    """
    for source in sorted(listed.sources[texts[at]]):
        entries = listed.lists[source]
        name_of = {
            text: name
            for name, text in reversed(entries[texts[at]].items())
            if text in texts and text != texts[at] and len({each.get(name) for each in entries.values()}) > 1
        }
        if rest := tuple((place, name_of[text]) for place, text in enumerate(texts) if text in name_of):
            yield rest


def _names(request: PlainRequest) -> tuple[str, ...]:
    return tuple(name for name, _ in request.pairs)


def destination_of(url: str) -> str:
    """Return the request destination of a file by its suffix, "empty" for others."""
    return _DESTINATIONS.get(urlsplit(url).path.rpartition(".")[2].lower(), "empty")


def bundled_urls(scripts: Iterable[str], recorded: AbstractSet[str]) -> list[str]:
    """Return URLs of files that scripts name and that were not recorded.

    Args:
        scripts: texts.
        recorded: URLs without query, of the host of the scripts.
    """
    texts = list(scripts)
    tables = chain.from_iterable(_of_tables(text, recorded) for text in texts)
    found = dict.fromkeys(chain(tables, _of_strings(texts, recorded)))
    return [url for url in found if url not in recorded]


def _of_strings(scripts: Iterable[str], recorded: AbstractSet[str]) -> Iterator[str]:
    """Yield the files in strings, next to recorded ones of the same folder.

    Scripts of one bundle resolve their strings against one URL. Where a folder has no recorded file, a name
    with a digest is taken to be of that bundle.
    """
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for match in chain.from_iterable(map(_STRING.finditer, scripts)):
        folder, _, name = match[2].rpartition("/")
        if ".." not in folder:
            groups[folder.removeprefix(".").strip("/")][name] = None
    endings = {folder: [f"{folder}/{name}".lstrip("/") for name in names] for folder, names in groups.items()}
    bases = _bases(endings, recorded)
    roots = sorted({base for found in bases.values() for base in found})
    for folder, names in endings.items():
        for base in bases[folder]:
            yield from (base + name for name in names)
        if folder and not bases[folder]:
            hashed = [name for name in names if any(map(_HASH.fullmatch, _WORD.findall(name)))]
            yield from (base + name for base in roots for name in hashed)


def _bases(endings: Mapping[str, Iterable[str]], recorded: AbstractSet[str]) -> dict[str, list[str]]:
    """Return the URLs against which the files of each folder are resolved, as recorded files show."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for url in recorded:
        by_name[url.rpartition("/")[2]].append(url)
    found = {}
    for folder, names in endings.items():
        counts = Counter(
            url.removesuffix(name)
            for name in names
            for url in by_name.get(name.rpartition("/")[2], ())
            if url.endswith(f"/{name}")
        )
        found[folder] = [base for base, count in counts.items() if count >= _PROOFS]
    return found


def _of_tables(text: str, recorded: AbstractSet[str]) -> Iterator[str]:
    """Yield the files of tables of names and digests, spelled as recorded ones of the same table are."""
    for match in _TABLE.finditer(text):
        pairs = _PAIR.findall(match[0])
        keys_of = defaultdict(set)
        for key, digest in pairs:
            keys_of[digest].add(key)
        proofs: dict[tuple[str, str], set[str]] = defaultdict(set)
        for url in recorded:
            base, _, name = url.rpartition("/")
            for digest in keys_of.keys() & set(filter(_HASH.fullmatch, _WORD.findall(name))):
                for key in keys_of[digest]:
                    proofs[base, _spelling(name, key, digest)].add(key)
        for (base, spelling), keys in proofs.items():
            if len(keys) >= _PROOFS:
                yield from (f"{base}/{_spelled(spelling, *pair)}" for pair in pairs)


def _spelling(name: str, key: str, digest: str) -> str:
    """Return a file name with marks in place of its digest and of its key."""
    words = (
        _DIGEST if word == digest else _KEY if word == key else word for word in re.split(r"([\w-]+)", name)
    )
    return "".join(words)


def _spelled(spelling: str, key: str, digest: str) -> str:
    return spelling.replace(_KEY, key).replace(_DIGEST, digest)


class ScriptRequests:
    """Requests that scripts of recorded pages are likely to send, and that were not recorded.

    Args:
        documents: recorded documents by URL.
        recorded: keys and URLs of recorded requests; what is found in recorded data is added.
        links_of: returns where a document with a URL leads.
        is_over: returns whether the time is over.

    Attributes:
        listed: values of the recorded lists that were read.
    """

    def __init__(
        self,
        collection: Collection,
        documents: dict[str, Capture],
        recorded: set[str],
        links_of: Callable[[bytes, str], list[str]],
        is_over: Callable[[], bool],
    ) -> None:
        self._collection = collection
        self._documents = documents
        self._recorded = recorded
        self._links_of = links_of
        self._is_over = is_over
        self.listed = ListedValues()

    def for_links(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Return what scripts request for links and forms of their pages, as some requests have shown."""
        leads: dict[str, list[str]] = {}

        def links_of(url: str) -> list[str]:
            if url not in leads:
                capture = self._documents.get(url)
                body = (
                    decoded_body(self._collection.read_capture(capture).response) or b"" if capture else b""
                )
                leads[url] = self._links_of(body, url) if body else []
            return leads[url]

        kinds = learn_kinds(requests, links_of)
        pages = [url for url in self._documents if any(kind.is_on(url) for kind in kinds)]
        found: dict[str, PlainRequest] = {}
        for page in pages[:_PAGES]:
            if self._is_over():
                break
            on_page = [kind for kind in kinds if kind.is_on(page)]
            for each in (kind.request_for(page, link) for link in links_of(page) for kind in on_page):
                if each is not None and each.key not in self._recorded:
                    found.setdefault(each.key, each)
        return list(found.values())[:_LINKS]

    def for_loaded(self, loaded: LoadedLinks, missed: Iterable[PlainRequest]) -> list[tuple[str, HtmlPage]]:
        """Learn which links scripts load into the page; return the recorded pages if some are."""
        shown = [request for request in missed if request.meaning]
        pages: list[tuple[str, HtmlPage]] = []
        if not (shown or loaded.examples):
            return pages
        for url, capture in islice(self._documents.items(), _PAGES):
            if self._is_over():
                break
            body = decoded_body(self._collection.read_capture(capture).response) or b""
            pages.append((url, parse_page(url, body)))
        loaded.learn(shown, [link for _, page in pages for link in page.links])
        return pages

    def for_files(self) -> list[PlainRequest]:
        """Return the files that recorded scripts name, beside recorded ones of the same folder."""
        scripts: dict[str, str] = {}
        hosts: dict[str, set[str]] = {}
        for capture in self._collection.captures():
            if capture.method != "GET" or capture.status != 200:
                continue
            url = capture.url.partition("?")[0]
            hosts.setdefault(host_of(url), set()).add(url)
            if capture.mime in JAVASCRIPT and url not in scripts and not self._is_over():
                body = decoded_body(self._collection.read_capture(capture).response) or b""
                scripts[url] = body.decode("utf-8", "replace")
        found: dict[str, str] = {}
        for page in dict.fromkeys(map(host_of, self._documents)):
            texts = (text for url, text in scripts.items() if host_of(url) == page)
            for url in bundled_urls(texts, hosts.get(page, set())):
                found.setdefault(url, page)
        referers = {host_of(url): url for url in reversed(self._documents)}
        return [
            PlainRequest("GET", url, destination_of(url), referers[host])
            for url, host in list(found.items())[:_FILES]
            if url not in self._recorded
        ]

    def for_data(
        self, missed: Iterable[PlainRequest], is_plain: Callable[[Request], bool], *, unsafe: bool
    ) -> tuple[list[PlainRequest], list[PlainRequest]]:
        """Return the requests for entries of recorded lists that no visitor chose, and for URLs in JSON.

        Args:
            missed: requests that a replay missed.
            is_plain: returns whether a POST may be sent without its page.
            unsafe: whether recorded POST requests count.
        """
        listed = self.listed
        requests = list(missed)
        for request, answer in recorded_data(self._collection, unsafe=unsafe, is_plain=is_plain):
            if self._is_over():
                break
            self._recorded.add(request.key)
            requests.append(request)
            if answer is not None:
                listed.add(request.url, answer)
        entries = requests_for_entries(requests, listed)
        pages = {host_of(url): url for url in reversed(self._documents)}
        linked = [
            PlainRequest("GET", url, destination_of(url), pages[host_of(url)])
            for url in listed.linked(self._recorded | {each.url for each in requests})
            if host_of(url) in pages
        ]
        named = {each.key for each in linked}  # their error pages count too
        return self._unrecorded(each for each in entries if each.key not in named), self._unrecorded(linked)

    def for_rows(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Return the GET requests for rows of recorded pages that no request named, as some have shown."""
        reads = (each for each in requests if each.body is None)
        shown = [each for each in reads if each.referer.partition("#")[0] in self._documents][:_SHOWN]
        if not shown:
            return []
        texts = {}
        sources = {each.referer.partition("#")[0] for each in shown}
        for url in islice(dict.fromkeys([*sorted(sources), *self._documents]), _ROW_PAGES):
            if self._is_over():
                break
            body = decoded_body(self._collection.read_capture(self._documents[url]).response) or b""
            texts[url] = attribute_texts(body.decode("utf-8", "replace"))
        return self._unrecorded(requests_for_rows(shown, texts))

    def for_combinations(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Return the requests with combinations of parameters that no visitor chose."""
        return self._unrecorded(combined_requests(requests))

    def _unrecorded(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        return list(islice((each for each in requests if each.key not in self._recorded), _ENTRIES))
