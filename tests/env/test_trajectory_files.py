"""Files of trajectories after a crash, and what is read from them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from stillweb.cli.episodes.rescore import rescore as command
from stillweb.env.tasks.evaluators import AnswerEvaluator
from stillweb.env.tasks.evidence import Evidence, PageQuery, PageQueryResult
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.env.trajectories.events import ConsoleLog, StepEvents, events_line
from stillweb.env.trajectories.rescore import rescore
from stillweb.env.trajectories.trajectory import (
    ContentFiles,
    Trajectory,
    evidence_from_dict,
    evidence_to_dict,
)
from stillweb.errors import TaskError


def test_the_store_keeps_each_once_and_repairs_what_a_crash_left(tmp_path):
    store = ContentFiles(tmp_path)
    digest = store.put(b"abc", "txt")
    path = store.path(digest, "txt")
    assert (store.put(b"abc", "txt"), path.read_bytes()) == (digest, b"abc")
    path.write_bytes(b"")
    assert store.put(b"abc", "txt") == digest
    assert store.get(digest, "txt") == b"abc"
    path.write_bytes(b"abd")
    with pytest.raises(TaskError, match="damaged"):
        store.get(digest, "txt")
    assert [each for each in path.parent.iterdir() if each != path] == []


def test_a_trajectory_that_was_cut_short_is_read_up_to_there(tmp_path):
    header = {
        "format": "stillweb-trajectory",
        "version": 1,
        "name": "x",
        "url": "https://a.test/",
        "task": None,
    }
    path = tmp_path / "trajectory.jsonl"
    path.write_text(json.dumps(header) + '\n{"step": 0}\n{"step": 1, "ra')
    cut = Trajectory.load(path)
    assert (len(cut.steps), cut.end, rescore(cut).outcome) == (1, None, "unscored")
    path.write_text(json.dumps(header) + "\nnonsense\n")
    with pytest.raises(TaskError, match=r"trajectory\.jsonl:2: not JSON"):
        Trajectory.load(path)
    path.write_text("{}\n")
    with pytest.raises(TaskError, match=":1: no header"):
        Trajectory.load(path)


def written(root, name, reward, answer, expected="9"):
    """A trajectory as an episode with a text for an answer leaves it."""
    task = Task(name, "Say it", "https://a.test/", evaluation=AnswerEvaluator(exact=expected))
    header = {
        "format": "stillweb-trajectory",
        "version": 1,
        "name": name,
        "url": "",
        "task": task_to_dict(task),
    }
    evidence = evidence_to_dict(Evidence(answer=answer, url="https://a.test/"), ContentFiles(root))
    end = {"end": "terminated", "reward": reward, "error": "", "reasons": [], "evidence": evidence}
    path = root / name / "trajectory.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, {"step": 0}, end)))
    return path


def run_verify(*arguments):
    ran = CliRunner().invoke(command, [*map(str, arguments)])
    return ran.exit_code, ran.stdout, ran.stderr


def test_the_command_says_which_reward_differs_by_its_exit_status(tmp_path):
    written(tmp_path, "right", 1.0, "9")
    status, out, err = run_verify(tmp_path, "--json")
    assert (status, json.loads(out)["same"]) == (0, 1), err
    wrong = written(tmp_path, "wrong", 1.0, "8")
    status, out, _ = run_verify(tmp_path, "--json")
    rows = {row["task"]: row for row in json.loads(out)["rows"]}
    assert (status, rows["wrong"]["outcome"], rows["wrong"]["rescored"]) == (1, "other", 0.0)
    repaired = tmp_path / "mended.yaml"
    repaired.write_text(
        "stillweb_tasks: 1\ntasks:\n  - {id: wrong, goal: g, start_url: 'https://a.test/', "
        "evaluate: [{type: string, regex: '[89]'}]}\n"
    )
    status, out, _ = run_verify(wrong, "--tasks", repaired, "--json")
    assert (status, json.loads(out)["rows"][0]["rescored"]) == (0, 1.0)
    status, _, err = run_verify(repaired.parent / "wrong" / "trajectory.jsonl", tmp_path / "store")
    assert status == 2  # there is no such path


def without(member):
    def remove(value):
        del value[member]

    return remove


DAMAGE = {
    "no task": (0, without("task"), "unknown", "no task that gave it"),
    "task null": (0, lambda header: header.update(task=None), "unknown", "no task that gave it"),
    "task a text": (0, lambda header: header.update(task="x"), "unreadable", ":1: no task"),
    "evaluation a text": (
        0,
        lambda header: header["task"].update(evaluation="x"),
        "unreadable",
        ":1: no task",
    ),
    "expected a list": (
        0,
        lambda header: header["task"]["evaluation"].update(exact=[1]),
        "unreadable",
        "damaged",
    ),
    "no evidence": (2, without("evidence"), "unknown", "evidence is missing"),
    "reward a text": (2, lambda end: end.update(reward="x"), "unreadable", "'x', which is not a number"),
    "reward not a number": (2, lambda end: end.update(reward=float("nan")), "unreadable", "not a number"),
    "other evidence": (2, lambda end: end.update(evidence=[1]), "unreadable", "evidence cannot be read"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_trajectory_is_reported_in_its_row_and_the_others_are_scored(tmp_path, how):
    written(tmp_path, "right", 1.0, "9")
    path = written(tmp_path, "damaged", 1.0, "9")
    number, damage, outcome, said = DAMAGE[how]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    damage(lines[number])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, err = run_verify(tmp_path, "--json")
    rows = {row["path"].split("/")[-2]: row for row in json.loads(out)["rows"]}
    assert status == 1, err
    assert (rows["right"]["outcome"], rows["damaged"]["outcome"]) == ("same", outcome)
    assert said in rows["damaged"]["detail"]


def test_an_episode_that_ran_out_of_steps_or_had_no_task_is_no_damage(tmp_path):
    path = written(tmp_path, "truncated", 0.0, "9")
    header, reset, end = (json.loads(line) for line in path.read_text().splitlines())
    cut = {"end": "truncated", "reward": 0.0, "error": ""}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, reset, cut)))
    assert rescore(Trajectory.load(path)).outcome == "unscored"
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in ({**header, "task": None}, reset, {**end, "reward": 0.0}))
    )
    assert rescore(Trajectory.load(path)).outcome == "same"
    assert run_verify(tmp_path)[0] == 0


def test_long_texts_of_the_evidence_lie_in_the_store(tmp_path):
    store = ContentFiles(tmp_path)
    page = PageQueryResult(PageQuery(), "x" * 5000 + "\ud83d", True)
    evidence = Evidence(
        "a", "u", (page, PageQueryResult(PageQuery("s"), [1], True)), requests=({"url": "v"},)
    )
    stored = json.loads(json.dumps(evidence_to_dict(evidence, store)))
    assert len(json.dumps(stored)) < 1000
    assert evidence_from_dict(stored, store) == evidence
    with pytest.raises(TaskError, match="cannot be read"):
        evidence_from_dict({"answer": "a"}, store)


def test_a_console_that_floods_is_cut_and_says_by_how_much(tmp_path):
    heard = {}
    console = ConsoleLog(SimpleNamespace(on=heard.__setitem__))
    where = {"url": "https://a.test/app.js", "lineNumber": 4}
    for number in range(250):
        heard["console"](SimpleNamespace(type="log", text=f"{number} " + "x" * 5000, location=where))
    heard["weberror"](SimpleNamespace(error=ValueError("gone")))
    line = json.loads(events_line(1, StepEvents(), console))
    assert len(line["console"]) == 200
    assert line["more_console"] == 51
    assert line["console"][0] == {
        "type": "log",
        "text": ("0 " + "x" * 5000)[:2000],
        "where": "https://a.test/app.js:5",
    }
    heard["weberror"](SimpleNamespace(error=ValueError("gone")))
    line = json.loads(events_line(2, StepEvents(), console))
    assert line["console"] == [{"type": "exception", "text": "gone", "where": ""}]
    assert "more_console" not in line
