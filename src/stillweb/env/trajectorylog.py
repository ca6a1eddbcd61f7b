"""Writing an episode down while it goes on (`env/trajectory.py` says what, and where).

The environment tells the log of the reset, of each step and of whatever ends the episode; without
`EnvOptions.trajectories` it listens to nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import BrowserContext

from stillweb import clock
from stillweb.browser.machine import cpu_family, fonts_digest
from stillweb.env.action import Action, parse
from stillweb.env.evidence import Score
from stillweb.env.har import HarLog
from stillweb.env.observation import Observation
from stillweb.env.options import EnvOptions
from stillweb.env.taskvalue import Task, task_to_dict
from stillweb.env.trajectory import FILE, FORMAT, VERSION, Store, evidence_to_dict, in_thread, line
from stillweb.errors import EnvClosed, InfraError, TaskError

__all__ = ["Outcome", "TrajectoryLog"]


class Outcome(NamedTuple):
    """What a step gave beside the observation."""

    reward: float
    terminated: bool
    truncated: bool
    score: Score | None


class TrajectoryLog:
    """The log of one episode; make it before its first page.

    Args:
        options: whether, where and how much to write.
        episode: identifier, which names the folder.
        context: of the episode, whose traffic goes into the HAR.
    """

    def __init__(self, options: EnvOptions, episode: str, context: BrowserContext) -> None:
        self._root = options.trajectories
        self._folder = self._root / episode if self._root else Path()
        self._har = HarLog(context, bodies=options.har == "bodies") if self._root and options.har else None
        self._store = Store(self._folder.parent)
        self._began = clock.perf()
        self._ended = self._root is None

    async def began(
        self,
        task: Task | None,
        url: str,
        observation: Observation,
        info: Mapping[str, Any],
        *,
        ahead: bool = False,
    ) -> None:
        """Write the header and what was seen after the reset, which may have been prepared ahead of it."""
        if self._root is None:
            return
        if ahead:
            self._began = clock.perf()
        machine = {"fonts": await in_thread(fonts_digest), "cpu": cpu_family()}
        header = {
            "format": FORMAT,
            "version": VERSION,
            "name": task.id if task else url,
            "task": task_to_dict(task) if task else None,
            "url": url,
            "goal": info.get("goal", ""),
            **{
                name: info[name]
                for name in ("collection", "environment_id", "backend", "level", "seed", "determinism")
            },
            "machine": machine,
        }
        run = {
            "format": "stillweb-run",
            "version": VERSION,
            "episode": info["episode"],
            "session": info["session"],
            "began": clock.now().isoformat(),
        }
        await in_thread(self._write_first, header, run)
        await in_thread(self._write_step, {}, observation, info, {})

    async def stepped(
        self,
        raw: Mapping[str, Any] | str,
        observation: Observation,
        info: Mapping[str, Any],
        outcome: Outcome,
    ) -> None:
        """Write a step, and the end if it was the last."""
        if self._ended:
            return
        action = parse(raw)
        taken = {"raw": raw, "parsed": _told(action) if isinstance(action, Action) else None}
        came = {
            "reward": outcome.reward,
            "terminated": outcome.terminated,
            "truncated": outcome.truncated,
        }
        await in_thread(self._write_step, taken, observation, info, came)
        if outcome.terminated or outcome.truncated:
            await self._end("terminated" if outcome.terminated else "truncated", outcome.score)

    async def broke(self, error: BaseException) -> None:
        """Write that the episode ended by a failure, and whose it was."""
        kind = (
            "infra_error"
            if isinstance(error, InfraError)
            else "task_error"
            if isinstance(error, TaskError)
            else "left"
            if isinstance(error, EnvClosed)
            else "error"
        )
        await self._end(kind, None, str(error) or type(error).__name__)

    async def left(self) -> None:
        """Write that nobody went on with the episode, unless it had ended."""
        await self._end("left", None)

    async def _end(self, kind: str, score: Score | None, error: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if not self._folder.is_dir():  # the reset itself failed
            return
        if self._har:
            await self._har.finish()
        await in_thread(self._write_end, kind, score, error)

    # --- files, from a thread ----------------------------------------------------------------------

    def _write_first(self, header: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._append(FILE, header)
        self._append("run.jsonl", run)

    def _write_step(
        self,
        taken: Mapping[str, Any],
        observation: Observation,
        info: Mapping[str, Any],
        came: Mapping[str, Any],
    ) -> None:
        for form in observation.digests:
            kept = observation.body(form)
            if kept is not None:
                self._store.put(kept, "png" if form in ("screenshot", "som") else "txt")
        settle = info["settle"] or {}
        steady = {
            "step": info["step"],
            **taken,
            "status": info["action"]["status"],
            "error": info["action"]["error"],
            "url": observation.url,
            "title": observation.title,
            "tabs": [tab.to_dict() for tab in observation.tabs],
            "digests": dict(observation.digests),
            "settle": {name: settle[name] for name in ("settled", "reason", "virtual_ms") if name in settle},
            "traffic": info["traffic"] | {"missed": sorted(info["traffic"]["missed"])},
            "dialogs": info["dialogs"],
            "downloads": [_steady(download) for download in info["downloads"]],
            "flags": list(info["determinism"].get("flags", ())),
            **came,
        }
        self._append(FILE, steady)
        at = round(clock.perf() - self._began, 4)
        self._append("run.jsonl", {"step": info["step"], "at": at, "waited": settle.get("waited", 0.0)})

    def _write_end(self, kind: str, score: Score | None, error: str) -> None:
        end: dict[str, Any] = {"end": kind, "reward": 0.0 if kind == "truncated" else None, "error": error}
        if score:
            evidence = evidence_to_dict(score.evidence, self._store)
            evidence["downloads"] = [_steady(download) for download in evidence["downloads"]]
            if evidence["requests"] is not None:  # in the order of their arrival, which may vary
                evidence["requests"] = sorted(evidence["requests"], key=line)
            end |= {"reward": score.reward, "reasons": list(score.reasons), "evidence": evidence}
        self._append(FILE, end)
        self._append("run.jsonl", {"ended": clock.now().isoformat()})
        if self._har:
            (self._folder / "episode.har").write_text(
                self._har.to_json(), encoding="utf-8", errors="backslashreplace"
            )

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        # Half characters, of an action as it was given or of a page's title, stand there as JSON escapes.
        with (self._folder / name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line(value))


def _told(action: Action) -> dict[str, Any]:
    default = asdict(Action(action.action))
    return {"action": action.action} | {
        name: value for name, value in asdict(action).items() if value != default.get(name)
    }


def _steady(download: Mapping[str, Any]) -> dict[str, Any]:
    """Return a download without the number that the browser draws for a `blob:` URL."""
    url = download["url"]
    return {**download, "url": url.rpartition("/")[0] if url.startswith("blob:") else url}
