"""Proof of which times in requests follow the page's clock: walks that missed such requests, repeated later.

The replay sets the page's clock, so that the same walk can be taken at another time. No request goes to the
live site. `collections.learn.pagetimes` compares the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from stillweb.collections.layout import Collection
from stillweb.collections.learn.pagetimes import LATER, clock_rules
from stillweb.collections.learn.rules import Learned, merge, read_rules, write_rules
from stillweb.collections.misses import Missed
from stillweb.coverage.agents import AGENTS
from stillweb.coverage.causes import holds_time
from stillweb.coverage.measure import CoverageOptions, CoverageResult, WalkRecord, measure_again
from stillweb.matching.parts import shape_key
from stillweb.matching.rules import Rules
from stillweb.model import Request
from stillweb.replay import ReplayClient
from stillweb.urls import from_timestamp

_WALKS = 8  # that are repeated, those with the most requests first


def to_repeat(
    result: CoverageResult, recorded_at: str, rules: Rules, tried: Set[bytes] = frozenset()
) -> list[WalkRecord]:
    """Return the walks that missed requests with the time of the visit, the most such requests first.

    Args:
        result: a measurement.
        recorded_at: time of the recording.
        rules: those of the collection; requests whose times they compare need no proof.
        tried: keys (`shape_key`) of requests for which a proof has failed.
    """

    def wants_proof(miss: Missed) -> bool:
        if not holds_time(miss, recorded_at) or shape_key(miss.request()) in tried:
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
    start = from_timestamp(collection.manifest().recorded_at)
    later = replace(options, start=start + LATER)
    again = await measure_again(client, collection.name, walks, hosts, later)
    found = {(walk.agent, walk.seed): _requests(walk) for walk in again.walks}
    pairs = [(_requests(walk), found.get((walk.agent, walk.seed), [])) for walk in walks]
    before = read_rules(collection)
    proved = tuple(clock_rules(pairs, start, known=before))
    after = merge(before, Learned(proved, clock=start))
    if not proved or after.dump() == before.dump():
        return 0
    write_rules(collection, after)
    return len(proved)


def _requests(walk: WalkRecord) -> list[Request]:
    return [miss.request() for miss in walk.misses if miss.whole]
