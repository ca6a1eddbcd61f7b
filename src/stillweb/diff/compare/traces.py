"""Recorded action traces, taken again in the replay: does an agent that does the same see and earn the same?

    traces/NAME.jsonl      what was done (`stillweb.env.trajectories.trace`), or a trajectory, which says both
    traces/NAME.run.json   what was seen, by digests, and earned when it was recorded (`keep_run`)
    traces/NAME/003.text   what was seen itself, form by form, where the run kept it: then steps have scores

The reward is what counts: a page may differ in a thousand ways that no task asks for, and one
digit of a price may turn a success into a failure. A trace without a recorded run is taken again
all the same, and told with what came of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from stillweb import clock
from stillweb.browser.profile import Level
from stillweb.collections.layout import Collection
from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity
from stillweb.diff.compare.metrics import axtree_scores, text_scores
from stillweb.diff.compare.pixels import compare_pictures
from stillweb.diff.report.report import StepDiff, TraceDiff
from stillweb.env import Env
from stillweb.env.trajectories.trace import Trace, TraceRun, TraceStep, run_trace
from stillweb.errors import CollectionError, StillwebError

FOLDER = "traces"
_RUN = ".run.json"
_VERSION = 1
_USUAL = ("axtree",)
_SCORED = ("text", "axtree", "screenshot")


@dataclass(frozen=True, slots=True)
class Reference:
    """What was seen and earned when a trace was recorded: of each step its digests and status."""

    steps: tuple[Mapping[str, Any], ...] = ()
    reward: float | None = None
    folder: Path | None = None

    def seen(self, step: int, form: str) -> bytes | None:
        """Return what was seen at a step in a form; None if that was not kept."""
        path = self.folder / f"{step:03d}.{form}" if self.folder else None
        return path.read_bytes() if path and path.exists() else None

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of observation that it has digests of."""
        return tuple(sorted({form for step in self.steps for form in step["digests"]}))


def keep_run(collection: Collection, run: TraceRun) -> Path:
    """Write a trace and what came of it into a collection's `traces/`; return the path of the trace.

    A run of `run_trace(..., keep=True)` has its observations kept, too.
    """
    path = collection.path / FOLDER / f"{run.trace.name}.jsonl"
    run.trace.dump(path)
    steps = [step.to_dict() for step in run.steps]
    told = {"version": _VERSION, "reward": run.reward, "steps": steps}
    path.with_suffix(_RUN).write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for step in run.steps if any(step.observation for step in run.steps) else ():
        for form in _SCORED:
            if step.observation and (body := step.observation.body(form)) is not None:
                kept = path.with_suffix("") / f"{step.index:03d}.{form}"
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(body)
    return path


def recorded_traces(collection: Collection) -> list[tuple[Trace, Reference | None]]:
    """Return the traces of a collection with what was recorded of each, by name.

    Raises:
        TaskError: if a trace cannot be read.
        CollectionError: if what was recorded of it cannot.
    """
    files = sorted((collection.path / FOLDER).glob("*.jsonl"))
    return [(Trace.load(path), _reference(path)) for path in files]


def _reference(path: Path) -> Reference | None:
    run = path.with_suffix(_RUN)
    where = run if run.exists() else path
    try:
        if run.exists():
            told = json.loads(run.read_bytes())
            return _checked(told["steps"], told["reward"], path.with_suffix(""))
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
        steps = [line for line in lines if isinstance(line, dict) and "digests" in line]
        reward = next((step.get("reward") for step in steps if step.get("terminated")), None)
        return _checked(steps, reward, None) if steps else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CollectionError(f"the recorded run of a trace cannot be read: {error!r}", path=where) from error


def _checked(steps: Sequence[Mapping[str, Any]], reward: Any, folder: Path | None) -> Reference:
    for step in steps:
        dict(step["digests"])
    return Reference(tuple(steps), None if reward is None else float(reward), folder)


async def diff_traces(
    proxy: str,
    collection: Collection,
    *,
    level: Level = Level.CLOCK,
    browser: Browser | None = None,
    on_trace: Callable[[TraceDiff], None] = lambda trace: None,
) -> tuple[TraceDiff, ...]:
    """Take every recorded trace again and compare.

    Args:
        proxy: URL of a replay server that serves the collection.
        collection: whose traces.
        level: how far pages are pinned.
        browser: to use; None starts one for the traces.
        on_trace: told of each as it is through.

    Raises:
        ReplayUnreachable, ProgramNotFound, InfraError: if there is no replay or no browser.
    """
    found = []
    for trace, reference in recorded_traces(collection):
        began = clock.perf()
        observe = (reference.forms if reference else ()) or _USUAL
        try:
            async with Env(proxy, collection.name, level=level, observe=observe, browser=browser) as env:
                run = await run_trace(env, trace, keep=True)
            result = await asyncio.to_thread(compare_runs, collection.name, reference, run)
        except StillwebError as error:
            result = TraceDiff(trace.name, error=str(error), recorded_reward=_reward(reference))
        found.append(replace(result, seconds=clock.perf() - began))
        on_trace(found[-1])
    return tuple(found)


def compare_runs(collection: str, reference: Reference | None, run: TraceRun) -> TraceDiff:
    """Hold a trace's replay against what was recorded of it."""
    recorded = reference.steps if reference else ()
    steps = tuple(
        StepDiff(
            index=step.index,
            action=json.dumps(step.action, ensure_ascii=False) if step.action else "",
            forms={
                form: digest == recorded[at]["digests"][form]
                for form, digest in step.digests.items()
                if at < len(recorded) and form in recorded[at]["digests"]
            },
            recorded_status=str(recorded[at].get("status", "")) if at < len(recorded) else "",
            replayed_status=step.status,
            url=step.url,
            scores=_scores(reference, step),
            misses=step.misses,
        )
        for at, step in enumerate(run.steps)
    )
    result = TraceDiff(
        name=run.trace.name,
        task=run.trace.task.id if run.trace.task else "",
        steps=steps,
        recorded_reward=_reward(reference),
        replayed_reward=run.reward,
        recorded_steps=len(recorded),
        error=f"{run.failure.kind}: {run.failure.message}" if run.failure else "",
    )
    return replace(result, findings=tuple(_findings(collection, result)))


def _scores(reference: Reference | None, step: TraceStep) -> dict[str, float]:
    """Return what can be said of a step beyond equality; by the names of `METRICS`."""
    scores = {"recall": 1 - step.misses / step.requests} if step.requests else {}
    if reference is None or step.observation is None:
        return scores
    pairs = {form: (reference.seen(step.index, form), step.observation.body(form)) for form in _SCORED}
    both = {form: pair for form, pair in pairs.items() if pair[0] is not None and pair[1] is not None}
    texts = {form: [(raw or b"").decode() for raw in both[form]] for form in both if form != "screenshot"}
    if "text" in texts:
        scores["text"], scores["order"] = text_scores(*texts["text"])
    if "axtree" in texts:
        scores["axtree"], scores["interactive"] = axtree_scores(*texts["axtree"])
    if "screenshot" in both:
        before, after = both["screenshot"]
        pixels = compare_pictures(before or b"", after or b"")
        scores["screenshot"], scores["ssim"] = pixels.score, pixels.ssim
    return scores


def _findings(collection: str, trace: TraceDiff) -> list[Finding]:
    found = []
    mend = f"stillweb record proxy -c {collection} --append   # and take the trace's steps through it"
    if trace.error:
        text = f"The trace could not be taken again: {trace.error}."
        found.append(Finding(FindingKind.NOT_REPLAYED, FindingSeverity.ERROR, trace.name, text))
    if trace.rewards_agree is False:
        text = f"The recording earned {trace.recorded_reward:g}, the replay {_earned(trace.replayed_reward)}."
        found.append(Finding(FindingKind.REWARD, FindingSeverity.ERROR, trace.name, text, mend))
    first = trace.first_difference
    if first is not None:
        step = next(each for each in trace.steps if each.index == first)
        off = ", ".join(form for form, same in step.forms.items() if not same)
        what = f"what is seen ({off})" if off else f"the action ({step.replayed_status})"
        missed = f"; {step.misses} requests had no answer" if step.misses else ""
        text = f"From step {first} on {what} is not as recorded{missed}: {step.action or 'reset'}."
        found.append(
            Finding(FindingKind.STEP, FindingSeverity.WARNING, trace.name, text, mend, step.url, first)
        )
    return found


def _reward(reference: Reference | None) -> float | None:
    return reference.reward if reference else None


def _earned(reward: float | None) -> str:
    return "nothing, for it was not scored" if reward is None else f"{reward:g}"
