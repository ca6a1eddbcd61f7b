"""What an `Accept` field says of a media type (RFC 9110 §12.5.1). Pure."""

from __future__ import annotations

import re

__all__ = ["excludes", "rank"]

_QUALITY = re.compile(r"[01](?:\.[0-9]{0,3})?")


def rank(accept: str, mime: str) -> tuple[float, int]:
    """Return the weight of a media type, and how closely it is named: 2 itself, 1 its kind, 0 any, -1 not."""
    wanted = {mime: 2, f"{mime.partition('/')[0]}/*": 1, "*/*": 0}
    closest, weight = -1, 0.0
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        if wanted.get(name, -1) > closest:
            closest, weight = wanted[name], _weight(parameters)
    return weight, closest


def excludes(accept: str, mime: str) -> bool:
    """Return whether a media type is not taken at all; an absent field takes all, and so do browsers' own."""
    if not accept or not mime or ("*/*" in accept and "q=0" not in accept):
        return False
    return rank(accept, mime)[0] == 0


def _weight(parameters: list[str]) -> float:
    quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return float(quality) if _QUALITY.fullmatch(quality) else 0.0
