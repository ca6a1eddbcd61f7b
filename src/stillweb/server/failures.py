"""What a request is told when it cannot be done: a status and a kind, by whose fault it is.

    {"error": {"kind": "infra_error", "message": ..., "hint": ..., "retry": true}}

`infra_error` is ours, and never a reward: mask the episode, or play it again. What says `retry` may be sent
again as it is, under the same `request_id`, after `Retry-After` seconds where that is given.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from stillweb.errors import (
    EnvClosed,
    InfraError,
    PeerError,
    ProgramNotFound,
    ReplayError,
    ResetNeeded,
    StillwebError,
    TaskError,
)

__all__ = ["FailureKind", "RequestRefused", "ServerFault", "fault_of"]

logger = logging.getLogger(__name__)


class FailureKind(StrEnum):
    """Why the server does not do it."""

    FULL = "full"
    BUSY = "busy"
    DRAINING = "draining"
    UNKNOWN = "no_lease"
    OVER = "lease_over"
    CONFLICT = "request_id_conflict"
    BAD = "bad_request"
    ABSENT = "not_found"
    KEY = "unauthorized"
    FORBIDDEN = "forbidden"


_STATUS = {
    FailureKind.FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.UNKNOWN: HTTPStatus.NOT_FOUND,
    FailureKind.OVER: HTTPStatus.GONE,
    FailureKind.CONFLICT: HTTPStatus.CONFLICT,
    FailureKind.BAD: HTTPStatus.BAD_REQUEST,
    FailureKind.ABSENT: HTTPStatus.NOT_FOUND,
    FailureKind.KEY: HTTPStatus.UNAUTHORIZED,
    FailureKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
}
_AFTER = {FailureKind.FULL: 2, FailureKind.BUSY: 1, FailureKind.DRAINING: 30}  # seconds


class RequestRefused(StillwebError):
    """Raised where the server itself refuses.

    Attributes:
        refusal: why.
    """

    def __init__(self, refusal: FailureKind, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A failure as it is told.

    Attributes:
        status: of HTTP.
        kind: for programs.
        after: seconds until it is worth another try; 0 where that is not said.
    """

    status: HTTPStatus
    kind: str
    message: str
    hint: str = ""
    retry: bool = False
    after: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        told = {name: getattr(self, name) for name in ("kind", "message", "hint", "retry")}
        return {"error": told}


# The first that an error is one of.
_KINDS: tuple[tuple[type[StillwebError], HTTPStatus, str], ...] = (
    (InfraError, HTTPStatus.BAD_GATEWAY, "infra_error"),
    (EnvClosed, HTTPStatus.GONE, FailureKind.OVER),
    (ResetNeeded, HTTPStatus.CONFLICT, "reset_needed"),
    (TaskError, HTTPStatus.UNPROCESSABLE_ENTITY, "task_error"),
    (ProgramNotFound, HTTPStatus.SERVICE_UNAVAILABLE, "infra_error"),
    (PeerError, HTTPStatus.BAD_GATEWAY, "infra_error"),
    (ReplayError, HTTPStatus.BAD_GATEWAY, "infra_error"),
)


def fault_of(error: BaseException) -> ServerFault:
    """Return how a failure is told; what is no error of ours is a bug, and our fault."""
    if not isinstance(error, StillwebError):
        logger.error("a bug", exc_info=error)
        return ServerFault(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", type(error).__name__)
    message, hint = str(error), error.hint
    if isinstance(error, RequestRefused):
        after = _AFTER.get(error.refusal, 0)
        return ServerFault(_STATUS[error.refusal], error.refusal.value, message, hint, after > 0, after)
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return ServerFault(status, str(name), message, hint)
    return ServerFault(HTTPStatus.BAD_REQUEST, FailureKind.BAD.value, message, hint)
