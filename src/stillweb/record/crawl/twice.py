"""A second recording of the same pages with another time and seed, from which volatile values are learned.

The second recording is stored as the version `twice` of the collection. It is deleted when the rules are
learned, unless the caller keeps it. An interrupted one is resumed (docs/reference/rules.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, learn, merge, read_rules, write_rules
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.versions import FOLDER
from stillweb.errors import RecordError
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.report import CrawlEvent
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.recording import start_of_pages
from stillweb.urls import from_timestamp, to_timestamp

VERSION = "twice"


@dataclass(frozen=True, slots=True)
class TwiceReport:
    """Result of the second recording.

    Attributes:
        learned: rules learned from both.
        written: whether the collection's rules changed.
        kept: name of the second recording, "" if it was deleted.
    """

    learned: LearnResult
    pages: int
    failed: dict[str, str]
    written: bool
    kept: str


async def record_twice(
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: Callable[[CrawlEvent], None] = lambda event: None,
    *,
    keep: bool = False,
) -> TwiceReport:
    """Record a collection's pages again, and write the rules that the two recordings prove.

    Args:
        collection: collection whose crawl is complete.
        options: options of the first recording.
        keep: keep the second recording as `NAME@twice`.

    Raises:
        RecordError: if the collection has no page.
        UpstreamUnreachable: if no page responded the second time.
    """
    first = collection.manifest()
    pages = [page.url for page in collection.page_list()]
    if not pages:
        raise RecordError("no page to record again", hint="stillweb record crawl URL... -c NAME --twice")
    second = _second_recording(collection, first)
    again = replace(
        options,
        scope=ScopeKind.PAGE,
        depth=0,
        limit=None,
        seed=first.seed + 1,
        profile=Profile.from_dict(first.profile),
        # Exactly the recorded pages, however they were found.
        include=(),
        exclude=(),
        sitemap=None,
        robots=False,
        time_limit=None,
        size_limit=None,
    )
    report = await crawl(pages, second, ca, again, on_event)
    learned = learn(collection, second)
    before = read_rules(collection)
    after = merge(before, learned)
    written = after.dump() != before.dump()
    if written:
        write_rules(collection, after)
    seen = second.manifest()
    summary = {"recorded_at": seen.recorded_at, "seed": seen.seed, "pages": len(report.pages)}
    summary |= {"rules": len(learned.rules), "kept": keep}
    collection.write_manifest(replace(first, extra=first.extra | {"twice": summary}))
    if not keep:
        remove_collection(second.path)
    name = f"{collection.name}@{VERSION}" if keep else ""
    return TwiceReport(learned, len(report.pages), dict(report.failed_pages), written, name)


def _second_recording(collection: Collection, first: Manifest) -> Collection:
    """Return an interrupted second recording, or a new one with its own clock."""
    second = Collection(collection.path / FOLDER, VERSION)
    if second.path.exists():
        if second.manifest().state == "partial":
            return second
        remove_collection(second.path)
    second = Collection.create(second.root, second.name)
    started = now()
    if to_timestamp(started) <= first.recorded_at:  # both in the same second
        started = from_timestamp(first.recorded_at) + timedelta(seconds=1)
    started = start_of_pages(started)
    manifest = Manifest(
        name=VERSION,
        created=started.isoformat(timespec="seconds"),
        recorded_at=to_timestamp(started),
        seed=first.seed + 1,
        profile=first.profile,
        state="partial",
    )
    second.write_manifest(manifest)
    return second
