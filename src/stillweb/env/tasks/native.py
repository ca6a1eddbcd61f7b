"""Our own task file: YAML or JSON, checked before anything runs, errors by file and line.

    stillweb_tasks: 1
    defaults: {collection: shop, max_steps: 20}
    tasks:
      - id: cheapest
        goal: What does the cheapest lamp cost?
        start_url: https://shop.example/lamps
        evaluate:
          - {type: string, exact: "$9.85"}
          - {type: network, url: "https://shop.example/search?*", method: GET}

`evaluate` is a list: the reward is the product. Each entry has the fields of the evaluator of its
type (`env/criteria.py`); where several texts may stand, one may stand alone. What is misspelled
is an error, not a field that nobody reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from stillweb.env.tasks.evaluators import AllEvaluator, Evaluator, evaluator_from_dict
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.errors import TaskError

__all__ = ["VERSION", "native_file", "native_schema", "native_tasks"]

VERSION = 1


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return value


def _not_empty(value: list[Any]) -> list[Any]:
    if not value:
        raise ValueError("nothing is asked for; a task that is not to be scored leaves it out")
    return value


def _json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"no JSON: {error}; a date, say, is written in quotes") from error
    return value


_Texts = Annotated[list[str], BeforeValidator(_as_list)]
_Choices = Annotated[list[_Texts], BeforeValidator(_as_list)]
_Pattern = Annotated[str, AfterValidator(_pattern)]
_Value = Annotated[Any, BeforeValidator(_json)]


class _TaskModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _String(_TaskModel):
    type: Literal["string"]
    exact: str | None = None
    include: _Texts = []
    regex: _Pattern | None = None
    fuzzy: _Texts = []
    unachievable: str | None = None
    question: str = ""

    @model_validator(mode="after")
    def _asks(self) -> _String:
        asked = (self.exact, self.include, self.regex, self.fuzzy, self.unachievable)
        if all(each is None or each == [] for each in asked):
            raise ValueError("needs one of exact, include, regex, fuzzy, unachievable")
        return self


class _Json(_TaskModel):
    type: Literal["json"]
    expected: _Value
    unordered: bool = False


class _Url(_TaskModel):
    type: Literal["url"]
    exact: _Texts = []
    holds: _Texts = []
    regex: _Pattern | None = None

    @model_validator(mode="after")
    def _asks(self) -> _Url:
        if not self.exact and not self.holds and self.regex is None:
            raise ValueError("needs one of exact, holds, regex")
        return self


class _Js(_TaskModel):
    type: Literal["js"]
    script: Annotated[str, Field(min_length=1)]
    expected: _Value = True
    url: str = ""


class _ProgramHtml(_TaskModel):
    type: Literal["program_html"]
    url: str = ""
    locator: str = ""
    prepare: _Texts = []
    exact: str | None = None
    include: _Choices = []

    @model_validator(mode="after")
    def _asks(self) -> _ProgramHtml:
        if self.exact is None and not self.include:
            raise ValueError("needs exact or include")
        return self


class _Network(_TaskModel):
    type: Literal["network"]
    url: str
    method: Annotated[str, Field(pattern="^[A-Z]*$")] = ""
    status: int = 0
    at_least: Annotated[int, Field(ge=0)] = 1
    at_most: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _can_be(self) -> _Network:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most}, which is less than at_least, {self.at_least}")
        return self


class _Download(_TaskModel):
    type: Literal["download"]
    filename: str = "*"
    sha256: Annotated[str, Field(pattern="^([0-9a-fA-F]{64})?$")] = ""
    size_at_least: Annotated[int, Field(ge=0)] = 0


class _Site(_TaskModel):
    type: Literal["site"]
    reward: str
    ended: str = ""
    tell: str = ""


class _Either(_TaskModel):
    type: Literal["either"]
    parts: Annotated[list[_Evaluator], Field(min_length=1)]


class _Every(_TaskModel):
    type: Literal["every"]
    parts: Annotated[list[_Evaluator], Field(min_length=1)]


_Evaluator = Annotated[
    _String | _Json | _Url | _Js | _ProgramHtml | _Network | _Download | _Site | _Either | _Every,
    Field(discriminator="type"),
]
_Web = Annotated[str, Field(pattern="^https?://")]


class _Common(_TaskModel):
    collection: str = ""
    start: datetime | None = None
    timezone: str = ""
    viewport: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] | None = None
    seed: int | None = None
    max_steps: Annotated[int, Field(ge=0)] = 0


class _Task(_Common):
    id: Annotated[str, Field(min_length=1)]
    goal: Annotated[str, Field(min_length=1)]
    start_url: _Web
    evaluate: Annotated[list[_Evaluator], AfterValidator(_not_empty)] = []
    tabs: list[_Web] = []
    setup: _Texts = []
    goal_script: str = ""


class _File(_TaskModel):
    stillweb_tasks: Literal[1]
    defaults: _Common = _Common()
    tasks: list[_Task]


@cache
def native_schema() -> dict[str, Any]:
    """Return the JSON schema of a task file, for editors."""
    return _File.model_json_schema()


def native_tasks(text: str, *, source: str) -> list[Task]:
    """Make tasks from the text of a task file.

    Raises:
        TaskError: naming file and line of everything that is wrong.
    """
    loaded, lines = _load(text, source)
    try:
        file = _File.model_validate(loaded)
    except ValidationError as error:
        told = [f"{source}:{_line(lines, each['loc'])}: {_said(each)}" for each in error.errors()]
        raise TaskError("\n".join(told), hint="the form of a task file: docs/tasks.md") from error
    tasks = [
        _made(task, file.defaults, f"{source}:{_line(lines, ('tasks', index))}")
        for index, task in enumerate(file.tasks)
    ]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{task.source}: a second task with the id {task.id!r}")
        seen.add(task.id)
    return tasks


def _made(task: _Task, defaults: _Common, source: str) -> Task:
    given = {name: getattr(defaults, name) for name in defaults.model_fields_set}
    given |= {name: getattr(task, name) for name in task.model_fields_set if name != "evaluate"}
    for name in ("tabs", "setup", "viewport"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    parts = [_evaluator(each.model_dump(), task.goal) for each in task.evaluate]
    evaluation = None if not parts else parts[0] if len(parts) == 1 else AllEvaluator(parts=tuple(parts))
    return Task(**given, evaluation=evaluation, source=source)


def _evaluator(given: dict[str, Any], goal: str) -> Evaluator:
    if given["type"] == "string" and not given["question"]:
        given["question"] = goal
    return evaluator_from_dict(given)


# --- lines -----------------------------------------------------------------------------------------

_Path = tuple[str | int, ...]


def _load(text: str, source: str) -> tuple[Any, dict[_Path, int]]:
    """Return a file's value, and the line of each of its parts; JSON is YAML but for its tabs."""
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
    """Tells where a value stands that only looks like one, such as a date of month 13."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def _lines(node: yaml.Node, path: _Path, above: tuple[yaml.Node, ...]) -> Iterator[tuple[_Path, int]]:
    """Yield places and their lines.

    Raises:
        yaml.MarkedYAMLError: if a part stands in itself, or an object has two fields of one name.
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
            yield (*path, key.value), key.start_mark.line + 1  # where a value begins is where its key stands
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*path, index), (*above, node))


def _line(lines: dict[_Path, int], place: _Path) -> int:
    """Return the line of a place as pydantic names it, or of what it is in: tags of unions are no places."""
    at: _Path = ()
    for step in place:
        if (*at, step) in lines:
            at = (*at, step)
    return lines.get(at, 1)


def _said(error: Any) -> str:
    place = ".".join(str(step) for step in error["loc"])
    return f"{place}: {error['msg'].removeprefix('Value error, ')}" if place else str(error["msg"])


def native_file(tasks: Iterable[Task]) -> dict[str, Any]:
    """Return tasks as a task file has them; what is as usual is left out.

    Raises:
        TaskError: if an evaluator is of a kind that task files do not have.
    """
    told = {"stillweb_tasks": VERSION, "tasks": [_shown(task) for task in tasks]}
    try:
        _File.model_validate(told)
    except ValidationError as error:
        raise TaskError(f"these tasks cannot stand in a task file: {_said(error.errors()[0])}") from error
    return told


def _shown(task: Task) -> dict[str, Any]:
    usual = Task("", "", "")
    told = {name: value for name, value in task_to_dict(task).items() if value != getattr(usual, name)}
    told.pop("source", None)
    if evaluation := told.pop("evaluation", None):
        told["evaluate"] = evaluation["parts"] if evaluation["type"] == "every" else [evaluation]
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]
