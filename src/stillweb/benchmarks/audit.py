"""Audit of task files: what a task scores untouched, and what its grader accepts.

Most findings about a task come from playing it from its start page; `MEANINGS` lists them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from stillweb import clock
from stillweb.benchmarks.oracle import OracleRun, retry_episode, run_oracle
from stillweb.benchmarks.pages import fold
from stillweb.benchmarks.proof import answer_part, without_last_act
from stillweb.benchmarks.site import is_document, read_texts
from stillweb.browser.profile import LEVEL
from stillweb.collections.layout import Collection
from stillweb.env import Env, EnvOptions, EvalKind, Evaluation, Evidence, Observation, Task
from stillweb.env.env import open_envs
from stillweb.env.tasks.evaluators import AnswerEvaluator, JsonEvaluator, ScriptEvaluator
from stillweb.env.tasks.evidence import Evaluator
from stillweb.errors import InfraError
from stillweb.options import Option
from stillweb.replay import ReplayClient

Severity = Literal["error", "warning", "note"]

ABSURD = ("stillweb audit: no such answer", "N/A", "0", "yes", "true", "[]", "{}")
"""Answers without any relation to a task."""

MEANINGS: Mapping[str, str] = {
    "untouched": "doing nothing scores more than 0",
    "accepts anything": "an answer without any relation to the task scores more than 0",
    "start": "the collection does not hold the start page, or the setup fails",
    "grader": "the evaluator raises, or cannot be run on any recording",
    "rejects reference": "the evaluator rejects the answer that it expects",
    "oracle": "a proof of the task's oracle fails",
    "infrastructure": "browser or proxy failed in every attempt",
    "contradicts": "a task with the same goal and start page expects something else",
    "accepts whole page": "all texts of the start page together are accepted as the answer",
    "unknown selector": "a script looks for an id or class that its pages do not mention",
    "unknown text": "a script compares with a text that neither the goal nor its pages mention",
    "script throws": "a script calls what is not a function",
    "misses": "the start page requests what the collection does not hold",
    "duplicate": "another task has the same goal, start page and evaluator",
    "no oracle": "no known solution, so solvability is not checked",
    "needs site": "the URL of a site that the task names is not given (--site)",
    "needs judge": "a model judges the answer",
    "not scored": "the task has no evaluator",
    "not played": "the collection is missing, so only the text of the task was checked",
}
"""Meaning of each kind of finding."""

_NEVER = ("site_api", "agent_report", "request_pattern")  # prerequisites that no recording has
_EXAMPLES = 5
_LITERAL = re.compile(r"""(?:querySelector(?:All)?|closest|matches)\(\s*(['"`])(.*?)\1""")
_NAMED = re.compile(r"""(?:getElementById|getElementsByClassName)\(\s*(['"`])([\w-]+)\1""")
_COMPARED = re.compile(r"""(?:[=!]==?\s*|includes\(\s*)(['"`])([^'"`\n]{4,80})\1""")
_WORDS = re.compile(r"[^\W\d_]{4,}")
_SELECTED = re.compile(r"([#.])([A-Za-z_][\w-]*)")
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of `audit_tasks`."""

    jobs: Annotated[int, Option("Tasks to play at a time.", min=1)] = 4
    runs: Annotated[int, Option("Runs of each oracle.", min=1)] = 3
    level: Annotated[str, LEVEL] = "exact"
    limit: Annotated[int | None, Option("Audit the first N tasks only.", min=1)] = None


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A fault or remark about one task.

    Attributes:
        task: its id.
        kind: name of the check, such as those in the report.
    """

    task: str
    severity: Severity
    kind: str
    detail: str = ""


@dataclass(slots=True)
class AuditReport:
    """Findings about a task file.

    Attributes:
        tasks, played: number of tasks, and of those that were played in the browser.
    """

    source: str
    tasks: int
    played: int = 0
    goals: Mapping[str, str] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def errors(self) -> list[str]:
        """Tasks with an error."""
        return list(dict.fromkeys(each.task for each in self.findings if each.severity == "error"))

    def kinds(self) -> list[dict[str, Any]]:
        """Return a row for each kind of finding: severity, meaning, number of tasks, the first of them."""
        found: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for each in self.findings:
            found[each.severity, each.kind][each.task] = None
        order = {"error": 0, "warning": 1, "note": 2}
        return [
            {
                "severity": severity,
                "kind": kind,
                "meaning": MEANINGS[kind],
                "tasks": len(tasks),
                "examples": list(tasks)[:_EXAMPLES],
            }
            for (severity, kind), tasks in sorted(
                found.items(), key=lambda each: (order[each[0][0]], each[0])
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "source": self.source,
            "tasks": self.tasks,
            "played": self.played,
            "errors": len(self.errors),
            "seconds": round(self.seconds, 1),
            "kinds": self.kinds(),
            "findings": [asdict(each) for each in self.findings],
            "goals": {e.task: self.goals[e.task] for e in self.findings if e.severity != "note"},
        }


async def audit_tasks(
    source: str,
    tasks: Sequence[Task],
    client: ReplayClient | None,
    options: AuditOptions,
    collections: Sequence[Collection] = (),
    on_task: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Audit tasks; those whose collection the server does not hold are checked without a browser.

    Args:
        source: name of the task file, for the report.
        tasks: tasks with different ids.
        client: client of a replay server; None to check all tasks without a browser.
        collections: the recordings, to look up what the tasks' scripts select.
        on_task: called after each task that was played.

    Raises:
        InfraError: if the browser does not start or does not keep the level.
    """
    began = clock.perf()
    tasks = tasks[: options.limit]
    report = AuditReport(source, len(tasks), goals={task.id: task.goal for task in tasks})
    report.findings += static_findings(tasks)
    report.findings += await asyncio.to_thread(script_findings, tasks, collections)
    async with AsyncExitStack() as stack:
        served: Mapping[str, str] = {}
        envs: list[Env] = []
        if client:
            served = (await client.info()).collections
            chosen = EnvOptions(max_steps=100)
            opening = open_envs(
                client.url, min(options.jobs, len(tasks)), level=options.level, options=chosen
            )
            envs = await stack.enter_async_context(opening)
        todo = iter(tasks)
        found: dict[str, list[AuditFinding]] = {}  # by task

        async def work(env: Env) -> None:
            for task in todo:
                found[task.id] = await _TaskAudit(env, task, options).findings()
                on_task()

        missing = [task for task in tasks if not _is_served(task, served)]
        todo = iter([task for task in tasks if _is_served(task, served)])
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(work(env))
    for task in missing:
        name = task.collection or "of the task"
        found[task.id] = [AuditFinding(task.id, "note", "not played", f"no collection {name}")]
    report.played = len(tasks) - len(missing)
    report.findings += [finding for task in tasks for finding in found[task.id]]
    report.seconds = clock.perf() - began
    return report


def _is_served(task: Task, served: Mapping[str, str]) -> bool:
    return task.collection in served if task.collection else len(served) == 1


# --- without a browser -----------------------------------------------------------------------------


def static_findings(tasks: Sequence[Task]) -> list[AuditFinding]:
    """Return what can be found by reading the tasks."""
    found = [*_repetitions(tasks)]
    for task in tasks:
        evaluation = task.evaluation
        if evaluation is None:
            found.append(AuditFinding(task.id, "note", "not scored"))
            continue
        never = sorted(task.needs.intersection(_NEVER))
        if never:
            found.append(AuditFinding(task.id, "error", "grader", f"needs {', '.join(never)}"))
        if "site_url" in task.needs:
            found.append(AuditFinding(task.id, "note", "needs site", "--site NAME=URL"))
        if "judge" in task.needs:
            found.append(AuditFinding(task.id, "note", "needs judge"))
        if task.origin is None or not task.origin.oracle:
            found.append(AuditFinding(task.id, "note", "no oracle"))
        for part in parts_of(evaluation):
            found += _answer_findings(task, part)
    return found


def parts_of(evaluation: Evaluator) -> list[Evaluator]:
    """Return an evaluator and all evaluators in it."""
    return [evaluation, *(each for part in evaluation.parts_in for each in parts_of(part))]


def _repetitions(tasks: Sequence[Task]) -> list[AuditFinding]:
    alike: defaultdict[tuple[str, ...], list[Task]] = defaultdict(list)
    for task in tasks:
        alike[task.goal, task.start_url, task.collection, repr(task.start), repr(task.setup)].append(task)
    found = []
    for same in alike.values():
        for task in same[1:]:
            equal = next(
                (each for each in same if each is not task and each.evaluation == task.evaluation), None
            )
            if equal is not None:
                found.append(AuditFinding(task.id, "warning", "duplicate", f"as {equal.id}"))
            else:
                detail = f"{same[0].id} has the same goal and start page: {task.goal}"
                found.append(AuditFinding(task.id, "error", "contradicts", detail))
    return found


def reference_of(evaluator: Evaluator) -> str | None:
    """Return the answer that an evaluator of the answer expects, None for other evaluators."""
    match evaluator:
        case AnswerEvaluator(exact=str(exact)):
            return exact
        case AnswerEvaluator(include=(_, *_) as texts):
            return " ".join(texts)
        case JsonEvaluator(expected=expected):
            return json.dumps(expected)
        case Evaluation(kind=EvalKind.STRING | EvalKind.JSON, expected=text):
            return text
    return None


def _answer_findings(task: Task, part: Evaluator) -> list[AuditFinding]:
    """Return what is wrong with an evaluator of the answer."""
    reference = reference_of(part)
    if reference is None or "judge" in part.needs:
        return []
    found = []
    if not part.score(Evidence(answer=reference)).reward:
        found.append(AuditFinding(task.id, "error", "rejects reference", reference))
    for absurd in ABSURD:
        if absurd.casefold() != reference.strip().casefold() and part.score(Evidence(answer=absurd)).reward:
            found.append(AuditFinding(task.id, "error", "accepts anything", absurd))
            break
    if part.score(Evidence(answer="")).reward and reference.strip():
        found.append(AuditFinding(task.id, "error", "accepts anything", "an empty answer"))
    return found


def script_findings(tasks: Sequence[Task], collections: Sequence[Collection]) -> list[AuditFinding]:
    """Return the tasks whose scripts look for what no recorded text of their pages mentions."""
    by_name = {each.name: each for each in collections if not each.is_only_pack}
    texts: dict[str, dict[str, str]] = {}
    pages: dict[tuple[str, str], str] = {}
    found = []
    for task in tasks:
        scripts = "\n".join(_scripts(task))
        if not scripts or task.collection not in by_name:
            continue
        if task.collection not in texts:
            texts[task.collection] = read_texts(by_name[task.collection])
        key = (task.collection, task.start_url.partition("#")[0])
        if key not in pages:
            pages[key] = _text_from(texts[task.collection], key[1])
        if unknown := sorted(name for name in selected_names(scripts) if name not in pages[key]):
            found.append(AuditFinding(task.id, "warning", "unknown selector", ", ".join(unknown)))
        known = fold(task.goal) + fold(pages[key])
        if strange := sorted(text for text in compared_texts(scripts) if fold(text) not in known):
            found.append(AuditFinding(task.id, "warning", "unknown text", ", ".join(strange)))
    return found


def _text_from(texts: Mapping[str, str], start: str) -> str:
    """Return the text of a page, of the pages that it names, and of everything that is not a document."""
    page = texts.get(start, "")
    return "\n".join(
        text
        for url, text in texts.items()
        if url == start or not page or not is_document(text) or _last_part(url) in page
    )


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _scripts(task: Task) -> list[str]:
    scripts = []
    for part in parts_of(task.evaluation) if task.evaluation else ():
        match part:
            case Evaluation(kind=EvalKind.JS, expected=script) | ScriptEvaluator(script=script):
                scripts.append(script)
    return scripts


# --- in the browser --------------------------------------------------------------------------------


class _TaskAudit:
    def __init__(self, env: Env, task: Task, options: AuditOptions) -> None:
        self._env = env
        self._task = task
        self._options = options
        self._found: list[AuditFinding] = []
        self._seen: list[Observation] = []

    def _add(self, severity: Severity, kind: str, detail: str = "") -> None:
        self._found.append(AuditFinding(self._task.id, severity, kind, detail[:_LONGEST]))

    async def findings(self) -> list[AuditFinding]:
        try:
            await self._untouched()
            if self._task.origin and self._task.origin.oracle:
                await self._oracle(self._task.origin.oracle, self._task.origin.wrong)
        except InfraError as error:
            self._add("error", "infrastructure", str(error))
        return self._found

    async def _play(self, oracle: Sequence[Mapping[str, Any]]) -> OracleRun:
        return await retry_episode(
            lambda: run_oracle(self._env, self._task, oracle, on_page=self._seen.append)
        )

    async def _untouched(self) -> None:
        """Play `terminate` alone, with no answer and with one that no task expects."""
        if self._task.needs:
            run = await self._play(())
        else:
            run = await self._play(({"action": "terminate"},))
        if run.kind == "task":
            self._add("error", "grader" if run.steps else "start", run.trouble)
            return
        if run.reward is not None and run.reward > 0:
            self._add("error", "untouched", f"reward {run.reward:g}: {'; '.join(run.reasons)}")
        misses = run.start["traffic"]["missed"]
        if misses:
            self._add("warning", "misses", ", ".join(misses))
        if any("is not a function" in reason for reason in run.reasons):
            self._add("warning", "script throws", "; ".join(run.reasons))
        if any("no JavaScript" in reason for reason in run.reasons):
            self._add("error", "grader", "; ".join(run.reasons))
        self._check_texts()

    def _check_texts(self) -> None:
        """Score all texts of the start page together as the answer."""
        if not self._seen or self._task.evaluation is None:
            return
        whole = " ".join(node.name for node in self._seen[0].nodes if node.name)
        for part in parts_of(self._task.evaluation):
            if reference_of(part) is None or "judge" in part.needs:
                continue
            if part.score(Evidence(answer=whole)).reward:
                self._add("warning", "accepts whole page", reference_of(part) or "")

    async def _oracle(self, oracle: Sequence[Mapping[str, Any]], wrong: Sequence[str]) -> None:
        first = await self._play(oracle)
        if first.reward != 1.0:
            reason = first.trouble or "; ".join(first.reasons)
            self._add("error", "oracle", f"reward {first.reward}: {reason}")
            return
        for _ in range(1, self._options.runs):
            run = await self._play(oracle)
            if (run.steps, run.reward) != (first.steps, first.reward):
                self._add("error", "oracle", "two runs have different observations")
                return
        answer = str(oracle[-1].get("answer", ""))
        if not answer and (shorter := without_last_act(oracle)):
            cut = await self._play(shorter)
            if cut.reward:
                self._add("error", "oracle", f"without its last act it scores {cut.reward:g}")
        assert self._task.evaluation is not None
        for text in wrong if answer else ():
            if answer_part(self._task.evaluation).score(Evidence(answer=text)).reward:
                self._add("error", "accepts anything", text)


def selected_names(script: str) -> set[str]:
    """Return the ids and classes that a script's selectors name."""
    names = {name for _, name in _NAMED.findall(script)}
    for _, selector in _LITERAL.findall(script):
        plain = re.sub(r"\[[^\]]*\]|:[\w-]+\([^)]*\)", "", selector)
        names.update(name for _, name in _SELECTED.findall(plain))
    return names


def compared_texts(script: str) -> set[str]:
    """Return the texts with words that a script compares values with."""
    return {text for _, text in _COMPARED.findall(script) if _WORDS.search(text)}
