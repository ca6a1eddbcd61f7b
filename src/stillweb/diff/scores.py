"""The scores: what they are called, what is called good, and how people read them.

Shares (text, screenshot, ...) are 1.0 where nothing differs; counts (misses, console) and the share of
fuzzy answers are 0 where nothing is amiss. A **gate** is a limit that every page must keep, not the
average: one broken checkout page is one broken task. `reward` is the gate of a whole report.
"""

from __future__ import annotations

from collections.abc import Mapping

from stillweb.errors import UsageError

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
