"""The pages of a recording, and the ways between them by links. Pure, except for `read_site`.

Pages are split into a training and a test part. A way stays within its part, so that tasks of different
parts have no page in common. Pages with equal content belong to the same part.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import urljoin

from stillweb import clock
from stillweb.benchmarks.pages import SiteOpener, SitePage, fold, read_page
from stillweb.browser.observe.axtree import AxNode
from stillweb.collections.layout import Collection
from stillweb.errors import UsageError
from stillweb.http.codec import decoded_body
from stillweb.model import Capture, Exchange, header
from stillweb.text import codec_of
from stillweb.urls import from_timestamp, wire_url

MOST_PAGES = 2_000
_CHARSET = re.compile(rb"""<meta[^>]+charset=["']?([\w-]+)""", re.IGNORECASE)
_SUFFIX = re.compile(r"\s+(?=[|\u2013\u2014·•:\[-])")
_NAVIGATION = 0.3  # share of the pages that link to a page of the site's navigation
_HUB = 5  # links of a page from which the test part grows
_SOON = 5  # seconds between a write and the page that its response leads to
_NAMING = 3  # words of a title that name a page without its section
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class SiteStep:
    """A click on a link: page before, name and number of the link, page after.

    Attributes:
        opener: control of the link's menu.
        title: name of the link if styles hide its text.
    """

    page: str
    name: str
    number: int
    target: str
    opener: SiteOpener | None = None
    title: str = ""


SiteWay = tuple[SiteStep, ...]


@dataclass(frozen=True, slots=True)
class SiteWrite:
    """A recorded form submission by POST.

    Attributes:
        page: page with the form, from the Referer.
        target: URL to which the response led.
        after: the pages that were recorded at the target in the next seconds.
    """

    page: str
    url: str
    target: str
    after: tuple[SitePage, ...]


@dataclass(frozen=True, slots=True)
class SiteState:
    """A page as the browser shows it after clicks that do not leave it.

    Attributes:
        clicks: text of each clicked control.
        acts: the clicks, as steps of an oracle.
        nodes: accessibility tree; `before` is that before the last click.
    """

    page: str
    nodes: tuple[AxNode, ...] = ()
    before: tuple[AxNode, ...] = ()
    clicks: tuple[str, ...] = ()
    acts: tuple[Mapping[str, Any], ...] = ()


@dataclass
class SiteMap:
    """Pages by URL.

    Attributes:
        redirects: URL of each recorded redirect, and where it leads.
        starts: pages at which the recording began.
        other_text: text of other responses that pages may show, such as JSON.
        writes: recorded submissions by POST.
        states: of pages without links to other pages, as the browser shows them.
        explored: pages of which each control that their first state names was clicked for a state.
    """

    pages: Mapping[str, SitePage]
    redirects: Mapping[str, str] = field(default_factory=dict)
    starts: tuple[str, ...] = ()
    other_text: str = ""
    writes: tuple[SiteWrite, ...] = ()
    states: tuple[SiteState, ...] = ()
    explored: frozenset[str] = frozenset()

    def landing(self, url: str) -> str:
        """Return the URL that a request ends at, "" if that is not a recorded page."""
        for _ in range(5):
            if url in self.pages:
                return url
            url = self.redirects.get(url, "")
        return ""

    def alike(self, url: str) -> tuple[str, ...]:
        """Return the URLs under which a page was recorded: those of pages with the same text."""
        return self._urls_of_content[self.pages[url].content]

    def views(self, url: str) -> frozenset[str]:
        """Return the URLs of the views of a page, such as a table in several orders.

        Views have the same text, or the same path and subject.
        """
        return self._views[url]

    @cached_property
    def _views(self) -> Mapping[str, frozenset[str]]:
        views = {url: frozenset((url,)) for url in self.pages}
        alike: defaultdict[object, list[str]] = defaultdict(list)
        for url, page in self.pages.items():
            alike[page.content].append(url)
            alike[url.partition("?")[0], page.subject].append(url)
        for urls in alike.values():
            merged = frozenset().union(*(views[url] for url in urls))
            views.update(dict.fromkeys(merged, merged))
        return views

    @cached_property
    def _urls_of_content(self) -> Mapping[str, tuple[str, ...]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for url, page in self.pages.items():
            found[page.content].append(url)
        return {content: tuple(urls) for content, urls in found.items()}

    @cached_property
    def edges(self) -> dict[str, tuple[SiteStep, ...]]:
        """Links to recorded pages, by page; of several links to one page the first with a unique name."""
        found = {}
        for url, page in self.pages.items():
            counts: defaultdict[str, int] = defaultdict(int)
            for link in page.links:
                counts[fold(link.name)] += 1
            steps: dict[str, SiteStep] = {}
            for link in sorted(page.links, key=lambda each: counts[fold(each.name)] > 1):
                target = self.landing(link.url)
                if target and target != url and len(link.name) <= 120:
                    step = SiteStep(url, link.name, link.number, target, link.opener, link.title)
                    steps.setdefault(target, step)
            found[url] = tuple(steps.values())
        return found

    def forget(self, step: SiteStep) -> None:
        """Remove a link that the browser does not show."""
        for links, page in ((self.edges, step.page), (self._back, step.target)):
            links[page] = tuple(each for each in links[page] if each != step)

    def ways_to(self, target: str, within: Container[str], longest: int) -> dict[str, SiteWay]:
        """Return the shortest way to a page from each page of `within` that needs at most so many clicks."""
        ways: dict[str, SiteWay] = {target: ()}
        edge = [target]
        for _ in range(longest):
            reached = []
            for page in edge:
                for step in self._back.get(page, ()):
                    if step.page not in ways and step.page in within:
                        ways[step.page] = (step, *ways[page])
                        reached.append(step.page)
            edge = reached
        return ways

    def way(self, start: str, target: str, within: Container[str], longest: int = 4) -> SiteWay | None:
        """Return the shortest way between two pages, None if there is none within so many clicks."""
        ways: dict[str, SiteWay] = {start: ()}
        todo = deque([start])
        while todo:
            page = todo.popleft()
            if page == target:
                return ways[page]
            if len(ways[page]) == longest:
                continue
            for step in self.edges.get(page, ()):
                if step.target not in ways and step.target in within:
                    ways[step.target] = (*ways[page], step)
                    todo.append(step.target)
        return None

    @cached_property
    def _back(self) -> dict[str, tuple[SiteStep, ...]]:
        found: defaultdict[str, list[SiteStep]] = defaultdict(list)
        for steps in self.edges.values():
            for step in steps:
                found[step.target].append(step)
        return {target: tuple(steps) for target, steps in found.items()}

    @cached_property
    def folded_text(self) -> str:
        """Text of all pages and other responses, folded."""
        texts = [page.text for page in self.pages.values()] + [page.title for page in self.pages.values()]
        return "\n".join(map(fold, [*texts, self.other_text]))


def read_site(collection: Collection) -> SiteMap:
    """Read the pages that replay serves: of each URL the first recorded document.

    Raises:
        UsageError: if the collection has no HTML page.
    """
    collection.require_archive()
    pages: dict[str, SitePage] = {}
    redirects: dict[str, str] = {}
    other: list[str] = []
    captures = sorted(collection.captures(), key=Capture.in_time)
    for capture in captures:
        url = capture.url.partition("#")[0]
        if capture.method != "GET" or url in pages or url in redirects:
            continue
        if capture.status in _REDIRECTS:
            location = header(_read(collection, capture).response.headers, "location")
            redirects[url] = wire_url(urljoin(url, location)).partition("#")[0]
        elif capture.status == 200 and "html" in capture.mime and len(pages) < MOST_PAGES:
            if page := _page(url, _read(collection, capture)):
                pages[url] = page
        elif capture.status == 200 and "json" in capture.mime:
            other.append(_decoded(_read(collection, capture)))
    if not pages:
        raise UsageError(f"{collection.name} holds no HTML page", hint="record pages of the site")
    seeds = [each.url.partition("#")[0] for each in collection.page_list() if each.seed]
    site = SiteMap(with_subjects(pages), redirects, other_text=" ".join(other))
    site.starts = tuple(dict.fromkeys(filter(None, map(site.landing, seeds))))
    site.writes = tuple(_writes(collection, captures))
    return site


def _writes(collection: Collection, captures: Sequence[Capture]) -> Iterator[SiteWrite]:
    documents = [each for each in captures if each.method == "GET" and "html" in each.mime]
    for capture in captures:
        if capture.method != "POST" or capture.status not in _REDIRECTS:
            continue
        exchange = _read(collection, capture)
        page = wire_url(header(exchange.request.headers, "referer")).partition("#")[0]
        location = header(exchange.response.headers, "location")
        target = wire_url(urljoin(capture.url, location)).partition("#")[0]
        after = [
            _page(target, _read(collection, each))
            for each in documents
            if each.url.partition("#")[0] == target and each.status == 200
            if 0 <= _seconds_between(capture, each) <= _SOON
        ]
        yield SiteWrite(page, capture.url, target, tuple(each for each in after if each))


def _seconds_between(one: Capture, other: Capture) -> float:
    return (from_timestamp(other.timestamp[:14]) - from_timestamp(one.timestamp[:14])).total_seconds()


def with_subjects(pages: Mapping[str, SitePage]) -> dict[str, SitePage]:
    """Return pages whose subject is the main heading or title without what most pages of the site share."""
    most = max(2, len(pages) // 2)
    main = Counter(
        text for page in pages.values() for text in {t for level, t in page.headings if level == 1}
    )
    suffixes = Counter(
        page.title[match.start() :] for page in pages.values() for match in _SUFFIX.finditer(page.title)
    )
    heads = Counter(page.title.partition(" | ")[0] for page in pages.values() if " | " in page.title)
    shared = sorted((text for text, count in suffixes.items() if count >= most), key=len, reverse=True)
    titles = {}
    for url, page in pages.items():
        title = page.title
        for suffix in shared:
            title = title.removesuffix(suffix).strip()
        if heads[title.partition(" | ")[0]] >= most:
            title = title.partition(" | ")[2]
        titles[url] = title or page.title
    own = {
        url: [text for level, text in page.headings if level == 1 and main[text] < most]
        for url, page in pages.items()
    }
    of_heading: defaultdict[str, dict[str, str]] = defaultdict(dict)  # a title of each path: not of each view
    for url, texts in own.items():
        if len(texts) == 1:
            of_heading[texts[0]].setdefault(url.partition("?")[0], titles[url])
    short = {url: _without_section(titles[url], texts) for url, texts in own.items()}
    counts = Counter(fold(title) for title in short.values())
    found = {}
    for url, page in pages.items():
        title = short[url] if counts[fold(short[url])] == 1 else titles[url]
        single = len(own[url]) == 1 and len(set(of_heading[own[url][0]].values())) == 1
        subject = own[url][0] if single else title
        found[url] = replace(_about(page, subject), title=title)
    return found


def _without_section(title: str, headings: Sequence[str]) -> str:
    """Return a long title without the main heading at its end, which names a section."""
    for match in _SUFFIX.finditer(title):
        own = title[: match.start()]
        if len(own.split()) >= _NAMING and fold(title[match.end() + 1 :]) in map(fold, headings):
            return own
    return title


def _about(page: SitePage, subject: str) -> SitePage:
    """Return a page with another subject, also in its facts and as the name of its tables without one."""
    if subject == page.subject:
        return page
    facts = []
    for fact in page.facts:
        own = fact.shape == "pair" and fact.subject == page.subject
        fact = replace(fact, subject=subject) if own else fact
        facts.append(replace(fact, context=subject) if fact.context == page.subject else fact)
    tables = [replace(each, name=subject) if each.name == page.subject else each for each in page.tables]
    return replace(page, subject=subject, facts=tuple(facts), tables=tuple(tables))


def _read(collection: Collection, capture: Capture) -> Exchange:
    return collection.read_capture(capture)


def _page(url: str, exchange: Exchange) -> SitePage | None:
    """Return a document that is a page of its own, None for the document of a frame or a fragment."""
    if header(exchange.request.headers, "sec-fetch-dest", "document") != "document":
        return None
    html = _decoded(exchange)
    return read_page(url, html) if is_document(html) else None


def is_document(html: str) -> bool:
    """Return True for a document, False for a fragment; `html` and `body` are optional (HTML §13.1.2.4)."""
    head = html[:20_000].lower()
    return "<body" in head or "<html" in head[:2000] or "<!doctype html" in head[:2000]


def _decoded(exchange: Exchange) -> str:
    response = exchange.response
    body = decoded_body(response) or b""
    kind = header(response.headers, "content-type")
    charset = kind.partition("charset=")[2].strip(" \"'").partition(";")[0]
    if not charset and (found := _CHARSET.search(body[:2048])):
        charset = found[1].decode("ascii")
    try:
        return body.decode(codec_of(charset or "utf-8"), "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def read_texts(collection: Collection) -> dict[str, str]:
    """Return the recorded text of each URL: documents, scripts, style sheets and data."""
    kinds = ("html", "javascript", "css", "json", "xml", "ecmascript", "text/")
    found: defaultdict[str, list[str]] = defaultdict(list)
    for capture in collection.captures():
        if capture.status == 200 and any(kind in capture.mime for kind in kinds):
            found[capture.url.partition("#")[0]].append(_decoded(_read(collection, capture)))
    return {url: "\n".join(texts) for url, texts in found.items()}


def split_pages(site: SiteMap, seed: int, share: float) -> dict[str, str]:
    """Return "train" or "test" for each page.

    The test part grows along links from pages with many links, so that its pages can reach each other. Start
    pages of the recording and the pages that most pages link to are in the training part. Views of one page,
    such as a table in different orders, are in the same part.
    """
    linked: Counter[str] = Counter()  # number of pages that link to each
    pages = set(map(site.views, site.pages))
    for views in pages:
        linked.update({step.target for url in views for step in site.edges[url]})
    count = len(pages)
    navigation = [url for url, links in linked.items() if links > _NAVIGATION * count]
    navigation.sort(key=lambda url: (-linked[url], url))  # the order of a set differs between programs
    most = int(_NAVIGATION * count)  # of sites on which every page links to every other
    fixed = {url for start in (*site.starts, *navigation[:most]) for url in site.views(start)}
    test: set[frozenset[str]] = set()
    hubs = [url for url in site.pages if len(site.edges[url]) >= _HUB and url not in fixed]
    for hub in clock.seeded("split", seed).sample(sorted(hubs), len(hubs)):
        todo, seen = deque([hub]), {hub}
        while todo and len(test) < share * count:
            page = todo.popleft()
            test.add(site.views(page))
            for step in site.edges[page]:
                if step.target not in seen and step.target not in fixed:
                    seen.add(step.target)
                    todo.append(step.target)
    return {url: "test" if site.views(url) in test else "train" for url in site.pages}
