"""`diff.yaml` in a collection's folder: its own gates, what is masked in pictures, what does not count.

    version: 1
    gates: {screenshot: 0.95, ssim: none}
    masks:
      - {url: "https://shop.test/*", selectors: [".clock"], boxes: [[0, 0, 200, 40]], why: "tells the time"}
    ignore:
      requests: ["https://counter.test/*"]
      console: ["deprecated"]

A mistake in it is an error that says where: a gate that is misspelt would gate nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from stillweb.errors import CollectionError, UsageError

# name -> (heading, what it says). Order is the order of columns.
METRICS = {
    "status": ("status", "the document's HTTP status is the recorded one"),
    "redirects": ("redirects", "the redirects to the document are the recorded ones"),
    "loaded": ("loaded", "the recording waited for all that the page asked for"),
    "recall": ("recall", "weighted share of the replay's requests that the archive answered strictly"),
    "resources": ("resources", "weighted share of resources asked for and answered as recorded"),
    "bodies": ("bodies", "share of answers whose body is the recorded one, byte for byte"),
    "text": ("text", "F1 of the visible words"),
    "order": ("order", "share of the words that are in the same order"),
    "dom": ("dom", "similarity of the trees of elements, without nonces, ids and hashes of styles"),
    "axtree": ("axtree", "F1 of the accessibility tree by role and name"),
    "interactive": ("controls", "the same over what can be clicked, typed into or chosen"),
    "screenshot": ("screen", "share of equal pixels (pixelmatch, threshold 0.1)"),
    "ssim": ("ssim", "structural similarity of the screenshots"),
    "look": (
        "look",
        "share of equal pixels at a quarter of the size, where another browser took the picture",
    ),
    "layout": ("layout", "share of the elements that stand where they stood"),
    "hits": ("hits", "share of requests that replay answered from the archive"),
    "misses": ("misses", "requests without an answer that the recording had answered or never saw"),
    "fuzzy": ("fuzzy", "share of requests answered by a fuzzy match"),
    "console": ("console", "errors on the console and unhandled rejections that the recording had not"),
}
GATES = (*METRICS, "reward")
COUNTS = frozenset({"misses", "console"})
LOWER_IS_BETTER = COUNTS | {"fuzzy"}

# What is called good; `hits` has none, as archives made elsewhere miss what they miss.
DEFAULT_GATES: Mapping[str, float] = {
    "status": 1.0,
    "redirects": 1.0,
    "loaded": 1.0,
    "recall": 0.99,
    "resources": 0.99,
    "bodies": 1.0,
    "text": 0.98,
    "order": 0.90,
    "dom": 0.97,
    "axtree": 0.97,
    "interactive": 0.99,
    "screenshot": 0.99,
    "ssim": 0.98,
    "look": 0.90,
    "misses": 0.0,
    "fuzzy": 0.005,
    "console": 0.0,
    "reward": 1.0,
}


def passes(metric: str, value: float, limit: float) -> bool:
    """Whether a score keeps its limit."""
    return value <= limit if metric in LOWER_IS_BETTER else value >= limit


def parse_gates(text: str, defaults: Mapping[str, float] = DEFAULT_GATES) -> dict[str, float]:
    """Return the gates of `text=0.98,misses=0` on top of the defaults; `text=none` drops one, `none` all.

    Raises:
        UsageError: if a name is unknown or a limit is no number.
    """
    if text.strip() == "none":
        return {}
    gates = dict(defaults)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in GATES:
            raise UsageError(f"there is no score called {name!r}", hint=f"scores: {', '.join(GATES)}")
        if number == "none":
            gates.pop(name, None)
            continue
        try:
            gates[name] = float(number)
        except ValueError:
            raise UsageError(
                f"the limit of {name} is no number: {number!r}", hint=f"--fail-under {name}=0.98"
            ) from None
    return gates


def loss(name: str, value: float) -> float:
    """Return how far a score is from perfect, 0 to 1."""
    if name in COUNTS:
        return value / (1 + value)  # a page with many misses is not worse than one that is not there
    return value if name in LOWER_IS_BETTER else 1.0 - value


def shown(metric: str, value: float) -> str:
    """Return a score as people read it: a count, or a percentage that never rounds up to 100."""
    if metric in COUNTS:
        return f"{value:.0f}"
    percent = 100 * value
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.95 <= percent < 100:
        return "99.9%"
    return f"{percent:.0f}%" if percent in (0, 100) else f"{percent:.1f}%"


FILE = "diff.yaml"
_VERSION = 1
_HINT = "docs/diff.md says what diff.yaml may hold"


@dataclass(frozen=True, slots=True)
class Mask:
    """Parts of a picture that are not compared, of the pages whose URL fits a glob."""

    url: str = "*"
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    selectors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a collection says of how it is to be compared.

    Attributes:
        gates: the usual ones, with its own on top.
        requests: globs of URLs that weigh nothing.
        console: regular expressions of complaints that do not count.
    """

    gates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GATES))
    masks: tuple[Mask, ...] = ()
    requests: tuple[str, ...] = ()
    console: tuple[str, ...] = ()

    def ignores(self, url: str) -> bool:
        """Whether requests for a URL weigh nothing."""
        return any(fnmatchcase(url, pattern) for pattern in self.requests)

    def counts(self, complaint: str) -> bool:
        """Whether a complaint of a script is held against the replay."""
        return not any(re.search(pattern, complaint) for pattern in self.console)

    def boxes(self, url: str) -> tuple[tuple[int, int, int, int], ...]:
        """Return the boxes that are masked on a page."""
        return tuple(box for mask in self.masks if fnmatchcase(url, mask.url) for box in mask.boxes)

    def selectors(self, url: str) -> list[str]:
        """Return the selectors whose elements are masked on a page."""
        return [each for mask in self.masks if fnmatchcase(url, mask.url) for each in mask.selectors]


def read_settings(folder: Path) -> Settings:
    """Read the `diff.yaml` of a collection's folder; the usual settings where there is none.

    Raises:
        CollectionError: if it is not what it should be, naming the member that is not.
    """
    path = folder / FILE
    if not path.exists():
        return Settings()
    try:
        loaded = yaml.safe_load(path.read_text("utf-8"))
        return _settings(loaded)
    except yaml.YAMLError as error:
        raise CollectionError(f"no YAML: {' '.join(str(error).split())}", path=path, hint=_HINT) from error
    except (ValueError, re.error) as error:
        raise CollectionError(str(error), path=path, hint=_HINT) from error


def _settings(loaded: Any) -> Settings:
    members = _mapping(loaded, "the file", {"version", "gates", "masks", "ignore"})
    if members.get("version") != _VERSION:
        raise ValueError(f"version is {members.get('version')!r}, this program reads {_VERSION}")
    ignore = _mapping(members.get("ignore", {}), "ignore", {"requests", "console"})
    masks = members.get("masks", [])
    if not isinstance(masks, list):
        raise ValueError("masks is no list")
    console = _texts(ignore.get("console", []), "ignore.console")
    for pattern in console:
        re.compile(pattern)
    return Settings(
        gates=_gates(members.get("gates", {})),
        masks=tuple(_mask(each, f"masks[{number}]") for number, each in enumerate(masks)),
        requests=_texts(ignore.get("requests", []), "ignore.requests"),
        console=console,
    )


def _gates(loaded: Any) -> dict[str, float]:
    gates = dict(DEFAULT_GATES)
    for name, limit in _mapping(loaded, "gates", set(GATES)).items():
        if limit in (None, "none"):
            gates.pop(name, None)
        elif isinstance(limit, int | float) and not isinstance(limit, bool):
            gates[name] = float(limit)
        else:
            raise ValueError(f"gates.{name} is {limit!r}, neither a number nor none")
    return gates


def _mask(loaded: Any, where: str) -> Mask:
    members = _mapping(loaded, where, {"url", "boxes", "selectors", "why"})
    boxes = members.get("boxes", [])
    if not isinstance(boxes, list) or not all(map(_is_box, boxes)):
        raise ValueError(f"{where}.boxes is no list of [left, top, right, bottom] in whole pixels")
    selectors = _texts(members.get("selectors", []), f"{where}.selectors")
    if not boxes and not selectors:
        raise ValueError(f"{where} has neither boxes nor selectors")
    url = members.get("url", "*")
    if not isinstance(url, str):
        raise ValueError(f"{where}.url is {url!r}, no text")
    return Mask(url, tuple((box[0], box[1], box[2], box[3]) for box in boxes), selectors)


def _is_box(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) == 4 and all(type(side) is int for side in value)
    return whole and value[0] < value[2] and value[1] < value[3]


def _mapping(loaded: Any, where: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise ValueError(f"{where} is no mapping")
    if unknown := [str(name) for name in loaded if name not in names]:
        known = ", ".join(sorted(names))
        raise ValueError(f"{where} has {unknown[0]!r}, which is none of: {known}")
    return loaded


def _texts(loaded: Any, where: str) -> tuple[str, ...]:
    if not isinstance(loaded, list) or not all(isinstance(each, str) for each in loaded):
        raise ValueError(f"{where} is no list of texts")
    return tuple(loaded)
