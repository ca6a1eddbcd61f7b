"""Gymnasium interfaces over `VectorEnv`: one environment and a vector, both synchronous.

Requires the extra `stillweb[gym]`; no other module of the env imports Gymnasium. An event loop in a thread
runs the sessions, so that these classes also work inside a running loop, such as a notebook's.

Actions are JSON texts or mappings. Observations are dictionaries of texts and, for `screenshot` and `som`,
arrays of pixels. `info` is that of `Env` without values that differ from run to run (identifiers, seconds);
these are in `unique_info`. `reset(seed=...)` seeds the choice of the task. The seed of the page is the task's
or the recording's, or `options["page_seed"]`; with another seed pages may send requests that were not
recorded.

A failure of browser or proxy raises `InfraError`. With `infra="flag"` the step returns the last observation,
reward 0.0, `truncated=True` and `info["infra_error"]`; that reward is not a result and must be masked.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from PIL import Image

from stillweb.browser.profile import BEST_LEVEL
from stillweb.env.aio import LoopThread
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import ExtraNotInstalled, InfraError, UsageError

try:
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
except ImportError as missing:
    raise ExtraNotInstalled("Gymnasium is not installed", hint="pip install 'stillweb[gym]'") from missing


ALWAYS = ("goal", "url", "title", "last_action_error")
PICTURES = ("screenshot", "som")

_TEXT_LENGTH = 100_000_000
_PRINTABLE = frozenset(map(chr, range(32, 127)))


class AnyText(spaces.Text):
    """Space of texts with any characters; samples are printable ASCII."""

    def __init__(self, max_length: int = _TEXT_LENGTH, *, seed: Any = None) -> None:
        super().__init__(max_length, min_length=0, charset=_PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, *args: Any, **named: Any) -> str:
        """Return a short text, since texts of the maximal length have megabytes."""
        length = int(self.np_random.integers(0, min(self.max_length, 64) + 1))
        return (
            super().sample(mask=(length, None)) if not args and not named else super().sample(*args, **named)
        )

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@dataclass(frozen=True, slots=True)
class GymOptions:
    """Options of `StillwebEnv` and `StillwebVectorEnv`.

    Attributes:
        collection: see `VectorEnv`.
        level: see `VectorEnv`.
        observe: forms of observation beside goal, URL, title and the last action's error.
        viewport: width and height of pictures in pixels; they must equal the collection's profile.
        infra: effect of an InfraError, see the module.
        attempts: attempts of a reset before it fails.
        vector: options of the `VectorEnv`.
    """

    collection: str | None = None
    level: str = BEST_LEVEL
    observe: tuple[str, ...] = ("axtree",)
    viewport: tuple[int, int] = (1280, 720)
    infra: Literal["raise", "flag"] = "raise"
    attempts: int = 3
    vector: VectorOptions = field(default_factory=VectorOptions)


def observation_space(options: GymOptions) -> spaces.Dict:
    width, height = options.viewport
    picture = spaces.Box(0, 255, (height, width, 3), np.uint8)
    return spaces.Dict(
        {name: AnyText() for name in ALWAYS}
        | {kind: picture if kind in PICTURES else AnyText() for kind in options.observe}
    )


def blank(options: GymOptions) -> dict[str, Any]:
    """Return the empty observation of a session before its first reset."""
    width, height = options.viewport
    picture = np.zeros((height, width, 3), np.uint8)
    return dict.fromkeys(ALWAYS, "") | {kind: picture if kind in PICTURES else "" for kind in options.observe}


def pixels(body: bytes, options: GymOptions) -> Any:
    """Return a PNG as an array of shape (height, width, 3).

    Raises:
        UsageError: if its size differs from that of the space.
    """
    pixels = np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))
    width, height = options.viewport
    if pixels.shape != (height, width, 3):
        raise UsageError(
            f"a picture is {pixels.shape[1]}x{pixels.shape[0]}, the space has {width}x{height}",
            hint="GymOptions(viewport=...)",
        )
    return pixels.copy()


T = TypeVar("T")

_ACTION_LENGTH = 10_000
_UNIQUE = ("episode", "session", "settle", "browser", "session_index")


class _EnvThread:
    """One session of a vector with Gymnasium's results."""

    def __init__(self, vector: VectorEnv, i: int, tasks: Sequence[Task], options: GymOptions) -> None:
        self._vector = vector
        self._i = i
        self._tasks = tasks
        self._options = options
        self._goal = ""
        self._seen = blank(options)
        self._broken = ""
        self._next: tuple[Any, Task] | None = None  # with the generator that drew it
        self.unique_info: dict[str, Any] = {}

    async def reset(
        self, draw: Any, options: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        given = options or {}
        task = given.get("task") or self._drawn(draw)
        self._goal, self._broken, self._seen = task.goal, "", blank(self._options)
        for attempt in range(1, self._options.attempts + 1):
            try:
                observation, info = await self._vector.reset(self._i, task=task, seed=given.get("page_seed"))
            except InfraError as error:
                if attempt < self._options.attempts:
                    continue
                self._broken = str(error)
                return self._seen_again(), self._flagged(error)
            if self._options.vector.env.prefetch:
                # After a reset to another task, this draws the same task again.
                self._next = (draw, self._drawn(draw))
                self._vector.prepare(self._i, task=self._next[1])
            return self._see(observation), self._reproducible(info)
        raise UsageError("attempts must be at least 1")

    def _drawn(self, draw: Any) -> Task:
        """Return the generator's next task; it is already drawn if its start is prefetched."""
        if self._next and self._next[0] is draw:
            task, self._next = self._next[1], None
            return task
        return self._tasks[int(draw.integers(len(self._tasks)))]

    async def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self._broken:  # the reset was
            return self._seen_again(), 0.0, False, True, self._flagged(InfraError(self._broken))
        try:
            seen, reward, terminated, truncated, info = await self._vector.step(self._i, action)
        except InfraError as error:
            return self._seen_again(), 0.0, False, True, self._flagged(error)
        return self._see(seen), reward, terminated, truncated, self._reproducible(info)

    def _flagged(self, error: InfraError) -> dict[str, Any]:
        if self._options.infra == "raise":
            raise error
        return {"infra_error": str(error)}

    def _see(self, observation: Observation) -> dict[str, Any]:
        seen: dict[str, Any] = {
            "goal": self._goal,
            "url": observation.url,
            "title": observation.title,
            "last_action_error": observation.last_action_error,
        }
        for kind in self._options.observe:
            body = observation.body(kind) or b""
            seen[kind] = pixels(body, self._options) if kind in PICTURES else body.decode()
        self._seen = seen
        return self._seen_again()

    def _seen_again(self) -> dict[str, Any]:
        return {**copy.deepcopy(self._seen), "goal": self._goal}

    def _reproducible(self, info: Mapping[str, Any]) -> dict[str, Any]:
        self.unique_info = {name: info[name] for name in _UNIQUE if name in info}
        given = {name: value for name, value in info.items() if name not in _UNIQUE}
        settled = info.get("settle")
        given["settled"] = bool(settled and settled["settled"])
        copied: dict[str, Any] = json.loads(json.dumps(given, default=str))
        return copied


class StillwebEnv(gymnasium.Env[dict[str, Any], Any]):
    """A `gymnasium.Env` on a replay server; it must be closed.

    Args:
        proxy: control URL of the replay server.
        tasks: each reset draws one of them by its seed; `options={"task": task}` overrides that.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(self, proxy: str, tasks: Sequence[Task], options: GymOptions | None = None) -> None:
        chosen = options or GymOptions()
        self.observation_space = observation_space(chosen)
        self.action_space = AnyText(_ACTION_LENGTH)
        self._vector = _vector(proxy, 1, chosen)
        self._session = _EnvThread(self._vector, 0, tasks, chosen)
        self._loop: LoopThread | None = LoopThread()

    @property
    def unique_info(self) -> dict[str, Any]:
        """Values of the last `info` that differ from run to run: identifiers and seconds."""
        return dict(self._session.unique_info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._run(self._session.reset(self.np_random, options))

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._run(self._session.step(action))

    def close(self) -> None:
        """End the browser; a second call has no effect."""
        loop, self._loop = self._loop, None
        if loop:
            loop.run(self._vector.close())
            loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise UsageError("this environment is closed")
        return self._loop.run(work)


class StillwebVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` of N sessions; it must be closed.

    Its `step` waits for all sessions, as Gymnasium requires; `VectorEnv` has no such barrier.

    Args:
        proxy: control URL of the replay server.
        n: number of sessions.
        tasks: each reset draws one of them by the session's seed.
    """

    def __init__(
        self,
        proxy: str,
        n: int,
        tasks: Sequence[Task],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        options: GymOptions | None = None,
    ) -> None:
        chosen = options or GymOptions()
        self.num_envs = n
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = observation_space(chosen)
        self.single_action_space = AnyText(_ACTION_LENGTH)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        self._vector = _vector(proxy, n, chosen)
        self._sessions = [_EnvThread(self._vector, i, tasks, chosen) for i in range(n)]
        self._draws = [np.random.default_rng() for _ in range(n)]
        self._over = np.zeros(n, dtype=np.bool_)
        self._seen: list[dict[str, Any]] = [blank(chosen) for _ in range(n)]
        self._loop = LoopThread()

    @property
    def unique_info(self) -> list[dict[str, Any]]:
        """Values of each session's last `info` that differ from run to run."""
        return [dict(session.unique_info) for session in self._sessions]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all sessions, or in those of `options["reset_mask"]`."""
        given = dict(options or {})
        mask = given.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise UsageError(f"reset_mask must be an array of {self.num_envs} booleans")
        which = [int(i) for i in np.flatnonzero(mask)]
        if not which:
            raise UsageError("reset_mask must name at least one session")
        for i, each in zip(range(self.num_envs), self._seeds(seed), strict=True):
            if each is not None and mask[i]:
                self._draws[i] = np.random.default_rng(each)
        results = self._loop.run(
            self._gather([self._sessions[i].reset(self._draws[i], given) for i in which])
        )
        infos: dict[str, Any] = {}
        for i, (seen, info) in zip(which, results, strict=True):
            self._seen[i] = seen
            self._over[i] = False
            infos = self._add_info(infos, info, i)
        return self._batched(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        given = list(actions)
        if len(given) != self.num_envs:
            raise UsageError(f"{len(given)} actions for {self.num_envs} sessions")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise UsageError(
                f"the episodes of sessions {np.flatnonzero(self._over).tolist()} are over",
                hint='reset(options={"reset_mask": mask})',
            )
        results = self._loop.run(self._gather([self._advance(i, given[i]) for i in range(self.num_envs)]))
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated, truncated = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(2))
        infos: dict[str, Any] = {}
        for i, (seen, rewards[i], terminated[i], truncated[i], info, final) in enumerate(results):
            self._seen[i] = seen
            if final:
                infos = self._add_info(infos, final, i)
            infos = self._add_info(infos, info, i)
        self._over = np.logical_or(terminated, truncated)
        return self._batched(), rewards, terminated, truncated, infos

    async def _advance(self, i: int, action: Any) -> tuple[Any, float, bool, bool, Any, Any]:
        """Step or reset a session by the autoreset mode; the last item is the ended episode of SAME_STEP."""
        session = self._sessions[i]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._over[i]:
            seen, info = await session.reset(self._draws[i], None)
            return seen, 0.0, False, False, info, None
        seen, reward, terminated, truncated, info = await session.step(action)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            final = {"final_obs": seen, "final_info": info}
            seen, info = await session.reset(self._draws[i], None)
            return seen, reward, terminated, truncated, info, final
        return seen, reward, terminated, truncated, info, None

    async def _gather(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Wait for all, then raise the first error, so that no session is in the middle of a step."""
        results = await asyncio.gather(*work, return_exceptions=True)
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return [each for each in results if not isinstance(each, BaseException)]

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return [seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UsageError(f"{len(seed)} seeds for {self.num_envs} sessions")
        return list(seed)

    def _batched(self) -> Any:
        empty = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return concatenate(self.single_observation_space, self._seen, empty)  # type: ignore[arg-type]

    def close_extras(self, **_: Any) -> None:
        """End the browsers; Gymnasium's `close` calls this once."""
        self._loop.run(self._vector.close())
        self._loop.close()


def _vector(proxy: str, n: int, options: GymOptions) -> VectorEnv:
    return VectorEnv(
        proxy,
        n,
        collection=options.collection,
        level=options.level,
        observe=options.observe,
        options=options.vector,
    )
