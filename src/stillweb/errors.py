"""Every exception that stillweb raises on purpose, in one tree ordered by whose fault it is.

    StillwebError
    ├── UsageError              you: a wrong argument, name or order of calls
    │   ├── CollectionNotFound
    │   ├── CollectionExists
    │   ├── PortInUse
    │   ├── ProgramNotFound     a browser, pywb or Docker that is not installed
    │   └── ExtraNotInstalled   an optional dependency of stillweb
    ├── CollectionError         the data on disk; says file:offset
    │   ├── MalformedWarc
    │   ├── MalformedCdxj
    │   ├── MalformedWacz
    │   ├── MalformedHar
    │   ├── MalformedPack
    │   ├── MissingRecord
    │   └── LimitExceeded       unpacked data exceeds a limit
    ├── CertError               the CA or one of its files
    │   ├── CaMissing
    │   ├── CaExpired
    │   └── BadHostname
    ├── PeerError               a program or site at the other end of a connection
    │   ├── UpstreamUnreachable
    │   └── ReplayUnreachable
    ├── RecordError             a recording could not start or go on
    ├── ReplayError             the replay server or its back-end failed
    │   └── SessionLost         with the worker that kept it
    ├── TaskError               a task file or an evaluator is wrong
    ├── AgentError              an agent, or the model that it asks, failed: no reward either
    └── EnvError                the environment
        ├── ResetNeeded
        ├── EnvClosed
        ├── ForkDiverged        the way to a state, gone again, led to another one
        └── InfraError          ours: never to be scored as reward 0

An action that fails on a page and a request that the archive does not hold are no
exceptions but values (`ActionResult`, `Match`). Messages say what happened and to which
thing (file:offset or URL); `hint` says what to do next, mostly a command to type.
"""

from __future__ import annotations

import os


class StillwebError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        hint: what to do next; "" where the message says it all.
        exit_code: the exit status of the command line (1 problem in the data or the world, 2 usage).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(StillwebError):
    """Raised when an argument, a name or the order of calls is wrong."""

    exit_code = 2


class CollectionNotFound(UsageError):
    """Raised when no collection has the name given, or none is named where there are several."""


class CollectionExists(UsageError):
    """Raised when a collection would be made where one is already."""


class PortInUse(UsageError):
    """Raised when another program listens on a port that we were told to use."""


class ProgramNotFound(UsageError):
    """Raised when a program that we run (a browser, pywb, Docker) is not installed."""


class ExtraNotInstalled(UsageError):
    """Raised when a command needs an optional dependency of stillweb."""


class CollectionError(StillwebError):
    """Raised when data on disk is damaged or missing.

    Attributes:
        path: the file, or None where no single file is to blame.
        offset: byte offset in the file as stored (compressed), or None.
        what: the message without the place.
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
    """Raised when a file is not a WARC or ARC, or breaks off or errs within a record."""


class MalformedCdxj(CollectionError):
    """Raised when a line of a CDXJ index cannot be read."""


class MalformedWacz(CollectionError):
    """Raised when a WACZ is not a ZIP or lacks what WACZ 1.1.1 demands."""


class MalformedHar(CollectionError):
    """Raised when a HAR is not JSON or lacks `log.entries`."""


class MalformedPack(CollectionError):
    """Raised when a sealed pack is of another version or does not match its digests."""


class MissingRecord(CollectionError):
    """Raised when an index names a WARC record that is not there."""


class LimitExceeded(CollectionError):
    """Raised when packed data unpacks to more than a limit allows (a decompression bomb, or large content).

    Attributes:
        limit: what is limited.
        option: command-line option or environment variable that raises the limit.
    """

    def __init__(
        self, message: str, *, limit: str, option: str, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(message, path=path, hint=f"if you trust the source, raise the limit: {option}")
        self.limit = limit
        self.option = option


class CertError(StillwebError):
    """Raised when the certificate authority or a file of it cannot be used."""


class CaMissing(CertError):
    """Raised when no CA has been made yet."""


class CaExpired(CertError):
    """Raised when the CA is past its last day, or not yet valid."""


class BadHostname(CertError):
    """Raised when no certificate can be minted for a host name (RFC 5280, RFC 1035 limits)."""


class PeerError(StillwebError):
    """Raised when the other end of a connection is absent or misspeaks."""


class UpstreamUnreachable(PeerError):
    """Raised when a site to be recorded does not answer."""


class ReplayUnreachable(PeerError):
    """Raised when a replay or recording proxy does not answer at the URL given."""


class RecordError(StillwebError):
    """Raised when a recording cannot start or go on."""


class ReplayError(StillwebError):
    """Raised when the replay server or its back-end fails."""


class SessionLost(ReplayError):
    """Raised when the worker that kept a session has died, and cursor and ledger with it."""


class TaskError(StillwebError):
    """Raised when a task file cannot be read or an evaluator cannot be run as written."""


class AgentError(StillwebError):
    """Raised when an agent, or the model that it asks, fails."""


class EnvError(StillwebError):
    """Raised when an environment cannot do what was asked of it."""


class ResetNeeded(EnvError):
    """Raised when `step` is called before `reset` or after the episode's end."""


class EnvClosed(EnvError):
    """Raised when a closed environment is used."""


class ForkDiverged(EnvError):
    """Raised when the actions that led to a state lead to another one when they are taken again.

    Attributes:
        step: after which it differs, 0 for the reset.
        kind: what differs: the name of an observation, `url`, `action` (its status), `end`, `environment_id`.
        expected: its digest (or text) in the original.
        found: the same in the fork.
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
    """Raised when browser or proxy fail in an episode. Never to be scored as reward 0."""
