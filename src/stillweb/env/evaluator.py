"""Evaluators: what an episode's end is worth, and why.

Four kinds, with the meaning that WARC-Bench gives them (`orby.subtask_benchmark.evaluator`):

    js      the script's value, as an expression or a function called without arguments in the
            active page, is true; a script that throws scores 0 (the page is not in that state)
    string  the answer equals the expected text, both without surrounding white space
    json    same type; objects: same keys, values equal as text; lists: equal as multisets of
            texts; else equal
    url     the active page's address equals the expected one, to the letter

Answers are matched as given and, since models often escape them, with backslash escapes
undone. The comparing parts are pure, so that they score stored trajectories too. A page that
is gone, or does not answer, is an `InfraError`: it says nothing of the agent.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.env.task import EvalKind, Evaluation
from stillweb.errors import InfraError

__all__ = ["Score", "evaluate", "score_answer", "score_url", "score_value"]

SCRIPT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Score:
    """A reward with its reasons, each one clause for the reader of a trajectory."""

    reward: float
    reasons: tuple[str, ...] = ()


async def evaluate(
    evaluation: Evaluation, page: Page, answer: str = "", *, timeout: float = SCRIPT_SECONDS
) -> Score:
    """Score the state of a page and an answer.

    Raises:
        InfraError: if the page is gone or does not answer within `timeout` seconds.
    """
    if evaluation.kind is EvalKind.JS:
        return await _run_script(evaluation.expected, page, timeout)
    if evaluation.kind is EvalKind.URL:
        return score_url(page.url, evaluation.expected)
    return score_answer(evaluation, answer)


def score_answer(evaluation: Evaluation, answer: str) -> Score:
    """Score an answer by a string or json evaluation."""
    match = _json_equal if evaluation.kind is EvalKind.JSON else _text_equal
    if any(match(spelling, evaluation.expected) for spelling in dict.fromkeys((answer, _unescape(answer)))):
        return Score(1.0, (f"the answer is {evaluation.expected!r}",))
    return Score(0.0, (f"the answer is {answer!r}, expected is {evaluation.expected!r}",))


def score_url(url: str, expected: str) -> Score:
    """Score an address by a url evaluation."""
    if url == expected:
        return Score(1.0, (f"the address is {expected}",))
    return Score(0.0, (f"the address is {url}, expected is {expected}",))


def score_value(value: Any) -> Score:
    """Score what a script gave, with Python's idea of truth (an empty list or object is false)."""
    if value:
        return Score(1.0, (f"the script gave {_short(value)}",))
    return Score(0.0, (f"the script gave {_short(value)}",))


# --- js --------------------------------------------------------------------------------------------

# How Playwright's messages begin where the browser or page failed. What a script throws begins with its
# own class ("Error: ..."), whatever it says after that.
_GONE = ("Target ", "Connection closed", "Protocol error", "Frame was detached", "Browser ", "Page ")
# A navigation that goes on while the script runs: the state is being left, so ask the next document.
_LEFT = ("Execution context was destroyed", "Cannot find context")


async def _run_script(script: str, page: Page, timeout: float) -> Score:
    try:
        async with asyncio.timeout(timeout):
            value = await page.evaluate(script)
    except TimeoutError as error:
        raise InfraError(f"the evaluator's script did not end within {timeout:g} s on {page.url}") from error
    except PlaywrightError as error:
        line = _first_line(error.message)
        if page.is_closed() or line.startswith((*_GONE, *_LEFT)) or not await _answers(page, timeout):
            raise InfraError(f"the page was gone when it was to be scored: {line}") from error
        return Score(0.0, (f"the script threw: {line}",))
    return score_value(value)


async def _answers(page: Page, timeout: float) -> bool:
    """Return whether a page runs scripts: only then was it the script that failed."""
    try:
        async with asyncio.timeout(timeout):
            return bool(await page.evaluate("1") == 1)
    except (TimeoutError, PlaywrightError):
        return False


def _first_line(message: str) -> str:
    return message.removeprefix("Page.evaluate: ").partition("\n")[0]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


# --- answers ---------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(plain, text)


def _text_equal(answer: str, expected: str) -> bool:
    return answer.strip() == expected.strip()


def _json_equal(answer: str, expected: str) -> bool:
    try:
        given = json.loads(answer)
    except ValueError:
        return False
    goal = json.loads(expected)
    if type(given) is not type(goal):
        return False
    if isinstance(goal, dict):
        return given.keys() == goal.keys() and all(_texts_equal(given[key], goal[key]) for key in goal)
    if isinstance(goal, list):
        return Counter(map(str, given)) == Counter(map(str, goal))
    return bool(given == goal)


def _texts_equal(given: Any, goal: Any) -> bool:
    return str(given).strip() == str(goal).strip()
