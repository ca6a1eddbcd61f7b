"""MiniWoB++ on a recording: every page below `/miniwob/` is a task and computes its own reward.

Such a page shows a START cover and generates its problem on the click. It ends after 10 seconds, or when its
script has judged the result. Then `WOB_DONE_GLOBAL` is true and `WOB_REWARD_GLOBAL` holds the reward, -1 to
1, reduced by the time used where the task is timed. The page keeps all of that; only the start is ours:
`Math.seedrandom(seed)`, as in the benchmark's Python code, and `core.startEpisodeReal()`, which the click
calls. The goal is the page's utterance. At level `network` the ten seconds are real time. At the other levels
they are the page's virtual time, of which a step takes little, however long the agent thinks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from stillweb.env.tasks.evaluators import SiteEvaluator
from stillweb.env.tasks.task import Task
from stillweb.errors import UsageError

SITE = SiteEvaluator(
    reward="WOB_REWARD_GLOBAL",
    ended="WOB_DONE_GLOBAL",
    tell="JSON.stringify({raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON, over: WOB_DONE_GLOBAL})",
)
# An utterance is a string, or an object with the string and its fields.
GOAL = """() => {
  const utterance = core.getUtterance();
  return typeof utterance === "string" ? utterance : utterance.utterance;
}"""


def miniwob_tasks(
    urls: Iterable[str],
    *,
    collection: str = "",
    seed: int = 0,
    limit_ms: int | None = None,
    max_steps: int = 0,
) -> list[Task]:
    """Return a task for each MiniWoB++ page among some URLs; other URLs are ignored.

    Args:
        urls: pages of a collection.
        seed: seed of the problems; `reset(seed=...)` overrides it.
        limit_ms: time limit of an episode in the page's time; None keeps the page's 10 seconds.
        max_steps: steps until an episode is truncated; 0 leaves the limit to the env.

    Raises:
        UsageError: if no URL is such a page.
    """
    pages = sorted({url for url in urls if _is_task(url)})
    if not pages:
        raise UsageError(
            "no page of MiniWoB++ among the URLs",
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
