"""The project's own task file: YAML or JSON, validated as a whole, with errors by file and line.

    stillweb_tasks: 1
    defaults: {collection: shop, max_steps: 20}
    tasks:
      - id: cheapest
        goal: What does the cheapest lamp cost?
        start_url: https://shop.example/lamps
        evaluate:
          - {type: string, exact: "$9.85"}
          - {type: network, url: "https://shop.example/search?*", method: GET}

`evaluate` is a list; the reward is the product. Each entry is an evaluator (`tasks/evaluators.py`). A single
text may replace a list of texts. An unknown field is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from stillweb.env.tasks.evaluators import AllEvaluator, AnswerEvaluator, TaskEvaluator
from stillweb.env.tasks.evidence import Texts
from stillweb.env.tasks.task import Task, TaskOrigin, problem_of, task_to_dict
from stillweb.errors import TaskError

VERSION = 1


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("the list is empty; leave it out for a task that is not scored")
    return value


_Web = Annotated[str, Field(pattern="^https?://")]
_Pixels = Annotated[int, Field(gt=0)]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Defaults(_FileModel):
    collection: str = ""
    start: datetime | None = None
    timezone: str = ""
    viewport: tuple[_Pixels, _Pixels] | None = None
    seed: int | None = None
    max_steps: Annotated[int, Field(ge=0)] = 0
    on_write: Literal["miss", "accept"] = "miss"


class _TaskEntry(_Defaults):
    id: Annotated[str, Field(min_length=1)]
    goal: Annotated[str, Field(min_length=1)]
    start_url: _Web
    evaluate: Annotated[tuple[TaskEvaluator, ...], AfterValidator(_not_empty)] = ()
    tabs: tuple[_Web, ...] = ()
    setup: Texts = ()
    goal_script: str = ""
    origin: TaskOrigin | None = None


class _TaskFile(_FileModel):
    stillweb_tasks: Literal[1]
    defaults: _Defaults = _Defaults()
    tasks: list[_TaskEntry]


@cache
def native_schema() -> dict[str, Any]:
    """Return the JSON schema of a task file, for editors."""
    return _TaskFile.model_json_schema()


def native_tasks(text: str, *, source: str) -> list[Task]:
    """Read the tasks of a task file's text.

    Raises:
        TaskError: naming file and line of every error.
    """
    loaded, lines = _load(text, source)
    try:
        file = _TaskFile.model_validate(loaded)
    except ValidationError as error:
        problems = [f"{source}:{_line(lines, each['loc'])}: {problem_of(each)}" for each in error.errors()]
        raise TaskError(
            "\n".join(problems), hint="the form of a task file: docs/reference/tasks.md"
        ) from error
    tasks = [
        _task(entry, file.defaults, f"{source}:{_line(lines, ('tasks', index))}")
        for index, entry in enumerate(file.tasks)
    ]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{task.source}: a second task with the id {task.id!r}")
        seen.add(task.id)
    return tasks


def _task(entry: _TaskEntry, defaults: _Defaults, source: str) -> Task:
    given = {name: getattr(defaults, name) for name in defaults.model_fields_set}
    given |= {name: getattr(entry, name) for name in entry.model_fields_set if name != "evaluate"}
    parts = tuple(_with_question(each, entry.goal) for each in entry.evaluate)
    evaluation = None if not parts else parts[0] if len(parts) == 1 else AllEvaluator(parts=parts)
    return Task(**given, evaluation=evaluation, source=source)


def _with_question(evaluator: TaskEvaluator, goal: str) -> TaskEvaluator:
    if isinstance(evaluator, AnswerEvaluator) and not evaluator.question:
        return evaluator.model_copy(update={"question": goal})
    return evaluator


# --- lines -----------------------------------------------------------------------------------------

_Path = tuple[str | int, ...]
_MAX_TEXT = 1 << 21  # characters: 2^20 of YAML take 230 MiB and 20 s, with the line of each part


def _load(text: str, source: str) -> tuple[Any, dict[_Path, int]]:
    """Return a file's value and the line of each of its parts; JSON is YAML, except for its tabs."""
    if len(text) > _MAX_TEXT:
        raise TaskError(f"{source}: {len(text)} characters, {_MAX_TEXT} at most", hint="split the file")
    try:
        isjson = text.lstrip().startswith("{")
        loaded = json.loads(text) if isjson else None
        node = yaml.compose(text.replace("\t", " ") if isjson else text, Loader=yaml.SafeLoader)
        lines = dict(_lines(node, (), ())) if node else {}
        if not isjson:
            loaded = yaml.load(text, Loader=_Loader)
    except json.JSONDecodeError as error:
        raise TaskError(f"{source}:{error.lineno}: not JSON: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TaskError(f"{source}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TaskError(f"{source}: not {'JSON' if isjson else 'YAML'}: {error}") from error
    return loaded, lines


class _Loader(yaml.SafeLoader):
    """Loader that reports the line of a scalar that cannot be converted, such as a date of month 13."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def _lines(node: yaml.Node, path: _Path, above: tuple[yaml.Node, ...]) -> Iterator[tuple[_Path, int]]:
    """Yield the path and line of each part.

    Raises:
        yaml.MarkedYAMLError: if a part contains itself, or an object has two fields of one name.
    """
    yield path, node.start_mark.line + 1
    if any(node is each for each in above):
        raise yaml.MarkedYAMLError(problem="it holds an alias of itself", problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"a second {key.value!r}", problem_mark=key.start_mark)
            seen |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
            yield from _lines(value, (*path, key.value), (*above, node))
            yield (*path, key.value), key.start_mark.line + 1  # the line of a value is that of its key
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*path, index), (*above, node))


def _line(lines: dict[_Path, int], place: _Path) -> int:
    """Return the line of a pydantic location; its steps that are not keys (tags of unions) are skipped."""
    at: _Path = ()
    for step in place:
        if (*at, step) in lines:
            at = (*at, step)
    return lines.get(at, 1)


def native_file(tasks: Iterable[Task]) -> dict[str, Any]:
    """Return the task file that holds some tasks; fields with their default value are left out.

    Raises:
        TaskError: if a task cannot be written to a task file.
    """
    file = {"stillweb_tasks": VERSION, "tasks": [_entry(task) for task in tasks]}
    try:
        _TaskFile.model_validate(file)
    except ValidationError as error:
        raise TaskError(f"no task file for these tasks: {problem_of(error.errors()[0])}") from error
    return file


def _entry(task: Task) -> dict[str, Any]:
    default = task_to_dict(Task("", "", ""))
    given = {name: value for name, value in task_to_dict(task).items() if value != default.get(name)}
    given.pop("source", None)
    if evaluation := given.pop("evaluation", None):
        given["evaluate"] = evaluation["parts"] if evaluation["type"] == "every" else [evaluation]
    return given
