"""The page `/docs`: the API as its OpenAPI document says, in one piece of HTML that loads nothing."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment

__all__ = ["page"]

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
<p>{{ info.description }} The same for programs: <a href="openapi.json">openapi.json</a>.</p>
{% for tag, operations in tags.items() %}<section><h2>{{ tag }}</h2>
{% for each in operations %}<details><summary><b>{{ each.method }}</b> <code>{{ each.path }}</code>
 {{ each.summary }}</summary>
<p>{{ each.description }}</p>
{% if each.parameters %}<dl>
{% for one in each.parameters %}<dt><code>{{ one.name }}</code> ({{ one.in }}
{%- if one.required %}, required{% endif %})</dt><dd>{{ one.description or "" }}</dd>{% endfor %}
</dl>{% endif %}
{% if each.body %}<p>Body: <a href="#{{ each.body }}"><code>{{ each.body }}</code></a></p>{% endif %}
<ul>{% for status, told in each.answers.items() %}<li><code>{{ status }}</code> {{ told.text }}
{% if told.model %}<a href="#{{ told.model }}"><code>{{ told.model }}</code></a>{% endif %}</li>
{% endfor %}</ul>
</details>{% endfor %}</section>
{% endfor %}<section><h2>Bodies</h2>
{% for name, schema in schemas.items() %}<details id="{{ name }}"><summary><code>{{ name }}</code></summary>
<pre>{{ schema }}</pre></details>
{% endfor %}</section></body></html>
"""


def page(document: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    tags: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in _METHODS:
                tag = (operation.get("tags") or ["other"])[0]
                tags.setdefault(tag, []).append(_operation(path, method, operation))
    schemas = document.get("components", {}).get("schemas", {})
    told = {name: json.dumps(schema, indent=2, ensure_ascii=False) for name, schema in schemas.items()}
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(info=document["info"], tags=tags, schemas=told)


def _operation(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "method": method.upper(),
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": operation.get("parameters", []),
        "body": _model(operation.get("requestBody", {})),
        "answers": {
            status: {"text": each.get("description", ""), "model": _model(each)}
            for status, each in operation.get("responses", {}).items()
        },
    }


def _model(told: dict[str, Any]) -> str:
    schema = told.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]
