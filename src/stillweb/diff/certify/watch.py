"""An environment that is watched: of every step what was observed, asked for and how long it took.

What was observed is kept by digest, so that a thousand equal runs take the room of one, and two
runs that differ can be laid side by side afterwards. Only one thing cannot wait: which element
a differing pixel belongs to is known to the page alone, so as soon as a picture differs from that
of the first run (`Firsts`) the page is asked, in the isolated world, what stands at that place.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, UnidentifiedImageError

from stillweb import clock
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.load import Task
from stillweb.replay.client import ReplayClient

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are outside."""

_TILE = 16  # pixels; what differs less than a tile apart is one box


def differing_boxes(first: bytes, second: bytes) -> list[Box]:
    """Return the boxes (left, top, right, bottom) in which two pictures differ at all, largest first.

    Any difference of any pixel counts, as it does for a digest. Pictures of different sizes differ from
    the edge of the smaller one on; pictures that cannot be read differ nowhere.
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
        if (found := _within(mask, index % columns * _TILE, index // columns * _TILE))
    }
    boxes = [_around(group) for group in _neighbours(tiles, columns)]
    return sorted(boxes, key=lambda box: (-(box[2] - box[0]) * (box[3] - box[1]), box))


def _within(mask: Image.Image, left: int, top: int) -> Box | None:
    right, bottom = min(left + _TILE, mask.size[0]), min(top + _TILE, mask.size[1])
    box = mask.crop((left, top, right, bottom)).getbbox()
    return box and (left + box[0], top + box[1], left + box[2], top + box[3])


def _neighbours(tiles: dict[int, Box], columns: int) -> list[list[Box]]:
    """Return the boxes of tiles in groups that touch, at corners too."""
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
    """Return pictures on canvases of one size, the rest of each in a colour of its own."""
    size = (max(p.size[0] for p in pictures), max(p.size[1] for p in pictures))
    canvases = []
    for number, picture in enumerate(pictures):
        canvas = Image.new("RGB", size, (255 * number, 0, 255))
        canvas.paste(picture, (0, 0))
        canvases.append(canvas)
    return canvases


_BOXES = 4  # of a picture; the largest
# The innermost element at a point, through open shadow roots and frames of the same origin, as a short path.
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
    """Where pixels differ: a box (left, top, right, bottom) and the element at its middle, "" if unknown."""

    box: Box
    element: str = ""


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One step of a run, the first being the reset.

    Attributes:
        action: as JSON text; "" for the reset.
        status: how the action went.
        digests: SHA-256 by form of observation.
        requests: digest of the requests in the order in which they were answered; "" without a ledger.
        asked: digest of the same, sorted.
        flags: why the step is not exact, as the env itself says.
        settled: whether the page came to rest.
        places: where the picture differs from that of the first run.
        seconds: wall time.
    """

    action: str
    status: str
    url: str
    digests: Mapping[str, str]
    requests: str = ""
    asked: str = ""
    flags: tuple[str, ...] = ()
    settled: bool = True
    reward: float = 0.0
    places: tuple[PixelRegion, ...] = ()
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SeenStep:
        """Read what `dataclasses.asdict` made."""
        places = tuple(PixelRegion(tuple(each["box"]), each["element"]) for each in stored["places"])
        return cls(**{**stored, "flags": tuple(stored["flags"]), "places": places})


class ContentStore:
    """Contents by digest, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, content: bytes) -> str:
        """Keep a content; return its SHA-256 in hex."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.folder / digest
        if not path.exists():
            partial = path.with_suffix(f".{clock.new_id()}")
            partial.write_bytes(content)
            partial.replace(path)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a content; b"" if it was not kept."""
        path = self.folder / digest
        return path.read_bytes() if digest and path.is_file() else b""


@dataclass(slots=True)
class Firsts:
    """The digests of the first run of each trace, step by step; all others are held against it at once."""

    steps: dict[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)

    def of(self, trace: str, index: int, digests: Mapping[str, str]) -> Mapping[str, str]:
        """Return the first run's digests; they are these, if there was none."""
        return self.steps.setdefault((trace, index), digests)


class WatchedEnv(Env):
    """An `Env` that notes each step in `seen`; `begin` before each run.

    Args:
        proxy: control URL of the replay server.
        collection: its name there.
        client: of the same server, to read ledgers; None where it has none.
        kept: where observations go.
        firsts: shared by all environments that run the same traces.
        options: for `Env`.
    """

    def __init__(
        self,
        proxy: str,
        collection: str,
        client: ReplayClient | None,
        kept: ContentStore,
        firsts: Firsts,
        **options: Any,
    ) -> None:
        super().__init__(proxy, collection, **options)
        self.seen: list[SeenStep] = []
        self._ledger = client
        self._kept = kept
        self._firsts = firsts
        self._trace = ""
        self._told = 0

    def begin(self, trace: str) -> None:
        """Begin to note another run of a trace."""
        self.seen = []
        self._trace = trace
        self._told = 0

    async def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset, and note what is seen."""
        started = clock.perf()
        observation, info = await super().reset(task=task, url=url, seed=seed)
        await self._note("", observation, info, 0.0, clock.perf() - started)
        return observation, info

    async def step(
        self, action: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step, and note what is seen."""
        started = clock.perf()
        observation, reward, terminated, truncated, info = await super().step(action)
        told = action if isinstance(action, str) else json.dumps(dict(action), ensure_ascii=False)
        await self._note(told, observation, info, reward, clock.perf() - started)
        return observation, reward, terminated, truncated, info

    async def _note(
        self, action: str, observation: Observation, info: Mapping[str, Any], reward: float, seconds: float
    ) -> None:
        for form in observation.digests:
            self._kept.put(content_of(observation, form))
        requests, asked = await self._requests(info)
        step = SeenStep(
            action,
            info["action"]["status"],
            observation.url,
            dict(observation.digests),
            requests,
            asked,
            flags_of(info),
            settled=(info["settle"] or {"settled": True})["settled"],
            reward=reward,
            seconds=seconds,
        )
        first = self._firsts.of(self._trace, len(self.seen), step.digests)
        if first.get("screenshot") != step.digests.get("screenshot"):
            step = replace(step, places=await self._places(first["screenshot"], step.digests["screenshot"]))
        self.seen.append(step)

    async def _requests(self, info: Mapping[str, Any]) -> tuple[str, str]:
        if self._ledger is None:
            return "", ""
        ledger = await self._ledger.ledger(info["session"], after=self._told)
        self._told = max([self._told, *(entry.seq for entry in ledger.entries)])
        lines = [f"{entry.method} {entry.url} {entry.status} {entry.tier}" for entry in ledger.entries]
        return self._kept.put("\n".join(lines).encode()), self._kept.put("\n".join(sorted(lines)).encode())

    async def _places(self, first: str, mine: str) -> tuple[PixelRegion, ...]:
        boxes = differing_boxes(self._kept.get(first), self._kept.get(mine))[:_BOXES]
        assert self._episode is not None
        try:
            probe = await PageProbe.of(self._episode.page)
            found = [await probe.evaluate(_ELEMENT + _middle(box)) for box in boxes]
        except FrameGone:
            found = [""] * len(boxes)
        return tuple(PixelRegion(box, str(element or "")) for box, element in zip(boxes, found, strict=True))


def content_of(observation: Observation, form: str) -> bytes:
    """Return what the digest of a form was taken of."""
    return observation.body(form) or b""


def flags_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why an env says that a step of its is not exact; () if it says nothing of that."""
    told: Sequence[Any] = info["determinism"].get("flags", ())
    return tuple(map(str, told))


def step_dict(step: SeenStep) -> dict[str, Any]:
    """Return a step as JSON."""
    return asdict(step)


def _middle(box: Box) -> str:
    left, top, right, bottom = box
    return f"({(left + right) // 2}, {(top + bottom) // 2})"
