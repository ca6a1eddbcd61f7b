"""Versions of a collection in `NAME/versions/VERSION/`: earlier states, for comparison with the next crawl.

A version is a complete collection (`Collection(NAME/versions, VERSION)`) without a pack. WARC files are
linked, not copied: a recording writes new files or appends, and a version's index does not name appended
records. All other files are small and copied.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stillweb.collections.layout import Collection, check_name, list_collections
from stillweb.errors import CollectionExists, UsageError
from stillweb.files import copy_folder

FOLDER = "versions"
_COPIED = ("indexes", "pages", "baseline", "traces")
_FILES = ("manifest.json", "rules.yaml", "diff.yaml", "amends.json")


def versions(collection: Collection) -> list[str]:
    return [each.name for each in list_collections(collection.path / FOLDER)]


def open_version(root: Path, name: str) -> Collection:
    """Return a collection by `NAME` or `NAME@VERSION`.

    Raises:
        CollectionNotFound: if it does not exist; the hint lists existing names.
    """
    name, at, version = name.partition("@")
    collection = Collection.open(root, name)
    return Collection.open(collection.path / FOLDER, version) if at else collection


def keep_version(collection: Collection, version: str = "") -> Collection:
    """Store a collection's current state as a version, named after the time of the recording by default.

    Raises:
        UsageError: if the name is invalid, or none is given and the time is unknown.
        CollectionExists: if the name is taken.
    """
    collection.require_archive()
    version = version or collection.manifest().recorded_at
    if not version:
        raise UsageError(f"the recording time of {collection.name} is unknown", hint="name the version")
    check_name(version)
    stored = Collection(collection.path / FOLDER, version)
    if stored.path.exists():
        raise CollectionExists(f"{collection.name} has a version {version!r}", hint="use another name")
    part = stored.path.with_name(f".{version}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _copy(collection, part)
        part.rename(stored.path)  # complete, or not at all
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return stored


def _copy(collection: Collection, part: Path) -> None:
    (part / "archive").mkdir(parents=True)
    for path in collection.warc_files():
        link_or_copy(path, part / "archive" / path.name)
    for folder in _COPIED:
        if (collection.path / folder).is_dir():
            copy_folder(collection.path / folder, part / folder)
    for file in _FILES:
        if (collection.path / file).exists():
            shutil.copy2(collection.path / file, part / file)


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Link a file that never changes, or copy it if the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
