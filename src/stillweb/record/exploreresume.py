"""Take up the map of an exploration that ended, was stopped or was killed. Pure."""

from __future__ import annotations

from dataclasses import replace

from stillweb.browser.walk import Act
from stillweb.collections.reachability import Reach, ReachedState, Tried
from stillweb.record.explorebook import RECORDED, WAITING
from stillweb.record.explorefrontier import KEPT, ExploreFrontier, Place
from stillweb.record.scope import Scope

__all__ = ["resume"]


def resume(frontier: ExploreFrontier, reach: Reach, scope: Scope) -> None:
    """Take up the map of a run before; its last state may not be through."""
    states = list(reach.states.values())
    actions: dict[str, list[Tried]] = {}
    for tried in reach.actions.values():
        actions.setdefault(tried.state, []).append(tried)
    for number, reached in enumerate(states, 1):
        path = tuple(Act.from_dict(act) for act in reached.path)
        place = Place(path, reached.mutated, "" if len(path) == 1 else reached.state)
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
        frontier.add(Place.at(tried.requests[0][1]), share)
    elif tried.how == WAITING:
        frontier.add(Place((*path, act), mutated=True, base=reached.state, told=tried.told), share)
