"""Ray itself, and whose fault it is when it fails."""

from __future__ import annotations

from stillweb.errors import ExtraNotInstalled, InfraError, StillwebError

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as missing:
    raise ExtraNotInstalled(
        f"rollouts on many machines need {missing.name}", hint="pip install 'stillweb[ray]'"
    ) from missing

__all__ = ["RayError", "cause_of", "is_lost", "ray"]


def is_lost(error: RayError) -> bool:
    """Whether it is not the worker that raised it, but what became of the worker."""
    return not isinstance(error, RayTaskError)


def cause_of(error: RayError) -> BaseException:
    """Return an error as it was raised in the worker; the loss of a worker as what it is: ours."""
    if is_lost(error):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return InfraError(f"a worker was lost: {type(error).__name__}: {' '.join(lines[:4])}", hint="reset")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, StillwebError) else error
