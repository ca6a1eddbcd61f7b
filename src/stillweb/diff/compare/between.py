"""Two collections, or two versions of one: what changed from the first to the second. No browser is needed.

Pages are paired by URL and compared by their baselines, just as a replay is by `compare`; requests by
method, URL and request key over all captures, by the digests of their payloads as the indexes have
them. Where the indexes have different kinds of digests the payloads are read.
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
from stillweb.diff.compare.pages import Bench, compare_sides, rows_of, side_of
from stillweb.diff.compare.run import WORK, DiffOptions, key_of, pool_of, state_in
from stillweb.diff.compare.settings import read_settings
from stillweb.diff.report.report import DiffReport, PageDiff
from stillweb.errors import CollectionError
from stillweb.model import Capture, Page

_OF_REPLAY = ("recall", "hits", "misses", "fuzzy")  # scores that two recordings do not have

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
    """Return what changed from one collection to another.

    Args:
        first: as it was.
        second: as it is; its `diff.yaml` says what is masked and what does not count.
        options: `gates` (None: no limits, a change is no failure), `workers`, `work` and `limit` count.
        names: of both, for the report.
        on_page: told of each page that both have.

    Raises:
        CollectionError: if one lists no pages, or a baseline cannot be read.
        UsageError: if another comparison of the second collection is under way.
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
        bench = Bench(second.name, state.pictures, read_settings(second.path), gates, between=True)
        loop = asyncio.get_running_loop()

        async def one(url: str) -> PageDiff:
            sides = (first, before[url]), (second, after[url])
            page = await loop.run_in_executor(pool, _compare, *sides, bench)
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
            *_only(before, after, FindingKind.REMOVED_PAGE, names[0]),
            *_only(after, before, FindingKind.ADDED_PAGE, names[1]),
        ),
        sides=names,
        requests=tuple(requests),
    )


def _by_url(collection: Collection) -> dict[str, Page]:
    pages = {page.url: page for page in collection.page_list()}
    if not pages:
        raise CollectionError(
            f"{collection.name} lists no pages, so that there is nothing to compare",
            path=collection.pages,
            hint=f"stillweb collections show {collection.name} --captures",
        )
    return pages


def _only(mine: dict[str, Page], others: dict[str, Page], kind: FindingKind, name: str) -> Iterator[Finding]:
    for url in mine:
        if url not in others:
            yield Finding(kind, FindingSeverity.INFO, url, f"The page is in {name} only.", page=url)


def _compare(one: _Side, other: _Side, bench: Bench) -> PageDiff:
    """Compare a page of two collections by its baselines; without both only the status is."""
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
        return replace(result, notes=("one of the two has no baseline of this page",))
    sides = [side_of(read_baseline(c.baseline / page.baseline)) for c, page in (one, other)]
    rows = rows_of(sides[0].fetches, sides[1].fetches, bench.settings)
    masks = bench.settings.boxes(after.url)
    result = replace(result, compared=True, resources=tuple(rows))
    found = compare_sides(result, sides[0], sides[1], bench, masks)
    return replace(found, scores={n: v for n, v in found.scores.items() if n not in _OF_REPLAY})


def changed_requests(first: Collection, second: Collection) -> list[ResourceRow]:
    """Return what only one collection has an answer for, or what they answer otherwise, by URL.

    Several captures of a request (a poll, a cart) are one row; they agree if they answered the same,
    in whatever order.
    """
    before, after = _answers(first.captures()), _answers(second.captures())
    rows = []
    for key in sorted({*before, *after}, key=lambda key: (key[1], key[0], key[2])):
        mine, theirs = before.get(key, []), after.get(key, [])
        if not mine or not theirs:
            rows.append(_row(key, mine, theirs, BodyAgreement.UNKNOWN))
            continue
        statuses = [sorted(c.status for c in side) for side in (mine, theirs)]
        body = _bodies((first, mine), (second, theirs))
        if statuses[0] != statuses[1] or body is BodyAgreement.DIFFERS:
            rows.append(_row(key, mine, theirs, body))
    return rows


def _answers(captures: Iterable[Capture]) -> dict[_Key, list[Capture]]:
    found: defaultdict[_Key, list[Capture]] = defaultdict(list)
    for capture in captures:
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


def _bodies(one: tuple[Collection, list[Capture]], other: tuple[Collection, list[Capture]]) -> BodyAgreement:
    digests = [{capture.digest for capture in captures} for _, captures in (one, other)]
    if digests[0] != digests[1] and _kinds(digests[0]) != _kinds(digests[1]):
        digests = [{_payload(c, capture) for capture in captures} for c, captures in (one, other)]
    return BodyAgreement.SAME if digests[0] == digests[1] else BodyAgreement.DIFFERS


def _kinds(digests: set[str]) -> set[str]:
    return {digest.partition(":")[0] for digest in digests}


def _payload(collection: Collection, capture: Capture) -> str:
    return sha256(collection.read_capture(capture).response.raw_body).hexdigest()
