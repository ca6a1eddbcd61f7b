"""Which files an episode may give to pages: those that its environment was told of, no others.

An agent names a file as a person would, by its name or by its path within a folder that is
allowed; it never learns, nor reaches, anything else of this machine. Links that lead out of
what is allowed are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stillweb.browser.elements import ActionFailed

__all__ = ["NOT_ALLOWED", "allowed_files", "chosen_files"]

NOT_ALLOWED = "not_allowed"
_LISTED = 20


def chosen_files(names: str, uploads: Sequence[Path]) -> list[Path]:
    """Return the files of these names, one on each line.

    Args:
        names: file names, or paths within the folders allowed.
        uploads: files and folders that are allowed.

    Raises:
        ActionFailed: of kind NOT_ALLOWED, for a name that is none of the files allowed.
    """
    known = dict(allowed_files(uploads))
    chosen = []
    for name in filter(None, map(str.strip, names.splitlines())):
        if name not in known:
            listed = ", ".join(sorted(known)[:_LISTED]) or "none"
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            raise ActionFailed(f"there is no file {name!r} to upload; there are: {listed}{more}", NOT_ALLOWED)
        chosen.append(known[name])
    return chosen


def allowed_files(uploads: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield each file that is allowed, with the name that an agent knows it by."""
    for upload in uploads:
        root = upload.resolve()
        if root.is_file():
            yield upload.name, root
            continue
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.resolve().is_relative_to(root):
                yield path.relative_to(root).as_posix(), path.resolve()
