"""The web page of the monitor: static files without data that load nothing from other origins."""

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
    # Pictures are blobs: an <img> cannot send the API key.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


def router() -> APIRouter:
    """Return the routes of the page and its files."""
    routes = APIRouter()
    for path, (name, media_type) in _FILES.items():
        routes.add_api_route(
            path, partial(_file, name, media_type), methods=["GET"], include_in_schema=False, name=name
        )
    return routes


async def _file(name: str, media_type: str) -> Response:
    text = files("stillweb.server.monitor").joinpath("web", name).read_text("utf-8")
    return Response(text, media_type=media_type, headers=_HEADERS)
