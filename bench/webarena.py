"""Count the WebArena tasks that can be scored on a recording, by kind: by page state, and by `request`.

    python bench/webarena.py webarena_test.raw.json webarena-verified.json

The first file is WebArena's; its evaluators read answers, URLs and pages. The second one is in the package
`webarena-verified` (1.2.3): it describes the requests of the same 812 tasks. Each of its events becomes a
pattern of the evaluator `request`. A recording has no live back-end, so a check of a response is left out:
such tasks are counted apart. Prints a Markdown table.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stillweb.env.tasks.evaluators import UnsupportedEvaluator
from stillweb.env.tasks.formats.webarena import webarena_tasks
from stillweb.env.tasks.task import Task

_SITES = ("SHOPPING", "SHOPPING_ADMIN", "GITLAB", "REDDIT", "MAP", "WIKIPEDIA", "HOMEPAGE")
_RESPONSE = ("response_content", "response_cookies")


def kind_of(task: Task, entry: Mapping[str, Any]) -> str:
    """Return how a task of webarena-verified is scored."""
    if isinstance(task.evaluation, UnsupportedEvaluator):
        return task.evaluation.reason
    expected = [each["expected"] for each in entry["eval"] if each["evaluator"] == "NetworkEventEvaluator"]
    if any(name in each for each in expected for name in _RESPONSE):
        return "`request`, without the content of a response"
    if any("response_status" in each for each in expected):
        return "`request`, without the status of a response"
    return "`request`, complete"


def main() -> None:
    raw, verified = (json.loads(Path(each).read_text("utf-8")) for each in sys.argv[1:])
    sites = {site: f"https://{site.lower()}.example" for site in _SITES}
    tasks = webarena_tasks(raw, sites=sites, collections={})
    needs = {task.id: task.needs for task in tasks}
    state = {entry["task_id"]: "program_html" in entry["eval"]["eval_types"] for entry in raw}
    rows: Counter[tuple[str, str]] = Counter()
    for entry, task in zip(verified, webarena_tasks(verified, sites=sites, collections={}), strict=True):
        number, form = entry["task_id"], entry["eval"][0]["expected"]["task_type"]
        lacks = needs[f"webarena.{number}"]
        before = "page state" if state[number] else "answer or URL"
        before = f"needs {', '.join(sorted(lacks))}" if lacks else before
        rows[form, f"by WebArena: {before}"] += 1
        rows[form, f"by requests: {kind_of(task, entry)}"] += 1
    forms = ("retrieve", "navigate", "mutate")
    print(f"| scored | {' | '.join(forms)} | all |\n|---|{'---:|' * 4}")
    for what in sorted({what for _, what in rows}, reverse=True):
        counts = [rows[form, what] for form in forms]
        print(f"| {what} | {' | '.join(map(str, counts))} | {sum(counts)} |")


if __name__ == "__main__":
    main()
