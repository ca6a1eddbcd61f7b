"""Loader of task files; the form is recognised by the content.

    a list of objects with `env` and `eval`            WARC-Bench        `warc_bench_tasks`
    a list of objects with `sites` and `eval`          WebArena          `webarena_tasks`
    the same, `eval` being a list                      webarena-verified `webarena_tasks`
    an object with `stillweb_tasks: 1` (JSON or YAML)  our own           tasks/native.py

MiniWoB++ has no file: its pages are its tasks (`tasks/miniwob.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError

from stillweb.env.tasks.evaluators import (
    AllEvaluator,
    AnswerEvaluator,
    ContentEvaluator,
    EvalKind,
    Evaluation,
    TaskEvaluator,
    UnsupportedEvaluator,
    UrlEvaluator,
)
from stillweb.env.tasks.native import native_tasks
from stillweb.env.tasks.requests import RequestEvaluator, RequestPattern
from stillweb.env.tasks.task import Task
from stillweb.errors import TaskError


def load_tasks(
    path: Path | str, *, sites: Mapping[str, str] | None = None, collections: Mapping[str, str] | None = None
) -> list[Task]:
    """Read a task file of any of these forms.

    Args:
        path: a JSON file, or a YAML file if the name ends in .yaml or .yml.
        sites: URL for each of WebArena's placeholders: {"SHOPPING": "http://shop.example", ...}.
        collections: collection for each of WebArena's sites: {"shopping": "shop", ...}.

    Raises:
        TaskError: if the file cannot be read or an entry is wrong; the message names file and place.
    """
    path = Path(path)
    text = _read(path)
    if path.suffix in (".yaml", ".yml"):
        return native_tasks(text, source=str(path))
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: not JSON: {error}") from error
    if isinstance(entries, Mapping):
        return native_tasks(text, source=str(path))
    if not isinstance(entries, list):
        raise TaskError(
            f"{path}: a {type(entries).__name__} where a list of tasks is expected",
            hint="the forms of a task file: docs/reference/tasks.md",
        )
    if _is_webarena(entries):
        return webarena_tasks(entries, sites=sites or {}, collections=collections or {}, source=str(path))
    return warc_bench_tasks(entries, source=str(path))


def _is_webarena(entries: list[Any]) -> bool:
    return bool(entries) and isinstance(entries[0], Mapping) and "sites" in entries[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TaskError(f"{path}: not UTF-8: {error}") from error


# --- WARC-Bench ------------------------------------------------------------------------------------

# Loader of WARC-Bench's task lists, as its harness reads them (sanjari-orb/warc-bench,
# `subtask_benchmark`).
#
# `env.data_path` names the archive, and `env.timestamp` (a protobuf timestamp) the initial time of the
# page's clock. Only the first of `eval.evaluate_scripts` is used. The harness's browser has the time zone
# of its machine: the tasks were recorded in UTC, except for those whose script names another zone. The
# viewport of the recordings is 1280x720.


def warc_bench_tasks(entries: Iterable[Any], *, source: str = "warc-bench") -> list[Task]:
    """Read the entries of a WARC-Bench list as tasks.

    In merged lists several tasks have the same id; the second and later ones get the suffix `~2`, `~3`.

    Raises:
        TaskError: naming source and index of the first entry that is wrong.
    """
    seen: Counter[str] = Counter()
    tasks = []
    for index, entry in enumerate(entries):
        where = f"{source}#{index}"
        tasks.append(_warc_bench_task(_FieldReader(entry, where), where, seen))
    return tasks


_WARC_BENCH_KINDS = {
    "js_matcher": EvalKind.JS,
    "string_matcher": EvalKind.STRING,
    "json_matcher": EvalKind.JSON,
    "url_matcher": EvalKind.URL,
}
_WARC_BENCH_VIEWPORT = (1280, 720)
# Chromium's names of zones in `String(new Date())`, as far as the tasks contain them.
_ZONES = {
    "(Pacific Daylight Time)": "America/Los_Angeles",
    "(Pacific Standard Time)": "America/Los_Angeles",
}


class _FieldReader:
    """Reader of a JSON object's fields; its errors name place and field."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise TaskError(f"{where}: {type(value).__name__} where an object is expected")
        self._value = value
        self._where = where

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{self._where}: {name!r} must be a text that is not empty, it is {value!r}")
        return value

    def object(self, name: str) -> _FieldReader:
        if name not in self._value:
            raise TaskError(
                f"{self._where}: {name!r} is missing", hint="the form of a task: docs/reference/tasks.md"
            )
        return _FieldReader(self._value[name], f"{self._where}: {name}")

    def first(self, name: str) -> _FieldReader:
        value = self._value.get(name)
        if not isinstance(value, list) or not value:
            raise TaskError(f"{self._where}: {name!r} must be a list that is not empty, it is {value!r}")
        return _FieldReader(value[0], f"{self._where}: {name}[0]")

    def timestamp(self, name: str) -> datetime | None:
        value = self._value.get(name)
        if value is None:
            return None
        seconds = value.get("seconds") if isinstance(value, Mapping) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TaskError(f"{self._where}: {name!r} must have the seconds since 1970, it is {value!r}")
        try:
            return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, ValueError, OSError) as error:
            raise TaskError(f"{self._where}: {name!r} is not a time: {error}") from error


def _warc_bench_task(entry: _FieldReader, where: str, seen: Counter[str]) -> Task:
    env, evaluation = entry.object("env"), entry.object("eval")
    kind = evaluation.text("eval_type")
    if kind not in _WARC_BENCH_KINDS:
        raise TaskError(f"{where}: eval_type {kind!r} is none of {', '.join(_WARC_BENCH_KINDS)}")
    script = evaluation.first("evaluate_scripts").text("script")
    if kind == "json_matcher":
        _check_json(script, where)
    start_url = env.text("start_url")
    if "://" not in start_url:
        raise TaskError(f"{where}: start_url {start_url!r} is not an absolute URL")
    task_id = entry.text("task_id")
    seen[task_id] += 1
    return Task(
        id=task_id if seen[task_id] == 1 else f"{task_id}~{seen[task_id]}",
        goal=entry.text("goal"),
        start_url=start_url,
        collection=PurePosixPath(env.text("data_path")).stem,
        evaluation=Evaluation(_WARC_BENCH_KINDS[kind], script),
        start=env.timestamp("timestamp"),
        timezone=next((zone for name, zone in _ZONES.items() if name in script), "UTC"),
        viewport=_WARC_BENCH_VIEWPORT,
        source=where,
    )


def _check_json(text: str, where: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise TaskError(f"{where}: the expected JSON is none: {error}") from error


# --- WebArena --------------------------------------------------------------------------------------

# Loader of WebArena's task configurations (`test.raw.json`); they score as in WebArena's harness.
#
# The configurations name sites by placeholders (`__SHOPPING__`, `__REDDIT__`); `sites` maps them to URLs. A
# task with an unmapped placeholder is loaded and cannot be scored. Evaluators that query the live site
# (Magento's REST API for orders and reviews, with an administrator's password) become
# `UnsupportedEvaluator`, and scoring raises. The two helper functions that only read pages or URLs are
# implemented here. Comparisons that WebArena leaves to a language model need a judge (`EnvOptions.judge`).
# The recording determines who is logged in; `storage_state` is ignored, since it names files of the
# authors' machine.

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*[A-Z])__")
_OR, _AND = " |OR| ", " |AND| "
_RULE = "GOLD in PRED"
_MEMBER_ROLE = re.compile(r"func:gitlab_get_project_memeber_role\(__page__, '([^']*)'\)")
_POST_URL = "func:reddit_get_post_url('__last_url__')"
# Role of an account in GitLab's table of members.
_ROLE_SCRIPT = """(() => {
  const names = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const row = names.findIndex((name) => name.outerText === %s);
  return document.querySelectorAll("td.col-max-role span")[row].outerText;
})()"""


def webarena_tasks(
    entries: Iterable[Any],
    *,
    sites: Mapping[str, str],
    collections: Mapping[str, str],
    source: str = "webarena",
) -> list[Task]:
    """Read configurations of WebArena or webarena-verified as tasks.

    Args:
        entries: the list in the file.
        sites: URL of each site by its placeholder, in any case, with or without `__`.
        collections: name of the collection that holds a site, by the site's name in `sites`.

    Raises:
        TaskError: naming source and index of the first entry that is wrong.
    """
    urls = {_site(name): url.rstrip("/") for name, url in sites.items()}
    held = {_site(name): collection for name, collection in collections.items()}
    tasks = []
    for index, entry in enumerate(entries):
        where = f"{source}#{index}"
        try:
            filled = _filled(entry, urls)
            task = (_verified_task if isinstance(filled["eval"], list) else _webarena_task)(filled, where)
            if unknown := _PLACEHOLDER.findall(json.dumps(filled)):
                missing = ", ".join(sorted(set(unknown)))
                reason = f"no URL is given for {missing} (sites=...)"
                task = replace(task, evaluation=UnsupportedEvaluator(reason=reason, need="site_url"))
            collection = next((held[_site(s)] for s in filled["sites"] if _site(s) in held), "")
            tasks.append(replace(task, collection=collection))
        except KeyError as error:
            raise TaskError(f"{where}: no configuration of WebArena: {error} is missing") from error
        except (TypeError, AttributeError, ValueError, IndexError) as error:
            raise TaskError(f"{where}: no configuration of WebArena: {error}") from error
    return tasks


def _site(name: str) -> str:
    return name.strip("_").upper()


def _filled(value: Any, urls: Mapping[str, str]) -> Any:
    """Return a configuration with the placeholders replaced by URLs."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: urls.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(each, urls) for key, each in value.items()}
    return [_filled(each, urls) for each in value] if isinstance(value, list) else value


def _webarena_task(entry: Mapping[str, Any], where: str) -> Task:
    start, *tabs = entry["start_url"].split(_AND)
    if not entry["intent"] or not start:
        raise TaskError(f"{where}: 'intent' and 'start_url' must not be empty")
    return Task(
        id=f"webarena.{entry['task_id']}",
        goal=entry["intent"],
        start_url=start,
        evaluation=_evaluation(entry, where),
        source=where,
        tabs=tuple(tabs),
    )


def _evaluation(entry: Mapping[str, Any], where: str) -> TaskEvaluator:
    spec = entry["eval"]
    parts: list[TaskEvaluator] = []
    for kind in spec["eval_types"]:
        if kind == "string_match":
            parts.append(_answer(spec, entry["intent"]))
        elif kind == "url_match":
            parts.append(_url(spec))
        elif kind == "program_html":
            parts += [_content(target) for target in spec["program_html"]]
        else:
            raise TaskError(f"{where}: eval_type {kind!r} is none of string_match, url_match, program_html")
    if not parts:
        raise TaskError(f"{where}: nothing is evaluated")
    return parts[0] if len(parts) == 1 else AllEvaluator(parts=tuple(parts))


def _answer(spec: Mapping[str, Any], question: str) -> TaskEvaluator:
    reference = spec["reference_answers"]
    if unknown := set(reference) - {"exact_match", "must_include", "fuzzy_match"}:
        return UnsupportedEvaluator(reason=f"answers are compared by {', '.join(sorted(unknown))}")
    fuzzy = reference.get("fuzzy_match", [])
    unachievable = fuzzy == "N/A"
    return AnswerEvaluator(
        exact=reference.get("exact_match"),
        include=tuple(reference.get("must_include", ())),
        fuzzy=() if unachievable else tuple(fuzzy),
        unachievable=spec["string_note"] if unachievable else None,
        question=question,
    )


def _url(spec: Mapping[str, Any]) -> TaskEvaluator:
    rule = spec.get("url_note", _RULE)
    if rule != _RULE:
        return UnsupportedEvaluator(reason=f"URLs are compared by {rule!r}")
    return UrlEvaluator(holds=tuple(spec["reference_url"].split(_OR)))


def _content(target: Mapping[str, Any]) -> TaskEvaluator:
    url, locator = target["url"], target["locator"].strip()
    if url == _POST_URL:
        url = "reddit_post"
    elif url == "last":
        url = ""
    elif url.startswith("func"):
        return UnsupportedEvaluator(reason=f"{url} queries the live site")
    if member := _MEMBER_ROLE.fullmatch(locator):
        locator = _ROLE_SCRIPT % json.dumps(f"@{member[1]}")
    elif locator.startswith("func:"):
        return UnsupportedEvaluator(reason=f"{locator} queries the live site")
    contents = target["required_contents"]
    if set(contents) - {"exact_match", "must_include"}:
        return UnsupportedEvaluator(reason=f"contents are compared by {', '.join(contents)}")
    return ContentEvaluator(
        url=url,
        locator=locator,
        prepare=tuple(target.get("prep_actions", ())),
        exact=contents.get("exact_match"),
        include=tuple(tuple(each.split(_OR)) for each in contents.get("must_include", ())),
    )


# --- webarena-verified -----------------------------------------------------------------------------

# Loader of webarena-verified's task file (`webarena-verified.json`): WebArena's tasks, scored by the
# requests that the agent sends. Each expected request becomes a pattern of the evaluator `request`. Status,
# content and cookies of responses follow from the recording and are not checked, nor is the agent's report
# (an object with task type, status and data). Tasks with a report alone are therefore not scored: read
# those from WebArena's own file.

_RESPONSE = ("response_status", "response_content", "response_cookies")
_READ = {"url", "http_method", "query_params", "post_data", *_RESPONSE}
_UNREAD = {
    "decode_base64_query": "reads a query in base64",
    "last_event_only": "reads the last request only",
}
_ANY_METHOD = ("GET", "POST", "PUT", "PATCH", "DELETE")
_REPORT = "only the agent's report is compared"


def _verified_task(entry: Mapping[str, Any], where: str) -> Task:
    start, *tabs = entry["start_urls"]
    events = [each for each in entry["eval"] if each["evaluator"] == "NetworkEventEvaluator"]
    reads_page = any(
        each["expected"]["task_type"] == "navigate" for each in entry["eval"] if each not in events
    )
    evaluation: TaskEvaluator = UnsupportedEvaluator(reason=_REPORT, need="agent_report")
    if refused := next(filter(None, map(_refusal, events)), ""):
        evaluation = UnsupportedEvaluator(reason=f"an expected request {refused}", need="request_pattern")
    elif events:
        expected = RequestEvaluator(requests=tuple(map(_pattern, events)))
        pages = [_final_url(each) for each in events if reads_page and _is_read(each)]
        evaluation = AllEvaluator(parts=(*pages, expected)) if pages else expected
    return Task(
        id=f"webarena_verified.{entry['task_id']}",
        goal=entry["intent"],
        start_url=start,
        evaluation=evaluation,
        source=where,
        tabs=tuple(tabs),
    )


def _refusal(event: Mapping[str, Any]) -> str:
    """Return why an expected request has no pattern, "" if it has one."""
    expected = event["expected"]
    if unknown := expected.keys() - _READ:
        return f"reads {', '.join(sorted(unknown))}"
    if any(name.startswith("^") for name in expected.get("post_data") or ()):
        return "has an expression as the name of a field"
    if refused := next((text for name, text in _UNREAD.items() if event.get(name)), ""):
        return refused
    try:
        _pattern(event)
    except ValidationError as error:
        return f"has no pattern: {error.errors()[0]['msg']}"
    return ""


def _urls(event: Mapping[str, Any]) -> list[str]:
    url = event["expected"]["url"]
    return [url] if isinstance(url, str) else list(url)


def _is_read(event: Mapping[str, Any]) -> bool:
    return event["expected"].get("http_method", "GET") == "GET" and not event.get("should_not_exist")


def _final_url(event: Mapping[str, Any]) -> UrlEvaluator:
    """Return the evaluator of the last page: tasks that navigate end on the expected one."""
    places = [url[1:].removesuffix("$") if url.startswith("^") else re.escape(url.partition("?")[0])
              for url in _urls(event)]  # fmt: skip
    return UrlEvaluator(regex=rf"(?:{'|'.join(places)})/?(?:[?#].*)?")


def _pattern(event: Mapping[str, Any]) -> RequestPattern:
    """Return the pattern of an expected request; expressions are those that begin with `^`."""
    expected, urls = event["expected"], _urls(event)
    pattern: dict[str, Any] = {"method": expected.get("http_method", _ANY_METHOD)}
    if any(url.startswith("^") for url in urls):
        pattern["url_regex"] = "|".join(url if url.startswith("^") else re.escape(url) for url in urls)
    else:
        pattern["url"] = [url.partition("?")[0] for url in urls]
    queries = dict(parse_qsl(urlsplit(urls[0]).query, keep_blank_values=True)) if "url" in pattern else {}
    fields = {"query": {**queries, **(expected.get("query_params") or {})}, "body": expected.get("post_data")}
    for name, schema in (("query", "query_params_schema"), ("body", "post_data_schema")):
        types = event.get(schema, {}).get("properties", {})
        pattern[name] = {
            path.removeprefix("$."): _verified_rule(value, types.get(path, {}))
            for path, value in (fields[name] or {}).items()
        }
    limits = {"at_least": 0, "at_most": 0} if event.get("should_not_exist") else {}
    return RequestPattern.model_validate(pattern | limits)


def _verified_rule(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    if value is None:
        return {"one_of": ["", None]}
    if isinstance(value, list):
        rules = [_verified_rule(each, schema.get("items", {})) for each in value]
        texts = [re.escape(each) for each in value if isinstance(each, str)]
        return rules[0] if len(rules) == 1 else {"regex": f"(?i)(?:{'|'.join(texts)})"}
    if schema.get("type") == "number":
        return {"number": float(value)}
    if schema.get("format") == "date":
        month, day, year = map(int, value.split("/"))
        return {"date": f"{year:04}-{month:02}-{day:02}"}
    if isinstance(value, str) and value.startswith("^"):
        return {"regex": value}
    return {"ignore_case": str(value)}
