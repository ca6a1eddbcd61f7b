"""Routes of the viewer, and the server of `stillweb view`.

The page is static. Its API reads only folders that the index has found and files of their stores by digest,
and changes nothing. Without a key the server answers only requests to a loopback host (`server.guard`).

The tree of a task's episodes shows where their actions part, and how each branch ends. Episodes share a node
while their actions are equal. On replay, equal actions from an equal start see equal pages; a node whose
episodes observed different digests has `differ` set.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from stillweb.env.trajectories.trajectory import Trajectory
from stillweb.errors import StillwebError, TaskError, UsageError
from stillweb.server.guard import Guard, page_router
from stillweb.server.keys import AccessKeys
from stillweb.server.responses import JsonResponse, failed, failed_http
from stillweb.server.viewer.export import export, film_of, first_difference, stored_file
from stillweb.server.viewer.index import UNREADABLE, EpisodeFilter, EpisodeIndex, summary

_BY_DIGEST = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_MEDIA = {"png": "image/png", "txt": "text/plain; charset=utf-8"}
_TREE = 1000  # episodes of a tree
_WAIT = 0.2  # seconds that a list waits for the folder to be read


class Viewer:
    """Responses of the viewer's API for one folder of trajectories."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index
        self._scan: asyncio.Future[None] | None = None

    async def episodes(
        self,
        request: Request,
        order: str = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        refresh: bool = False,
    ) -> Response:
        """Return a page of the chosen episodes, with their summary and the values that can be chosen.

        The fields of `EpisodeFilter` are parameters, too.
        """
        index = self._index
        if refresh and not index.scanning:
            await self._refresh()
        rows = index.rows(_filter(request), order)
        found = {
            "root": str(index.root),
            "total": len(rows),
            "rows": [asdict(row) for row in rows[offset : offset + limit]],
            "summary": summary(rows),
            "choices": index.choices(),
            "scanning": index.scanning,
            "seconds": round(index.seconds, 3),
        }
        return JsonResponse(found, headers=_FRESH)

    async def _refresh(self) -> None:
        """Read the folder in a thread, and wait for it briefly: a large one is shown while it is read."""
        if self._scan is None or self._scan.done():
            self._scan = asyncio.ensure_future(asyncio.to_thread(self._index.refresh))
        await asyncio.wait([self._scan], timeout=_WAIT)
        if self._scan.done():
            self._scan.result()

    async def film(self, episode: str) -> Response:
        """Return all steps of an episode, without its pictures and texts."""
        return JsonResponse(await self._read(film_of, episode), headers=_FRESH)

    async def compare(self, a: str, b: str) -> Response:
        """Return the first step at which two episodes differ."""
        one, other = await self._read(film_of, a), await self._read(film_of, b)
        return JsonResponse({"difference": first_difference(one, other)}, headers=_FRESH)

    async def tree(self, request: Request) -> Response:
        """Return where the chosen episodes of one task part, as a tree for each distinct start."""
        rows = self._index.rows(_filter(request))
        if len({row.task for row in rows}) > 1:
            raise UsageError("a tree needs the episodes of one task", hint="choose a task in the list")
        folders = {row.id: self._folder(row.id) for row in rows[:_TREE] if row.end != UNREADABLE}
        trees = await run_in_threadpool(_trees, folders)
        found = {"trees": trees, "episodes": len(folders), "left_out": len(rows) - len(folders)}
        return JsonResponse(found, headers=_FRESH)

    async def file(self, episode: str, digest: str, kind: Literal["png", "txt"]) -> Response:
        """Return a picture or a text of an episode."""
        body = await self._read(partial(stored_file, digest=digest, kind=kind), episode)
        return Response(body, media_type=_MEDIA[kind], headers=_BY_DIGEST)

    async def export(self, episode: str = "", a: str = "", b: str = "") -> Response:
        """Return one episode, or two side by side, as a single HTML file."""
        chosen = [each for each in ([episode] if episode else [a, b]) if each]
        folders = {each: self._folder(each) for each in chosen}
        headers = {**_FRESH, "Content-Disposition": 'attachment; filename="episode.html"'}
        text = await run_in_threadpool(export, folders)
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    async def _read(self, read: Callable[..., Any], episode: str) -> Any:
        return await run_in_threadpool(read, self._folder(episode))

    def _folder(self, episode: str) -> Any:
        try:
            return self._index.folder(episode)
        except KeyError:
            raise TaskError(f"no episode {episode[:200]!r} in {self._index.root}") from None


def _filter(request: Request) -> EpisodeFilter:
    given = request.query_params
    return EpisodeFilter(**{each.name: given.get(each.name, "") for each in fields(EpisodeFilter)})


def _trees(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [asdict(tree) for tree in trees_of((each, Trajectory.load(at)) for each, at in folders.items())]


def router(index: EpisodeIndex, prefix: str = "") -> APIRouter:
    routes, viewer = APIRouter(prefix=prefix, tags=["viewer"]), Viewer(index)
    routes.include_router(page_router("viewer"))
    for endpoint in (viewer.episodes, viewer.film, viewer.compare, viewer.tree, viewer.file, viewer.export):
        routes.add_api_route(f"/api/{endpoint.__name__}", endpoint, methods=["GET"], response_model=None)
    return routes


def make_viewer_app(index: EpisodeIndex) -> FastAPI:
    app = FastAPI(title="stillweb view", docs_url=None, redoc_url=None)
    app.add_exception_handler(StillwebError, failed)
    app.add_exception_handler(HTTPException, failed_http)
    app.add_middleware(Guard, keys=AccessKeys())
    app.include_router(router(index))
    return app


_START = ("environment_id", "level", "seed", "perturbation", "off_path")


@dataclass(slots=True)
class EpisodeNode:
    """A run of steps that the same episodes took, up to the step at which they part or end.

    Attributes:
        step: number of the first of these steps; 0 for the start.
        actions: actions in order; empty only for the start.
        url: page after the last step.
        episodes: names of the episodes, in the order given.
        rewards: reward of each; None if it has none.
        ended: names of the episodes that end here.
        differ: number of the first step at which the episodes observed different pages; None if none did.
        children: continuations, those of most episodes first.
    """

    step: int
    actions: list[Any] = field(default_factory=list)
    url: str = ""
    episodes: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    differ: int | None = None
    children: list[EpisodeNode] = field(default_factory=list)

    def nodes(self) -> Iterator[EpisodeNode]:
        """Yield this node and all nodes below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children


@dataclass(frozen=True, slots=True)
class _Path:
    name: str
    steps: Sequence[Mapping[str, Any]]
    reward: float | None


def trees_of(episodes: Iterable[tuple[str, Trajectory]]) -> list[EpisodeNode]:
    """Return a tree for each distinct start (pack, level, seed, perturbation) of a task's episodes."""
    starts: dict[str, list[_Path]] = {}
    for name, trajectory in episodes:
        if trajectory.steps:
            start = json.dumps([trajectory.header.get(each) for each in _START], sort_keys=True)
            path = _Path(name, trajectory.steps, (trajectory.end or {}).get("reward"))
            starts.setdefault(start, []).append(path)
    return [_grown(paths, 0) for paths in starts.values()]


def _grown(paths: Sequence[_Path], step: int) -> EpisodeNode:
    """Return the node of paths that are equal up to and including a step."""
    node = EpisodeNode(step, episodes=[path.name for path in paths], rewards=[path.reward for path in paths])
    while True:
        first = paths[0].steps[step]
        if "raw" in first:
            node.actions.append(first["raw"])
        node.url = first.get("url", "")
        if node.differ is None and len({_seen(path.steps[step]) for path in paths}) > 1:
            node.differ = step
        step += 1
        branches: dict[str, list[_Path]] = {}
        for path in paths:
            if step < len(path.steps):
                branches.setdefault(json.dumps(path.steps[step].get("raw"), sort_keys=True), []).append(path)
            else:
                node.ended.append(path.name)
        if len(branches) != 1 or node.ended:
            ordered = sorted(branches.values(), key=len, reverse=True)
            node.children = [_grown(each, step) for each in ordered]
            return node


def _seen(step: Mapping[str, Any]) -> str:
    return json.dumps([step.get("url"), step.get("status"), step.get("digests")], sort_keys=True)
