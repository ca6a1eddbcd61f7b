"""Writer of an episode's trajectory and HAR (the format: `trajectories/trajectory.py`).

The environment reports the reset, each step and the end of the episode. Without `EnvOptions.trajectories` the
log registers no listeners and writes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import BrowserContext, Request, Response
from playwright.async_api import Error as PlaywrightError

from stillweb import clock
from stillweb.browser.machine import cpu_family, fonts_digest
from stillweb.browser.state import state_of
from stillweb.env.actions.action import Action, parse
from stillweb.env.observations.observation import Observation
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.evidence import Score
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.env.trajectories.events import FILE as EVENTS_FILE
from stillweb.env.trajectories.events import ConsoleLog, StepEvents, events_line
from stillweb.env.trajectories.trajectory import (
    FILE,
    FORMAT,
    VERSION,
    ContentFiles,
    evidence_to_dict,
    in_thread,
    line,
)
from stillweb.errors import EnvClosed, InfraError, TaskError

_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:")
_BODY_SECONDS = 10.0
_TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")


@dataclass(slots=True)
class _HarEntry:
    request: Request
    started: datetime
    began: float
    response: Response | None = None
    ended: float = 0.0
    failure: str = ""
    request_headers: dict[str, str] = field(default_factory=dict)
    response_headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | None = field(default=None, repr=False)


class HarLog:
    """HAR of a context's requests from now on; call `finish` before its pages are closed.

    Args:
        bodies: also keep the bodies of responses.
    """

    def __init__(self, context: BrowserContext, *, bodies: bool = False) -> None:
        self._context = context
        self._bodies = bodies
        self._entries: dict[Request, _HarEntry] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._listeners = (
            ("request", self._on_request),
            ("response", self._on_response),
            ("requestfinished", self._on_finished),
            ("requestfailed", self._on_failed),
        )
        for event, listener in self._listeners:
            context.on(event, listener)  # type: ignore[call-overload]

    async def finish(self) -> None:
        """Remove the listeners, and wait for the bodies that are being read."""
        for event, listener in self._listeners:
            self._context.remove_listener(event, listener)
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=_BODY_SECONDS)
            for task in late:
                task.cancel()
        for entry in self._entries.values():
            entry.ended = entry.ended or clock.perf()

    def to_json(self) -> str:
        browser = self._context.browser
        log = {
            "version": "1.2",
            "creator": {"name": "stillweb", "version": "1"},
            "browser": {"name": "Chromium", "version": browser.version if browser else ""},
            "pages": [],
            "entries": [_entry(each) for each in self._entries.values()],
        }
        return json.dumps({"log": log}, ensure_ascii=False, indent=1)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(_NO_TRAFFIC):
            self._entries[request] = _HarEntry(request, clock.now(), clock.perf())

    def _on_response(self, response: Response) -> None:
        if entry := self._entries.get(response.request):
            entry.response = response

    def _on_finished(self, request: Request) -> None:
        if entry := self._entries.get(request):
            self._ended(entry)

    def _on_failed(self, request: Request) -> None:
        if entry := self._entries.get(request):
            entry.failure = request.failure or "failed"
            self._ended(entry)

    def _ended(self, entry: _HarEntry) -> None:
        entry.ended = clock.perf()
        task = asyncio.ensure_future(_read(entry, bodies=self._bodies))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)


async def _read(entry: _HarEntry, *, bodies: bool) -> None:
    entry.request_headers = dict(entry.request.headers)
    try:
        entry.request_headers = await entry.request.all_headers()
        if entry.response:
            headers = await entry.response.headers_array()
            entry.response_headers = [(field["name"], field["value"]) for field in headers]
            if bodies:
                entry.body = await entry.response.body()
    except PlaywrightError:
        return  # a redirect has no body, and the bodies of a page that was left are gone


def _entry(entry: _HarEntry) -> dict[str, Any]:
    took = round(max(entry.ended - entry.began, 0.0) * 1000, 3)
    har: dict[str, Any] = {
        "startedDateTime": entry.started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "time": took,
        "request": _request(entry),
        "response": _response(entry),
        "cache": {},
        "timings": {"send": 0, "wait": took, "receive": 0},
        "_resourceType": entry.request.resource_type,
    }
    if entry.failure:
        har["_failure"] = entry.failure
    return har


def _request(entry: _HarEntry) -> dict[str, Any]:
    request, headers = entry.request, entry.request_headers
    body = request.post_data_buffer
    har: dict[str, Any] = {
        "method": request.method,
        "url": request.url,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _fields(headers.items()),
        "queryString": [
            {"name": name, "value": value}
            for name, value in parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
        ],
        "headersSize": -1,
        "bodySize": len(body or b""),
    }
    if body is not None:
        mime = headers.get("content-type", "")
        har["postData"] = {"mimeType": mime, "text": body.decode("utf-8", "replace")}
        if mime.startswith("application/x-www-form-urlencoded"):
            har["postData"]["params"] = [
                {"name": name, "value": value}
                for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
            ]
    return har


def _response(entry: _HarEntry) -> dict[str, Any]:
    response = entry.response
    headers = {name.lower(): value for name, value in entry.response_headers}
    mime = headers.get("content-type", "x-unknown")
    content: dict[str, Any] = {"size": len(entry.body) if entry.body is not None else -1, "mimeType": mime}
    if entry.body is not None and mime.startswith(_TEXTUAL):
        content["text"] = entry.body.decode("utf-8", "replace")
    elif entry.body is not None:
        content |= {"text": base64.b64encode(entry.body).decode(), "encoding": "base64"}
    return {
        "status": response.status if response else 0,
        "statusText": response.status_text if response else "",
        "httpVersion": "HTTP/1.1",
        "cookies": [
            {"name": name.strip(), "value": value.partition(";")[0]}
            for name, _, value in (
                each.partition("=") for key, each in entry.response_headers if key.lower() == "set-cookie"
            )
        ],
        "headers": _fields(entry.response_headers),
        "content": content,
        "redirectURL": headers.get("location", ""),
        "headersSize": -1,
        "bodySize": -1,
    }


def _fields(headers: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers if not name.startswith(":")]


class StepOutcome(NamedTuple):
    reward: float
    terminated: bool
    truncated: bool
    score: Score | None


class TrajectoryLog:
    """Log of one episode; create it before the episode's first page.

    Args:
        options: `trajectories` and `har` are read.
        episode: identifier, which names the folder.
        context: context of the episode, whose traffic goes into the HAR.
    """

    def __init__(self, options: EnvOptions, episode: str, context: BrowserContext) -> None:
        self._root = options.trajectories
        self._folder = self._root / episode if self._root else Path()
        self._har = HarLog(context, bodies=options.har == "bodies") if self._root and options.har else None
        exact = state_of(context).exact
        self._console = ConsoleLog(context, exact.console if exact else None) if self._root else None
        self._store = ContentFiles(self._folder.parent)
        self._began = clock.perf()
        self._ended = self._root is None

    async def began(
        self,
        task: Task | None,
        url: str,
        observation: Observation,
        info: Mapping[str, Any],
        *,
        prefetched: bool = False,
        events: StepEvents,
    ) -> None:
        """Write the header and the reset's observation.

        A `prefetched` start was opened before the reset; the episode begins now.
        """
        if self._root is None:
            return
        if prefetched:
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
            "off_path": info["off_path"]["mode"],
            **{name: info[name] for name in ("unrecorded", "perturbation") if name in info},
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
        await in_thread(self._write_events, info["step"], events)

    async def stepped(
        self,
        raw: Mapping[str, Any] | str,
        observation: Observation,
        info: Mapping[str, Any],
        outcome: StepOutcome,
        events: StepEvents,
    ) -> None:
        """Write a step, and the end if it was the last."""
        if self._ended:
            return
        action = parse(raw)
        taken = {"raw": raw, "parsed": _parsed(action) if isinstance(action, Action) else None}
        result = {
            "reward": outcome.reward,
            "terminated": outcome.terminated,
            "truncated": outcome.truncated,
        }
        await in_thread(self._write_step, taken, observation, info, result)
        await in_thread(self._write_events, info["step"], events)
        if outcome.terminated or outcome.truncated:
            await self._end("terminated" if outcome.terminated else "truncated", outcome.score)

    async def broke(self, error: BaseException) -> None:
        """Write that the episode ended with an error, and the error's kind."""
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
        """Write that the episode was left, unless it has ended."""
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
        result: Mapping[str, Any],
    ) -> None:
        for form in observation.digests:
            body = observation.body(form)
            if body is not None:
                self._store.put(body, "png" if form in ("screenshot", "som") else "txt")
        settle = info["settle"] or {}
        line_of_step = {
            "step": info["step"],
            **taken,
            "status": info["action"]["status"],
            "error": info["action"]["error"],
            "url": observation.url,
            "title": observation.title,
            "tabs": [asdict(tab) for tab in observation.tabs],
            "digests": dict(observation.digests),
            "settle": {name: settle[name] for name in ("settled", "reason", "virtual_ms") if name in settle},
            "traffic": info["traffic"] | {"missed": sorted(info["traffic"]["missed"])},
            "dialogs": info["dialogs"],
            "downloads": [_reproducible(download) for download in info["downloads"]],
            "flags": list(info["determinism"].get("flags", ())),
            "off_path": {name: info["off_path"][name] for name in ("cancelled", "masked")},
            **result,
        }
        self._append(FILE, line_of_step)
        at = round(clock.perf() - self._began, 4)
        self._append("run.jsonl", {"step": info["step"], "at": at, "waited": settle.get("waited", 0.0)})

    def _write_events(self, step: int, events: StepEvents) -> None:
        if self._console:
            self._append_text(EVENTS_FILE, events_line(step, events, self._console))

    def _write_end(self, kind: str, score: Score | None, error: str) -> None:
        end: dict[str, Any] = {"end": kind, "reward": 0.0 if kind == "truncated" else None, "error": error}
        if score:
            evidence = evidence_to_dict(score.evidence, self._store)
            evidence["downloads"] = [_reproducible(download) for download in evidence["downloads"]]
            if evidence["requests"] is not None:  # their order of arrival may vary
                evidence["requests"] = sorted(evidence["requests"], key=line)
            end |= {"reward": score.reward, "reasons": list(score.reasons), "evidence": evidence}
        self._append(FILE, end)
        self._append("run.jsonl", {"ended": clock.now().isoformat()})
        if self._har:
            (self._folder / "episode.har").write_text(
                self._har.to_json(), encoding="utf-8", errors="backslashreplace"
            )

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        self._append_text(name, line(value))

    def _append_text(self, name: str, text: str) -> None:
        # Lone surrogates, in an action or in a page's title, are written as JSON escapes.
        with (self._folder / name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


def _parsed(action: Action) -> dict[str, Any]:
    default = asdict(Action(action.action))
    return {"action": action.action} | {
        name: value for name, value in asdict(action).items() if value != default.get(name)
    }


def _reproducible(download: Mapping[str, Any]) -> dict[str, Any]:
    """Return a download without the random identifier of a `blob:` URL."""
    url = download["url"]
    return {**download, "url": url.rpartition("/")[0] if url.startswith("blob:") else url}
