"""Repeat recorded action traces in the replay, and compare observations and rewards.

    traces/NAME.jsonl      actions (`stillweb.env.trajectories.trace`), or a trajectory
    traces/NAME.run.json   digests of the recorded observations, and the reward (`store_run`)
    traces/NAME/003.text   observation of step 3 in one form, if the run stored it; such steps have scores

The reward matters most: a page may differ in many ways that no task depends on, and one digit of a price may
turn a success into a failure. A trace without a recorded run is repeated too, and its result is reported.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.browser.profile import Level
from stillweb.collections.layout import Collection
from stillweb.collections.limits import load_json
from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity
from stillweb.diff.compare.metrics import axtree_scores, text_scores
from stillweb.diff.compare.pixels import compare_pictures
from stillweb.diff.report.report import StepDiff, TraceDiff
from stillweb.env import Env, Trace, TraceRun, run_trace
from stillweb.env.trajectories.trace import TraceStep
from stillweb.errors import CollectionError, StillwebError

FOLDER = "traces"
_RUN = ".run.json"
_VERSION = 1
_DEFAULT_FORMS = ("axtree",)
_SCORED = ("text", "axtree", "screenshot")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The recorded run of a trace: digests and status of each step, and the reward."""

    steps: tuple[Mapping[str, Any], ...] = ()
    reward: float | None = None
    folder: Path | None = None

    def observation(self, step: int, form: str) -> bytes | None:
        """Return the stored observation of a step in a form; None if it was not stored."""
        path = self.folder / f"{step:03d}.{form}" if self.folder else None
        return path.read_bytes() if path and path.exists() else None

    @property
    def forms(self) -> tuple[str, ...]:
        return tuple(sorted({form for step in self.steps for form in step["digests"]}))


def store_run(collection: Collection, run: TraceRun) -> Path:
    """Write a trace and its run into a collection's `traces/`; return the path of the trace.

    The observations are stored too if the run has them (`run_trace(..., keep=True)`).
    """
    path = collection.path / FOLDER / f"{run.trace.name}.jsonl"
    run.trace.dump(path)
    steps = [step.to_dict() for step in run.steps]
    stored = {"version": _VERSION, "reward": run.reward, "steps": steps}
    text = json.dumps(stored, ensure_ascii=False, indent=1)
    path.with_suffix(_RUN).write_text(text + "\n", encoding="utf-8")
    for step in run.steps if any(step.observation for step in run.steps) else ():
        for form in _SCORED:
            if step.observation and (body := step.observation.body(form)) is not None:
                file = path.with_suffix("") / f"{step.index:03d}.{form}"
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(body)
    return path


def recorded_traces(collection: Collection) -> list[tuple[Trace, RecordedRun | None]]:
    """Return the traces of a collection with their recorded runs, sorted by name.

    Raises:
        TaskError: if a trace cannot be read.
        CollectionError: if a recorded run cannot be read.
    """
    files = sorted((collection.path / FOLDER).glob("*.jsonl"))
    return [(Trace.load(path), _reference(path)) for path in files]


def _reference(path: Path) -> RecordedRun | None:
    run = path.with_suffix(_RUN)
    source = run if run.exists() else path
    try:
        if run.exists():
            stored = load_json(run.read_bytes(), path=run)
            return _checked(stored["steps"], stored["reward"], path.with_suffix(""))
        lines = [load_json(line, path=path) for line in path.read_bytes().split(b"\n") if line.strip()]
        steps = [line for line in lines if isinstance(line, dict) and "digests" in line]
        reward = next((step.get("reward") for step in steps if step.get("terminated")), None)
        return _checked(steps, reward, None) if steps else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CollectionError(
            f"the recorded run of a trace cannot be read: {error!r}", path=source
        ) from error


def _checked(steps: Sequence[Mapping[str, Any]], reward: Any, folder: Path | None) -> RecordedRun:
    for step in steps:
        dict(step["digests"])
    return RecordedRun(tuple(steps), None if reward is None else float(reward), folder)


async def diff_traces(
    proxy: str, collection: Collection, *, level: Level = Level.CLOCK, derived: bool = False
) -> tuple[TraceDiff, ...]:
    """Repeat every recorded trace of a collection and compare.

    Args:
        proxy: URL of a replay server that serves the collection.

    Raises:
        ReplayUnreachable, ProgramNotFound, InfraError: if no replay server or no browser is available.
    """
    found = []
    for trace, reference in recorded_traces(collection):
        began = clock.perf()
        observe = (reference.forms if reference else ()) or _DEFAULT_FORMS
        try:
            async with Env(
                proxy, collection.name, level=level, observe=observe, derived=derived or None
            ) as env:
                run = await run_trace(env, trace, keep=True)
            result = await asyncio.to_thread(compare_runs, collection.name, reference, run)
        except StillwebError as error:
            result = TraceDiff(trace.name, error=str(error), recorded_reward=_reward(reference))
        found.append(replace(result, seconds=clock.perf() - began))
    return tuple(found)


def compare_runs(collection: str, reference: RecordedRun | None, run: TraceRun) -> TraceDiff:
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
            derived=step.derived,
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


def _scores(reference: RecordedRun | None, step: TraceStep) -> dict[str, float]:
    """Return the scores of a step by the names of `METRICS`."""
    scores = {"recall": 1 - step.misses / step.requests} if step.requests else {}
    if reference is None or step.observation is None:
        return scores
    pairs = {form: (reference.observation(step.index, form), step.observation.body(form)) for form in _SCORED}
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
    fix = f"stillweb record proxy -c {collection} --append   # then repeat the trace through this proxy"
    if trace.error:
        text = f"The trace could not be repeated: {trace.error}."
        found.append(Finding(FindingKind.NOT_REPLAYED, FindingSeverity.ERROR, trace.name, text))
    if trace.rewards_agree is False:
        before, after = _shown(trace.recorded_reward), _shown(trace.replayed_reward)
        text = f"The reward is {before} in the recording and {after} in the replay."
        found.append(Finding(FindingKind.REWARD, FindingSeverity.ERROR, trace.name, text, fix))
    first = trace.first_difference
    if first is not None:
        step = next(each for each in trace.steps if each.index == first)
        off = ", ".join(form for form, same in step.forms.items() if not same)
        what = f"the observation ({off}) differs" if off else f"the action has status {step.replayed_status}"
        missed = f"; {step.misses} requests had no response" if step.misses else ""
        text = f"From step {first} on {what}{missed}: {step.action or 'reset'}."
        found.append(
            Finding(FindingKind.STEP, FindingSeverity.WARNING, trace.name, text, fix, step.url, first)
        )
    return found


def _reward(reference: RecordedRun | None) -> float | None:
    return reference.reward if reference else None


def _shown(reward: float | None) -> str:
    return "missing (not scored)" if reward is None else f"{reward:g}"
