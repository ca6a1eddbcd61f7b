"""What Ray's workers hand back of an episode: a small record, and references to what is large."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stillweb.env.rollout import Rollout
from stillweb.env.trajectory import Store, Trajectory
from stillweb.errors import InfraError, TaskError
from stillweb.trainers.rayerrors import RayError, ray

__all__ = ["Kept", "RayEpisode"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Trajectory and pictures of an episode, fetched when they are asked for.

    Attributes:
        episode: identifier of the attempt that counts.
        folder: that all machines share; "" where they are objects of Ray's.
        objects: reference to them in Ray's object store, as bytes by path; held by who holds this.
    """

    episode: str
    folder: str = ""
    objects: Any = None

    def picture(self, sha256: str) -> bytes:
        """Return a picture by the digest that a step of the record has (`Played.digests`).

        Raises:
            TaskError: if there is none of it.
            InfraError: if it was lost.
        """
        if self.folder:
            return Store(Path(self.folder)).get(sha256, "png")
        path = Store(Path()).path(sha256, "png")
        try:
            return self._bodies()[str(path)]
        except KeyError:
            raise TaskError(f"episode {self.episode} kept no picture {sha256}") from None

    def trajectory(self, into: Path | None = None) -> Trajectory:
        """Return the trajectory, to be read or scored again.

        Args:
            into: folder of trajectories to which it is brought first if it is not in a shared one.

        Raises:
            TaskError: if it cannot be read, or there is nowhere to bring it.
            InfraError: if it was lost.
        """
        if self.folder:
            return Trajectory.load(Path(self.folder) / self.episode)
        if into is None:
            raise TaskError(f"the trajectory of {self.episode} is in no folder", hint="trajectory(FOLDER)")
        for name, body in self._bodies().items():
            path = into / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return Trajectory.load(into / self.episode)

    def _bodies(self) -> dict[str, bytes]:
        try:
            bodies: dict[str, bytes] = ray.get(self.objects)
        except RayError as error:
            raise InfraError(
                f"what episode {self.episode} left was lost with its machine: {error}",
                hint="keep=FOLDER, which all machines share",
            ) from error
        return bodies


@dataclass(frozen=True, slots=True)
class RayEpisode:
    """An episode that has ended.

    Attributes:
        rollout: how; its digests are the keys of `kept`.
        workers: number of the worker of each attempt, in their order.
        kept: trajectory and pictures; None where none are kept, or the last attempt did not begin.
    """

    rollout: Rollout
    workers: tuple[int, ...]
    kept: Kept | None = None
