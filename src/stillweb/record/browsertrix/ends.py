"""How browsertrix-crawler ended: its exit code and last words, as a collection's state or an error; pure.

Whatever it left is imported first, so that an error never costs what was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from stillweb.errors import ProgramNotFound, RecordError, StillwebError, UpstreamUnreachable, UsageError
from stillweb.record.browsertrix.log import Log
from stillweb.record.browsertrix.settings import Container

__all__ = ["End", "judge"]

_ON = "what is recorded is kept; the same with --append goes on"


@dataclass(frozen=True, slots=True)
class End:
    """How a crawl ended.

    Attributes:
        stopped: why it is not complete, "" if it is.
        error: to be raised when what there is has been imported; None if the user asked for this end.
    """

    stopped: str = ""
    error: StillwebError | None = None


# Ends that the user asked for: partial, and no error.
_ASKED = {14: "the limit of size", 15: "the limit of time"}
# What went wrong while pages were recorded, and what to do.
_BROKE = {
    3: ("the disk is full", f"make room; {_ON}"),
    8: ("its store, Redis, did not answer", f"try again; {_ON}"),
    10: ("its browser crashed", f"give the container more memory, or --jobs 1; {_ON}"),
    16: ("the disk is too full for it", f"make room, or --set diskUtilization=0; {_ON}"),
    18: ("the site limits how often it is asked", f"--rate 10; {_ON}"),
    21: ("the proxy that it was told to use does not answer", "see proxyServer in --set"),
    22: ("its upload failed", "leave it to stillweb: no STORE_ variables in --docker-arg"),
    137: ("the container was killed, by a person or for want of memory", _ON),
    139: ("a program in the container crashed", _ON),
}


def judge(code: int, log: Log, container: Container, *, interrupted: bool = False) -> End:
    """Return how a crawl ended.

    Args:
        code: of the call of Docker, which is that of the crawler but for 125 to 127; negative for a signal.
        log: all that was said.
        container: as it was run.
        interrupted: whether we told it to stop.
    """
    if code in (125, 126, 127):
        return End("it did not start", _not_started(code, log, container))
    if code == 0:
        return End()
    if code in (11, 13) or (interrupted and code != 1):
        return End("a signal")
    if code in _ASKED:
        return End(_ASKED[code])
    if code in (1, 9, 12, 17):
        return _failed(code, log)
    what, hint = _BROKE.get(code, (f"it ended with status {code}", f"its log says more; {_ON}"))
    return End(what, RecordError(f"browsertrix stopped: {what}{_words(log)}", hint=hint))


def _failed(code: int, log: Log) -> End:
    """Return the end of a crawl that gave up: at its arguments, its seeds, or its number of failures."""
    first = next(iter(log.failed_pages.items()), None)
    if code == 1 and not log.version and not log.fatal:
        last = log.stray[-1] if log.stray else "it does not say why"
        hint = "check the values of --set; --dry-run shows what it is told"
        return End("its settings", UsageError(f"browsertrix does not take its settings: {last}", hint=hint))
    if code == 17 and "seed" in log.fatal.lower():
        return End("its seeds", UsageError(f"browsertrix: {log.fatal}", hint="check the URLs"))
    if code == 12 or first is None:
        what = log.fatal or (log.faults[-1] if log.faults else f"it ended with status {code}")
        hint = "its log says more; see failOnFailedSeed and failOnFailedLimit, if --set has them"
        return End(what, RecordError(f"browsertrix gave up: {what}", hint=hint))
    url, why = first
    hint = f"check that the site is up, seen from a container: curl -v {url}"
    return End(why, UpstreamUnreachable(f"{url} cannot be reached: {why}", hint=hint))


def _not_started(code: int, log: Log, container: Container) -> StillwebError:
    said = next((line for line in log.stray if "rror" in line), log.stray[0] if log.stray else "")
    said = said or f"status {code}"
    if "is already in use" in said:
        return UsageError(
            "a container of this collection runs already",
            hint=f"wait for it, or: {container.program} stop its name, which `{container.program} ps` shows",
        )
    if code == 125:
        hint = "--dry-run shows the call; try it by hand"
        return RecordError(f"{container.program} run failed: {said}", hint=hint)
    what = f"{container.image} has no program `crawl`: {said}"
    return ProgramNotFound(what, hint="name an image of browsertrix-crawler by --image")


def _words(log: Log) -> str:
    said = log.fatal or (log.faults[-1] if log.faults else "")
    return f" ({said})" if said else ""
