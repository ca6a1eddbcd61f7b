"""Paraphrases of goals by an OpenAI-compatible endpoint; names and values must survive.

The model receives the question of a goal; the sentence that says how to answer ("Answer with its name.") is
left as it is. A paraphrase must have the same quoted texts and numbers. It must have the words that decide
the answer ("cheapest", "together"), and not the answer.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from stillweb.benchmarks.pages import fold
from stillweb.env import Task
from stillweb.errors import UsageError

_KEY_VARIABLE = "OPENAI_API_KEY"
_REQUEST = (
    "Rewrite the request of a user of a web site in other words, as another person would say it. Keep its "
    "meaning exactly. Repeat every text in quotation marks “...” and every number character by character. "
    "Reply with the rewritten request alone, in one line."
)
_INSTRUCTION = re.compile(r"(?<=[.?]) (?=Answer (?:with|“))")
_QUOTED = re.compile(r"“([^”]*)”")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DECISIVE = (
    *("cheapest", "most expensive", "highest", "lowest", "together", "how much more", "right after"),
    *("first row", "first", "last", "times", "sort", "then"),
)
_ATTEMPTS = 4
_SECONDS = 60.0
_JOBS = 4
_RETRIED = (408, 429, 500, 502, 503, 504)


@dataclass(slots=True)
class ParaphrasedTasks:
    """Tasks with paraphrased goals where the paraphrase was kept.

    Attributes:
        rejected: number of replies that were not used, by reason.
    """

    tasks: list[Task] = field(default_factory=list)
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


async def paraphrase_tasks(tasks: Sequence[Task], url: str, model: str) -> ParaphrasedTasks:
    """Request a paraphrase of each goal from `URL/chat/completions`.

    The API key is read from OPENAI_API_KEY. A failing endpoint leaves the goal as it is.

    Raises:
        UsageError: if the endpoint rejects the requests (status 4xx).
    """
    key = os.environ.get(_KEY_VARIABLE, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    result = ParaphrasedTasks()
    free = asyncio.Semaphore(_JOBS)
    async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=_SECONDS) as client:

        async def request(task: Task) -> str:
            async with free:
                return await _reply(client, model, _INSTRUCTION.split(task.goal, maxsplit=1)[0])

        replies = await asyncio.gather(*map(request, tasks))
    goals = {task.goal for task in tasks}
    for task, reply in zip(tasks, replies, strict=True):
        text = " ".join(reply.split())
        _, *instruction = _INSTRUCTION.split(task.goal, maxsplit=1)
        goal = " ".join((text, *instruction))
        fault = fault_of(task, text) or ("equals another goal" if goal in goals else "")
        if fault:
            result.rejected[fault] += 1
            result.tasks.append(task)
            continue
        goals.add(goal)
        result.accepted += 1
        origin = replace(task.origin, first_goal=task.goal) if task.origin else None
        result.tasks.append(replace(task, goal=goal, origin=origin))
    return result


def fault_of(task: Task, paraphrase: str) -> str:
    """Return why a paraphrase of the question of a task must not replace it, "" if it may."""
    question = _INSTRUCTION.split(task.goal, maxsplit=1)[0]
    answer = str(task.origin.oracle[-1].get("answer", "")) if task.origin and task.origin.oracle else ""
    lower = paraphrase.lower()
    if not paraphrase:
        return "no reply"
    if paraphrase == question:
        return "unchanged"
    if Counter(_QUOTED.findall(paraphrase)) != Counter(_QUOTED.findall(question)):
        return "quoted texts differ"
    if Counter(_NUMBER.findall(paraphrase)) != Counter(_NUMBER.findall(question)):
        return "numbers differ"
    if any(word in question.lower() and word not in lower for word in _DECISIVE):
        return "a decisive word is missing"
    if len(answer) > 2 and fold(answer) in fold(paraphrase) and fold(answer) not in fold(question):
        return "gives the answer"
    if len(paraphrase) > 2 * len(question) + 40 or not re.search(r"[.?!]$", paraphrase):
        return "no sentence of similar length"
    return ""


async def _reply(client: httpx.AsyncClient, model: str, question: str) -> str:
    """Return the model's text; "" if the endpoint fails in every attempt."""
    messages = [{"role": "system", "content": _REQUEST}, {"role": "user", "content": question}]
    for _ in range(_ATTEMPTS):
        try:
            response = await client.post("/chat/completions", json={"model": model, "messages": messages})
        except httpx.TransportError:
            continue
        if response.status_code in _RETRIED:
            continue
        if response.status_code != 200:
            raise UsageError(
                f"{client.base_url} answers {response.status_code}: {response.text[:200]}",
                hint=f"check --paraphrase, --paraphrase-model and {_KEY_VARIABLE}",
            )
        return _content(response.json())
    return ""


def _content(reply: Any) -> str:
    try:
        return str(reply["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        return ""
