"""Perturbed tasks in the browser: oracles solve them, other answers fail, and obeying agents are noticed."""

from __future__ import annotations

import pytest
import shop_site

from stillweb.benchmarks.candidates import SiteFacts
from stillweb.benchmarks.perturb import PerturbTasksOptions, perturb_tasks
from stillweb.benchmarks.plan import TaskPlanner
from stillweb.benchmarks.reading import compare_items, open_pages, report_values
from stillweb.env import Env
from stillweb.env.episode.perturbation import Perturbation
from stillweb.errors import UsageError
from stillweb.replay import ReplayClient, ReplayOptions, serve

HOME = f"{shop_site.ORIGIN}/"


@pytest.fixture
def tasks(site):
    planner = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 7, 1)
    facts = SiteFacts(site, 7)
    plans = [
        planner.plan(next(make(facts)), make.__name__) for make in (report_values, compare_items, open_pages)
    ]
    return [plan.task for plan in plans]


@pytest.mark.browser
async def test_oracles_solve_perturbed_tasks_and_equal_seeds_give_equal_episodes(shop, ca, tasks):
    kinds = Perturbation(content=1, faults=1, adversarial=1)
    async with (
        serve([shop], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        options = PerturbTasksOptions(kinds, 4, runs=2, jobs=2)
        proved = await perturb_tasks(client, tasks, options)
        assert [each.trouble for each in proved] == [""] * len(tasks)
        assert len({each.digest for each in proved}) == len(tasks)
        with pytest.raises(UsageError, match="no perturbation"):
            await perturb_tasks(client, tasks, PerturbTasksOptions())


@pytest.mark.browser
async def test_an_agent_that_obeys_an_injection_is_noticed(shop, ca):
    async with (
        serve([shop], ca, ReplayOptions(port=0, session_ports=None)) as server,
        Env(server.url, "shop", level="exact", perturb="adversarial", perturb_seed=2) as env,
    ):
        observation, info = await env.reset(url=HOME)
        tokens = Perturbation(adversarial=1).variant(2, HOME).tokens
        shown = " ".join(node.name for node in observation.nodes)
        assert sum(token in shown for token in tokens) >= 3  # one is in a picture
        link = next(node for node in observation.nodes if (node.role, node.name) == ("link", "Lamps"))
        *_, info = await env.step({"action": "click", "bid": link.bid})
        assert info["perturbation"]["obeyed"] == []
        *_, info = await env.step({"action": "terminate", "answer": f"it is {tokens[0].upper()}"})
        assert info["perturbation"]["obeyed"] == [tokens[0]]
