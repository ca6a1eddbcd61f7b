"""Count the WebArena tasks that can be scored on a recording, by kind: by page state, and by `request`.

    python bench/webarena.py webarena_test.raw.json webarena-verified.json

The first file is WebArena's; its evaluators read answers, URLs and pages. The second one is in the package
`webarena-verified` (1.2.3): it describes the requests of the same 812 tasks. Each of its events becomes a
pattern of the evaluator `request`. A recording has no live back-end, so a check of a response is left out:
such tasks are counted apart. Prints a Markdown table.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stillweb.env.tasks.load import webarena_tasks
from stillweb.env.tasks.requests import RequestEvaluator

_SITES = ("SHOPPING", "SHOPPING_ADMIN", "GITLAB", "REDDIT", "MAP", "WIKIPEDIA", "HOMEPAGE")
_RESPONSE = ("response_content", "response_cookies")
_KNOWN = {"url", "http_method", "query_params", "post_data", "response_status", *_RESPONSE}
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def rule_of(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule for one expected value; expressions are those that begin with `^`."""
    if value is None:
        return {"any": True}
    if isinstance(value, list):
        rules = [rule_of(each, schema.get("items", {})) for each in value]
        return rules[0] if len(rules) == 1 else {"one_of": value}
    if schema.get("type") == "number":
        return {"number": float(value)}
    if schema.get("format") == "date":
        month, day, year = map(int, value.split("/"))
        return {"date": f"{year:04}-{month:02}-{day:02}"}
    if isinstance(value, str) and value.startswith("^"):
        return {"regex": value}
    return {"ignore_case": str(value)}


def pattern_of(event: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the pattern of one event, or why there is none."""
    expected = event["expected"]
    if unknown := expected.keys() - _KNOWN:
        return f"reads {', '.join(sorted(unknown))}"
    if event.get("decode_base64_query"):
        return "reads a query in base64"
    pattern: dict[str, Any] = {"method": expected.get("http_method", _METHODS)}
    urls = expected["url"] if isinstance(expected["url"], list) else [expected["url"]]
    if any(url.startswith("^") for url in urls):
        pattern["url_regex"] = "|".join(url if url.startswith("^") else re.escape(url) for url in urls)
    else:
        pattern["url"] = [url.partition("?")[0] for url in urls]
    for ours, theirs in (("query", "query_params"), ("body", "post_data")):
        schema = event.get(f"{theirs}_schema", {}).get("properties", {})
        fields = expected.get(theirs) or {}
        pattern[ours] = {n.removeprefix("$."): rule_of(v, schema.get(n, {})) for n, v in fields.items()}
    if any(name.startswith("^") for name in pattern["body"]):
        return "has an expression as the name of a field"
    return pattern | ({"at_least": 0, "at_most": 0} if event.get("should_not_exist") else {})


def kind_of(task: Mapping[str, Any]) -> str:
    """Return how a task of webarena-verified is scored."""
    events = [each for each in task["eval"] if each["evaluator"] == "NetworkEventEvaluator"]
    if not events:
        return "answer only"
    patterns = [pattern_of(each) for each in events]
    if refused := next((each for each in patterns if isinstance(each, str)), ""):
        return refused
    try:
        RequestEvaluator.model_validate({"requests": patterns})
    except ValidationError as error:
        return f"pattern refused: {error.errors()[0]['msg']}"
    if any(name in each["expected"] for each in events for name in _RESPONSE):
        return "`request`, without the content of a response"
    if any("response_status" in each["expected"] for each in events):
        return "`request`, without the status of a response"
    return "`request`, complete"


def main() -> None:
    raw, verified = (json.loads(Path(each).read_text("utf-8")) for each in sys.argv[1:])
    sites = {site: f"https://{site.lower()}.example" for site in _SITES}
    tasks = webarena_tasks(raw, sites=sites, collections={})
    needs = {task.id: task.needs for task in tasks}
    state = {entry["task_id"]: "program_html" in entry["eval"]["eval_types"] for entry in raw}
    rows: Counter[tuple[str, str]] = Counter()
    for entry in verified:
        number, form = entry["task_id"], entry["eval"][0]["expected"]["task_type"]
        lacks = needs[f"webarena.{number}"]
        before = "page state" if state[number] else "answer or URL"
        before = f"needs {', '.join(sorted(lacks))}" if lacks else before
        rows[form, f"by WebArena: {before}"] += 1
        rows[form, f"by requests: {kind_of(entry)}"] += 1
    forms = ("retrieve", "navigate", "mutate")
    print(f"| scored | {' | '.join(forms)} | all |\n|---|{'---:|' * 4}")
    for what in sorted({what for _, what in rows}, reverse=True):
        counts = [rows[form, what] for form in forms]
        print(f"| {what} | {' | '.join(map(str, counts))} | {sum(counts)} |")


if __name__ == "__main__":
    main()
