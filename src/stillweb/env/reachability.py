"""Check a reachability map against the replay: from a reset, does what was answered then have its answer now?

Each action is taken from a fresh session and context, by the acts that lead to its state: that is what a
reset and the actions of an agent would ask. The sites are not asked.
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
from stillweb.collections.reachability import Reach, ReachedState, Tried
from stillweb.env.episode.episode import close_session, profile_of
from stillweb.env.episode.start import pinning_of
from stillweb.errors import InfraError
from stillweb.replay.client import ReplayClient

__all__ = ["ActionCheck", "check_reach", "sample_reach"]


@dataclass(frozen=True, slots=True)
class ActionCheck:
    """An action of the map, taken on the replay.

    Attributes:
        missed: "METHOD URL" of what the action asked for and did not get.
        on_the_way: the same of the acts before it.
        same_state: whether its state was met again.
        same_next: whether it led where it led when it was recorded.
        error: why the page did not let it happen, or what failed.
    """

    url: str
    told: str
    missed: tuple[str, ...] = ()
    on_the_way: tuple[str, ...] = ()
    same_state: bool = False
    same_next: bool = False
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether the action is answered as the map says."""
        return not self.missed and not self.error


def sample_reach(reach: Reach, limit: int, seed: int = 0) -> list[Tried]:
    """Return some of the actions that were tried and answered, drawn by the seed, in the order of the map."""
    found = [
        each
        for each in reach.actions.values()
        if each.how == "tried" and each.answered and not each.error and each.state in reach.states
    ]
    if len(found) <= limit:
        return found
    drawn = sorted(clock.seeded("reached", seed).sample(range(len(found)), limit))
    return [found[number] for number in drawn]


async def check_reach(
    client: ReplayClient,
    browser: Browser,
    collection: str,
    reach: Reach,
    actions: Sequence[Tried],
    on_checked: Callable[[ActionCheck], None] = lambda checked: None,
) -> list[ActionCheck]:
    """Take actions of a map on the replay, and compare.

    Args:
        client: of the replay server.
        browser: started with the server's SPKI hashes.
        collection: that the server has.
        reach: the map.
        actions: of it.
        on_checked: told of each.

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
            checked.append(ActionCheck(reach.states[tried.state].url, tried.told, error=str(error)))
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

    async def take(self, reached: ReachedState, tried: Tried) -> ActionCheck:
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
            tried.told,
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
