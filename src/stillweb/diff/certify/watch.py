"""An `Env` that records the observation, requests and duration of every step.

Observations are stored by digest, so a thousand equal runs take the space of one, and runs that differ can be
compared afterwards. Only the page itself can map a differing pixel to an element. Therefore, as soon as a
screenshot differs from that of the first run (`FirstRuns`), the page is queried in its isolated world.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from PIL import Image, ImageChops, UnidentifiedImageError
from pydantic import Field

from stillweb import clock
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.env import Env, Observation, Task
from stillweb.files import write_atomically
from stillweb.replay import ReplayClient

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are exclusive."""

_TILE = 16  # pixels; differences less than a tile apart form one box


def differing_boxes(first: bytes, second: bytes) -> list[Box]:
    """Return the boxes in which two pictures differ, largest first.

    Any difference of any pixel counts, as for a digest. The area outside the smaller picture counts as
    different. Unreadable pictures give no boxes.
    """
    try:
        one, two = (Image.open(io.BytesIO(raw)).convert("RGB") for raw in (first, second))
    except (UnidentifiedImageError, OSError, ValueError):
        return []
    if one.size != two.size:
        one, two = _grown(one, two)
    strongest = ImageChops.difference(one, two).split()
    mask = ImageChops.lighter(ImageChops.lighter(*strongest[:2]), strongest[2]).point(
        lambda v: 255 if v else 0
    )
    columns = -(-mask.size[0] // _TILE)
    tiles = {
        index: found
        for index in range(columns * -(-mask.size[1] // _TILE))
        if (found := _box_in_tile(mask, index % columns * _TILE, index // columns * _TILE))
    }
    boxes = [_around(group) for group in _neighbours(tiles, columns)]
    return sorted(boxes, key=lambda box: (-(box[2] - box[0]) * (box[3] - box[1]), box))


def _box_in_tile(mask: Image.Image, left: int, top: int) -> Box | None:
    right, bottom = min(left + _TILE, mask.size[0]), min(top + _TILE, mask.size[1])
    box = mask.crop((left, top, right, bottom)).getbbox()
    return box and (left + box[0], top + box[1], left + box[2], top + box[3])


def _neighbours(tiles: dict[int, Box], columns: int) -> list[list[Box]]:
    """Group the boxes of adjacent tiles, including diagonal neighbours."""
    left, groups = set(tiles), []
    while left:
        waiting, group = [left.pop()], []
        while waiting:
            index = waiting.pop()
            group.append(tiles[index])
            sides = [d for d in (-1, 0, 1) if 0 <= index % columns + d < columns]
            near = {index + row * columns + side for row in (-1, 0, 1) for side in sides} & left
            left -= near
            waiting += sorted(near)
        groups.append(group)
    return groups


def _around(boxes: list[Box]) -> Box:
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _grown(*pictures: Image.Image) -> list[Image.Image]:
    """Return the pictures on canvases of one size, each padded with its own colour."""
    size = (max(p.size[0] for p in pictures), max(p.size[1] for p in pictures))
    canvases = []
    for number, picture in enumerate(pictures):
        canvas = Image.new("RGB", size, (255 * number, 0, 255))
        canvas.paste(picture, (0, 0))
        canvases.append(canvas)
    return canvases


_BOXES = 4  # largest boxes examined per picture
# Path of the innermost element at a point, through open shadow roots and same-origin frames.
_ELEMENT = """
((x, y) => {
  const name = (e) => e.localName + (e.id ? "#" + e.id : "") +
    [...e.classList].slice(0, 2).map((c) => "." + c).join("");
  let found = document.elementFromPoint(x, y), above = "";
  for (let depth = 0; found && depth < 20; depth++) {
    let inner = null;
    if (found.shadowRoot) inner = found.shadowRoot.elementFromPoint(x, y);
    else if (found.contentDocument) {
      const box = found.getBoundingClientRect();
      x -= box.x + found.clientLeft;
      y -= box.y + found.clientTop;
      inner = found.contentDocument.elementFromPoint(x, y);
    }
    if (!inner || inner === found) break;
    above = name(found) + " >> ";
    found = inner;
  }
  if (!found) return "";
  const up = found.parentElement;
  return above + (up ? name(up) + " > " : "") + name(found);
})"""


@dataclass(frozen=True, slots=True)
class PixelRegion:
    """A box of differing pixels and the element at its centre, "" if unknown."""

    box: Box
    element: str = ""


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One step of a run; the first is the reset.

    Attributes:
        action: JSON text; "" for the reset.
        digests: SHA-256 by form of observation.
        requests: digest of the requests in the order of their responses; "" without a ledger.
        request_set: digest of the same requests, sorted.
        flags: why the environment flagged the step as not exact.
        regions: where the screenshot differs from that of the first run.
        seconds: wall time.
        derived, guesses: answers that were not recorded.
    """

    action: str
    status: str
    url: str
    digests: Mapping[str, str]
    requests: str = ""
    request_set: Annotated[str, Field(alias="asked")] = ""
    flags: tuple[str, ...] = ()
    settled: bool = True
    reward: float = 0.0
    regions: Annotated[tuple[PixelRegion, ...], Field(alias="places")] = ()
    seconds: float = 0.0
    derived: int = 0
    guesses: int = 0


class ContentStore:
    """Content-addressed files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self.folder / digest
        if not path.exists():
            write_atomically(path, content, durable=False)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a content; b"" if it is not stored."""
        path = self.folder / digest
        return path.read_bytes() if digest and path.is_file() else b""


@dataclass(slots=True)
class FirstRuns:
    """Digests of the first run of each trace, by step; later runs are compared with them immediately."""

    steps: dict[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)

    def setdefault(self, trace: str, index: int, digests: Mapping[str, str]) -> Mapping[str, str]:
        """Return the digests of the first run; store `digests` if this is the first."""
        return self.steps.setdefault((trace, index), digests)


class WatchedEnv(Env):
    """An `Env` that appends each step to `steps`. Call `start_run` before each run.

    Args:
        proxy: control URL of the replay server.
        client: client of the same server, to read ledgers; None if it has no ledgers.
        first_runs: shared by all environments that run the same traces.
        options: options of `Env`.
    """

    def __init__(
        self,
        proxy: str,
        collection: str,
        client: ReplayClient | None,
        store: ContentStore,
        first_runs: FirstRuns,
        **options: Any,
    ) -> None:
        super().__init__(proxy, collection, **options)
        self.steps: list[SeenStep] = []
        self._ledger = client
        self._store = store
        self._first_runs = first_runs
        self._trace = ""
        self._last_entry = 0

    def start_run(self, trace: str) -> None:
        self.steps = []
        self._trace = trace
        self._last_entry = 0

    async def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        started = clock.perf()
        observation, info = await super().reset(task=task, url=url, seed=seed)
        await self._record("", observation, info, 0.0, clock.perf() - started)
        return observation, info

    async def step(
        self, action: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        started = clock.perf()
        observation, reward, terminated, truncated, info = await super().step(action)
        text = action if isinstance(action, str) else json.dumps(dict(action), ensure_ascii=False)
        await self._record(text, observation, info, reward, clock.perf() - started)
        return observation, reward, terminated, truncated, info

    async def _record(
        self, action: str, observation: Observation, info: Mapping[str, Any], reward: float, seconds: float
    ) -> None:
        for form in observation.digests:
            self._store.put(observation.body(form) or b"")
        requests, request_set = await self._requests(info)
        step = SeenStep(
            action,
            info["action"]["status"],
            observation.url,
            dict(observation.digests),
            requests,
            request_set,
            tuple(map(str, info["determinism"].get("flags", ()))),
            settled=(info["settle"] or {"settled": True})["settled"],
            reward=reward,
            seconds=seconds,
            derived=info["traffic"]["derived"],
            guesses=info["traffic"]["guesses"],
        )
        first = self._first_runs.setdefault(self._trace, len(self.steps), step.digests)
        if first.get("screenshot") != step.digests.get("screenshot"):
            step = replace(step, regions=await self._regions(first["screenshot"], step.digests["screenshot"]))
        self.steps.append(step)

    async def _requests(self, info: Mapping[str, Any]) -> tuple[str, str]:
        if self._ledger is None:
            return "", ""
        ledger = await self._ledger.ledger(info["session"], after=self._last_entry)
        self._last_entry = max([self._last_entry, *(entry.seq for entry in ledger.entries)])
        lines = [f"{entry.method} {entry.url} {entry.status} {entry.tier}" for entry in ledger.entries]
        put = self._store.put
        return put("\n".join(lines).encode()), put("\n".join(sorted(lines)).encode())

    async def _regions(self, first: str, mine: str) -> tuple[PixelRegion, ...]:
        boxes = differing_boxes(self._store.get(first), self._store.get(mine))[:_BOXES]
        assert self._episode is not None
        try:
            probe = await PageProbe.of(self._episode.page)
            found = [await probe.evaluate(_ELEMENT + _centre(box)) for box in boxes]
        except FrameGone:
            found = [""] * len(boxes)
        return tuple(PixelRegion(box, str(element or "")) for box, element in zip(boxes, found, strict=True))


def _centre(box: Box) -> str:
    left, top, right, bottom = box
    return f"({(left + right) // 2}, {(top + bottom) // 2})"
