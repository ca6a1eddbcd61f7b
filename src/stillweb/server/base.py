"""What a server and a master have in common: failures as JSON, who may ask, the page of the monitor."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stillweb import __version__
from stillweb.errors import StillwebError
from stillweb.server import monitorpage
from stillweb.server.guard import Guard
from stillweb.server.web import failed, failed_bug, failed_http, failed_validation

__all__ = ["base_app"]


def base_app(title: str, description: str, key: str) -> FastAPI:
    """Return an application without an API; `key` is "" for none."""
    app = FastAPI(
        title=title,
        version=__version__,
        description=description,
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
    )
    app.add_exception_handler(StillwebError, failed)
    app.add_exception_handler(HTTPException, failed_http)
    app.add_exception_handler(RequestValidationError, failed_validation)
    app.add_exception_handler(Exception, failed_bug)
    app.add_middleware(Guard, key=key)
    app.include_router(monitorpage.router())
    return app
