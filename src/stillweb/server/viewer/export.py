"""One or two episodes as a single HTML file: it needs no server, no network and no other file.

It is the page of the viewer with its style, its script, the films, and all pictures and texts that they name.
A content security policy allows only that script, so that text of replayed pages cannot run.

A film has for each step the picture, the texts, the action, requests, console and reward, as JSON for the
page. Texts and pictures are named by their digests. All strings come from replayed pages or from agents, so
the page must only ever set them as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from stillweb.diff.report.html import content_policy, picture_uri
from stillweb.env.trajectories import events
from stillweb.env.trajectories.trajectory import Trajectory, store_of
from stillweb.errors import TaskError

PICTURES = ("screenshot", "som")
"""Forms of observation that are pictures, the preferred one first."""

TEXTS = ("axtree", "compact", "markdown", "text", "dom", "html", "elements", "coords")

_COMPARED = ("raw", "status", "url", "title", "digests", "reward")
_HEADER = (
    *("name", "url", "goal", "collection", "environment_id", "backend", "level", "seed", "determinism"),
    *("off_path", "unrecorded", "machine", "task"),
)
_STEP = (
    *("step", "raw", "parsed", "status", "error", "url", "title", "tabs", "digests", "settle", "traffic"),
    *("dialogs", "downloads", "flags", "off_path", "reward", "terminated", "truncated"),
)


def film_of(folder: Path) -> dict[str, Any]:
    """Return the film of an episode.

    Raises:
        TaskError: if its trajectory cannot be read.
    """
    trajectory = Trajectory.load(folder)
    found = dict(_lines(folder / events.FILE))
    times = dict(_lines(folder / "run.jsonl"))
    steps = [
        {
            **{name: step[name] for name in _STEP if name in step},
            "events": found.get(step["step"]),
            "at": times.get(step["step"], {}).get("at"),
        }
        for step in trajectory.steps
    ]
    viewport = ((trajectory.header.get("determinism") or {}).get("profile") or {}).get("viewport")
    return {
        "header": {name: trajectory.header[name] for name in _HEADER if name in trajectory.header},
        "viewport": viewport,
        "steps": steps,
        "end": trajectory.end,
    }


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file that name a step; damaged and missing lines are left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    for line in text.split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            yield value["step"], value


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first step at which two films differ, and the fields that do; None if none does.

    Only values that determinism covers are compared: action, status, URL, title, observations, misses and
    reward.
    """
    for step, (a, b) in enumerate(zip(one["steps"], other["steps"], strict=False)):
        fields = [name for name in _COMPARED if a.get(name) != b.get(name)]
        if (a.get("traffic") or {}).get("missed") != (b.get("traffic") or {}).get("missed"):
            fields.append("misses")
        if fields:
            return {"step": step, "fields": fields}
    lengths = len(one["steps"]), len(other["steps"])
    if lengths[0] != lengths[1]:
        return {"step": min(lengths), "fields": ["length"]}
    ends = [{**(each.get("end") or {}), "evidence": None} for each in (one, other)]
    if ends[0] != ends[1]:
        return {"step": lengths[0] - 1, "fields": ["end"]}
    return None


def stored_file(folder: Path, digest: str, kind: str) -> bytes:
    """Return a picture ("png") or a text ("txt") of an episode by its digest.

    Raises:
        TaskError: if the store lacks it, or it is damaged.
    """
    return store_of(folder / "trajectory.jsonl").get(digest, kind)


def export(folders: dict[str, Path]) -> str:
    """Return the HTML file of one episode, or of two side by side.

    Args:
        folders: folder of each episode by its id.

    Raises:
        TaskError: if a trajectory cannot be read.
    """
    films = {episode: film_of(folder) for episode, folder in folders.items()}
    stored: dict[str, str] = {}
    for episode, film in films.items():
        for step in film["steps"]:
            _add(stored, folders[episode], step.get("digests") or {})
    data: dict[str, Any] = {"films": films, "files": stored}
    if len(films) == 2:
        data["difference"] = first_difference(*films.values())
    return _page(data)


def _add(stored: dict[str, str], folder: Path, digests: dict[str, str]) -> None:
    picture = next((form for form in PICTURES if form in digests), "")
    for form, digest in digests.items():
        if digest in stored or (form != picture and form not in TEXTS):
            continue
        try:
            body = stored_file(folder, digest, "png" if form == picture else "txt")
        except TaskError as error:
            stored[digest] = "" if form == picture else str(error)
            continue
        stored[digest] = picture_uri(body) if form == picture else body.decode("utf-8", "replace")


def _page(data: dict[str, Any]) -> str:
    web = files("stillweb.server.viewer").joinpath("web")
    html, style, script = (
        web.joinpath(f"viewer.{each}").read_text("utf-8") for each in ("html", "css", "js")
    )
    # In a script element only `<` can end or change the text (HTML, 4.12.1.3).
    embedded = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(script)}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)
    html = html.replace('<link rel="stylesheet" href="viewer.css">', f"<style>\n{style}</style>", 1)
    head, _, tail = html.partition('<script src="viewer.js"></script>')
    data_element = f'<script type="application/json" id="embedded">{embedded}</script>'
    return f"{head}{data_element}\n<script>{script}</script>{tail}"
