"""Packs that were pulled to this machine, each once, however many programs need it; the ones used least go.

    STORE/ID/pack/        a pack, with its bodies in it
    STORE/.locks/ID       held shared by who uses the pack, alone by who removes it; its time is that of the
                          last use
    STORE/.locks/ID.fetch held by who fetches it. Two locks, since who waits for the fetch must not wait for
                          those who use the pack then
    STORE/.pull-ID, .gone-ID    a fetch, or a removal, under way or cut short

Locks go with their process, however that ends. A pack that is used is never removed: where those in use leave
too little room, a pull fails and says so.
"""

from __future__ import annotations

import errno
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

__all__ = ["PackStore", "default_store", "place"]

_GIB = 1 << 30
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FETCHING, _GOING = ".pull-", ".gone-"
_FETCH = ".fetch"


def default_store() -> Path:
    """Return the folder of the packs that were pulled: $STILLWEB_PACK_STORE, else the user's for caches."""
    import platformdirs

    told = os.environ.get("STILLWEB_PACK_STORE")
    return Path(told) if told else platformdirs.user_cache_path("stillweb") / "packs"


class PackStore:
    """Packs of this machine. Making one touches nothing.

    Args:
        root: folder; `default_store` otherwise.
        gib: how much may lie in it.
    """

    def __init__(self, root: Path | None = None, *, gib: float = 50.0) -> None:
        self.root = root or default_store()
        self.limit = int(gib * _GIB)

    @contextmanager
    def hold(
        self, environment_id: str, depot: PackRemote | None = None, *, on_progress: Progress | None = None
    ) -> Iterator[Path]:
        """Give the folder of a pack, fetched if it is not here; it stays while the block is not left.

        Args:
            environment_id: of the pack.
            depot: where it is to be had from.
            on_progress: told of bytes, if they are fetched here and now.

        Raises:
            CollectionNotFound: if the depot has no such pack.
            MalformedPack: if what it has is not what was sealed.
            CollectionError: if there is no room for it, or it is not here and there is no depot.
            PeerError: if the depot cannot be read.
        """
        folder = self.root / environment_id / "pack"
        with self._lock(environment_id) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while not _opens(folder):
                fcntl.flock(lock, fcntl.LOCK_UN)
                with self._lock(environment_id + _FETCH) as turn:
                    fcntl.flock(turn, fcntl.LOCK_EX)
                    if not _opens(folder):
                        self._fetch(environment_id, depot, on_progress)
                fcntl.flock(lock, fcntl.LOCK_SH)  # it may have been removed before this: then once more
            os.utime(lock)
            yield folder

    def packs(self) -> dict[str, int]:
        """Return the packs that are here, the one used longest ago first, and the bytes of each."""
        if not self.root.is_dir():
            return {}
        found = [path for path in self.root.iterdir() if (path / "pack").is_dir() and path.name[0] != "."]
        return {path.name: _size(path) for path in sorted(found, key=lambda path: self._used(path.name))}

    def _used(self, environment_id: str) -> int:
        try:
            return (self.root / ".locks" / environment_id).stat().st_mtime_ns
        except FileNotFoundError:  # it was copied here by hand
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

    # --- fetching -----------------------------------------------------------------------------------

    def _fetch(self, environment_id: str, depot: PackRemote | None, on_progress: Progress | None) -> None:
        if depot is None:
            raise CollectionError(
                f"has no pack {environment_id}", path=self.root, hint="stillweb collections pull ID URL"
            )
        sizes = depot.sizes(depot.find(environment_id))
        fresh = self.root / f"{_FETCHING}{environment_id}"
        try:
            with self._lock("store") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._sweep()
                shutil.rmtree(
                    fresh, ignore_errors=True
                )  # left by a program that was killed; the turn is ours
                self._remove(environment_id)  # what is there does not open
                self._make_room(environment_id, sum(sizes.values()))
                _reserve(fresh / "pack", sizes)
            depot.fetch(environment_id, fresh / "pack", sizes, on_progress)
            for file in (fresh / "pack").iterdir():
                _sync(file)
            sync_folder(fresh / "pack")
            fresh.rename(self.root / environment_id)
            sync_folder(self.root)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._full(environment_id, sum(sizes.values()), "the disk is full") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _make_room(self, environment_id: str, size: int) -> None:
        """Remove what was used longest ago until a pack fits; the store is ours alone meanwhile.

        Raises:
            CollectionError: if it does not fit beside what is in use.
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
            raise self._full(environment_id, size, f"{free:,} are free on its disk")

    def _remove_unused(self, environment_id: str) -> bool:
        """Remove a pack, unless someone uses it."""
        with self._lock(environment_id) as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove(environment_id)
            return True
        return False

    def _remove(self, environment_id: str) -> None:
        """Remove a pack, at once: a half of one is never to be seen under its name."""
        path, gone = self.root / environment_id, self.root / f"{_GOING}{environment_id}"
        if path.exists():
            path.rename(gone)
            shutil.rmtree(gone)

    def _sweep(self) -> None:
        """Remove what killed programs left."""
        for path in self.root.glob(f"{_GOING}*"):
            shutil.rmtree(path)
        for path in self.root.glob(f"{_FETCHING}*"):
            with self._lock(path.name.removeprefix(_FETCHING) + _FETCH) as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)

    def _full(self, environment_id: str, size: int, why: str) -> CollectionError:
        return CollectionError(
            f"no room for the {size:,} bytes of pack {environment_id}: {why}",
            path=self.root,
            hint="--store-gib N, or --store DIR on a larger disk",
        )


def place(pack: Path, root: Path, name: str) -> Collection:
    """Make a pack of the store a collection of a root, which then is its pack alone.

    Its files are linked where the file system can, so that they cost no room twice and stay when the
    store lets go of them.

    Raises:
        CollectionExists: if there is a collection of that name that is more than a pack.
    """
    check_name(name)
    collection = Collection(root, name)
    if collection.path.exists() and not collection.is_only_pack:
        raise CollectionExists(
            f"collection {name!r} is in {root} already, with its recording", hint="-c NAME: another name"
        )
    collection.path.mkdir(parents=True, exist_ok=True)
    fresh = Path(mkdtemp(prefix=".pack-", dir=collection.path))
    try:
        shutil.copytree(pack, fresh / "pack", copy_function=link_or_copy)
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
    """Make files of their sizes, so that others who look for room count them."""
    folder.mkdir(parents=True)
    for name, size in sizes.items():
        with (folder / name).open("wb") as file:
            file.truncate(size)


def _sync(file: Path) -> None:
    with file.open("rb") as content:
        os.fsync(content.fileno())
