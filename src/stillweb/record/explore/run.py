"""One exploration under way: states from the frontier, each in a fresh context, and what is tried there.

A fresh context with the recording's seed and clock is what a reset of the environment opens, so that what a
state asks for when it is entered is what a reset asks for. What led elsewhere is gone back from: an address
is its own way back, to other states the acts that lead there are done again. Acts that change the site come
last, each from a fresh context, and pages behind them are looked at there before another act changes
the site again: replay shows a session that made the change what was recorded next (docs/matching.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from stillweb.browser.input.controls import PageState
from stillweb.browser.input.walker import Act, Walker
from stillweb.clock import monotonic
from stillweb.collections.learn.guards import is_csrf
from stillweb.collections.reachability import Reach, ReachedState, Tried
from stillweb.errors import InfraError, RecordError
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, RuleOrigin
from stillweb.matching.values import fits, shape_of
from stillweb.model import MUTATIONS
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.frontier import KEPT, ExploreFrontier, FrontierState
from stillweb.record.explore.journal import RECORDED, WAITING, Asked, ExplorationJournal
from stillweb.record.explore.links import note_leads, open_links
from stillweb.record.explore.options import ExplorationContext
from stillweb.record.explore.plan import ActionPlan, Link, OfferedAction, make_plan, other_fills
from stillweb.urls import wire_url

__all__ = ["Exploration", "Tokens", "resume"]

_POST = "POST"


@dataclass(slots=True)
class Tokens:
    """Hidden values of forms, by host and name."""

    _seen: dict[tuple[str, str], dict[str, set[str]]] = field(default_factory=dict)

    def see(self, state: PageState) -> None:
        """Look at the forms of a state that was entered in a fresh context."""
        for control in state.controls:
            form = control.field.form if control.field else None
            if form is None or form.method != _POST.lower():
                continue
            for name, value in form.hidden:
                if is_csrf(Where.FORM, name, _POST) and fits("token", value):
                    pages = self._seen.setdefault((urlsplit(form.action).hostname or "", name), {})
                    pages.setdefault(state.url, set()).add(value)

    def rules(self) -> tuple[Rule, ...]:
        """Return a rule for each token that was another in another context of the same page."""
        found = []
        for (host, name), pages in sorted(self._seen.items()):
            values = sorted({value for told in pages.values() for value in told})
            page = next((url for url, told in pages.items() if len(told) > 1), "")
            if page and host:
                evidence = f"explored: {len(values)} values, of them several on {page}"
                shape = shape_of(values)
                found += [
                    Rule(where, name, shape, host, method=_POST, origin=RuleOrigin.LEARNED, evidence=evidence)
                    for where in (Where.FORM, Where.MULTIPART)
                ]
        return tuple(found)


def resume(frontier: ExploreFrontier, reach: Reach, scope: Scope) -> None:
    """Take up the map of a run before; its last state may not be through."""
    states = list(reach.states.values())
    actions: dict[str, list[Tried]] = {}
    for tried in reach.actions.values():
        actions.setdefault(tried.state, []).append(tried)
    for number, reached in enumerate(states, 1):
        path = tuple(Act.from_dict(act) for act in reached.path)
        place = FrontierState(path, reached.mutated, "" if len(path) == 1 else reached.state)
        last = number == len(states)
        weight = 0.0 if last else frontier.mark(place)
        if not last and not reached.mutated:
            again = replace(place, state=reached.state, trying=True)
            frontier.add(again, weight * KEPT / max(1, reached.controls))
        for tried in actions.get(reached.state, ()):
            _take_up(frontier, scope, reached, path, tried, weight * KEPT / max(1, reached.controls))
        if last:
            del reach.states[reached.state]
            frontier.add(place, 1.0)


def _take_up(
    frontier: ExploreFrontier,
    scope: Scope,
    reached: ReachedState,
    path: tuple[Act, ...],
    tried: Tried,
    share: float,
) -> None:
    if tried.how not in (WAITING, RECORDED):
        return
    act = Act.from_dict(tried.action)
    if tried.requests and scope.contains(tried.requests[0][1]):
        frontier.add(FrontierState.at(tried.requests[0][1]), share)
    elif tried.how == WAITING:
        frontier.add(FrontierState((*path, act), mutated=True, base=reached.state, told=tried.told), share)


_READS = 0.75  # share of the budget after which what changes the site has its turn
_LATE = 0.9  # share of the time after which no link is only opened
_BEHIND = 6  # pages looked at behind an act that changed the site
_LAST_ANSWERS = 5.0  # seconds for answers under way when a context is left
_FAULTS = 5  # of the browser in a row, after which exploring ends
_HARMLESS = frozenset(("click", "hover", "scroll"))  # leave no form filled


@dataclass(slots=True)
class _StateVisit:
    """In a state: who walks there, the way back, and what is handed on to what each control leads to."""

    walker: Walker
    place: FrontierState
    state: PageState
    share: float


class Exploration:
    """An exploration.

    Args:
        grounds: where it goes.
        book: what it writes down.
    """

    def __init__(self, grounds: ExplorationContext, book: ExplorationJournal) -> None:
        self._grounds = grounds
        self._options = grounds.options
        self._book = book
        self._frontier = ExploreFrontier()
        self.tokens = Tokens()
        self._plans: dict[str, tuple[PageState, ActionPlan]] = {}
        self._crawled: frozenset[str] = frozenset()
        self._swept = False
        self._started = monotonic()

    async def explore(self, urls: Sequence[str]) -> None:
        """Explore until the budget is spent or nothing is left.

        Raises:
            RecordError: if an exchange could not be written, or the browser ended or fails again and again.
        """
        self._crawled = frozenset(urls)
        self._frontier.seed(urls)
        resume(self._frontier, self._book.reach, self._grounds.scope)
        faults = 0
        while self._spent() < 1:
            if self._spent() >= _READS:
                await self._open_links()
            taken = self._take()
            if taken is None:
                break
            try:
                await self._visit(*taken)
                faults = 0
            except InfraError as error:
                faults += 1
                self._book.report.faults.append(f"{taken[0].path[-1].value or taken[0].told}: {error}")
                if faults == _FAULTS or not self._grounds.browser.is_connected():
                    raise RecordError(
                        f"the browser failed {faults} times in a row: {error}",
                        hint="stillweb record explore NAME goes on from here",
                    ) from error
            self._grounds.recording.check()
        await self._open_links()

    async def _open_links(self) -> None:
        """Open what will not be come to, once, and before the site is changed if the budget ends there."""
        if not self._swept:
            self._swept = True
            limit = self._options.budget if self._options.links is None else self._options.links
            await open_links(self._grounds, self._book, self._frontier, limit, self._is_late)

    def finish(self) -> None:
        """Say of each link that waited whether it was come to, and sum up."""
        self._book.close(len(self._frontier))

    # --- what is next -------------------------------------------------------------------------------

    def _spent(self) -> float:
        """Return the share of the budget that is spent."""
        share = self._book.report.acts / self._options.budget
        if self._options.seconds is not None:
            share = max(share, (monotonic() - self._started) / self._options.seconds)
        return share

    def _is_late(self) -> bool:
        """Return whether what changes the site must have its turn, for there is not much time left."""
        seconds = self._options.seconds
        return seconds is not None and monotonic() - self._started >= _LATE * seconds

    def _take(self) -> tuple[FrontierState, float] | None:
        changing = self._spent() >= _READS
        return self._frontier.take(mutated=changing) or self._frontier.take(mutated=not changing)

    # --- a state ------------------------------------------------------------------------------------

    async def _visit(self, place: FrontierState, weight: float) -> None:
        held = self._plans.get(place.state) if place.trying else None
        if held and self._book.knows_all(*held):  # it was tried elsewhere since
            return
        async with self._grounds.walking() as walker:
            state = await self._arrive(walker, place)
            if state is not None:
                share = weight * KEPT / max(1, len(state.controls))
                await self._stay(_StateVisit(walker, place, state, share))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._grounds.recording.idle(), _LAST_ANSWERS)

    async def _arrive(self, walker: Walker, place: FrontierState) -> PageState | None:
        """Go where a place is; None if there is no page, or none of ours."""
        state = await self._follow(walker, place.path[:-1] if place.base else place.path)
        self.tokens.see(state)
        if place.base:
            state = (await self._try(walker, state, place.base, place.path[-1], place.told))[0]
        else:
            self._count(f"open {place.path[-1].value}" if place.url else f"go to {place.told or 'a state'}")
            self._book.recorded(walker.take_requests())
        if not state.url.startswith(("http://", "https://")) or not self._grounds.scope.contains(
            wire_url(state.url)
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

    async def _stay(self, stay: _StateVisit) -> None:
        """Write a new state down; try its controls at a second visit, or at once where the site was changed.

        Between the two others have their turn: a page that many links lead to is worth more than the tenth
        option of a list.
        """
        state, place = stay.state, stay.place
        if place.trying:
            held = self._plans.pop(place.state, None)
            plan = held[1] if held else self._plan(state)
            if state.digest not in self._book.reach.states:  # it is another one at each load
                plan = self._enter(stay)
            return await self._try_offers(stay, plan.offers)
        if state.digest not in self._book.reach.states:
            plan = self._enter(stay)
            if not place.mutated:
                await note_leads(self._grounds, self._frontier, stay.walker, stay.share * len(state.controls))
            if place.url not in self._crawled:  # a crawl has scrolled its pages
                scrolling = Act("scroll")
                await self._try(stay.walker, state, state.digest, scrolling, "scroll to the end")
            if place.mutated:
                await self._look_behind(stay, plan)
                await self._try_offers(stay, plan.offers)
            elif self._settle_known(stay, plan):
                self._plans[state.digest] = (state, plan)
                self._frontier.add(replace(place, state=state.digest, trying=True), stay.share)
        return None

    def _settle_known(self, stay: _StateVisit, plan: ActionPlan) -> bool:
        """Write down what needs no trying; return whether anything is left."""
        settled = [
            self._book.reach.tried(stay.state.digest, offer.act.to_dict()) or self._is_settled(stay, offer)
            for offer in plan.offers
        ]
        return not all(settled)

    def _enter(self, stay: _StateVisit) -> ActionPlan:
        """Write a new state down, and what its links lead to."""
        state, place = stay.state, stay.place
        note = "" if place.state in ("", state.digest) else f"was {place.state} when it was found"
        path = tuple(act.to_dict() for act in place.path)
        self._book.write(
            ReachedState(state.digest, state.url, path, len(state.controls), place.mutated, note)
        )
        plan = self._plan(state)
        self._note_links(stay, plan)
        return plan

    def _plan(self, state: PageState) -> ActionPlan:
        options, seed = self._options, self._grounds.pinning.seed
        scope = self._grounds.scope
        return make_plan(state, scope, options.values, options.avoid, alike=options.alike, seed=seed)

    def _note_links(self, stay: _StateVisit, plan: ActionPlan) -> None:
        for link in plan.links:
            self._frontier.add(FrontierState.at(link.url), stay.share)
        for link in {link.url: link for link in plan.links}.values():
            how = RECORDED if link.url in self._book.known else WAITING
            self._book.leave(stay.state, link, how, (("GET", link.url),))
        for left, why in plan.left:
            self._book.leave(stay.state, left, why, (("GET", left.url),) if isinstance(left, Link) else ())

    async def _look_behind(self, stay: _StateVisit, plan: ActionPlan) -> None:
        """Open pages that a changed site leads to, before it is changed again."""
        kinds: dict[str, Link] = {}
        for link in plan.links:
            kinds.setdefault(link.kind, link)
        for link in list(kinds.values())[:_BEHIND]:
            if self._spent() >= 1:
                return
            await stay.walker.do(Act("open", value=link.url))
            self._book.recorded(stay.walker.take_requests())
            self._count(f"behind {stay.place.told}: {link.url}")
        await self._back(stay)

    async def _try_offers(self, stay: _StateVisit, offers: Sequence[OfferedAction]) -> None:
        """Try offers; what is left behind one that changed the site, in a fresh context each time."""
        left = await self._try_here(stay, offers)
        while left:
            async with self._grounds.walking() as walker:
                again = replace(stay, walker=walker)
                left = await self._try_here(replace(again, state=await self._back(again)), left)

    async def _try_here(self, stay: _StateVisit, offers: Sequence[OfferedAction]) -> list[OfferedAction]:
        """Try offers until one changes the site; return those that are left."""
        here: PageState | None = stay.state
        todo = list(offers)
        while todo and self._spent() < 1:
            offer = todo.pop(0)
            tried = self._book.reach.tried(stay.state.digest, offer.act.to_dict())
            if tried or self._is_settled(stay, offer):
                continue
            here = here or await self._back(stay)
            before = here
            after, asked = await self._try(
                stay.walker, before, stay.state.digest, offer.act, offer.told, offer.same
            )
            changed = any(method in MUTATIONS for method, _ in asked)
            self._lead(stay, offer, before, after, changed=changed)
            if asked and offer.act.do == "fill":  # it is sent as it is typed: each text is a request
                todo[:0] = other_fills(stay.state, offer, self._options.values)
            if changed and not stay.place.mutated:
                return todo
            stayed = after.digest == before.digest
            here = after if stayed and offer.act.do in _HARMLESS else None
        return []

    def _is_settled(self, stay: _StateVisit, offer: OfferedAction) -> bool:
        """Put off what changes the site, and what is known from other pages; return whether it was either."""
        if offer.mutates:
            if self._options.mutations:
                path = (*stay.place.path, offer.act)
                place = FrontierState(path, mutated=True, base=stay.state.digest, told=offer.told)
                self._frontier.add(place, stay.share)
            self._book.leave(stay.state, offer, WAITING if self._options.mutations else "changes the site")
            return True
        return self._book.knows(stay.state, offer)

    def _lead(
        self, stay: _StateVisit, offer: OfferedAction, before: PageState, after: PageState, *, changed: bool
    ) -> None:
        """Add where an act has led to, if that is somewhere else."""
        if after.digest == before.digest or after.digest in self._book.reach.states:
            return
        if not self._grounds.scope.contains(wire_url(after.url)):
            return
        mutated = changed or stay.place.mutated
        if wire_url(after.url) != wire_url(before.url) and not mutated:
            self._frontier.add(FrontierState.at(after.url), stay.share)
        else:
            path = (*stay.place.path, offer.act)
            self._frontier.add(FrontierState(path, mutated, after.digest, told=offer.told), stay.share)

    async def _back(self, stay: _StateVisit) -> PageState:
        if stay.place.mutated:
            return await self._follow(stay.walker, (Act("open", value=stay.state.url),))
        return await self._follow(stay.walker, stay.place.path)

    # --- an act -------------------------------------------------------------------------------------

    async def _try(
        self, walker: Walker, state: PageState, base: str, act: Act, told: str, same: str = ""
    ) -> tuple[PageState, Asked]:
        """Act, look, and write down what came of it."""
        self._book.recorded(walker.take_requests())
        error = await walker.do(act, state)
        after = await walker.look()
        asked, unanswered = self._book.recorded(walker.take_requests())
        if same and not error:
            stayed = after.digest == state.digest
            self._book.known.did(same, base, asked, stayed=stayed)
        self._book.tried(Tried(base, act.to_dict(), told, asked, unanswered, after.digest, "tried", error))
        self._count(told)
        return after, asked

    def _count(self, told: str) -> None:
        self._book.count(told, len(self._frontier))
