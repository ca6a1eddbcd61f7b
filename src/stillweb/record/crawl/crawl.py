"""A recording by crawl: pages in breadth-first order, each through the recording proxy.

The collection is valid at every moment: WARC records are appended whole, a page is listed when
it is complete, and the manifest says `partial`, and why, until the crawl has reached its end. A crawl that
is cancelled (Ctrl-C) still writes its index, as the writer does when it is closed. All pages are
pinned to one seed and one start of the clock, which the manifest keeps: replay and comparison
load them with the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from playwright.async_api import Browser

from stillweb.browser.launch import browser_build
from stillweb.certs import CertAuthority
from stillweb.clock import perf
from stillweb.collections.layout import Collection, locked
from stillweb.collections.manifest import LOGIN, Manifest, with_login
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError, UpstreamUnreachable
from stillweb.model import Page
from stillweb.record.behaviors.behaviors import BehaviorOptions
from stillweb.record.crawl.fetch import Fetcher, Robots, Sitemaps, sitemaps_of
from stillweb.record.crawl.frontier import CrawlState, Frontier
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.run import Browsers, CrawlRun, page_id
from stillweb.record.crawl.scope import Scope, seed_url
from stillweb.record.crawl.visit import CrawlContext, Visited
from stillweb.record.login.redact import redacted_state
from stillweb.record.login.run import LoginSession, log_in, log_in_aside
from stillweb.record.login.steps import Login
from stillweb.record.options import CrawlOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.recording import STOPPED, begin, mend, pinning_of, read_state
from stillweb.record.redaction.redactor import secrets_of
from stillweb.urls import host_of

__all__ = ["CrawlEvent", "CrawlReport", "OnEvent", "OnStage", "crawl"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

OnEvent = Callable[[CrawlEvent], None]
OnStage = Callable[[str], None]


async def crawl(
    seeds: Sequence[str],
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: OnEvent = lambda event: None,
    on_stage: OnStage = lambda what: None,
) -> CrawlReport:
    """Record the seeds, and what they lead to, into a collection.

    A collection that has pages already keeps them, and its clock, seed and profile count; a
    crawl that was stopped, or reached a limit, goes on.

    Args:
        seeds: URLs to begin with.
        collection: to write into.
        ca: signs for the sites.
        options: how.
        on_event: told of each page that is through.
        on_stage: told what is begun, where that is not pages yet.

    Raises:
        UpstreamUnreachable: if none of the seeds answered.
        RecordError: if something could not be written, or browsers end again and again.
        CollectionError: if another process records into it.
    """
    try:
        with locked(collection):
            return await _crawl(seeds, collection, ca, options, on_event, on_stage)
    except OSError as error:
        raise _unwritable(collection, error) from error
    except RecordError as error:
        if isinstance(error.__cause__, OSError):
            raise _unwritable(collection, error.__cause__) from error
        raise


async def _crawl(
    seeds: Sequence[str],
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: OnEvent,
    on_stage: OnStage,
) -> CrawlReport:
    scope = Scope.of(options.scope, seeds, options.include, options.exclude)
    state = read_state(collection)
    before = _before(collection, state)
    prior = collection.manifest()
    profile = options.profile.to_dict() | {"browser": browser_build(options.browser).version}
    manifest = begin(collection, seed=options.seed, profile=profile)
    manifest = _stopped(manifest, "interrupted")  # as a kill would leave it
    collection.write_manifest(manifest)
    report = CrawlReport(seeds=scope.seeds, pages=before)
    report.repaired = mend(collection, prior)
    frontier: Frontier[Visited] = Frontier(
        scope,
        depth=options.depth,
        limit=options.limit,
        files=options.files,
        state=state,
        recorded={page.url for page in before},
    )
    held = None
    if options.login:
        place = scope.seeds[0]
        on_stage("logging in")
        held = await log_in_aside(
            ca, options.login, pinning_of(manifest), place, options.record, executable=options.browser
        )
        options = replace(options, record=options.record.knowing(held.secrets))
        manifest = _logged_in(collection, options, manifest, held)
    with CollectionWriter(collection) as writer:
        async with AsyncExitStack() as stack:
            robots = None
            if options.robots or options.sitemap is not None:
                robots = Robots(await stack.enter_async_context(Fetcher(options.record)))
            if robots and options.sitemap is not None:
                on_stage("reading the sitemap")
                frontier.add(await _listed(robots, options.sitemap, scope, report))
            recording = await stack.enter_async_context(recording_proxy(writer, ca, options.record))
            browsers = await stack.enter_async_context(Browsers(ca, options.browser))
            profile_, pinning = pinning_of(manifest)
            setting = CrawlContext(
                proxy=recording.url,
                profile=profile_,
                pinning=pinning,
                page_timeout=options.page_timeout,
                retries=options.retries,
                at_rest=recording.at_rest,
                conduct=BehaviorOptions(options.behaviours, options.budget),
                login=held,
                same=recording.same,
                baseline=options.baseline,
            )
            queued = frozenset(visit.url for visit in state.queue)
            run = CrawlRun(collection, browsers, recording, setting, frontier, report, on_event, queued)
            on_stage("recording")
            began = perf()
            await run.visit_all(options, robots if options.robots else None)
            if held and held.login.steps and LOGIN not in prior.extra:
                on_stage("recording the login")
                await _record_login(await browsers.get(), setting, held.login, report)
            report.seconds = perf() - began
    report.captures = sum(1 for _ in collection.captures())
    if report.stopped and not report.pages:
        raise RecordError(f"{report.stopped} ended the crawl before its first page", hint="a larger limit")
    if not report.stopped and not any(page.seed and page.url in scope.seeds for page in report.pages):
        if before:
            collection.write_manifest(prior)  # it is what it was
        raise _unreachable(scope.seeds[0], report)
    collection.write_manifest(_stopped(manifest, report.stopped))
    return report


async def _listed(robots: Robots, sitemap: str, scope: Scope, report: CrawlReport) -> list[str]:
    """Return the pages that a sitemap lists; that of the seeds' sites if none is named."""
    starts = [seed_url(sitemap)] if sitemap else await sitemaps_of(robots, scope.seeds)
    sitemaps = Sitemaps()
    await sitemaps.walk(robots.fetcher, starts)
    report.sitemaps |= sitemaps.problems
    return sitemaps.pages


async def _record_login(browser: Browser, setting: CrawlContext, login: Login, report: CrawlReport) -> None:
    """Record a login, last of all: see `loginaside`."""
    try:
        await log_in(browser, setting.hold, login)
    except RecordError as error:
        report.notes[f"login not recorded: {error}"] = 1


def _logged_in(
    collection: Collection, options: CrawlOptions, manifest: Manifest, held: LoginSession
) -> Manifest:
    """Write down how the pages are logged in, without secrets; return the manifest."""
    state = redacted_state(held.state, secrets_of(collection, options.record.secrets))
    login = held.login
    sign = login.sign.model_dump(exclude_defaults=True) | {"at": held.at} if login.sign else {}
    manifest = with_login(manifest, login.kind, sign, state)
    collection.write_manifest(manifest)
    return manifest


def _stopped(manifest: Manifest, why: str) -> Manifest:
    """Return a manifest that says why it is partial; one that is complete if there is no reason."""
    extra = {name: value for name, value in manifest.extra.items() if name != STOPPED}
    if why:
        extra[STOPPED] = why
    return replace(manifest, state="partial" if why else "complete", extra=extra)


def _before(collection: Collection, state: CrawlState) -> list[Page]:
    """Return the pages there are, but for one that was listed just before a kill: it is visited again."""
    again = {page_id(visit) for visit in state.queue[state.through :]}
    return [page for page in collection.page_list() if page.id not in again]


def _unwritable(collection: Collection, error: OSError) -> RecordError:
    place = error.filename or collection.path
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    hint = "what was recorded before is valid; the same with --append goes on"
    if error.errno in _FULL:
        hint = "free some space there: " + hint
    return RecordError(f"cannot write to {place}: {why}", hint=hint)


def _unreachable(seed: str, report: CrawlReport) -> UpstreamUnreachable:
    if seed in report.files:
        return UpstreamUnreachable(
            f"{seed} is no page but a file to download", hint="stillweb record proxy -c NAME records files"
        )
    why = report.failed_pages.get(seed, "no answer")
    if "ertificate" in why:
        hint = "if the site has a CA of its own: --upstream-ca ITS-CA.pem"
    elif "Name or service" in why or "resolution" in why:
        hint = f"check the name, or say where the site is: --resolve '{host_of(seed)}=127.0.0.1:8443'"
    else:
        hint = f"check that the site is up: curl -v {seed}"
    return UpstreamUnreachable(f"{seed} cannot be reached: {why}", hint=hint)
