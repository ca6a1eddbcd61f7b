"""Tasks of webarena-verified (`webarena-verified.json`): those of WebArena, scored by what an agent sends.

Each expected request becomes a pattern of the evaluator `request`. Status, content and cookies of responses
follow from the recording and are not checked. Nor is the agent's report (an object with task type, status and
data). Tasks with a report alone are therefore not scored: read those from WebArena's own file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError

from stillweb.env.tasks.evaluators import AllEvaluator, TaskEvaluator, UnsupportedEvaluator, UrlEvaluator
from stillweb.env.tasks.requests import RequestEvaluator, RequestPattern
from stillweb.env.tasks.task import Task

_RESPONSE = ("response_status", "response_content", "response_cookies")
_READ = {"url", "http_method", "query_params", "post_data", *_RESPONSE}
_UNREAD = {
    "decode_base64_query": "reads a query in base64",
    "last_event_only": "reads the last request only",
}
_ANY_METHOD = ("GET", "POST", "PUT", "PATCH", "DELETE")
_REPORT = "only the agent's report is compared"


def verified_task(entry: Mapping[str, Any], where: str) -> Task:
    """Return the task of an entry whose placeholders are filled."""
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
            path.removeprefix("$."): _rule(value, types.get(path, {}))
            for path, value in (fields[name] or {}).items()
        }
    limits = {"at_least": 0, "at_most": 0} if event.get("should_not_exist") else {}
    return RequestPattern.model_validate(pattern | limits)


def _rule(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    if value is None:
        return {"one_of": ["", None]}
    if isinstance(value, list):
        rules = [_rule(each, schema.get("items", {})) for each in value]
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
