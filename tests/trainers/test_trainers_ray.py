"""Episodes on a real Ray cluster of two workers: rewards as known, whichever of them is killed."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from families import below, gone
from small_site import ORIGIN, build

from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.publish import PackRemote
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.env.env import Env
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task
from stillweb.env.vector.rollout import Outcome, Planned, RolloutOptions
from stillweb.env.vector.vector import VectorOptions
from stillweb.errors import CollectionNotFound, InfraError, ResetNeeded, UsageError
from stillweb.polling import poll
from stillweb.replay.server.server import ReplayOptions, serve

ray = pytest.importorskip("ray")

from ray_agents import PLACE, clicks  # noqa: E402

from stillweb.trainers.episodes.source import EpisodeSource  # noqa: E402
from stillweb.trainers.ray.rollouts import OBJECTS, RayOptions, RayRollouts, WorkerPlacement  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "ray_rollout.py"
ON_SECOND = Evaluation(EvalKind.JS, "document.title === 'Second'")
MAX = EnvOptions(max_steps=20)
WARC_BENCH = "synthetic_train"


def task(name, **given):
    return Task(name, "", ORIGIN + given.pop("path", "/"), collection="small", evaluation=ON_SECOND, **given)


def all_started(rollouts):
    """Return the workers by their numbers, when the replacements have started."""
    assert asyncio.run(poll(lambda: all("pid" in each for each in rollouts.workers()), timeout=90))
    return {each["number"]: each for each in rollouts.workers()}


@pytest.fixture(scope="module")
def published(tmp_path_factory, request):
    """The small site as a pack at a URL, and an archive of WARC-Bench where that is."""
    root = tmp_path_factory.mktemp("ray")
    collection = build(root / "collections")
    url = f"file://{root}/share"
    packs = {"small": PackRemote(url).push(collection.pack, "small").environment_id}
    with suppress(pytest.skip.Exception):
        archive = request.getfixturevalue("shared") / "archives" / f"{WARC_BENCH}.wacz"
        import_files([archive], root / "collections", WARC_BENCH)
        bench = Collection.open(root / "collections", WARC_BENCH)
        seal(bench)
        packs[WARC_BENCH] = PackRemote(url).push(bench.pack).environment_id
    return SimpleNamespace(root=root, url=url, collection=collection, packs={**packs, "small": "small"})


@pytest.fixture(scope="module")
def cluster(published):
    """A cluster of this machine; its sockets want a short path."""
    folder = tempfile.mkdtemp(prefix="sw-ray-")
    pid_files = published.root / "pid_files"
    pid_files.mkdir()
    folders = [str(HERE), str(HERE.parents[1] / "bench"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    with pytest.MonkeyPatch.context() as patch:
        # Not by a runtime_env, which keeps Ray from using the workers that it starts ahead.
        patch.setenv(PLACE, str(pid_files))
        patch.setenv("PYTHONPATH", path)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
    yield SimpleNamespace(pid_files=pid_files, address=ray.get_runtime_context().gcs_address)
    with warnings.catch_warnings():  # Ray does not wait for the programs that it started
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rollouts(cluster, published):
    options = RayOptions(
        level="exact",
        observe=("axtree", "screenshot"),
        keep=OBJECTS,
        store=published.root / "store",
        vector=VectorOptions(env=MAX),
        placement=WorkerPlacement(num_cpus=0.5),
    )
    with RayRollouts(2, 2, packs=published.packs, remote=published.url, options=options) as opened:
        yield opened
        pids = [pid for each in all_started(opened).values() for pid in below(each["pid"])]
    assert len(pids) > 10
    assert asyncio.run(gone(pids))


TASKS = [
    *(task(f"one-{n}-1") for n in range(4)),
    task("none-0"),
    task("back-2"),
    task("absent-1", path="/absent"),
    task("raise-1"),
]
REWARDS = {f"one-{n}-1": 1.0 for n in range(4)} | {
    "none-0": 0.0,
    "back-2": 0.0,
    "absent-1": None,
    "raise-1": None,
}


def test_episodes_are_played_to_known_rewards(rollouts, published, tmp_path):
    ended = {}
    for episode in rollouts.rollout(clicks, TASKS, RolloutOptions(attempts=2)):
        ended[episode.rollout.task.id] = episode
        assert max(each["under_way"] for each in rollouts.workers()) <= 2
    assert {name: each.rollout.reward for name, each in ended.items()} == REWARDS
    outcomes = {name: each.rollout.outcome for name, each in ended.items()}
    assert outcomes["absent-1"] is Outcome.TASK_ERROR
    assert outcomes["raise-1"] is Outcome.AGENT_ERROR
    assert {each.workers for each in ended.values()} <= {(0,), (1,)}
    with Pack.open(published.collection.pack) as pack:
        assert {each.rollout.info["environment_id"] for each in ended.values() if each.rollout.info} == {
            pack.environment_id
        }
    one = ended["one-0-1"]
    picture = one.stored.picture(one.rollout.steps[0].digests["screenshot"])
    assert picture.startswith(b"\x89PNG")
    trajectory = one.stored.trajectory(tmp_path)
    assert trajectory.end["reward"] == 1.0
    assert trajectory.observed(1, "screenshot") == picture


def digests(episode):
    return [episode.rollout.start, *(step.digests for step in episode.rollout.steps)]


async def test_what_is_seen_is_what_a_plain_env_sees(rollouts, published, ca, tmp_path):
    tasks = [task("one-plain-1", seed=3), task("back-plain-2", seed=3)]
    alone = {}
    async with (
        serve([published.collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        Env(server.url, level="exact", observe=("axtree", "screenshot"), options=MAX) as env,
    ):
        for each in tasks:
            observation, info = await env.reset(task=each)
            act, seen, over = clicks(each), [observation.digests], False
            while not over:
                observation, _, terminated, truncated, info = await env.step(act(observation, info))
                seen.append(observation.digests)
                over = terminated or truncated
            alone[each.id] = seen
        placement = WorkerPlacement(num_cpus=0.1)
        options = RayOptions(
            level="exact", observe=("axtree", "screenshot"), keep=tmp_path, placement=placement
        )
        async with RayRollouts(1, 1, proxy=server.url, options=options) as others:
            async for episode in others.rollout(clicks, tasks):
                assert digests(episode) == alone[episode.rollout.task.id]
                trajectory = episode.stored.trajectory()
                assert trajectory.path.is_relative_to(tmp_path)
                assert episode.stored.picture(digests(episode)[0]["screenshot"]).startswith(b"\x89PNG")
    played = [Planned(each, number) for each in tasks for number in range(2)]
    count = 0
    async for episode in rollouts.rollout("ray_agents:clicks", played):
        assert digests(episode) == alone[episode.rollout.task.id]
        count += 1
    assert count == 4


@pytest.mark.parametrize("how", ["ray.kill", "SIGKILL"])
def test_a_worker_that_is_killed_costs_its_episodes_an_attempt_and_others_nothing(rollouts, cluster, how):
    name = f"held-{how}-1"
    tasks = [task(name), *(task(f"one-{how}-{n}-1") for n in range(3))]
    before = all_started(rollouts)

    async def kill():
        await poll((cluster.pid_files / name).exists, timeout=120)
        pid = int((cluster.pid_files / name).read_text())
        worker = next(each for each in before.values() if each["pid"] == pid)
        family = below(pid)
        if how == "SIGKILL":
            os.kill(pid, signal.SIGKILL)
        else:
            ray.kill(rollouts._pool.slots[worker["number"]].handle)
        return worker["number"], family

    with ThreadPoolExecutor(1) as beside:  # the held episode may be the last one
        killing = beside.submit(asyncio.run, kill())
        played = rollouts.rollout("ray_agents:held", tasks, RolloutOptions(attempts=3))
        ended = {episode.rollout.task.id: episode for episode in played}
        killed, family = killing.result()
    assert {name: each.rollout.reward for name, each in ended.items()} == {each.id: 1.0 for each in tasks}
    first = ended[name]
    assert first.workers == (killed, 1 - killed)  # tried again on the other
    assert first.rollout.attempts == 2
    assert "a worker was lost" in first.rollout.errors[0]
    for each in ended.values():
        assert each.rollout.attempts == 1 or killed in each.workers
        assert each.stored.picture(digests(each)[-1]["screenshot"])  # it outlives its worker
    assert len(family) > 3
    assert asyncio.run(gone(family))
    assert rollouts.workers()[killed]["lost"] == before[killed]["lost"] + 1
    again = [each.rollout.reward for each in rollouts.rollout(clicks, [task(f"one-{n}-1") for n in range(2)])]
    assert again == [1.0] * 2
    now = all_started(rollouts)
    assert now[1 - killed]["pid"] == before[1 - killed]["pid"]
    assert now[killed]["pid"] != before[killed]["pid"]


def test_a_session_for_ones_own_loop_outlives_its_worker(rollouts):
    async def provider():
        return rollouts

    source = EpisodeSource(provider)

    async def play(lease):
        turn = await lease.reset(task=task("one"))
        [picture] = turn.pictures
        assert (await lease.picture(picture)).startswith(b"\x89PNG")
        link = next(line for line in turn.observation["axtree"].splitlines() if "link 'Second'" in line)
        turn = await lease.step({"action": "click", "bid": link.strip().partition("]")[0].strip("[")})
        assert (await lease.observe("text"))["text"]
        return await lease.step({"action": "terminate"})

    lease = source.run(source.lease("me"))
    turn = source.run(play(lease))
    assert (turn.reward, turn.terminated) == (1.0, True)
    ray.kill(lease._handle)
    with pytest.raises(InfraError, match="a worker was lost"):
        source.run(lease.step({"action": "terminate"}))
    with pytest.raises(ResetNeeded):
        source.run(lease.observe("text"))
    assert source.run(play(lease)).reward == 1.0
    source.run(lease.release())
    source.run(lease.release())
    assert [each["under_way"] for each in rollouts.workers()] == [0, 0]


def test_tasks_of_warc_bench_are_solved_on_their_pack(rollouts, shared):
    listed = load_tasks(shared / "tasks" / "warc_bench_public.json")
    tasks = [each for each in listed if each.id in ("online_train.942", "online_train.85")]
    played = [Planned(each, 0) for each in tasks]
    ended = [episode.rollout for episode in rollouts.rollout("ray_agents:solver", played)]
    assert [each.reward for each in ended] == [1.0] * 2
    assert {each.info["collection"] for each in ended} == {WARC_BENCH}


def test_tasks_are_read_lazily_and_who_leaves_off_leaves_what_runs(rollouts):
    read = []

    def endlessly():
        while True:
            read.append(task(f"one-{len(read)}-1"))
            yield read[-1]

    for episode in rollouts.rollout(clicks, endlessly()):
        assert episode.rollout.reward == 1.0
        break
    assert len(read) < 100
    assert [each["under_way"] for each in rollouts.workers()] == [0, 0]
    assert len(list(rollouts.rollout(clicks, [task("one-1")]))) == 1


def test_nothing_waits_for_a_worker_that_finds_no_place(rollouts):
    pool = rollouts._pool
    slot, placement = pool.slots[0], pool._placement
    pool._placement = replace(placement, resources={"nowhere": 1})  # as if its machine does not come back
    try:
        pool.replace(slot, slot.handle)
        tasks = [task(f"one-{n}-1") for n in range(5)]
        ended = list(rollouts.rollout(clicks, tasks))
    finally:
        pool._placement = placement
        pool.replace(slot, slot.handle)
    assert [each.rollout.reward for each in ended] == [1.0] * 5
    assert {each.workers for each in ended} == {(1,)}


def test_what_cannot_be_is_reported_before_anything_is_played(cluster, published):
    with pytest.raises(UsageError, match="name one of packs and proxy"):
        RayRollouts(1, 1)
    with (
        pytest.raises(UsageError, match="the pack name 'small' needs a remote"),
        RayRollouts(1, 1, packs={"s": "small"}),
    ):
        pass
    anywhere = RayOptions(placement=WorkerPlacement(num_cpus=0), store=published.root / "store")
    absent = RayRollouts(1, 1, packs={"s": "0" * 64}, remote=published.url, options=anywhere)
    with pytest.raises(CollectionNotFound, match="is not at"), absent:
        pass
    placement = WorkerPlacement(resources={"browsers": 1}, start_seconds=0.5)
    nowhere = RayRollouts(1, 1, proxy="http://127.0.0.1:9", options=RayOptions(placement=placement))
    with pytest.raises(InfraError, match="1 of 1 workers did not start"), nowhere:
        pass
    with pytest.raises(UsageError, match="were not started"):
        nowhere.rollout(clicks, [])


TASKS_FILE = f"""
stillweb_tasks: 1
defaults: {{collection: small, max_steps: 1}}
tasks:
  - id: second
    goal: Open the second page.
    start_url: {ORIGIN}/
    evaluate: [{{type: url, exact: "{ORIGIN}/second"}}]
"""


def test_the_example_runs_as_it_is_written(cluster, published, tmp_path):
    (tmp_path / "tasks.yaml").write_text(TASKS_FILE)
    run = subprocess.run(
        [sys.executable, EXAMPLE, published.url, "small", "tasks.yaml", "1", "3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=150,
        env={**os.environ, "RAY_ADDRESS": cluster.address, "STILLWEB_PACK_STORE": str(tmp_path / "store")},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    first, counts, last = run.stdout.splitlines()
    assert first.startswith("small is ")
    assert counts.startswith("second: ok, reward ")
    assert counts.endswith(": 3 episodes")
    assert Path(tmp_path, last.rpartition(": ")[2]).is_file()
