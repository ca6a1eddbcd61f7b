"""webarena-verified 1.2.3: its unmodified evaluators score episodes on a recorded site by their HARs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import shop_site

from stillweb.benchmarks.oracle import run_oracle
from stillweb.certs import CertAuthority
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env import EnvOptions
from stillweb.env.env import open_envs
from stillweb.env.tasks.load import load_tasks
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]

BASKET = "/basket/add/oak-lamp"
END = {"action": "terminate", "answer": ""}
ADD = {"action": "click", "role": "button", "name": "Add to basket"}


def task(number: int, start: str, kind: str, data: list[str] | None = None, **request: object) -> dict:
    schema = {"type": "array", "items": {"type": "string"}} if data else {"type": "null"}
    report = {"task_type": kind, "status": "SUCCESS", "retrieved_data": data}
    found = {
        "sites": ["shopping"],
        "task_id": number,
        "intent_template_id": number,
        "start_urls": [f"__SHOPPING__{start}"],
        "intent": "A task",
        "intent_template": "A task",
        "instantiation_dict": {},
        "revision": 1,
        "eval": [{"evaluator": "AgentResponseEvaluator", "results_schema": schema, "expected": report}],
    }
    if request:
        found["eval"].append({"evaluator": "NetworkEventEvaluator", "expected": request})
    return found


def report(kind: str, data: list[str] | None = None) -> dict[str, object]:
    return {"task_type": kind, "status": "SUCCESS", "retrieved_data": data}


TASKS = [
    task(
        1,
        "/oak-lamp",
        "mutate",
        url=f"__SHOPPING__{BASKET}",
        http_method="POST",
        response_status=302,
        post_data={"count": "1"},
    ),
    task(2, "/", "navigate", url="__SHOPPING__/lamps", http_method="GET", response_status=200),
    task(3, "/oak-lamp", "retrieve", ["SKU-101"]),
]
PLAYED = [  # task, start, steps, report, score
    (1, "/oak-lamp", [ADD, END], report("mutate"), 1.0),
    (1, "/tin-lamp", [ADD, END], report("mutate"), 0.0),
    (2, "/", [{"action": "click", "role": "link", "name": "Lamps"}, END], report("navigate"), 1.0),
    (2, "/", [END], report("navigate"), 0.0),
    (3, "/oak-lamp", [END], report("retrieve", ["SKU-101"]), 1.0),
    (3, "/oak-lamp", [END], report("retrieve", ["SKU-102"]), 0.0),
]


async def test_its_evaluators_score_episodes_on_a_recorded_site(
    drive, tmp_path: Path, record_property
) -> None:
    file, trajectories = tmp_path / "tasks.json", tmp_path / "trajectories"
    file.write_text(json.dumps(TASKS), "utf-8")
    collection = shop_site.build(tmp_path)
    with CollectionWriter(collection) as writer:
        sent = Request(
            "POST",
            shop_site.ORIGIN + BASKET,
            (("Content-Type", "application/x-www-form-urlencoded"),),
            b"count=1",
        )
        answer = Response(302, "Found", (("Location", "/lamps"), ("Content-Length", "0")))
        writer.write(Exchange(sent, answer, "20240506070810"))
    seal(collection)
    tasks = load_tasks(file, sites={"SHOPPING": shop_site.ORIGIN}, collections={"shopping": collection.name})
    played, ours = [], []
    async with (
        serve([collection], CertAuthority.load_or_init(tmp_path / "ca"), ReplayOptions(port=0)) as server,
        open_envs(
            server.url, 1, level="exact", observe=("axtree",), options=EnvOptions(trajectories=trajectories)
        ) as (env,),
    ):
        for number, start, steps, answer, _ in PLAYED:
            before = set(trajectories.rglob("*.har"))
            episode = replace(tasks[number - 1], start_url=shop_site.ORIGIN + start)
            ours.append((await run_oracle(env, episode, steps)).reward)
            (har,) = set(trajectories.rglob("*.har")) - before
            played.append((number, answer, str(har)))
    outcome = await asyncio.to_thread(
        drive,
        "webarena_verified",
        "webarena_verified_side",
        file=str(file),
        origin=shop_site.ORIGIN,
        played=played,
    )
    scores = outcome["scores"]
    assert scores == [score for *_, score in PLAYED]
    assert ours[:4] == scores[:4]  # the reports of the last two are not scored here
    record_property("reward", scores[0])
