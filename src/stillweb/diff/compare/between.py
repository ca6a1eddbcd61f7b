"""Compare two collections, or two versions of one collection. No browser is needed.

Pages are paired by URL, and their baselines are compared as `compare` does for a replay. Requests are paired
by method, URL and request key over all captures, and compared by the payload digests of the indexes. If the
indexes use different digest algorithms, the payloads are read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256

from stillweb import clock
from stillweb.collections.baselines import read_baseline
from stillweb.collections.layout import Collection
from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity
from stillweb.diff.compare.metrics import BodyAgreement, ResourceAgreement, ResourceRow
from stillweb.diff.compare.pages import ComparisonContext, compare_sides, rows_of, side_of
from stillweb.diff.compare.run import WORK, DiffOptions, key_of, pool_of, state_in
from stillweb.diff.compare.settings import read_settings
from stillweb.diff.report.report import DiffReport, PageDiff
from stillweb.errors import CollectionError
from stillweb.model import Capture, Page

_REPLAY_SCORES = ("recall", "hits", "misses", "fuzzy")  # undefined for two recordings

_Key = tuple[str, str, str]
_Side = tuple[Collection, Page]


async def diff_between(
    first: Collection,
    second: Collection,
    options: DiffOptions | None = None,
    *,
    names: tuple[str, str] | None = None,
    on_page: Callable[[PageDiff], None] = lambda page: None,
) -> DiffReport:
    """Return the changes from the first collection to the second.

    Args:
        second: the later collection; its `diff.yaml` applies.
        options: only `gates` (None: no gates), `workers`, `work` and `limit` are used.
        names: names of both collections in the report.
        on_page: called with each page that both collections have.

    Raises:
        CollectionError: if a collection lists no pages, or a baseline cannot be read.
        UsageError: if another comparison of the second collection is running.
    """
    options, began = options or DiffOptions(), clock.perf()
    names = names or (first.name, second.name)
    before, after = _by_url(first), _by_url(second)
    shared = [url for url in before if url in after][: options.limit]
    gates = dict(options.gates or {})
    work = options.work or second.path / WORK
    with (
        state_in(work, key_of(first=first.path, second=second.path), fresh=True) as state,
        pool_of(options, len(shared)) as pool,
    ):
        context = ComparisonContext(
            second.name, state.pictures, read_settings(second.path), gates, between=True
        )
        loop = asyncio.get_running_loop()

        async def one(url: str) -> PageDiff:
            sides = (first, before[url]), (second, after[url])
            page = await loop.run_in_executor(pool, _compare, *sides, context)
            on_page(page)
            return page

        pages = await asyncio.gather(*(one(url) for url in shared))
        state.finish()
    requests = await asyncio.to_thread(changed_requests, first, second)
    return DiffReport(
        collection=f"{names[0]} → {names[1]}",
        pages=tuple(pages),
        gates=gates,
        about={"compared_at": f"{clock.now():%Y-%m-%d %H:%M:%S} UTC"},
        seconds=clock.perf() - began,
        findings=(
            *_unpaired(before, after, FindingKind.REMOVED_PAGE, names[0]),
            *_unpaired(after, before, FindingKind.ADDED_PAGE, names[1]),
        ),
        sides=names,
        requests=tuple(requests),
    )


def _by_url(collection: Collection) -> dict[str, Page]:
    pages = {page.url: page for page in collection.page_list()}
    if not pages:
        raise CollectionError(
            f"{collection.name} lists no pages to compare",
            path=collection.pages,
            hint=f"stillweb collections show {collection.name} --captures",
        )
    return pages


def _unpaired(
    mine: dict[str, Page], others: dict[str, Page], kind: FindingKind, name: str
) -> Iterator[Finding]:
    for url in mine:
        if url not in others:
            yield Finding(kind, FindingSeverity.INFO, url, f"Only {name} has this page.", page=url)


def _compare(one: _Side, other: _Side, context: ComparisonContext) -> PageDiff:
    """Compare the baselines of a page in two collections; only the status if a baseline is missing."""
    (_, before), (_, after) = one, other
    result = PageDiff(
        id=after.id,
        url=after.url,
        title=after.title,
        compared=False,
        recorded_status=before.status,
        replayed_status=after.status,
    )
    scores = {"status": float(before.status == after.status)} if before.status and after.status else {}
    result = replace(result, scores=scores)
    if not before.baseline or not after.baseline:
        return replace(result, notes=("one of the two collections has no baseline of this page",))
    sides = [side_of(read_baseline(c.baseline / page.baseline)) for c, page in (one, other)]
    rows = rows_of(sides[0].fetches, sides[1].fetches, context.settings)
    masks = context.settings.boxes(after.url)
    result = replace(result, compared=True, resources=tuple(rows))
    found = compare_sides(result, sides[0], sides[1], context, masks)
    return replace(found, scores={n: v for n, v in found.scores.items() if n not in _REPLAY_SCORES})


def changed_requests(first: Collection, second: Collection) -> list[ResourceRow]:
    """Return the requests that one collection lacks or answers differently, sorted by URL.

    Several captures of a request (polling, a cart) are one row. They agree if the sets of responses agree,
    in any order.
    """
    before, after = _by_request(first.captures()), _by_request(second.captures())
    rows = []
    for key in sorted({*before, *after}, key=lambda key: (key[1], key[0], key[2])):
        mine, theirs = before.get(key, []), after.get(key, [])
        if not mine or not theirs:
            rows.append(_row(key, mine, theirs, BodyAgreement.UNKNOWN))
            continue
        statuses = [sorted(c.status for c in side) for side in (mine, theirs)]
        body = _body_agreement((first, mine), (second, theirs))
        if statuses[0] != statuses[1] or body is BodyAgreement.DIFFERS:
            rows.append(_row(key, mine, theirs, body))
    return rows


def _by_request(captures: Iterable[Capture]) -> dict[_Key, list[Capture]]:
    found: defaultdict[_Key, list[Capture]] = defaultdict(list)
    for capture in sorted(captures, key=Capture.in_time):
        found[capture.method, capture.url, capture.key].append(capture)
    return found


def _row(key: _Key, mine: list[Capture], theirs: list[Capture], body: BodyAgreement) -> ResourceRow:
    agreement = ResourceAgreement.AGREE
    if not mine or not theirs:
        agreement = ResourceAgreement.EXTRA if theirs else ResourceAgreement.MISSING
    elif mine[0].status != theirs[0].status:
        agreement = ResourceAgreement.DIFFERS
    method, url, _ = key
    return ResourceRow(
        url=url,
        method=method,
        type=(mine or theirs)[0].mime,
        agreement=agreement,
        recorded=mine[0].status if mine else None,
        replayed=theirs[0].status if theirs else None,
        body=body,
    )


def _body_agreement(
    one: tuple[Collection, list[Capture]], other: tuple[Collection, list[Capture]]
) -> BodyAgreement:
    digests = [{capture.digest for capture in captures} for _, captures in (one, other)]
    if digests[0] != digests[1] and _algorithms(digests[0]) != _algorithms(digests[1]):
        digests = [{_payload(c, capture) for capture in captures} for c, captures in (one, other)]
    return BodyAgreement.SAME if digests[0] == digests[1] else BodyAgreement.DIFFERS


def _algorithms(digests: set[str]) -> set[str]:
    return {digest.partition(":")[0] for digest in digests}


def _payload(collection: Collection, capture: Capture) -> str:
    return sha256(collection.read_capture(capture).response.raw_body).hexdigest()
