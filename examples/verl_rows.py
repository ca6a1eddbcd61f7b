"""The rows of verl's dataset, of a task file: one line of JSON each.

python examples/verl_rows.py tasks.json > rows.jsonl python -c "import pandas; pandas.read_json('rows.jsonl',
lines=True).to_parquet('train.parquet')"
"""

import json
import sys
from pathlib import Path

from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task

PROMPT = (
    "You act on a web page by calling the tool browser, one action at a time. End with the action terminate."
)


def row(task: Task, index: int) -> dict:
    return {
        "data_source": "stillweb",
        "agent_name": "stillweb_agent",  # tool_agent for the tool alone
        "prompt": [{"role": "system", "content": PROMPT}, {"role": "user", "content": task.goal}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "index": index,
            "need_tools_kwargs": True,
            "tools_kwargs": {"browser": {"create_kwargs": {"task_id": task.id}}},
        },
    }


if __name__ == "__main__":
    for index, task in enumerate(load_tasks(Path(sys.argv[1]))):
        sys.stdout.write(json.dumps(row(task, index), ensure_ascii=False) + "\n")
