"""MiniWoB++ on a recording: every page below `/miniwob/` is a task, and says itself what it is worth.

Such a page waits below a cover that says START, makes its problem when that is clicked, and ends
after 10 seconds, or when its own script judges what was done: then `WOB_DONE_GLOBAL` is true and
`WOB_REWARD_GLOBAL` holds the reward, -1 to 1, less what the time took where the task is timed. All
of that is the page's and is left to it; only the start is ours: `Math.seedrandom(seed)`, as the
benchmark's own Python does it, and `core.startEpisodeReal()`, which is what the click calls. The
goal is what the page then asks for. At level `network` its ten seconds are real ones; at the others they
are the page's time, of which a step takes little, however long the agent thinks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from stillweb.env.tasks.evaluators import SiteEvaluator
from stillweb.env.tasks.task import Task
from stillweb.errors import UsageError

__all__ = ["miniwob_tasks"]

SITE = SiteEvaluator(
    reward="WOB_REWARD_GLOBAL",
    ended="WOB_DONE_GLOBAL",
    tell="JSON.stringify({raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON, over: WOB_DONE_GLOBAL})",
)
# An utterance is a text or, with its fields, an object.
GOAL = """() => {
  const said = core.getUtterance();
  return typeof said === "string" ? said : said.utterance;
}"""


def miniwob_tasks(
    urls: Iterable[str],
    *,
    collection: str = "",
    seed: int = 0,
    limit_ms: int | None = None,
    max_steps: int = 0,
) -> list[Task]:
    """Make a task of each MiniWoB++ page among some URLs; the others are left out.

    Args:
        urls: as a collection lists its pages.
        collection: that holds them.
        seed: of the problems; `reset(seed=...)` chooses another one.
        limit_ms: of an episode, in the page's time; None leaves the page's own 10 seconds.
        max_steps: steps until an episode is truncated; 0 leaves it to the env.

    Raises:
        UsageError: if there is no such page.
    """
    pages = sorted({url for url in urls if _is_task(url)})
    if not pages:
        raise UsageError(
            "there is no page of MiniWoB++ among the URLs",
            hint="the tasks are pages such as https://HOST/miniwob/click-button.html",
        )
    limit = "" if limit_ms is None else f"core.EPISODE_MAX_TIME = {json.dumps(limit_ms)}; "
    start = f"({{seed}}) => {{ {limit}Math.seedrandom(seed); core.startEpisodeReal(); }}"
    return [
        Task(
            id=f"miniwob.{_name(url)}",
            goal=f"Do what the page asks for ({_name(url)}).",
            start_url=url,
            collection=collection,
            evaluation=SITE,
            seed=seed,
            max_steps=max_steps,
            source=url,
            setup=(start,),
            goal_script=GOAL,
        )
        for url in pages
    ]


def _is_task(url: str) -> bool:
    parts = urlsplit(url)
    return "/miniwob/" in parts.path and parts.path.endswith(".html") and not parts.query


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2].removesuffix(".html")
