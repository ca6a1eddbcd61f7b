"""The page of the monitor: files of this package, which load nothing from elsewhere and hold no data."""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

__all__ = ["PATHS", "router"]

_FILES = {
    "/": ("monitor.html", "text/html; charset=utf-8"),
    "/monitor.css": ("monitor.css", "text/css; charset=utf-8"),
    "/monitor.js": ("monitor.js", "text/javascript; charset=utf-8"),
}
PATHS = frozenset(_FILES)

_HEADERS = {
    # Pictures come as blobs, since an <img> could send no key.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


def router() -> APIRouter:
    """Return the routes."""
    made = APIRouter()
    for path, (name, media_type) in _FILES.items():
        made.add_api_route(
            path, partial(_give, name, media_type), methods=["GET"], include_in_schema=False, name=name
        )
    return made


async def _give(name: str, media_type: str) -> Response:
    text = files("stillweb.server.monitor").joinpath("web", name).read_text("utf-8")
    return Response(text, media_type=media_type, headers=_HEADERS)
