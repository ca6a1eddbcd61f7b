"""Texts as models and pages give them. Pure."""

from __future__ import annotations

__all__ = ["well_formed"]


def well_formed(text: str) -> str:
    """Return a text with U+FFFD for half characters: JavaScript has such strings, UTF-8 has not."""
    if text.isascii():  # nearly all of a tree's names: it is asked of each
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
