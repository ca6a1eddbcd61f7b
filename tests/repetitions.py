"""How often tests repeat what may differ between runs: seldom by default, often in a search for faults."""

from __future__ import annotations

from hypothesis import settings


def times(usual: int, search: int) -> int:
    """Return `search` with `pytest --hypothesis-profile=long`, otherwise `usual`."""
    return search if settings.get_current_profile_name() == "long" else usual
