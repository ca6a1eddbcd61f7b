"""Optional dependencies (extras) of stillweb, according to the metadata of the installed package."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable

from stillweb.errors import ExtraNotInstalled

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;.*extra == ['\"]([a-z]+)['\"]")


def extras() -> dict[str, list[str]]:
    """Return the importable packages of each extra; nothing if stillweb runs from a source folder."""
    import importlib.metadata  # 20 ms, which `--help` and completion do not need

    found: dict[str, list[str]] = {}
    try:
        requirements = importlib.metadata.requires("stillweb") or []
    except importlib.metadata.PackageNotFoundError:
        return found
    for each in requirements:
        match = _REQUIREMENT.match(each)
        if match and match[2] != "all":  # it repeats the other extras
            found.setdefault(match[2], []).append(match[1].replace("-", "_"))
    return found


def extra_not_installed(error: ModuleNotFoundError) -> ExtraNotInstalled | None:
    """Return the error that names the extra of a missing module; None if no extra has it."""
    package = (error.name or "").partition(".")[0]
    return next((_error(extra, package) for extra, packages in extras().items() if package in packages), None)


def require_extra(extra: str) -> None:
    """Check that an extra is installed, before a command has any effect.

    Raises:
        ExtraNotInstalled: if a package of it is missing.
    """
    if missing := missing_packages(extras().get(extra, ())):
        raise _error(extra, missing[0])


def missing_packages(packages: Iterable[str]) -> list[str]:
    return [name for name in packages if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # sys.modules has None for it
        return False


def _error(extra: str, package: str) -> ExtraNotInstalled:
    return ExtraNotInstalled(
        f"this command needs the Python package {package}, which is not installed",
        hint=f"pip install 'stillweb[{extra}]'",
    )
