"""webarena-verified scores episodes with its own evaluators, from the agent's report and the HAR.

The package reads a file of exactly as many tasks as it publishes: own tasks replace those of their numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from webarena_verified.api import WebArenaVerified
from webarena_verified.types.config import WebArenaVerifiedConfig
from webarena_verified.utils import get_package_assets_path

GIVEN = json.loads(sys.argv[1])

published = json.loads((get_package_assets_path() / "dataset" / "webarena-verified.json").read_text("utf-8"))
own = {task["task_id"]: task for task in json.loads(Path(GIVEN["file"]).read_text("utf-8"))}
whole = Path(GIVEN["file"]).with_name("whole.json")
whole.write_text(json.dumps([own.get(task["task_id"], task) for task in published]), "utf-8")
sites = {"__SHOPPING__": {"urls": [GIVEN["origin"]]}}
scorer = WebArenaVerified(config=WebArenaVerifiedConfig(test_data_file=whole, environments=sites))
scores = [
    scorer.evaluate_task(task_id=task, agent_response=answer, network_trace=Path(har)).score
    for task, answer, har in GIVEN["played"]
]
sys.stdout.write("\n" + json.dumps({"scores": scores}) + "\n")
