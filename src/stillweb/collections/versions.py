"""Versions of a collection: `NAME/versions/VERSION/`, a collection as it was, to hold the next crawl against.

A version is a whole collection in its own right (`Collection(NAME/versions, VERSION)`), without a pack.
WARC files are linked, not copied: a recording writes new ones or appends, and what is appended no index
of a version names. Everything else is small, and copied.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stillweb.collections.layout import Collection, check_name, list_collections
from stillweb.errors import CollectionExists, UsageError

__all__ = ["keep_version", "link_or_copy", "open_version", "versions"]

FOLDER = "versions"
_COPIED = ("indexes", "pages", "baseline", "traces")
_FILES = ("manifest.json", "rules.yaml", "diff.yaml", "amends.json")


def versions(collection: Collection) -> list[str]:
    """Return the names of a collection's versions, sorted."""
    return [each.name for each in list_collections(collection.path / FOLDER)]


def open_version(root: Path, name: str) -> Collection:
    """Return a collection by `NAME` or `NAME@VERSION`.

    Raises:
        CollectionNotFound: if there is none; the hint names those there are.
    """
    name, at, version = name.partition("@")
    collection = Collection.open(root, name)
    return Collection.open(collection.path / FOLDER, version) if at else collection


def keep_version(collection: Collection, version: str = "") -> Collection:
    """Keep a collection as it is now as a version; its name is the time of the recording if none is given.

    Raises:
        UsageError: if it cannot be one, or none is given and the time is not known.
        CollectionExists: if there is one of that name.
    """
    collection.require_archive()
    version = version or collection.manifest().recorded_at
    if not version:
        raise UsageError(f"when {collection.name} was recorded is not known", hint="give the version a name")
    check_name(version)
    kept = Collection(collection.path / FOLDER, version)
    if kept.path.exists():
        raise CollectionExists(f"{collection.name} has a version {version!r}", hint="give it another name")
    part = kept.path.with_name(f".{version}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "archive").mkdir(parents=True)
    for path in collection.warc_files():
        link_or_copy(path, part / "archive" / path.name)
    for folder in _COPIED:
        if (collection.path / folder).is_dir():
            shutil.copytree(collection.path / folder, part / folder)
    for file in _FILES:
        if (collection.path / file).exists():
            shutil.copy2(collection.path / file, part / file)
    part.rename(kept.path)  # whole, or not there
    return kept


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file that nobody changes a second name, or copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
