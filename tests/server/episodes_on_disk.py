"""Trajectories as an environment writes them, without an environment."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from stillweb.env.trajectories.trajectory import ContentFiles

HOSTILE = "<img src=x onerror=\"document.title='bad'\"></script><script>document.title='bad'</script>"
TREE = "RootWebArea 'Shop'\n\t[a1] link 'Cart'\n\t[a2] button 'Buy'"


def picture(colour: tuple[int, int, int]) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (800, 400), colour).save(stream, "PNG")
    return stream.getvalue()


def step_line(root: Path, number: int, *, text: str = TREE, colour: int = 0, **values: Any) -> dict[str, Any]:
    store = ContentFiles(root)
    digests = {
        "axtree": store.put(text.encode(), "txt"),
        "screenshot": store.put(picture((colour, 80, 160)), "png"),
    }
    traffic = {"source": "ledger", "requests": 2, "hits": 2, "misses": 0, "missed": []}
    taken = (
        {}
        if number == 0
        else {"raw": {"action": "click", "bid": "a1"}, "parsed": {"action": "click", "bid": "a1"}}
    )
    defaults = {
        "status": "ok",
        "error": "",
        "url": "https://shop.example/",
        "title": "Shop",
        "traffic": traffic,
    }
    return {"step": number, **taken, **defaults, "digests": digests, **values}


def write_episode(
    root: Path,
    place: str,
    steps: list[dict[str, Any]],
    end: dict[str, Any] | None = None,
    events: list[dict[str, Any]] | None = None,
    **header: Any,
) -> Path:
    """Write an episode into `root/place`, and return its folder."""
    first = {
        "format": "stillweb-trajectory", "version": 1, "name": "task-1", "task": None, "goal": "Buy a book",
        "url": "https://shop.example/", "collection": "shop", "level": "exact", "seed": 0,
        "determinism": {"profile": {"viewport": [800, 400]}}, **header,
    }  # fmt: skip
    folder = root / place
    folder.mkdir(parents=True)
    lines = [first, *steps, *([end] if end else [])]
    for file, values in (("trajectory.jsonl", lines), ("events.jsonl", events or [])):
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in values)
        (folder / file).write_text(text)
    return folder


def ended(reward: float | None, kind: str = "terminated", **values: Any) -> dict[str, Any]:
    return {"end": kind, "reward": reward, "error": "", **values}
