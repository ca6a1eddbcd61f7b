"""Packs by digest at a URL of any fsspec file system, to bring sealed collections to other machines.

    URL/packs/ID/manifest.json, index.bin, entries.bin, places.bin     as sealed, except that the
    URL/packs/ID/bodies.bin                                            pack contains its bodies
    URL/packs/ID/digest            written last: without it the pack does not exist
    URL/packs/ID/extras.zip        pages, rules, baselines, tasks, traces, certificates, as pushed last
    URL/names/NAME                 identifier of the pack that was pushed last under a name

ID is the environment id, the sha256 of manifest.json, which covers all files but the extras. The files of a
pack depend on that pack only, so pushing it twice, or from two machines simultaneously, gives equal bytes.
Each file appears complete, so a concurrent pull finds correct data or nothing. Each push moves its name; pull
by identifier to get the same environment forever.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from stillweb import clock
from stillweb.collections.layout import Collection, check_name
from stillweb.collections.pack import format as form
from stillweb.collections.pack.bodies import OWN, SegmentName, packed_header, packed_place
from stillweb.collections.pack.reader import Pack, pack_stamp
from stillweb.errors import (
    CollectionNotFound,
    ExtraNotInstalled,
    MalformedPack,
    PeerError,
    StillwebError,
    UsageError,
)

Progress = Callable[[int, int], None]
"""Called with the bytes (for a push: entries) so far and the total."""

_COPIED = (form.INDEX, form.ENTRIES, form.MANIFEST)
EXTRAS = "extras.zip"
FILES = (form.MANIFEST, form.INDEX, form.ENTRIES, form.PLACES, form.BODIES, form.DIGEST)
# On these file systems a file is visible while it is written; object stores show it when it is complete.
_SHOWS_PARTS = frozenset(
    ("file", "local", "sftp", "ssh", "ftp", "smb", "hdfs", "arrow_hdfs", "webhdfs", "webdav", "dbfs")
)
_UNDERNEATH = (
    ("botocore.exceptions", "BotoCoreError"),
    ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)
_IDENTIFIER = re.compile(r"[0-9a-f]{64}")
_PIECE = 1 << 20


def is_identifier(text: str) -> bool:
    """Return True if a text is an identifier of a pack rather than a name."""
    return _IDENTIFIER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result of a push; `written` is False if the pack existed already."""

    environment_id: str
    url: str
    written: bool


class PackRemote:
    """Packs at a URL.

    Args:
        url: file:///share/packs, s3://bucket/packs, ... (fsspec). Environment variables set the options of a
            file system.

    Raises:
        UsageError: if no file system has that scheme.
        ExtraNotInstalled: if the file system's package is not installed.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # replay does not need it

        self.url = url.rstrip("/")
        try:
            # Its own instance: transactions are state of the file system, and cached listings may be minutes
            # old.
            self._files, self._root = url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
        except ImportError as error:
            raise ExtraNotInstalled(f"{url}: {error}", hint="pip install s3fs, for s3:// URLs") from error
        except ValueError as error:
            raise UsageError(f"{url}: {error}", hint="file:///share/packs or s3://bucket/packs") from error
        known_as = self._files.protocol
        self._shows_parts = bool(
            _SHOWS_PARTS.intersection([known_as] if isinstance(known_as, str) else known_as)
        )

    # Pushing

    def push(
        self, folder: Path, name: str = "", *, again: bool = False, on_progress: Progress | None = None
    ) -> PushResult:
        """Write the pack of a folder, unless it exists, and point a name to it.

        Args:
            name: for later pulls.
            again: whether to overwrite an existing pack, for instance a damaged one.
            on_progress: called with entries.

        Raises:
            MalformedPack: if the local pack is damaged.
            PeerError: if the remote cannot be written.
        """
        if name:
            check_name(name)
        with _opened(folder) as (pack, sources):
            environment_id = pack.environment_id
            digest = f"{environment_id}\n".encode()
            written = again or not self.has(environment_id)
            if written:
                pack.verify()
                places = self._write_bodies(pack, on_progress or (lambda _, __: None))
                self._write(self._at(environment_id, form.PLACES), places)
                for file, source in sources.items():
                    with self._writing(self._at(environment_id, file)) as out:
                        shutil.copyfileobj(source, out, _PIECE)
                self._write(self._at(environment_id, form.DIGEST), digest)
        if name:
            self._write(f"{self._root}/names/{name}", digest)
        return PushResult(environment_id, self._shown(environment_id), written)

    def _write_bodies(self, pack: Pack, on_progress: Progress) -> bytes:
        """Write each body once, numbered by first use; return places.bin."""
        places: list[bytes] = []
        known: set[bytes] = set()
        with self._writing(self._at(pack.environment_id, form.BODIES)) as out:
            end = len(form.MAGIC[form.BODIES])
            out.write(form.MAGIC[form.BODIES])
            for row in range(len(pack)):
                on_progress(row + 1, len(pack))
                entry = pack.entry(row)
                if entry.body_sha256 in known:
                    continue
                known.add(entry.body_sha256)
                places.append(packed_place(entry.body_sha256, 0, end))
                out.write(entry.body)
                end += len(entry.body)
        return packed_header([SegmentName(OWN, end)], len(places)) + b"".join(places)

    def _write(self, path: str, content: bytes) -> None:
        with self._writing(path) as out:
            out.write(content)

    @contextmanager
    def _writing(self, path: str) -> Iterator[BinaryIO]:
        """Write a file that appears complete, or not at all if writing fails."""
        target = f"{path}.{clock.new_id()}.part" if self._shows_parts else path
        with self._as_peer_errors("cannot be written"):
            try:
                if self._shows_parts:
                    self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                    with self._files.open(target, "wb") as out:
                        yield out
                    self._files.mv(target, path)
                else:
                    with self._files.transaction, self._files.open(target, "wb") as out:
                        yield out
            except BaseException:
                if target != path and self._files.exists(target):
                    self._files.rm_file(target)
                raise

    # Queries

    def has(self, environment_id: str) -> bool:
        """Return True if a pack exists and its push was completed."""
        found = self._read(self._at(environment_id, form.DIGEST))
        return found is not None and found.strip() == environment_id.encode()

    def names(self) -> dict[str, str]:
        """Return the existing names, and the identifier of each."""
        with self._as_peer_errors("cannot be listed"):
            try:
                paths = self._files.ls(f"{self._root}/names", detail=False)
            except FileNotFoundError:
                return {}
        found = {path.rpartition("/")[2]: self._read(path) for path in paths if not path.endswith(".part")}
        return {
            name: content.decode("ascii", "replace").strip()
            for name, content in sorted(found.items())
            if content
        }

    def find(self, which: str) -> str:
        """Return the identifier of an existing pack by its identifier or name.

        Raises:
            CollectionNotFound: if it does not exist; the hint lists existing names.
        """
        environment_id = which
        if not is_identifier(which):
            check_name(which)
            content = self._read(f"{self._root}/names/{which}")
            environment_id = (content or b"").decode("ascii", "replace").strip()
            if not is_identifier(environment_id):
                there = ", ".join(self.names())
                raise CollectionNotFound(
                    f"no pack is named {which!r} at {self.url}",
                    hint=f"use one of: {there}" if there else "stillweb collections push NAME URL",
                )
        if not self.has(environment_id):
            begun = self._exists(self._at(environment_id, form.BODIES))
            why = ": a push of it was not completed" if begun else ""
            raise CollectionNotFound(
                f"pack {environment_id} is not at {self.url}{why}", hint="stillweb collections push NAME URL"
            )
        return environment_id

    def sizes(self, environment_id: str) -> dict[str, int]:
        """Return the files of a pack with their sizes in bytes.

        Raises:
            MalformedPack: if one is missing.
        """
        sizes = {}
        for name in FILES:
            with self._as_peer_errors("cannot be read"):
                try:
                    sizes[name] = int(self._files.info(self._at(environment_id, name))["size"])
                except FileNotFoundError:
                    raise self._broken(environment_id, name, "is missing") from None
        return sizes

    def _exists(self, path: str) -> bool:
        with self._as_peer_errors("cannot be read"):
            return bool(self._files.exists(path))

    def _read(self, path: str) -> bytes | None:
        with self._as_peer_errors("cannot be read"):
            try:
                content: bytes = self._files.cat_file(path)
            except (FileNotFoundError, IsADirectoryError):
                return None
            return content

    # Pulling

    def pull(
        self, environment_id: str, folder: Path, sizes: Mapping[str, int], on_progress: Progress | None = None
    ) -> None:
        """Copy a pack into a folder and verify it.

        Args:
            folder: with files of the final sizes, which reserve the space.
            sizes: as `sizes` returned.
            on_progress: called with bytes.

        Raises:
            MalformedPack: if it differs from the sealed one; names the remote file.
            PeerError: if the remote cannot be read.
            OSError: if the folder cannot be written.
        """
        progress = on_progress or (lambda _, __: None)
        done, total = 0, sum(sizes.values())
        for name, size in sizes.items():
            with (folder / name).open("r+b") as out:
                for piece in self._pieces(self._at(environment_id, name)):
                    out.write(piece)
                    done += len(piece)
                    progress(min(done, total), total)
                if out.tell() != size:
                    raise self._broken(environment_id, name, f"has {out.tell()} of {size} bytes")
            if name == form.MANIFEST:  # the first file: its digest covers all others
                found = sha256((folder / name).read_bytes()).hexdigest()
                if found != environment_id:
                    raise self._broken(
                        environment_id, name, f"differs from its digest: its sha256 is {found}"
                    )
        try:
            with Pack.open(folder) as pack:
                pack.verify()
        except MalformedPack as error:
            file = Path(error.path or "").name
            raise self._broken(environment_id, file, error.what, error.offset) from error

    def _pieces(self, path: str) -> Iterator[bytes]:
        with self._as_peer_errors("cannot be read"), self._files.open(path, "rb") as source:
            while piece := source.read(_PIECE):
                yield piece

    # Extras

    def push_extras(self, environment_id: str, collection: Collection) -> None:
        """Write pages, rules, baselines, tasks, traces and certificates beside a pack.

        Raises:
            PeerError: if the remote cannot be written.
        """
        from stillweb.collections.export import write_extras  # replay does not need it

        with self._writing(self._at(environment_id, EXTRAS)) as out:
            write_extras(collection, out)

    def pull_extras(self, environment_id: str, folder: Path) -> int:
        """Restore the extras of a pack into the folder of a collection; return the number of files.

        No digest covers them: they are as trustworthy as the remote.

        Raises:
            PeerError: if the remote cannot be read.
            MalformedWacz, LimitExceeded: if they are damaged, or unpack to too much.
        """
        from stillweb.collections.importers.wacz import unpack_extras

        path = self._at(environment_id, EXTRAS)
        if not self._exists(path):
            return 0
        with TemporaryDirectory(prefix=".extras-", dir=folder) as temporary:
            packed = Path(temporary) / EXTRAS
            with packed.open("wb") as out:
                for piece in self._pieces(path):
                    out.write(piece)
            return unpack_extras(packed, folder)

    # Messages

    def _at(self, environment_id: str, name: str) -> str:
        return f"{self._root}/packs/{environment_id}/{name}"

    def _shown(self, environment_id: str, name: str = "") -> str:
        return f"{self.url}/packs/{environment_id}{name and '/'}{name}"

    def _broken(self, environment_id: str, name: str, what: str, offset: int | None = None) -> MalformedPack:
        return MalformedPack(
            what,
            path=self._shown(environment_id, name),
            offset=offset,
            hint="on the machine that sealed it: stillweb collections push NAME URL --again",
        )

    @contextmanager
    def _as_peer_errors(self, what: str) -> Iterator[Any]:
        """Convert errors of a file system to PeerError."""
        try:
            yield
        except StillwebError:
            raise
        except _failures() as error:
            raise PeerError(
                f"{self.url}: {what}: {getattr(error, 'strerror', '') or error}",
                hint="check that it is reachable with these credentials",
            ) from error


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of file systems, including those of their client packages."""
    loaded = (sys.modules.get(module) for module, _ in _UNDERNEATH)
    others = zip(loaded, _UNDERNEATH, strict=True)
    return (OSError, *(getattr(module, name) for module, (_, name) in others if module))


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Pack, dict[str, BinaryIO]]]:
    """Open a pack and the files that are copied unchanged, all of one pack even if it is sealed meanwhile."""
    while True:
        stamp = pack_stamp(folder)
        with ExitStack() as stack:
            pack = stack.enter_context(Pack.open(folder))
            try:
                sources: dict[str, BinaryIO] = {
                    name: stack.enter_context((folder / name).open("rb")) for name in _COPIED
                }
            except FileNotFoundError:  # it is being exchanged
                continue
            if pack_stamp(folder) == stamp:
                yield pack, sources
                return
