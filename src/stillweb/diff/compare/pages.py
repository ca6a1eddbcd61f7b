"""Compare a visited page with its baseline: functions of files and values, suitable for a process pool.

A baseline of an older recording, or of another program, lacks some of the compared data. Scores that need
the missing data are omitted, and a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stillweb.collections.baselines import Baseline, BaselineTool, RecordedResponse, read_baseline
from stillweb.diff.compare import dom
from stillweb.diff.compare.diagnose import FindingContext, find
from stillweb.diff.compare.metrics import (
    DiffLine,
    Fetch,
    ResourceAgreement,
    ResourceRow,
    axtree_scores,
    body_score,
    line_diff,
    match_resources,
    redirects,
    request_recall,
    resource_score,
    text_scores,
    without_ids,
)
from stillweb.diff.compare.pixels import Box, coarse_similarity, compare_pictures
from stillweb.diff.compare.settings import DiffSettings
from stillweb.diff.compare.visit import ReplayedPage
from stillweb.diff.report.report import PageDiff, PagePictures
from stillweb.matching.noise import default_noise
from stillweb.model import GUESSES, Page

_BLOCKED = "violates the following Content Security Policy directive"
_LINE = re.compile(r":\d+\)$")


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """One side of a comparison: a baseline or a replayed page.

    Attributes:
        text, axtree: None if they were not captured.
        fetches: empty if `listed` is False.
        origin: the other program that made the baseline; for a replay, the program whose text format it uses.
    """

    text: str | None
    axtree: str | None
    dom: str
    fetches: tuple[Fetch, ...]
    arrival: RecordedResponse | None
    picture: Path | None
    origin: BaselineTool | None = None
    listed: bool = True


@dataclass(frozen=True, slots=True)
class ComparisonContext:
    """Settings that all page comparisons of a run share.

    Attributes:
        collection: name for the suggested commands.
        pictures: folder for screenshots of the replay and for difference overlays.
        gates: limits that separate errors from warnings.
        between: whether both sides are recordings.
    """

    collection: str
    pictures: Path
    settings: DiffSettings = field(default_factory=DiffSettings)
    gates: dict[str, float] = field(default_factory=dict)
    between: bool = False


def compare(page: Page, folder: Path | None, seen: ReplayedPage, context: ComparisonContext) -> PageDiff:
    """Compare a page with the baseline in `folder`. Blocks for up to a second.

    Raises:
        CollectionError: if the baseline cannot be read.
    """
    baseline = read_baseline(folder) if folder else None
    recorded = side_of(baseline) if baseline else None
    rows = rows_of(recorded.fetches if recorded else (), seen.fetches, context.settings)
    if recorded and recorded.origin:
        rows = _of_visit(rows)
    result = PageDiff(
        id=page.id,
        url=page.url,
        title=page.title,
        compared=baseline is not None,
        recorded_status=page.status,
        replayed_status=seen.status,
        replayed_url=seen.snapshot.url,
        resources=tuple(rows),
        notes=(*seen.notes, *_unsettled(page, baseline)),
        replayed_ms=seen.load_ms,
        error=seen.error,
    )
    scores: dict[str, float] = {}
    if page.status:
        scores["status"] = float(page.status == seen.status)
    picture = _stored_picture(page, seen.snapshot.picture, baseline, context)
    if recorded is None:
        scores["hits"] = _hits(result)
        result = replace(result, scores=scores, pictures=PagePictures(replayed=picture))
        return replace(result, findings=find(result, FindingContext(context.collection, context.gates)))
    snapshot = seen.snapshot
    arrival = RecordedResponse(snapshot.url, complaints=seen.complaints, load_ms=seen.load_ms)
    text = seen.document_text if recorded.origin else snapshot.text
    origin = recorded.origin
    replayed = ComparisonSide(text, snapshot.axtree, snapshot.dom, seen.fetches, arrival, picture, origin)
    masks = [*context.settings.boxes(page.url), *seen.masked]
    result = replace(result, scores=scores)
    return compare_sides(result, recorded, replayed, context, masks)


def _unsettled(page: Page, baseline: Baseline | None) -> Iterator[str]:
    # Older recordings only: newer ones store it in the baseline's arrival.
    if baseline and not baseline.arrival and (why := page.extra.get("unsettled")):
        yield f"the page did not settle when it was recorded: {why}"


def side_of(baseline: Baseline) -> ComparisonSide:
    fetches = tuple(
        Fetch(r.url, r.method, r.type, r.status, body=r.body, start=r.start, duration=r.duration)
        for r in baseline.requests or ()
    )
    return ComparisonSide(
        baseline.text,
        baseline.axtree,
        baseline.dom,
        fetches,
        baseline.arrival,
        baseline.picture,
        baseline.origin,
        baseline.requests is not None,
    )


def compare_sides(
    page: PageDiff,
    recorded: ComparisonSide,
    replayed: ComparisonSide,
    context: ComparisonContext,
    masks: Sequence[Box] = (),
) -> PageDiff:
    """Return the page with its findings and with every score for which both sides have the data."""
    rows = page.resources
    scores = dict(page.scores)
    own = recorded.origin is None and replayed.origin is None
    chains = redirects(recorded.fetches), redirects(replayed.fetches)
    if own:  # another program's request list is unordered and continues past the state in its screenshot
        scores["redirects"] = float(chains[0] == chains[1])
        scores["resources"] = resource_score(rows)
    scores["recall"] = request_recall(rows)
    if (bodies := body_score(rows)) is not None:
        scores["bodies"] = bodies
    scores["hits"] = _hits(page)
    if recorded.listed and replayed.listed:
        scores["misses"] = float(sum(row.unexplained for row in rows))
    scores["fuzzy"] = sum(row.tier in GUESSES for row in rows) / max(1, page.counts.requested)
    if own:
        page = replace(page, redirects=line_diff("\n".join(chains[0]), "\n".join(chains[1])))
    page = _with_texts(replace(page, scores=scores), recorded, replayed)
    if own:
        page = _with_arrivals(page, recorded.arrival, replayed.arrival, context.settings)
    else:
        page = replace(page, notes=(*page.notes, _foreign(recorded, replayed)))
    page, moved = _with_dom(page, recorded.dom, replayed.dom, own=own)
    if own or (recorded.picture and replayed.picture):
        page = _with_pictures(page, recorded.picture, replayed.picture, context, masks, own=own)
    else:
        page = replace(page, pictures=PagePictures(recorded.picture, replayed.picture))
    finding_context = FindingContext(
        context.collection,
        context.gates,
        recorded.arrival,
        tuple(moved),
        replayed.dom or recorded.dom,
        context.between,
    )
    return replace(page, findings=find(page, finding_context))


def _with_texts(page: PageDiff, recorded: ComparisonSide, replayed: ComparisonSide) -> PageDiff:
    """Compare text and accessibility tree where both sides have them in the same format."""
    scores = dict(page.scores)
    programs = [side.origin.program if side.origin else "" for side in (recorded, replayed)]
    if recorded.text is not None and replayed.text is not None and programs[0] == programs[1]:
        scores["text"], scores["order"] = text_scores(recorded.text, replayed.text)
        page = replace(page, text=line_diff(recorded.text, replayed.text))
    if recorded.axtree is not None and replayed.axtree is not None:
        scores["axtree"], scores["interactive"] = axtree_scores(recorded.axtree, replayed.axtree)
        page = replace(page, axtree=line_diff(without_ids(recorded.axtree), without_ids(replayed.axtree)))
    return replace(page, scores=scores)


def _foreign(recorded: ComparisonSide, replayed: ComparisonSide) -> str:
    side = recorded if recorded.origin else replayed
    available = {
        "screenshot": side.picture is not None,
        "document text": side.text is not None,
        "answered requests": side.listed,
    }
    compared = ", ".join(name for name, present in available.items() if present)
    return f"the baseline was made by {side.origin}; compared: {compared or 'nothing'}"


def _of_visit(rows: list[ResourceRow]) -> list[ResourceRow]:
    """Give rows that only the recording has no weight: the other program's scrolling requested them."""
    return [
        replace(row, weightless=True) if row.agreement is ResourceAgreement.MISSING else row for row in rows
    ]


def rows_of(
    recorded: Sequence[Fetch], replayed: Sequence[Fetch], settings: DiffSettings
) -> list[ResourceRow]:
    """Pair the requests of two sides. Tracking URLs and ignored URLs get no weight."""
    noise = default_noise()
    return [
        replace(row, weightless=True) if settings.ignores(row.url) or noise.why(row.url) else row
        for row in match_resources(recorded, replayed)
    ]


def _hits(page: PageDiff) -> float:
    counts = page.counts
    return counts.hit / (counts.hit + counts.miss) if counts.hit + counts.miss else 1.0


def _with_arrivals(
    page: PageDiff,
    recorded: RecordedResponse | None,
    replayed: RecordedResponse | None,
    settings: DiffSettings,
) -> PageDiff:
    if recorded is None or replayed is None:
        lacking = "the baseline of this older recording has no console messages"
        return page if replayed is None else replace(page, notes=(*page.notes, lacking))
    scores = dict(page.scores)
    scores["loaded"] = float(not recorded.pending)
    before, after = (
        Counter(map(_without_line, filter(settings.counts, each.complaints))) for each in (recorded, replayed)
    )
    scores["console"] = float((after - before).total())
    notes = page.notes
    if not recorded.settled:
        notes += (f"the page did not settle when it was recorded: {recorded.reason}",)
    return replace(
        page,
        scores=scores,
        recorded_url=recorded.url,
        replayed_url=replayed.url,
        recorded_ms=recorded.load_ms,
        replayed_ms=replayed.load_ms,
        console=_lines("-", (before - after).elements()) + _lines("+", (after - before).elements()),
        notes=notes,
    )


def _without_line(message: str) -> str:
    # Chromium reports a Content Security Policy violation with the parser's current line, which varies.
    return _LINE.sub(")", message) if _BLOCKED in message else message


def _lines(kind: str, texts: Iterable[str]) -> tuple[DiffLine, ...]:
    return tuple(DiffLine(kind, text) for text in texts)


def _with_dom(
    page: PageDiff, recorded: str, replayed: str, *, own: bool
) -> tuple[PageDiff, list[dom.MovedElement]]:
    if not recorded or not replayed:
        if not own:
            return page, []
        lacking = "the baseline of this older recording has no element tree"
        return (page if page.error else replace(page, notes=(*page.notes, lacking))), []
    if recorded == replayed:
        return replace(page, scores={**page.scores, "dom": 1.0, "layout": 1.0}), []
    before, after = dom.parse(recorded), dom.parse(replayed)
    share, moved = dom.moved(before, after)
    scores = {**page.scores, "dom": 1.0, "layout": share}
    if dom.tree_hash(before) == dom.tree_hash(after):
        return replace(page, scores=scores), moved
    scores["dom"] = dom.similarity(before, after)
    return replace(page, scores=scores, dom=line_diff(dom.lines(before), dom.lines(after))), moved


def _stored_picture(
    page: Page, picture: bytes, baseline: Baseline | None, context: ComparisonContext
) -> Path | None:
    """Write a screenshot of the replay unless it equals the recorded one; return its path."""
    if not picture:
        return None
    if baseline and baseline.picture and baseline.picture.read_bytes() == picture:
        return baseline.picture
    path = context.pictures / f"{page.id}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    return path


def _with_pictures(
    page: PageDiff,
    recorded: Path | None,
    replayed: Path | None,
    context: ComparisonContext,
    masks: Sequence[Box],
    *,
    own: bool,
) -> PageDiff:
    raw = [path.read_bytes() if path else b"" for path in (recorded, replayed)]
    pixels = compare_pictures(raw[0], raw[1], masks)
    overlay = None
    if pixels.overlay:
        overlay = context.pictures / f"{page.id}.marked.png"
        overlay.parent.mkdir(parents=True, exist_ok=True)
        overlay.write_bytes(pixels.overlay)
    if own:
        scores = {**page.scores, "screenshot": pixels.score, "ssim": pixels.ssim}
    else:
        look = coarse_similarity(raw[0], raw[1], masks) if pixels.score < 1 else 1.0
        scores = {**page.scores, "look": look}
    notes = page.notes + ((pixels.note,) if pixels.note and not page.error else ())
    return replace(
        page,
        scores=scores,
        notes=notes,
        pixels=replace(pixels, overlay=b""),
        pictures=PagePictures(recorded, replayed, overlay),
    )
