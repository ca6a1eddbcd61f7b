"""The coverage report: one HTML file with rates, causes and pictures of where agents left the recording."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stillweb.coverage.causes import LEFT_ALONE, MissCause
from stillweb.coverage.measure import CoverageResult, WalkRecord, walk_options
from stillweb.env import VectorEnv
from stillweb.errors import InfraError, TaskError
from stillweb.replay import ReplayClient
from stillweb.templates import write_page

if TYPE_CHECKING:
    from stillweb.coverage.rounds import UntilReport

PICTURES = 8
"""Causes that get a picture, the most frequent first."""


@dataclass(frozen=True, slots=True)
class CausePicture:
    """The page just before a step that missed.

    Attributes:
        png: screenshot of the viewport.
        width, height: of the viewport, in CSS pixels.
        box: left, top, width and height of the element in CSS pixels; None if the action had no element.
    """

    png: bytes
    width: int
    height: int
    box: tuple[float, float, float, float] | None = None

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


async def take_pictures(
    client: ReplayClient,
    result: CoverageResult,
    causes: Sequence[MissCause],
    level: str,
    seconds: float | None = None,
) -> dict[int, CausePicture]:
    """Repeat walks up to the steps that missed; return pictures by the number of their cause.

    Walks are deterministic, so the measurement itself takes no screenshots. After `seconds` the other causes
    get none.
    """
    walks = {(walk.agent, walk.seed): walk for walk in result.walks}
    shown = list(enumerate(causes[:PICTURES]))
    pictures: dict[int, CausePicture] = {}
    vector = VectorEnv(
        client.url,
        min(2, len(shown)) or 1,
        collection=result.collection,
        level=level,
        observe=("axtree", "coords"),
        options=walk_options(max(len(walk.steps) for walk in result.walks), derived=result.derived),
    )
    waiting = iter(shown)

    async def work(session: int) -> None:
        for number, cause in waiting:
            agent, seed, step = cause.example
            try:
                taken = await _picture(vector, session, walks[agent, seed], step)
            except (InfraError, TaskError):
                continue  # the report names the cause without its picture
            pictures[number] = taken

    async with vector:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for session in range(len(vector)):
                    group.create_task(work(session))
    return pictures


async def _picture(vector: VectorEnv, session: int, walk: WalkRecord, step: int) -> CausePicture:
    observation, _ = await vector.reset(session, url=walk.start)
    for each in walk.steps[: step - 1]:
        observation, *_ = await vector.step(session, each.action)
    bid = walk.steps[step - 1].action.get("bid")
    box = next((each.box for each in observation.elements or () if bid and each.bid == bid), None)
    assert observation.screenshot is not None
    assert observation.coords is not None
    width, height = observation.coords["viewport"]
    return CausePicture(observation.screenshot, width, height, box)


def write_report(
    result: CoverageResult,
    causes: Sequence[MissCause],
    pictures: dict[int, CausePicture],
    folder: Path,
    until: UntilReport | None = None,
) -> Path:
    """Write `index.html` into a folder and return its path.

    Args:
        pictures: by the number of their cause.
        folder: created if it is missing.
        until: the loop that ended with this measurement.
    """
    agents = list(dict.fromkeys(walk.agent for walk in result.walks))
    return write_page(
        folder / "index.html",
        "stillweb.coverage",
        "coverage.html.j2",
        result=result,
        rate=result.miss_rate(),
        rows=[(agent, result.counts(agent), result.miss_rate(agent)) for agent in agents],
        total=result.counts(),
        causes=causes,
        pictures=pictures,
        until=until,
        left_alone=LEFT_ALONE,
    )
