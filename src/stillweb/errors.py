"""Every exception that stillweb raises on purpose, in one tree ordered by cause.

    StillwebError
    ├── UsageError              the caller: a wrong argument, name or order of calls
    │   ├── CollectionNotFound
    │   ├── CollectionExists
    │   ├── PortInUse
    │   ├── ProgramNotFound     a browser, pywb or Docker that is not installed
    │   └── ExtraNotInstalled   an optional dependency of stillweb
    ├── CollectionError         the data on disk; the message has file:offset
    │   ├── MalformedWarc
    │   │   ├── NoResponses     a valid archive without a response to a URL
    │   │   └── StaleIndex      an index contradicts a record that it names
    │   ├── MalformedCdxj
    │   ├── MalformedWacz
    │   ├── MalformedHar
    │   ├── MalformedPack
    │   ├── MissingRecord
    │   ├── BundleMismatch      a bundle differs from what its publisher signed or stated
    │   └── LimitExceeded       unpacked data exceeds a limit
    ├── CertError               the CA or one of its files
    │   ├── CaMissing
    │   ├── CaExpired
    │   └── BadHostname
    ├── PeerError               a program or site at the other end of a connection
    │   ├── UpstreamUnreachable
    │   └── ReplayUnreachable
    ├── RecordError             a recording could not start or continue
    ├── ReplayError             the replay server or its back-end failed
    │   └── SessionLost         the worker that owned the session died
    ├── TaskError               a task file or an evaluator is wrong
    ├── AgentError              an agent or its model failed; the episode has no reward
    └── EnvError                the environment
        ├── ResetNeeded
        ├── EnvClosed
        ├── ForkDiverged        repeating the prefix of actions led to another state
        └── InfraError          our fault; never score it as reward 0

An action that fails on a page and a request that the archive does not hold are values, not exceptions
(`ActionResult`, `Match`). A message says what happened and to what (file:offset or URL); `hint` says what to
do next, usually a command.

If a script does not catch such an error, Python prints the script's line, the message and the hint. It prints
no traceback through asyncio and Playwright. STILLWEB_TRACEBACK=1 prints the whole traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

TRACEBACK_VARIABLE = "STILLWEB_TRACEBACK"


class StillwebError(Exception):
    """Base of all errors that stillweb raises on purpose.

    Attributes:
        hint: what to do next; "" if the message is enough.
        exit_code: exit status of the command line (1: the data or the environment, 2: usage).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:  # a traceback then ends with it
            self.add_note(f"next: {hint}")
        if sys.excepthook is sys.__excepthook__:  # any other hook belongs to the script, or to its debugger
            sys.excepthook = _print_uncaught


class UsageError(StillwebError):
    exit_code = 2


class CollectionNotFound(UsageError):
    """No collection has this name, or no name was given and several collections exist."""


class CollectionExists(UsageError):
    """A collection of this name exists already."""


class PortInUse(UsageError):
    """Another program listens on the requested port."""


class ProgramNotFound(UsageError):
    """A program that stillweb runs (a browser, pywb, Docker) is not installed."""


class ExtraNotInstalled(UsageError):
    """A command needs an optional dependency of stillweb."""


class CollectionError(StillwebError):
    """Data on disk is damaged or missing.

    Attributes:
        path: the file, or None if the error concerns no single file.
        offset: byte offset in the file as stored (compressed), or None.
        what: the message without path and offset.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        hint: str = "",
    ) -> None:
        place = "" if path is None else f"{os.fspath(path)}{'' if offset is None else f':{offset}'}: "
        super().__init__(place + message, hint=hint)
        self.path = path
        self.offset = offset
        self.what = message


class MalformedWarc(CollectionError):
    """A file is not WARC or ARC, or a record in it is truncated or invalid."""


class StaleIndex(MalformedWarc):
    """An index contradicts a record that it names: it belongs to another state of the archive."""


class NoResponses(MalformedWarc):
    """An archive holds no response to a URL, so nothing could be replayed."""


class MalformedCdxj(CollectionError):
    """A line of a CDXJ index cannot be parsed."""


class MalformedWacz(CollectionError):
    """A WACZ is not a ZIP or lacks a part that WACZ 1.1.1 requires."""


class MalformedHar(CollectionError):
    """A HAR is not JSON or lacks `log.entries`."""


class MalformedPack(CollectionError):
    """A sealed pack has another version or does not match its digests."""


class MissingRecord(CollectionError):
    """An index names a WARC record that does not exist."""


class BundleMismatch(CollectionError):
    """A bundle differs from what its publisher signed or stated."""


class LimitExceeded(CollectionError):
    """Packed data unpacks to more than a limit allows: a decompression bomb, or large content.

    Attributes:
        limit: name of the limited quantity.
        option: command-line option or environment variable that raises the limit.
    """

    def __init__(
        self, message: str, *, limit: str = "", option: str = "", path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(message, path=path, hint=f"if you trust the source, raise the limit: {option}")
        self.limit = limit
        self.option = option


class CertError(StillwebError):
    """The certificate authority or one of its files cannot be used."""


class CaMissing(CertError):
    """No CA exists yet."""


class CaExpired(CertError):
    """The CA has expired or is not valid yet."""


class BadHostname(CertError):
    """No certificate can be issued for a host name (limits of RFC 5280 and RFC 1035)."""


class PeerError(StillwebError):
    """The other end of a connection is absent or violates the protocol."""


class UpstreamUnreachable(PeerError):
    """A site that is being recorded does not answer."""


class ReplayUnreachable(PeerError):
    """No replay or recording proxy answers at the given URL."""


class RecordError(StillwebError):
    """A recording cannot start or continue."""


class ReplayError(StillwebError):
    """The replay server or its back-end failed."""


class SessionLost(ReplayError):
    """The worker that owned a session died; the session's cursor and ledger are lost."""


class TaskError(StillwebError):
    """A task file cannot be read, or an evaluator cannot run as written."""


class AgentError(StillwebError):
    """An agent, or the model that it calls, failed."""


class EnvError(StillwebError):
    """An environment cannot carry out a request."""


class ResetNeeded(EnvError):
    """`step` was called before `reset` or after the end of the episode."""


class EnvClosed(EnvError):
    """A closed environment was used."""


class ForkDiverged(EnvError):
    """Repeating the actions that led to a state leads to another state.

    Attributes:
        step: number of the first step that differs, 0 for the reset.
        kind: what differs: the name of an observation, `url`, `action` (its status), `end`, `environment_id`.
        expected: its digest (or text) in the original.
    """

    def __init__(
        self, message: str = "", *, step: int = 0, kind: str = "", expected: str = "", found: str = ""
    ) -> None:
        differs = f"the prefix does not reproduce: after step {step} {kind} is {found!r}, it was {expected!r}"
        super().__init__(message or differs, hint="stillweb env check, and a stricter level")
        self.step = step
        self.kind = kind
        self.expected = expected
        self.found = found


class InfraError(EnvError):
    """The browser or the proxy failed during an episode. Never score it as reward 0."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return one error of a failed task group: of this tree if there is one, as others may follow from it."""
    first: BaseException = group.subgroup(StillwebError) or group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error of this tree in two lines; anything else as Python does."""
    if not isinstance(error, StillwebError) or os.environ.get(TRACEBACK_VARIABLE):
        sys.__excepthook__(kind, error, trace)
        return
    from stillweb.text import printable  # most programs catch their errors

    ours = str(Path(__file__).parent)
    calls = [frame for frame in traceback.extract_tb(trace) if not _is_library(frame.filename, ours)]
    place = f"{calls[-1].filename}:{calls[-1].lineno}: " if calls else ""
    lines = [f"{place}{kind.__name__}: {error}", *(f"  {note}" for note in getattr(error, "__notes__", ()))]
    sys.stderr.write(printable("\n".join([*lines, ""])))


def _is_library(filename: str, ours: str) -> bool:
    standard = str(Path(os.__file__).parent)
    return filename.startswith((ours, standard)) or "site-packages" in filename
