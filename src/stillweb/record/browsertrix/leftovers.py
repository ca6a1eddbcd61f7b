"""What a crawl leaves in its folder, taken into the collection: its WACZ, or else the files for one.

The folder lies beside the collection, `.browsertrix-NAME/`, and goes when all of it is taken in. What later
crawls need stays in the collection, in `browsertrix/`: settings, and the state of a crawl that was cut short.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stillweb.clock import now
from stillweb.collections.importers.importer import ImportReport, import_files
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import write_atomically
from stillweb.errors import CollectionError, MalformedWarc
from stillweb.record.browsertrix.settings import CONFIG
from stillweb.urls import to_timestamp

__all__ = ["Leftovers", "read_state"]

TRANSCRIPT = "crawl.log"
_KEPT = "browsertrix"
_STATE = "state.yaml"


class Leftovers:
    """The folder of a crawl.

    Attributes:
        path: of the folder, which is the container's volume.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.path = root / f".browsertrix-{name}"
        self._output = self.path / "collections" / name

    @property
    def transcript(self) -> Path:
        """All that the crawler says, as it says it."""
        return self.path / TRANSCRIPT

    def archived(self) -> int:
        """Return how many bytes the archive has so far."""
        total = 0
        for path in (self._output / "archive").glob("*"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # renamed or removed meanwhile
                continue
        return total

    def state(self) -> dict[str, Any] | None:
        """Return the newest state that the crawler has saved, None if it has saved none."""
        for path in sorted((self._output / "crawls").glob("*.yaml"), reverse=True):
            try:
                told = yaml.safe_load(path.read_text("utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError):
                continue  # cut off in the middle: the one before it is whole
            if isinstance(told, dict) and isinstance(told.get("state"), dict):
                return dict(told["state"])
        return None

    def take_in(self) -> ImportReport | None:
        """Import what there is; None if there is no answer of a site in it.

        Raises:
            CollectionError: if it cannot be read.
        """
        append = (self.root / self.name).is_dir()
        for files in (self._package(), self._loose()):
            if not files:
                continue
            try:
                return import_files(files, self.root, self.name, append=append)
            except MalformedWarc as error:
                if "nothing to replay" not in str(error):
                    raise
                return None
        return None

    def _package(self) -> list[Path]:
        path = self._output / f"{self.name}.wacz"
        return [path] if path.is_file() and zipfile.is_zipfile(path) else []

    def _loose(self) -> list[Path]:
        """Return the files that a WACZ would have been made of."""
        archive = self._output / "archive"
        if not archive.is_dir() or not any(archive.iterdir()):
            return []
        pages = [self._output / "pages" / name for name in ("pages.jsonl", "extraPages.jsonl")]
        return [archive, *(path for path in pages if path.is_file())]

    def settle(self, stopped: str, state: Mapping[str, Any] | None) -> None:
        """Keep in the collection what a later crawl or reader needs, and remove the folder.

        Args:
            stopped: why the crawl is not complete, "" if it is.
            state: to go on from.
        """
        collection = Collection.open(self.root, self.name)
        kept = collection.path / _KEPT
        kept.mkdir(exist_ok=True)
        if (self.path / CONFIG).is_file():
            shutil.copyfile(self.path / CONFIG, kept / CONFIG)
        if stopped and state:
            write_atomically(kept / _STATE, yaml.safe_dump({"state": dict(state)}).encode("utf-8"))
        else:
            (kept / _STATE).unlink(missing_ok=True)
        self._keep_transcript(collection)
        manifest = collection.manifest()
        extra = {name: value for name, value in manifest.extra.items() if name != "stopped"}
        if stopped:
            extra["stopped"] = stopped
        state_word = "partial" if stopped else "complete"
        collection.write_manifest(replace(manifest, state=state_word, extra=extra))
        self.remove()

    def _keep_transcript(self, collection: Collection) -> None:
        """Keep what the crawler said; the log in its WACZ is the same, but for what was no JSON."""
        if not self.transcript.is_file():
            return
        said = self.transcript.read_bytes()
        collection.logs.mkdir(exist_ok=True)
        target = collection.logs / f"browsertrix-{to_timestamp(now())}.log"
        for other in collection.logs.glob("*.log"):
            if other.read_bytes() == said:
                return
        target.write_bytes(said)

    def put_by(self) -> Path:
        """Keep what the crawler said where there is no collection to keep it; return the file."""
        target = self.root / f"{self.path.name}.log"
        if self.transcript.is_file():
            self.transcript.replace(target)
        return target

    def remove(self) -> None:
        """Remove the folder; what belongs to another user stays."""
        shutil.rmtree(self.path, ignore_errors=True)


def read_state(collection: Collection, seeds: Sequence[str]) -> dict[str, Any] | None:
    """Return the state that an interrupted crawl of the same seeds left in a collection.

    Raises:
        CollectionError: if a file is not what it should be.
    """
    told = _yaml(collection.path / _KEPT / CONFIG)
    if told is None or told.get("seeds") != [{"url": url} for url in seeds]:
        return None  # its queue names seeds by number
    state = _yaml(collection.path / _KEPT / _STATE)
    return dict(state["state"]) if state and isinstance(state.get("state"), dict) else None


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        told = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"rm {path}, to crawl from the seeds anew"
        raise CollectionError(f"not what a crawl left ({error})", path=path, hint=hint) from error
    return told if isinstance(told, dict) else None
