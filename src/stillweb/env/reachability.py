"""Check a reachability map against the replay: is every action that the recording answered still answered?

Each action runs in a new session and context, after the actions that lead to its state, as in an episode of
an agent. The sites are not contacted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playwright.async_api import Browser

from stillweb import clock
from stillweb.browser.input.controls import PageState
from stillweb.browser.input.walker import Act, Walker, walking
from stillweb.browser.profile import Level
from stillweb.collections.manifest import storage_state_of
from stillweb.collections.reachability import ReachabilityMap, ReachedState, TriedAction
from stillweb.env.episode.episode import close_session, profile_of
from stillweb.env.episode.start import pinning_of
from stillweb.errors import InfraError
from stillweb.replay import ReplayClient


@dataclass(frozen=True, slots=True)
class ActionCheck:
    """Result of an action of the map on the replay.

    Attributes:
        missed: "METHOD URL" of the action's misses.
        on_the_way: misses of the actions before it.
        same_state: whether its state was reached again.
        same_next: whether it led to the recorded next state.
        error: reason why the action failed.
    """

    url: str
    description: str
    missed: tuple[str, ...] = ()
    on_the_way: tuple[str, ...] = ()
    same_state: bool = False
    same_next: bool = False
    error: str = ""

    @property
    def holds(self) -> bool:
        return not self.missed and not self.error


def sample_actions(reach: ReachabilityMap, limit: int, seed: int = 0) -> list[TriedAction]:
    """Return a random sample of the actions that were tried and answered, in the order of the map."""
    found = [
        each
        for each in reach.actions.values()
        if each.how == "tried" and each.answered and not each.error and each.state in reach.states
    ]
    if len(found) <= limit:
        return found
    drawn = sorted(clock.seeded("reached", seed).sample(range(len(found)), limit))
    return [found[number] for number in drawn]


async def check_reachability(
    client: ReplayClient,
    browser: Browser,
    collection: str,
    reach: ReachabilityMap,
    actions: Sequence[TriedAction],
    on_checked: Callable[[ActionCheck], None] = lambda checked: None,
) -> list[ActionCheck]:
    """Run actions of a map on the replay, and compare.

    Args:
        browser: browser started with the server's SPKI hashes.
        collection: name of a collection of the server.

    Raises:
        InfraError: if the replay fails.
    """
    manifest = (await client.info()).manifests.get(collection, {})
    checked = []
    for tried in actions:
        session = await client.open_session(collection)
        try:
            async with walking(
                browser,
                proxy=session.proxy,
                profile=profile_of(None, manifest, None),
                pinning=pinning_of(Level.CLOCK, manifest, None, None),
                storage_state=storage_state_of(manifest),
            ) as walker:
                taking = _Taking(client, session.id, walker)
                checked.append(await taking.take(reach.states[tried.state], tried))
        except InfraError as error:
            checked.append(ActionCheck(reach.states[tried.state].url, tried.description, error=str(error)))
        finally:
            await close_session(client, session)
        on_checked(checked[-1])
    return checked


@dataclass(slots=True)
class _Taking:
    client: ReplayClient
    session: str
    walker: Walker
    seen: int = 0

    async def take(self, reached: ReachedState, tried: TriedAction) -> ActionCheck:
        state: PageState | None = None
        for act in map(Act.from_dict, reached.path):
            await self.walker.do(act, state)
            state = await self.walker.look()
        assert state is not None
        on_the_way = await self._missed()
        error = await self.walker.do(Act.from_dict(tried.action), state)
        after = await self.walker.look()
        return ActionCheck(
            reached.url,
            tried.description,
            await self._missed(),
            on_the_way,
            same_state=state.digest == tried.state,
            same_next=after.digest == tried.next,
            error=error,
        )

    async def _missed(self) -> tuple[str, ...]:
        ledger = await self.client.ledger(self.session, after=self.seen)
        self.seen = max([self.seen, *(entry.seq for entry in ledger.entries)])
        return tuple(f"{entry.method} {entry.url}" for entry in ledger.misses)
