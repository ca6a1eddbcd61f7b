"""Proof of which times in requests follow the page's clock: pages and walks, repeated at another time.

The replay sets the page's clock, so that a page can be opened, or a walk be taken, at another time. No
request goes to the live site. `collections.learn.pagetimes` compares the requests with those that the
recording holds, or that the first walk missed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice

from stillweb.collections.baselines import RESOURCES, RecordedRequest, read_resources
from stillweb.collections.layout import Collection
from stillweb.collections.learn.pagetimes import clock_rules, clock_shift, equal_time_rules
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.collections.misses import Missed
from stillweb.coverage.agents import AGENTS
from stillweb.coverage.causes import holds_time, request_holds_time, times_in
from stillweb.coverage.measure import CoverageOptions, CoverageResult, WalkRecord, measure_again
from stillweb.http.codec import decoded_body
from stillweb.matching.parts import shape_key
from stillweb.matching.rules import Rules
from stillweb.model import HTML_TYPES, Request
from stillweb.replay import ReplayClient
from stillweb.urls import from_timestamp

_DIGITS = re.compile(r"\d+")
_SAMPLE = 200  # requests of one kind that are compared
_TEXTS = 2_000  # recorded responses that are searched for times
_WALKS = 8  # that are repeated, those with the most requests first


class ShownTimes:
    """Times that recorded responses contain: replay sends them again, whatever the page's clock.

    Args:
        misses: requests whose times are searched.
    """

    def __init__(self, collection: Collection, misses: Iterable[Missed]) -> None:
        self._recorded_at = collection.manifest().recorded_at
        wanted = {time.encode() for each in misses for time in self._times(each)}
        self._shown: set[bytes] = set()
        texts = (each for each in collection.captures() if each.mime in HTML_TYPES or "json" in each.mime)
        for capture in islice(texts, _TEXTS):
            if not wanted:
                break
            body = decoded_body(collection.read_capture(capture).response) or b""
            found = {time for time in wanted if time in body}
            self._shown |= found
            wanted -= found

    def _times(self, miss: Missed) -> list[str]:
        return times_in(miss.request(), self._recorded_at) if self._recorded_at and miss.whole else []

    def cover(self, miss: Missed) -> bool:
        """Return whether responses contain all times of a miss."""
        return all(time.encode() in self._shown for time in self._times(miss))


def to_repeat(
    result: CoverageResult,
    recorded_at: str,
    rules: Rules,
    tried: Set[bytes] = frozenset(),
    is_shown: Callable[[Missed], bool] = lambda miss: False,
) -> list[WalkRecord]:
    """Return the walks that missed requests with the time of the visit, the most such requests first.

    Args:
        rules: those of the collection; requests whose times they compare need no proof.
        tried: keys (`shape_key`) of requests for which a proof has failed.
        is_shown: returns whether the times of a miss are in recorded responses, and not from a page's clock.
    """

    def wants_proof(miss: Missed) -> bool:
        if not holds_time(miss, recorded_at) or shape_key(miss.request()) in tried or is_shown(miss):
            return False
        return rules.clock_alias(miss.request()) is None

    timed = {
        index: sum(map(wants_proof, walk.misses))
        for index, walk in enumerate(result.walks)
        if walk.agent in AGENTS  # others may act otherwise the second time
    }
    chosen = sorted((index for index in timed if timed[index]), key=lambda index: (-timed[index], index))
    return [result.walks[index] for index in chosen[:_WALKS]]


async def prove_times(
    client: ReplayClient,
    collection: Collection,
    hosts: Iterable[str],
    walks: Sequence[WalkRecord],
    options: CoverageOptions,
) -> int:
    """Repeat walks later, write the rules that this proves, and return the number of new ones.

    Args:
        client: of a replay server that serves the collection.
        collection: its rules are read and written.
        hosts: hosts of which it holds answers.
        walks: walks of a measurement of this very pack.
        options: those of that measurement.

    Raises:
        CollectionError: if the rules cannot be read.
        AgentError: if no walk took a step.
    """
    again = await measure_again(client, collection.name, walks, hosts, _later(collection, options))
    found = {(walk.agent, walk.seed): _requests(walk) for walk in again.walks}
    return _write(collection, [(_requests(walk), found.get((walk.agent, walk.seed), [])) for walk in walks])


async def prove_opened(
    client: ReplayClient,
    collection: Collection,
    hosts: Iterable[str],
    timed: TimedPages,
    options: CoverageOptions,
) -> int:
    """Open pages later that requested the time when they were recorded; write and count rules as above."""
    walks = [WalkRecord("uniform", number, url) for number, url in enumerate(timed.pages)]
    options = replace(_later(collection, options), agents=("uniform",), steps=1)
    opened = await measure_again(client, collection.name, walks, hosts, options)
    return _write(collection, [(timed.requests, [each for walk in opened.walks for each in _requests(walk)])])


@dataclass(frozen=True, slots=True)
class TimedPages:
    """Crawled pages that requested the time when they were opened, and these requests."""

    pages: tuple[str, ...] = ()
    requests: tuple[Request, ...] = ()


def timed_pages(collection: Collection) -> TimedPages:
    """Return a few pages that together sent every kind of request with the time that no rule covers."""
    recorded_at, rules = collection.manifest().recorded_at, read_rules(collection)
    if not recorded_at:
        return TimedPages()
    requests: dict[tuple[str, str], list[Request]] = {}
    for request in _with_time(collection, recorded_at):
        if rules.clock_alias(request) is None:
            requests.setdefault(_kind(request), []).append(request)
    pages: list[str] = []
    found: list[Request] = []
    for page in collection.page_list():
        if not requests or len(pages) == _WALKS or not page.baseline:
            break
        sent = {_kind(each) for each in read_resources(collection.baseline / page.baseline / RESOURCES)}
        if new := sent & requests.keys():
            pages.append(page.url)
            found += [request for kind in sorted(new) for request in requests.pop(kind)[:_SAMPLE]]
    return TimedPages(tuple(pages), tuple(found))


def _with_time(collection: Collection, recorded_at: str) -> Iterator[Request]:
    """Yield the recorded requests that hold the time of the recording."""
    for capture in collection.captures():
        if capture.method == "GET" and "?" in capture.url:
            request = Request("GET", capture.url)
        elif capture.method == "POST" and capture.request_offset >= 0:
            request = collection.read_capture(capture).request
        else:
            continue
        if request_holds_time(request, recorded_at):
            yield request


def _kind(request: Request | RecordedRequest) -> tuple[str, str]:
    """Return what requests of one kind share; the query names the operation of many a GraphQL request."""
    return request.method, _DIGITS.sub("", request.url)


def _later(collection: Collection, options: CoverageOptions) -> CoverageOptions:
    start = from_timestamp(collection.manifest().recorded_at)
    return replace(options, start=start + clock_shift(start))


def _write(collection: Collection, pairs: list[tuple[Iterable[Request], Iterable[Request]]]) -> int:
    start, before = from_timestamp(collection.manifest().recorded_at), read_rules(collection)
    proved = tuple(clock_rules(pairs, start, known=before))
    after = merge(before, LearnResult(proved, clock=start))
    if not proved or after.dump() == before.dump():
        return 0
    recorded = _with_time(collection, collection.manifest().recorded_at)
    equal = tuple(equal_time_rules(recorded, start, after))
    write_rules(collection, merge(after, LearnResult(equal, clock=start)))
    return len(proved) + len(equal)


def _requests(walk: WalkRecord) -> list[Request]:
    return [miss.request() for miss in walk.misses if miss.whole]
