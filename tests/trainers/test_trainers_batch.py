"""A batch's folder loses nothing and counts nothing twice, wherever the program is killed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repetitions import times
from stillweb.env.tasks.evaluators import ScriptEvaluator
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.env.trajectories.trajectory import FILE, ContentFiles, Trajectory
from stillweb.env.vector.rollout import Outcome, Rollout
from stillweb.errors import TaskError, UsageError
from stillweb.trainers.batch.folder import BatchFolder, folder_name
from stillweb.trainers.batch.results import Result, summary_of
from stillweb.trainers.batch.runner import BatchOptions, planned_episodes, select_tasks

HOW = BatchOptions().to_json() | {"agent": "random", "agent_options": {}, "seed": 0}


def task(name, *, url="https://shop.test/", collection="shop"):
    return Task(name, "", url, collection)


def rollout(name, number=0, *, outcome=Outcome.OK, reward=1.0, episodes=("e1",)):
    ok = outcome is Outcome.OK
    errors = () if ok else ("it broke",) * len(episodes)
    return Rollout(
        task(name), outcome, reward if ok else None, terminated=ok, number=number, episodes=episodes,
        errors=errors, attempts=len(episodes),
    )  # fmt: skip


def trajectory(root, episode, *, end=True):
    """Write what an env leaves of an episode."""
    digest = ContentFiles(root).put(episode.encode(), "txt")
    header = {"format": "stillweb-trajectory", "version": 1, "name": episode}
    lines = [header, {"step": 0, "digests": {"axtree": digest}}] + [
        {"end": "terminated", "reward": 1.0}
    ] * end
    (root / episode).mkdir(parents=True)
    (root / episode / FILE).write_text("".join(json.dumps(each) + "\n" for each in lines))


# --- the folder ------------------------------------------------------------------------------------


class Crash(BaseException):
    """As a kill: no part of the program continues."""


def crash_at(monkeypatch, number):
    """Have the so-manieth change of a name in a file system end the program before it is done."""
    count = 0

    def counted(real):
        def call(*given, **named):
            nonlocal count
            count += 1
            if count == number:
                raise Crash
            return real(*given, **named)

        return call

    for name in ("rename", "replace", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


EPISODES = (
    ("lamp", 0, ("a1",)),
    ("lamp", 1, ("b1", "", "b3")),
    ("../kettle", 0, ("",)),
)


@pytest.mark.parametrize("number", range(1, 24))
def test_a_kill_at_any_moment_leaves_what_has_ended(tmp_path, number):
    stored = []
    with pytest.MonkeyPatch.context() as patched, suppress(Crash), BatchFolder.open(tmp_path, HOW) as folder:
        for episode in ("a1", "b1", "b3", "under-way"):
            trajectory(tmp_path, episode, end=episode != "under-way")
        crash_at(patched, number)
        for name, n, episodes in EPISODES:
            outcome = Outcome.OK if any(episodes) else Outcome.INFRA_ERROR
            stored.append((name, n))
            folder.keep(rollout(name, n, outcome=outcome, episodes=episodes))
    with BatchFolder.open(tmp_path, HOW, go_on=True) as folder:
        assert set(folder.results) == set(stored)
        for key, result in folder.results.items():
            home = folder.folder_of(result)
            assert Result.parse(json.loads((home / "result.json").read_text()), "") == result
            for at, episode in zip(
                (home / "failed-1", home), (result.episodes[0], result.episodes[-1]), strict=True
            ):
                if episode and (at == home or len(result.episodes) > 1):
                    assert Trajectory.load(at).observed(0, "axtree") == episode.encode()
            assert home.parent.parent == tmp_path / "tasks", key
    assert (tmp_path / "cut-short" / "under-way" / FILE).exists()
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(stored)


def test_what_is_played_again_stays_beside_what_was_there(tmp_path):
    with BatchFolder.open(tmp_path, HOW) as folder:
        for episode in ("a1", "b1", "c1"):
            trajectory(tmp_path, episode)
        folder.keep(rollout("lamp", outcome=Outcome.AGENT_ERROR, episodes=("a1",)))
        folder.keep(rollout("lamp", outcome=Outcome.TASK_ERROR, episodes=("b1",)))
        folder.keep(rollout("lamp", reward=0.5, episodes=("c1",)))
        (result,) = folder.results.values()
    assert (result.outcome, result.reward) == ("ok", 0.5)
    names = {
        path.name: json.loads((path / "result.json").read_text())
        for path in (tmp_path / "tasks/lamp").iterdir()
    }
    assert {name: stored["outcome"] for name, stored in names.items()} == {
        "0": "ok",
        "0-before-1": "agent_error",
        "0-before-2": "task_error",
    }
    assert Trajectory.load(tmp_path / "tasks/lamp/0-before-1").observed(0, "axtree") == b"a1"


def test_a_torn_line_is_no_result_and_the_next_one_is_whole(tmp_path):
    with BatchFolder.open(tmp_path, HOW) as folder:
        folder.keep(rollout("lamp", 0))
        folder.keep(rollout("lamp", 1))
    log = tmp_path / "results.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    with BatchFolder.open(tmp_path, HOW, go_on=True) as folder:
        assert list(folder.results) == [("lamp", 0)]
        folder.keep(rollout("lamp", 2))
    with BatchFolder.open(tmp_path, HOW, go_on=True) as folder:
        assert list(folder.results) == [("lamp", 0), ("lamp", 2)]


def test_a_folder_is_one_programs_and_of_one_way_to_play(tmp_path):
    with BatchFolder.open(tmp_path, HOW) as folder:
        with pytest.raises(UsageError, match="another rollout"), BatchFolder.open(tmp_path, HOW):
            pass
        folder.keep(rollout("lamp"))
    with pytest.raises(UsageError, match="holds 1 results"), BatchFolder.open(tmp_path, HOW):
        pass
    other = HOW | {"level": "exact", "seed": 4}
    with (
        pytest.raises(UsageError, match="other options: seed 0, level"),
        BatchFolder.open(tmp_path, other, go_on=True),
    ):
        pass
    with BatchFolder.open(tmp_path, HOW | {"episodes": 9, "max_concurrent": 2}, go_on=True) as folder:
        assert folder.results


def test_a_failure_with_a_reward_is_refused_where_it_stands(tmp_path):
    (tmp_path / "results.jsonl").write_text(
        json.dumps({"task": "a", "number": 0, "outcome": "infra_error", "reward": 0.0}) + "\n"
    )
    with pytest.raises(TaskError, match=r"results.jsonl:1: .*infra_error"), BatchFolder.open(tmp_path, HOW):
        pass
    with pytest.raises(TaskError):
        Result("a", 0, "ok", None)


@settings(max_examples=times(30, 5000))
@given(st.sets(st.text(max_size=200), min_size=2, max_size=12))
def test_names_of_folders_are_names_and_differ_as_ids_do(ids):
    names = {folder_name(name) for name in ids if name}
    assert len(names) == len({name for name in ids if name})
    assert not [
        name for name in names if "/" in name or name.startswith(".") or len(name) > 120 or "\0" in name
    ]


def test_a_stored_task_is_read_where_no_evaluator_was_imported_before():
    task = task_to_dict(Task("a", "", "https://shop.test/", evaluation=ScriptEvaluator(script="1")))
    program = f"from stillweb.env.tasks.task import task_from_dict; task_from_dict({task!r}, '')"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- what is played --------------------------------------------------------------------------------


def result(name, number=0, reward=1.0, outcome="ok"):
    return Result(name, number, outcome, reward if outcome == "ok" else None)


@pytest.mark.parametrize(
    ("missing", "failed", "played"),
    [
        (True, False, [("b", 1)]),
        (False, True, [("a", 1)]),
        (True, True, [("a", 1), ("b", 1)]),
    ],
)
def test_what_is_gone_on_with(missing, failed, played):
    rows = [result("a"), result("a", 1, outcome="infra_error"), result("b", reward=0.0)]
    found = planned_episodes(
        [task("a"), task("b")],
        {row.key: row for row in rows},
        BatchOptions(episodes=2, missing=missing, failed=failed, page_seeds=(5, 6, 7)),
    )
    assert [(each.task.id, each.number) for each in found] == played
    assert {each.seed for each in found} == {6}


def test_tasks_with_one_id_cannot_be_reported_apart():
    with pytest.raises(UsageError, match="the same id"):
        planned_episodes([task("a"), task("a")], {}, BatchOptions())
    for wrong in ({"episodes": 0}, {"retries": -1}, {"observe": ("smell",)}):
        with pytest.raises(UsageError):
            BatchOptions(**wrong)


TASKS = [
    *(task(f"online.{n}") for n in (1, 7, 12)),
    *(task(f"webarena.{n}", collection="", url="https://wiki.test/x") for n in (7, 8)),
    task("12"),
]


@pytest.mark.parametrize(
    ("ids", "sites", "found"),
    [
        ((), (), [t.id for t in TASKS]),
        (("7",), (), ["online.7", "webarena.7"]),
        (("8-12", "online.1"), (), ["online.1", "online.12", "webarena.8", "12"]),
        (("online.*",), (), ["online.1", "online.7", "online.12"]),
        ((), ("wiki.test",), ["webarena.7", "webarena.8"]),
        (("7",), ("shop",), ["online.7"]),
    ],
)
def test_tasks_are_chosen(ids, sites, found):
    assert [each.id for each in select_tasks(TASKS, ids, sites)] == found


@pytest.mark.parametrize(
    ("ids", "sites"), [(("onlin.7",), ()), (("99",), ()), ((), ("shops",)), (("8",), ("shop",))]
)
def test_what_chooses_nothing_is_refused(ids, sites):
    with pytest.raises(UsageError, match=(ids or sites)[0]) as raised:
        select_tasks(TASKS, ids, sites)
    assert raised.value.hint.startswith("similar names: ")


# --- what it comes to ------------------------------------------------------------------------------

results = st.builds(
    lambda name, number, outcome, reward: result(name, number, reward, outcome.value),
    st.sampled_from("abc"),
    st.integers(0, 5),
    st.sampled_from(Outcome),
    st.sampled_from([0.0, 0.5, 1.0]),
)


@given(st.lists(results, max_size=30, unique_by=lambda row: row.key))
def test_a_summary_counts_rewards_of_those_that_have_one(rows):
    summary = summary_of(rows)
    scored = [row.reward for row in rows if row.outcome == "ok"]
    assert summary["episodes"] == len(rows) == sum(summary["outcomes"].values())
    assert (summary["success"]["count"], summary["success"]["of"]) == (scored.count(1.0), len(scored))
    assert 0.0 <= summary["success"]["low"] <= summary["success"]["high"] <= 1.0
    if scored:
        assert summary["success"]["low"] <= summary["success"]["share"] <= summary["success"]["high"]
        assert math.isclose(summary["reward"], sum(scored) / len(scored), abs_tol=1e-6)
    else:
        assert summary["reward"] is summary["success"]["share"] is None
    by_task = [reward for each in summary["tasks"].values() for reward in each["rewards"]]
    assert by_task.count(None) == len(rows) - len(scored)
    assert summary_of(reversed(rows)) == summary
    assert summary_of(rows, success=0.5)["success"]["count"] == len([r for r in scored if r >= 0.5])
