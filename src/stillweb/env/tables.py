"""The schema of actions in the forms that others ask for, and the table of other environments' names.

`openai` and `anthropic` are the tool definitions of those interfaces, one tool with one flat
schema; `browsergym` are functions to call, as a text for a prompt.
"""

from __future__ import annotations

from typing import Any

from stillweb.env.action import action_schema
from stillweb.env.aliases import ALIASES

__all__ = ["STYLES", "alias_table", "tool_schema"]

STYLES = ("json", "openai", "anthropic", "browsergym")
_NAME, _DESCRIPTION = "browser", "Act on a web page, one action at a time."


def tool_schema(style: str = "json") -> Any:
    """Return the schema of an action as JSON; for "browsergym" a text.

    Args:
        style: one of STYLES.
    """
    schema = action_schema()
    parameters = {key: schema[key] for key in ("type", "properties", "required", "additionalProperties")}
    if style == "openai":
        function = {"name": _NAME, "description": _DESCRIPTION, "parameters": parameters}
        return {"type": "function", "function": function}
    if style == "anthropic":
        return {"name": _NAME, "description": _DESCRIPTION, "input_schema": parameters}
    if style == "browsergym":
        return "\n".join(
            f"{alias.name}({', '.join(alias.args)}){f'  # {alias.note}' if alias.note else ''}"
            for alias in ALIASES
            if alias.source == "BrowserGym"
        )
    return schema


def alias_table() -> str:
    """Return the table of other environments' names for the documentation, in Markdown."""
    rows = ["| from | there | here | note |", "|---|---|---|---|"]
    for alias in ALIASES:
        there = f"`{alias.name}({', '.join(alias.args)})`"
        fields = [name for name in alias.args.values() if name]
        implied = [f"{name}={value!r}" for name, value in alias.fixed.items()]
        here = f"`{alias.action}({', '.join([*fields, *implied])})`"
        rows.append(f"| {alias.source} | {there} | {here} | {alias.note} |")
    return "\n".join(rows)
