"""Record the same pages again, at another time and with another seed, and learn what varies by itself.

The second recording lies aside, as the version `twice` of the first; it is there to be compared with and
goes when rules are learned, unless it is kept. One that was cut short goes on. (docs/volatility.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from stillweb.browser.profile import Profile
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import Learned, learn, merge, read_rules, write_rules
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.versions import FOLDER
from stillweb.errors import RecordError
from stillweb.record.crawl.crawl import CrawlEvent, crawl
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.recording import start_of_pages
from stillweb.urls import from_timestamp, to_timestamp

__all__ = ["VERSION", "Twice", "record_again"]

VERSION = "twice"


@dataclass(frozen=True, slots=True)
class Twice:
    """What the second recording came to.

    Attributes:
        learned: from both.
        pages, failed: of the second recording.
        written: whether the rules changed.
        kept: name of the second recording, "" if it is gone.
    """

    learned: Learned
    pages: int
    failed: dict[str, str]
    written: bool
    kept: str


async def record_again(
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: Callable[[CrawlEvent], None] = lambda event: None,
    *,
    keep: bool = False,
) -> Twice:
    """Record a collection's pages again and write the rules that the two recordings teach.

    Args:
        collection: whose crawl is through.
        ca: of the recording proxy.
        options: of the first recording.
        on_event: told of each page.
        keep: whether the second recording stays, as `NAME@twice`.

    Raises:
        RecordError: if there is no page to record again.
        UpstreamUnreachable: if no page answered the second time.
    """
    first = collection.manifest()
    pages = [page.url for page in collection.page_list()]
    if not pages:
        raise RecordError("no page to record again", hint="stillweb record crawl URL... -c NAME --twice")
    second = _begun(collection, first)
    again = replace(
        options,
        scope=ScopeKind.PAGE,
        depth=0,
        limit=None,
        seed=first.seed + 1,
        profile=Profile.from_dict(first.profile),
        # The pages there are, whatever led to them, and no others.
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
    said = {"recorded_at": seen.recorded_at, "seed": seen.seed, "pages": len(report.pages)}
    said |= {"rules": len(learned.rules), "kept": keep}
    collection.write_manifest(replace(first, extra=first.extra | {"twice": said}))
    if not keep:
        remove_collection(second.path)
    name = f"{collection.name}@{VERSION}" if keep else ""
    return Twice(learned, len(report.pages), dict(report.failed_pages), written, name)


def _begun(collection: Collection, first: Manifest) -> Collection:
    """Return the second recording: one that was cut short, or a new one with a clock of its own."""
    second = Collection(collection.path / FOLDER, VERSION)
    if second.path.exists():
        if second.manifest().state == "partial":
            return second
        remove_collection(second.path)
    second = Collection.create(second.root, second.name)
    started = now()
    if to_timestamp(started) <= first.recorded_at:  # the first took no second
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
