"""An error, told by one program of ours to the one that started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb import errors
from stillweb.errors import ReplayError, StillwebError

__all__ = ["as_told", "failure"]


def as_told(error: StillwebError) -> dict[str, str]:
    """Return an error as JSON has it."""
    return {"error": type(error).__name__, "message": str(error), "hint": error.hint}


def failure(told: Mapping[str, Any]) -> StillwebError:
    """Return the error that was told of."""
    kind = getattr(errors, told["error"], ReplayError)
    error = kind(told["message"], hint=told["hint"])
    assert isinstance(error, StillwebError)
    return error
