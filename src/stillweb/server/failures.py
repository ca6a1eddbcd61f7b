"""Maps errors to HTTP responses: a status, and a kind that says which side failed.

    {"error": {"kind": "infra_error", "message": ..., "hint": ..., "retry": true}}

`infra_error` is a failure of the server, browser or replay, and never a reward: mask the episode or play it
again. If `retry` is true, the client may send the same request again under the same `request_id`, after
`Retry-After` seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

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

logger = logging.getLogger(__name__)


class FailureKind(StrEnum):
    FULL = "full"
    BUSY = "busy"
    DRAINING = "draining"
    NO_LEASE = "no_lease"
    LEASE_OVER = "lease_over"
    CONFLICT = "request_id_conflict"
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"


_STATUS = {
    FailureKind.FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    FailureKind.NO_LEASE: HTTPStatus.NOT_FOUND,
    FailureKind.LEASE_OVER: HTTPStatus.GONE,
    FailureKind.CONFLICT: HTTPStatus.CONFLICT,
    FailureKind.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    FailureKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    FailureKind.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    FailureKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
    FailureKind.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    FailureKind.TIMEOUT: HTTPStatus.REQUEST_TIMEOUT,
}
_RETRY_AFTER = {FailureKind.FULL: 2, FailureKind.BUSY: 1, FailureKind.DRAINING: 30}  # seconds


class RequestRefused(StillwebError):
    """Raised when the server refuses a request, for the reason `kind`."""

    def __init__(self, kind: FailureKind, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class ErrorResponse(BaseModel):
    """A failure."""

    kind: str = Field(
        description="infra_error is a failure of the server: mask the episode, or play it again"
    )
    message: str
    hint: str = ""
    retry: bool = Field(False, description="Whether the same request may be sent again")


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A failure as an HTTP response.

    Attributes:
        retry_after: seconds for the header `Retry-After`; 0 omits it.
    """

    status: HTTPStatus
    error: ErrorResponse
    retry_after: int = 0

    @property
    def kind(self) -> str:
        return self.error.kind

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self.error.model_dump()}

    @classmethod
    def of(
        cls, status: HTTPStatus, kind: str, message: str, hint: str = "", retry_after: int = 0
    ) -> ServerFault:
        """Return a fault; one with `retry_after` may be retried."""
        error = ErrorResponse(kind=kind, message=message, hint=hint, retry=retry_after > 0)
        return cls(status, error, retry_after)


# The first matching class counts.
_KINDS: tuple[tuple[type[StillwebError], HTTPStatus, str], ...] = (
    (InfraError, HTTPStatus.BAD_GATEWAY, "infra_error"),
    (EnvClosed, HTTPStatus.GONE, FailureKind.LEASE_OVER),
    (ResetNeeded, HTTPStatus.CONFLICT, "reset_needed"),
    (TaskError, HTTPStatus.UNPROCESSABLE_ENTITY, "task_error"),
    (ProgramNotFound, HTTPStatus.SERVICE_UNAVAILABLE, "infra_error"),
    (PeerError, HTTPStatus.BAD_GATEWAY, "infra_error"),
    (ReplayError, HTTPStatus.BAD_GATEWAY, "infra_error"),
)


def fault_of(error: BaseException) -> ServerFault:
    """Return the response to an error.

    An error that is not a `StillwebError` is a bug: it is logged, not shown.
    """
    if not isinstance(error, StillwebError):
        logger.error("a request failed with an unexpected error", exc_info=error)
        return ServerFault.of(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", type(error).__name__)
    message, hint = str(error), error.hint
    if isinstance(error, RequestRefused):
        return ServerFault.of(
            _STATUS[error.kind], error.kind.value, message, hint, _RETRY_AFTER.get(error.kind, 0)
        )
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return ServerFault.of(status, str(name), message, hint)
    return ServerFault.of(HTTPStatus.BAD_REQUEST, FailureKind.BAD_REQUEST.value, message, hint)
