"""Measure how often agents leave a recording: walks of several agents and seeds on its replay.

A step *requested* if it sent a request other than browser noise. It *left* the site if nothing was answered
and all its misses are on hosts of which the recording holds nothing: no recording of a closed site can hold
those. A page of the site that names a missing file of another host has not left. A step *missed* if a
request to a recorded host has no answer. The miss rate is missed / (requested - left). A step is a *dead end*
if it shows a page that is not recorded. It is one too if it missed and no element is left to act on. A
recorded page without elements (a plain error message) is the site's own and no dead end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from stillweb.clock import monotonic
from stillweb.collections.misses import Missed
from stillweb.coverage.agents import AGENTS, WalkPolicies
from stillweb.diff.certify.rates import FailureRate, rate
from stillweb.env import Action, EnvOptions, Observation, Task, VectorEnv, VectorOptions, parse
from stillweb.env.env import Info
from stillweb.env.vector.pool import BrowserPool
from stillweb.env.vector.rollout import Policy
from stillweb.errors import AgentError, InfraError, TaskError
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.options import Option, parse_list, parse_pairs
from stillweb.replay import ReplayClient
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.ledger.misses import gather_misses
from stillweb.urls import host_of, wire_url

_ATTEMPTS = 2  # of one walk, if browser or proxy fail
_SLOW, _SLOWEST = 3.0, 10.0  # seconds of a start: long, and too long for more sessions than processors
_SESSIONS_LEAST = 2  # that start in any case


@dataclass(frozen=True, slots=True)
class CoverageOptions:
    """Options of a measurement.

    Attributes:
        first_seed: seed of each agent's first walk; the others follow it.
        start: initial time of the page's clock; None for that of the recording.
        browsers: pool to walk on; None to start one.
    """

    agents: Annotated[
        tuple[str, ...],
        Option(
            "Agents that walk on the recording: uniform, forms, reader, openai (a model at an "
            "OpenAI-compatible endpoint), or MODULE:NAME of your own.",
            metavar="NAME,...",
            parse=parse_list,
            format=",".join,
            repeat=False,
        ),
    ] = tuple(AGENTS)
    agent_options: Annotated[
        Mapping[str, str],
        Option(
            "Option of the agents openai and MODULE:NAME, as in stillweb rollout. Repeatable.",
            "--agent-option",
            metavar="KEY=VALUE",
            parse=parse_pairs,
            repeat=True,
        ),
    ] = field(default_factory=dict)
    seeds: Annotated[int, Option("Number of walks of each agent.", min=1)] = 10
    first_seed: Annotated[int, Option("Seed of each agent's first walk.")] = 1
    steps: Annotated[int, Option("Steps of each walk.", min=1)] = 30
    jobs: Annotated[int, Option("Walks at a time.", min=1)] = 4
    seconds: Annotated[
        float | None,
        Option("Walk for at most this many seconds; walks under way end early.", "--time", "SECONDS", min=1),
    ] = None
    derived: Annotated[
        bool, Option("Answer own text in forms from templates, as replay --derived does (record forms).")
    ] = False
    level: str = "clock"
    start: datetime | None = None
    browsers: BrowserPool | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a walk.

    Attributes:
        number: of the step in its walk, from 1.
        page: URL before the action.
        action: the action, as the environment takes it.
        control: role and name of its element, "" without one.
        requested, left, dead: see the module.
        missed: "METHOD URL" of misses on recorded hosts.
    """

    number: int
    page: str
    action: dict[str, Any]
    control: str
    requested: bool
    left: bool
    dead: bool
    missed: tuple[str, ...] = ()


@dataclass(slots=True)
class WalkRecord:
    """One walk: its agent, seed and steps; `error` says why it ended early."""

    agent: str
    seed: int
    start: str
    steps: list[StepRecord] = field(default_factory=list)
    misses: list[Missed] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """All walks on one recording; `complete` is False if `measure_coverage` ended early.

    `derived` says whether forms answered own text from templates. `start_seconds` is the time until the first
    walk was at its start page.
    """

    collection: str
    environment_id: str
    walks: tuple[WalkRecord, ...]
    complete: bool = True
    derived: bool = False
    start_seconds: float = 0.0

    def steps(self, agent: str = "") -> Iterator[StepRecord]:
        """Yield the steps of an agent, or of all."""
        for walk in self.walks:
            if not agent or walk.agent == agent:
                yield from walk.steps

    def miss_rate(self, agent: str = "") -> FailureRate:
        """Return the share of asking steps on the site that missed, with its 95% interval."""
        stayed = [step for step in self.steps(agent) if step.requested and not step.left]
        return rate(sum(bool(step.missed) for step in stayed), len(stayed))

    def counts(self, agent: str = "") -> dict[str, int]:
        """Return the number of steps, and of those that requested, left, missed and ended on a dead end."""
        steps = list(self.steps(agent))
        return {
            "steps": len(steps),
            "requested": sum(step.requested for step in steps),
            "left": sum(step.left for step in steps),
            "missed": sum(bool(step.missed) for step in steps),
            "dead": sum(step.dead for step in steps),
        }

    def misses(self) -> list[Missed]:
        """Return what was missed, equal requests once, as `stillweb record amend --misses` takes it."""
        found: dict[tuple[str, str, str], Missed] = {}
        for walk in self.walks:
            for each in walk.misses:
                key = (each.method, each.url, each.body_digest)
                known = found.get(key)
                found[key] = replace(known, count=known.count + each.count) if known else each
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, without the misses' bodies."""
        agents = list(dict.fromkeys(walk.agent for walk in self.walks))
        return {
            "collection": self.collection,
            "environment_id": self.environment_id,
            "derived": self.derived,
            **self.counts(),
            "miss_rate": self.miss_rate().to_dict(),
            "agents": {agent: {**self.counts(agent), **self.miss_rate(agent).to_dict()} for agent in agents},
            "walks": [
                {
                    **{name: getattr(walk, name) for name in ("agent", "seed", "start", "error")},
                    "steps": [asdict(step) for step in walk.steps],
                }
                for walk in self.walks
            ],
        }


OnWalk = Callable[[CoverageResult], bool | None]


class FirstStart:
    """Time of the first start of several sessions, and which of them are worth theirs.

    A large application computes for long before its start page is ready. Then more sessions than processors
    only add starts: together they take no more steps.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._known = asyncio.Event()

    @property
    def is_slow(self) -> bool:
        """Whether it took long."""
        return (self.seconds or 0.0) > _SLOW

    def note(self, seconds: float) -> None:
        """Take the time of a start, or of an attempt that failed."""
        if self.seconds is None:
            self.seconds = seconds
            self._known.set()

    async def is_worth(self, session: int) -> bool:
        """Return whether a session, counted from 0, should start; it may wait until the first one has."""
        if session < max(_SESSIONS_LEAST, os.cpu_count() or 1):
            return True
        await self._known.wait()
        return (self.seconds or 0.0) < _SLOWEST


async def measure_coverage(
    client: ReplayClient,
    collection: str,
    starts: Sequence[str],
    hosts: Iterable[str],
    options: CoverageOptions,
    on_walk: OnWalk = lambda result: False,
) -> CoverageResult:
    """Walk on a replayed collection.

    Args:
        client: of the replay server that serves it.
        starts: URLs at which walks start; the walks of an agent take them in turn.
        hosts: hosts of which the collection holds answers.
        on_walk: called after each walk with all walks so far; no further walk starts if it returns True.

    Raises:
        UsageError, ExtraNotInstalled: see `WalkPolicies`.
        AgentError: if no walk of an agent took a step, so that its rate would be that of nothing.
    """
    planned = [
        WalkRecord(agent, options.first_seed + number, starts[number % len(starts)])
        for number in range(options.seeds)
        for agent in options.agents
    ]
    return await _measure(client, collection, planned, hosts, options, on_walk)


async def measure_again(
    client: ReplayClient,
    collection: str,
    walks: Iterable[WalkRecord],
    hosts: Iterable[str],
    options: CoverageOptions,
) -> CoverageResult:
    """Take walks of a measurement again, with other options.

    Raises:
        UsageError, ExtraNotInstalled, AgentError: as `measure`.
    """
    planned = [WalkRecord(walk.agent, walk.seed, walk.start) for walk in walks]
    return await _measure(client, collection, planned, hosts, options)


async def _measure(
    client: ReplayClient,
    collection: str,
    planned: Sequence[WalkRecord],
    hosts: Iterable[str],
    options: CoverageOptions,
    on_walk: OnWalk = lambda result: False,
) -> CoverageResult:
    policies = WalkPolicies(options.agents, options.agent_options)
    done: list[WalkRecord] = []
    ended = asyncio.Event()
    environment_id = str((await client.info()).collections[collection])
    walker = _Walker(client, collection, frozenset(hosts), options, policies)
    vector = VectorEnv(
        client.url,
        min(options.jobs, len(planned)) or 1,
        collection=collection,
        level=options.level,
        options=replace(walk_options(options.steps, derived=options.derived), browsers=options.browsers),
    )
    waiting = iter(planned)

    def result() -> CoverageResult:
        by_agent = sorted(done, key=lambda walk: (options.agents.index(walk.agent), walk.seed))
        complete = len(done) == len(planned) and not walker.is_over
        start = walker.starts.seconds or 0.0
        return CoverageResult(collection, environment_id, tuple(by_agent), complete, options.derived, start)

    async with policies, vector, asyncio.TaskGroup() as group:

        async def work(session: int) -> None:
            for record in waiting if await walker.starts.is_worth(session) else ():
                await walker.walk(vector, session, record)
                if record.steps or record.error:  # else the time was over before its first step
                    done.append(record)
                    if on_walk(result()):
                        ended.set()
                if ended.is_set() or walker.is_over:
                    return

        for session in range(len(vector)):
            group.create_task(work(session))
    for agent in dict.fromkeys(walk.agent for walk in planned):
        walks = [walk for walk in done if walk.agent == agent]
        errors = sorted({walk.error for walk in walks if walk.error})
        if errors and not any(walk.steps for walk in walks):
            raise AgentError(f"no walk of {agent} on {collection} took a step: {'; '.join(errors)}")
    return result()


def walk_options(steps: int, *, derived: bool) -> VectorOptions:
    """Return the options of the sessions of walks; a walk repeats only under equal options."""
    unrecorded = UnrecordedAnswers(derived=derived)
    return VectorOptions(env=EnvOptions(max_steps=steps + 1, off_path="follow", unrecorded=unrecorded))


class _Walker:
    def __init__(
        self,
        client: ReplayClient,
        collection: str,
        hosts: frozenset[str],
        options: CoverageOptions,
        policies: WalkPolicies,
    ) -> None:
        self._client = client
        self._collection = collection
        self._hosts = hosts
        self._options = options
        self._policies = policies
        self._began = monotonic()
        self._end = self._began + options.seconds if options.seconds else None
        self.starts = FirstStart()

    @property
    def is_over(self) -> bool:
        """Whether the time limit was reached."""
        return self._end is not None and monotonic() >= self._end

    async def walk(self, vector: VectorEnv, session: int, record: WalkRecord) -> None:
        """Fill a record with the steps of its walk; an episode that breaks is begun again once."""
        for attempt in range(_ATTEMPTS):
            record.steps.clear()
            record.error = ""
            try:
                await self._walk(vector, session, record)
            except (InfraError, TaskError, AgentError) as error:
                record.error = str(error)
                if attempt + 1 < _ATTEMPTS and isinstance(error, InfraError):
                    continue
            return

    async def _walk(self, vector: VectorEnv, session: int, record: WalkRecord) -> None:
        policy = self._policies.policy(record.agent, record.start, record.seed)
        start = self._options.start
        task = Task("walk", "", record.start, start=start) if start else None
        opened = ""
        with suppress(TimeoutError):  # a step of a large application on a busy machine takes many seconds
            async with asyncio.timeout(None if self._end is None else self._end - monotonic()):
                try:
                    url = None if task else record.start
                    observation, info = await vector.reset(session, task=task, url=url)
                finally:
                    self.starts.note(monotonic() - self._began)
                opened = info["session"]
                await self._take_steps(vector, session, record, policy, (observation, info))
        if opened:
            record.misses = await self._misses(opened)

    async def _take_steps(
        self,
        vector: VectorEnv,
        session: int,
        record: WalkRecord,
        policy: Policy,
        begun: tuple[Observation, Info],
    ) -> None:
        observation, info = begun
        for number in range(1, self._options.steps + 1):
            chosen = policy(observation, info)
            chosen = await chosen if inspect.isawaitable(chosen) else chosen
            before = observation
            observation, _, terminated, truncated, info = await vector.step(session, chosen)
            parsed = parse(chosen)
            action = parsed.to_dict() if isinstance(parsed, Action) else {"action": "invalid"}
            record.steps.append(self._record(number, before, action, observation, info["traffic"]))
            if terminated or truncated:
                break

    def _record(
        self,
        number: int,
        before: Observation,
        action: dict[str, Any],
        after: Observation,
        traffic: dict[str, Any],
    ) -> StepRecord:
        missed = tuple(each for each in traffic["missed"] if host_of(each.partition(" ")[2]) in self._hosts)
        gone = f"GET {wire_url(after.url)}" in traffic["missed"]
        element = next((n for n in before.nodes if n.bid and n.bid == action.get("bid")), None)
        return StepRecord(
            number,
            before.url,
            action,
            f'{element.role} "{element.name}"' if element else "",
            requested=traffic["requests"] > traffic["noise"],
            left=bool(traffic["misses"]) and not missed and not traffic["hits"],
            dead=gone or bool(missed and not any(node.bid for node in after.nodes)),
            missed=missed,
        )

    async def _misses(self, session: str) -> list[Missed]:
        ledger = await self._client.ledger(session, closed=True)
        environment = str((await self._client.info()).collections[self._collection])
        lines = [LedgerLine(session, self._collection, environment, entry) for entry in ledger.entries]
        return [each for each in gather_misses(lines) if host_of(each.url) in self._hosts]
