"""Hold what was seen of a page against its baseline: a function of files and values, for a pool of processes.

A baseline of an older recording, or of another program, lacks some of what is compared; such scores are
left out, and a note says so.
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
from stillweb.diff.compare.pixels import Box, compare_pictures, rough_likeness
from stillweb.diff.compare.settings import Settings
from stillweb.diff.compare.visit import ReplayedPage
from stillweb.diff.report.report import PageDiff, PagePictures
from stillweb.matching.noise import default_noise
from stillweb.model import GUESSES, Page

_BLOCKED = "violates the following Content Security Policy directive"
_LINE = re.compile(r":\d+\)$")


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a baseline, or what was seen of a replay.

    Attributes:
        text, axtree: None where they were not taken.
        fetches: none where `listed` is false.
        origin: of a baseline that another program took; of a replay, the one whose manner its text is in.
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
class Bench:
    """Where comparisons are made.

    Attributes:
        collection: its name, for the commands that mend.
        pictures: folder for the pictures of the replay, and for what differs marked.
        gates: tell whether a finding is an error.
        between: whether both sides are recordings.
    """

    collection: str
    pictures: Path
    settings: Settings = field(default_factory=Settings)
    gates: dict[str, float] = field(default_factory=dict)
    between: bool = False


def compare(page: Page, folder: Path | None, seen: ReplayedPage, bench: Bench) -> PageDiff:
    """Compare a page with its baseline's folder; None if it has none. Blocks for up to a second.

    Raises:
        CollectionError: if the baseline cannot be read.
    """
    baseline = read_baseline(folder) if folder else None
    recorded = side_of(baseline) if baseline else None
    rows = rows_of(recorded.fetches if recorded else (), seen.fetches, bench.settings)
    if recorded and recorded.origin:
        rows = _of_visit(rows)
    result = PageDiff(
        id=page.id,
        url=page.url,
        title=page.title,
        compared=baseline is not None,
        recorded_status=page.status,
        replayed_status=seen.status,
        replayed_url=seen.portrait.url,
        resources=tuple(rows),
        notes=(*seen.notes, *_restless(page, baseline)),
        replayed_ms=seen.load_ms,
        error=seen.error,
    )
    scores: dict[str, float] = {}
    if page.status:
        scores["status"] = float(page.status == seen.status)
    picture = _kept(page, seen.portrait.picture, baseline, bench)
    if recorded is None:
        scores["hits"] = _hits(result)
        result = replace(result, scores=scores, pictures=PagePictures(replayed=picture))
        return replace(result, findings=find(result, FindingContext(bench.collection, bench.gates)))
    portrait = seen.portrait
    arrival = RecordedResponse(portrait.url, complaints=seen.complaints, load_ms=seen.load_ms)
    text = seen.document_text if recorded.origin else portrait.text
    origin = recorded.origin
    replayed = Side(text, portrait.axtree, portrait.dom, seen.fetches, arrival, picture, origin)
    masks = [*bench.settings.boxes(page.url), *seen.masked]
    result = replace(result, scores=scores)
    return compare_sides(result, recorded, replayed, bench, masks)


def _restless(page: Page, baseline: Baseline | None) -> Iterator[str]:
    """Yield what an older recording noted of a page that did not come to rest; newer ones say more."""
    if baseline and not baseline.arrival and (why := page.extra.get("unsettled")):
        yield f"did not settle when it was recorded: {why}"


def side_of(baseline: Baseline) -> Side:
    """Return a baseline as a side of a comparison."""
    fetches = tuple(
        Fetch(r.url, r.method, r.type, r.status, body=r.body, start=r.start, duration=r.duration)
        for r in baseline.requests or ()
    )
    return Side(
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
    page: PageDiff, recorded: Side, replayed: Side, bench: Bench, masks: Sequence[Box] = ()
) -> PageDiff:
    """Complete a page's comparison: every score that both sides have what it takes for, and the findings."""
    rows = page.resources
    scores = dict(page.scores)
    ours = recorded.origin is None and replayed.origin is None
    chains = redirects(recorded.fetches), redirects(replayed.fetches)
    if ours:  # another program's list has no order, and goes on past the state that its picture shows
        scores["redirects"] = float(chains[0] == chains[1])
        scores["resources"] = resource_score(rows)
    scores["recall"] = request_recall(rows)
    if (bodies := body_score(rows)) is not None:
        scores["bodies"] = bodies
    scores["hits"] = _hits(page)
    if recorded.listed and replayed.listed:
        scores["misses"] = float(sum(row.unexplained for row in rows))
    scores["fuzzy"] = sum(row.tier in GUESSES for row in rows) / max(1, page.counts.asked)
    if ours:
        page = replace(page, redirects=line_diff("\n".join(chains[0]), "\n".join(chains[1])))
    page = _with_texts(replace(page, scores=scores), recorded, replayed)
    if ours:
        page = _with_arrivals(page, recorded.arrival, replayed.arrival, bench.settings)
    else:
        page = replace(page, notes=(*page.notes, _foreign(recorded, replayed)))
    page, moved = _with_dom(page, recorded.dom, replayed.dom, ours=ours)
    if ours or (recorded.picture and replayed.picture):
        page = _with_pictures(page, recorded.picture, replayed.picture, bench, masks, ours=ours)
    else:
        page = replace(page, pictures=PagePictures(recorded.picture, replayed.picture))
    context = FindingContext(
        bench.collection,
        bench.gates,
        recorded.arrival,
        tuple(moved),
        replayed.dom or recorded.dom,
        bench.between,
    )
    return replace(page, findings=find(page, context))


def _with_texts(page: PageDiff, recorded: Side, replayed: Side) -> PageDiff:
    """Compare the texts and accessibility trees that both sides have, in one manner."""
    scores = dict(page.scores)
    programs = [side.origin.program if side.origin else "" for side in (recorded, replayed)]
    if recorded.text is not None and replayed.text is not None and programs[0] == programs[1]:
        scores["text"], scores["order"] = text_scores(recorded.text, replayed.text)
        page = replace(page, text=line_diff(recorded.text, replayed.text))
    if recorded.axtree is not None and replayed.axtree is not None:
        scores["axtree"], scores["interactive"] = axtree_scores(recorded.axtree, replayed.axtree)
        page = replace(page, axtree=line_diff(without_ids(recorded.axtree), without_ids(replayed.axtree)))
    return replace(page, scores=scores)


def _foreign(recorded: Side, replayed: Side) -> str:
    """Return the note that says what another program's baseline is good for."""
    side = recorded if recorded.origin else replayed
    kept = {
        "the picture": side.picture is not None,
        "every text of the document": side.text is not None,
        "which requests had an answer": side.listed,
    }
    compared = ", ".join(what for what, there in kept.items() if there)
    return f"the baseline is {side.origin}'s, and compared by what it kept: {compared or 'nothing'}"


def _of_visit(rows: list[ResourceRow]) -> list[ResourceRow]:
    """Return rows of which those weigh nothing that only the recording has: its scrolling asked for them."""
    return [
        replace(row, weightless=True) if row.agreement is ResourceAgreement.MISSING else row for row in rows
    ]


def rows_of(recorded: Sequence[Fetch], replayed: Sequence[Fetch], settings: Settings) -> list[ResourceRow]:
    """Pair the requests of two sides; counters, and what the settings ignore, weigh nothing."""
    noise = default_noise()
    return [
        replace(row, weightless=True) if settings.ignores(row.url) or noise.why(row.url) else row
        for row in match_resources(recorded, replayed)
    ]


def _hits(page: PageDiff) -> float:
    counts = page.counts
    return counts.hit / (counts.hit + counts.miss) if counts.hit + counts.miss else 1.0


def _with_arrivals(
    page: PageDiff, recorded: RecordedResponse | None, replayed: RecordedResponse | None, settings: Settings
) -> PageDiff:
    if recorded is None or replayed is None:
        lacking = "the baseline is of an older recording: what its scripts complained of is not known"
        return page if replayed is None else replace(page, notes=(*page.notes, lacking))
    scores = dict(page.scores)
    scores["loaded"] = float(not recorded.pending)
    before, after = (
        Counter(map(_without_line, filter(settings.counts, each.complaints))) for each in (recorded, replayed)
    )
    scores["console"] = float((after - before).total())
    notes = page.notes
    if not recorded.settled:
        notes += (f"did not settle when it was recorded: {recorded.reason}",)
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


def _without_line(complaint: str) -> str:
    """Return a complaint without its line, where that is how far the parser happened to be.

    Chromium tells so of what a Content Security Policy blocks: the same image, blocked at another line.
    """
    return _LINE.sub(")", complaint) if _BLOCKED in complaint else complaint


def _lines(kind: str, texts: Iterable[str]) -> tuple[DiffLine, ...]:
    return tuple(DiffLine(kind, text) for text in texts)


def _with_dom(
    page: PageDiff, recorded: str, replayed: str, *, ours: bool
) -> tuple[PageDiff, list[dom.Moved]]:
    if not recorded or not replayed:
        if not ours:
            return page, []
        lacking = "the baseline is of an older recording: its tree of elements is not known"
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


def _kept(page: Page, picture: bytes, baseline: Baseline | None, bench: Bench) -> Path | None:
    """Write a picture of the replay, unless it is the recorded one byte for byte; return where it is."""
    if not picture:
        return None
    if baseline and baseline.picture and baseline.picture.read_bytes() == picture:
        return baseline.picture
    path = bench.pictures / f"{page.id}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    return path


def _with_pictures(
    page: PageDiff,
    recorded: Path | None,
    replayed: Path | None,
    bench: Bench,
    masks: Sequence[Box],
    *,
    ours: bool,
) -> PageDiff:
    raw = [path.read_bytes() if path else b"" for path in (recorded, replayed)]
    pixels = compare_pictures(raw[0], raw[1], masks)
    overlay = None
    if pixels.overlay:
        overlay = bench.pictures / f"{page.id}.marked.png"
        overlay.parent.mkdir(parents=True, exist_ok=True)
        overlay.write_bytes(pixels.overlay)
    if ours:
        scores = {**page.scores, "screenshot": pixels.score, "ssim": pixels.ssim}
    else:
        look = rough_likeness(raw[0], raw[1], masks) if pixels.score < 1 else 1.0
        scores = {**page.scores, "look": look}
    notes = page.notes + ((pixels.note,) if pixels.note and not page.error else ())
    return replace(
        page,
        scores=scores,
        notes=notes,
        pixels=replace(pixels, overlay=b""),
        pictures=PagePictures(recorded, replayed, overlay),
    )
