"""Task files are judged when they are read."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from datetime import UTC, datetime

import pytest

from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.formats.warcbench import warc_bench_tasks
from stillweb.env.tasks.load import load_tasks
from stillweb.errors import TaskError

ENTRY = {
    "task_id": "online.7",
    "env": {"data_path": "some_site.wacz", "start_url": "https://a.example/#/x"},
    "goal": "Open the menu",
    "eval": {"eval_type": "js_matcher", "evaluate_scripts": [{"script": "1 == 1"}]},
}


def entry(**changes):
    value = deepcopy(ENTRY)
    for path, new in changes.items():
        *parents, last = path.split("__")
        node = value
        for parent in parents:
            node = node[parent]
        if new is ...:
            del node[last]
        else:
            node[last] = new
    return value


def test_an_entry_becomes_a_task():
    (task,) = warc_bench_tasks([ENTRY], source="x.json")
    assert task.id == "online.7"
    assert task.collection == "some_site"
    assert task.start_url == "https://a.example/#/x"
    assert task.evaluation == Evaluation(EvalKind.JS, "1 == 1")
    assert task.viewport == (1280, 720)
    assert task.timezone == "UTC"
    assert task.start is None
    assert task.source == "x.json#0"


def test_the_zone_is_the_one_that_the_script_names():
    script = "x == 'Thu Jun 06 2024 00:00:00 GMT-0700 (Pacific Daylight Time)'"
    (task,) = warc_bench_tasks([entry(eval__evaluate_scripts=[{"script": script}])])
    assert task.timezone == "America/Los_Angeles"


def test_a_timestamp_sets_the_clock():
    (task,) = warc_bench_tasks([entry(env__timestamp={"seconds": 1743541551, "nanos": 0})])
    assert task.start == datetime(2025, 4, 1, 21, 5, 51, tzinfo=UTC)


def test_one_id_for_several_tasks_is_reported_apart():
    assert [task.id for task in warc_bench_tasks([ENTRY, ENTRY, ENTRY])] == [
        "online.7",
        "online.7~2",
        "online.7~3",
    ]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (entry(task_id=...), "'task_id' must be a text"),
        (entry(goal=" "), "'goal' must be a text"),
        (entry(env=...), "'env' is missing"),
        (entry(env=[]), "env: list where an object"),
        (entry(env__start_url="a.example"), "not an absolute URL"),
        (entry(env__timestamp={"nanos": 1}), "seconds since 1970"),
        (entry(eval__eval_type="llm_judge"), "'llm_judge' is none of js_matcher"),
        (entry(eval__evaluate_scripts=[]), "'evaluate_scripts' must be a list"),
        (entry(eval__evaluate_scripts=[{}]), "'script' must be a text"),
        (entry(eval__eval_type="json_matcher"), "the expected JSON is none"),
        ("text", "str where an object"),
    ],
)
def test_a_bad_entry_is_named_by_file_and_index(bad, words):
    with pytest.raises(TaskError, match=r"tasks\.json#1: ") as caught:
        warc_bench_tasks([ENTRY, bad], source="tasks.json")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not JSON"), ("3", "a int where a list"), ("{}", "stillweb_tasks")]
)
def test_a_bad_file_is_named(tmp_path, text, words):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TaskError, match=words):
        load_tasks(path)
    with pytest.raises(TaskError, match="cannot be read"):
        load_tasks(tmp_path / "none.json")


def test_a_file_is_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([ENTRY]))
    assert load_tasks(path)[0].source == f"{path}#0"


@pytest.mark.shared
def test_all_public_tasks_of_warc_bench_load(shared):
    tasks = load_tasks(shared / "tasks" / "warc_bench_public.json")
    assert len(tasks) == 720
    assert len({task.id for task in tasks}) == 720
    assert Counter(task.evaluation.kind for task in tasks) == {EvalKind.JS: 715, EvalKind.STRING: 5}
    assert Counter(task.collection for task in tasks) == {
        "synthetic_train": 691,
        "svelte_toolbar": 13,
        "svelte_gantt": 12,
        "triwest": 4,
    }
    assert [task.id for task in tasks if task.timezone != "UTC"] == ["online.2"]
    assert [task.id for task in tasks if task.start] == ["online.193"]
