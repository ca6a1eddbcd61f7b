"""One exploration under way: states from the frontier, each in a fresh context, and what is tried there.

A fresh context with the recording's seed and clock is what a reset of the environment opens, so that what a
state asks for when it is entered is what a reset asks for. What led elsewhere is gone back from: an address
is its own way back, to other states the acts that lead there are done again. Acts that change the site come
last, each from a fresh context, and pages behind them are looked at there before another act changes
the site again: replay shows a session that made the change what was recorded next (docs/matching.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import TextIO

from playwright.async_api import Browser

from stillweb.browser.activity import Requested
from stillweb.browser.controls import State
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.walk import Act, Walker, walking
from stillweb.clock import monotonic
from stillweb.collections.reachability import Reach, ReachedState, Tried, to_line
from stillweb.errors import InfraError, RecordError
from stillweb.model import MUTATIONS
from stillweb.record.explorefrontier import KEPT, ExploreFrontier, Place
from stillweb.record.exploreknown import PROVEN, Asked, Known
from stillweb.record.exploreoptions import ExploreEvent, ExploreOptions, ExploreReport
from stillweb.record.exploreplan import Link, Offer, Plan, make_plan
from stillweb.record.exploretokens import Tokens
from stillweb.record.proxy import RecordingProxy
from stillweb.record.scope import Scope
from stillweb.urls import wire_url

__all__ = ["WAITING", "Grounds", "Run"]

WAITING = "not come to"
RECORDED = "recorded"
_READS = 0.75  # share of the budget after which what changes the site has its turn
_BEHIND = 6  # pages looked at behind an act that changed the site
_LAST_ANSWERS = 5.0  # seconds for answers under way when a context is left
_FAULTS = 5  # of the browser in a row, after which exploring ends
_LISTED = 60  # requests of one act
_ABORTED = "ERR_ABORTED"  # what became a download, or was overtaken: the proxy knows whether it was recorded
_HARMLESS = frozenset(("click", "hover", "scroll"))  # leave no form filled


@dataclass(frozen=True, slots=True)
class Grounds:
    """Where an exploration goes, and how."""

    browser: Browser
    recording: RecordingProxy
    profile: Profile
    pinning: Pinning
    scope: Scope
    options: ExploreOptions

    def walking(self) -> AbstractAsyncContextManager[Walker]:
        """Return a fresh context to walk in."""
        return walking(
            self.browser,
            proxy=self.recording.url,
            profile=self.profile,
            pinning=self.pinning,
            accept=self.options.accept,
            storage_state=self.options.storage_state,
        )


@dataclass(slots=True)
class _Stay:
    """In a state: who walks there, the way back, and what is handed on to what each control leads to."""

    walker: Walker
    place: Place
    state: State
    share: float


class Run:
    """An exploration.

    Args:
        grounds: where it goes.
        reach: the map so far; added to.
        known: what is recorded; added to.
        lines: the file of the map.
        report: added to.
        on_event: told after each act.
    """

    def __init__(
        self,
        grounds: Grounds,
        reach: Reach,
        known: Known,
        lines: TextIO,
        report: ExploreReport,
        on_event: Callable[[ExploreEvent], None],
    ) -> None:
        self._grounds = grounds
        self._options = grounds.options
        self._reach = reach
        self._known = known
        self._lines = lines
        self._report = report
        self._on_event = on_event
        self._frontier = ExploreFrontier()
        self.tokens = Tokens()
        self._plans: dict[str, tuple[State, Plan]] = {}
        self._crawled: frozenset[str] = frozenset()
        self._started = monotonic()

    async def explore(self, urls: Sequence[str]) -> None:
        """Explore until the budget is spent or nothing is left.

        Raises:
            RecordError: if an exchange could not be written, or the browser ended or fails again and again.
        """
        self._crawled = frozenset(urls)
        self._frontier.seed(urls)
        self._resume()
        faults = 0
        while self._spent() < 1 and (taken := self._take()):
            try:
                await self._visit(*taken)
                faults = 0
            except InfraError as error:
                faults += 1
                self._report.faults.append(f"{taken[0].path[-1].value or taken[0].told}: {error}")
                if faults == _FAULTS or not self._grounds.browser.is_connected():
                    raise RecordError(
                        f"the browser failed {faults} times in a row: {error}",
                        hint="stillweb record explore NAME goes on from here",
                    ) from error
            self._grounds.recording.check()

    def finish(self) -> None:
        """Say of each link that waited whether it was come to, and count."""
        for tried in list(self._reach.actions.values()):
            if tried.how == WAITING and any(url in self._known for _, url in tried.requests):
                self._write(Tried(tried.state, tried.action, tried.told, tried.requests, how=RECORDED))
        self._report.waiting = len(self._frontier)
        self._report.exchanges = self._grounds.recording.exchanges
        self._report.body_bytes = self._grounds.recording.body_bytes

    # --- what is next -------------------------------------------------------------------------------

    def _spent(self) -> float:
        """Return the share of the budget that is spent."""
        share = self._report.acts / self._options.budget
        if self._options.seconds is not None:
            share = max(share, (monotonic() - self._started) / self._options.seconds)
        return share

    def _take(self) -> tuple[Place, float] | None:
        changing = self._spent() >= _READS
        return self._frontier.take(mutated=changing) or self._frontier.take(mutated=not changing)

    def _resume(self) -> None:
        """Take up the map of a run before; its last state may not be through."""
        states = list(self._reach.states.values())
        actions: dict[str, list[Tried]] = {}
        for tried in self._reach.actions.values():
            actions.setdefault(tried.state, []).append(tried)
        for number, reached in enumerate(states, 1):
            path = tuple(Act.from_dict(act) for act in reached.path)
            place = Place(path, reached.mutated, "" if len(path) == 1 else reached.state)
            last = number == len(states)
            weight = 0.0 if last else self._frontier.mark(place)
            if not last and not reached.mutated:
                again = replace(place, state=reached.state, trying=True)
                self._frontier.add(again, weight * KEPT / max(1, reached.controls))
            for tried in actions.get(reached.state, ()):
                self._take_up(reached, path, tried, weight * KEPT / max(1, reached.controls))
            if last:
                del self._reach.states[reached.state]
                self._frontier.add(place, 1.0)

    def _take_up(self, reached: ReachedState, path: tuple[Act, ...], tried: Tried, share: float) -> None:
        if tried.how not in (WAITING, RECORDED):
            return
        act = Act.from_dict(tried.action)
        if tried.requests and self._grounds.scope.contains(tried.requests[0][1]):
            self._frontier.add(Place.at(tried.requests[0][1]), share)
        elif tried.how == WAITING:
            self._frontier.add(Place((*path, act), mutated=True, base=reached.state, told=tried.told), share)

    # --- a state ------------------------------------------------------------------------------------

    async def _visit(self, place: Place, weight: float) -> None:
        if place.trying and self._is_all_known(place.state):
            return
        async with self._grounds.walking() as walker:
            state = await self._arrive(walker, place)
            if state is not None:
                share = weight * KEPT / max(1, len(state.controls))
                await self._stay(_Stay(walker, place, state, share))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._grounds.recording.idle(), _LAST_ANSWERS)

    async def _arrive(self, walker: Walker, place: Place) -> State | None:
        """Go where a place is; None if there is no page, or none of ours."""
        state = await self._follow(walker, place.path[:-1] if place.base else place.path)
        self.tokens.see(state)
        if place.base:
            state = (await self._try(walker, state, place.base, place.path[-1], place.told))[0]
        else:
            self._count(f"open {place.path[-1].value}" if place.url else f"go to {place.told or 'a state'}")
            self._recorded(walker.take_requests())
        if not state.url.startswith(("http://", "https://")) or not self._grounds.scope.contains(
            wire_url(state.url)
        ):
            return None
        return state

    async def _follow(self, walker: Walker, path: Sequence[Act]) -> State:
        state: State | None = None
        for act in path:
            await walker.do(act, state)
            state = await walker.look()
        assert state is not None
        return state

    async def _stay(self, stay: _Stay) -> None:
        """Write a new state down; try its controls at a second visit, or at once where the site was changed.

        Between the two others have their turn: a page that many links lead to is worth more than the tenth
        option of a list.
        """
        state, place = stay.state, stay.place
        if place.trying:
            _, plan = self._plans.pop(place.state, None) or (state, self._plan(state))
            if state.digest not in self._reach.states:  # it is another one at each load
                plan = self._enter(stay)
            return await self._try_offers(stay, plan.offers)
        if state.digest not in self._reach.states:
            plan = self._enter(stay)
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

    def _settle_known(self, stay: _Stay, plan: Plan) -> bool:
        """Write down what needs no trying; return whether anything is left."""
        settled = [
            self._reach.tried(stay.state.digest, offer.act.to_dict()) or self._is_settled(stay, offer)
            for offer in plan.offers
        ]
        return not all(settled)

    def _enter(self, stay: _Stay) -> Plan:
        """Write a new state down, and what its links lead to."""
        state, place = stay.state, stay.place
        note = "" if place.state in ("", state.digest) else f"was {place.state} when it was found"
        path = tuple(act.to_dict() for act in place.path)
        self._write(ReachedState(state.digest, state.url, path, len(state.controls), place.mutated, note))
        plan = self._plan(state)
        self._note_links(stay, plan)
        return plan

    def _plan(self, state: State) -> Plan:
        options, seed = self._options, self._grounds.pinning.seed
        scope = self._grounds.scope
        return make_plan(state, scope, options.values, options.avoid, alike=options.alike, seed=seed)

    def _note_links(self, stay: _Stay, plan: Plan) -> None:
        for link in plan.links:
            self._frontier.add(Place.at(link.url), stay.share)
        for link in {link.url: link for link in plan.links}.values():
            how = RECORDED if link.url in self._known else WAITING
            self._leave(stay.state, link, how, (("GET", link.url),))
        for left, why in plan.left:
            self._leave(stay.state, left, why, (("GET", left.url),) if isinstance(left, Link) else ())

    async def _look_behind(self, stay: _Stay, plan: Plan) -> None:
        """Open pages that a changed site leads to, before it is changed again."""
        kinds: dict[str, Link] = {}
        for link in plan.links:
            kinds.setdefault(link.kind, link)
        for link in list(kinds.values())[:_BEHIND]:
            if self._spent() >= 1:
                return
            await stay.walker.do(Act("open", value=link.url))
            self._recorded(stay.walker.take_requests())
            self._count(f"behind {stay.place.told}: {link.url}")
        await self._back(stay)

    async def _try_offers(self, stay: _Stay, offers: Sequence[Offer]) -> None:
        here: State | None = stay.state
        for offer in offers:
            if self._spent() >= 1:
                return
            if self._reach.tried(stay.state.digest, offer.act.to_dict()) or self._is_settled(stay, offer):
                continue
            here = here or await self._back(stay)
            before = here
            after, asked = await self._try(
                stay.walker, before, stay.state.digest, offer.act, offer.told, offer.same
            )
            changed = any(method in MUTATIONS for method, _ in asked)
            self._lead(stay, offer, before, after, changed=changed)
            if changed and not stay.place.mutated:
                return await self._go_on_elsewhere(stay, offers)
            stayed = after.digest == before.digest
            here = after if stayed and offer.act.do in _HARMLESS else None
        return None

    async def _go_on_elsewhere(self, stay: _Stay, offers: Sequence[Offer]) -> None:
        """Try the rest in a fresh context: in this one the site was changed."""
        async with self._grounds.walking() as walker:
            await self._back(_Stay(walker, stay.place, stay.state, stay.share))
            await self._try_offers(_Stay(walker, stay.place, await walker.look(), stay.share), offers)

    def _is_settled(self, stay: _Stay, offer: Offer) -> bool:
        """Put off what changes the site, and what is known from other pages; return whether it was either."""
        if offer.mutates:
            if self._options.mutations:
                path = (*stay.place.path, offer.act)
                place = Place(path, mutated=True, base=stay.state.digest, told=offer.told)
                self._frontier.add(place, stay.share)
            self._leave(stay.state, offer, WAITING if self._options.mutations else "changes the site")
            return True
        return self._is_known(stay.state, offer)

    def _is_all_known(self, digest: str) -> bool:
        """Return whether what a state was to be entered again for was tried elsewhere since."""
        held = self._plans.get(digest)
        if held is None:
            return False
        state, plan = held
        return all(
            [
                self._reach.tried(digest, offer.act.to_dict()) or self._is_known(state, offer)
                for offer in plan.offers
            ]
        )

    def _is_known(self, state: State, offer: Offer) -> bool:
        # What a form asks for by its address and its fields is the same wherever it stands.
        asked = self._known.does(offer.same, proven=1 if offer.act.do == "submit" else PROVEN)
        if asked is None:
            return False
        self._leave(state, offer, RECORDED, asked)
        return True

    def _lead(self, stay: _Stay, offer: Offer, before: State, after: State, *, changed: bool) -> None:
        """Add where an act has led to, if that is somewhere else."""
        if after.digest == before.digest or after.digest in self._reach.states:
            return
        if not self._grounds.scope.contains(wire_url(after.url)):
            return
        mutated = changed or stay.place.mutated
        if wire_url(after.url) != wire_url(before.url) and not mutated:
            self._frontier.add(Place.at(after.url), stay.share)
        else:
            path = (*stay.place.path, offer.act)
            self._frontier.add(Place(path, mutated, after.digest, told=offer.told), stay.share)

    async def _back(self, stay: _Stay) -> State:
        if stay.place.mutated:
            return await self._follow(stay.walker, (Act("open", value=stay.state.url),))
        return await self._follow(stay.walker, stay.place.path)

    # --- an act -------------------------------------------------------------------------------------

    async def _try(
        self, walker: Walker, state: State, base: str, act: Act, told: str, same: str = ""
    ) -> tuple[State, Asked]:
        """Act, look, and write down what came of it."""
        self._recorded(walker.take_requests())
        error = await walker.do(act, state)
        after = await walker.look()
        asked, unanswered = self._recorded(walker.take_requests())
        if same and not error:
            stayed = after.digest == state.digest
            self._known.did(same, base, asked, stayed=stayed)
        self._write(
            Tried(base, act.to_dict(), told, asked[:_LISTED], unanswered, after.digest, "tried", error)
        )
        self._count(told)
        return after, asked

    def _recorded(self, requests: Sequence[Requested]) -> tuple[Asked, Asked]:
        """Take note of what was recorded; return what was asked for, and of that what was not answered."""
        recording = self._grounds.recording
        asked, unanswered = [], []
        for request in requests:
            url = wire_url(request.url)
            asked.append((request.method, url))
            lost = request.failure and _ABORTED not in request.failure
            if lost or url in recording.failed or url in recording.aborted:
                unanswered.append((request.method, url))
            elif request.method == "GET":
                self._known.add(url)
        return tuple(dict.fromkeys(asked)), tuple(dict.fromkeys(unanswered))

    def _leave(self, state: State, what: Offer | Link, how: str, asked: Asked = ()) -> None:
        if not self._reach.tried(state.digest, what.act.to_dict()):
            self._write(Tried(state.digest, what.act.to_dict(), what.told, asked, how=how))

    def _count(self, told: str) -> None:
        self._report.acts += 1
        recording = self._grounds.recording
        self._on_event(
            ExploreEvent(
                told, self._report.acts, len(self._reach.states), len(self._frontier), recording.body_bytes
            )
        )

    def _write(self, line: ReachedState | Tried) -> None:
        self._reach.add(line)
        self._lines.write(to_line(line))
        self._lines.flush()
