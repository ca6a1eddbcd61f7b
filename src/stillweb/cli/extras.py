"""Optional dependencies (extras) of stillweb, from the metadata of the installed package."""

from __future__ import annotations

import importlib.metadata
import re

from stillweb.errors import ExtraNotInstalled

__all__ = ["extra_not_installed", "extras"]

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;.*extra == ['\"]([a-z]+)['\"]")


def extras() -> dict[str, list[str]]:
    """Return the importable packages of each extra; nothing if stillweb runs from a source folder."""
    found: dict[str, list[str]] = {}
    try:
        requirements = importlib.metadata.requires("stillweb") or []
    except importlib.metadata.PackageNotFoundError:
        return found
    for each in requirements:
        match = _REQUIREMENT.match(each)
        if match and match[1] != "stillweb":  # `all` refers to the other extras
            found.setdefault(match[2], []).append(match[1].replace("-", "_"))
    return found


def extra_not_installed(error: ModuleNotFoundError) -> ExtraNotInstalled | None:
    """Return the error that names the extra of a missing module; None if no extra has it."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in extras().items():
        if package in packages:
            return ExtraNotInstalled(
                f"this command needs the Python package {package}, which is not installed",
                hint=f"pip install 'stillweb[{extra}]'",
            )
    return None
