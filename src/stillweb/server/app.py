"""The HTTP application: the native API, the protocols of others, the monitor's data, the documentation."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from stillweb.server import monitor, native, omniboxes, openenv, reference, verltool
from stillweb.server.base import base_app
from stillweb.server.engine import Engine

__all__ = ["make_app"]

_DESCRIPTION = (
    "Episodes on replayed sites, leased to trainers. A failure of browser, page or replay is status 502 or "
    "503 with the kind infra_error, and never a reward."
)


def make_app(engine: Engine, key: str = "") -> FastAPI:
    """Return the application over an engine that has started; `key` is "" for none."""
    app = base_app("stillweb serve", _DESCRIPTION, key)
    app.state.engine = engine
    app.state.trajectories = verltool.Trajectories(engine)
    app.include_router(native.router())
    app.include_router(monitor.router())
    app.include_router(omniboxes.router("/omniboxes"))
    app.include_router(omniboxes.router(""), include_in_schema=False)  # its clients know no prefix
    app.include_router(openenv.router("/openenv"))
    app.add_api_websocket_route("/ws", openenv.socket)
    app.include_router(verltool.router("/verl-tool"))

    async def docs() -> HTMLResponse:
        """Show this API."""
        return HTMLResponse(reference.page(app.openapi()))

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    return app
