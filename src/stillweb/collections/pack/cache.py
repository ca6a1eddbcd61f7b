"""Packs pulled to this machine: each stored once for all programs, and removed in order of last use.

    STORE/ID/pack/        a pack with its bodies
    STORE/.locks/ID       held shared by users of the pack, exclusively for its removal; its mtime is that of
                          the last use
    STORE/.locks/ID.fetch held by the process that fetches it. Two locks, because a process that waits for
                          the fetch must not wait for users of the pack
    STORE/.pull-ID, .gone-ID    a fetch, or a removal, in progress or interrupted

Locks end with their process, even after a kill. A pack in use is never removed: if packs in use leave too
little space, a pull fails with an error.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from stillweb.collections.layout import Collection, check_name
from stillweb.collections.pack.publish import PackRemote, Progress
from stillweb.collections.pack.reader import Pack
from stillweb.collections.renames import exchange, sync_folder
from stillweb.collections.versions import link_or_copy
from stillweb.errors import CollectionError, CollectionExists, MalformedPack
from stillweb.files import DISK_FULL, copy_folder

_GIB = 1 << 30
_FETCHING, _GOING = ".pull-", ".gone-"
_FETCH = ".fetch"


def default_store() -> Path:
    """Return the folder of pulled packs: $STILLWEB_PACK_STORE, else one in the user's cache folder."""
    import platformdirs

    folder = os.environ.get("STILLWEB_PACK_STORE")
    return Path(folder) if folder else platformdirs.user_cache_path("stillweb") / "packs"


class PackStore:
    """Packs of this machine. The constructor has no side effects.

    Args:
        root: folder; `default_store()` by default.
        gib: maximum size.
    """

    def __init__(self, root: Path | None = None, *, gib: float = 50.0) -> None:
        self.root = root or default_store()
        self.limit = int(gib * _GIB)

    @contextmanager
    def hold(
        self, environment_id: str, remote: PackRemote | None = None, *, on_progress: Progress | None = None
    ) -> Iterator[Path]:
        """Provide the folder of a pack, fetched if necessary; the pack stays for the duration of the block.

        Args:
            on_progress: called with bytes, if this call fetches them.

        Raises:
            CollectionNotFound: if the remote has no such pack.
            MalformedPack: if the remote's pack is damaged.
            CollectionError: if it does not fit, or it is not here and there is no remote.
            PeerError: if the remote cannot be read.
        """
        folder = self.root / environment_id / "pack"
        with self._lock(environment_id) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while not _opens(folder):
                fcntl.flock(lock, fcntl.LOCK_UN)
                with self._lock(environment_id + _FETCH) as turn:
                    fcntl.flock(turn, fcntl.LOCK_EX)
                    if not _opens(folder):
                        self._fetch(environment_id, remote, on_progress)
                fcntl.flock(lock, fcntl.LOCK_SH)  # it may have been removed meanwhile: then try again
            os.utime(lock)
            yield folder

    def packs(self) -> dict[str, int]:
        """Return the stored packs and their sizes in bytes, the least recently used first."""
        if not self.root.is_dir():
            return {}
        found = [path for path in self.root.iterdir() if (path / "pack").is_dir() and path.name[0] != "."]
        return {path.name: _size(path) for path in sorted(found, key=lambda path: self._used(path.name))}

    def _used(self, environment_id: str) -> int:
        try:
            return (self.root / ".locks" / environment_id).stat().st_mtime_ns
        except FileNotFoundError:  # it was copied here manually
            return 0

    @contextmanager
    def _lock(self, name: str) -> Iterator[int]:
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # Fetching

    def _fetch(self, environment_id: str, remote: PackRemote | None, on_progress: Progress | None) -> None:
        if remote is None:
            raise CollectionError(
                f"has no pack {environment_id}", path=self.root, hint="stillweb collections pull ID URL"
            )
        sizes = remote.sizes(remote.find(environment_id))
        fresh = self.root / f"{_FETCHING}{environment_id}"
        try:
            with self._lock("store") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._sweep()
                # Left by a killed program; this process holds the fetch lock.
                shutil.rmtree(fresh, ignore_errors=True)
                self._remove(environment_id)  # the existing one cannot be opened
                self._evict_for(environment_id, sum(sizes.values()))
                _reserve(fresh / "pack", sizes)
            remote.pull(environment_id, fresh / "pack", sizes, on_progress)
            for file in (fresh / "pack").iterdir():
                _sync(file)
            sync_folder(fresh / "pack")
            fresh.rename(self.root / environment_id)
            sync_folder(self.root)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            raise self._full(environment_id, sum(sizes.values()), "the disk is full") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _evict_for(self, environment_id: str, size: int) -> None:
        """Remove the least recently used packs until a pack fits; the caller holds the store's lock.

        Raises:
            CollectionError: if it does not fit beside the packs in use.
        """
        packs = self.packs()
        coming = sum(_size(path) for path in self.root.glob(f"{_FETCHING}*"))
        held = sum(packs.values()) + coming
        free = shutil.disk_usage(self.root).free
        for other, weight in packs.items():
            if held + size <= self.limit and size <= free:
                return
            if self._remove_unused(other):
                held, free = held - weight, free + weight
        if held + size > self.limit:
            why = (
                f"{held:,} of {self.limit:,} bytes are taken by packs in use"
                if held
                else "--store-gib is less"
            )
            raise self._full(environment_id, size, why)
        if size > free:
            raise self._full(environment_id, size, f"{free:,} are free on the disk")

    def _remove_unused(self, environment_id: str) -> bool:
        """Remove a pack unless it is in use."""
        with self._lock(environment_id) as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove(environment_id)
            return True
        return False

    def _remove(self, environment_id: str) -> None:
        """Remove a pack atomically: part of a pack must never appear under its name."""
        path, gone = self.root / environment_id, self.root / f"{_GOING}{environment_id}"
        if path.exists():
            path.rename(gone)
            shutil.rmtree(gone)

    def _sweep(self) -> None:
        """Remove files of killed programs."""
        for path in self.root.glob(f"{_GOING}*"):
            shutil.rmtree(path)
        for path in self.root.glob(f"{_FETCHING}*"):
            with self._lock(path.name.removeprefix(_FETCHING) + _FETCH) as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)

    def _full(self, environment_id: str, size: int, why: str) -> CollectionError:
        return CollectionError(
            f"no space for the {size:,} bytes of pack {environment_id}: {why}",
            path=self.root,
            hint="--store-gib N, or --store DIR on a larger disk",
        )


def place(pack: Path, root: Path, name: str) -> Collection:
    """Turn a stored pack into a collection that consists of this pack alone.

    Files are linked if the file system can: they need no additional space, and stay when the store removes
    the pack.

    Raises:
        CollectionExists: if a collection of that name has more than a pack.
    """
    check_name(name)
    collection = Collection(root, name)
    if collection.path.exists() and not collection.is_only_pack:
        raise CollectionExists(
            f"collection {name!r} exists already in {root}, with its recording",
            hint="use another name: -c NAME",
        )
    collection.path.mkdir(parents=True, exist_ok=True)
    fresh = Path(mkdtemp(prefix=".pack-", dir=collection.path))
    try:
        copy_folder(pack, fresh / "pack", link_or_copy)
        if collection.pack.exists():
            exchange(fresh / "pack", collection.pack)
        else:
            (fresh / "pack").rename(collection.pack)
        sync_folder(collection.path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return collection


def _opens(folder: Path) -> bool:
    try:
        Pack.open(folder).close()
    except MalformedPack:
        return False
    return True


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _reserve(folder: Path, sizes: Mapping[str, int]) -> None:
    """Create files of the final sizes, so that other processes count them as used."""
    folder.mkdir(parents=True)
    for name, size in sizes.items():
        with (folder / name).open("wb") as file:
            file.truncate(size)


def _sync(file: Path) -> None:
    with file.open("rb") as content:
        os.fsync(content.fileno())
