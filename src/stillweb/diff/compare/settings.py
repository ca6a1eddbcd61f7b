"""Scores, gates, and the `diff.yaml` in a collection's folder: own gates, masked areas, ignored differences.

    version: 1
    gates: {screenshot: 0.95, ssim: none}
    masks:
      - {url: "https://shop.test/*", selectors: [".clock"], boxes: [[0, 0, 200, 40]], why: "shows the time"}
    ignore:
      requests: ["https://counter.test/*"]
      console: ["deprecated"]

An unknown or malformed key is an error that names its location, because a misspelt gate would have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from stillweb.env.tasks.comparisons import compile_regex
from stillweb.errors import CollectionError, UsageError
from stillweb.text import well_formed

# name -> (heading, meaning), in the order of the columns.
METRICS = {
    "status": ("status", "the document's HTTP status is the recorded one"),
    "redirects": ("redirects", "the redirects to the document are the recorded ones"),
    "loaded": ("loaded", "no request of the page was pending when it was recorded"),
    "recall": ("recall", "weighted share of the replay's requests that the archive answered strictly"),
    "resources": ("resources", "weighted share of resources requested and answered as recorded"),
    "bodies": ("bodies", "share of responses with the recorded body, byte for byte"),
    "text": ("text", "F1 of the visible words"),
    "order": ("order", "share of the words in the same order"),
    "dom": ("dom", "similarity of the element trees without nonces, ids and style hashes"),
    "axtree": ("axtree", "F1 of the accessibility tree by role and name"),
    "interactive": ("controls", "F1 of the interactive elements by role and name"),
    "screenshot": ("screen", "share of equal pixels (pixelmatch, threshold 0.1)"),
    "ssim": ("ssim", "structural similarity of the screenshots"),
    "look": ("look", "share of equal pixels at a quarter of the size (baselines of another browser)"),
    "layout": ("layout", "share of the elements whose position is the recorded one"),
    "hits": ("hits", "share of requests that replay answered from the archive"),
    "misses": ("misses", "requests without a response that the recording had answered or never saw"),
    "fuzzy": ("fuzzy", "share of requests answered by a fuzzy match"),
    "console": ("console", "console errors and unhandled rejections that the recording does not have"),
}
GATES = (*METRICS, "reward")
COUNTS = frozenset({"misses", "console"})
LOWER_IS_BETTER = COUNTS | {"fuzzy"}

# `hits` has no default gate: archives of other programs may be incomplete by design.
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
    return value <= limit if metric in LOWER_IS_BETTER else value >= limit


def parse_gates(text: str, defaults: Mapping[str, float] = DEFAULT_GATES) -> dict[str, float]:
    """Parse `text=0.98,misses=0` on top of the defaults; `text=none` removes one gate, `none` removes all.

    Raises:
        UsageError: if a name is unknown or a limit is not a number.
    """
    if text.strip() == "none":
        return {}
    gates = dict(defaults)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in GATES:
            raise UsageError(f"unknown score: {name!r}", hint=f"scores: {', '.join(GATES)}")
        if number == "none":
            gates.pop(name, None)
            continue
        try:
            gates[name] = float(number)
        except ValueError:
            raise UsageError(
                f"the limit of {name} is not a number: {number!r}", hint=f"--fail-under {name}=0.98"
            ) from None
    return gates


def loss(name: str, value: float) -> float:
    """Return the distance of a score from its best value, 0 to 1."""
    if name in COUNTS:
        return value / (1 + value)  # bounded: a page with many misses is not worse than a missing page
    return value if name in LOWER_IS_BETTER else 1.0 - value


def shown(metric: str, value: float) -> str:
    """Format a score: a count, or a percentage that never rounds up to 100."""
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
_MAX_TEXT = 1 << 16  # characters: an imported archive may bring the file, and 2^20 of YAML take 230 MiB
_HINT = "docs/how-to/diff.md lists the keys of diff.yaml"


@dataclass(frozen=True, slots=True)
class PictureMask:
    """Areas of a screenshot that are not compared, for pages whose URL matches the glob `url`."""

    url: str = "*"
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    selectors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffSettings:
    """Comparison settings of a collection.

    Attributes:
        gates: the default gates updated with the collection's own.
        requests: globs of URLs that have no weight.
        console: regular expressions (RE2) of console messages to ignore.
    """

    gates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GATES))
    masks: tuple[PictureMask, ...] = ()
    requests: tuple[str, ...] = ()
    console: tuple[str, ...] = ()

    def ignores(self, url: str) -> bool:
        return any(fnmatchcase(url, pattern) for pattern in self.requests)

    def counts(self, message: str) -> bool:
        return not any(compile_regex(pattern).search(well_formed(message)) for pattern in self.console)

    def boxes(self, url: str) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(box for mask in self.masks if fnmatchcase(url, mask.url) for box in mask.boxes)

    def selectors(self, url: str) -> list[str]:
        return [each for mask in self.masks if fnmatchcase(url, mask.url) for each in mask.selectors]


def read_settings(folder: Path) -> DiffSettings:
    """Read the `diff.yaml` in a collection's folder; default settings if the file is missing.

    Raises:
        CollectionError: names the invalid key.
    """
    path = folder / FILE
    if not path.exists():
        return DiffSettings()
    try:
        text = path.read_text("utf-8")
        if len(text) > _MAX_TEXT:
            raise ValueError(f"{len(text)} characters, {_MAX_TEXT} at most")
        return _settings(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise CollectionError(
            f"not valid YAML: {' '.join(str(error).split())}", path=path, hint=_HINT
        ) from error
    except ValueError as error:
        raise CollectionError(str(error), path=path, hint=_HINT) from error


def _settings(loaded: Any) -> DiffSettings:
    members = _mapping(loaded, "the file", {"version", "gates", "masks", "ignore"})
    if members.get("version") != _VERSION:
        raise ValueError(f"version is {members.get('version')!r}, this program reads {_VERSION}")
    ignore = _mapping(members.get("ignore", {}), "ignore", {"requests", "console"})
    masks = members.get("masks", [])
    if not isinstance(masks, list):
        raise ValueError("masks is not a list")
    console = _strings(ignore.get("console", []), "ignore.console")
    for pattern in console:
        compile_regex(pattern)
    return DiffSettings(
        gates=_gates(members.get("gates", {})),
        masks=tuple(_mask(each, f"masks[{number}]") for number, each in enumerate(masks)),
        requests=_strings(ignore.get("requests", []), "ignore.requests"),
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
            raise ValueError(f"gates.{name} is {limit!r}; expected a number or none")
    return gates


def _mask(loaded: Any, where: str) -> PictureMask:
    members = _mapping(loaded, where, {"url", "boxes", "selectors", "why"})
    boxes = members.get("boxes", [])
    if not isinstance(boxes, list) or not all(map(_is_box, boxes)):
        raise ValueError(f"{where}.boxes is not a list of [left, top, right, bottom] in whole pixels")
    selectors = _strings(members.get("selectors", []), f"{where}.selectors")
    if not boxes and not selectors:
        raise ValueError(f"{where} has neither boxes nor selectors")
    url = members.get("url", "*")
    if not isinstance(url, str):
        raise ValueError(f"{where}.url is {url!r}; expected a string")
    return PictureMask(url, tuple((box[0], box[1], box[2], box[3]) for box in boxes), selectors)


def _is_box(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) == 4 and all(type(side) is int for side in value)
    return whole and value[0] < value[2] and value[1] < value[3]


def _mapping(loaded: Any, where: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise ValueError(f"{where} is not a mapping")
    if unknown := [str(name) for name in loaded if name not in names]:
        known = ", ".join(sorted(names))
        raise ValueError(f"{where} has the unknown key {unknown[0]!r}; known: {known}")
    return loaded


def _strings(loaded: Any, where: str) -> tuple[str, ...]:
    if not isinstance(loaded, list) or not all(isinstance(each, str) for each in loaded):
        raise ValueError(f"{where} is not a list of strings")
    return tuple(loaded)
