"""Explore a recorded site: do what an agent may do, through the recording proxy, and map what came of it.

The map is appended as it goes, so that a run that was stopped or killed goes on from it; the collection is
valid at every moment, as with a crawl. Who goes where is in `explorerun`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import Learned, merge, read_rules, write_rules
from stillweb.collections.reachability import FILE, read_reach
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.journal import ExplorationJournal, RecordedActions
from stillweb.record.explore.options import ExplorationContext, ExploreEvent, ExploreOptions, ExploreReport
from stillweb.record.explore.run import Exploration
from stillweb.record.login.run import log_in_aside
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.recording import begin, mend, pinning_of

__all__ = ["ExploreEvent", "ExploreOptions", "ExploreReport", "explore"]

OnEvent = Callable[[ExploreEvent], None]


async def explore(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    options: ExploreOptions,
    on_event: OnEvent = lambda event: None,
) -> ExploreReport:
    """Explore from a collection's pages, into the same collection; go on where a run before was stopped.

    Raises:
        RecordError: if there is no page to begin with, an exchange cannot be written, or the browser ended.
        CollectionError: if the map of a run before cannot be read, or another process records.
    """
    with locked(collection):
        return await _explore(collection, ca, scope, options, on_event)


async def _explore(
    collection: Collection, ca: CertAuthority, scope: Scope, options: ExploreOptions, on_event: OnEvent
) -> ExploreReport:
    urls = list(dict.fromkeys(page.url for page in collection.page_list() if scope.contains(page.url)))
    if not urls:
        raise RecordError(
            f"{collection.name} has no page in scope to explore from",
            hint="stillweb record crawl URL... -c NAME --explore N",
        )
    path = collection.path / FILE
    reach = read_reach(path)
    _end_line(path)
    prior = collection.manifest()
    # What a kill left: its index tells less than there is.
    report = ExploreReport(repaired=mend(collection, prior))
    known = RecordedActions(capture.url for capture in collection.captures() if capture.method == "GET")
    manifest = replace(begin(collection), state=prior.state)
    collection.write_manifest(manifest)  # whether the crawl came to its end is not changed by exploring
    options = await _logged_in(ca, options, pinning_of(manifest), urls[0])
    started = monotonic()
    with CollectionWriter(collection) as writer, path.open("a", encoding="utf-8") as lines:
        async with (
            recording_proxy(writer, ca, options.record) as recording,
            launch(spki=ca.spki_hashes(), executable=options.browser) as browser,
        ):
            grounds = ExplorationContext(browser, recording, *pinning_of(manifest), scope, options)
            run = Exploration(grounds, ExplorationJournal(reach, known, lines, report, recording, on_event))
            try:
                await run.explore(urls)
            finally:
                run.finish()
                report.seconds = monotonic() - started
    if learned := run.tokens.rules():
        write_rules(collection, merge(read_rules(collection), Learned(rules=learned)))
    report.summary = reach.summary()
    return report


async def _logged_in(
    ca: CertAuthority, options: ExploreOptions, pinning: tuple[Profile, Pinning], url: str
) -> ExploreOptions:
    """Return the options with what every context begins with."""
    if options.login is None:
        return options
    held = await log_in_aside(ca, options.login, pinning, url, options.record, executable=options.browser)
    return replace(options, storage_state=held.state, record=options.record.knowing(held.secrets))


def _end_line(path: Path) -> None:
    """Cut off the end of a line that a kill left."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
