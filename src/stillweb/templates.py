"""Jinja templates of HTML reports. Values are escaped, since they come from archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def write_page(path: Path, package: str, template: str, **values: Any) -> Path:
    """Write a template of a package as an HTML page; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(templates_of(package).get_template(template).render(values), encoding="utf-8")
    return path


def templates_of(package: str) -> Environment:
    """Return the templates in the folder `templates` of a package; they may extend `html/base.html.j2`."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("stillweb", "html")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
