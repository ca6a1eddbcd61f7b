"""Text from models and pages. Pure."""

from __future__ import annotations

__all__ = ["well_formed"]


def well_formed(text: str) -> str:
    """Return text with U+FFFD for lone surrogates, which JavaScript strings may hold and UTF-8 cannot."""
    if text.isascii():  # fast path: called for each name of an accessibility tree, nearly all ASCII
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
