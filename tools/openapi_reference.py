"""Write docs/reference/openapi.md, the HTTP APIs of `stillweb serve` and of replay; --check compares."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, cast

from stillweb.server.keys import AccessKeys
from stillweb.server.serving import make_app

REPO = Path(__file__).resolve().parents[1]
TARGET = REPO / "docs" / "reference" / "openapi.md"
HEAD = """# HTTP APIs

Written by `make docs` from the code; do not edit.

## Replay: control API

`stillweb replay` serves this API at its public port. Errors are `{"error": ..., "hint": ...}`. Web pages are
refused. See [replay in production](../how-to/replay-in-production.md).

"""
SERVE = """
## Rollout server

`stillweb serve` serves this API, its OpenAPI schema at `/openapi.json`, and a readable form at `/docs`. See
[rollout server](../how-to/rollout-server.md).
"""
_METHODS = ("get", "post", "put", "patch", "delete")


def control_table() -> list[str]:
    """Return the requests of the control API, which the module docstring lists."""
    source = (REPO / "src/stillweb/http/control.py").read_text("utf-8")
    rows = re.findall(
        r"(?m)^    (GET|POST|DELETE) +(\S+) +(.*)$", ast.get_docstring(ast.parse(source), clean=False) or ""
    )
    return [
        "| request | effect |",
        "|---|---|",
        *(f"| `{method} {path}` | {effect} |" for method, path, effect in rows),
    ]


def operations(document: dict[str, Any]) -> list[str]:
    """Return the sections of an OpenAPI document: a table of requests for each tag, and the bodies."""
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method in filter(methods.__contains__, _METHODS):
            operation = methods[method]
            tag = (operation.get("tags") or ["other"])[0]
            body = _model(operation.get("requestBody", {}))
            linked = f"[{body}](#{body.lower()})" if body else ""
            text = operation.get("description") or operation.get("summary", "")
            tags.setdefault(tag, []).append(f"| `{method.upper()} {path}` | {linked} | {_cell(text)} |")
    lines = []
    for tag, rows in tags.items():
        lines += [f"\n### {tag}\n", "| request | body | effect |", "|---|---|---|", *rows]
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        lines += _schema(name, schema)
    return lines


def _model(content: dict[str, Any]) -> str:
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    members = schema.get("properties", {})
    lines = [f"\n### {name}\n", *([_cell(schema["description"]), ""] if schema.get("description") else [])]
    if not members:
        return lines
    lines += ["| member | type | meaning |", "|---|---|---|"]
    required = schema.get("required", [])
    for member, value in members.items():
        kind = _kind(value) + (", required" if member in required else "")
        lines.append(f"| `{member}` | {kind} | {_cell(value.get('description', ''))} |")
    return lines


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_kind(each) for each in value["anyOf"])
    items = f" of {_kind(value['items'])}" if value.get("items") else ""
    return f"{value.get('type', 'any')}{items}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    """Return the page."""
    app = make_app(cast(Any, None), AccessKeys())  # the schema needs no engine
    return HEAD + "\n".join([*control_table(), SERVE, *operations(app.openapi())]) + "\n"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page(), "utf-8")
    elif TARGET.read_text("utf-8") != page():
        sys.stderr.write("docs/reference/openapi.md is stale; run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
