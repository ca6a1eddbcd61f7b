"""Exploration of a recorded site: an agent's possible actions, recorded and mapped.

The map is appended to while the exploration runs, so that a stopped or killed run continues from it. The
collection is valid at every moment, as in a crawl. `stillweb.record.explore.explore` chooses the actions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stillweb.browser.input.controls import PageState
from stillweb.browser.input.walker import Act, Walker
from stillweb.browser.launch import launch
from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.graph import note_reset
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.transports import learn_transports
from stillweb.collections.reachability import (
    FILE,
    ReachabilityMap,
    ReachedState,
    TriedAction,
    read_reachability,
)
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import InfraError, RecordError
from stillweb.model import MUTATIONS
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.frontier import DAMPING, ExploreFrontier, FrontierState
from stillweb.record.explore.journal import (
    RECORDED,
    WAITING,
    ExplorationJournal,
    RecordedActions,
    RequestList,
)
from stillweb.record.explore.links import add_candidates, open_links
from stillweb.record.explore.options import (
    ExplorationContext,
    ExploreEvent,
    ExploreOptions,
    ExploreReport,
    logged_in,
)
from stillweb.record.explore.plan import ActionPlan, Link, OfferedAction, make_plan, other_fills
from stillweb.record.harvest.fetch import PageFetcher
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.recording import begin_addition, pinning_of, repair_archive
from stillweb.record.tokens import CsrfTokens
from stillweb.urls import page_address


def resume(frontier: ExploreFrontier, reach: ReachabilityMap, scope: Scope) -> None:
    """Restore the frontier from the map of an earlier run, whose last state may be incomplete."""
    states = list(reach.states.values())
    actions: dict[str, list[TriedAction]] = {}
    for tried in reach.actions.values():
        actions.setdefault(tried.state, []).append(tried)
    for number, reached in enumerate(states, 1):
        path = tuple(Act.from_dict(act) for act in reached.path)
        target = FrontierState(path, reached.mutated, "" if len(path) == 1 else reached.state)
        last = number == len(states)
        weight = 0.0 if last else frontier.mark(target)
        if not last and not reached.mutated:
            again = replace(target, state=reached.state, trying=True)
            frontier.add(again, weight * DAMPING / max(1, reached.controls))
        for tried in actions.get(reached.state, ()):
            _resume_action(frontier, scope, reached, path, tried, weight * DAMPING / max(1, reached.controls))
        if last:
            del reach.states[reached.state]
            frontier.add(target, 1.0)


def _resume_action(
    frontier: ExploreFrontier,
    scope: Scope,
    reached: ReachedState,
    path: tuple[Act, ...],
    tried: TriedAction,
    share: float,
) -> None:
    if tried.how not in (WAITING, RECORDED):
        return
    act = Act.from_dict(tried.action)
    if tried.requests and scope.contains(tried.requests[0][1]):
        frontier.add(FrontierState.at(tried.requests[0][1]), share)
    elif tried.how == WAITING:
        frontier.add(
            FrontierState((*path, act), mutated=True, base=reached.state, description=tried.description),
            share,
        )


_READ_SHARE = 0.75  # share of the budget after which actions that change the site start
_LATE_SHARE = 0.9  # share of the time after which no link is opened only
_PAGES_BEHIND = 6  # pages opened after an action that changed the site
_DRAIN_SECONDS = 5.0  # for responses in flight when a context is left
_MAX_FAULTS = 5  # consecutive browser failures that end the exploration
_HARMLESS = frozenset(("click", "hover", "scroll"))  # actions that leave no field filled


@dataclass(slots=True)
class _StateVisit:
    """An entered state, its walker and path, and the weight for the target of each control."""

    walker: Walker
    target: FrontierState
    state: PageState
    share: float


class Exploration:
    """One run of an exploration.

    Attributes:
        on_reset: called after the site was put back.
    """

    def __init__(self, context: ExplorationContext, journal: ExplorationJournal) -> None:
        self._context = context
        self._options = context.options
        self._journal = journal
        self._frontier = ExploreFrontier()
        self.tokens = CsrfTokens()
        self.on_reset: Callable[[], None] = lambda: None
        self._plans: dict[str, tuple[PageState, ActionPlan]] = {}
        self._crawled: frozenset[str] = frozenset()
        self._links_opened = False
        self._put_back_at = 0  # writes of the recording when the site was last in its first state
        self._started = monotonic()

    async def explore(self, urls: Sequence[str]) -> None:
        """Explore until the budget is used up or nothing is left.

        Raises:
            RecordError: if an exchange could not be written, or the browser ended or fails repeatedly.
        """
        self._crawled = frozenset(urls)
        self._frontier.seed(urls)
        resume(self._frontier, self._journal.reach, self._context.scope)
        faults = 0
        while self._spent() < 1:
            if self._spent() >= _READ_SHARE:
                await self._open_links()
            taken = self._take()
            if taken is None:
                break
            try:
                await self._visit(*taken)
                faults = 0
            except InfraError as error:
                faults += 1
                self._journal.report.faults.append(
                    f"{taken[0].path[-1].value or taken[0].description}: {error}"
                )
                if faults == _MAX_FAULTS or not self._context.browser.is_connected():
                    raise RecordError(
                        f"the browser failed {faults} times in a row: {error}",
                        hint="stillweb record explore NAME continues from here",
                    ) from error
            self._context.recording.check()
        await self._open_links()

    async def _open_links(self) -> None:
        """Open the links that will not be reached, once, before the site is changed."""
        if not self._links_opened:
            self._links_opened = True
            limit = self._options.budget if self._options.links is None else self._options.links
            await open_links(self._context, self._journal, self._frontier, limit, self._is_late)

    def finish(self) -> None:
        """Complete the map and the report."""
        self._journal.close(len(self._frontier))

    # --- order --------------------------------------------------------------------------------------

    def _spent(self) -> float:
        """Return the used share of the budget."""
        share = self._journal.report.acts / self._options.budget
        if self._options.seconds is not None:
            share = max(share, (monotonic() - self._started) / self._options.seconds)
        return share

    def _is_late(self) -> bool:
        """Return True if the remaining time is reserved for actions that change the site."""
        seconds = self._options.seconds
        return seconds is not None and monotonic() - self._started >= _LATE_SHARE * seconds

    def _take(self) -> tuple[FrontierState, float] | None:
        changing = self._spent() >= _READ_SHARE
        return self._frontier.take(mutated=changing) or self._frontier.take(mutated=not changing)

    # --- one state ----------------------------------------------------------------------------------

    async def _visit(self, target: FrontierState, weight: float) -> None:
        known = self._plans.get(target.state) if target.trying else None
        if known and self._journal.knows_all(*known):  # another state has proved the rest since
            return
        await self._put_back()
        async with self._context.walking() as walker:
            state = await self._arrive(walker, target)
            if state is not None:
                share = weight * DAMPING / max(1, len(state.controls))
                await self._explore_state(_StateVisit(walker, target, state, share))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._context.recording.idle(), _DRAIN_SECONDS)

    async def _put_back(self) -> None:
        """Put the site back if it was changed since the last time; count the context if no reset is known."""
        report, written = self._journal.report, self._writes()
        if written == self._put_back_at:
            return
        if not self._options.reset:
            report.uncertain += 1
            return
        async with PageFetcher(self._options.record, {}) as fetcher:
            await self._options.reset.run(fetcher)
        self.on_reset()
        report.resets += 1
        self._put_back_at = written

    def _writes(self) -> int:
        return self._context.recording.account.writes

    async def _arrive(self, walker: Walker, target: FrontierState) -> PageState | None:
        """Go to a target; return None if it is not a page in scope."""
        state = await self._follow(walker, target.path[:-1] if target.base else target.path)
        self.tokens.observe(state)
        if target.base:
            state = (await self._try(walker, state, target.base, target.path[-1], target.description))[0]
        else:
            self._count(
                f"open {target.path[-1].value}" if target.url else f"go to {target.description or 'a state'}"
            )
            self._journal.recorded(walker.take_requests())
            self._journal.known.add_page(target.url)
        if not state.url.startswith(("http://", "https://")) or not self._context.scope.contains(
            page_address(state.url)
        ):
            return None
        return state

    async def _follow(self, walker: Walker, path: Sequence[Act]) -> PageState:
        state: PageState | None = None
        for act in path:
            await walker.do(act, state)
            state = await walker.look()
        assert state is not None
        return state

    async def _explore_state(self, visit: _StateVisit) -> None:
        """Map a new state; try its controls on a second visit, or immediately if the site was changed.

        Between the two visits other states have their turn: a page with many incoming links is worth more
        than the tenth option of a list.
        """
        state, target = visit.state, visit.target
        if target.trying:
            known = self._plans.pop(target.state, None)
            plan = known[1] if known else self._plan(state)
            if state.digest not in self._journal.reach.states:  # the state differs at each load
                plan = self._enter(visit)
            return await self._try_offers(visit, plan.offers)
        if state.digest not in self._journal.reach.states:
            plan = self._enter(visit)
            if not target.mutated:
                await add_candidates(
                    self._context, self._frontier, visit.walker, visit.share * len(state.controls)
                )
            if target.url not in self._crawled:  # the crawl has scrolled its own pages
                scrolling = Act("scroll")
                await self._try(visit.walker, state, state.digest, scrolling, "scroll to the end")
            if target.mutated:
                await self._open_behind(visit, plan)
                await self._try_offers(visit, plan.offers)
            elif self._settle_known(visit, plan):
                self._plans[state.digest] = (state, plan)
                self._frontier.add(replace(target, state=state.digest, trying=True), visit.share)
        return None

    def _settle_known(self, visit: _StateVisit, plan: ActionPlan) -> bool:
        """Map what need not be tried; return True if anything is left to try."""
        settled = [
            self._journal.reach.tried(visit.state.digest, offer.act.to_dict())
            or self._is_settled(visit, offer)
            for offer in plan.offers
        ]
        return not all(settled)

    def _enter(self, visit: _StateVisit) -> ActionPlan:
        """Write a new state and its links into the map."""
        state, target = visit.state, visit.target
        note = "" if target.state in ("", state.digest) else f"was {target.state} when it was found"
        path = tuple(act.to_dict() for act in target.path)
        self._journal.write(
            ReachedState(state.digest, state.url, path, len(state.controls), target.mutated, note)
        )
        plan = self._plan(state)
        self._note_links(visit, plan)
        return plan

    def _plan(self, state: PageState) -> ActionPlan:
        options, seed = self._options, self._context.pinning.seed
        scope = self._context.scope
        return make_plan(state, scope, options.values, options.avoid, alike=options.alike, seed=seed)

    def _note_links(self, visit: _StateVisit, plan: ActionPlan) -> None:
        for link in plan.links:
            self._frontier.add(FrontierState.at(link.url), visit.share)
        for link in {link.url: link for link in plan.links}.values():
            how = RECORDED if link.url in self._journal.known else WAITING
            self._journal.leave(visit.state, link, how, (("GET", link.url),))
        for left, why in plan.left:
            self._journal.leave(
                visit.state, left, why, (("GET", left.url),) if isinstance(left, Link) else ()
            )

    async def _open_behind(self, visit: _StateVisit, plan: ActionPlan) -> None:
        """Open pages linked from a changed site, before it is changed again."""
        kinds: dict[str, Link] = {}
        for link in plan.links:
            kinds.setdefault(link.kind, link)
        for link in list(kinds.values())[:_PAGES_BEHIND]:
            if self._spent() >= 1:
                return
            await visit.walker.do(Act("open", value=link.url))
            self._journal.recorded(visit.walker.take_requests())
            self._count(f"behind {visit.target.description}: {link.url}")
        await self._return(visit)

    async def _try_offers(self, visit: _StateVisit, offers: Sequence[OfferedAction]) -> None:
        """Try actions; after one that changed the site, the rest in a fresh context each time."""
        left = await self._try_here(visit, offers)
        while left:
            async with self._context.walking() as walker:
                again = replace(visit, walker=walker)
                left = await self._try_here(replace(again, state=await self._return(again)), left)

    async def _try_here(self, visit: _StateVisit, offers: Sequence[OfferedAction]) -> list[OfferedAction]:
        """Try actions until one changes the site; return the untried ones."""
        here: PageState | None = visit.state
        todo = list(offers)
        while todo and self._spent() < 1:
            offer = todo.pop(0)
            tried = self._journal.reach.tried(visit.state.digest, offer.act.to_dict())
            if tried or self._is_settled(visit, offer):
                continue
            here = here or await self._return(visit)
            before = here
            after, requests = await self._try(
                visit.walker, before, visit.state.digest, offer.act, offer.description, offer.identity
            )
            changed = any(method in MUTATIONS for method, _ in requests)
            self._add_target(visit, offer, before, after, changed=changed)
            if requests and offer.act.do == "fill":  # it sends while typed into: each text is a request
                todo[:0] = other_fills(visit.state, offer, self._options.values)
            if changed and not visit.target.mutated:
                return todo
            stayed = after.digest == before.digest
            here = after if stayed and offer.act.do in _HARMLESS else None
        return []

    def _is_settled(self, visit: _StateVisit, offer: OfferedAction) -> bool:
        """Queue an action that changes the site, or map one with a known effect; return True for both."""
        if offer.mutates:
            if self._options.mutations:
                path = (*visit.target.path, offer.act)
                target = FrontierState(
                    path, mutated=True, base=visit.state.digest, description=offer.description
                )
                self._frontier.add(target, visit.share)
            self._journal.leave(
                visit.state, offer, WAITING if self._options.mutations else "changes the site"
            )
            return True
        return self._journal.knows(visit.state, offer)

    def _add_target(
        self, visit: _StateVisit, offer: OfferedAction, before: PageState, after: PageState, *, changed: bool
    ) -> None:
        """Queue the state that an action led to, if it is new."""
        if after.digest == before.digest or after.digest in self._journal.reach.states:
            return
        if not self._context.scope.contains(page_address(after.url)):
            return
        mutated = changed or visit.target.mutated
        if page_address(after.url) != page_address(before.url) and not mutated:
            self._frontier.add(FrontierState.at(page_address(after.url)), visit.share)
        else:
            path = (*visit.target.path, offer.act)
            self._frontier.add(
                FrontierState(path, mutated, after.digest, description=offer.description), visit.share
            )

    async def _return(self, visit: _StateVisit) -> PageState:
        if visit.target.mutated:
            return await self._follow(visit.walker, (Act("open", value=visit.state.url),))
        return await self._follow(visit.walker, visit.target.path)

    # --- one action ---------------------------------------------------------------------------------

    async def _try(
        self, walker: Walker, state: PageState, base: str, act: Act, description: str, identity: str = ""
    ) -> tuple[PageState, RequestList]:
        """Perform an action and map its outcome."""
        self._journal.recorded(walker.take_requests())
        error = await walker.do(act, state)
        after = await walker.look()
        requests, unanswered = self._journal.recorded(walker.take_requests())
        if identity and not error:
            stayed = after.digest == state.digest
            self._journal.known.add_effect(identity, base, requests, stayed=stayed)
        self._journal.tried(
            TriedAction(base, act.to_dict(), description, requests, unanswered, after.digest, "tried", error)
        )
        self._count(description)
        return after, requests

    def _count(self, description: str) -> None:
        self._journal.count(description, len(self._frontier))


OnEvent = Callable[[ExploreEvent], None]


async def explore(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    options: ExploreOptions,
    on_event: OnEvent = lambda event: None,
) -> ExploreReport:
    """Explore from a collection's pages into the same collection; continue an earlier run.

    Raises:
        RecordError: if no page is in scope, an exchange cannot be written, or the browser ended.
        CollectionError: if the map of an earlier run is malformed, or another process records.
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
    reach = read_reachability(path)
    _end_line(path)
    prior = collection.manifest()
    report = ExploreReport(repaired=repair_archive(collection, prior))  # a kill leaves an outdated index
    known = RecordedActions(capture.url for capture in collection.captures() if capture.method == "GET")
    for page in collection.page_list():
        known.add_page(page.url)
    manifest = begin_addition(collection)
    options = await logged_in(collection, ca, options, pinning_of(manifest), urls[0])
    started = monotonic()
    with CollectionWriter(collection) as writer, path.open("a", encoding="utf-8") as lines:
        async with (
            recording_proxy(writer, ca, options.record) as recording,
            launch(spki=ca.spki_hashes(), executable=options.browser) as browser,
        ):
            context = ExplorationContext(browser, recording, *pinning_of(manifest), scope, options)
            run = Exploration(context, ExplorationJournal(reach, known, lines, report, recording, on_event))
            run.on_reset = partial(note_reset, collection)
            try:
                await run.explore(urls)
            finally:
                run.finish()
                report.seconds = monotonic() - started
    run.tokens.write_rules(collection)
    learn_transports(collection)
    report.summary = reach.summary()
    return report


def _end_line(path: Path) -> None:
    """Truncate an incomplete last line."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
