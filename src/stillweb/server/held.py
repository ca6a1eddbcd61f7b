"""A lease in the server's hands: what its episode came to, and the one call of it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stillweb.env.observation import Observation
from stillweb.errors import StillwebError
from stillweb.server.gate import Gate
from stillweb.server.leases import Lease
from stillweb.server.once import Once
from stillweb.server.status import Session, letter_of

__all__ = ["Held"]

_CALLS = 16  # of one lease that wait for each other


@dataclass(slots=True)
class Held:
    """A lease and its episode.

    Attributes:
        gate: lets calls of the lease in one by one, in their order; beyond a few they are refused.
        lock: held by the call that is in, and by who clears the lease away.
        once: what was answered to which request of it.
        doing: the operation under way.
        playing: whether an episode is under way.
        over: whether it ended as it should.
        reward: of an episode that ended so.
        error: why the episode failed.
        counts: hits, misses and noise of the episode.
        info: of the last reset or step.
        title: of the page.
        picture: digest of the last picture.
        ended: whether the lease is over.
    """

    lease: Lease
    gate: Gate = field(default_factory=lambda: Gate("this lease", 1, _CALLS))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    once: Once[Any] = field(default_factory=Once)
    doing: str = ""
    task: str = ""
    url: str = ""
    step: int = 0
    playing: bool = False
    over: bool = False
    reward: float | None = None
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    picture: str = ""
    ended: bool = False

    def begins(self, task: str, url: str) -> None:
        """Note that an episode is being opened; what was before is no more."""
        self.task, self.url = task, url
        self.step, self.playing, self.over, self.reward, self.error = 0, False, False, None, ""
        self.counts, self.info, self.title, self.picture = {}, {}, "", ""

    def saw(self, observation: Observation, info: Mapping[str, Any]) -> None:
        """Note what a reset or step gave."""
        self.playing = not self.over
        self.url, self.title = observation.url, observation.title
        self.info, self.step = info, info["step"]
        for name in ("hits", "misses", "noise"):
            self.counts[name] = self.counts.get(name, 0) + info["traffic"][name]

    def ends(self, reward: float) -> None:
        """Note that the episode ended as it should."""
        self.playing, self.over, self.reward = False, True, reward

    def fails(self, error: StillwebError) -> None:
        """Note that the episode failed, and has no reward."""
        self.playing, self.over, self.reward, self.error = False, False, None, str(error)

    def to_status(self, now: float) -> Session:
        """Return what the monitor shows."""
        lease = self.lease
        return Session(
            index=lease.session,
            letter=letter_of(
                leased=True, playing=self.playing, over=self.over, failed=bool(self.error), step=self.step
            ),
            doing=self.doing,
            step=self.step,
            age=round(now - lease.since, 3),
            silent=0.0 if lease.calls else round(now - lease.heard, 3),
            lease=lease.id,
            owner=lease.wanted.owner,
            task=self.task,
            url=self.url,
            picture=self.picture,
            reward=self.reward,
            error=self.error,
            browser=self.info.get("browser", -1),
            hits=self.counts.get("hits", 0),
            misses=self.counts.get("misses", 0),
            noise=self.counts.get("noise", 0),
        )
