"""Our own task file: what it may say, what of it is wrong by file and line, and what its evaluators judge."""

from __future__ import annotations

import json
import pickle

import pytest
from pydantic import TypeAdapter

from stillweb.env.tasks.evaluators import (
    AllEvaluator,
    AnswerEvaluator,
    AnyEvaluator,
    DownloadEvaluator,
    EvalKind,
    Evaluation,
    JsonEvaluator,
    NetworkEvaluator,
    ScriptEvaluator,
    TaskEvaluator,
    UrlEvaluator,
)
from stillweb.env.tasks.evidence import Evidence, PageQuery, PageQueryResult
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.miniwob import miniwob_tasks
from stillweb.env.tasks.native import native_file, native_schema, native_tasks
from stillweb.env.tasks.task import task_from_dict, task_to_dict
from stillweb.errors import TaskError, UsageError

FILE = """\
stillweb_tasks: 1
defaults: {collection: shop, max_steps: 20, viewport: [800, 600]}
tasks:
  - id: lamp
    goal: What does the lamp cost?
    start_url: https://shop.test/lamps
    start: 2024-05-06T07:08:09Z
    evaluate:
      - {type: string, exact: "$9.85"}
      - type: either
        parts:
          - {type: program_html, include: [a, [b, c]]}
          - {type: js, script: "1", expected: [1, 2]}
  - id: look
    goal: Just look
    start_url: https://shop.test/
    collection: other
    evaluate: [{type: string, fuzzy: cheap}]
"""


def test_a_file_is_read(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(FILE)
    lamp, look = load_tasks(path)
    assert (lamp.collection, lamp.max_steps, lamp.viewport, lamp.source) == (
        "shop",
        20,
        (800, 600),
        f"{path}:4",
    )
    assert lamp.start.isoformat() == "2024-05-06T07:08:09+00:00"
    assert isinstance(lamp.evaluation, AllEvaluator)
    answer, either = lamp.evaluation.parts
    assert answer == AnswerEvaluator(exact="$9.85", question="What does the lamp cost?")
    assert isinstance(either, AnyEvaluator)
    assert either.parts[0].include == (("a",), ("b", "c"))
    assert either.parts[1] == ScriptEvaluator(script="1", expected=[1, 2])
    assert (look.collection, look.needs) == ("other", {"judge"})
    for each in (lamp, look):
        stored = json.loads(json.dumps(each.evaluation.model_dump()))
        assert TypeAdapter(TaskEvaluator).validate_python(stored) == each.evaluation


def test_json_is_read_as_well_tabs_and_all(tmp_path):
    path = tmp_path / "tasks.json"
    tasks = {
        "stillweb_tasks": 1,
        "tasks": [{"id": "a", "goal": "g \U0001f600", "start_url": "https://a.test"}],
    }
    path.write_text(json.dumps(tasks, indent="\t"))
    (task,) = load_tasks(path)
    assert (task.goal, task.evaluation, task.source) == ("g \U0001f600", None, f"{path}:4")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stillweb_tasks: 1", "stillweb_tasks: 2", ":1: stillweb_tasks"),
        ("start_url: https://shop.test/lamps", "start_url: shop.test", ":6: tasks.0.start_url"),
        ("start_url: https://shop.test/lamps", "starturl: https://shop.test", ":6: tasks.0.starturl"),
        ('{type: string, exact: "$9.85"}', "{type: string}", ":9: .*needs one of exact"),
        ('{type: string, exact: "$9.85"}', "{type: strings}", ":9: .*strings"),
        ('{type: string, exact: "$9.85"}', '{type: string, regex: "("}', ":9: .*no regular expression"),
        ('script: "1"', 'scrip: "1"', ":13: .*scrip: there is no such field"),
        (
            '{type: string, exact: "$9.85"}',
            "{type: strng}",
            ":9: .*unknown type 'strng'; use one of 'string',",
        ),
        ("expected: [1, 2]", "expected: 2024-01-01", ":13: .*no JSON"),
        ("- id: look", "- id: lamp", ":14: a second task with the id 'lamp'"),
        (
            '{type: string, exact: "$9.85"}',
            "{type: string, regex: '(?=a)b'}",
            ":9: .*no regular expression: invalid perl operator.*RE2 has no look-around",
        ),
        ("    goal: Just look", "   goal: Just look", ":15: not YAML"),
        ("max_steps: 20", "max_steps: -1", ":2: defaults.max_steps"),
        ("start: 2024-05-06T07:08:09Z", "start: 2024-13-45", ":7: not YAML: month must be in"),
        ("    goal: Just look", "    goal: Look\n    goal: Just look", ":16: not YAML: a second 'goal'"),
        ("stillweb_tasks: 1", "&all\nstillweb_tasks: *all", ":1: not YAML: it holds an alias of itself"),
        ("[{type: string, fuzzy: cheap}]", "[]", ":18: tasks.1.evaluate: the list is empty"),
        (
            '{type: string, exact: "$9.85"}',
            "{type: network, url: x, at_least: 5, at_most: 1}",
            ":9: .*at_most is 1, which is less than at_least, 5",
        ),
    ],
)
def test_what_is_wrong_is_reported_by_its_line(old, new, said):
    assert old in FILE
    with pytest.raises(TaskError, match=f"tasks.yaml{said}"):
        native_tasks(FILE.replace(old, new), source="tasks.yaml")


def test_a_json_file_is_judged_alike(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text('{"stillweb_tasks": 1,\n"tasks": [],\n"tasks": []}')
    with pytest.raises(TaskError, match=r"tasks\.json:3: .*a second 'tasks'"):
        load_tasks(str(path))
    path.write_text("[" * 100_000)
    with pytest.raises(TaskError, match="not JSON"):
        load_tasks(str(path))


def test_all_that_is_wrong_is_reported_at_once():
    with pytest.raises(TaskError) as caught:
        native_tasks(FILE.replace("goal:", "gaol:"), source="t.yaml")
    assert str(caught.value).count("\n") == 3  # two are missing, two are unknown


def test_the_schema_names_every_evaluator():
    schema = json.dumps(native_schema())
    for kind in (
        "string",
        "json",
        "url",
        "js",
        "program_html",
        "network",
        "download",
        "site",
        "either",
        "every",
    ):
        assert f'"{kind}"' in schema


REQUESTS = (
    {"method": "GET", "url": "https://a.test/s?q=[x]", "status": 200, "tier": "exact"},
    {"method": "POST", "url": "https://a.test/cart", "status": 302, "tier": "exact"},
    {"method": "POST", "url": "https://a.test/lost", "status": 404, "tier": "miss"},
)
FILES = ({"filename": "a.csv", "sha256": "ab" * 32, "size": 10, "url": "u", "error": ""},)


@pytest.mark.parametrize(
    ("evaluator", "evidence", "reward"),
    [
        (NetworkEvaluator(url="https://a.test/s?q=[x]"), {"requests": REQUESTS}, 1.0),
        (NetworkEvaluator(url="https://a.test/*", method="POST"), {"requests": REQUESTS}, 1.0),
        (NetworkEvaluator(url="https://a.test/*", at_most=1), {"requests": REQUESTS}, 0.0),
        (NetworkEvaluator(url="*/cart", status=200), {"requests": REQUESTS}, 0.0),
        (NetworkEvaluator(url="*/lost"), {"requests": REQUESTS}, 0.0),
        (NetworkEvaluator(url="*/other", at_least=0, at_most=0), {"requests": REQUESTS}, 1.0),
        (DownloadEvaluator(filename="*.csv", sha256="AB" * 32), {"downloads": FILES}, 1.0),
        (DownloadEvaluator(filename="*.csv", size_at_least=11), {"downloads": FILES}, 0.0),
        (DownloadEvaluator(), {}, 0.0),
        (JsonEvaluator(expected={"a": [1, 2.0]}), {"answer": '{"a": [1.0, 2]}'}, 1.0),
        (JsonEvaluator(expected=[1, 2]), {"answer": "[2, 1]"}, 0.0),
        (JsonEvaluator(expected=[1, 2], unordered=True), {"answer": "[2, 1]"}, 1.0),
        (JsonEvaluator(expected=1), {"answer": "true"}, 0.0),
        (JsonEvaluator(expected=1), {"answer": "one"}, 0.0),
        (UrlEvaluator(exact=("https://a.test/",)), {"url": "https://a.test/"}, 1.0),
        (UrlEvaluator(exact=("https://a.test/",)), {"url": "https://a.test/x"}, 0.0),
        (UrlEvaluator(regex=r"https://a\.test/\d+"), {"url": "https://a.test/42"}, 1.0),
        (AnswerEvaluator(regex=r"\d+"), {"answer": " 42 "}, 1.0),
        (AnswerEvaluator(regex=r"\d+"), {"answer": "42!"}, 0.0),
        (
            ScriptEvaluator(script="s", expected=2),
            {"readings": (PageQueryResult(PageQuery("s"), 2.0, True),)},
            1.0,
        ),
        (
            ScriptEvaluator(script="s", expected=False),
            {"readings": (PageQueryResult(PageQuery("s"), False, False),)},
            1.0,
        ),
        (ScriptEvaluator(script="s"), {"readings": (PageQueryResult(PageQuery("s"), [], False),)}, 0.0),
        (
            ScriptEvaluator(script="s", expected=False),
            {"readings": (PageQueryResult(PageQuery("s"), threw="E"),)},
            0.0,
        ),
    ],
)
def test_evaluators(evaluator, evidence, reward):
    assert evaluator.score(Evidence(**evidence)).reward == reward


def test_a_regular_expression_takes_time_linear_in_the_answer():
    evaluator = AnswerEvaluator(regex="(a+)+(a|aa)*(.*a){20}b")
    assert evaluator.score(Evidence(answer="a" * 50_000 + "\ud800")).reward == 0.0


# As versions before the evaluators became pydantic models wrote tasks into trajectories.
EARLIER = {
    "id": "t",
    "goal": "g",
    "start_url": "https://a.test/",
    "collection": "",
    "evaluation": {
        "type": "every",
        "parts": [
            {"kind": "js", "expected": "document.title", "type": "warc_bench"},
            {"type": "program_html", "url": "", "locator": "", "prepare": [], "exact": None}
            | {"include": [["a", "b"], ["c"]]},
            {"type": "string", "exact": None, "include": [], "regex": None, "fuzzy": ["x"]}
            | {"unachievable": None, "question": "q"},
            {"type": "unsupported", "reason": "r", "need": "site_api"},
            {"type": "js", "script": "1", "expected": [1, {"a": None}], "url": ""},
        ],
    },
    "start": "2024-05-06T07:08:09+00:00",
    "timezone": "",
    "viewport": [1280, 720],
    "seed": None,
    "max_steps": 0,
    "source": "x.json#0",
    "tabs": ["https://a.test/2"],
    "setup": [],
    "goal_script": "",
}


def test_tasks_of_earlier_trajectories_are_read_and_written_alike():
    task = task_from_dict(EARLIER, "header")
    assert task.evaluation.parts[0] == Evaluation(EvalKind.JS, "document.title")
    assert task.evaluation.parts[1].include == (("a", "b"), ("c",))
    assert (task.viewport, task.tabs) == ((1280, 720), ("https://a.test/2",))
    assert task_to_dict(task) == EARLIER
    assert pickle.loads(pickle.dumps(task)) == task
    (again,) = native_tasks(json.dumps(native_file([task])), source="t.json")
    assert again.evaluation == task.evaluation


def test_what_no_one_read_is_no_reward():
    with pytest.raises(TaskError, match="does not hold 's'"):
        ScriptEvaluator(script="s").score(Evidence())
    with pytest.raises(TaskError, match="requests"):
        NetworkEvaluator(url="*").score(Evidence())


def test_miniwob_pages_are_tasks_and_stand_in_a_file():
    urls = [
        "https://g.test/miniwob/click-test.html",
        "https://g.test/core/core.js",
        "https://g.test/miniwob/",
    ]
    (task,) = miniwob_tasks(urls, collection="games", seed=4, limit_ms=5)
    assert (task.id, task.collection, task.seed) == ("miniwob.click-test", "games", 4)
    assert "EPISODE_MAX_TIME = 5;" in task.setup[0]
    (again,) = native_tasks(json.dumps(native_file([task])), source="f.json")
    assert (again.evaluation, again.setup, again.goal_script) == (
        task.evaluation,
        task.setup,
        task.goal_script,
    )
    with pytest.raises(UsageError, match="no page of MiniWoB"):
        miniwob_tasks(["https://g.test/"])
