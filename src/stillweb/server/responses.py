"""JSON responses, and the responses to errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from stillweb.errors import StillwebError
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of


class JsonResponse(Response):
    """A JSON response; values without a JSON type become strings."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "replace")


def failed(_: Request, error: Exception) -> Response:
    """Return the response to a `StillwebError`."""
    assert isinstance(error, StillwebError)
    return fault_response(fault_of(error))


def failed_bug(_: Request, error: Exception) -> Response:
    """Return the response to an unexpected error; Starlette raises the error again after it."""
    return fault_response(fault_of(error))


def failed_http(_: Request, error: Exception) -> Response:
    """Return the response to an unknown path or method."""
    assert isinstance(error, HTTPException)
    status, detail = HTTPStatus(error.status_code), str(error.detail)
    fault = ServerFault.of(status, FailureKind.NOT_FOUND.value, detail, "GET /docs lists the paths")
    return JsonResponse(fault.body, status_code=error.status_code, headers=error.headers)


def failed_validation(_: Request, error: Exception) -> Response:
    """Return the response to a wrong body or parameter; it names each wrong field."""
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return fault_response(
        fault_of(RequestRefused(FailureKind.BAD_REQUEST, wrong, hint="GET /docs lists the fields"))
    )


def fault_response(fault: ServerFault, more: Mapping[str, Any] | None = None) -> Response:
    """Return a failure as a response, with more fields beside `error`."""
    headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else None
    return JsonResponse({**fault.body, **(more or {})}, status_code=fault.status, headers=headers)
