"""Jinja templates of HTML reports. Values are escaped, since they come from archives."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def templates_of(package: str) -> Environment:
    """Return the templates in the folder `templates` of a package; they may extend `html/base.html.j2`."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates"), PackageLoader("stillweb", "html")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
