"""Start and end of a task: set up its page, and read the evidence for its evaluators.

Evidence is read once, in the order of the evaluators, when the agent terminates or the page reports its end.
A page that only an evaluator needs is opened in a tab of its own and closed again. Failures have three
outcomes:

- A script that throws scores 0: the page is not in the state that the task requires.
- A page that is gone or does not answer is an `InfraError`.
- A page that the collection does not hold, a script that never ends, or a missing judge is a `TaskError`.

The last two are never a reward.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.observe.page import page_address, page_html
from stillweb.browser.settle import Settled
from stillweb.env.actions.action import Action, InvalidAction
from stillweb.env.actions.perform import open_start
from stillweb.env.episode.episode import Episode
from stillweb.env.episode.offpath import session_required
from stillweb.env.tasks.evaluators import SiteEvaluator
from stillweb.env.tasks.evidence import (
    NO_SCRIPT,
    Evaluator,
    Evidence,
    Judge,
    Judgement,
    PageQuery,
    PageQueryResult,
    Question,
    Score,
    plain,
)
from stillweb.env.tasks.writes import request_evidence
from stillweb.errors import InfraError, TaskError
from stillweb.http.control import Ledger
from stillweb.matching.rules import Rules
from stillweb.model import Tier
from stillweb.urls import wire_url

SCRIPT_SECONDS = 30.0
"""Limit for one script of a task; a longer run is an error of the task, not a result of the agent."""

_HTML = PageQuery()


async def set_up(episode: Episode) -> Settled | None:
    """Open the task's further tabs, run its scripts, read its goal; return how the page settled after them.

    Raises:
        TaskError: if the collection does not hold a tab's page, or a script of the task throws.
        InfraError: if browser or proxy fail.
    """
    task = episode.task
    if task is None:
        return None
    episode.goal = task.goal
    start, settled = episode.page, None
    for url in task.tabs:
        seen = await _last_request(episode)
        landed = await open_start(await episode.context.new_page(), url)
        await episode.settle()
        await _check_held(episode, seen, "the task opens", url, landed)
    episode.tabs.activate(start)
    for script in task.setup:
        await _must(start, script, {"seed": episode.pinning.seed})
        settled = await episode.settle()
    if task.goal_script:
        episode.goal = str(await _must(start, task.goal_script))
    return settled


async def score_end(
    episode: Episode, action: Action | InvalidAction, judge: Judge | None, *, html: bool = False
) -> Score | None:
    """Score the episode if the agent has terminated it or its page reports its end; otherwise return None.

    Args:
        html: also store the page's HTML as evidence, for `rescore` with other evaluators.

    Raises:
        TaskError: if a judge is needed and missing, or the collection does not hold a page that an evaluator
            needs.
        InfraError: if browser, proxy or judge fail.
    """
    terminated = isinstance(action, Action) and action.action == "terminate"
    evaluation = episode.task.evaluation if episode.task else None
    if not terminated and not (evaluation and await _page_ended(evaluation, episode.page)):
        return None
    answer = action.answer if isinstance(action, Action) and terminated else ""
    evidence = await _read(episode, evaluation, answer, judge, html=html)
    if evaluation is None:
        return Score(0.0, ("nothing is scored",), evidence)
    score = evaluation.score(evidence)
    return Score(score.reward, score.reasons, evidence)


async def _page_ended(evaluation: Evaluator, page: Page) -> bool:
    for site in _sites(evaluation):
        reading = await read_script(page, PageQuery(site.ended))
        if reading.truth and not reading.threw:
            return True
    return False


def _sites(evaluation: Evaluator) -> Iterator[SiteEvaluator]:
    if isinstance(evaluation, SiteEvaluator) and evaluation.ended:
        yield evaluation
    for part in evaluation.parts_in:
        yield from _sites(part)


async def _read(
    episode: Episode, evaluation: Evaluator | None, answer: str, judge: Judge | None, *, html: bool
) -> Evidence:
    page = episode.page
    url = await page_address(page)
    # Before the looks, since these request pages, too.
    needs = evaluation.needs if evaluation else frozenset()
    requests = await _requests(episode, bodies="request_bodies" in needs) if "requests" in needs else None
    looks = dict.fromkeys(evaluation.looks(url) if evaluation else ())
    readings = [await _look(page, look) for look in looks if not look.url]
    if html and _HTML not in looks:
        readings.append(await _look(page, _HTML))
    for other in dict.fromkeys(look.url for look in looks if look.url):
        readings += await _look_elsewhere(episode, other, [look for look in looks if look.url == other])
    questions = evaluation.questions(answer) if evaluation else ()
    return Evidence(
        answer=answer,
        url=url,
        readings=tuple(readings),
        verdicts=tuple([await _ask(judge, question) for question in questions if judge]),
        requests=requests,
        downloads=tuple(episode.downloads),
    )


# --- pages -----------------------------------------------------------------------------------------


async def _look(page: Page, look: PageQuery) -> PageQueryResult:
    for script in look.prepare:
        await read_script(page, PageQuery(script))
    if look.script:
        reading = await read_script(page, PageQuery(look.script))
        return PageQueryResult(look, reading.value, reading.truth, reading.threw)
    text = await page_html(page)
    return PageQueryResult(look, text, bool(text))


async def _look_elsewhere(episode: Episode, url: str, looks: Sequence[PageQuery]) -> list[PageQueryResult]:
    """Read another page, in a tab of its own in the episode's session."""
    active, seen = episode.page, await _last_request(episode)
    page = await episode.context.new_page()
    try:
        try:
            landed = await open_start(page, url)
        except TaskError:  # a navigation that was cancelled, for one
            await _check_held(episode, seen, "the evaluator looks at", url)
            raise
        await episode.settle()
        await _check_held(episode, seen, "the evaluator looks at", url, landed)
        return [await _look(page, look) for look in looks]
    finally:
        episode.tabs.activate(active)
        await page.close()


async def _last_request(episode: Episode) -> int:
    if not episode.replay.has_ledger:
        return 0
    entries = (await _ledger(episode)).entries
    return max((entry.seq for entry in entries), default=0)


async def _check_held(episode: Episode, seen: int, opener: str, *urls: str) -> None:
    if not episode.replay.has_ledger:
        return
    wanted = {wire_url(url) for url in urls}
    for entry in (await _ledger(episode)).entries:
        if entry.seq > seen and entry.tier == Tier.MISS and entry.url in wanted:
            raise TaskError(
                f"{opener} {entry.url}, which collection {episode.session.collection!r} does not hold",
                hint="record that page as well, in the state that the task leads to",
            )


async def _ledger(episode: Episode) -> Ledger:
    with session_required():
        return await episode.replay.client.ledger(episode.session.id)


async def _requests(episode: Episode, *, bodies: bool) -> tuple[Mapping[str, Any], ...]:
    if not episode.replay.has_ledger:
        raise TaskError(
            "the evaluator needs the episode's requests, but this back-end has no ledger",
            hint="stillweb replay --backend native",
        )
    manifest = episode.replay.info.manifests.get(episode.session.collection, {})
    rules = Rules.parse(manifest.get("rules", ""))
    entries = [asdict(entry) for entry in (await _ledger(episode)).entries]
    return request_evidence(entries, bodies=bodies, rules=rules)


# --- scripts ---------------------------------------------------------------------------------------

# Prefixes of Playwright's messages when browser or page failed. The message of an exception in a script
# begins with its class ("Error: ...").
_GONE = ("Target ", "Connection closed", "Protocol error", "Frame was detached", "Browser ", "Page ")
# A navigation during the script replaces the document.
_LEFT = ("Execution context was destroyed", "Cannot find context")
# A syntax error of the script itself is thrown by Playwright's own call of `eval`.
_SYNTAX_ERROR = re.compile(r"(SyntaxError: [^\n]*)\n    at eval \(<anonymous>\)\n    at UtilityScript\b")


async def read_script(
    page: Page, look: PageQuery, given: Any = None, *, timeout: float = SCRIPT_SECONDS
) -> PageQueryResult:
    """Run a script in a page's main world: an expression, or a function that gets the argument `given`.

    Raises:
        TaskError: if the script does not end within `timeout` seconds.
        InfraError: if the page is gone or does not answer.
    """
    if not await _answers(page, timeout):  # otherwise it looks like a script that never ends
        raise InfraError(f"the page was gone before it could be scored: {page.url} does not answer")
    try:
        async with asyncio.timeout(timeout):
            value = await page.evaluate(look.script, given)
    except TimeoutError as error:
        late = f"the task's script did not end within {timeout:g} s on {page.url}: {look.script[:80]}"
        raise TaskError(late) from error
    except PlaywrightError as error:
        message = error.message.removeprefix("Page.evaluate: ")
        line = message.partition("\n")[0]
        if page.is_closed() or line.startswith((*_GONE, *_LEFT)) or not await _answers(page, timeout):
            raise InfraError(f"the page was gone before it could be scored: {line}") from error
        if syntax_error := _SYNTAX_ERROR.match(message):
            line = NO_SCRIPT + syntax_error[1]
        return PageQueryResult(look, threw=line or "a value that is not an Error")
    return PageQueryResult(look, plain(value), bool(value))


async def _must(page: Page, script: str, given: Any = None) -> Any:
    reading = await read_script(page, PageQuery(script), given)
    if reading.threw:
        raise TaskError(
            f"the task's script threw on {page.url}: {reading.threw}: {script[:80]}",
            hint="is this the page that the task was made for?",
        )
    return reading.value


async def _answers(page: Page, timeout: float) -> bool:
    """Return True if a page runs scripts; then a failure is the script's."""
    try:
        async with asyncio.timeout(timeout):
            return bool(await page.evaluate("1") == 1)
    except (TimeoutError, PlaywrightError):
        return False


# --- judge -----------------------------------------------------------------------------------------


async def _ask(judge: Judge, question: Question) -> Judgement:
    function = getattr(judge, "unachievable", judge) if question.kind == "unachievable" else judge
    answering: Any = function(question.question, question.answer, question.reference)
    verdict: Any = (await asyncio.gather(answering, return_exceptions=True))[0]
    if isinstance(verdict, Exception):
        raise InfraError(f"the judge failed: {type(verdict).__name__}: {verdict}") from verdict
    if not isinstance(verdict, int | float) or not 0 <= verdict <= 1:
        raise TaskError(f"the judge returned {verdict!r}, expected is a bool or a number from 0 to 1")
    return Judgement(question, float(verdict))
