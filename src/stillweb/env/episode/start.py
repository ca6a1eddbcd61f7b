"""Start of an episode: from the arguments of a reset to the first observation.

`Env.reset` and the `Prefetcher` both use it, so that a prefetched start equals any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import index
from typing import Any, Self, SupportsIndex

from playwright.async_api import Browser

from stillweb.browser.launch import is_sandboxed
from stillweb.browser.profile import Level, Pinning
from stillweb.browser.settle import Settled
from stillweb.collections.manifest import storage_state_of, without_ends
from stillweb.env.actions.action import ActionResult
from stillweb.env.actions.perform import open_start
from stillweb.env.episode.content import content_for, rewritten
from stillweb.env.episode.determinism import Determinism
from stillweb.env.episode.episode import (
    ContextOptions,
    Episode,
    EpisodeReplay,
    close_session,
    made,
    open_episode,
    profile_of,
)
from stillweb.env.episode.live import start_failure
from stillweb.env.episode.offpath import off_path_mode
from stillweb.env.episode.perturbation import EpisodeVariant
from stillweb.env.observations.observation import Observation, ObservationForm, take_observation
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.scoring import set_up
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.log import TrajectoryLog
from stillweb.errors import CollectionNotFound, InfraError, TaskError, UsageError
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.replay import ReplayInfo
from stillweb.urls import from_timestamp, wire_url

_DEFAULT_TIME = "20250101"  # for a manifest without the time of recording


def collection_of(chosen: str | None, task: Task | None, served: Sequence[str]) -> str:
    """Return the collection of an episode: the chosen one, otherwise the task's, otherwise the only one.

    Raises:
        CollectionNotFound: if several remain.
    """
    if name := chosen or (task.collection if task else ""):
        return name
    if len(served) == 1:
        return served[0]
    raise CollectionNotFound(
        f"the server has {len(served)} collections, none was chosen",
        hint=f"choose (collection=..., on the command line -c ...) one of: {', '.join(served)}",
    )


def pinning_of(level: Level, manifest: Mapping[str, Any], task: Task | None, seed: int | None) -> Pinning:
    """Return level, seed and initial time; the recording's are the defaults of the task's."""
    if seed is None and task:
        seed = task.seed
    if seed is None:
        seed = int(manifest.get("seed", 0))
    start = (
        task.start if task and task.start else from_timestamp(manifest.get("recorded_at") or _DEFAULT_TIME)
    )
    return Pinning(level, seed, start)


@dataclass(frozen=True, slots=True)
class EpisodeAnswers:
    """Answers of an episode to unrecorded requests: `requested` of the server, and `total` with its own."""

    requested: UnrecordedAnswers
    total: UnrecordedAnswers


def unrecorded_of(options: EnvOptions, task: Task | None, info: ReplayInfo) -> EpisodeAnswers:
    """Return what options and task allow; a task may allow writes to be accepted."""
    requested = options.unrecorded
    if task and task.on_write == "accept":
        requested = requested | UnrecordedAnswers(on_write="accept")
    own = UnrecordedAnswers(
        bool(info.features.get("derived")), "accept" if info.features.get("accept") else "miss"
    )
    return EpisodeAnswers(requested, requested | own)


def check_start(url: str, landed: str, info: Mapping[str, Any]) -> None:
    """Check by the ledger that the collection holds the start page.

    Raises:
        TaskError: if it does not.
    """
    traffic = info["traffic"]
    missed = {f"GET {wire_url(address)}" for address in (url, landed)} & set(traffic["missed"])
    if traffic["source"] == "ledger" and missed:
        to = "" if landed == url else f", which leads to {landed}"
        raise TaskError(
            f"collection {info['collection']!r} does not hold the start page {url}{to}",
            hint=f"stillweb collections show {info['collection']}",
        )


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Arguments of a reset."""

    task: Task | None
    url: str
    seed: int | None

    @classmethod
    def of(cls, task: Task | None, url: str | None, seed: int | None) -> Self:
        """Check the arguments of a reset.

        Raises:
            UsageError: unless exactly one of task and URL is given, and for a wrong type.
        """
        if (task is None) == (url is None):
            raise UsageError("reset needs either a task or a URL")
        if task is not None and not isinstance(task, Task):
            raise UsageError(f"{task!r} is not a Task", hint="load_tasks(path) returns them")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, SupportsIndex)):
            raise UsageError(f"a seed is an integer, not {seed!r}")
        seed = None if seed is None else index(seed)  # numpy's integers as well
        return cls(task, task.start_url if task else str(url), seed)


@dataclass(frozen=True, slots=True)
class StartedEpisode:
    start: StartRequest
    episode: Episode
    observation: Observation
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartContext:
    """Environment of a start: replay server, browser, level and options."""

    replay: EpisodeReplay
    browser: Browser
    level: Level
    kinds: tuple[ObservationForm, ...]
    options: EnvOptions
    collection: str | None

    async def begin(self, start: StartRequest, hold: Callable[[Episode], None]) -> StartedEpisode:
        """Open the start in a new context and session, wait until it has settled, and observe it.

        Args:
            hold: called with the episode as soon as it exists; it then owns the episode and must close it.

        Raises:
            UsageError: if no collection is known.
            TaskError: if the collection does not hold the start page.
            InfraError: if browser or proxy fail.
        """
        episode = await self._open(start)
        try:
            hold(episode)
            episode.log = TrajectoryLog(self.options, episode.id, episode.context)
            episode.tabs.configure(self.options.dialogs, self.options.downloads)
            landed = await self._open_page(episode, start.url)
            settled = await episode.settle()
            settled = await set_up(episode) or settled
            await episode.off_path.begin(
                off_path_mode(self.options.off_path, episode.replay.info), episode.activity
            )
            observation = await observe(episode, self.kinds)
            info = await info_of(episode, ActionResult(), settled)
            check_start(start.url, landed, info)
        except BaseException:
            episode.over = True
            raise
        info["goal"] = episode.goal
        episode.downloads += info["downloads"]
        return StartedEpisode(start, episode, observation, info)

    async def _open(self, start: StartRequest) -> Episode:
        task = start.task
        collection = collection_of(self.collection, task, list(self.replay.info.collections))
        client = self.replay.client
        session = await made(client.open_session(collection), partial(close_session, client))
        unrecorded = unrecorded_of(self.options, task, self.replay.info)
        try:
            if unrecorded.requested:
                await client.answer_unrecorded(session.id, **asdict(unrecorded.requested))
            replay = await self.replay.of(session)
            manifest = replay.info.manifests.get(collection, {})
            profile = profile_of(self.options.profile, manifest, task)
            variant = None
            if self.options.perturb:
                variant, task = _perturbed(self.options, start.url, task)
                profile = variant.profile(profile)
            pinning = pinning_of(self.level, manifest, task, start.seed)
            given = self.options.storage_state
            state = storage_state_of(manifest) if given is None else without_ends(given)
        except BaseException:
            await close_session(client, session)
            raise
        has_har = bool(self.options.trajectories and self.options.har)
        chosen = ContextOptions(profile, pinning, state, variant, reported=has_har)
        episode = await open_episode(self.browser, replay, session, task, chosen)
        episode.unrecorded = asdict(unrecorded.total) if unrecorded.total else {}
        return episode

    async def _open_page(self, episode: Episode, url: str) -> str:
        try:
            return await open_start(episode.page, url)
        except InfraError as error:
            raise await start_failure(episode, url, error) from error


async def observe(episode: Episode, kinds: Sequence[ObservationForm], error: str = "") -> Observation:
    """Observe the active page of an episode, with the marks of mode "mask"."""
    return await take_observation(
        episode.tabs.pages,
        episode.page,
        episode.bids,
        kinds,
        error,
        still=episode.still,
        mask=episode.off_path.mask if episode.off_path.mode == "mask" else None,
    )


def _perturbed(options: EnvOptions, url: str, task: Task | None) -> tuple[EpisodeVariant, Task | None]:
    """Return the variant of an episode, and its task with the variant's names and prices."""
    assert options.perturb is not None
    content = None
    if options.perturb.content:
        content = content_for(options.perturb.content, options.perturb_seed, url, task)
    variant = options.perturb.variant(options.perturb_seed, url, content)
    return variant, rewritten(task, content) if task and content else task


def perturbation_info(episode: Episode) -> dict[str, Any]:
    """Return the digest of an episode's variant, and the tokens of injections that the agent has used."""
    assert episode.variant is not None
    used = {"obeyed": list(episode.obeyed)} if episode.variant.injections else {}
    return {"digest": episode.variant.digest, **used}


async def info_of(episode: Episode, result: ActionResult, settled: Settled | None) -> dict[str, Any]:
    """Return `info` of a reset or step."""
    pinning, browser = episode.pinning, episode.context.browser
    assert browser is not None
    stamp = Determinism(pinning.level, pinning.seed, pinning.start, browser.version, episode.profile)
    return {
        "episode": episode.id,
        "task": episode.task.id if episode.task else "",
        "session": episode.session.id,
        "collection": episode.session.collection,
        "environment_id": episode.session.environment_id,
        "backend": episode.replay.info.backend,
        "sandbox": is_sandboxed(browser),
        "level": pinning.level.value,
        "seed": pinning.seed,
        "determinism": stamp.to_dict() | {"flags": episode.take_flags()},
        "step": episode.steps,
        "action": result.to_dict(),
        "settle": asdict(settled) if settled else None,
        "traffic": (await episode.traffic()).to_dict(),
        "off_path": episode.off_path.to_dict(),
        **({"unrecorded": episode.unrecorded} if episode.unrecorded else {}),
        **({"perturbation": perturbation_info(episode)} if episode.variant else {}),
        **await episode.tabs.take_events(),
    }
