"""The HTTP application: native API, Omniboxes, OpenEnv, verl-tool, monitor, and API documentation."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from stillweb.server.engine import Engine
from stillweb.server.guard import base_app
from stillweb.server.keys import AccessKeys
from stillweb.server.monitor import monitor
from stillweb.server.monitor.history import HistoryRecorder
from stillweb.server.protocols import native, omniboxes, openenv, verltool

_METHODS = ("get", "post", "put", "patch", "delete")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ info.title }} {{ info.version }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow: auto; padding: .6rem; border: 1px solid #8886; border-radius: 4px; }
summary { cursor: pointer; padding: .25rem 0; }
summary b { display: inline-block; width: 4.5rem; }
section { border-top: 1px solid #8886; }
dt { font-weight: 600; } dd { margin: 0 0 .3rem 1.2rem; }
</style></head><body>
<h1>{{ info.title }} <small>{{ info.version }}</small></h1>
<p>{{ info.description }} Machine-readable: <a href="openapi.json">openapi.json</a>.</p>
{% for tag, operations in tags.items() %}<section><h2>{{ tag }}</h2>
{% for each in operations %}<details><summary><b>{{ each.method }}</b> <code>{{ each.path }}</code>
 {{ each.summary }}</summary>
<p>{{ each.description }}</p>
{% if each.parameters %}<dl>
{% for parameter in each.parameters %}<dt><code>{{ parameter.name }}</code> ({{ parameter.in }}
{%- if parameter.required %}, required{% endif %})</dt><dd>{{ parameter.description or "" }}</dd>{% endfor %}
</dl>{% endif %}
{% if each.body %}<p>Body: <a href="#{{ each.body }}"><code>{{ each.body }}</code></a></p>{% endif %}
<ul>{% for status, response in each.responses.items() %}<li><code>{{ status }}</code> {{ response.text }}
{% if response.model %}<a href="#{{ response.model }}"><code>{{ response.model }}</code></a>{% endif %}</li>
{% endfor %}</ul>
</details>{% endfor %}</section>
{% endfor %}<section><h2>Bodies</h2>
{% for name, schema in schemas.items() %}<details id="{{ name }}"><summary><code>{{ name }}</code></summary>
<pre>{{ schema }}</pre></details>
{% endfor %}</section></body></html>
"""


def page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as one HTML page.

    FastAPI's own pages (Swagger UI, ReDoc) load about 1.5 MB of scripts from a CDN. This page must work
    without internet and without scripts from other origins. Packages that bundle the scripts add megabytes to
    every installation, so the page is a template.
    """
    tags: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                tag = (operation.get("tags") or ["other"])[0]
                tags.setdefault(tag, []).append(_operation(path, method, operation))
    schemas = document.get("components", {}).get("schemas", {})
    texts = {name: json.dumps(schema, indent=2, ensure_ascii=False) for name, schema in schemas.items()}
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(info=document["info"], tags=tags, schemas=texts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "method": method.upper(),
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": operation.get("parameters", []),
        "body": _model(operation.get("requestBody", {})),
        "responses": {
            status: {"text": each.get("description", ""), "model": _model(each)}
            for status, each in operation.get("responses", {}).items()
        },
    }


def _model(content: dict[str, Any]) -> str:
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]


_DESCRIPTION = (
    "Episodes on replayed sites, leased to trainers. A failure of browser, page or replay has status 502 or "
    "503 and the kind infra_error, and never a reward."
)


def make_app(engine: Engine, keys: AccessKeys) -> FastAPI:
    """Return the application of a started engine."""
    app = base_app("stillweb serve", _DESCRIPTION, keys)
    app.state.engine = engine
    app.state.history = HistoryRecorder()
    app.state.trajectories = verltool.TrajectoryLeases(engine)
    app.include_router(native.router())
    app.include_router(monitor.router())
    app.include_router(omniboxes.router("/omniboxes"))
    app.include_router(omniboxes.router(""), include_in_schema=False)  # WebGym clients use the root
    app.include_router(openenv.router("/openenv"))
    app.add_api_websocket_route("/ws", openenv.socket)
    app.include_router(verltool.router("/verl-tool"))

    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)
    return app
